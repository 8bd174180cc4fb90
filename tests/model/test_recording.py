"""What a capture leaves behind: plain data that saves to JSON and loads again."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.model.recording import VERSION, Recording
from capturekit.model.source_line import other_threads, raised_at


def recorded(sim: Any) -> ck.Capture:
    x = sim.arange(8, dtype='f8')
    with ck.capture() as cap:
        y = x + sim.asarray(np.ones(8))
        with cap.fork(2) as (left, right):
            with left:
                a = y * 2
            with right:
                b = y * 3
        a + b
    return cap


def test_the_story(sim: Any) -> None:
    cap = recorded(sim)
    story = cap.recording
    assert (story.version, story.outcome, story.strict, story.mode) == (VERSION, 'good', True, 'relaxed')
    assert story.node_count == 5 and story.edge_count == 5 and story.memory_bytes > 0
    assert [lane.number for lane in story.lanes] == [0, 1, 2]
    assert [lane.parent for lane in story.lanes] == [None, 0, 0]
    assert all(lane.forked_at is not None and lane.forked_at[0] == __file__ for lane in story.lanes[1:])
    kinds = [step.kind for step in story.steps]
    assert kinds.count('fork') == 2 and kinds.count('join') == 2 and kinds.count('constant') == 1
    text = str(story)
    assert 'lane 2' in text and 'forked from lane 0 at test_recording.py' in text and 'uploaded while recording' in text


def test_json_out_and_in(sim: Any, tmp_path: Path) -> None:
    story = recorded(sim).recording
    path = tmp_path / 'recording.json'
    story.save(path)
    assert Recording.load(path) == story
    assert Recording.from_json(json.loads(json.dumps(story.to_json()))) == story


def test_a_wait_that_orders_nothing_is_noted(sim: Any) -> None:
    with ck.capture() as cap:
        cap.stream.wait_event(sim.cuda.Event())
    assert 'never recorded' in cap.recording.notes[0].text


def test_repr(sim: Any) -> None:
    cap = recorded(sim)
    assert repr(cap) == '<capturekit.Capture closed>'
    assert repr(cap.graph) == '<capturekit.Graph 5 nodes, 3 lanes>'
    cap.graph.close()
    assert repr(cap.graph) == '<capturekit.Graph closed>'


def test_the_blocks_own_exception_is_placed_where_it_was_raised(sim: Any) -> None:
    def fails() -> None:
        sim.arange(4.0)
        raise KeyError('of my own')

    with pytest.raises(KeyError), ck.capture() as cap:
        fails()
    (step,) = [step for step in cap.recording.steps if step.kind == 'finding']
    assert step.at is not None and step.at[1:] == [fails.__code__.co_firstlineno + 2, 'fails']
    assert step.text == "KeyError: 'of my own'"


def test_edges_of_a_lost_capture_are_not_said_to_be_none() -> None:
    assert '3 nodes, 0 lanes' in str(Recording(node_count=3, outcome='lost'))
    assert '3 nodes, 0 edges' in str(Recording(node_count=3, outcome='good'))


BAD: dict[str, str] = {
    'empty': '',
    'no JSON': '{"version": ',
    'a list': '[1, 2]',
    'a number': '3',
    'no version': '{"nodes": 3}',
    'another version': '{"version": 99}',
    'lanes are numbers': '{"version": VERSION, "lanes": [1]}',
    'a lane without its number': '{"version": VERSION, "lanes": [{"stream": 4}]}',
    'steps are no list': '{"version": VERSION, "steps": 4}',
    'arrows of three': '{"version": VERSION, "arrows": [[1, 2, 3]]}',
    'a timeline of one number': '{"version": VERSION, "timeline": 5}',
    'nested too deep': '[' * 200_000,
    'other bytes': bytes(range(256)).decode('latin-1'),
}


@pytest.mark.parametrize('what', BAD)
def test_a_bad_file_is_named(tmp_path: Path, what: str) -> None:
    path = tmp_path / 'bad.json'
    path.write_text(BAD[what].replace('VERSION', str(VERSION)), 'latin-1')
    with pytest.raises(ValueError, match=r'bad\.json: ') as found:
        Recording.load(path)
    assert type(found.value) is ValueError
    assert found.value.__suppress_context__


# -- which line is the user's -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('file', 'of_a_library'),
    [
        ('cupy_backends/cuda/api/runtime.pyx', True), ('cupy/_core/core.pyx', True),
        ('cuda/bindings/driver.pyx', True), ('cupy_models/train.pyx', False),
    ],
)  # fmt: skip
def test_compiled_code_of_a_library_is_not_the_users(file: str, of_a_library: bool) -> None:
    """Cython's frames have the path of their source within the package, which is no file here."""
    scope: dict[str, object] = {}
    exec(compile('def refuse():\n    raise RuntimeError', file, 'exec'), scope)
    with pytest.raises(RuntimeError) as told:
        scope['refuse']()  # type: ignore[operator]
    at = raised_at(told.value)
    mine = test_compiled_code_of_a_library_is_not_the_users.__name__
    assert at is not None and at.function == (mine if of_a_library else 'refuse')


def test_own_frames_are_not_among_those_of_other_threads() -> None:
    assert threading.get_ident() not in other_threads()

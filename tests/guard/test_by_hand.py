"""Captures that a script begins by hand: what it forgets is told by line, in its own words, and the capture goes on."""

from __future__ import annotations

import ast
import contextlib
import gc
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit import guard
from capturekit.cli.main import main
from capturekit.guard import GUARD, watch
from capturekit.guard.remedies import REMEDIES, without_cap
from capturekit.model.rules import RULES, VARIANTS, CaptureStatus
from capturekit.model.source_line import here


@pytest.fixture
def watched(cp: Any, no_garbage: None) -> Iterator[Any]:
    """CuPy, and the guard in force as under ``capturekit run``."""
    with watch():
        yield cp


def went_on(cp: Any, s: Any, x: Any) -> None:
    """The capture that is open on a stream goes on to a good graph."""
    assert GUARD.platform.device.stream_status(s.ptr) is CaptureStatus.ACTIVE
    with s:
        y = x * 2
        graph = s.end_capture()
    assert cp.cuda.get_current_stream() == cp.cuda.Stream.null
    cp.cuda.Stream.null.synchronize()  # it made x, and s does not wait for it
    graph.launch(s)
    s.synchronize()
    np.testing.assert_array_equal(y.get(), x.get() * 2)


def line() -> int:
    at = here(sys._getframe(1))
    assert at is not None
    return at.line


@pytest.mark.parametrize('non_blocking', [True, False], ids=['non-blocking', 'blocking'])
def test_work_without_the_stream_being_current(watched: Any, non_blocking: bool) -> None:
    cp = watched
    x = cp.arange(4.0)
    s = cp.cuda.Stream(non_blocking=non_blocking)
    s.begin_capture()
    with pytest.raises(ck.EscapedWorkError, match='legacy default stream') as found:
        at = line() + 1
        x + 1
    assert found.value.location is not None
    assert found.value.location.line == at
    assert '`with stream:`' in found.value.remedy
    assert not re.search(r'\bcap\b', str(found.value))
    went_on(cp, s, x)


@pytest.mark.parametrize('non_blocking', [True, False], ids=['non-blocking', 'blocking'])
def test_work_in_place_is_held_back_and_told_at_the_end(watched: Any, non_blocking: bool) -> None:
    cp = watched
    x = cp.arange(4.0)
    s = cp.cuda.Stream(non_blocking=non_blocking)
    s.begin_capture()
    at = line() + 1
    x += 1
    x.ndim  # noqa: B018  (another line between)
    with pytest.raises(ck.EscapedWorkError, match='1 piece of work on the legacy') as found:
        s.end_capture()
    assert found.value.location is not None
    assert found.value.location.line == at
    went_on(cp, s, x)
    np.testing.assert_array_equal(x.get(), np.arange(4.0))


def test_work_in_place_is_told_where_the_stream_is_entered(watched: Any) -> None:
    cp = watched
    x = cp.arange(4.0)
    s = cp.cuda.Stream(non_blocking=True)
    s.begin_capture()
    x += 1
    with pytest.raises(ck.EscapedWorkError), s:
        pass
    went_on(cp, s, x)


@pytest.mark.parametrize('in_place', [True, False])
def test_work_on_another_stream_that_was_current(watched: Any, in_place: bool) -> None:
    cp = watched
    x = cp.arange(4.0)
    s, other = cp.cuda.Stream(non_blocking=True), cp.cuda.Stream(non_blocking=True)
    with other:
        s.begin_capture()
        with pytest.raises(ck.EscapedWorkError, match=f'{other.ptr:#x}') as found:
            if in_place:
                x += 1
                s.end_capture()
            else:
                x + 1
    assert 'cap.' not in found.value.remedy
    went_on(cp, s, x)
    assert GUARD.platform.device.stream_status(other.ptr) is CaptureStatus.NONE


def test_a_stream_entered_and_left_in_the_capture_is_enough(watched: Any) -> None:
    cp = watched
    x = cp.arange(4.0)
    other, s = cp.cuda.Stream(non_blocking=True), cp.cuda.Stream(non_blocking=True)
    with other:
        s.begin_capture()
        with s:
            y = x + 1
        graph = s.end_capture()
        z = x + 5
    graph.launch(s)
    s.synchronize()
    other.synchronize()
    np.testing.assert_array_equal(y.get(), np.arange(4.0) + 1)
    np.testing.assert_array_equal(z.get(), np.arange(4.0) + 5)


def test_questions_meanwhile_are_about_the_legacy_stream(watched: Any) -> None:
    cp = watched
    x = cp.arange(4.0)
    x += 1
    s = cp.cuda.Stream(non_blocking=True)
    s.begin_capture()
    np.testing.assert_array_equal(x.get(), np.arange(4.0) + 1)
    with pytest.raises(ck.LegacyStreamError):
        cp.cuda.get_current_stream().synchronize()
    with pytest.raises(ck.LegacyStreamError):
        cp.cuda.get_current_stream().wait_event(s.record())
    went_on(cp, s, x)


def test_empty_arrays_are_no_work(watched: Any) -> None:
    cp = watched
    x = cp.arange(4.0)
    s = cp.cuda.Stream(non_blocking=True)
    s.begin_capture()
    cp.empty(3)
    went_on(cp, s, x)


def test_two_captures_at_once(watched: Any) -> None:
    cp = watched
    x = cp.arange(4.0)
    s, t = cp.cuda.Stream(non_blocking=True), cp.cuda.Stream(non_blocking=True)
    s.begin_capture()
    t.begin_capture()
    with s:
        y = x + 1
    with t:
        z = x + 2
    graphs = [s.end_capture()]
    with pytest.raises(ck.EscapedWorkError):
        x + 3
    graphs.append(t.end_capture())
    for graph, stream in zip(graphs, (s, t)):
        graph.launch(stream)
        stream.synchronize()
    np.testing.assert_array_equal(y.get(), np.arange(4.0) + 1)
    np.testing.assert_array_equal(z.get(), np.arange(4.0) + 2)


@pytest.mark.parametrize('mode', [0, 1], ids=['global', 'thread_local'])
def test_an_allocation_that_the_mode_keeps_away(watched: Any, mode: int) -> None:
    cp = watched
    x = cp.arange(4.0)
    s = cp.cuda.Stream(non_blocking=True)
    cp.get_default_memory_pool().free_all_blocks()
    with s:
        y = cp.empty_like(x)
        s.begin_capture(mode)
        with pytest.raises(ck.UnsupportedCallError, match='mode of this capture') as found:
            cp.zeros(3 << 20)
        assert 'which is relaxed' in found.value.remedy
        assert "mode='relaxed'" not in found.value.remedy
        cp.multiply(x, 2, out=y)
        graph = s.end_capture()
    graph.launch(s)
    s.synchronize()
    np.testing.assert_array_equal(y.get(), np.arange(4.0) * 2)


def test_an_open_capture_that_nobody_ends_leaves_nothing_behind(cp: Any) -> None:
    s = cp.cuda.Stream(non_blocking=True)
    with watch():
        s.begin_capture()
    assert cp.cuda.get_current_stream() == cp.cuda.Stream.null
    s.end_capture()


@pytest.mark.parametrize('does', ['zeros(4)', 'cuda.Device(0).use()', 'cuda.Stream.null.use()'])
def test_destructors_at_the_end_are_no_part_of_a_capture(cp: Any, does: str) -> None:
    """Garbage is collected as soon as a capture lets it. No stream stands in for the legacy one afterwards."""
    ran = []

    class Late:
        def __del__(self) -> None:
            ran.append(eval(f'cp.{does}', {'cp': cp}))

    s, x = cp.cuda.Stream(non_blocking=True), cp.arange(4.0)
    before = gc.get_threshold()
    with watch():
        s.begin_capture()
        with s:
            y = x * 2
        late: Any = Late()
        late.me = late
        del late
        gc.set_threshold(1)
        try:
            graph = s.end_capture()
            [[] for _ in range(9)]  # lists that the collector counts
        finally:
            gc.set_threshold(*before)
    assert ran and GUARD.state.placeholders == {}
    assert cp.cuda.get_current_stream() == cp.cuda.Stream.null
    cp.cuda.Stream.null.synchronize()
    graph.launch(s)
    s.synchronize()
    np.testing.assert_array_equal(y.get(), x.get() * 2)


CALLS: dict[str, Callable[[Any, Any, Any], Any]] = {
    'synchronize': lambda cp, s, x: s.synchronize(),
    'done': lambda cp, s, x: s.done,
    'device': lambda cp, s, x: cp.cuda.Device().synchronize(),
    'event': lambda cp, s, x: s.record().synchronize(),
    'read': lambda cp, s, x: float(x[0]),
    'legacy': lambda cp, s, x: cp.cuda.Stream.null.use(),
    'memset': lambda cp, s, x: cp.cuda.runtime.memset(x.data.ptr, 0, 8),
    'isolation': lambda cp, s, x: s.wait_event(cp.cuda.Stream.null.record()),
    'set': lambda cp, s, x: x.set(np.ones(4)),
    'array': lambda cp, s, x: cp.array([1.0, 2.0]),
    'asarray': lambda cp, s, x: cp.asarray(np.ones(4)),
    'list as an index': lambda cp, s, x: x[[0, 1]],
    'mask as an index': lambda cp, s, x: x[np.array([True, False, True, False])],
    'assigned list': lambda cp, s, x: x.__setitem__([0, 1], 1),
    'concatenate': lambda cp, s, x: cp.concatenate([x] * 20),
}


@pytest.mark.parametrize('call', CALLS)
def test_no_remedy_names_what_the_script_has_not(watched: Any, call: str) -> None:
    cp = watched
    x = cp.arange(4.0)
    s = cp.cuda.Stream(non_blocking=True)
    with s:
        s.begin_capture()
        with pytest.raises(ck.CaptureError) as found:
            CALLS[call](cp, s, x)
    assert not re.search(r'\bcap\.|ck\.|strict=|mode=', str(found.value)), str(found.value)
    if call in VALUES:
        assert 'before `begin_capture()`' in found.value.remedy and 'asarray' not in found.value.remedy
    went_on(cp, s, x)


#: Calls that copy values of the host: each remedy of theirs would be refused again inside of the capture.
VALUES = ('set', 'array', 'asarray', 'list as an index', 'mask as an index', 'assigned list')


def test_scalars_and_arrays_of_the_device_pass(watched: Any) -> None:
    cp = watched
    x, other = cp.arange(4.0), cp.cuda.Stream(non_blocking=True)
    s = cp.cuda.Stream(non_blocking=True)
    with s:
        s.begin_capture()
        y = x[1:3] + cp.asarray(x)[1:3]
        y += 1.5
        z = cp.stack([x, x])
        graph = s.end_capture()
        kept = cp.asarray([1.0, 2.0])
    graph.launch(other)
    other.synchronize()
    assert y.get().tolist() == [3.5, 5.5] and z.shape == (2, 4)
    s.synchronize()
    assert kept.get().tolist() == [1, 2]


def test_remedies_of_all_rules() -> None:
    assert REMEDIES.keys() <= RULES.keys()
    for rule in (*RULES.values(), *VARIANTS.values()):
        assert not re.search(r'\bcap\.|ck\.|mode=|strict=', without_cap(rule.remedy)), rule.name
        assert not re.search(r'\bcap\.|mode=', without_cap(rule.waited)), rule.name


@pytest.mark.parametrize('path', sorted(Path(guard.__file__).parent.glob('*.py')), ids=lambda path: path.stem)
def test_remedies_written_where_they_are_raised(path: Path) -> None:
    """Whatever a component says of ``cap`` has words for scripts without one."""
    if path.stem in ('conditional_bodies', 'parts', 'remedies') or path.stem.startswith('lint_'):
        return  # these speak of decisions, rehearsals and lints, which a script has from capturekit only
    for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
        if isinstance(node, ast.keyword) and node.arg == 'remedy':
            said = ''.join(part.value for part in ast.walk(node.value) if isinstance(part, ast.Constant))
            if 'ck.capture(' not in said and '@ck.graphed' not in said:  # which ask for a block themselves
                assert not re.search(r'\bcap\.|ck\.|mode=|strict=', without_cap(said)), said


@pytest.mark.parametrize('current', [True, False])
def test_a_lost_capture_is_told_in_the_words_of_the_script(watched: Any, current: bool) -> None:
    """Also where another stream is kept out, whose own capture was lost with it."""
    cp = watched
    s = cp.cuda.Stream(non_blocking=True)
    with s if current else contextlib.nullcontext():
        s.begin_capture()
        with contextlib.suppress(Exception):
            GUARD.platform.device.device_synchronize()
        with pytest.raises(ck.InvalidatedError, match='Make that call before `begin_capture'):
            s.end_capture()


SCRIPT = """\
import cupy as cp
x = cp.arange(4.0)
s = cp.cuda.Stream({flags})
s.begin_capture()
{work}
g = s.end_capture()
"""


@pytest.mark.parametrize('work', ['y = x + 1', 'x += 1'])
@pytest.mark.parametrize('flags', ['', 'non_blocking=True'])
def test_run_says_it_by_line(tmp_path: Any, capfd: Any, work: str, flags: str) -> None:
    script = tmp_path / 'forgot.py'
    script.write_text(SCRIPT.format(work=work, flags=flags))
    assert main(['run', '--simulate', str(script)]) == 1
    told = capfd.readouterr().err
    assert 'EscapedWorkError' in told
    assert 'forgot.py:5' in told
    assert re.findall(r'File "(.*)"', told) == [str(script)]  # one traceback, and it shows the user's frames only
    assert told.count('Traceback') == 1

"""The table of entry points: what it has a row for, and how its verbs are named."""

from __future__ import annotations

import inspect
import re
from dataclasses import FrozenInstanceError
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from capturekit.guard import GUARD, entry_points, patching
from capturekit.guard.entry_points import ENTRIES
from capturekit.guard.patching import resolve
from capturekit.model.rules import ROWS, Answer, Operation

#: Answers that neither refuse nor record anything.
ALLOWED = {Answer(row[3].answers[0].code) for row in ROWS if row[1] is Operation.HARMLESS}


def test_every_function_that_a_capture_answers_otherwise_is_met(sim: Any) -> None:
    """The rules were measured by CUDA's names: what CuPy has under such a name is in the table of entries."""
    met = {entry.name for entry in ENTRIES if entry.holder == patching.RUNTIME}
    measured: dict[str, bool] = {}
    for label, _operation, _target, pattern, _rule in ROWS:
        name = label.partition('(')[0].partition(' ')[0].partition(',')[0].partition('+')[0]
        measured[name] = measured.get(name, False) or not set(pattern.answers) <= ALLOWED
    has = {name for name, matters in measured.items() if matters and hasattr(sim.cuda.runtime, name)}
    assert len(has) > 30
    assert has - met - LEFT_ALONE == set()


#: Not met: asking whether a stream captures harms no capture.
LEFT_ALONE = {'streamIsCapturing'}


VERBS = {
    'cupy.cuda.stream._BaseStream': 'stream',
    'cupy.cuda.stream.Stream': 'stream',
    'cupy.cuda.stream.Event': 'event',
    'cupy.cuda.graph.Graph': 'graph',
    'cupy.cuda.device.Device': 'device',
    'cupy.ndarray': 'array',
}


CALLED_OTHERWISE = {'ptr': 'handed_out', '__init__': 'made', '__del__': 'deleted'}


def test_verbs_are_called_after_what_they_judge() -> None:
    """A call that is given another call's verb would be judged as that."""
    held = 0
    for entry in ENTRIES:
        if entry.holder in VERBS:
            what = CALLED_OTHERWISE.get(entry.name, entry.name.strip('_'))
            assert entry.method == f'{VERBS[entry.holder]}_{what}', entry
            held += 1
        elif entry.holder == 'cupy.cuda.memory.MemoryPointer':
            assert entry.method == ('pointer_copy' if entry.name.endswith('_async') else 'pointer_sync'), entry
            held += 1
        elif entry.name == 'free_all_blocks':
            assert entry.method == 'pool_free', entry
            held += 1
    assert held > 30
    functions = {(entry.name, entry.verb) for entry in ENTRIES if entry.kind == 'function'}
    assert len(functions) == len(dict(functions)), 'one function under two names is one call'


def test_each_thing_has_one_row_that_stays() -> None:
    assert len({(entry.holder, entry.name) for entry in ENTRIES}) == len(ENTRIES)
    with pytest.raises(FrozenInstanceError):
        setattr(ENTRIES[0], 'verb', 'unsafe')  # noqa: B010


def test_verbs_that_take_the_calls_name_are_given_it() -> None:
    for entry in ENTRIES:
        first = next(iter(inspect.signature(attrgetter(entry.verb)(GUARD)).parameters))
        assert (first in ('call', 'name')) == entry.named, entry


def test_every_seam_that_was_met_on_a_gpu_is_in_the_table() -> None:
    """docs/evidence/coverage.md is a measurement: what was refused there by name, and nothing was lost."""
    text = (Path(__file__).parents[2] / 'docs' / 'evidence' / 'coverage.md').read_text()
    refused = set(re.findall(r'([\w.]+)\(\): Its library waits', text))
    assert len(refused) > 15
    assert refused - set(entry_points.SEAMS) == set()


def test_every_draw_of_curand_is_met(sim: Any) -> None:
    draws = {name for name in vars(resolve('cupy_backends.cuda.libs.curand')) if name.startswith('generate')}
    met = {entry.name for entry in ENTRIES if entry.method == 'curand_draw'}
    assert len(draws) > 5
    assert draws - met == {'generateSeeds'} & draws

"""The table of entry points: what it has a row for, and how its verbs are named."""

from __future__ import annotations

import importlib.metadata
import inspect
import json
import re
from dataclasses import FrozenInstanceError
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

import capturekit as ck
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
    """The results are a measurement: what was refused there by name, and nothing was lost."""
    rows = json.loads((Path(__file__).parents[1] / 'gpu' / 'coverage' / 'results.json').read_text())['rows']
    refused = {row['operation'].removesuffix('()') for row in rows if 'Its library waits' in row.get('text', '')}
    assert len(refused) > 15
    assert refused - set(entry_points.SEAMS) == set()


def test_every_draw_of_curand_is_met(sim: Any) -> None:
    draws = {name for name in vars(resolve('cupy_backends.cuda.libs.curand')) if name.startswith('generate')}
    met = {entry.name for entry in ENTRIES if entry.method == 'curand_draw'}
    assert len(draws) > 5
    assert draws - met == {'generateSeeds'} & draws


def test_functions_of_the_runtime_are_met_under_both_names() -> None:
    """CuPy's compiled code asks the module of its back end, and users that of cupy.cuda."""
    functions = [entry for entry in ENTRIES if entry.holder == patching.RUNTIME]
    assert len(functions) > 50
    assert {entry.also for entry in functions} == {'cupy_backends.cuda.api.runtime'}


COMMUNICATOR = 'cupy_backends.cuda.libs.nccl.NcclCommunicator'
#: What versions and builds of CuPy lack.
LACKED = [
    (f'{COMMUNICATOR}', 'commSplit'),
    (f'{COMMUNICATOR}', 'initAll'),
    (f'{COMMUNICATOR}', 'allGather'),
    ('cupy_backends.cuda.libs.curand', 'generatePoisson'),
    ('cupy.random._bit_generator', 'BitGenerator'),
    ('cupy.random._bit_generator', '_cuRANDGenerator'),
]


@pytest.mark.parametrize(('holder', 'name'), LACKED)
def test_what_a_build_of_cupy_lacks_is_left_out(
    sim: Any, monkeypatch: pytest.MonkeyPatch, holder: str, name: str
) -> None:
    resolve(COMMUNICATOR)  # which loads the module: an entry of NCCL counts only then
    monkeypatch.delattr(resolve(holder), name)
    x = sim.ones(3)
    with ck.capture() as cap:
        y = x * 2
    cap.graph.launch()
    assert y.get().tolist() == [2, 2, 2]


def test_each_call_of_a_communicator_is_met(sim: Any) -> None:
    """What only asks a communicator is left alone: each takes a buffer or changes who takes part."""
    calls = {
        name
        for name, what in vars(resolve(COMMUNICATOR)).items()
        if callable(getattr(what, '__func__', what)) and not name.startswith('_')
    }
    met = {entry.name for entry in ENTRIES if entry.holder == COMMUNICATOR}
    assert len(calls) > 8
    assert calls - met == {'device_id', 'rank_id', 'size', 'check_async_error'} & calls
    assert met <= calls


def test_the_functions_of_cusparse_exist() -> None:
    """Read from the sources of an installed CuPy: no GPU is asked."""
    for package in ('cupy-cuda13x', 'cupy-cuda12x'):
        try:
            files = importlib.metadata.files(package) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        source = next(file for file in files if str(file) == 'cupyx/cusparse.py').read_text()
        defined = set(re.findall(r'^def (\w+)\(', source, re.MULTILINE))
        named = {name.removeprefix('cupyx.cusparse.') for name in entry_points.SEAMS if 'cusparse' in name}
        assert len(named) > 15 and named - defined <= {'spgeam'}  # CuPy 14.0 has none
        return
    pytest.skip('CuPy is not installed')

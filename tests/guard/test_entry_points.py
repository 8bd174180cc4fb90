"""Entry points are replaced and restored exactly, and wrappers behave like what they stand for."""

from __future__ import annotations

import collections
import importlib.metadata
import importlib.util
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import capturekit as ck
from capturekit.guard import entry_points, patching
from capturekit.guard.entry_points import ENTRIES, Entry
from capturekit.guard.patching import Installation, resolve
from capturekit.model.rules import ROWS, Answer, Operation


class Holder:
    """Stands for a CuPy class in the tests below."""

    def method(self) -> str:
        return 'original'

    @property
    def value(self) -> str:
        """A value."""
        return 'original value'


class Inheriting(Holder):
    pass


class Guarding:
    """A guard that says what it was asked and lets through."""

    def method(self, original: Any, *args: Any) -> str:
        return f'guarded {original(*args)}'

    value = method


HERE = 'tests.guard.test_entry_points'


@pytest.fixture
def entries(monkeypatch: pytest.MonkeyPatch) -> list[Entry]:
    table = [
        Entry(f'{HERE}.Holder', 'method', 'method'),
        Entry(f'{HERE}.Holder', 'value', 'value', 'property'),
        Entry(f'{HERE}.Inheriting', 'method', 'method'),
    ]
    monkeypatch.setattr(patching, 'ENTRIES', table)
    return table


def test_methods_properties_and_inherited_names(entries: list[Entry]) -> None:
    before = dict(Holder.__dict__)
    installation = Installation()
    installation.install(Guarding())
    assert Holder().method() == 'guarded original'
    assert Holder().value == 'guarded original value'
    assert 'method' in Inheriting.__dict__
    installation.inside.__enter__()
    assert Holder().method() == 'original'
    installation.inside.__exit__()
    installation.uninstall()
    assert dict(Holder.__dict__) == before
    assert 'method' not in Inheriting.__dict__
    assert Holder().method() == 'original'


def test_a_failed_install_rolls_back(entries: list[Entry]) -> None:
    entries.append(Entry(f'{HERE}.Holder', 'no_such_name', 'method'))
    installation = Installation()
    with pytest.raises(ImportError, match='no_such_name'):
        installation.install(Guarding())
    assert Holder().method() == 'original'
    assert not installation.installed
    entries.pop()
    installation.install(Guarding())
    assert Holder().method() == 'guarded original'
    installation.uninstall()


class LintGuard:
    """Is asked instead of the guard in a thread that is linted."""

    calls_only = True

    def instead_of(self, verb: Any) -> Any:
        return lambda original, *args: f'shadow of {original(*args) if callable(original) else args[0]}'


def test_wrappers_look_like_what_they_stand_for(entries: list[Entry]) -> None:
    Holder.method.__doc__ = 'Text of the method.'
    entries.append(Entry('collections.OrderedDict', 'move_to_end', 'method'))
    installation = Installation()
    installation.install(Guarding())
    assert (Holder.method.__name__, Holder.method.__doc__) == ('method', 'Text of the method.')
    assert collections.OrderedDict.move_to_end.__name__ == 'move_to_end'
    assert Holder.__dict__['value'].__doc__ == 'A value.'
    installation.uninstall()


def test_methods_of_types_that_refuse_setattr(entries: list[Entry]) -> None:
    """``popitem`` is OrderedDict's own, ``get`` is inherited from dict; both types are C's."""
    own = collections.OrderedDict.__dict__['popitem']
    assert 'get' not in collections.OrderedDict.__dict__
    entries[:] = [Entry('collections.OrderedDict', name, 'method') for name in ('popitem', 'get')]
    installation = Installation()
    installation.install(Guarding())
    try:
        held = collections.OrderedDict(a=1)
        assert held.get('a') == 'guarded 1'
        assert held.popitem() == "guarded ('a', 1)"
        assert {}.get('a') is None
    finally:
        installation.uninstall()
    assert collections.OrderedDict.__dict__['popitem'] is own
    assert 'get' not in collections.OrderedDict.__dict__
    assert collections.OrderedDict(a=1).popitem() == ('a', 1)


def plain(a: int, b: int = 2, *, c: int = 3) -> tuple[int, int, int]:
    return a, b, c


def _closing(held: str) -> Any:
    def inner() -> str:
        return held

    return inner


closing = _closing('original')
compiled = math.isqrt


def test_the_code_of_a_function_is_replaced_for_all_who_hold_it(entries: list[Entry]) -> None:
    entries[:] = [Entry(HERE, name, 'seam', 'code', optional=True) for name in ('plain', 'closing', 'compiled')]
    held, code, variables = plain, plain.__code__, closing

    class Told:
        def seam(self, entry: Entry, original: Any, *args: Any, **kwargs: Any) -> Any:
            return entry.call, original(*args, **kwargs)

    installation = Installation()
    installation.install(Told())
    try:
        assert held(1) == (f'{HERE}.plain', (1, 2, 3))
        assert held(1, c=5) == (f'{HERE}.plain', (1, 2, 5))
        assert held.__code__.co_name == 'plain'
        assert closing() == variables() == (f'{HERE}.closing', 'original'), 'its code keeps variables'
        assert compiled(9) == (f'{HERE}.compiled', 3), 'by name: it has no code'
    finally:
        installation.uninstall()
    assert held.__code__ is code and held(1) == (1, 2, 3)
    assert closing is variables and closing() == 'original'


class Instance:
    """Has an attribute that its readers are told of."""

    def __init__(self) -> None:
        self.ptr = 7


class Listening:
    def __init__(self) -> None:
        self.read: list[Any] = []

    def ptr(self, instance: Any, value: Any) -> None:
        self.read.append((instance, value))


def test_readings_of_an_attribute_are_told(entries: list[Entry]) -> None:
    entries[:] = [Entry(f'{HERE}.Instance', 'ptr', 'ptr', 'attribute')]
    installation, guard = Installation(), Listening()
    before = Instance()
    installation.install(guard)
    try:
        assert before.ptr == 7 and guard.read == [(before, 7)]
        after = Instance()
        after.ptr = 9
        assert after.__dict__ == {'ptr': 9}
        installation.inside.__enter__()
        assert after.ptr == 9
        installation.inside.__exit__()
        ours = {'__name__': 'capturekit.some_module', 'x': after}
        assert eval('x.ptr', ours) == 9
        assert guard.read == [(before, 7)]
        assert eval('x.ptr', {'x': after, '__name__': 'capturekitten'}) == 9
        assert eval('x.ptr', {'x': after}) == 9
        assert guard.read == [(before, 7), (after, 9), (after, 9)]
        installation.inside.policy = LintGuard()
        assert after.ptr == 9 and len(guard.read) == 3
        del after.__dict__['ptr']
        with pytest.raises(AttributeError, match='ptr'):
            _ = after.ptr
        with pytest.raises(AttributeError, match='ptr'):
            _ = Instance.ptr  # type: ignore[misc]
    finally:
        installation.uninstall()
    assert 'ptr' not in Instance.__dict__


def test_what_changed_is_found_again(entries: list[Entry], monkeypatch: pytest.MonkeyPatch) -> None:
    installation = Installation()
    installation.install(Guarding())
    installation.uninstall()

    monkeypatch.setattr(Holder, 'method', lambda self: 'changed')
    installation.install(Guarding())
    assert Holder().method() == 'guarded changed', 'what the holder holds is another'
    installation.uninstall()

    class Other(Holder):
        pass

    monkeypatch.setattr(sys.modules[HERE], 'Holder', Other)
    installation.install(Guarding())
    assert 'method' in Other.__dict__, 'the holder is another'
    installation.uninstall()
    assert 'method' not in Other.__dict__


# -- the table of entry points: what it has a row for, how verbs are named, and that each name is there and restored --


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


def test_every_seam_that_was_met_on_a_gpu_is_in_the_table() -> None:
    """The results are a measurement: what was refused there by name, and nothing was lost."""
    rows = json.loads((Path(__file__).parents[1] / 'gpu' / 'coverage' / 'results.json').read_text())['rows']
    refused = {row['operation'].removesuffix('()') for row in rows if 'Its library waits' in row.get('text', '')}
    assert len(refused) > 15
    assert refused - set(entry_points.SEAMS) == set()


def test_every_draw_of_curand_is_met(sim: Any) -> None:
    draws = {name for name in vars(resolve('cupy_backends.cuda.libs.curand')) if name.startswith('generate')}
    met = {entry.name for entry in ENTRIES if entry.verb == 'draws.curand_draw'}
    assert len(draws) > 5
    assert draws - met == {'generateSeeds'} & draws


COMMUNICATOR = 'cupy_backends.cuda.libs.nccl.NcclCommunicator'
#: What versions and builds of CuPy lack.
LACKED = [
    *((COMMUNICATOR, name) for name in ('commSplit', 'initAll', 'allGather')),
    ('cupy_backends.cuda.libs.curand', 'generatePoisson'),
    *(('cupy.random._bit_generator', name) for name in ('BitGenerator', '_cuRANDGenerator')),
]


@pytest.mark.parametrize(('holder', 'name'), LACKED)
def test_what_a_build_of_cupy_lacks_is_left_out(
    sim: Any, monkeypatch: pytest.MonkeyPatch, holder: str, name: str
) -> None:
    resolve(COMMUNICATOR)  # which loads the module: an entry of NCCL counts only then
    monkeypatch.setattr(patching, '_come_and_go', object)  # the guard looks at CuPy anew, and again after this test
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


def test_each_method_of_streams_events_and_devices_is_met(sim: Any) -> None:
    """A new one has a row, or is named here because no capture changes what it answers."""
    met = {entry.name for entry in ENTRIES if entry.holder.startswith(('cupy.cuda.stream.', 'cupy.cuda.device.'))}
    classes = (sim.cuda.Stream, sim.cuda.ExternalStream, sim.cuda.Event, sim.cuda.Device)
    names = {name for cls in classes for name in dir(cls) if not name.startswith('_')}
    assert names - met == {
        'from_external', 'null', 'ptds', 'attributes', 'compute_capability', 'mem_info', 'cublas_handle',
        'cusolver_handle', 'cusolver_sp_handle', 'cusparse_handle',
    }  # fmt: skip


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


# -- the names of entry points -------------------------------------------------------------------------------------

CONTRACT = """
import importlib
import cupy, cupy.cuda.runtime, cupy._core.syncdetect
from capturekit.guard.entry_points import ENTRIES
from capturekit.guard.patching import Installation, resolve

SIMULATED = hasattr(cupy, '__capturekit_simulated__')

def there(e):
    try:
        return hasattr(cupy.cuda.Stream.null if e.kind == 'attribute' else resolve(e.holder), e.name)
    except (ImportError, AttributeError):
        return False

def loads(dotted):
    'False only where the last module on the way is to be found, and fails to import: a library that is not here.'
    parts = dotted.split('.')
    for length in range(len(parts), 0, -1):
        name = '.'.join(parts[:length])
        try:
            importlib.import_module(name)
            return True
        except ModuleNotFoundError as error:
            if error.name != name and not name.startswith(f'{error.name}.'):
                return False
        except ImportError:
            return False
    return True

def kind_of(e):
    if e.name == '__new__':
        return 'maker'
    if e.kind in ('attribute', 'code', 'always'):
        return e.kind
    return 'property' if isinstance(getattr(resolve(e.holder), e.name), property) else ''

def seen_of(e):
    'What the namespace of the holder itself has: inherited names are absent; and where code is replaced, that.'
    found = resolve(e.holder).__dict__.get(e.name, 'absent')
    return [found, found.__code__ if e.kind == 'code' else None]

def alike(some, others):
    return [str(e) for e, a, b in zip(FOUND, some, others) if all(x is y for x, y in zip(a, b))]

FOUND = [e for e in ENTRIES if there(e)]
missing = [str(e) for e in ENTRIES if e not in FOUND and (not e.optional or not SIMULATED and loads(e.holder))]
assert missing == [], missing
assert [str(e) for e in FOUND if e.kind != kind_of(e)] == [], 'the table says of what kind each is'
streams = [e for e in FOUND if e.holder.startswith('cupy.cuda.stream.') and e.kind != 'attribute']
inherited = [str(e) for e in streams if e.name not in vars(resolve(e.holder))]
assert inherited == [], "a subclass's method is not that of its sisters"

before, seen, installation = list(map(seen_of, FOUND)), [], Installation()

class Component:
    def __getattr__(self, method):
        return lambda *args, **kwargs: seen.append(method) or 'heard'

class Listener:
    def __getattr__(self, name):
        return Component()

for _ in range(2):
    installation.install(Listener())
during = list(map(seen_of, FOUND))
for e, (function, _) in zip(FOUND, before):
    if e.kind == 'code':
        assert getattr(resolve(e.holder), e.name)() == 'heard', e
        # whoever holds the function met it, too; but for the stand-in's, whose code keeps variables
        assert SIMULATED or function() == 'heard', e
assert cupy.cuda.get_elapsed_time(None, None) == 'heard'
assert cupy.cuda.runtime.streamSynchronize(0) == 'heard'
assert resolve('cupy_backends.cuda.api.runtime').streamSynchronize(0) == 'heard'
assert cupy.ndarray.get(None) == cupy.cuda.MemoryPool().free_all_blocks() == 'heard'
assert cupy.cuda.Device.synchronize(None) == 'heard'
assert {'pool_free', 'device_wait', 'seam'} <= set(seen), seen
installation.uninstall()
assert alike(map(seen_of, FOUND), during) == list(map(str, FOUND)), 'the first of two uninstalls must change nothing'
installation.uninstall()
assert alike(before, during) == [], 'not replaced'
assert alike(map(seen_of, FOUND), before) == list(map(str, FOUND)), 'restored'
assert int(cupy.__version__.split('.')[0]) >= 14
"""


SIMULATED = (
    'from capturekit.simulated.device.machine import SimulatedDevice\n'
    'from capturekit.simulated.cupy.assembly import install\n'
    'install(SimulatedDevice(0))\n'
)


@pytest.mark.parametrize('which', ['simulated', 'real'])
def test_names_exist_are_replaced_and_restored(which: str) -> None:
    if which == 'real' and importlib.util.find_spec('cupy') is None:
        pytest.skip('CuPy is not installed: the names of the real one can not be held')
    code = (SIMULATED if which == 'simulated' else '') + CONTRACT
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

"""The table of entry points: what it has a row for, how verbs are named, and that each name is there and restored."""

from __future__ import annotations

import ast
import importlib.metadata
import inspect
import json
import re
import subprocess
import sys
import types
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


def rows(operation: Operation) -> set[tuple[str, int]]:
    return {(entry.name, entry.at) for entry in ENTRIES if entry.operation is operation}


@pytest.mark.parametrize(
    ('operation', 'names'),
    [
        (Operation.STREAM_SYNCHRONIZE, {('synchronize', 0), ('streamSynchronize', 0)}),
        (Operation.STREAM_QUERY, {('done', 0), ('streamQuery', 0)}),
        (Operation.EVENT_SYNCHRONIZE, {('synchronize', 0), ('eventSynchronize', 0)}),
        (Operation.EVENT_QUERY, {('done', 0), ('eventQuery', 0)}),
        (Operation.BEGIN_CAPTURE, {('begin_capture', 0), ('streamBeginCapture', 0)}),
        (Operation.END_CAPTURE, {('end_capture', 0), ('streamEndCapture', 0)}),
        (Operation.STREAM_GET_FLAGS, {('is_non_blocking', 0), ('streamGetFlags', 0)}),
        (Operation.STREAM_GET_PRIORITY, {('priority', 0), ('streamGetPriority', 0)}),
        (Operation.STREAM_ADD_CALLBACK, {('add_callback', 0), ('streamAddCallback', 0)}),
        (Operation.LAUNCH_HOST_FUNC, {('launch_host_func', 0), ('launchHostFunc', 0)}),
        (Operation.GRAPH_LAUNCH, {('launch', 0), ('graphLaunch', 0)}),
        (Operation.GRAPH_UPLOAD, {('upload', 0), ('graphUpload', 0)}),
        (Operation.PEER_COPY, {('memcpyPeerAsync', -1)}),
        (Operation.PREFETCH, {('memPrefetchAsync', -1)}),
        (Operation.MALLOC_ASYNC, {('mallocAsync', -1), ('mallocFromPoolAsync', -1)}),
    ],
)
def test_calls_are_judged_as_what_they_are(operation: Operation, names: set[tuple[str, int]]) -> None:
    """A call that is given another call's operation would be judged as that."""
    assert rows(operation) == names


def test_calls_with_and_without_a_stream_are_told_apart() -> None:
    held = 0
    for entry in ENTRIES:
        if (
            entry.holder == 'cupy.cuda.memory.MemoryPointer'
            or 'memcpy' in entry.name
            or entry.name.startswith('memset')
        ):
            ours = entry.method in ('pointer_copy', 'copy', 'captured_call')
            assert ours == entry.name.lower().endswith('async'), entry
            held += 1
        elif entry.name == 'free_all_blocks':
            assert entry.method == 'pool_free', entry
            held += 1
    assert held > 20
    functions = {(entry.name, entry.verb) for entry in ENTRIES if entry.kind == 'function'}
    assert len(functions) == len(dict(functions)), 'one function under two names is one call'


def test_each_thing_has_one_row_that_stays() -> None:
    assert len({(entry.holder, entry.name) for entry in ENTRIES}) == len(ENTRIES)
    with pytest.raises(FrozenInstanceError):
        setattr(ENTRIES[0], 'verb', 'unsafe')  # noqa: B010


def test_verbs_that_several_calls_share_are_given_the_row() -> None:
    for entry in ENTRIES:
        first = next(iter(inspect.signature(attrgetter(entry.verb)(GUARD)).parameters))
        assert (first == 'entry') == entry.given, entry


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
    monkeypatch.setattr(GUARD.installation, '_known', [])  # as in a process that has not looked at CuPy yet
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


# -- the names of entry points -------------------------------------------------------------------------------------

CONTRACT = """
import importlib
import cupy, cupy.cuda.runtime, cupy._core.syncdetect
from capturekit.guard.entry_points import ENTRIES
from capturekit.guard.patching import Installation, _Slot, resolve

def view():
    # what each holder's own namespace has, by identity: inherited names are absent; and where code is replaced, that
    return {str(e): seen_of(e) for e in ENTRIES if there(e)}

def seen_of(e):
    found = resolve(e.holder).__dict__.get(e.name, 'absent')
    return found, found.__code__ if e.kind == 'code' else None

def same(a, b):
    return a[0] is b[0] and a[1] is b[1]

def there(e):
    try:
        return hasattr(cupy.cuda.Stream.null if e.kind == 'attribute' else resolve(e.holder), e.name)
    except (ImportError, AttributeError):
        return False

def loads(dotted):
    # False only where the last module on the way is to be found, and fails to import: a library that is not here
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

missing = [str(e) for e in ENTRIES if not there(e)]
print('missing', missing)
print('unloadable', [str(e) for e in ENTRIES if e.optional and str(e) in missing and not loads(e.holder)])
def kind_of(e):
    holder = resolve(e.holder)
    if e.name == '__new__':
        return 'maker'
    if e.kind in ('attribute', 'code', 'always') or not isinstance(holder, type):
        return e.kind if e.kind in ('code', 'always') or isinstance(holder, type) else 'function'
    if not hasattr(cupy, '__capturekit_simulated__') and not _Slot(e, holder).plain:
        return 'sealed'
    return 'property' if isinstance(getattr(holder, e.name), property) else 'method'

alike = {'method', 'sealed'} if hasattr(cupy, '__capturekit_simulated__') else set()
print('kinds', [str(e) for e in ENTRIES if there(e) and e.kind != kind_of(e) and {e.kind, kind_of(e)} - alike])
streams = [e for e in ENTRIES if e.holder.startswith('cupy.cuda.stream.') and e.kind != 'attribute']
print('inherited', [str(e) for e in streams if e.name not in vars(resolve(e.holder))])
before = view()
installation = Installation()
seen = []

class Component:
    def __init__(self, name):
        self.name = name
    def __getattr__(self, method):
        def call(*args, **kwargs):
            seen.append(f'{self.name}.{method}')
            return 'heard'
        return call

class Listener:
    def __getattr__(self, name):
        return Component(name)

for _ in range(2):
    installation.install(Listener())
during = view()
for e in ENTRIES:
    if e.kind == 'code' and there(e):
        assert getattr(resolve(e.holder), e.name)() == 'heard', e
        # whoever holds the function met it, too; but for the stand-in's, whose code keeps variables
        assert hasattr(cupy, '__capturekit_simulated__') or before[str(e)][0]() == 'heard', e
assert cupy.cuda.get_elapsed_time(None, None) == 'heard'
assert cupy.cuda.runtime.streamSynchronize(0) == 'heard'
assert resolve('cupy_backends.cuda.api.runtime').streamSynchronize(0) == 'heard'
assert cupy.ndarray.get(None) == 'heard'
pool = cupy.cuda.MemoryPool()
assert pool.free_all_blocks() == 'heard'
assert cupy.cuda.Device.synchronize(None) == 'heard'
installation.uninstall()
assert view() == during, 'the first of two uninstalls must change nothing'
installation.uninstall()
after = view()
print('not replaced', [name for name in before if same(during[name], before[name])])
print('seen', seen)  # print() is an entry, too
print('changed', [name for name in before if not same(after[name], before[name])])
print('version', cupy.__version__)
"""


def run(code: str) -> dict[str, str]:
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return dict(line.split(' ', 1) if ' ' in line else (line, '') for line in done.stdout.splitlines())


SIMULATED = (
    'from capturekit.simulated.device.machine import SimulatedDevice\n'
    'from capturekit.simulated.cupy.assembly import install\n'
    'install(SimulatedDevice(0))\n'
)


def test_every_verb_is_a_method_of_a_component() -> None:
    for entry in ENTRIES:
        assert callable(attrgetter(entry.verb)(GUARD)), entry


def test_resolve_names_what_is_missing() -> None:
    with pytest.raises(AttributeError, match='nothing_of_that_name'):
        resolve('json.nothing_of_that_name')
    with pytest.raises(ImportError):
        resolve('no_such_package_at_all')


def test_another_module_of_a_name_is_looked_through_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, 'changing', types.ModuleType('changing'))
    with pytest.raises(AttributeError, match='part'):
        resolve('changing.part')
    (tmp_path / 'part.py').write_text('VALUE = 3')
    package = types.ModuleType('changing')
    package.__path__ = [str(tmp_path)]
    monkeypatch.setitem(sys.modules, 'changing', package)
    assert resolve('changing.part').VALUE == 3


def test_a_namespace_out_of_reach_is_said() -> None:
    class Odd:
        __dict__ = ('not', 'a dictionary')  # type: ignore[assignment]

    with pytest.raises(TypeError, match='can not be reached'):
        patching._namespace(Odd())


def test_importing_a_module_leaves_its_packages_attribute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / 'a_package_of_ours'
    package.mkdir()
    (package / '__init__.py').write_text('function = "the package\'s own"\n')
    (package / 'function.py').write_text('class Inner:\n    deep = 1\n')
    (package / 'other.py').write_text('here = 2\n')
    monkeypatch.syspath_prepend(tmp_path)
    name = package.name
    assert resolve(f'{name}.function.Inner').deep == 1
    assert resolve(name).function == "the package's own"
    assert resolve(f'{name}.other').here == 2
    first = sys.modules[f'{name}.other']
    assert resolve(f'{name}.other') is first
    for module in [m for m in sys.modules if m.partition('.')[0] == name]:
        monkeypatch.delitem(sys.modules, module)
    assert resolve(f'{name}.other').here == 2, 'it is imported again'
    assert resolve(f'{name}.other') is not first
    for module in [m for m in sys.modules if m.partition('.')[0] == name]:
        del sys.modules[module]


def test_restoring_goes_backwards_and_raises_the_first_failure() -> None:
    order: list[int] = []

    class Slot:
        def __init__(self, number: int) -> None:
            self.number = number

        def restore(self) -> None:
            order.append(self.number)
            if self.number:
                raise MemoryError(self.number)

    with pytest.raises(MemoryError) as raised:
        patching._restore_all([Slot(0), Slot(1), Slot(2)])
    assert order == [2, 1, 0] and raised.value.args == (2,)


@pytest.mark.parametrize('which', ['simulated', 'real'])
def test_names_exist_are_replaced_and_restored(which: str) -> None:
    if which == 'real':
        found = subprocess.run([sys.executable, '-c', 'import cupy'], capture_output=True)
        if found.returncode:
            pytest.skip('CuPy is not installed: the names of the real one can not be held')
    said = run((SIMULATED if which == 'simulated' else '') + CONTRACT)
    optional = {str(entry) for entry in ENTRIES if entry.optional}
    allowed = optional if which == 'simulated' else set(ast.literal_eval(said['unloadable']))
    assert set(ast.literal_eval(said['missing'])) <= allowed, said
    assert said['kinds'] == '[]', 'the table says of what kind each is'
    assert said['inherited'] == '[]', "a subclass's method is not that of its sisters"
    assert said['not'] == 'replaced []', said
    assert said['changed'] == '[]', said
    assert int(said['version'].split('.')[0]) >= 14
    assert 'pool_free' in said['seen'] and 'device_wait' in said['seen'] and 'seam' in said['seen']

"""The names of entry points: what is missing, what is found again, and that each name is there and restored."""

from __future__ import annotations

import ast
import subprocess
import sys
import types
from operator import attrgetter
from pathlib import Path

import pytest

from capturekit.guard import GUARD, patching
from capturekit.guard.entry_points import ENTRIES
from capturekit.guard.patching import resolve

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
    if not hasattr(cupy, '__capturekit_simulated__') and not _Slot(e, e.holder).plain:
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
    assert 'pool_free' in said['seen'] and 'device_synchronize' in said['seen'] and 'seam' in said['seen']

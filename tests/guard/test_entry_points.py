"""Every intercepted name exists in CuPy, can be replaced, and is exactly restored; real and simulated CuPy alike."""

from __future__ import annotations

import ast
import collections
import math
import subprocess
import sys
import types
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from capturekit.guard import GUARD, patching
from capturekit.guard.entry_points import ENTRIES, Entry
from capturekit.guard.patching import Installation, resolve
from capturekit.model.errors import SynchronizationError

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
    if e.kind in ('attribute', 'code') or not isinstance(holder, type):
        return e.kind if e.kind == 'code' or isinstance(holder, type) else 'function'
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
print('not replaced', [name for name in before if same(during[name], before[name])])
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
print('seen', seen)
installation.uninstall()
assert view() == during, 'the first of two uninstalls must change nothing'
installation.uninstall()
after = view()
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
    installation.inside.depth += 1
    assert Holder().method() == 'original'
    installation.inside.depth -= 1
    installation.uninstall()
    assert dict(Holder.__dict__) == before
    assert 'method' not in Inheriting.__dict__
    assert Holder().method() == 'original'


def test_counted(entries: list[Entry]) -> None:
    installation = Installation()
    for _ in range(3):
        installation.install(Guarding())
    for _ in range(2):
        installation.uninstall()
        assert Holder().method() == 'guarded original'
    installation.uninstall()
    assert Holder().method() == 'original'
    with pytest.raises(RuntimeError, match='without install'):
        installation.uninstall()


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


def test_a_write_that_fails_half_way_rolls_back(entries: list[Entry], monkeypatch: pytest.MonkeyPatch) -> None:
    installation = Installation()
    write = patching._Slot.write

    def failing(slot: Any) -> None:
        if slot.entry is entries[2]:
            raise MemoryError('no room')
        write(slot)

    monkeypatch.setattr(patching._Slot, 'write', failing)
    with pytest.raises(MemoryError):
        installation.install(Guarding())
    assert Holder().method() == 'original'
    assert Holder().value == 'original value'


def test_a_failing_restore_does_not_keep_the_others(entries: list[Entry], monkeypatch: pytest.MonkeyPatch) -> None:
    installation = Installation()
    installation.install(Guarding())
    restore = patching._Slot.restore
    failed = []

    def failing(slot: Any) -> None:
        restore(slot)
        if slot.entry is entries[2]:
            failed.append(slot)
            raise MemoryError('no room')

    monkeypatch.setattr(patching._Slot, 'restore', failing)
    with pytest.raises(MemoryError):
        installation.uninstall()
    assert failed
    assert Holder().method() == 'original'
    assert Holder().value == 'original value'
    assert not installation.installed


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


def test_nothing_is_installed_before_and_after(entries: list[Entry]) -> None:
    installation = Installation()
    assert not installation.installed
    installation.install(Guarding())
    assert installation.installed
    installation.uninstall()
    assert not installation.installed


class LintGuard:
    """Is asked instead of the guard in a thread that is linted."""

    asks_calls_only = True

    def instead_of(self, verb: Any) -> Any:
        return lambda original, *args: f'shadow of {original(*args) if callable(original) else args[0]}'


def test_a_shadow_is_asked_instead_of_the_guard(entries: list[Entry]) -> None:
    installation = Installation()
    installation.install(Guarding())
    installation.inside.substitute = LintGuard()
    assert Holder().method() == 'shadow of original'
    assert Holder().value == 'shadow of original value'
    installation.inside.depth += 1
    assert (Holder().method(), Holder().value) == ('original', 'original value')
    installation.uninstall()


class Refusing:
    """A guard that refuses, and is told of it."""

    def __init__(self) -> None:
        self.told: list[Exception] = []

    def method(self, original: Any, *args: Any) -> str:
        raise SynchronizationError('call()')

    value = method

    def has_refused(self, error: Exception, verb: str) -> None:
        self.told.append(error)


def test_the_guard_is_told_what_it_refused(entries: list[Entry], monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[Exception] = []
    monkeypatch.setattr(patching, 'refused', counted.append)
    installation, guard = Installation(), Refusing()
    installation.install(guard)
    with pytest.raises(SynchronizationError) as first:
        Holder().method()
    with pytest.raises(SynchronizationError) as second:
        _ = Holder().value
    installation.uninstall()
    assert guard.told == counted == [first.value, second.value]


def test_wrappers_look_like_what_they_stand_for(entries: list[Entry]) -> None:
    Holder.method.__doc__ = 'Text of the method.'
    entries.append(Entry('collections.OrderedDict', 'move_to_end', 'method'))
    installation = Installation()
    installation.install(Guarding())
    assert (Holder.method.__name__, Holder.method.__doc__) == ('method', 'Text of the method.')
    assert collections.OrderedDict.move_to_end.__name__ == 'move_to_end'
    assert Holder.__dict__['value'].__doc__ == 'A value.'
    installation.uninstall()


class Nameless:
    """A callable that ``functools.update_wrapper`` can not copy from."""

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise TypeError('no dictionary')

    def __call__(self, *args: Any) -> str:
        return 'original'


nameless = Nameless()


def test_what_can_not_be_copied_from_has_the_entrys_name(entries: list[Entry]) -> None:
    entries.append(Entry(HERE, 'nameless', 'method', 'function'))
    installation = Installation()
    installation.install(Guarding())
    replaced: Any = nameless
    installation.uninstall()
    assert isinstance(replaced, types.FunctionType) and replaced.__name__ == 'nameless'


def test_methods_of_types_that_refuse_setattr(entries: list[Entry]) -> None:
    """``popitem`` is OrderedDict's own, ``get`` is inherited from dict; both types are C's."""
    own = collections.OrderedDict.__dict__['popitem']
    assert 'get' not in collections.OrderedDict.__dict__
    entries[:] = [Entry('collections.OrderedDict', name, 'method', 'sealed') for name in ('popitem', 'get')]
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


def test_a_namespace_out_of_reach_is_said() -> None:
    class Odd:
        __dict__ = ('not', 'a dictionary')  # type: ignore[assignment]

    with pytest.raises(TypeError, match='can not be reached'):
        patching._namespace(Odd())


def test_a_slot_that_was_not_written_is_not_restored(entries: list[Entry]) -> None:
    slot = patching._Slot(entries[0], f'{HERE}.Holder')
    later = Holder.__dict__['method']
    slot.before = None
    slot.restore()
    assert Holder.__dict__['method'] is later


def test_what_was_put_back_is_not_put_back_again(entries: list[Entry], monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot may be restored twice, by a failed install and by the next: what came between stays."""
    slot = patching._Slot(entries[0], f'{HERE}.Holder')
    slot.wrapper = lambda self: 'wrapped'
    monkeypatch.setattr(Holder, 'method', Holder.method)  # puts it back at the end
    slot.write()
    assert Holder().method() == 'wrapped'
    slot.restore()
    Holder.method = lambda self: 'another'  # type: ignore[method-assign]
    slot.restore()
    assert Holder().method() == 'another'

    code, other = plain.__code__, (lambda a: 'other code').__code__
    replaced = patching._CodeSlot(Entry(HERE, 'plain', 'method', 'code'), plain)
    try:
        plain.__code__ = other
        replaced.restore()
        assert plain.__code__ is other, 'nothing was written'
        replaced.write()
        replaced.restore()
        plain.__code__ = other
        replaced.restore()
        assert plain.__code__ is other
    finally:
        plain.__code__ = code


@pytest.mark.parametrize(
    'holder', ['builtins.int', 'collections.OrderedDict', 'array.array', 're.Pattern', f'{HERE}.Holder']
)
def test_types_that_refuse_setattr_are_known(holder: str) -> None:
    slot = patching._Slot(Entry(holder, '__doc__', 'method'), holder)
    try:
        type.__setattr__(slot.holder, '__doc__', slot.holder.__doc__)
    except TypeError:
        assert not slot.plain
    else:
        assert slot.plain


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
        def seam(self, name: str, original: Any, *args: Any, **kwargs: Any) -> Any:
            return name, original(*args, **kwargs)

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
        installation.inside.depth = 1
        assert after.ptr == 9
        installation.inside.depth = 0
        ours = {'__name__': 'capturekit.some_module', 'x': after}
        assert eval('x.ptr', ours) == 9
        assert guard.read == [(before, 7)]
        assert eval('x.ptr', {'x': after, '__name__': 'capturekitten'}) == 9
        assert eval('x.ptr', {'x': after}) == 9
        assert guard.read == [(before, 7), (after, 9), (after, 9)]
        installation.inside.substitute = LintGuard()
        assert after.ptr == 9 and len(guard.read) == 3
        del after.__dict__['ptr']
        with pytest.raises(AttributeError, match='ptr'):
            _ = after.ptr
        with pytest.raises(AttributeError, match='ptr'):
            _ = Instance.ptr  # type: ignore[misc]
    finally:
        installation.uninstall()
    assert 'ptr' not in Instance.__dict__


def test_shared_verbs_are_given_the_name_of_the_call(entries: list[Entry]) -> None:
    entries[:] = [Entry(f'{HERE}.Holder', 'method', 'pool_free'), Entry(f'{HERE}.Holder', 'value', 'value', 'property')]

    class Told(Guarding):
        def pool_free(self, name: str, original: Any, *args: Any) -> str:
            return name

    installation = Installation()
    installation.install(Told())
    assert Holder().method() == 'Holder.method()'
    assert Holder().value == 'guarded original value'
    installation.uninstall()


def test_originals_are_kept_by_name(entries: list[Entry]) -> None:
    own, inherited = Holder.__dict__['method'], Inheriting.method
    installation = Installation()
    installation.install(Guarding())
    installation.uninstall()
    assert set(installation.originals) == {f'{HERE}.Holder.method', f'{HERE}.Holder.value', f'{HERE}.Inheriting.method'}
    assert installation.originals[f'{HERE}.Holder.method'] is own
    assert installation.originals[f'{HERE}.Inheriting.method'] is inherited


def test_what_was_found_is_found_once_and_again_where_it_changed(
    entries: list[Entry], monkeypatch: pytest.MonkeyPatch
) -> None:
    installation = Installation()
    installation.install(Guarding())
    known = installation._slots
    installation.uninstall()
    installation.install(Guarding())
    assert all(slot is before for slot, before in zip(installation._slots, known, strict=True))
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


def test_replaced_code_is_found_again_where_it_changed(entries: list[Entry], monkeypatch: pytest.MonkeyPatch) -> None:
    entries[:] = [Entry(HERE, 'plain', 'method', 'code')]
    installation = Installation()
    installation.install(Guarding())
    installation.uninstall()
    monkeypatch.setattr(plain, '__code__', (lambda a: 'other code').__code__)
    installation.install(Guarding())
    assert plain(1) == 'guarded other code'
    installation.uninstall()
    monkeypatch.setattr(sys.modules[HERE], 'plain', lambda a: 'another function')
    installation.install(Guarding())
    assert plain(1) == 'guarded another function'
    installation.uninstall()


def test_a_copy_of_the_runtime_is_guarded_once_imported(entries: list[Entry], monkeypatch: pytest.MonkeyPatch) -> None:
    backend, copy = types.ModuleType('backend'), types.ModuleType('copy')
    backend.call, copy.call, copy.only_here = (lambda: 'one'), (lambda: 'two'), (lambda: 'three')
    monkeypatch.setitem(sys.modules, 'the_backend', backend)
    monkeypatch.setattr(patching, 'RUNTIME', 'the_copy')
    entries[:] = [
        Entry('the_copy', 'call', 'method', 'function', also='the_backend'),
        Entry('the_copy', 'only_in_later_versions', 'method', 'function', also='the_backend'),
        Entry('json', 'no_such_thing', 'method', 'function', optional=True),
    ]
    installation = Installation()
    installation.install(Guarding())
    assert backend.call() == 'guarded one'
    installation.uninstall()
    monkeypatch.setitem(sys.modules, 'the_copy', copy)
    installation.install(Guarding())
    assert (backend.call(), copy.call()) == ('guarded one', 'guarded two')
    known = installation._slots
    installation.uninstall()
    installation.install(Guarding())
    assert installation._slots[0] is known[0], 'nothing has changed: nothing is looked for'
    installation.uninstall()
    monkeypatch.setitem(sys.modules, 'the_copy', backend)
    installation.install(Guarding())
    assert backend.call() == 'guarded one', 'two names of one module: wrapped once'
    installation.uninstall()
    assert (backend.call(), copy.call()) == ('one', 'two')


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

"""Entry points are replaced and restored exactly, and wrappers behave like what they stand for."""

from __future__ import annotations

import collections
import math
import sys
import types
from typing import Any

import pytest

from capturekit.guard import patching
from capturekit.guard.entry_points import Entry
from capturekit.guard.patching import Installation, resolve
from capturekit.model.errors import SynchronizationError


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

    def failing(holder: Any, name: str, value: Any) -> None:
        if holder is Inheriting:
            raise MemoryError('no room')
        setattr(holder, name, value)

    monkeypatch.setattr(patching, 'setattr', failing, raising=False)
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


def test_nothing_is_installed_before_and_after(entries: list[Entry]) -> None:
    installation = Installation()
    assert not installation.installed
    installation.install(Guarding())
    assert installation.installed
    installation.uninstall()
    assert not installation.installed


class LintGuard:
    """Is asked instead of the guard in a thread that is linted."""

    calls_only = True

    def instead_of(self, verb: Any) -> Any:
        return lambda original, *args: f'shadow of {original(*args) if callable(original) else args[0]}'


def test_a_shadow_is_asked_instead_of_the_guard(entries: list[Entry]) -> None:
    installation = Installation()
    installation.install(Guarding())
    installation.inside.policy = LintGuard()
    assert Holder().method() == 'shadow of original'
    assert Holder().value == 'shadow of original value'
    installation.inside.__enter__()
    assert (Holder().method(), Holder().value) == ('original', 'original value')
    installation.uninstall()


class Refusing:
    """A guard that refuses, and is told of it."""

    def __init__(self) -> None:
        self.told: list[Exception] = []

    def method(self, original: Any, *args: Any) -> str:
        raise SynchronizationError('call()')

    value = method

    def has_refused(self, error: Exception, entry: Entry) -> None:
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


def test_what_was_put_back_is_not_put_back_again(entries: list[Entry], monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot may be restored twice, by a failed install and by the next: what came between stays."""
    entries.append(Entry(HERE, 'plain', 'method', 'code'))
    installation, code, other = Installation(), plain.__code__, (lambda a: 'other code').__code__
    installation.install(Guarding())
    installation.uninstall()
    monkeypatch.setattr(Holder, 'method', lambda self: 'another')
    plain.__code__ = other
    try:
        for slot in installation._known:
            slot.restore()
        assert Holder().method() == 'another' and plain.__code__ is other
    finally:
        plain.__code__ = code


@pytest.mark.parametrize(
    'holder', ['builtins.int', 'collections.OrderedDict', 'array.array', 're.Pattern', f'{HERE}.Holder']
)
def test_types_that_refuse_setattr_are_known(holder: str) -> None:
    slot = patching._Slot(Entry(holder, '__doc__', 'method'), resolve(holder))
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
    entries[:] = [
        Entry(HERE, name, 'seam', 'code', optional=True, given=True) for name in ('plain', 'closing', 'compiled')
    ]
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


def test_shared_verbs_are_given_the_name_of_the_call(entries: list[Entry]) -> None:
    entries[:] = [
        Entry(f'{HERE}.Holder', 'method', 'shared', given=True),
        Entry(f'{HERE}.Holder', 'value', 'value', 'property'),
    ]

    class Told(Guarding):
        def shared(self, entry: Entry, original: Any, *args: Any) -> str:
            return entry.call

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

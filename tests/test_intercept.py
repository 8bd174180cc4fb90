"""Every intercepted name exists in CuPy, can be replaced, and is exactly restored; real and simulated CuPy alike."""

from __future__ import annotations

import ast
import subprocess
import sys
from typing import Any

import pytest

from capturekit import intercept
from capturekit.guard import GUARD
from capturekit.intercept import ENTRIES, Entry, Installation, resolve

CONTRACT = """
import importlib
import cupy, cupy.cuda.runtime, cupy._core.syncdetect
from capturekit.intercept import ENTRIES, Installation, resolve

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
before = view()
installation = Installation()
seen = []

class Listener:
    def __getattr__(self, verb):
        def call(*args, **kwargs):
            seen.append(verb)
            return 'heard'
        return call

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
    'from capturekit.simulated.device import SimulatedDevice\n'
    'from capturekit.simulated.cupy import install\n'
    'install(SimulatedDevice(0))\n'
)


@pytest.mark.parametrize('which', ['real', 'simulated'])
def test_names_exist_are_replaced_and_restored(which: str) -> None:
    if which == 'real':
        found = subprocess.run([sys.executable, '-c', 'import cupy'], capture_output=True)
        if found.returncode:
            pytest.skip('CuPy is not installed: the names of the real one can not be held')
    said = run((SIMULATED if which == 'simulated' else '') + CONTRACT)
    optional = {str(entry) for entry in ENTRIES if entry.optional}
    allowed = optional if which == 'simulated' else set(ast.literal_eval(said['unloadable']))
    assert set(ast.literal_eval(said['missing'])) <= allowed, said
    assert said['not'] == 'replaced []', said
    assert said['changed'] == '[]', said
    assert int(said['version'].split('.')[0]) >= 14
    assert 'pool_free' in said['seen'] and 'device_synchronize' in said['seen'] and 'seam' in said['seen']


class Holder:
    """Stands for a CuPy class in the tests below."""

    def method(self) -> str:
        return 'original'

    @property
    def value(self) -> str:
        return 'original value'


class Inheriting(Holder):
    pass


class Guarding:
    """A guard that says what it was asked and lets through."""

    def method(self, original: Any, *args: Any) -> str:
        return f'guarded {original(*args)}'

    value = method


HERE = 'tests.test_intercept'


@pytest.fixture
def entries(monkeypatch: pytest.MonkeyPatch) -> list[Entry]:
    table = [
        Entry(f'{HERE}.Holder', 'method', 'method'),
        Entry(f'{HERE}.Holder', 'value', 'value', 'property'),
        Entry(f'{HERE}.Inheriting', 'method', 'method'),
    ]
    monkeypatch.setattr(intercept, 'ENTRIES', table)
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
    write = intercept._Slot.write

    def failing(slot: Any) -> None:
        if slot.entry is entries[2]:
            raise MemoryError('no room')
        write(slot)

    monkeypatch.setattr(intercept._Slot, 'write', failing)
    with pytest.raises(MemoryError):
        installation.install(Guarding())
    assert Holder().method() == 'original'
    assert Holder().value == 'original value'


def test_a_failing_restore_does_not_keep_the_others(entries: list[Entry], monkeypatch: pytest.MonkeyPatch) -> None:
    installation = Installation()
    installation.install(Guarding())
    restore = intercept._Slot.restore
    failed = []

    def failing(slot: Any) -> None:
        restore(slot)
        if slot.entry is entries[2]:
            failed.append(slot)
            raise MemoryError('no room')

    monkeypatch.setattr(intercept._Slot, 'restore', failing)
    with pytest.raises(MemoryError):
        installation.uninstall()
    assert failed
    assert Holder().method() == 'original'
    assert Holder().value == 'original value'
    assert not installation.installed


def test_every_verb_is_a_method_of_the_guard() -> None:
    for entry in ENTRIES:
        assert callable(getattr(GUARD, entry.verb)), entry


def test_resolve_names_what_is_missing() -> None:
    with pytest.raises(AttributeError, match='nothing_of_that_name'):
        resolve('json.nothing_of_that_name')
    with pytest.raises(ImportError):
        resolve('no_such_package_at_all')

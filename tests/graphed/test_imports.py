"""Modules that a function imports while it is watched, and finders of other packages that are asked for them."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import capturekit as ck
from capturekit.graphed.environment import Environment
from capturekit.graphed.watch import Watch

HERE = os.path.basename(__file__)


def environment(fn: Any, *args: Any) -> Environment:
    watching = Watch(fn, is_array=lambda value: False)
    watching.run(args, {})
    return watching.environment


class Finder:
    """As packages put on ``sys.meta_path``: it reads what changes all the time, and finds nothing."""

    asked = 0

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        Finder.asked += 1
        assert [name for name in list(sys.modules) if name == 'no such module'] == []
        open(os.devnull).close()


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / 'met_late.py').write_text('import met_by_it\nNUMBER = met_by_it.number()\n')
    (tmp_path / 'met_by_it.py').write_text('def number():\n    import os\n    return 2 + 0 * len(os.listdir("."))\n')
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, 'meta_path', [Finder(), *sys.meta_path])
    importlib.invalidate_caches()
    for name in ('met_late', 'met_by_it'):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def late(x: Any) -> Any:
    import met_late  # type: ignore[import-not-found]

    return x * met_late.NUMBER


def tries(x: Any) -> Any:
    try:
        import met_nowhere  # type: ignore[import-not-found]
    except ImportError:
        return x
    return x * met_nowhere.NUMBER


@pytest.mark.usefixtures('no_collection')
def test_a_first_import_is_the_only_doubt(modules: Path) -> None:
    asked = Finder.asked
    found = environment(late, 3)
    assert Finder.asked > asked
    line = late.__code__.co_firstlineno + 1
    assert found.run.unwatchable == [
        f'the function imports {name} for the first time at {HERE}:{line}: what that reads is not known'
        for name in ('met_late', 'met_by_it')
    ]
    assert environment(late, 3).run.unwatchable == []


@pytest.mark.usefixtures('no_collection')
def test_what_runs_after_an_import_is_watched(modules: Path) -> None:
    def after(x: Any) -> Any:
        importlib.import_module('met_late')
        return x + len(os.listdir('.'))

    environment(after, 1)
    assert any('calls posix.listdir' in text for text in environment(after, 1).run.unwatchable)


@pytest.mark.usefixtures('no_collection')
def test_a_library_that_imports_late_is_no_doubt(modules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = str(modules / 'met_late.py')
    importlib.import_module('met_late')
    del sys.modules['met_by_it']
    source = compile('def imports(x):\n    import met_by_it\n    return x * met_by_it.number()\n', library, 'exec')
    names: dict[str, Any] = {'__name__': 'scipy.met_late'}
    exec(source, names)
    watch = Watch(names['imports'], is_array=lambda value: False, skip=lambda name: name.startswith(str(modules)))
    watch.run((3,), {})
    assert watch.environment.run.unwatchable == []


@pytest.mark.usefixtures('no_collection')
def test_an_import_that_fails_stays_a_doubt(modules: Path) -> None:
    line = tries.__code__.co_firstlineno + 2
    for _ in range(2):
        assert environment(tries, 3).run.unwatchable == [
            f'the function imports met_nowhere, which is not found at {HERE}:{line}: what that reads is not known'
        ]


def test_calls_are_right_and_recorded(sim: Any, modules: Path) -> None:
    fn = ck.graphed(late)
    for number in range(4):
        assert (fn(sim.arange(3.0) + number).get() == (sim.arange(3.0) + number).get() * 2).all()
    assert 'recorded' in {variant.state for variant in fn.variants}


def test_a_module_that_appears_is_found(sim: Any, modules: Path) -> None:
    fn = ck.graphed(tries)
    x = sim.ones(3)
    assert [fn(x).get()[0] for _ in range(3)] == [1, 1, 1]
    (modules / 'met_nowhere.py').write_text('NUMBER = 5\n')
    importlib.invalidate_caches()
    try:
        assert [fn(x).get()[0] for _ in range(4)] == [5, 5, 5, 5]
    finally:
        sys.modules.pop('met_nowhere', None)

"""Of ``sys.modules`` only the modules are watched that code asks it for by their names, if it does nothing else."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import capturekit as ck

OTHER = 'module_that_nobody_asks_for'
NAME = 'module_that_is_asked_for'


@pytest.fixture(autouse=True)
def modules_are_put_back() -> Iterator[None]:
    before = sys.modules
    yield
    sys.modules = before
    for name in (NAME, OTHER):
        sys.modules.pop(name, None)


def made(factor: float) -> types.ModuleType:
    module: Any = types.ModuleType(NAME)
    module.factor = factor
    return module  # type: ignore[no-any-return]


def by_get() -> float:
    module = sys.modules.get('module_that_is_asked_for')
    return 1.0 if module is None else module.factor


def by_get_with_a_default() -> float:
    module = sys.modules.get('module_that_is_asked_for', None)
    return 1.0 if module is None else module.factor


def by_item() -> float:
    return sys.modules['module_that_is_asked_for'].factor if 'module_that_is_asked_for' in sys.modules else 1.0  # type: ignore[no-any-return]


def by_membership() -> float:
    return 2.0 if 'module_that_is_asked_for' not in sys.modules else 5.0


def imported(name: str) -> Any:
    """As packages ask for others that need not be there."""
    module = sys.modules.get(name)
    if module is not None and getattr(getattr(module, '__spec__', None), '_initializing', False):
        return None
    return module


def of_a_parameter() -> float:
    module = imported('module_that_is_asked_for')
    return 1.0 if module is None else module.factor


def of_a_variable() -> float:
    name = ''.join(['module_that', '_is_asked_for'])
    module = sys.modules.get(name)
    return 1.0 if module is None else module.factor


def in_a_loop() -> float:
    found = 1.0
    for name in ('no_such_module', 'module_that_is_asked_for'):
        if name in sys.modules:
            found = sys.modules[name].factor
    return found


BY_NAME: list[Callable[[], float]] = [by_get, by_get_with_a_default, by_item, by_membership]
#: The same by variables, whose values are seen where Python tells of lines.
BY_VARIABLE: list[Callable[[], float]] = [of_a_parameter, of_a_variable, in_a_loop]
TOLD = [*BY_NAME, *(BY_VARIABLE if sys.version_info >= (3, 12) else [])]


def of_a_variable_that_changes() -> float:
    name = 'no_such_module'
    module = sys.modules.get((name := 'module_that_is_asked_for') and name)
    return 1.0 if module is None or name is None else module.factor  # type: ignore[no-any-return]


def of_the_same_line() -> float:
    name = 'no_such_module'
    found = [name := other for other in ('module_that_is_asked_for',)] and sys.modules.get(name)
    return 1.0 if found is None else found.factor  # type: ignore[union-attr]


def of_one_of_two() -> float:
    module = sys.modules.get('nothing' if len(sys.argv) > 999 else 'module_that_is_asked_for')
    return 1.0 if module is None else module.factor


def by_a_variable() -> float:
    modules = sys.modules
    return sum(getattr(module, 'factor', 1.0) for name, module in modules.items() if name == NAME)


def by_getattr() -> float:
    module = getattr(sys, 'modules').get(NAME)  # noqa: B009
    return 1.0 if module is None else module.factor


def after_it_was_asked_by_name() -> float:
    if 'nothing' in sys.modules:
        return 0.0
    return float(len([name for name in sys.modules if name == NAME]))


def of_a_comparison() -> float:
    return 2.0 if sys.modules.get is None or NAME in set(sys.modules) else 3.0


OTHERWISE: list[Callable[[], float]] = [
    of_a_variable_that_changes, of_the_same_line, of_one_of_two,
    by_a_variable, by_getattr, after_it_was_asked_by_name, of_a_comparison,
]  # fmt: skip


@pytest.mark.parametrize('factor', [*BY_NAME, *BY_VARIABLE, *OTHERWISE], ids=lambda one: one.__name__)
def test_what_is_found_is_compared(sim: Any, factor: Callable[[], float]) -> None:
    def work(x: Any) -> Any:
        return x * factor()

    fn, x = ck.graphed(work), sim.arange(3.0)

    def check() -> None:
        for _ in range(4):
            assert fn(x).tolist() == work(x).tolist()

    check()
    sys.modules[NAME] = made(2.0)
    check()
    sys.modules[NAME] = made(3.0)
    check()
    sys.modules[NAME].factor = 4.0  # type: ignore[attr-defined]
    check()
    before, sys.modules = sys.modules, {**sys.modules, NAME: made(5.0)}
    check()
    sys.modules = before
    check()
    del sys.modules[NAME]
    check()


@pytest.mark.parametrize('factor', TOLD, ids=lambda one: one.__name__)
def test_a_module_that_nobody_asks_for_does_not_count(sim: Any, factor: Callable[[], float]) -> None:
    fn, x = ck.graphed(lambda x: x * factor()), sim.arange(3.0)
    for _ in range(4):
        fn(x)
    (variant,) = fn.variants
    before = variant.launches
    sys.modules[OTHER] = types.ModuleType(OTHER)
    fn(x)
    assert variant.launches == before + 1
    assert len(variant.environment.entries) < 100


class Hidden:
    """An object that has modules of its own."""

    def __init__(self, factor: float) -> None:
        self.modules = {NAME: made(factor)}


hidden = Hidden(2.0)


def of_another_object(there: Any) -> float:
    sys = there
    return sys.modules.get('module_that_is_asked_for').factor  # type: ignore[no-any-return]


def test_modules_of_other_objects_are_compared(sim: Any) -> None:
    def work(x: Any) -> Any:
        found = 1.0 if 'module_that_nobody_asks_for' in sys.modules else 2.0
        return x * found * of_another_object(hidden)

    fn, x = ck.graphed(work), sim.arange(3.0)
    for factor in (2.0, 3.0, 4.0):
        hidden.modules[NAME] = made(factor)
        for _ in range(3):
            assert fn(x).tolist() == work(x).tolist()
    hidden.modules = {NAME: made(7.0)}
    for _ in range(3):
        assert fn(x).tolist() == work(x).tolist()


def test_another_sys_is_looked_into(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The global ``sys`` of a module may be anything, and may become another thing."""
    there: Any = types.ModuleType('there')
    text = "import sys\n\ndef factor():\n    return sys.modules.get('module_that_is_asked_for').factor\n"
    exec(compile(text, __file__, 'exec'), vars(there))
    sys.modules[NAME] = made(1.0)

    def work(x: Any) -> Any:
        return x * there.factor()

    fn, x = ck.graphed(work), sim.arange(3.0)
    for fake in (sys, Hidden(2.0), Hidden(3.0), sys):
        monkeypatch.setattr(there, 'sys', fake, raising=False)
        for _ in range(3):
            assert fn(x).tolist() == work(x).tolist()
        if fake is not sys:
            fake.modules[NAME].factor += 1  # type: ignore[attr-defined]
            for _ in range(3):
                assert fn(x).tolist() == work(x).tolist()

"""Code may ask by ``hasattr`` whether an object is an array, which gives it nothing of the array."""

from __future__ import annotations

from types import CodeType
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.functions.code_reads import names_of

INTERFACE = '__cuda_array_interface__'


class Thing:
    """An object that may get the attribute later."""


class Lazy:
    """An object that computes whether it has it."""

    def __init__(self) -> None:
        self.has = False

    def __getattr__(self, name: str) -> Any:
        if name == INTERFACE and self.has:
            return {}
        raise AttributeError(name)


def answers(cp: Any, function: Any, changes: list[Any], graphed: bool) -> tuple[list[Any], Any]:
    """What calls give with a change before each, and what was called."""
    world: dict[str, Any] = {'thing': Thing(), 'lazy': Lazy(), 'np': np.ones(2)}
    called = (lambda x: function(x, world)) if not graphed else ck.graphed(lambda x: function(x, world))
    found = []
    for change in changes:
        change(world)
        found.append(called(cp.ones(2)).get().tolist())
    if INTERFACE in vars(Thing):
        delattr(Thing, INTERFACE)
    return found, called


def alike(cp: Any, function: Any, changes: list[Any]) -> Any:
    """Compare plain and graphed calls; return the graphed function."""
    found, fn = answers(cp, function, changes, True)
    assert found == answers(cp, function, changes, False)[0]
    return fn


def nothing(_world: dict[str, Any]) -> None: ...


def by_a_constant(x: Any, world: dict[str, Any]) -> Any:
    return x * 2 if hasattr(x, '__cuda_array_interface__') and not hasattr(world['np'], INTERFACE) else x * 3


def of_a_thing(x: Any, world: dict[str, Any]) -> Any:
    return x * (2 if hasattr(world['thing'], '__cuda_array_interface__') else 3)


def of_a_lazy_one(x: Any, world: dict[str, Any]) -> Any:
    return x * (2 if hasattr(world['lazy'], '__cuda_array_interface__') else 3)


def by_a_variable(x: Any, world: dict[str, Any]) -> Any:
    return x * (2 if any(hasattr(world['lazy'], name) for name in ('__dlpack__', INTERFACE)) else 3)


def by_getattr(x: Any, world: dict[str, Any]) -> Any:
    found = getattr(x, '__cuda_array_interface__', None)
    return x * (found['shape'][0] if found else 3)


def by_both(x: Any, world: dict[str, Any]) -> Any:
    name = '__cuda_array_interface__'
    return x * (2 if hasattr(x, name) and getattr(x, name, None) is not None else 3)


@pytest.mark.parametrize('function', [by_a_constant, of_a_thing, of_a_lazy_one, by_a_variable])
def test_code_may_ask_whether_it_is_an_array(sim: Any, function: Any) -> None:
    fn = alike(sim, function, [nothing] * 5)
    assert sum(variant.launches for variant in fn.variants) >= 3


@pytest.mark.parametrize('function', [by_getattr, by_both])
def test_code_that_takes_the_address_is_eager(sim: Any, function: Any) -> None:
    fn = alike(sim, function, [nothing] * 5)
    assert sum(variant.launches for variant in fn.variants) == 0


@pytest.mark.parametrize(
    ('function', 'change'),
    [
        (of_a_thing, lambda world: setattr(world['thing'], INTERFACE, {})),
        (of_a_thing, lambda world: setattr(Thing, INTERFACE, {})),
        (of_a_thing, lambda world: world.update(thing=np.ones(1))),
        (of_a_lazy_one, lambda world: setattr(world['lazy'], 'has', True)),
        (of_a_lazy_one, lambda world: setattr(world['lazy'], INTERFACE, {})),
        (by_a_variable, lambda world: setattr(world['lazy'], INTERFACE, {})),
        (by_a_variable, lambda world: setattr(world['lazy'], '__dlpack__', {})),
    ],
    ids=['attribute', 'class', 'other object', 'what it computes of', 'of the lazy one', 'by a variable', 'the first'],
)
def test_an_object_that_becomes_one_is_seen(sim: Any, function: Any, change: Any) -> None:
    alike(sim, function, [nothing] * 4 + [change] + [nothing] * 3)


def strings_in(text: str) -> bool:
    """Whether code may read the attribute by a text."""
    code: CodeType = compile(text, 'here', 'exec')
    return INTERFACE in names_of(code).strings


@pytest.mark.parametrize(
    ('text', 'read'),
    [
        ("hasattr(x, '__cuda_array_interface__')", False),
        ("hasattr(x.y[0], '__cuda_array_interface__') and hasattr(y, '__cuda_array_interface__')", False),
        ("hasattr(x, '__cuda_array_interface__') and getattr(x, '__cuda_array_interface__')", True),
        ("name = '__cuda_array_interface__'; hasattr(x, name)", True),
        ("hasattr('__cuda_array_interface__', x)", True),
        ("hasattr(x, f('__cuda_array_interface__'))", True),
        ("any(hasattr(x, name) for name in ('__cuda_array_interface__',))", False),
    ],
)
def test_only_what_hasattr_gets_is_not_read(text: str, read: bool) -> None:
    assert strings_in(text) is read

"""A number in an attribute may also be a global's, or be asked for by a computed name, and gone when the run ends."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

import capturekit as ck

NAMES = """
import shown_elsewhere as itself

s = 1.0
NAME = 's'

class Empty:
    pass

class Zero(Empty):
    s = 0.0

EMPTY, ZERO = Empty(), Zero()

def total(x):
    return x.sum()
"""
#: Code that gives an attribute the number ``v`` for a while, and takes it as ``w`` in another way.
WAYS = {
    'a global of the module': 'itself.s = v; w = s; itself.s = 1.0',
    'an attribute of the module': 'itself.s = v; w = itself.s; itself.s = 1.0',
    'a computed name': 'EMPTY.s = v; w = getattr(EMPTY, NAME); del EMPTY.s',
    'a computed name, asked before': 'getattr(EMPTY, NAME, 1); EMPTY.s = v; w = getattr(EMPTY, NAME); del EMPTY.s',
    'a computed name of a class': 'Empty.s = v; w = getattr(Empty(), NAME); del Empty.s',
    'one that the class has': 'Zero.s = v; w = getattr(ZERO, NAME); Zero.s = 0.0',
}
SEEN = """
def work(x):
    v = x[0].item() + 0.0
    {how}
    return x * 2 if isinstance(w, float) and w > 5 else x
"""
CALLED = """
class Model:
    def __init__(self):
        self.total = 0.0

    def step(self, x):
        self.total = float(total(x))
        return x * 2

MODEL = Model()

def work(x):
    return MODEL.step(x)
"""
VALUES = (1.5, 2.25, 0.5, 0.75, 1.25, 2.5, 1.75, 9.5, 1.0, 12.5)


@pytest.fixture
def module() -> Iterator[types.ModuleType]:
    made = sys.modules['shown_elsewhere'] = types.ModuleType('shown_elsewhere')
    yield made
    del sys.modules['shown_elsewhere']


@pytest.mark.parametrize('way', WAYS)
def test_a_number_is_seen_in_another_way(sim: Any, module: Any, way: str) -> None:
    exec(NAMES + SEEN.replace('{how}', WAYS[way]), vars(module))
    fn = ck.graphed(module.work)
    for value in VALUES:
        assert fn(sim.arange(3.0) + value).tolist() == module.work(sim.arange(3.0) + value).tolist(), value
    assert not any('eager run' in variant.reason for variant in fn.variants), 'it was launched, and was wrong'


def test_a_function_with_the_name_of_an_attribute(sim: Any, module: Any) -> None:
    """What is called is no number, so it does not keep one in the attribute from being followed."""
    exec(NAMES + CALLED, vars(module))
    fn = ck.graphed(module.work)
    for value in VALUES:
        assert fn(sim.arange(3.0) + value).tolist() == ((sim.arange(3.0) + value) * 2).tolist()
        assert module.MODEL.total == (sim.arange(3.0) + value).sum().item()
    assert sum(variant.launches for variant in fn.variants) >= 7

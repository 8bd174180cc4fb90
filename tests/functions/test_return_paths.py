"""Calls that enter functions which return to something else than the code that calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import capturekit as ck

MADE_AT_THE_CALL = """
def first(x, more=0):
    if isinstance(x, cp.ndarray):
        return x[0].item()
    return 2.0 if isinstance(x, float) and x > 5 else 1.0

def second(*args):
    return 3.0 if isinstance(args[0], float) and args[0] > 5 else 1.0

class Once:
    def __init__(self, x): self.left = [x]
    def __iter__(self): return self
    def __next__(self):
        if not self.left:
            raise StopIteration
        return first(self.left.pop())

class Shown(tuple):
    def __iter__(self): return map(first, super().__iter__())

class Of:
    def first(self, x): return first(x)
    def second(self, x): return second(x)

OF = Of()

def work(x):
    found = map(first, [x])
    return x * {call}

def kept(x):
    found = map(first, [x])
    return x, {call}
"""
#: Calls that take their arguments from something else than a tuple: what they make of it first enters functions, too.
TAKEN_FIRST = (
    'first(*map(first, [x]))', 'second(*map(first, [x]))', 'first(*map(first, [x]), **{})', 'second(*found)',
    'first(*Once(x))', 'second(*Once(x))', 'second(*Shown((x,)))', 'OF.first(*map(OF.first, [x]))',
    'OF.second(*map(first, [x]))', 'first(x, *map(first, [x]))', 'second(*(first(one) for one in [x]))',
)  # fmt: skip


@pytest.mark.parametrize('work', ['work', 'kept'])
@pytest.mark.parametrize('call', TAKEN_FIRST)
def test_arguments_that_the_call_makes_a_tuple_of(sim: Any, call: str, work: str) -> None:
    """Functions that are entered then return to what makes the tuple, and not to the code that calls."""
    space: dict[str, Any] = {'cp': sim}
    exec(MADE_AT_THE_CALL.replace('{call}', call), space)
    fn = ck.graphed(space[work])
    for value in (1.5, 2.5, 0.5, 1.25, 2.25, 0.75, 9.5, 1.5):
        given, plain = fn(sim.arange(3.0) + value), space[work](sim.arange(3.0) + value)
        if work == 'work':
            assert given.tolist() == plain.tolist(), value
        else:
            assert given[1] == plain[1], value


def test_arrays_that_numpy_asks_for(sim: Any) -> None:
    """A function that NumPy dispatches computes with what ``__array__`` returns; it returns something else."""

    class Held:
        def __init__(self, x: Any) -> None:
            self.x = x

        def __array__(self, *args: Any, **named: Any) -> Any:
            return self.x.get()

    def chosen(x: Any) -> Any:
        return x, np.where(Held(x), 2, 3)

    fn = ck.graphed(chosen)
    for values in [[1.0, 2.0, 3.0 + number] for number in range(6)] + [[0.0, 1.0, 0.0], [4.0, 0.0, 1.0]]:
        x = sim.array(values)
        assert fn(x)[1].tolist() == chosen(x)[1].tolist(), values


def test_an_array_function_is_returned(sim: Any) -> None:
    """What ``__array_function__`` returns is returned as it is."""

    class Own:
        def __init__(self, x: Any) -> None:
            self.x = x

        def __array_function__(self, function: Any, types: Any, args: Any, named: Any) -> Any:
            return self.x.get()

    def chosen(x: Any) -> Any:
        return x, np.where(Own(x), 2, 3)

    fn = ck.graphed(chosen)
    for number in range(8):
        x = sim.arange(3.0) + number
        assert fn(x)[1].tolist() == chosen(x)[1].tolist()
    assert sum(variant.launches for variant in fn.variants) >= 6

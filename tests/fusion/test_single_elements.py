"""Programs with values of one element that the device computes: fused, with equal bits, on many threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from tests.benchmarks import workloads
from tests.fusion.compared import SAME, fused

#: Enough elements for several in each thread, and many blocks.
MANY = 1 << 17


def steps_of(cp: Any, side: int, count: int) -> tuple[Any, Callable[[], None]]:
    """The state of conjugate gradients, and a function that begins anew and goes some steps."""
    b = cp.asarray(workloads.right_side(side))
    state = workloads.State(b, cp.zeros)

    def work() -> None:
        state.start(cp, b)
        for _ in range(count):
            workloads.step_of_gradients(cp, state)

    return state, work


def seen(state: Any) -> list[bytes]:
    return [one.get().tobytes() for one in state.arrays()]


def test_a_step_of_conjugate_gradients_is_three_kernels(cp: Any) -> None:
    """Besides the sums, and a copy of one number where its memory does not allow that a kernel does it."""
    state, work = steps_of(cp, 40, 4)
    work()
    expected = seen(state)
    with ck.capture(fuse=True) as cap:
        work()
    for _ in range(2):
        cap.graph.launch()
        assert seen(state) == expected
    in_steps = [one for one in cap.fused.kernels if one.elements == 1600 and len(one.nodes) > 2]
    assert cap.fused.compared == SAME and len(in_steps) == 3 * 4, cap.fused
    assert not [node for node, _why in cap.fused.alone if 'divide' in node.name] and not cap.graph.races()


def test_a_graphed_step_of_conjugate_gradients_goes_on(cp: Any) -> None:
    b = cp.asarray(workloads.right_side(40))
    states = [workloads.State(b, cp.zeros) for _ in range(2)]
    graphed = ck.graphed(fuse=True)(lambda state: workloads.step_of_gradients(cp, state))
    for state in states:
        state.start(cp, b)
    for _ in range(6):
        workloads.step_of_gradients(cp, states[0])
        graphed(states[1])
    assert seen(states[0]) == seen(states[1])
    assert all(one.fused is None or one.fused.compared in (SAME, 'not yet') for one in graphed.variants)


def quotient(cp: Any, x: Any, a: Any, b: Any) -> list[Any]:
    return [x * (a / b) + x]


def seen_later(cp: Any, x: Any, a: Any, b: Any) -> list[Any]:
    ratio = a / b
    return [x * ratio, ratio]


def read_by_two(cp: Any, x: Any, a: Any, b: Any) -> list[Any]:
    ratio = a / b
    y = x * ratio
    y[1:] += y[:-1].copy()
    return [y, y * ratio]


def written_after(cp: Any, x: Any, a: Any, b: Any) -> list[Any]:
    y = x * (a / b)
    a[...] = b
    return [y, x + a]


def written_before(cp: Any, x: Any, a: Any, b: Any) -> list[Any]:
    a[...] = b * 3
    return [x + a, x * b]


def in_place(cp: Any, x: Any, a: Any, b: Any) -> list[Any]:
    a *= b
    return [x + a, x - a]


def in_place_of_a_new_one(cp: Any, x: Any, a: Any, b: Any) -> list[Any]:
    ratio = a / b
    ratio *= 3
    return [x * ratio]


def of_the_array_itself(cp: Any, x: Any, a: Any, b: Any) -> list[Any]:
    first = x[:1] * 2
    x -= first
    return [x + a]


def into_the_array_itself(cp: Any, x: Any, a: Any, b: Any) -> list[Any]:
    x[:1] = a / b
    return [x * 2, x - b]


def element_that_is_read_and_written(cp: Any, x: Any, a: Any, b: Any) -> list[Any]:
    x += x[5:6] * 1
    x += x[7:8] + b
    return [x]


def beside(cp: Any, x: Any, a: Any, b: Any) -> list[Any]:
    y = x * 2
    a[...] = b
    return [y + 1, y]


def swapped(cp: Any, x: Any, a: Any, b: Any) -> list[Any]:
    kept = a.copy()
    a[...] = b
    b[...] = kept
    return [x * a + b]


PROGRAMS = (
    quotient, seen_later, read_by_two, written_after, written_before, in_place, in_place_of_a_new_one,
    of_the_array_itself, into_the_array_itself, element_that_is_read_and_written, beside, swapped,
)  # fmt: skip


@pytest.mark.parametrize('size', [1000, MANY])
@pytest.mark.parametrize('program', PROGRAMS)
def test_programs_with_single_elements_have_equal_bits(cp: Any, program: Callable[..., Any], size: int) -> None:
    x = cp.asarray(np.random.default_rng(0).uniform(-3, 3, size))
    a, b = cp.asarray([1.7]), cp.asarray([-0.3])
    fused(lambda: program(cp, x, a, b), [x, a, b])


def test_a_value_is_aimed_at_replaced_by_and_taken_over(cp: Any) -> None:
    x, a, b = cp.linspace(-3, 3, 1000), cp.asarray([1.7]), cp.asarray([-0.3])
    with ck.capture(fuse=True) as cap:
        y, ratio = seen_later(cp, x, a, b)
    assert len(cap.graph.nodes) == 1 and len(cap.graph.nodes[0].inner) == 2
    cap.graph.launch()
    other = a * 5
    cap.graph.rebind((a, other))
    cap.graph.launch()
    assert (y == x * (other / b)).all() and (ratio == other / b).all()
    with ck.capture(fuse=True) as more:
        z, _kept = seen_later(cp, x, b, a)
    cap.graph.update(more.graph)
    cap.graph.launch()
    assert (z == x * (b / a)).all()

    @ck.graphed(fuse=True)
    def scaled(x: Any, a: Any, b: Any) -> Any:
        return tuple(written_after(cp, x, a, b))

    for n in range(1, 6):
        mine, theirs = cp.asarray([float(n)]), cp.asarray([float(n)])
        for one, wanted in zip(scaled(x, mine, b), written_after(cp, x, theirs, b)):
            assert (one == wanted).all()
        assert (mine == theirs).all()


@pytest.mark.parametrize('at', [0, 5, 999])
def test_a_value_is_not_replaced_by_a_part_of_what_is_written(cp: Any, at: int) -> None:
    x, a = cp.linspace(-3, 3, 1000), cp.asarray([1.7])
    with ck.capture(fuse=True) as cap:
        x -= a * 2
    with pytest.raises(ValueError, match='uses the memory of a new array already'):
        cap.graph.rebind((a, x[at : at + 1]))
    expected = x - a * 2
    cap.graph.launch()
    assert (x == expected).all()


def test_a_value_in_what_is_written_is_another_variant(cp: Any) -> None:
    def changed(x: Any, a: Any) -> Any:
        x -= a * 2
        return x + 1

    graphed = ck.graphed(fuse=True)(changed)
    for _ in range(4):
        graphed(cp.linspace(-3, 3, 1000), cp.asarray([1.7]))
    for at in (0, 5, 5, 5, 999):
        x, y = cp.linspace(-3, 3, 1000), cp.linspace(-3, 3, 1000)
        assert (graphed(x, x[at : at + 1]) == changed(y, y[at : at + 1])).all() and (x == y).all()

"""Reductions that take in the elementwise work around them: what becomes one kernel, what does not, and equal bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.driver.cuda import current
from tests.fusion.compared import SAME, fused


@pytest.fixture
def x(cp: Any) -> Any:
    return cp.asarray(np.random.default_rng(0).uniform(-3, 3, (96, 40)).astype('f4'))


def softmax(cp: Any, x: Any, axis: int) -> Any:
    e = cp.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def batch_norm(cp: Any, x: Any) -> Any:
    mean, var = x.mean(axis=0), x.var(axis=0)
    return (x - mean) / cp.sqrt(var + 1e-5)


def in_place(cp: Any, x: Any) -> Any:
    y = x[:, :33] * 2
    y += 1
    total = y.sum(axis=0)
    y *= total
    return y


def read_in_between(cp: Any, x: Any) -> Any:
    y, other = cp.exp(x), cp.zeros((40, 40), 'f4')
    other[...] = cp.dot(x.T, y)  # reads all of it: it has to be written before
    return y.sum(axis=0) + other[0]


def input_changed_in_between(cp: Any, x: Any) -> Any:
    other = x + 1
    y = cp.exp(other)
    other[...] = cp.dot(x, x.T)[:, :40]
    return y.sum(axis=0) + other[0]


CASES: dict[str, Callable[[Any, Any], Any]] = {
    'front': lambda cp, x: cp.exp(x).sum(axis=0),
    'long front': lambda cp, x: (0.5 * x * (1 + cp.tanh(x))).max(axis=0),
    'behind': lambda cp, x: cp.sqrt(cp.abs(x.sum(axis=0)) + 1),
    'both': lambda cp, x: cp.sqrt((x * x).mean(axis=0) + 1e-6),
    'two inputs': lambda cp, x: cp.exp(x).var(axis=0),
    'other dtypes': lambda cp, x: (x > 0).astype('i4').sum(axis=0) * x[0].astype('f8'),
    'middle axis': lambda cp, x: cp.exp(x.reshape(8, 12, 40)).sum(axis=1),
    'transposed': lambda cp, x: cp.exp(x.T).sum(axis=1),
    'of a view': lambda cp, x: (x[::2, 1:-1] * 3).min(axis=0),
    'whole array': lambda cp, x: (x[:, ::2] + 1).T[:, ::2].prod(),
    'softmax': lambda cp, x: softmax(cp, x, 0),
    'softmax of rows': lambda cp, x: softmax(cp, x, -1),
    'batch norm': batch_norm,
    'in place': in_place,
    'read in between': read_in_between,
    'input changed in between': input_changed_in_between,
}


def compared(cp: Any, function: Callable[[Any, Any], Any], x: Any) -> tuple[ck.Graph, Any]:
    """The fused graph of a function and its report, after its bits were compared with those of an eager run."""
    cap = fused(lambda: [function(cp, x)])
    return cap.graph, cap.fused


def members(report: Any) -> list[list[str]]:
    """The names of the nodes in each kernel, without their dtypes."""
    return [[node.name.partition('__')[0].removeprefix('cupy_') for node in one.nodes] for one in report.kernels]


@pytest.mark.parametrize('case', CASES)
def test_programs_with_reductions_have_equal_bits(cp: Any, x: Any, case: str) -> None:
    graph, report = compared(cp, CASES[case], x)
    assert not graph.races()
    assert 'between' not in case or not any({'exp', 'sum'} <= set(names) for names in members(report)), report
    graph.close()


def test_the_array_in_front_is_not_written(cp: Any, x: Any) -> None:
    graph, report = compared(cp, CASES['front'], x)
    assert members(report) == [['exp', 'sum']] and len(graph.nodes) == 1
    (kernel,) = report.kernels
    assert (kernel.elements, kernel.loads, kernel.stores, kernel.registers) == (96 * 40, 1, 1, 1)
    assert [one.name.partition('__')[0] for one in graph.nodes[0].inner] == ['cupy_exp', 'cupy_sum']


def test_an_array_that_others_see_is_written(cp: Any, x: Any) -> None:
    def work() -> list[Any]:
        y = cp.exp(x)
        return [y, y.sum(axis=0)]

    report = fused(work).fused
    assert members(report) == [['exp', 'sum']] and report.kernels[0].stores == 2


def test_rows_in_one_piece_are_left_to_cub(cp: Any, x: Any) -> None:
    _graph, report = compared(cp, lambda cp, x: cp.exp(x).sum(axis=-1), x)
    assert 'CUB reduces it' in str(report) and not report


def test_fused_reductions_live_as_other_graphs_do(cp: Any, x: Any) -> None:
    with ck.capture(fuse=True) as cap:
        y = softmax(cp, x, 0)
    other = x * 2
    copy = cap.graph.clone()
    copy.launch()
    assert y.get().tobytes() == softmax(cp, x, 0).get().tobytes()
    cap.graph.rebind((x, other))
    cap.graph.launch()
    assert y.get().tobytes() == softmax(cp, other, 0).get().tobytes()
    assert len(cap.graph.measure().nodes) == len(cap.graph.nodes)
    assert cap.graph.verify(lambda x: softmax(cp, x, 0), other, outputs=y)


def test_what_is_behind_reads_nothing_else_of_the_front(cp: Any, x: Any) -> None:
    """Other threads make that while the first results are there already."""

    def work() -> Any:
        y = x * 2
        return y.sum(axis=0) + y[0]

    with ck.capture(fuse=True) as cap:
        found = work()
    for _ in range(3):  # what was not written would be there from the launch before
        cap.graph.launch()
        assert found.get().tobytes() == work().get().tobytes(), cap.fused
        x += 1
    (kernel,) = cap.fused.kernels
    assert len(kernel.nodes) == 2 and kernel.stores == 2 and cap.fused.compared == SAME


def test_a_value_that_a_front_makes_is_written_once(cp: Any, x: Any) -> None:
    """One element that each thread in front computes, and that is seen later."""
    a, b = cp.asarray([3.0], 'f4'), cp.asarray([7.0], 'f4')

    def work() -> list[Any]:
        ratio = a / b
        return [(x * ratio).sum(axis=0), ratio]

    cap = fused(work)
    (kernel,) = cap.fused.kernels
    assert len(kernel.nodes) == 3 and len(cap.graph.nodes) == 1 and cap.fused.compared == SAME


def test_a_value_that_is_read_before_does_not_part_the_two(cp: Any, x: Any) -> None:
    a = cp.asarray([3.0], 'f4')

    def work() -> list[Any]:
        y, value = x * 2, a * 3
        return [value.sum(), y.sum(axis=0), value]

    cap = fused(work)
    assert len(cap.graph.nodes) == 3, cap.fused
    if current().simulated:  # on a GPU, CUB's sum of the value stands between the two
        (kernel,) = (one for one in cap.fused.kernels if one.elements == x.size)
        assert 'multiply_sum' in kernel.name and len(kernel.nodes) == 2, cap.fused

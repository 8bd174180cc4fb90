"""Sums that are rounded in another order at each launch: which memory they reach, and what counts as the same there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.analysis.node_memory import Definitions
from capturekit.analysis.races import MemoryBlocks
from capturekit.analysis.unsteady import Unsteady, adds_loosely, unsteady
from capturekit.driver.cuda import current
from capturekit.driver.library_accesses import of_array
from capturekit.graph.first_launch import FirstLaunch
from capturekit.launch.array_extent import extent
from capturekit.launch.declared import Declared


def found_in(cp: Any, work: Any, call: str, second: Any = None) -> tuple[list[Unsteady], bool]:
    """What is unsteady in a graph whose first node is taken for such a call, which ``work(x)`` records and returns.

    ``second``: the only array that the call of the second node shows.
    """
    x = cp.arange(8.0)
    with ck.capture() as cap:
        first = work(x)
    device, g = current().device, cap.graph.graph
    handles = device.graph_nodes(g)
    said = Declared(True, True, (of_array(first, writes=True),), (extent(first),), call)
    saying = {handles[0]: said}
    if second is not None:
        shown = (of_array(second, writes=True),)
        saying[handles[1]] = Declared(True, True, shown, (extent(second),), 'cupy.cuda.cub.cub_reduction()')
    definitions = Definitions(device, saying)
    memory: Any = SimpleNamespace(held=list, chunks=list, holds=lambda _address: False, private=True)
    return unsteady(definitions, g, handles, MemoryBlocks(memory, cp.ndarray, {})), adds_loosely(definitions)


SCAN = 'cupy.cuda.cub.cub_scan()'


def test_it_is_the_sum_and_what_reads_it(cp: Any) -> None:
    a, b, c, d = (cp.zeros(8) for _ in range(4))

    def work(x: Any) -> Any:
        cp.add(x, 1, out=a)
        cp.sin(a, out=b)
        cp.cos(x, out=c)
        cp.add(b, c, out=d)
        return a

    found, adds = found_in(cp, work, SCAN)
    assert adds and found == sorted((Unsteady(*extent(one), 8) for one in (a, b, d)), key=lambda one: one.low)
    assert found_in(cp, work, 'cupy.cuda.cub.cub_reduction()') == ([], False)


def test_partial_sums_of_a_call_are_nobody_elses(cp: Any) -> None:
    """A reduction of the sums writes memory that its call does not show: that may differ, if no other node uses it."""
    a, b, c = (cp.zeros(8) for _ in range(3))

    def work(x: Any) -> Any:
        cp.add(x, 1, out=a)
        cp.sin(a, out=b)
        return a

    def and_reads(x: Any) -> Any:
        work(x)
        cp.cos(b, out=c)
        return a

    assert set(found_in(cp, work, SCAN, second=c)[0]) == {Unsteady(*extent(a), 8), Unsteady(*extent(b), 0)}
    assert set(found_in(cp, and_reads, SCAN, second=cp.zeros(8))[0]) == {
        Unsteady(*extent(a), 8),
        Unsteady(*extent(c), 8),
    }


def test_what_is_written_over_is_steady_again(cp: Any) -> None:
    a, b = cp.zeros(8), cp.zeros(8)

    def work(x: Any) -> Any:
        cp.add(x, 1, out=a)
        cp.sin(a, out=b)
        cp.cos(x, out=a)
        return a

    assert found_in(cp, work, SCAN)[0] == [Unsteady(*extent(b), 8)]


@pytest.mark.parametrize(
    ('size', 'a', 'b', 'same'),
    [
        (8, [1.0, 1e9], [1.0, 1e9 * (1 + 1e-12)], True),
        (8, [1.0, 1e9], [1.0, 1e9 * (1 + 1e-6)], False),
        (8, [np.nan, np.inf], [np.nan, np.inf], True),
        (8, [1.0, np.inf], [1.0, -np.inf], False),
        (8, [1.0, 2.0], [1.0, np.nan], False),
        (1, [1.0, 1e9], [1.0, 1e9 * (1 + 1e-12)], False),
        (3, [1.0, 1e9], [1.0, 1e9 * (1 + 1e-12)], False),
        (0, [1.0, 2.0], [3.0, 4.0], True),
    ],
)
def test_numbers_are_the_same_to_half_of_their_digits(size: int, a: list[float], b: list[float], same: bool) -> None:
    one, other = (np.array(values).view(np.uint8) for values in (a, b))
    assert Unsteady(0, 16, size).alike(one, other) is same


def test_whole_numbers_have_to_be_equal() -> None:
    """Places of the largest sum, say: as floats they are tiny, and no two are alike."""
    one, other = (np.array([5, n, 900]).view(np.uint8) for n in (7, 8))
    assert not Unsteady(0, 24, 8).alike(one, other)


@pytest.mark.parametrize(('loose', 'off', 'same'), [(True, 1e-15, True), (True, 1e-3, False), (False, 1e-15, False)])
def test_a_first_launch_forgives_last_bits(cp: Any, loose: bool, off: float, same: bool) -> None:
    x, out = cp.arange(1.0, 9.0), cp.zeros(8)
    graphs = []
    for factor in (3.0, 3.0 * (1 + off)):
        with ck.capture() as cap:
            cp.multiply(x, factor, out=out)
        graphs.append(cap.graph)
    memory: Any = SimpleNamespace(held=list, chunks=list, holds=lambda _address: False, private=True)
    pieces = [Unsteady(*extent(out), 8)] if loose else []
    trial = FirstLaunch(
        current(),
        graphs[0],
        [extent(out)],
        MemoryBlocks(memory, cp.ndarray, {}),
        unsteady=pieces,  # type: ignore[arg-type]
    )
    apart = trial.run(graphs[1].graphExec, cp.cuda.get_current_stream().ptr)
    assert (apart == '') is same
    assert trial.besides.startswith(', but for ') == same

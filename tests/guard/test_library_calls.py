"""Nodes of libraries are taken to touch what the arguments of their calls show."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import capturekit as ck
from capturekit.driver import library_accesses
from tests.captured import flag
from tests.examples import examples
from tests.lanes.test_relane import SAME, quiet

ROOM = 1 << 30


def values(array: Any) -> Any:
    return array.get()


def matrices(cp: Any, count: int, side: int = 8) -> list[Any]:
    return [(cp.arange(float(side * side)) % 5 + n).reshape(side, side) for n in range(count)]


def test_products_are_ordered_by_their_matrices(cp: Any) -> None:
    a, b, c = matrices(cp, 3)
    with ck.capture(lanes='auto', memory_limit=ROOM) as cap:
        first, second = a @ b, a @ c
        both = first @ second
    cap.graph.launch()
    report = cap.relaned
    assert report and report.compared == SAME and not report.fixed and not report.declared
    assert len(report.called) >= 3
    assert report.graphs[0].at_once[1] > 1
    assert "their library's call shows" in str(report)
    want = (values(a) @ values(b)) @ (values(a) @ values(c))
    np.testing.assert_allclose(values(both), want)


def test_a_product_in_a_row_keeps_its_order(cp: Any) -> None:
    x, w = matrices(cp, 2)
    with ck.capture(lanes='auto', memory_limit=ROOM) as cap:
        y = x @ w @ w @ w
    assert not cap.relaned
    cap.graph.launch()
    want = values(x)
    for _ in range(3):
        want = want @ values(w)
    np.testing.assert_allclose(values(y), want)


def test_what_reads_and_writes_say_is_added(sim: Any) -> None:
    a, b, c = matrices(sim, 3)
    with ck.capture(lanes='auto') as cap:
        with ck.reads(c), ck.writes():
            first = a @ b
        c += 1
        second = a @ b
    assert set(cap.graph.edges) == {(0, 1)}, 'the first product is said to read c as well'
    cap.graph.launch()
    assert values(first).tobytes() == values(second).tobytes()


def test_without_the_arguments_nothing_is_known(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, c = matrices(sim, 3)
    monkeypatch.setattr('capturekit.guard.library_calls.of_cublas', lambda name, args: None)
    with ck.capture(lanes='auto') as cap:
        a @ b, a @ c
    assert not cap.relaned and len(cap.relaned.fixed) == 2 and not cap.relaned.called


def test_lanes_by_hand_and_bodies(cp: Any) -> None:
    a, b, c = matrices(cp, 3)
    out = [cp.zeros_like(a) for _ in range(2)]
    with ck.capture() as cap:
        with cap.fork(2) as (left, right):
            with left:
                left_of = a @ b
            with right:
                right_of = a @ c
        with cap.if_(flag(cp)):
            out[0] += left_of
            out[1] += right_of
    assert not cap.graph.races()
    cap.graph.relane()
    cap.graph.launch()
    np.testing.assert_allclose(values(out[0]), values(a) @ values(b))
    np.testing.assert_allclose(values(out[1]), values(a) @ values(c))


def test_cloned_and_fused(cp: Any) -> None:
    a, b, c = matrices(cp, 3)
    with ck.capture(lanes='auto', memory_limit=ROOM, fuse=True) as cap:
        outs = [cp.tanh((a @ one) * 0.01) + n for n, one in enumerate((b, c))]
    assert cap.relaned and cap.relaned.graphs[0].at_once[1] > 1
    cap.graph.launch()
    np.testing.assert_allclose(values(outs[0]), np.tanh((values(a) @ values(b)) * 0.01))
    copy = cap.graph.clone()
    assert copy.edges == cap.graph.edges
    copy.launch()
    np.testing.assert_allclose(values(outs[0]), np.tanh((values(a) @ values(b)) * 0.01))


def test_rebound(sim: Any) -> None:
    """On a GPU some kernels of cuBLAS refuse other addresses, as :meth:`Graph.rebind` says."""
    a, b, c, other = matrices(sim, 4)
    with ck.capture(lanes='auto') as cap:
        outs = [a @ one for one in (b, c)]
    edges = cap.graph.edges
    cap.graph.rebind((b, other))
    assert cap.graph.edges == edges and cap.graph.relane().called
    cap.graph.launch()
    np.testing.assert_allclose(values(outs[0]), values(a) @ values(other))


@settings(quiet, max_examples=examples(40))
@given(steps=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=9))
def test_random_products_give_equal_bits(cp: Any, steps: list[tuple[int, int, int]]) -> None:
    start = [one % 3 for one in matrices(cp, 4)]
    found = []
    for options in ({}, {'lanes': 'auto', 'memory_limit': ROOM}):
        arrays = [one.copy() for one in start]
        with ck.capture(**options) as cap:
            for to, a, b in steps:
                arrays[to][...] = (arrays[a].T @ arrays[b]) % 7
        for _ in range(2):
            cap.graph.launch()
        found.append([one.get().tobytes() for one in arrays])
        cap.graph.close()
    assert found[0] == found[1]


def test_views_with_other_strides(cp: Any) -> None:
    """A block of a larger matrix: its leading dimension is the larger one's."""
    large = (cp.arange(256.0) % 7).reshape(16, 16)
    with ck.capture(lanes='auto', memory_limit=ROOM) as cap:
        one = large[:8, :8] @ large[8:, 8:]
        large[8:, :8] = 0
        other = large[:8, 8:] @ one
    want = values(large)
    cap.graph.launch()
    whole = want
    np.testing.assert_array_equal(values(other), whole[:8, 8:] @ (whole[:8, :8] @ whole[8:, 8:]))


def test_memory_that_the_call_does_not_show_keeps_the_order(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel of cuBLAS that has an address of other device memory may use what belongs to the library's handle."""
    a, b, c = matrices(sim, 3)
    monkeypatch.setattr(
        'capturekit.guard.library_calls.of_cublas',
        lambda name, args: [one for one in library_accesses.of_cublas(name, args) or () if one.address != b.data.ptr],
    )
    with ck.capture(lanes='auto') as cap:
        first, second = a @ b, a @ c
    report = cap.relaned
    assert [node.number for node in report.fixed] == [0] and [node.number for node in report.called] == [1]
    assert not report
    cap.graph.launch()
    np.testing.assert_allclose(values(first), values(a) @ values(b))
    np.testing.assert_allclose(values(second), values(a) @ values(c))

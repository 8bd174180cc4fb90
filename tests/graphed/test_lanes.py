"""``@graphed(lanes='auto')``: graphs of calls get the edges that their data needs, and calls give the same."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import capturekit as ck
from capturekit.graphed import policy
from capturekit.lanes import new_order
from tests.analysis.test_races import WRITES_FIRST
from tests.captured import values
from tests.examples import examples
from tests.graph.test_declared import kernels
from tests.graphed.test_faster_way import in_short as explained
from tests.lanes.test_relane import SAME, quiet, run, steps


def branches(cp: Any, x: Any) -> Any:
    return [cp.sqrt(x + n) * n for n in range(4)]


def test_independent_work_of_a_function_has_no_order(cp: Any) -> None:
    plain, fn = (ck.graphed(lambda x: branches(cp, x), **one) for one in ({}, {'lanes': 'auto'}))
    for call in range(5):
        x = cp.arange(8.0) + call
        assert (
            [values(one) for one in fn(x)] == [values(one) for one in plain(x)] == [values(o) for o in branches(cp, x)]
        )
    (variant,), (other,) = fn.variants, plain.variants
    assert variant.relaned and variant.relaned.compared == SAME and other.relaned is None
    assert variant.graph is not None and other.graph is not None
    ((once, several),) = [one.at_once for one in variant.relaned.graphs]
    assert (once, several) == (1, 4), 'each branch has memory of its own'
    assert other.graph.edges == [(n, n + 1) for n in range(len(other.graph.nodes) - 1)]
    assert not variant.graph.races()
    assert 'order of the nodes: as the data needs it, ' in explained(fn)
    assert f'first launch: {SAME}' in explained(fn) and 'order of the nodes' not in explained(plain)


def test_less_memory_lets_less_run_at_once(cp: Any) -> None:
    x, found = cp.arange(512.0), []
    for limit in (None, x.nbytes):
        fn = ck.graphed(lambda x: sum(branches(cp, x), x), lanes='auto', memory_limit=limit)
        for _ in range(3):
            np.testing.assert_allclose(values(fn(x)), values(sum(branches(cp, x), x)))
        (variant,) = fn.variants
        assert variant.relaned is not None
        found.append(len(variant.relaned.loosened))
        fn.clear()
    assert found[0] > found[1]


def sums(cp: Any, x: Any) -> Any:
    """Branches with two temporaries each, and a chain with forty."""
    y = x
    for _ in range(20):
        y = cp.sqrt(y) * 2 + x
    return [cp.sqrt(x * (n + 1)) * 2 + n for n in range(4)], y


def test_temporaries_of_a_function_are_packed_and_shared(cp: Any) -> None:
    memory, plainly = ck.MemoryGroup(), ck.MemoryGroup()
    fn = ck.graphed(lambda x: sums(cp, x), lanes='auto', memory=memory)
    plain = ck.graphed(lambda x: sums(cp, x), memory=plainly)
    for call in range(5):
        for size in (1 << 17, 1 << 16)[: 2 if call else 1]:
            x = cp.linspace(1, 2, size) + call
            (some, last), (others, end) = fn(x), sums(cp, x)
            plain(x)
            assert [cp.asnumpy(one).tobytes() for one in (*some, last)] == [
                cp.asnumpy(one).tobytes() for one in (*others, end)
            ]
    for variant, size in zip(sorted(fn.variants, key=lambda one: -one.calls), (1 << 20, 1 << 19)):
        assert variant.relaned and variant.relaned.compared == SAME
        assert variant.relaned.packed and variant.relaned.packed.settled
        assert variant.relaned.packed.before >= 48 * size and variant.relaned.packed.now <= 12 * size
        assert variant.graph is not None and variant.graph.memory_bytes < 6 * size, 'only its results'
    assert memory.memory_bytes <= 16 << 20, 'the second variant packs into what the first one has packed into'
    held = [group.memory_bytes + sum(v.graph.memory_bytes for v in one.variants if v.graph is not None)
            for one, group in ((fn, memory), (plain, plainly))]  # fmt: skip
    assert held[0] < 3 * held[1]
    fn.clear()
    assert memory.memory_bytes == 0


def test_temporaries_that_can_not_be_packed_are_shared_at_once(cp: Any) -> None:
    kernel = cp.RawKernel(WRITES_FIRST, 'writes_first')
    memory = ck.MemoryGroup()

    @ck.graphed(lanes='auto', memory=memory)
    def fn(x: Any) -> Any:
        kept = x * 3
        out = cp.zeros(x.size)
        kernel((1,), (x.size,), (out, x))
        return out + kept

    for call in range(4):
        x = cp.arange(1024.0) + call
        assert values(fn(x)) == values(x + 1 + x * 3)
    (variant,) = fn.variants
    assert variant.relaned is not None and variant.relaned.packed is None
    assert variant.graph is not None and memory.memory_bytes >= 3 * x.nbytes
    assert variant.graph.memory_bytes < x.nbytes, 'the arrays lie in the memory of the group'


def test_memory_of_calls_stays_below_its_limit(cp: Any) -> None:
    x, memory = cp.linspace(1, 2, 1 << 15), ck.MemoryGroup()
    fn = ck.graphed(lambda x: sums(cp, x), lanes='auto', memory_limit=20 * x.nbytes, memory=memory)
    for _ in range(3):
        some, last = fn(x)
        others, end = sums(cp, x)
        assert [values(one) for one in (*some, last)] == [values(one) for one in (*others, end)]
    (variant,) = fn.variants
    assert variant.relaned and variant.relaned.packed and variant.relaned.packed.settled
    assert variant.relaned.packed.before <= 20 * x.nbytes


@settings(quiet, max_examples=examples(60))
@given(program=st.lists(steps, min_size=1, max_size=10), fuse=st.booleans())
def test_ordinary_functions_give_the_same_bits(cp: Any, program: list[tuple[str, int, int]], fuse: bool) -> None:
    def work(*arrays: Any) -> Any:
        found = list(arrays)
        run(cp, program, found)
        return found

    fn = ck.graphed(work, lanes='auto', fuse=fuse)
    for call in range(4):
        pairs = [(cp.linspace(n, n + 1 + call, 16).reshape(4, 4),) * 2 for n in range(4)]
        mine, others = ([one.copy() for one in several] for several in zip(*pairs))
        results = [cp.asnumpy(one).tobytes() for one in (*fn(*mine), *mine)]
        assert results == [cp.asnumpy(one).tobytes() for one in (*work(*others), *others)]
    for variant in fn.variants:
        assert variant.relaned is None or variant.relaned.compared in ('', SAME) or fuse
        assert variant.graph is None or not variant.graph.races()
    fn.clear()


def test_what_a_call_changes_in_place_is_changed_once(cp: Any) -> None:
    kept = cp.zeros(8)

    @ck.graphed(lanes='auto')
    def fn(x: Any, y: Any) -> Any:
        cp.add(x, 1, out=x)
        cp.add(y, 2, out=y)
        cp.add(kept, 3, out=kept)
        return x * 2

    x, y = cp.zeros(8), cp.zeros(8)
    for call in range(1, 5):
        assert values(fn(x, y)) == [2.0 * call] * 8
        assert (values(x), values(y), values(kept)) == ([1.0 * call] * 8, [2.0 * call] * 8, [3.0 * call] * 8)
    assert fn.variants[0].relaned and fn.variants[0].relaned.compared == SAME


def test_numbers_that_calls_bring_are_still_compared(cp: Any) -> None:
    @ck.graphed(lanes='auto')
    def fn(x: Any, step: float) -> Any:
        return cp.sqrt(x) * step, cp.square(x) + step

    x = cp.arange(8.0)
    for call in range(16):
        got = fn(x, call / 7)
        assert [values(one) for one in got] == [(np.sqrt(values(x)) * (call / 7)).tolist(),
                                               (np.square(values(x)) + call / 7).tolist()]  # fmt: skip
    assert any(variant.relaned and variant.relaned.compared == SAME for variant in fn.variants)


def test_the_launch_that_differs_goes_back_to_the_recorded_order(
    sim: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    @ck.graphed(lanes='auto')
    def fn(x: Any) -> Any:
        for step in range(40):
            x = x + step if step % 2 else x * 0.5
        return x

    def broken(order: Any, touched: Any) -> list[tuple[int, int]]:
        """Only the arguments come first, and the results last."""
        last = len(touched) - 1
        return [(0, n) for n in range(1, last)] + [(n, last) for n in range(1, last)]

    monkeypatch.setattr(new_order, 'needed_edges', broken)
    monkeypatch.setattr(new_order, '_worse', lambda before, after: '')
    x = sim.arange(8.0)
    wanted = values(fn.__wrapped__(x))
    with caplog.at_level(logging.WARNING, 'capturekit'):
        for _ in range(4):
            assert values(fn(x)) == wanted
    (variant,) = fn.variants
    assert not variant.relaned and variant.graph is not None
    assert variant.graph.edges == [(n, n + 1) for n in range(len(variant.graph.nodes) - 1)]
    assert [one.message.partition(' (')[0] for one in caplog.records] == [
        'Graph.relane() is undone: the first launch gave something else than the recorded edges do'
    ]
    assert 'order of the nodes: as recorded: the first launch gave something else' in explained(fn)


def test_variants_in_several_parts_keep_their_order(cp: Any) -> None:
    @ck.graphed(lanes='auto')
    def checked(x: Any) -> Any:
        return branches(cp, x) if float(x.sum()) > 1 else x

    @ck.graphed(lanes='auto')
    def in_pieces(x: Any) -> Any:
        return x * cp.linalg.eigvalsh(x), x * 2

    for fn in (checked, in_pieces):
        for _ in range(4):
            fn(cp.eye(3) * 0.5)
        assert 'order of the nodes: as recorded: it is launched in several parts' in explained(fn)
        assert fn.variants[0].launches


def test_kernels_of_your_own_are_ordered_by_what_is_said(cp: Any) -> None:
    kernel, _half = kernels(cp)

    @ck.graphed(lanes='auto')
    def fn(x: Any) -> Any:
        outs = [cp.empty(8) for _ in range(3)]
        for out in outs:
            with ck.reads(x), ck.writes(out):
                kernel((1,), (8,), (out, x))
        return outs

    for call in range(4):
        assert [values(out) for out in fn(cp.arange(8.0) * call)] == [(np.arange(8.0) * call + 1).tolist()] * 3
    (variant,) = fn.variants
    assert variant.relaned and len(variant.relaned.declared) == 3 and variant.relaned.compared == SAME


def test_large_arguments_of_other_addresses(cp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would be nodes' own arguments otherwise, and each other address a search for the order."""
    monkeypatch.setattr(policy, 'AIMED_BYTES', 64)
    fn = ck.graphed(lambda x: branches(cp, x), lanes='auto')
    kept = []
    for call in range(4):
        kept.append(cp.arange(64.0) + call)
        assert [values(one) for one in fn(kept[-1])] == [values(one) for one in branches(cp, kept[-1])]
    (variant,) = fn.variants
    assert variant.aims == [] and variant.relaned and variant.relaned.compared == SAME


def test_a_graph_of_calls_is_still_not_relaned_by_hand(cp: Any) -> None:
    fn = ck.graphed(lambda x: x * 2)
    for _ in range(3):
        fn(cp.arange(4.0))
    (graph,) = [variant.graph for variant in fn.variants]
    assert graph is not None
    with pytest.raises(ck.UpdateError, match=r"Write @ck.graphed\(lanes='auto'\)"):
        graph.relane()

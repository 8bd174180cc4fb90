"""Values that one fused kernel hands to the next lie in few blocks of memory, and every bit is the same."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.driver.cuda import current
from capturekit.fusion import blocks as fusion_blocks
from tests.examples import examples
from tests.fusion.compared import SAME
from tests.fusion.test_joins import heat, roll

Choose = Callable[[Any], Any]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusion_blocks, 'LEAST_BYTES', 0)


def addresses(graph: ck.Graph) -> list[int]:
    """The addresses that kernels write, in the order of the nodes."""
    device = current().device
    touched = device.graph_accesses(graph.graph)
    nodes = device.graph_nodes(graph.graph)
    return [one.address for node in nodes for one in touched[node].accesses if one.writes]


@pytest.mark.parametrize('lanes', [None, 'auto'])
def test_two_blocks_take_turns(cp: Any, lanes: Any) -> None:
    u = cp.asarray(np.random.default_rng(0).random((64, 96), dtype='f4'))
    expected = heat(cp, u, 6).get().tobytes()
    with ck.capture(fuse=True, lanes=lanes) as cap:
        y = heat(cp, u, 6)
    for _ in range(3):
        y.fill(0)
        cap.graph.launch()
        assert y.get().tobytes() == expected, cap.fused
    assert cap.fused.compared == SAME and len(cap.fused.kernels) == 6
    written = addresses(cap.graph)
    assert written[-1] == int(y.data.ptr) and len(written) == 6
    if lanes is None:
        assert len({*written[:-1]}) == 2 and written[0] == written[2] == written[4], written


def test_small_arrays_stay_where_they_are(cp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    u = cp.asarray(np.random.default_rng(0).random((64, 96), dtype='f4'))
    found = []
    for least in (0, 1 << 20):
        monkeypatch.setattr(fusion_blocks, 'LEAST_BYTES', least)
        with ck.capture(fuse=True) as cap:
            heat(cp, u, 6)
        found.append(len({*addresses(cap.graph)}))
    assert found[0] < found[1]


def test_a_result_that_is_alone_in_its_block_needs_no_copy(cp: Any) -> None:
    """On a GPU, CuPy's pool may have put the result where arguments of the recording lay: then it is copied."""

    @ck.graphed(fuse=True)
    def work(u: Any) -> Any:
        return heat(cp, u, 7)

    for n in range(4):
        u = cp.asarray(np.random.default_rng(n).random((2000, 1024), dtype='f4'))
        assert (work(u) == heat(cp, u, 7)).all()
    (variant,) = work.variants
    names = [node.name for node in variant.graph.nodes]
    if current().simulated:
        assert 'capturekit_store' not in names and len(names) == 8, (names, variant.fused)


def stage(cp: Any, choose: Choose, u: Any, kept: list[Any]) -> Any:
    """One more array, made of the last one in a way that ends a run of kernels."""
    kind = choose((*['roll'] * 6, *['transposed'] * 2, 'rows', 'part', 'dtype', 'keep', 'in place', 'fill', 'size'))
    if kind == 'roll':
        return roll(cp, u, choose((1, 2, -1)), choose((0, 1))) + u * choose((2, 0.5))
    if kind == 'transposed':
        return u[::-1, ::-1] * 2 + u
    if kind == 'rows':
        return u - u.mean(axis=0)
    if kind == 'part':
        made = u * 2
        made[1:] = made[:-1].copy()
        return made
    if kind == 'dtype':
        return (u * 3).astype(choose(('f4', 'f8')))
    if kind == 'keep':
        kept.append(u)
        return u + 1
    if kind == 'in place':
        u += roll(cp, u, 1, 0)
        return u
    if kind == 'fill':
        made = cp.zeros(u.shape, u.dtype)
        made += u
        return made
    return cp.concatenate([u, u[::-1]])[: len(u) // 4 * 4] if len(u) < 40 else roll(cp, u[::2] + 1, 1, 1)


def run(cp: Any, seed: int, given: Any) -> list[Any]:
    choose = random.Random(seed).choice
    kept: list[Any] = []
    u = given * 1
    for _ in range(choose(range(3, 14))):
        u = stage(cp, choose, u, kept)
        u = u / (1 + abs(u))
    return [u, *kept[-2:]]


def bits(arrays: list[Any]) -> list[bytes]:
    return [one.get().tobytes() for one in arrays]


def test_random_stages_have_equal_bits(cp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    moves, real = [], fusion_blocks.housed
    monkeypatch.setattr(fusion_blocks, 'housed', lambda *args: moves.append(real(*args)) or moves[-1])
    given = cp.asarray(np.random.default_rng(0).uniform(-1, 1, (24, 24)).astype('f4'))
    for seed in range(examples(80)):
        expected = bits(run(cp, seed, given))
        with ck.capture(fuse=True) as cap:
            kept = run(cp, seed, given)
        for _ in range(2):
            for one in kept:
                one.fill(0)
            cap.graph.launch()
            assert bits(kept) == expected, (seed, cap.fused)
        assert 'differs' not in cap.fused.compared, (seed, cap.fused)
        cap.graph.close()
    assert sum(map(bool, moves)) > examples(80) // 8

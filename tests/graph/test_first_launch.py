"""What the first launch of a changed graph compares: bytes that somebody can read, and no others."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import capturekit as ck
from capturekit.driver.cuda import current
from capturekit.graph import graph_facts
from capturekit.graph.first_launch import FirstLaunch
from capturekit.launch.graph_memory import AskedBytes

UNIT = 512


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 4 * UNIT))))
def test_each_block_in_use_has_its_own_end(handed_out: list[tuple[int, int]]) -> None:
    """A block that shares bytes with a later one was dropped before. What is said of memory in no block is unused."""
    asked, in_use = AskedBytes(), dict[int, tuple[int, int]]()
    for place, size in handed_out:
        low, end = place * UNIT, place * UNIT + size
        high = -(-end // UNIT) * UNIT
        asked.note(SimpleNamespace(ptr=low), size)
        in_use = {at: one for at, one in in_use.items() if at >= high or one[1] <= low} | {low: (end, high)}
    pieces = asked.behind()
    assert pieces == sorted(pieces)
    behind = {n for low, high in pieces for n in range(low, high)}
    used = {n for low, (_end, high) in in_use.items() for n in range(low, high)}
    assert behind & used == {n for end, high in in_use.values() for n in range(end, high)}


def test_blocks_of_no_bytes_have_no_end(sim: Any) -> None:
    asked = AskedBytes()
    assert asked.note(SimpleNamespace(ptr=0), 0).ptr == 0
    assert asked.behind() == []


@pytest.mark.parametrize(
    ('byte', 'unseen', 'apart'),
    [
        (0, [(4, 512)], True),
        (3, [(4, 512)], True),
        (4, [(4, 512)], False),
        (511, [(4, 512)], False),
        (511, [(4, 511)], True),
        (512, [(4, 512)], True),
        (600, [(4, 512), (516, 1024)], False),
        (300, [], True),
        (300, [(-100, 300), (301, 2000)], True),
        (1023, [(-100, 300), (301, 2000)], False),
    ],
)
def test_bytes_that_nobody_reads_may_differ(cp: Any, byte: int, unseen: list[tuple[int, int]], apart: bool) -> None:
    """Two graphs that write the same but for one byte; ``unseen`` counts from the array's first byte."""
    to, base = cp.zeros(1024, 'u1'), cp.arange(1024).astype('u1')
    other = base.copy()
    other[byte] = 255 - other[byte]
    graphs = []
    for source in (base, other):
        with ck.capture() as cap:
            to[...] = source
        graphs.append(cap.graph)
    low = int(to.data.ptr)
    recorded: Any = SimpleNamespace(graphExec=graphs[0].graphExec)
    blocks: Any = SimpleNamespace(words=lambda *_: 'to')
    ends = [(low + a, low + b) for a, b in unseen]
    first = FirstLaunch(current(), recorded, [(low, low + 1024)], blocks, unseen=ends)
    said = first.run(graphs[1].graphExec, cp.cuda.get_current_stream().ptr)
    assert said == ('1 byte differ, the first in to' if apart else '')
    if apart:
        assert (to == base).all()


def whole_blocks(_platform: Any, _definitions: Any, _g: int, blocks: Any, _without: str, free: Any) -> Any:
    """What a launch may write where nothing is known of a node, as of CUB's: the graph's memory that is not free."""
    return [piece for low, high in blocks.own_ranges() for piece in free.rest(low, high)]


@pytest.mark.parametrize('known', [True, False])
def test_a_dead_temporary_behind_an_array_may_differ(cp: Any, monkeypatch: pytest.MonkeyPatch, known: bool) -> None:
    """Its first block goes to the result, of which four bytes are anybody's; the others become free."""
    monkeypatch.setattr(graph_facts, 'written_ranges', whole_blocks)
    if not known:
        monkeypatch.setattr(AskedBytes, 'behind', lambda _self: [])
    x = cp.arange(300, dtype='f4')
    with ck.capture() as cap:
        twice = x * 2
        more = twice + 1
        del twice
        one = x[:1] + 3
    report = cap.graph.fuse()
    for number in range(2):
        with nullcontext() if known or number else pytest.warns(RuntimeWarning, match='bytes differ'):
            cap.graph.launch()
        assert one.get().tolist() == [3] and (more == x * 2 + 1).all()
    assert bool(report) is known
    assert report.compared.startswith('the same' if known else 'differs')

"""What aims nodes at arrays, by itself: which words it writes, in which order of things, and what it takes back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.graphed import aiming
from capturekit.graphed.aiming import AimedArray, Aimer
from capturekit.model.errors import UpdateError

MB = 1 << 20


class Array:
    """An array of so many bytes at an address."""

    def __init__(self, at: int, nbytes: int) -> None:
        self.data, self.nbytes, self.size, self.itemsize = SimpleNamespace(ptr=at), nbytes, nbytes, 1
        self.shape, self.strides = (nbytes,), (1,)


class Slot:
    """A node's addresses, and those that the graph has been given; one may be refused."""

    def __init__(self, **words: int) -> None:
        self.words, self.given, self.runs, self.refused = dict(words), dict(words), 0, -1

    def write(self, place: str, address: int) -> None:
        self.words[place] = address

    def run(self) -> int:
        self.runs += 1
        if self.refused in self.words.values():
            return 1
        self.given = dict(self.words)
        return 0


class Nodes:
    """As much of a graph's state as an Aimer asks for.

    ``times_relaxed`` counts the times that a capture was open elsewhere.
    """

    def __init__(self, *slots: Slot) -> None:
        self.slots, self.extents, self.times_relaxed = slots, list[Any](), 0
        vars(self).update(made=object(), index=object(), trial=None)
        self.moves = 0

    def movable(self, extents: list[tuple[int, int, bool]]) -> list[list[Any]]:
        self.extents = extents
        return [
            [
                SimpleNamespace(slot=slot, place=place, address=address)
                for slot in self.slots
                for place, address in slot.words.items()
                if low <= address < high
            ]
            for low, high, _alone in extents
        ]

    def moved_bytes(self) -> int:
        return self.moves

    def runners(self, slots: list[Slot]) -> list[Any]:
        return [slot.run for slot in slots]

    @contextmanager
    def relaxed(self) -> Iterator[None]:
        self.times_relaxed += 1
        yield


@pytest.fixture(autouse=True)
def answering(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes answer for themselves what is asked of a graph by functions."""

    def answer(name: str, asked: Any) -> Any:
        return lambda of, *given: getattr(of, name)(*given) if isinstance(of, Nodes) else asked(of, *given)

    for name in ('movable', 'moved_bytes', 'runners'):
        monkeypatch.setattr(aiming, name, answer(name, vars(aiming)[name]))


def aimer(*slots: Slot) -> tuple[Any, Nodes]:
    """An argument at 100 and a result at 200, of ten bytes each."""
    nodes: Any = Nodes(*slots)
    targets = [AimedArray('argument', 0, Array(100, 10), 4), AimedArray('result', 0, Array(200, 10), 2)]
    return Aimer(nodes, targets), nodes


def test_only_nodes_that_use_what_lies_elsewhere_now_are_changed() -> None:
    slots = Slot(a=100), Slot(b=200), Slot(c=101, d=201)
    aim, nodes = aimer(*slots)
    assert nodes.extents == [(100, 110, True), (200, 210, False)]
    before = [slot.runs for slot in slots]
    for addresses in ([100, 200], [100, 400], [100, 400], [300, 400]):
        aim(addresses)
    assert [slot.runs - n for slot, n in zip(slots, before)] == [1, 1, 2]
    assert [slot.given for slot in slots] == [{'a': 300}, {'b': 400}, {'c': 301, 'd': 401}]


def test_a_refused_change_leaves_all_nodes_as_they_were() -> None:
    slots = Slot(a=100), Slot(b=100, c=200)
    aim, _nodes = aimer(*slots)
    aim([300, 400])
    slots[1].refused = 600
    with pytest.raises(UpdateError, match='error 1'):
        aim([500, 600])
    assert [slot.given for slot in slots] == [{'a': 300}, {'b': 300, 'c': 400}]
    assert aim([500, 700]) is True
    assert [slot.given for slot in slots] == [{'a': 500}, {'b': 500, 'c': 700}]


@pytest.mark.parametrize('what', ['made', 'index'])
def test_a_graph_that_was_changed_is_aimed_anew(what: str) -> None:
    slot = Slot(a=100, b=200)
    aim, nodes = aimer(slot)
    aim([300, 400])
    slot.words, slot.given = {'a': 100, 'b': 200}, {}  # as recorded
    vars(nodes)[what] = object()
    aim([300, 400])
    assert slot.given == {'a': 300, 'b': 400}


def test_a_graph_that_uses_other_memory_since_is_not_aimed() -> None:
    slot = Slot(a=100, b=200)
    aim, nodes = aimer(slot)
    slot.words = {'a': 100, 'b': 500}
    vars(nodes)['index'] = object()
    for _ in range(3):  # not the first time alone
        with pytest.raises(UpdateError, match='other memory'):
            aim([300, 400])
    assert slot.given == {'a': 100, 'b': 200}


def dear_ones(count: int, argument: int, result: int, moved: int = 0) -> list[str]:
    """The kinds of an argument and a result of so many bytes that are too dear, where so many nodes have both."""
    targets = [
        AimedArray('argument', 0, Array(MB, argument), aiming.ARGUMENT),
        AimedArray('result', 0, Array(64 * MB, result), aiming.RESULT),
    ]
    nodes: Any = Nodes(*[Slot(a=MB, b=64 * MB) for _ in range(count)])
    nodes.moves = moved
    platform: Any = SimpleNamespace(simulated=True)
    return [one.kind for one in Aimer(nodes, targets).too_dear(platform)]


@pytest.mark.parametrize(
    ('count', 'argument', 'result', 'dear'),
    [
        (1, 2 * MB, 4 * MB, []),
        (1, 2 * MB, MB, ['result']),
        (1, MB // 4, 4 * MB, ['argument']),
        (3, 2 * MB, 4 * MB, ['argument', 'result']),
    ],
)
def test_what_is_copied_sooner_is_too_dear(count: int, argument: int, result: int, dear: list[str]) -> None:
    """2 us for a node, 4 TB in a second: an argument's bytes go through memory four times, a result's twice."""
    assert dear_ones(count, argument, result) == dear


@pytest.mark.parametrize(('us', 'dear'), [(25, ['argument', 'result']), (27, [])])
def test_nothing_is_too_dear_where_the_device_is_the_bound(us: int, dear: list[str]) -> None:
    """A call and three nodes take the host 26 us."""
    assert dear_ones(3, 2 * MB, 4 * MB, int(us * 1e-6 * 4e12)) == dear


@pytest.mark.parametrize(('slow', 'dear'), [([0], []), ([0, 1, 3], []), (range(99), ['result'])])
def test_one_slow_moment_does_not_make_nodes_dear(slow: Any, dear: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy takes 16 us here, and changing a node 1 us, but 100 us when the host is interrupted."""
    clock = SimpleNamespace(now=0.0, changes=0)

    class Timed(Slot):
        def run(self) -> int:
            if clock.measuring:
                clock.now += 100e-6 if clock.changes in slow else 1e-6
                clock.changes += 1
            return super().run()

    monkeypatch.setattr(aiming, 'time', SimpleNamespace(perf_counter=lambda: clock.now))
    monkeypatch.setattr(aiming, '_rate', lambda platform: 4e12)
    clock.measuring = False
    nodes: Any = Nodes(Timed(a=64 * MB))
    aim = Aimer(nodes, [AimedArray('result', 0, Array(64 * MB, 32 * MB), aiming.RESULT)])
    clock.measuring = True
    assert [one.kind for one in aim.too_dear(SimpleNamespace(simulated=False))] == dear  # type: ignore[arg-type]


def test_a_node_that_reaches_beyond_a_result_is_not_moved(cp: Any) -> None:
    x = cp.arange(512.0)
    with ck.capture() as cap:
        wide = x * 2.0
    with pytest.raises(UpdateError):
        Aimer(cap.graph._state, [AimedArray('result', 0, wide[:256], 2)])
    assert Aimer(cap.graph._state, [AimedArray('result', 0, wide, 2)]).words[0]
    cap.graph.launch()
    assert wide.get().tolist() == (np.arange(512.0) * 2).tolist()

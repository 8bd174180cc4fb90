"""``checks='later'`` with several threads: each failed check is undone before anything else is launched."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

import capturekit as ck
from capturekit.functions.kinds import Kind
from capturekit.functions.variant import Variant


def in_threads(works: list[Any]) -> list[BaseException]:
    """What they raise."""
    raised: list[BaseException] = []

    def tried(work: Any) -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=tried, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return raised


@pytest.mark.parametrize('checks', ['now', 'later'])
def test_calls_of_other_kinds_wait_for_each_other(sim: Any, checks: Any) -> None:
    begun, go_on, answered = threading.Event(), threading.Event(), threading.Event()

    def work(x: Any) -> Any:
        if x.size == 1:
            begun.set()
            assert go_on.wait(20)
        return x * 2

    fn = ck.graphed(work, checks=checks)
    found = []

    def other() -> None:
        assert begun.wait(20)
        fn(sim.ones(2))
        answered.set()

    def seen() -> None:
        assert begun.wait(20)
        found.append(answered.wait(1.0 if checks == 'later' else 20))
        go_on.set()

    assert in_threads([lambda: fn(sim.ones(1)), other, seen]) == []
    assert found == [checks == 'now']
    assert answered.is_set()


def test_no_failed_check_is_forgotten(sim: Any) -> None:
    """What the launch of a call with a failed check has changed is given back, whatever other threads call."""

    def work(x: Any, total: Any) -> Any:
        total += x
        if float(total.sum()) > 40:
            total *= 0.5
        return total * 3

    fn = ck.graphed(work, checks='later')
    sizes = [2, 3, 4]
    states = {size: sim.zeros(size) for size in sizes}

    def calls(size: int) -> None:
        plain, x = sim.zeros(size), sim.ones(size)
        with sim.cuda.Stream(non_blocking=True):
            for _ in range(40):
                wanted = work(x, plain)
                found = fn(x, states[size])
                last = fn.last
                if last is not None and not last.holds():
                    found = work(x, states[size])  # as the page on graphed functions says: the call is to be made again
                assert found.get().tolist() == wanted.get().tolist()
                assert states[size].get().tolist() == plain.get().tolist()

    raised = in_threads([lambda size=size: calls(size) for size in sizes])  # type: ignore[misc]
    assert raised == []


def summing(sim: Any) -> tuple[Any, Any]:
    """A function that is recorded and adds to an array from outside, and this array; from 30 on it halves that."""
    total = sim.zeros(2)

    @ck.graphed(checks='later')
    def work(x: Any) -> Any:
        nonlocal total
        total += x
        if float(total[0]) > 30:
            total *= 0.5
        return total * 2

    for _ in range(4):
        work(sim.ones(2))
    assert work.variants[0].launches >= 2
    return work, total


def test_a_failed_call_is_undone_once(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads ask for it at once: the second one has launched again when the first one puts the array back."""
    work, total = summing(sim)
    work(sim.ones(2) * 50)
    last, restore = work.last, Variant.restore
    asked, answered = threading.Event(), threading.Event()

    def slowly(variant: Variant, error: Any = None) -> None:
        if not asked.is_set():
            asked.set()
            answered.wait(0.5)
        restore(variant, error)

    monkeypatch.setattr(Variant, 'restore', slowly)

    def call() -> None:
        assert asked.wait(20)
        assert work(sim.ones(2)).get().tolist() == [10.0, 10.0]
        answered.set()

    outcomes = []
    assert in_threads([lambda: outcomes.append(last.holds()), call]) == []
    assert outcomes == [False]
    assert total.get().tolist() == [5.0, 5.0]


def test_clear_undoes_a_failed_call_before_the_next_one(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    work, total = summing(sim)
    work(sim.ones(2) * 50)
    closing, answered, close = threading.Event(), threading.Event(), Kind.close

    def slowly(kind: Kind) -> int:
        closing.set()
        answered.wait(0.5)
        return close(kind)

    monkeypatch.setattr(Kind, 'close', slowly)

    def call() -> None:
        assert closing.wait(20)
        assert work(sim.ones(2)).get().tolist() == [10.0, 10.0]
        answered.set()

    assert in_threads([work.clear, call]) == []
    assert total.get().tolist() == [5.0, 5.0]


def test_calls_are_asked_for_while_their_variant_is_closed(sim: Any) -> None:
    work, _total = summing(sim)
    work(sim.ones(2))
    first = work.last
    work(sim.ones(2))
    second = work.last

    class GoneThrough(weakref.WeakSet[Any]):
        def __iter__(self) -> Iterator[Any]:
            for one in super().__iter__():
                assert in_threads([first.holds, second.holds]) == []
                yield one

    work.variants[0].unsettled = GoneThrough([first, second])
    work.clear()
    assert first.holds() and second.holds()


def test_a_failed_call_is_undone_after_an_interrupt(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C comes while the next call undoes it: the call after that does."""
    work, total = summing(sim)
    work(sim.ones(2) * 50)

    def interrupted(variant: Variant, error: Any = None) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Variant, 'restore', interrupted)
        work(sim.ones(2))
    assert work(sim.ones(2)).get().tolist() == [10.0, 10.0]
    assert total.get().tolist() == [5.0, 5.0]

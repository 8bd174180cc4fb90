"""``checks='later'``, and several threads: each failed check is undone before anything else is launched."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import capturekit as ck
from capturekit.graphed.kinds import Kind
from capturekit.graphed.variant import Variant


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


def test_checks_that_hold_and_that_do_not(sim: Any) -> None:
    w = sim.zeros(4)

    @ck.graphed(checks='later')
    def fn(x: Any) -> Any:
        w[...] = w + 1
        return x * 2 if float(x.sum()) > 10 else x + 1

    assert fn.last is None
    for _ in range(4):
        fn(sim.arange(4.0))
        if fn.last is not None:
            assert fn.last.holds()
    fn(sim.arange(4.0) + 5)
    bad = fn.last
    assert bad is not None and not bad.holds()
    with pytest.raises(ck.AssumptionError):
        bad.settle()
    assert w.get().tolist() == [4.0] * 4
    fn(sim.arange(4.0) + 5)  # and without asking
    for _ in range(3):
        fn(sim.arange(4.0))
    assert fn.last is not None and fn.last.holds()
    assert w.get().tolist() == [7.0] * 4
    fn(sim.arange(4.0) + 5)
    late = fn.last
    for i in range(150):
        fn(sim.arange(4.0) + (5 if i % 3 else 0))
    assert late is not None and not late.holds()  # it is asked too late to know


@pytest.mark.parametrize('how', ['clear', 'evict'])
def test_they_are_told_before_a_graph_goes(sim: Any, how: str) -> None:
    total = sim.zeros(3)

    @ck.graphed(checks='later', limit=1)
    def fn(x: Any) -> Any:
        total[...] = total + x
        return x * 2 if float(x[0]) > 5 else x

    for _ in range(3):
        fn(sim.ones(3))
    held = total.get().tolist()
    fn(sim.full(3, 9.0))
    call = fn.last
    if how == 'evict':
        fn(sim.ones(5)[:3] * 1)
        fn(sim.ones((1, 3))[0])
    fn.clear()
    assert call is not None and not call.holds()
    assert how == 'evict' or total.get().tolist() == held


def within_another_one(fn: Any, x: Any) -> Any:
    return ck.graphed(lambda x: fn(x))(x)


def with_what_can_not_be_compared(fn: Any, x: Any) -> Any:
    cycle: list[Any] = []
    cycle.append(cycle)
    return fn(x, cycle)


def of_one_more_kind(fn: Any, x: Any) -> Any:
    return fn(x, 'one more')


@pytest.mark.parametrize('call', [within_another_one, with_what_can_not_be_compared, of_one_more_kind])
def test_the_last_call_is_none_where_no_kind_answers(sim: Any, call: Callable[[Any, Any], Any]) -> None:
    """Who asks an earlier call that did not hold runs the function again, which changes its arrays twice."""
    over: Any = ck.graphed(checks='later')
    fn = over(lambda x, _other=None: x * 2 if float(x[0]) > 5 else x)
    for number in range(200):  # new kinds of calls are not watched after that
        fn(sim.ones(3), f'{number}')
    for _ in range(4):
        fn(sim.ones(3))
    fn(sim.full(3, 9.0))
    earlier = fn.last
    call(fn, sim.full(3, 9.0))
    assert fn.last is None
    assert not earlier.holds()


def test_threads_count_every_call(sim: Any) -> None:
    class Counter:
        n = 0

    one = Counter()

    def work(x: Any) -> Any:
        one.n += 1
        return x * 2

    fn, before = ck.graphed(work), sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        calls = [lambda size=size: [fn(sim.ones(size)) for _ in range(40)] for size in (2, 3, 4)]  # type: ignore[misc]
        assert in_threads(calls) == []
    finally:
        sys.setswitchinterval(before)
    assert one.n == 120

"""``checks='later'`` with several threads: each failed check is undone before anything else is launched."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import capturekit as ck


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

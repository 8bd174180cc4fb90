"""``parallel()``: branches on lanes, by assignment; the results are the same whatever the lanes. Priorities."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import capturekit as ck
from capturekit.driver.cuda import current
from capturekit.guard import GUARD
from capturekit.recorder import capture as blocks
from capturekit.recorder import forks
from capturekit.recorder.forks import ASSIGNMENTS, assigned
from tests.captured import simulated
from tests.examples import examples

COUNTS = st.integers(0, 40)
LANES = st.integers(1, 12)


def chained(cp: Any, x: Any, count: int) -> list[Callable[[], Any]]:
    """Branches of several operations each, with arrays of their own in between."""
    return [lambda n=n: cp.sin(x * (n + 1)) + cp.sqrt(x + n) for n in range(count)]  # type: ignore[misc]


def values(cp: Any, results: list[Any]) -> list[Any]:
    return [cp.asnumpy(result).tolist() for result in results]


# -- assignments ----------------------------------------------------------------------------------------------


@given(COUNTS, LANES, st.sampled_from(sorted(ASSIGNMENTS)))
def test_an_assignment_covers_each_branch_and_each_lane(count: int, lanes: int, name: str) -> None:
    numbers = assigned(count, lanes, name)
    assert len(numbers) == count
    assert set(numbers) == set(range(min(count, lanes)))
    shares = Counter(numbers).values()
    assert max(shares, default=0) - min(shares, default=0) <= 1


# -- results --------------------------------------------------------------------------------------------------


@settings(max_examples=examples(50), deadline=None)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=7),
    st.booleans(),
    st.integers(0, 5),
    st.sampled_from(['round robin', 'blocks', 'numbers']),
)
def test_results_are_the_same_whatever_the_lanes(numbers: list[int], captured: bool, seed: int, how: str) -> None:
    with simulated(seed) as cp:
        x = cp.linspace(0, 1, 16)
        branches = chained(cp, x, len(numbers))
        expected = values(cp, [branch() for branch in branches])
        args: dict[str, Any] = {'assign': numbers} if how == 'numbers' else {'assign': how, 'lanes': max(numbers) + 1}
        if captured:
            with ck.capture() as cap:
                results = cap.parallel(*branches, **args)
            cap.graph.launch()
            forked = {lane.number for lane in cap.recording.lanes} - {0}
            used = set(assigned(len(numbers), args.get('lanes'), args['assign']))
            assert len(forked) == (0 if len(used) == 1 else len(used))
        else:
            results = ck.parallel(*branches, **args)
        assert values(cp, results) == expected
        results.clear()
        if captured:
            cap.graph.close()


def test_a_branch_runs_on_its_lane_in_the_order_given(sim: Any) -> None:
    seen: list[tuple[str, int]] = []

    def told(name: str) -> Callable[[], str]:
        def branch() -> str:
            seen.append((name, sim.cuda.get_current_stream().ptr))
            return name

        return branch

    before = sim.cuda.get_current_stream()
    assert ck.parallel(*map(told, 'abcd'), lanes=2, assign='blocks') == ['a', 'b', 'c', 'd']
    assert sim.cuda.get_current_stream() == before
    names, streams = zip(*seen)
    assert names == ('a', 'b', 'c', 'd')
    assert streams[0] == streams[1] != streams[2] == streams[3]
    assert before.ptr not in streams


def test_one_lane_is_the_current_stream(sim: Any) -> None:
    stream = sim.cuda.Stream(non_blocking=True)
    with stream:
        assert ck.parallel(*[lambda: sim.cuda.get_current_stream().ptr] * 3, lanes=1) == [stream.ptr] * 3
        assert ck.parallel(lambda: sim.cuda.get_current_stream().ptr, lanes=4) == [stream.ptr]
        assert ck.parallel(*[lambda: sim.cuda.get_current_stream().ptr] * 2, assign=[1, 1]) == [stream.ptr] * 2
    assert ck.parallel() == []


def test_branches_that_fork_are_not_ordered_among_each_other(sim: Any) -> None:
    """A lane that was joined into another lane is not taken: its next work would wait for what it has done there."""
    x = sim.arange(3.0)

    def inner(n: int) -> Any:
        return ck.parallel(lambda: x + n, lambda: x * n)

    with ck.capture() as cap:
        found = cap.parallel(lambda: inner(2), lambda: inner(3))
    assert len(cap.graph.nodes) == 4 and len(cap.recording.lanes) == 7
    assert cap.graph.edges == []
    cap.graph.launch()
    assert values(sim, [a + b for a, b in found]) == [[2.0, 5.0, 8.0], [3.0, 7.0, 11.0]]


# -- faults ---------------------------------------------------------------------------------------------------


class Own(Exception):
    """The user's."""


@pytest.mark.parametrize('captured', [False, True])
def test_an_exception_of_a_branch_comes_out_unchanged(sim: Any, captured: bool) -> None:
    """And leaves a capture in which it is caught good."""
    x, own, called = sim.arange(3.0), Own('a branch'), list[str]()

    def fails() -> None:
        called.append('fails')
        raise own

    with ck.capture() if captured else contextlib.nullcontext(ck) as forks:
        with pytest.raises(Own) as raised:
            forks.parallel(lambda: x + 1, fails, lambda: called.append('later'))
        y = x * 2
    assert raised.value is own and called == ['fails']
    if captured:
        forks.graph.launch()
    assert sim.asnumpy(y).tolist() == [0, 2, 4]


@pytest.mark.parametrize(
    ('error', 'said', 'args'),
    [
        (ValueError, 'lanes must be 1 or more', {'lanes': 0}),
        (ValueError, r'one number of lanes, got \[1, 2\]: ck.experiment\(\) tries several', {'lanes': [1, 2]}),
        (TypeError, 'lanes must be a whole number', {'lanes': '2'}),
        (ValueError, "'round robin', 'blocks'", {'assign': 'random'}),
        (TypeError, 'a name or a sequence', {'assign': {0, 1}}),
        (TypeError, 'must be a whole number', {'assign': [0, 1.0]}),
        (ValueError, '0 or more', {'assign': [0, -1]}),
        (ValueError, 'each of 2 branches, got 3', {'assign': [0, 1, 1]}),
        (ValueError, 'below 2, got 2', {'assign': [0, 2], 'lanes': 2}),
        (TypeError, 'priority must be', {'priority': [0, 'high']}),
        (ValueError, 'each of 2 lanes, got 3', {'priority': [0, 0, 0]}),
        (ValueError, '32 bits', {'priority': 2**31}),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_called(
    sim: Any, error: type[Exception], said: str, args: dict[str, Any]
) -> None:
    called: list[int] = []
    branch = lambda: called.append(1)  # noqa: E731
    with pytest.raises(error, match=said):
        ck.parallel(branch, branch, **args)
    with ck.capture() as cap, pytest.raises(error, match=said):
        cap.parallel(branch, branch, **args)
    assert not called
    assert len(cap.recording.lanes) == 1


# -- priorities -----------------------------------------------------------------------------------------------


def test_a_priority_goes_with_the_number_of_the_lane(sim: Any) -> None:
    tell = lambda: sim.cuda.get_current_stream().priority  # noqa: E731
    assert ck.parallel(*[tell] * 4, lanes=2, priority=(-1, -2)) == [-1, -2, -1, -2]
    assert ck.parallel(*[tell] * 2, assign=[2, 0], priority=(-1, -2, -3)) == [-3, -1]
    assert ck.parallel(tell, tell, lanes=1, priority=-4) == [-4, -4]
    assert ck.parallel(tell, lanes=3, priority=(None, -1, -1)) == [0]
    with ck.fork(3, priority=(0, -5, None)) as lanes:
        assert [lane.stream.priority for lane in lanes] == [0, -5, 0]


# -- lanes and the memory of eager arrays -----------------------------------------------------------------------


def lanes_of(cp: Any, parent: Any, n: int = 2) -> set[int]:
    with parent, ck.fork(n) as lanes:
        return {lane.ptr for lane in lanes}


def test_eager_lanes_serve_forks_of_the_same_stream_only(sim: Any) -> None:
    """A block that was allocated on a lane is handed out on that lane again: whoever read it must have been joined."""
    first, second = (sim.cuda.Stream(non_blocking=True) for _ in range(2))
    mine = lanes_of(sim, first)
    assert lanes_of(sim, first) == mine
    assert not lanes_of(sim, second) & mine
    assert lanes_of(sim, first) == mine


def test_the_stock_of_lanes_is_bounded(sim: Any) -> None:
    parents = [sim.cuda.Stream(non_blocking=True) for _ in range(100)]
    for parent in parents:
        lanes_of(sim, parent, 1)
    stock = current().device.spare_streams
    assert len(stock) <= 64
    assert lanes_of(sim, parents[-1], 1) == lanes_of(sim, parents[-1], 1)
    assert blocks.LANE_STREAMS is forks.LANE_STREAMS  # captures give back to the stock that forks take from


def test_captures_use_lanes_again(sim: Any) -> None:
    x = sim.zeros(4)
    seen = set()
    for _ in range(5):
        with ck.capture() as cap:
            with cap.fork(2) as lanes:
                seen |= {lane.ptr for lane in lanes}
                with lanes[0]:
                    x + 1
        cap.graph.close()
    assert len(seen) == 2


def test_lanes_is_a_number_or_a_list(sim: Any) -> None:
    """As in ``ck.experiment``; several numbers of lanes are for that."""
    x = sim.arange(4.0)
    work = [lambda: x + 1, lambda: x + 2, lambda: x + 3]
    for lanes in (2, [2], (2,)):
        with ck.capture() as cap:
            cap.parallel(*work, lanes=lanes)
        assert len(cap.recording.lanes) == 3  # with the origin


# -- the lanes of a fork have what remedies tell people to write ------------------------------------------------------


@pytest.mark.parametrize('call', ['synchronize', 'done'])
def test_what_a_lane_can_not_answer_is_refused(cp: Any, call: str) -> None:
    """The remedy, word for word, with a lane in the place of its streams."""
    x = cp.arange(4.0)
    with ck.capture() as cap:
        with cap.fork(2) as (side, stream):
            with side:
                y = x * 2
            with pytest.raises(ck.SynchronizationError) as refused:
                ask = getattr(side, call)
                ask()
            assert refused.value.lane == 1
            if call == 'synchronize':
                assert '`cap.join(side)` or `stream.wait_event(side.record())`' in refused.value.remedy
            stream.wait_event(side.record())
            with stream:
                y += 1
        cap.join(side)
    cap.graph.launch()
    assert np.array_equal(y.get(), np.arange(4.0) * 2 + 1)


def test_eager_lanes_wait_and_answer(cp: Any) -> None:
    x = cp.arange(4.0)
    with ck.fork(2) as (left, right):
        with left:
            y = x * 2
        right.wait_event(left.record())
        with right:
            y += 1
        right.synchronize()
        assert right.done and left.done
    assert np.array_equal(y.get(), np.arange(4.0) * 2 + 1)


def test_the_parents_allocator_notices_the_fork(cp: Any) -> None:
    """What a lane reads must not go to the stream that it was forked from, although that stays current."""
    x = cp.arange(4.0)
    with ck.capture() as cap:
        before = x + 1
        address = before.data.ptr
        with cap.fork(1) as (side,):
            with side:
                y = before * 2
            with cap.fork(1):
                del before
                z = x + 5
                assert z.data.ptr != address
    cap.graph.launch()
    assert np.array_equal(y.get(), (np.arange(4.0) + 1) * 2) and np.array_equal(z.get(), np.arange(4.0) + 5)


@pytest.mark.parametrize('lines', [True, False])
@pytest.mark.parametrize('forked', [True, False], ids=['a lane is entered', 'lanes are forked'])
def test_a_lost_capture_is_told_when(sim: Any, forked: bool, lines: bool) -> None:
    with pytest.raises(ck.InvalidatedError), ck.capture(lines=lines) as cap, contextlib.ExitStack() as stack:
        left, right = stack.enter_context(cap.fork(2)) if forked else (cap, cap.fork(1))
        with left if forked else contextlib.nullcontext():
            with GUARD.inside, contextlib.suppress(sim.cuda.runtime.CUDARuntimeError):
                left.stream.synchronize()
        with right:
            pytest.fail('a lost capture was gone on with')


def test_a_fork_is_checked_where_it_is_entered(cp: Any) -> None:
    with ck.capture() as cap:
        early = cap.fork(2)
        with ck.capture(), pytest.raises(ck.UnmatchedError, match='Another capture'):
            early.__enter__()

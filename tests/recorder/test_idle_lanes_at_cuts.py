"""A capture that is cut in parts keeps all of its lanes, also those that have no work yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import capturekit as ck

Cut = Callable[[Any, Any, Any], None]


def decided(cp: Any, cap: Any, x: Any) -> None:
    with cap.if_(cp.ones((), bool)):
        x += 1


def repeated(cp: Any, cap: Any, x: Any) -> None:
    going = cp.ones((), bool)
    with cap.while_(going):
        x += 1
        going[...] = False


def chosen(cp: Any, cap: Any, x: Any) -> None:
    with cap.switch(cp.ones((), 'i4'), 2) as cases:
        with cases[0]:
            x += 7
        with cases[1]:
            x += 1


def read(_cp: Any, _cap: Any, x: Any) -> None:
    x += 1
    assert float(x.sum()) == 3


def in_a_part(cp: Any, _cap: Any, x: Any) -> None:
    x += 1
    cp.linalg.eigvalsh(cp.eye(3))


CUTS: dict[str, Cut] = {cut.__name__: cut for cut in (decided, repeated, chosen, read, in_a_part)}


@contextmanager
def cut_capture(cp: Any, cut: Cut, *, strict: bool = True, times: int = 1) -> Iterator[Any]:
    options: dict[str, Any] = {'pieces': True} if cut is in_a_part else {}
    if cut is read:
        options['rehearsal'] = ck.rehearse(lambda: [cut(cp, None, cp.zeros(3)) for _ in range(times)])
    with ck.capture(strict=strict, **options) as cap:
        yield cap
    assert cap.recording.adaptations == []


def idle(cap: Any) -> list[str]:
    return [step.text for step in cap.recording.notes if 'adds nothing' in step.text]


@pytest.mark.parametrize('strict', [True, False])
@pytest.mark.parametrize('cut', CUTS)
def test_a_lane_that_was_idle_is_used_after_it(cp: Any, cut: str, strict: bool) -> None:
    x, side = cp.zeros(3), cp.cuda.Stream(non_blocking=True)
    with cut_capture(cp, CUTS[cut], strict=strict) as cap:
        side.wait_event(cap.stream.record())
        CUTS[cut](cp, cap, x)
        with side:
            y = x * 2
        cap.join(side)
        y += 1
    cap.graph.launch()
    assert (cp.asnumpy(x).tolist(), cp.asnumpy(y).tolist()) == ([1] * 3, [3] * 3)
    assert idle(cap) == []


@pytest.mark.parametrize('cut', CUTS)
def test_each_lane_of_a_scope_may_make_it(cp: Any, cut: str) -> None:
    arrays = [cp.zeros(3) for _ in range(3)]
    with cut_capture(cp, CUTS[cut], times=3) as cap, cap.fork(4) as lanes:
        for lane, x in zip(lanes, arrays):
            with lane:
                CUTS[cut](cp, cap, x)
    cap.graph.launch()
    assert [cp.asnumpy(x).tolist() for x in arrays] == [[1] * 3] * 3
    assert len(cap.recording.lanes) == 5 and idle(cap) == []


@pytest.mark.parametrize('cut', CUTS)
def test_lanes_may_run_at_once_after_it(cp: Any, cut: str) -> None:
    x, sides = cp.zeros(3), [cp.cuda.Stream(non_blocking=True) for _ in range(2)]
    with cut_capture(cp, CUTS[cut]) as cap:
        for side in sides:
            side.wait_event(cap.stream.record())
        CUTS[cut](cp, cap, x)
        alone = x + 1  # neither lane waits for it
        found = []
        for side in sides:
            with side:
                found.append(x * 2)
            cap.join(side)
        alone += found[0] + found[1]
    cap.graph.launch()
    assert cp.asnumpy(alone).tolist() == [6] * 3
    lanes = {number: one.joined_at for number, one in enumerate(cap.recording.lanes)}
    assert lanes[1] is not None and lanes[2] is not None


def test_what_never_works_is_noted_once(cp: Any) -> None:
    x, side = cp.zeros(3), cp.cuda.Stream(non_blocking=True)
    with ck.capture() as cap:
        side.wait_event(cap.stream.record())
        decided(cp, cap, x)
        repeated(cp, cap, x)
    cap.graph.launch()
    assert cp.asnumpy(x).tolist() == [2] * 3
    assert len(idle(cap)) == 1 and 'lane 1' in idle(cap)[0]


def test_work_that_is_open_is_refused_and_harms_nothing(cp: Any) -> None:
    x, y, side = cp.zeros(3), cp.zeros(3), cp.cuda.Stream(non_blocking=True)
    with ck.capture() as cap:
        side.wait_event(cap.stream.record())
        with side:
            y += 1
        with pytest.raises(ck.UnjoinedError):
            decided(cp, cap, x)
        cap.join(side)
        decided(cp, cap, x)
        with side:
            y += x
        cap.join(side)
    cap.graph.launch()
    assert (cp.asnumpy(x).tolist(), cp.asnumpy(y).tolist()) == ([1] * 3, [2] * 3)


def test_branches_of_parallel_may_make_parts(cp: Any) -> None:
    m = cp.arange(9.0).reshape(3, 3)
    with ck.capture(pieces=True) as cap:
        one, two = cap.parallel(lambda: cp.linalg.svd(m, compute_uv=False) * 2, lambda: m * 2)
    cap.graph.launch()
    wanted = np.linalg.svd(cp.asnumpy(m), compute_uv=False) * 2
    assert np.allclose(cp.asnumpy(one), wanted) and np.allclose(cp.asnumpy(two), cp.asnumpy(m) * 2)


def test_a_part_while_another_lane_works_is_refused_truly(cp: Any) -> None:
    m, y = cp.eye(3), cp.zeros(3)
    with ck.capture(pieces=True) as cap, cap.fork(2) as (left, right):
        with left:
            y += 1
        with right, pytest.raises(ck.UnjoinedError, match=r'eigvalsh\(\) while lanes are open') as info:
            cp.linalg.eigvalsh(m)
        assert 'between two parts' in info.value.rule
        cap.join(left)
        with right:
            w = cp.linalg.eigvalsh(m) + 1
    cap.graph.launch()
    assert (cp.asnumpy(y).tolist(), cp.asnumpy(w).tolist()) == ([1] * 3, [2] * 3)

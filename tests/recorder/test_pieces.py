"""Blocks with calls that no capture can hold: the host makes these at every launch, between two graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from tests.captured import launched


def matrix(cp: Any) -> Any:
    return cp.arange(9.0).reshape(3, 3) + 5 * cp.eye(3)


def test_each_launch_makes_the_call_on_what_is_there(cp: Any) -> None:
    a = matrix(cp)
    with ck.capture(pieces=True) as cap:
        y = cp.linalg.eigvalsh(a @ a.T) * 2
    for number in range(4):
        a[0, 0] = number
        cap.graph.launch()
        wanted = np.linalg.eigvalsh(cp.asnumpy(a @ a.T)) * 2
        np.testing.assert_allclose(cp.asnumpy(y), wanted, rtol=1e-9)
    (seam,) = [step for step in cap.recording.steps if step.kind == 'seam']
    assert 'eigvalsh() is called by the host at every launch' in seam.text and seam.at[0] == __file__


def test_arrays_are_as_before_when_the_block_has_ended(cp: Any) -> None:
    a, total, after = matrix(cp), cp.zeros(3), cp.zeros(2)
    with ck.capture(pieces=True) as cap:
        total += 1
        w = cp.linalg.eigvalsh(a @ a.T)
        after += 1
        total += cp.linalg.eigvalsh(a @ a.T + cp.eye(3)) - w
    assert cp.asnumpy(total).tolist() == [0, 0, 0] and cp.asnumpy(after).tolist() == [0, 0]
    for number in range(1, 4):
        cap.graph.launch()
        np.testing.assert_allclose(cp.asnumpy(total), [2.0 * number] * 3, rtol=1e-9)
        assert cp.asnumpy(after).tolist() == [number, number]


def test_a_block_that_fails_leaves_arrays_as_they_were(cp: Any) -> None:
    a, total = matrix(cp), cp.zeros(3)
    with pytest.raises(ZeroDivisionError), ck.capture(pieces=True):
        total += 1
        cp.linalg.eigvalsh(a @ a.T)
        1 / 0  # noqa: B018
    assert cp.asnumpy(total).tolist() == [0, 0, 0]
    total += 1  # and the memory is the user's again
    assert cp.asnumpy(total).tolist() == [1, 1, 1]


def test_a_host_read_beside_such_a_call(cp: Any) -> None:
    a = matrix(cp)

    def block() -> Any:
        w = cp.linalg.eigvalsh(a @ a.T)
        return w * 2 if w[0] > 0 else w * 3

    rehearsal = ck.rehearse(block)
    with ck.capture(rehearsal=rehearsal, pieces=True) as cap:
        y = block()
    cap.graph.launch()
    np.testing.assert_allclose(cp.asnumpy(y), cp.asnumpy(rehearsal.result), rtol=1e-12)
    a[...] = 0
    with pytest.raises(ck.AssumptionError):
        cap.graph.launch()


def test_without_pieces_the_call_is_refused_and_names_it(sim: Any) -> None:
    a = matrix(sim)
    with ck.capture() as cap:
        with pytest.raises(ck.UnsupportedCallError, match=r'ck\.capture\(pieces=True\)'):
            sim.linalg.eigvalsh(a)
        y = a * 2
    assert launched(cap, y) == [(sim.asnumpy(a) * 2).ravel().tolist()]
    with pytest.raises(ValueError, match='pieces=True'):
        ck.capture(pieces=True, update=cap.graph)


def test_in_a_body_it_is_refused_and_the_capture_goes_on(sim: Any) -> None:
    a, going = matrix(sim), sim.ones(1, bool)
    with ck.capture(pieces=True) as cap:
        with cap.if_(going):
            with pytest.raises(ck.UnsupportedCallError):
                sim.linalg.eigvalsh(a)
            a += 1
        y = a * 2
    assert launched(cap, y) == [((sim.asnumpy(matrix(sim)) + 1) * 2).ravel().tolist()]


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
def test_lanes_that_were_idle_are_used_after_it(cp: Any, cut: str, strict: bool) -> None:
    x, sides, found = cp.zeros(3), [cp.cuda.Stream(non_blocking=True) for _ in range(2)], []
    with cut_capture(cp, CUTS[cut], strict=strict) as cap:
        for side in sides:
            side.wait_event(cap.stream.record())
        CUTS[cut](cp, cap, x)
        alone = x + 1  # neither lane waits for it
        for side in sides:
            with side:
                found.append(x * 2)
            cap.join(side)
        alone += found[0] + found[1]
    assert launched(cap, x, alone) == [[1] * 3, [6] * 3]
    assert idle(cap) == [] and all(lane.joined_at is not None for lane in cap.recording.lanes[1:])


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


def test_what_never_works_is_noted_once(cp: Any) -> None:
    x, side = cp.zeros(3), cp.cuda.Stream(non_blocking=True)
    with ck.capture() as cap:
        side.wait_event(cap.stream.record())
        decided(cp, cap, x)
        repeated(cp, cap, x)
    assert launched(cap, x) == [[2] * 3]
    assert len(idle(cap)) == 1 and 'lane 1' in idle(cap)[0]


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
    assert launched(cap, y, w) == [[1] * 3, [2] * 3]

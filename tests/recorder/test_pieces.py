"""Blocks with calls that no capture can hold: the host makes these at every launch, between two graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import capturekit as ck


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


def test_lanes_before_and_behind_such_a_call(cp: Any) -> None:
    a = matrix(cp)
    with ck.capture(pieces=True) as cap:
        with cap.fork(2) as (left, right):
            with left:
                b = a * 2
            with right:
                c = a.T * 3
        w = cp.linalg.eigvalsh(b @ b.T)
        with cap.fork(2) as (left, right):
            with left:
                y = w + c.sum()
            with right:
                z = w * 2
    for number in range(3):
        a[1, 1] = number
        cap.graph.launch()
        w = np.linalg.eigvalsh(4 * cp.asnumpy(a) @ cp.asnumpy(a).T)
        np.testing.assert_allclose(cp.asnumpy(y), w + 3 * cp.asnumpy(a).sum(), rtol=1e-9)
        np.testing.assert_allclose(cp.asnumpy(z), w * 2, rtol=1e-9)


def test_the_recording_tells_of_the_call(sim: Any) -> None:
    a = matrix(sim)
    with ck.capture(pieces=True) as cap:
        sim.linalg.eigvalsh(a)
    seams = [step for step in cap.recording.steps if step.kind == 'seam']
    assert len(seams) == 1 and 'eigvalsh() is called by the host at every launch' in seams[0].text
    assert seams[0].at[0].endswith('test_pieces.py')


def test_without_pieces_the_call_is_refused_and_names_it(sim: Any) -> None:
    a = matrix(sim)
    with ck.capture() as cap:
        with pytest.raises(ck.UnsupportedCallError, match=r'ck\.capture\(pieces=True\)'):
            sim.linalg.eigvalsh(a)
        y = a * 2
    cap.graph.launch()
    assert sim.asnumpy(y).tolist() == (sim.asnumpy(a) * 2).tolist()


def test_arguments(sim: Any) -> None:
    with ck.capture() as cap:
        sim.ones(2) * 2
    with pytest.raises(ValueError, match='pieces=True'):
        ck.capture(pieces=True, options=ck.CaptureOptions(update=cap.graph))


def test_in_a_body_it_is_refused_and_the_capture_goes_on(sim: Any) -> None:
    a, going = matrix(sim), sim.ones(1, bool)
    with ck.capture(pieces=True) as cap:
        with cap.if_(going):
            with pytest.raises(ck.UnsupportedCallError):
                sim.linalg.eigvalsh(a)
            a += 1
        y = a * 2
    cap.graph.launch()
    assert sim.asnumpy(y).tolist() == ((sim.asnumpy(matrix(sim)) + 1) * 2).tolist()

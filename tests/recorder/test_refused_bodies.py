"""Decisions that are never asked, and bodies that are refused at their end: the capture goes on without them."""

from __future__ import annotations

import contextlib
import linecache
import sys
from typing import Any

import pytest

import capturekit as ck
from tests.captured import flag, launched


@pytest.mark.parametrize('limit', [None, 100])
def test_a_condition_that_no_pass_can_change(cp: Any, limit: int | None) -> None:
    x, y = cp.ones(()), cp.ones(())
    with ck.capture() as cap:
        with pytest.raises(ck.UnsupportedCallError, match='no pass can change') as info:
            with cap.while_(x < 1000, limit=limit):
                x *= 2
        with pytest.raises(ck.UnsupportedCallError, match='no pass can change'):
            with cap.while_((x < 1000).reshape(1), limit=limit):
                x *= 2
        y += 1
    assert 'cap.loop(' in info.value.remedy
    assert launched(cap, x, y) == [[1.0], [2.0]]
    going = x < 1000
    with ck.capture() as cap, cap.while_(going.reshape(1)):
        x *= 2
        cp.less(x, 1000, out=going)
    assert launched(cap, x) == [[1024.0]]


@pytest.mark.parametrize('how', ['computed', 'constant', 'from before'])
def test_a_condition_that_is_not_written_with_a_limit(cp: Any, how: str) -> None:
    x, y, going = cp.ones(()), cp.ones(()), flag(cp)
    refused = pytest.raises(ck.UnsupportedCallError, match='no pass can change')
    with ck.capture() as cap:
        if how != 'from before':
            going = x < 10 if how == 'computed' else cp.ones((), bool)
        with refused if how == 'computed' else contextlib.nullcontext(), cap.while_(going, limit=5):
            x *= 2
        y += 1
    assert launched(cap, x, y) == [[1.0 if how == 'computed' else 32.0], [2.0]]


@pytest.mark.parametrize('way', ['break', 'continue', 'return'])
def test_python_can_not_leave_a_body(cp: Any, way: str) -> None:
    x, y, on = cp.ones(2), cp.ones(2), flag(cp)

    def leave() -> None:
        for _ in range(3):
            if way == 'break':
                with cap.if_(on):
                    y.fill(5)
                    break
            elif way == 'continue':
                with cap.if_(on):
                    y.fill(5)
                    continue
            else:
                with cap.if_(on):
                    y.fill(5)
                    return

    with ck.capture() as cap:
        with pytest.raises(ck.UnsupportedCallError, match=f'`{way}` in the body') as info:
            leave()
        for _ in range(2):
            with cap.if_(on):
                for _ in range(2):
                    if on is not None:
                        break
                x += 1
    at = info.value.location
    assert at is not None and linecache.getline(at.file, at.line).strip() == way
    assert launched(cap, x, y) == [[3.0, 3.0], [1.0, 1.0]]


@pytest.mark.parametrize('call', ['if_', 'if_else', 'while_', 'switch'])
def test_a_decision_without_with(cp: Any, call: str) -> None:
    x, on = cp.zeros(2), cp.ones((), 'i4')
    more = (2,) if call == 'switch' else ()
    with ck.capture() as cap:
        with pytest.raises(ck.UnsupportedCallError, match='without a body') as info:
            getattr(cap, call)(on, *more)
        x += 1
    assert f'cap.{call}(' in info.value.remedy and info.value.location is not None
    assert cap.recording.node_count == 1 and launched(cap, x) == [[1.0, 1.0]]
    with pytest.raises(ck.UnsupportedCallError, match='without a body') as info, ck.capture() as cap:
        at = sys._getframe().f_lineno + 1
        _block = getattr(cap, call)(on, *more)
        x += 1
    assert info.value.location is not None and info.value.location.line == at


def test_work_and_decisions_outside_of_both_branches(cp: Any) -> None:
    x, n = cp.zeros(2), cp.ones((), 'i4')
    with ck.capture() as cap:
        with pytest.raises(ck.UnsupportedCallError, match='Work between') as info:
            with cap.if_else(n) as (then, _otherwise):
                with then:
                    x += 1
                x *= 10
        with cap.if_else(n) as (then, _otherwise):
            with pytest.raises(ck.UnsupportedCallError, match='Work between'), cap.if_(n):
                pass
            with then:
                x += 2
        x += 0.5
    at = info.value.location
    assert at is not None and linecache.getline(at.file, at.line).strip() == 'x *= 10'
    assert launched(cap, x) == [[3.5, 3.5]]


SAID = {'another array': '`going`, the condition of a loop, is another array', 'never written': 'no pass can change'}


@pytest.mark.parametrize('what', ['never written', 'another array', 'open lane', 'nested'])
def test_a_refusal_at_the_end_of_a_body_takes_it_out(cp: Any, what: str) -> None:
    x, y, going, on = cp.ones(2), cp.ones(2), flag(cp), flag(cp)
    side = cp.cuda.Stream(non_blocking=True)
    with ck.capture() as cap:
        y += 1
        with pytest.raises(ck.CaptureError, match=SAID.get(what)), cap.while_(going):
            x += 1
            if what == 'another array':
                going = x[0] < 5
            elif what == 'nested':
                with cap.while_(on):
                    x += 1
                    on.fill(False)
            elif what == 'open lane':
                going.fill(False)
                side.wait_event(cap.stream.record())
                with side:
                    x *= 2
        y *= 10
        with cap.if_(on):
            y += 1
    for want in (21.0, 221.0):
        assert launched(cap, x, y) == [[1.0] * 2, [want] * 2]
    lines = [linecache.getline(__file__, node.at.line).strip() for node in cap.graph.nodes if node.at is not None]
    assert 'y *= 10' in lines and 'y += 1' in lines and 'x += 1' not in lines
    assert cap.recording.node_count == len(cap.graph.nodes)


def test_work_that_can_not_be_taken_out_ends_the_capture(sim: Any) -> None:
    """CUDA takes no node out of some graphs that allocate memory, as cuSOLVER's calls of some sizes do."""
    cp = sim
    a, x = cp.eye(5), cp.ones(5)
    cp.linalg.inv(a)
    with pytest.raises(ck.UnsupportedCallError, match=r'caught inside the capture.*Work between'), ck.capture() as cap:
        y = cp.linalg.inv(a) @ x
        with cap.if_else(flag(cp)) as (then, otherwise):
            with then:
                y += 1
            x *= 2
            with pytest.raises(ck.UnsupportedCallError, match='Work between'), otherwise:
                y += 2
    with ck.capture() as cap:
        x += 1
    assert launched(cap, x) == [[2.0] * 5]


def test_a_broken_body_names_the_exception_and_its_line(cp: Any) -> None:
    x, on = cp.ones(2), flag(cp)
    with pytest.raises(ck.UnsupportedCallError, match='A body that an exception has left') as info:
        with ck.capture() as cap, contextlib.suppress(KeyError):
            with cap.if_(on):
                x += 1
                at = sys._getframe().f_lineno + 1
                raise KeyError('no such key')
    assert 'KeyError("\'no such key\'")' in info.value.rule and f'test_refused_bodies.py:{at} ' in info.value.rule
    with ck.capture() as cap:
        y = x + 1
    assert launched(cap, y) == [[2.0, 2.0]]

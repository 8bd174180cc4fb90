"""Conditional nodes from ordinary code: loops, branches and switches that the device decides about.

Random programs of them, sound ones and such whose values leave a body, are in :mod:`tests.agreement.block_programs`.
"""

from __future__ import annotations

import contextlib
import linecache
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.driver.cuda import CudaDevice, current
from capturekit.model.errors import CudaCallError
from capturekit.model.rules import Code
from capturekit.simulated import SimulatedDevice
from tests.captured import flag, graph_at, launched, values

# -- loops ----------------------------------------------------------------------------------------------------------


def test_a_loop_runs_as_long_as_its_condition_holds(cp: Any) -> None:
    x, n, going = cp.ones(4), cp.zeros((), 'i8'), flag(cp)
    with ck.capture() as cap:
        n.fill(0)
        x.fill(1)
        cp.less(n, 5, out=going)
        with cap.while_(going) as loop:
            x *= 2
            n += 1
            cp.less(n, 5, out=going)
        y = x + 1
    for _ in range(3):
        assert launched(cap, y, n, loop.passes) == [[33.0] * 4, [5], [5]]


@pytest.mark.parametrize('dtype', ['?', 'i1', 'u1', 'i2', 'i4', 'u4', 'i8', 'u8'])
def test_conditions_are_booleans_and_whole_numbers(cp: Any, dtype: str) -> None:
    x, left = cp.zeros(2), cp.zeros((), dtype)
    start = 1 if dtype == '?' else np.iinfo(dtype).min or np.iinfo(dtype).max  # its lowest bits are 0, or all are 1
    with ck.capture() as cap:
        left.fill(start)
        with cap.while_(left):
            x += 1
            left.fill(0)
    assert launched(cap, x, left) == [[1.0, 1.0], [0]]


@contextlib.contextmanager
def side_of(cap: Any, side: Any) -> Iterator[None]:
    side.wait_event(cap.stream.record())
    with side:
        yield


def test_open_lanes_are_refused_and_the_capture_goes_on(cp: Any) -> None:
    x, y, going = cp.ones(4), cp.ones(4), flag(cp)
    side = cp.cuda.Stream(non_blocking=True)
    with ck.capture() as cap:
        with side_of(cap, side):
            y += 1
        with pytest.raises(ck.UnjoinedError, match='all lanes have to be joined'), cap.while_(going):
            pass
        cap.join(side)
        with cap.if_(going):
            x += y
    assert launched(cap, x, y) == [[3.0] * 4, [2.0] * 4]
    with ck.capture(strict=False) as cap:
        with side_of(cap, side):
            y += 1
        with cap.if_(going):
            x += y
    assert launched(cap, x) == [[6.0] * 4]


# -- branches -------------------------------------------------------------------------------------------------------


def test_branches(cp: Any) -> None:
    x, n = cp.zeros(2), cp.zeros((), 'i4')
    with ck.capture() as cap:
        with cap.if_(n > 1):
            x += 1
        with cap.if_else(n > 2) as (then, otherwise):
            with then:
                x += 10
            with otherwise:
                x += 100
        with cap.switch(n, 3) as cases:
            with cases[0]:
                x += 1000
            with cases[2]:
                x += 2000
        y = x + 0.5
    for number, want in ((0, 1100.5), (1, 100.5), (2, 2101.5), (3, 11.5), (-1, 100.5)):
        x.fill(0)
        n.fill(number)
        assert launched(cap, y) == [[want] * 2]


def test_a_branch_is_entered_once(cp: Any) -> None:
    x, n = cp.zeros(2), cp.ones((), 'i4')
    with ck.capture() as cap, cap.if_else(n) as (then, _otherwise):
        with then:
            x += 1
        with pytest.raises(ck.UnsupportedCallError, match='entered twice'), then:
            pass
    assert launched(cap, x) == [[1.0] * 2]


def test_work_on_another_lane_between_branches_is_refused(cp: Any) -> None:
    x, y, n, side = cp.zeros(2), cp.zeros(2), cp.ones((), 'i4'), cp.cuda.Stream(non_blocking=True)
    with ck.capture() as cap:
        with side_of(cap, side), cap.if_else(n) as (then, otherwise):
            with then:
                x += 1
            y += 5
            with pytest.raises(ck.UnsupportedCallError, match='Work between the branches'), otherwise:
                pass
        cap.join(side)
        z = x + y
    assert launched(cap, z) == [[1.0] * 2]  # what lay between has been taken out


def test_a_driver_that_does_not_go_on_behind_a_lost_body(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x, original, calls = sim.zeros(2), SimulatedDevice.begin_capture_to, list[int]()

    def begins(self: Any, *args: Any) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise CudaCallError(Code.cudaErrorInvalidValue, 'streamBeginCaptureToGraph')
        original(self, *args)

    monkeypatch.setattr(SimulatedDevice, 'begin_capture_to', begins)
    with pytest.raises((ck.CaptureError, CudaCallError)), ck.capture() as cap, cap.if_(flag(sim)):
        x += 1
        lose(cap)
    assert cap.recording.outcome == 'failed' and not cap.stream.is_capturing() and good(sim)


# -- what no body can hold ------------------------------------------------------------------------------------------


@pytest.mark.parametrize('call', ['host function', 'read', 'read rehearsed', 'numbers', 'external event'])
def test_what_no_body_can_hold_is_refused_alone(cp: Any, call: str) -> None:
    x, n, going = cp.ones(4), cp.zeros((), 'i8'), flag(cp)
    event = cp.cuda.Event()
    calls: dict[str, Any] = {
        'host function': lambda cap: cap.stream.launch_host_func(lambda _: None, None),
        'read': lambda _cap: float(x.sum()),
        'read rehearsed': lambda _cap: float(x.sum()),
        'numbers': lambda _cap: cp.random.RandomState(3).random_sample(4),
        'external event': lambda cap: cp.cuda.runtime.eventRecordWithFlags(event.ptr, cap.stream.ptr, 1),
    }
    if call == 'external event' and not hasattr(cp.cuda.runtime, 'eventRecordWithFlags'):
        pytest.skip('this CuPy records no external events')
    rehearsal = ck.rehearse(lambda: float(x.sum())) if call == 'read rehearsed' else None
    with ck.capture(rehearsal=rehearsal) as cap:
        n.fill(0)
        going.fill(True)
        with cap.while_(going):
            n += 1
            cp.less(n, 3, out=going)
            with pytest.raises((ck.UnsupportedCallError, ck.HostReadError)) as info:
                calls[call](cap)
        y = n * 2
    assert info.value.location is not None and info.value.location.file == __file__
    assert launched(cap, y) == [[6]]


def test_a_driver_too_old_says_so_and_the_capture_goes_on(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = sim.ones(4)
    monkeypatch.setattr(SimulatedDevice, 'can_decide', lambda _device, decides, count: decides == 'if' and count == 1)
    with ck.capture() as cap:
        for call in (cap.while_, cap.if_else, lambda flag: cap.switch(flag, 2)):
            with pytest.raises(ck.UnsupportedCallError, match='came to CUDA with 12'):
                call(flag(sim))
        with cap.if_(flag(sim)):
            x += 1
    assert launched(cap, x) == [[2.0] * 4]


@pytest.mark.parametrize(('version', 'known'), [(12030, 0), (12040, 2), (12070, 2), (12080, 4), (13000, 4)])
def test_which_drivers_decide(version: int, known: int) -> None:
    d: Any = CudaDevice.__new__(CudaDevice)
    d.rt = SimpleNamespace(cudaDriverGetVersion=lambda: (0, version))
    asked = [('if', 1), ('while', 1), ('if', 2), ('switch', 3)]
    assert [d.can_decide(*one) for one in asked] == [True] * known + [False] * (4 - known)


def test_host_nodes_that_came_past_the_guard_are_named(sim: Any) -> None:
    device = sys.modules['cupy'].__capturekit_simulated__  # type: ignore[attr-defined]
    x = sim.ones(4)
    with pytest.raises(ck.UnsupportedCallError, match='A host node in the body'), ck.capture() as cap:
        with cap.if_(flag(sim)):
            x += 1
            device.submit(cap.stream.ptr, lambda: None, 'callback', 'host')


@pytest.mark.parametrize('caught', [False, True])
def test_an_exception_in_a_body(cp: Any, caught: bool) -> None:
    x, going = cp.ones(4), flag(cp)
    wanted: type[BaseException] = ck.UnsupportedCallError if caught else KeyError
    with pytest.raises(wanted) as info, ck.capture() as cap:
        with contextlib.suppress(KeyError if caught else ()), cap.while_(going):
            x *= 2
            at = sys._getframe().f_lineno + 1
            raise KeyError('no such key')
    if caught:
        said = str(info.value)
        assert 'A body that an exception has left' in said and f'test_conditional.py:{at} ' in said
        assert 'KeyError("\'no such key\'")' in said
    assert getattr(info.value, '__notes__', []) == []
    assert good(cp) and values(x) == [1.0] * 4


# -- what a pass hands to the next ----------------------------------------------------------------------------------


@pytest.mark.parametrize('how', ['view', 'copy', 'memset', 'limit', 'in a branch'])
def test_conditions_that_are_written_in_other_ways(cp: Any, how: str) -> None:
    flags, zero, x = cp.ones(3, 'i4'), cp.zeros((), 'i4'), cp.ones(4)
    going, passes = flags[1:2], 3 if how == 'limit' else 1
    with ck.capture() as cap, cap.while_(going, limit=passes if how == 'limit' else None) as loop:
        x *= 2
        if how == 'view':
            flags -= 1
        elif how == 'copy':
            going[0] = zero
        elif how == 'memset':
            going.data.memset_async(0, 4)
        elif how == 'in a branch':
            with cap.if_(going):
                going -= 1
    assert launched(cap, x, loop.passes) == [[2.0**passes] * 4, [passes]]


def test_memory_dropped_in_a_loop_is_read_again_by_the_next_pass(cp: Any) -> None:
    """A block from before the loop must not be given to an array of the loop's."""
    out, n, going = cp.zeros(1024), cp.zeros((), 'i8'), flag(cp)
    with pytest.warns(RuntimeWarning, match=r'`box\[0\]` is another'), ck.capture(strict=False) as cap:
        n.fill(0)
        going.fill(True)
        box = [cp.full(1024, 3.0)]
        with cap.while_(going):
            box[0] = box[0] * 2
            tmp = cp.full(1024, 77.0)
            out[...] = box[0] + tmp
            n += 1
            cp.less(n, 4, out=going)
    assert launched(cap, out) == [[83.0] * 1024]
    assert 'an array from before the loop was dropped in its body' in str(cap.recording.notes)


# -- beside the rest ------------------------------------------------------------------------------------------------


def test_nodes_lines_and_constants(cp: Any) -> None:
    x, n = cp.zeros(2), cp.ones((), 'i4')
    with ck.capture() as cap:
        x += 1
        with cap.if_else(n) as (then, otherwise):
            with then:
                x += 10
            with otherwise:
                x += 100
        x += 1000
    nodes, edges = cap.graph.nodes, cap.graph.edges
    first = nodes[0].at
    assert first is not None
    adds = [node for node in nodes if 'add' in node.name]
    assert [node.at.line - first.line for node in adds if node.at] == [0, 3, 5, 6]
    (decision,) = [node for node in nodes if node.kind == 'conditional']
    assert [inner.number for inner in decision.inner] == [adds[1].number, adds[2].number]
    assert (decision.number, adds[3].number) in edges and (decision.number, adds[1].number) in edges
    assert cap.recording.node_count == len(nodes)
    assert cap.graph.debug_dot_str()


@pytest.mark.parametrize('condition', [True, 1, np.ones(())])
def test_bad_conditions(sim: Any, condition: Any) -> None:
    x, good = sim.ones(3), flag(sim)
    with ck.capture() as cap:
        for bad, wrong in ((condition, TypeError), (x, ValueError), (x[0], TypeError)):
            for call in (cap.while_, cap.if_, cap.if_else, lambda bad: cap.switch(bad, 2)):
                with pytest.raises(wrong, match='condition'):
                    call(bad)
        for limit, wrong in ((0, ValueError), (-1, ValueError), (True, TypeError), (1.5, TypeError)):
            with pytest.raises(wrong, match='limit'):
                cap.while_(good, limit=limit)  # type: ignore[arg-type]
        for count, wrong in ((0, ValueError), ('2', TypeError), (True, TypeError)):
            with pytest.raises(wrong):
                cap.switch(good, count)  # type: ignore[arg-type]
        y = x + 1
    assert cap.recording.node_count == 1
    assert launched(cap, y) == [[2.0] * 3]


# -- decisions that are never asked, and bodies that are refused at their end -----------------------------------------


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


@pytest.mark.parametrize('how', ['constant', 'from before'])
def test_a_condition_that_is_not_written_with_a_limit(cp: Any, how: str) -> None:
    x, going = cp.ones(()), flag(cp)
    with ck.capture() as cap:
        if how == 'constant':
            going = cp.ones((), bool)
        with cap.while_(going, limit=5):
            x *= 2
    assert launched(cap, x) == [[32.0]]


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


def test_bodies_that_others_enter_for_the_block(cp: Any) -> None:
    """A way out is seen through contextlib, and told to be unseen where no block shows; no body is suspended."""
    x, on = cp.ones(2), flag(cp)

    @contextlib.contextmanager
    def when() -> Iterator[None]:
        with cap.if_(on):
            yield

    def suspended() -> Iterator[None]:
        with cap.if_(on):
            yield

    with ck.capture() as cap:
        with pytest.raises(ck.UnsupportedCallError, match='`break` in the body'):
            for _ in range(3):
                with when():
                    x.fill(5)
                    break
        with pytest.raises(ck.GeneratorError, match=r'suspends inside `with cap.if_\(...\)`'):
            next(suspended())
        with when():
            x += 1
        assert cap.recording.notes == []
        with contextlib.ExitStack() as stack:
            stack.enter_context(cap.if_(on))
            x += 1
    assert sum('no `with` statement is seen' in step.text for step in cap.recording.notes) == 1
    assert launched(cap, x) == [[3.0, 3.0]]


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


# -- captures that end badly while a body is recorded: CUDA destroys a body whose capture is lost ---------------------


@contextlib.contextmanager
def nested(cap: Any, on: Any) -> Iterator[None]:
    with cap.while_(on, limit=3), cap.if_(on):
        yield


@contextlib.contextmanager
def behind(cap: Any, on: Any) -> Iterator[None]:
    with cap.if_(on):
        on.fill(False)
    yield


def read(on: Any) -> float:
    """What the device checks at a launch: what follows is recorded into the body of a node."""
    return float(on)


#: Opens a body of each kind of decision.
DECISIONS: dict[str, Callable[[Any, Any], Any]] = {
    'if': lambda cap, on: cap.if_(on),
    'while': lambda cap, on: cap.while_(on, limit=3),
    'a branch in a loop': nested,
    'behind a branch': behind,
    'behind a read': lambda cap, on: contextlib.nullcontext(read(on)),
}


def lose(cap: Any) -> None:
    """What a C library might do: it waits for the captured stream, past every wrapper."""
    with pytest.raises(CudaCallError):
        current().device.stream_synchronize(cap.stream.ptr)


def left_open(cap: Any, side: Any) -> None:
    """Work on a lane that nobody joins."""
    side.wait_event(cap.stream.record())


def good(cp: Any) -> bool:
    """Whether the next capture makes a graph that works."""
    x, on = cp.zeros(2), flag(cp)
    with ck.capture() as cap, cap.if_(on):
        x += 1
    return launched(cap, x) == [[1.0] * 2]


@pytest.mark.parametrize('decision', DECISIONS)
@pytest.mark.parametrize('then', ['at the end', 'an exception'])
@pytest.mark.parametrize('how', ['lost', 'a lane left open'])
def test_a_capture_that_ends_badly(cp: Any, decision: str, then: str, how: str) -> None:
    """The graph that goes on behind a decision is destroyed once, and nothing else goes wrong."""
    x, on, side = cp.zeros(2), flag(cp), cp.cuda.Stream(non_blocking=True)
    kind: Any = {'lost': (ck.CaptureError, CudaCallError)}.get(how, ck.UnjoinedError)
    rehearsal = ck.rehearse(read, on) if decision == 'behind a read' else None
    with pytest.raises(KeyError if then == 'an exception' else kind) as info, ck.capture(rehearsal=rehearsal) as cap:
        with DECISIONS[decision](cap, on):
            x += 1
            if how == 'lost':
                lose(cap)
            else:
                left_open(cap, side)
                with side:
                    x += 1
            if then == 'an exception':
                raise KeyError
    notes = getattr(info.value, '__notes__', [])
    assert not any('graphDestroy' in note for note in notes) and (how == 'lost' or notes == [])
    assert cap.recording.outcome == 'failed'
    assert not cap.stream.is_capturing() and not side.is_capturing() and good(cp)


@pytest.mark.parametrize('lost', ['body', 'graph'])
def test_in_a_graph_of_the_users(cp: Any, lost: str) -> None:
    """The error says what has become of that graph."""
    x, on = cp.ones(2), flag(cp)
    device = current().device
    handle = device.graph_create()
    with (
        pytest.raises((ck.CaptureError, CudaCallError)) as info,
        ck.capture(into=graph_at(handle)) as cap,
    ):
        with cap.if_(on):
            x += 1
            if lost == 'body':
                lose(cap)
        if lost == 'graph':
            lose(cap)
    said = getattr(info.value, '__notes__', [])
    if lost == 'body':
        assert [note for note in said if 'would end the process' in note] and device.graph_nodes(handle)
    else:
        assert [note for note in said if 'CUDA has destroyed the graph of into=' in note]
    assert good(cp)

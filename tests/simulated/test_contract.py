"""One contract, two devices: what ``CudaDevice`` and ``SimulatedDevice`` answer to the same verbs.

The simulated half runs anywhere, the CUDA half on a GPU. Each test gets a :class:`Bench`: the device, and the few
things that have no verb (work, an event with timing, another thread).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from capturekit.driver.cuda import CudaDevice
from capturekit.model.cuda_functions import ApiCall
from capturekit.model.errors import CudaCallError
from capturekit.model.followed_captures import Follower
from capturekit.model.ledger import EventState
from capturekit.model.rules import CaptureStatus, Code, Mode, Operation
from capturekit.simulated.device.machine import SimulatedDevice
from tests.model.followed_programs import Asks, Hears
from tests.simulated.bench import ACTIVE, LOST, NONE, Bench, CudaBench, end_somehow, forked, refused

# -- the verbs themselves -----------------------------------------------------------------------------------------


def verbs(kind: type) -> dict[str, inspect.Signature]:
    found = {name: f for cls in reversed(kind.__mro__[:-1]) for name, f in vars(cls).items()}
    return {name: inspect.signature(f) for name, f in found.items() if callable(f) and not name.startswith('_')}


#: What the simulated device has beside: how CuPy's stand-in gives it work and memory.
BESIDE = {
    'submit', 'launch_host_func', 'add_callback', 'legacy_call', 'unsafe_call', 'malloc', 'free',
    'condition_set', 'launch_in_order', 'get_device', 'set_device', 'can_access_peer',
    'enable_peer_access', 'memory_device', 'meet', 'be_late', 'busy', 'finish', 'spoil', 'wait_for',
}  # fmt: skip


def test_the_verbs_have_the_same_names_and_parameters() -> None:
    cuda, simulated = verbs(CudaDevice), verbs(SimulatedDevice)
    launch = simulated.pop('graph_launch')  # on CUDA it is CuPy's own function, for speed
    assert list(launch.parameters) == ['self', 'x', 's']
    assert set(simulated) - set(cuda) == BESIDE
    assert set(cuda) <= set(simulated)
    for name, signature in cuda.items():
        assert [(p.name, p.default) for p in signature.parameters.values()] == [
            (p.name, p.default) for p in simulated[name].parameters.values()
        ], name


def test_every_verb_is_used_in_this_file() -> None:
    text = Path(__file__).read_text()
    assert [name for name in (*verbs(CudaDevice), 'graph_launch') if f'.{name}' not in text] == []


# -- streams --------------------------------------------------------------------------------------------------------


def test_streams(bench: Bench) -> None:
    d = bench.device
    plain, blocking = d.stream_create(non_blocking=True), d.stream_create()
    quick = d.stream_create(True, -1)
    assert len({plain, blocking, quick}) == 3
    assert d.driver_version() >= 12080
    free, total = d.mem_get_info()
    assert 0 < free <= total
    assert [d.stream_flags(s) & 1 for s in (plain, blocking, quick, 0)] == [1, 0, 1, 0]
    far = [d.stream_create(True, priority) for priority in (100, -100)]  # moved into the device's range
    assert [d.stream_priority(s) for s in (plain, quick, far[0])] == [0, -1, 0]
    assert -100 < d.stream_priority(far[1]) < 0
    assert [d.stream_device(s) for s in (plain, quick)] == [0, 0]
    assert [d.stream_status(s) for s in (plain, blocking, 0)] == [NONE, NONE, NONE]
    bench.work(plain)
    d.stream_synchronize(plain)
    assert d.stream_query(plain) is True
    d.stream_synchronize(0)
    assert d.stream_query(0) is True
    d.device_synchronize()
    for s in (plain, blocking, quick, *far):
        d.stream_destroy(s)


# -- events ---------------------------------------------------------------------------------------------------------


def test_events_outside_of_captures(bench: Bench) -> None:
    d, s, other = bench.device, bench.stream(), bench.stream()
    for e in bench.events():
        assert d.event_query(e) is True  # never recorded: nothing to wait for
        d.event_synchronize(e)
        d.stream_wait_event(other, e)
        bench.work(s)
        d.event_record(e, s)
        d.stream_wait_event(other, e)
        d.event_synchronize(e)
        assert d.event_query(e) is True
        d.event_record(e, 0)
        d.stream_wait_event(0, e)
        d.event_synchronize(e)
        d.event_destroy(e)


def test_elapsed_time(bench: Bench) -> None:
    d, s = bench.device, bench.stream()
    first, second, never = (bench.timing_event() for _ in range(3))
    d.event_record(first, s)
    bench.work(s)
    d.event_record(second, s)
    d.event_synchronize(second)
    assert d.event_elapsed_time(first, second) >= 0
    refused(Code.cudaErrorInvalidResourceHandle, d.event_elapsed_time, first, never)


@pytest.mark.parametrize('timing', [True, False])
def test_event_state_never_and_outside(bench: Bench, timing: bool) -> None:
    d, s = bench.device, bench.stream()
    e = bench.events()[not timing]
    assert d.event_state(e) is EventState.NEVER
    d.event_record(e, s)
    assert d.event_state(e) is EventState.OUTSIDE
    d.stream_synchronize(s)
    assert d.event_state(e) is EventState.OUTSIDE
    d.event_record(e, 0)
    assert d.event_state(e) is EventState.OUTSIDE


@pytest.mark.parametrize('timing', [True, False])
@pytest.mark.parametrize('mode', list(Mode))
def test_event_state_does_no_harm_to_an_open_capture(bench: Bench, timing: bool, mode: Mode) -> None:
    """Asked in each mode with the thread's own mode relaxed, as it is in the block of ``ck.capture``."""
    d = bench.device
    captured, outside, never = (bench.events()[not timing] for _ in range(3))
    d.event_record(outside, bench.stream())
    old = d.exchange_thread_mode(Mode.RELAXED)
    origin, lane, _ = forked(bench, mode)
    d.event_record(captured, lane)
    assert d.event_state(captured) is EventState.CAPTURED
    assert d.stream_status(origin) is ACTIVE
    assert d.event_state(outside) is EventState.OUTSIDE
    assert d.event_state(never) is EventState.NEVER
    assert d.stream_status(origin) is d.stream_status(lane) is ACTIVE
    d.stream_wait_event(origin, captured)
    d.end_capture(origin)
    d.exchange_thread_mode(old)
    assert d.event_state(captured) is EventState.DEAD
    d.event_record(captured, lane)
    assert d.event_state(captured) is EventState.OUTSIDE


@pytest.mark.parametrize('timing', [True, False])
def test_event_state_of_a_lost_capture(bench: Bench, timing: bool) -> None:
    d = bench.device
    e = bench.events()[not timing]
    origin, lane, _ = forked(bench)
    d.event_record(e, lane)
    refused(Code.cudaErrorStreamCaptureUnsupported, d.stream_synchronize, lane)
    assert d.stream_status(origin) is LOST
    assert d.event_state(e) is EventState.DEAD


# -- captures and graphs --------------------------------------------------------------------------------------------


def test_the_last_nodes_of_streams_while_capturing(bench: Bench) -> None:
    """The last node of each stream, none asked too early or too late; the driver tells several in any order."""
    d, origin, lane = bench.device, bench.stream(), bench.stream()
    last, ends = d.last_nodes(), d.next_after()
    assert last(origin) == -2 and ends(origin) == (-2,)
    d.begin_capture(origin, Mode.RELAXED)
    assert (last(origin), last(lane)) == (0, -2) and ends(origin) == ()
    bench.work(origin)
    seen = [last(origin)]
    assert ends(origin) == (seen[0],)
    assert (seen[0],) == d.capture_info(origin).dependencies
    bench.order(origin, lane)
    assert last(lane) == seen[0]
    for stream in (lane, origin, lane):
        bench.work(stream)
        seen.append(last(stream))
        assert (seen[-1],) == d.capture_info(stream).dependencies
    assert d.graph_nodes(d.capture_info(origin).graph) == seen
    bench.order(lane, origin)
    assert last(origin) in (seen[2], seen[3])
    assert sorted(ends(origin)) == sorted(d.capture_info(origin).dependencies) == sorted(seen[2:])
    refused(Code.cudaErrorStreamCaptureUnsupported, d.device_synchronize)
    assert last(origin) == last(lane) == -1 and ends(origin) == ends(lane) == (-1,)
    refused(Code.cudaErrorStreamCaptureInvalidated, d.end_capture, origin)
    assert last(origin) == -2 and ends(origin) == (-2,)


def test_a_capture_and_what_is_told_of_it(bench: Bench) -> None:
    d = bench.device
    origin, lane = bench.stream(), bench.stream()
    assert d.capture_info(origin).status is NONE
    d.begin_capture(origin, Mode.RELAXED)
    first = d.capture_info(origin)
    assert (first.status, first.dependencies) == (ACTIVE, ())
    assert d.graph_nodes(first.graph) == []
    assert d.graph_edges(first.graph) == []
    bench.work(origin)
    a = d.capture_info(origin).dependencies
    assert len(a) == 1
    assert list(a) == d.graph_nodes(first.graph)
    bench.order(origin, lane)
    assert d.stream_status(lane) is ACTIVE
    assert (d.capture_info(lane).number, d.capture_info(lane).dependencies) == (first.number, a)
    bench.work(lane)
    b = d.capture_info(lane).dependencies
    bench.work(origin)
    c = d.capture_info(origin).dependencies
    bench.order(lane, origin)
    assert d.capture_info(origin).dependencies == tuple(sorted((*b, *c)))
    bench.work(origin)
    (z,) = d.capture_info(origin).dependencies
    assert d.graph_node_count(first.graph) == 4
    assert d.graph_edge_count(first.graph) == 4
    assert set(d.graph_edges(first.graph)) == {(*a, *b), (*a, *c), (*b, z), (*c, z)}
    g = d.end_capture(origin)
    assert d.stream_status(origin) is d.stream_status(lane) is NONE
    assert d.capture_info(lane).status is NONE
    assert d.graph_node_count(g) == len(d.graph_nodes(g)) == 4
    assert d.graph_edge_count(g) == len(d.graph_edges(g)) == 4


def test_a_graph_is_instantiated_uploaded_launched_and_destroyed(bench: Bench) -> None:
    d, s = bench.device, bench.stream()
    g = bench.graph(pieces=3)
    assert d.graph_node_count(g) == 3
    assert all(isinstance(part, str) for node in d.graph_nodes(g) for part in d.node_kind(g, node))
    x = bench.executable(g)
    d.graph_upload(x, s)
    d.graph_upload(x, 0)
    for _ in range(2):
        d.graph_launch(x, s)
    d.graph_launch(x, 0)
    d.stream_synchronize(s)
    d.device_synchronize()
    assert d.graph_scalars([g]) == []  # of CuPy's kernels, and there is none among these nodes
    text = d.graph_dot(g)
    assert text.startswith('digraph')
    assert text.count('->') >= 2
    assert d.graph_dot(g, 0).startswith('digraph')
    d.graph_destroy(g)
    d.graph_launch(x, s)  # an executable graph outlives its definition
    d.stream_synchronize(s)


def test_node_kinds(bench: Bench) -> None:
    d = bench.device
    g = bench.graph()
    (node,) = d.graph_nodes(g)
    kind = 'memset' if isinstance(bench, CudaBench) else 'kernel'
    assert d.node_kind(g, node)[0] == kind
    (info,) = d.node_infos(g)
    assert (info.handle, info.kind) == (node, kind)
    if isinstance(bench, CudaBench):
        assert info.detail == {'dst': CudaBench.memory, 'value': 0, 'bytes': 64} and info.words == (CudaBench.memory,)


def ran(b: Bench, x: int, s: int) -> int | None:
    """Launch; return how many pieces of work ran, None where that can't be told."""
    before = getattr(b, 'done', None)
    b.device.graph_launch(x, s)
    b.device.stream_synchronize(s)
    return None if before is None else b.done - before  # type: ignore[attr-defined]


def test_if_nodes_and_their_bodies(bench: Bench) -> None:
    """As a capture makes them: a handle on the graph that is being captured, the node behind it, then the body."""
    d, s = bench.device, bench.stream()
    d.begin_capture(s)
    top = d.capture_info(s).graph
    yes = d.condition_create(top, 1)
    bench.work(s)
    assert d.end_capture(s) == top
    (first,) = d.graph_nodes(top)
    node, (body,) = d.add_conditional(top, [first], yes, 'if', 1)
    d.begin_capture_to(s, body)
    assert d.capture_info(s).graph == body
    assert d.capture_info(s).dependencies == ()
    no = d.condition_create(top)
    bench.work(s)
    bench.work(s)
    assert d.end_capture(s) == body
    behind, (skipped,) = d.add_conditional(top, [node], no, 'if', 1)
    d.begin_capture_to(s, skipped, Mode.THREAD_LOCAL)
    bench.work(s)
    d.end_capture(s)
    assert set(d.graph_nodes(top)) == {first, node, behind}
    assert set(d.graph_edges(top)) == {(first, node), (node, behind)}
    assert [d.graph_node_count(g) for g in (top, body, skipped)] == [3, 2, 1]
    assert d.graph_edge_count(body) == 1
    assert [d.node_kind(top, n)[0] for n in (node, behind)] == ['conditional'] * 2
    assert d.graph_dot(top).count('->') >= 2
    x = bench.executable(top)
    for _ in range(2):
        assert ran(bench, x, s) in (3, None)
    d.graph_destroy(top)
    assert ran(bench, x, s) in (3, None)


@pytest.mark.parametrize(
    ('decides', 'count', 'default'), [('if', 2, 0), ('if', 2, 5), ('switch', 3, 1), ('switch', 3, 7)]
)
def test_one_of_several_bodies_runs(bench: Bench, decides: str, count: int, default: int) -> None:
    d, s = bench.device, bench.stream()
    d.begin_capture(s)
    top = d.capture_info(s).graph
    assert d.can_decide(decides, count)
    assert d.can_continue()
    bench.work(s)
    node, bodies = d.add_conditional(
        top, d.capture_info(s).dependencies, d.condition_create(top, default), decides, count
    )
    assert len(set(bodies)) == count
    d.set_dependencies(s, [node])
    assert d.capture_info(s).dependencies == (node,)
    bench.work(s)
    for pieces, inner in enumerate(bodies, 1):
        lane = bench.stream()
        d.begin_capture_to(lane, inner)
        for _ in range(pieces):
            bench.work(lane)
        assert d.end_capture(lane) == inner
    assert d.end_capture(s) == top
    assert d.graph_node_count(top) == 3 and len(d.graph_edges(top)) == 2
    x = bench.executable(top)
    runs = {('if', 0): 2, ('if', 5): 1, ('switch', 1): 2, ('switch', 7): 0}[decides, default]
    assert ran(bench, x, s) in (2 + runs, None)


def test_while_nodes_nest(bench: Bench) -> None:
    """Their conditions are false from the beginning, so that no pass is made."""
    d, s = bench.device, bench.stream()
    g = d.graph_create()
    first, (outer,) = d.add_conditional(g, [], d.condition_create(g), 'while', 1)
    _, (inner,) = d.add_conditional(outer, [], d.condition_create(outer), 'while', 1)
    d.begin_capture_to(s, inner)
    bench.work(s)
    d.end_capture(s)
    d.begin_capture_to(s, g, after=[first])
    assert d.capture_info(s).dependencies == (first,)
    bench.work(s)
    d.end_capture(s)
    assert len(d.graph_edges(g)) == 1
    x = bench.executable(g)
    assert ran(bench, x, s) in (1, None)


@pytest.mark.parametrize(('decides', 'count'), [('while', 2), ('if', 3), ('switch', 0)])
def test_conditional_nodes_have_so_many_bodies(bench: Bench, decides: str, count: int) -> None:
    d = bench.device
    g = d.graph_create()
    refused(Code.cudaErrorInvalidValue, d.add_conditional, g, [], d.condition_create(g), decides, count)
    assert d.graph_nodes(g) == []


def test_graphs_are_made_and_put_into_others(bench: Bench) -> None:
    d, s = bench.device, bench.stream()
    child, g = bench.graph(pieces=2), d.graph_create()
    assert d.graph_nodes(g) == []
    first = d.add_child(g, [], child)
    second = d.add_child(g, [first], child)
    d.graph_destroy(child)
    assert d.graph_edges(g) == [(first, second)]
    assert d.node_kind(g, first)[0] == 'graph'
    d.begin_capture_to(s, g)
    bench.work(s)
    assert d.end_capture(s) == g
    assert (d.graph_node_count(g), d.graph_edge_count(g)) == (3, 1)
    x = bench.executable(g)
    d.graph_destroy(g)
    assert ran(bench, x, s) in (5, None)


def test_nodes_are_taken_out_with_their_edges(bench: Bench) -> None:
    d, g = bench.device, bench.graph(pieces=3)
    first, second, third = d.graph_nodes(g)
    assert len(d.graph_edges(g)) == 2
    d.node_destroy(second)
    assert d.graph_nodes(g) == [first, third] and d.graph_edges(g) == []
    x, s = bench.executable(g), bench.stream()
    assert ran(bench, x, s) in (2, None)


def test_a_condition_without_its_node(bench: Bench) -> None:
    d, g = bench.device, bench.graph(pieces=1)
    node, (body,) = d.add_conditional(g, [], d.condition_create(g), 'if', 1)
    s = bench.stream()
    d.begin_capture_to(s, body)
    bench.work(s)
    d.end_capture(s)
    d.graph_exec_destroy(d.graph_instantiate(g))
    (inside,) = d.graph_nodes(body)
    d.node_destroy(inside)
    x = d.graph_instantiate(g)
    assert ran(bench, x, s) in (1, None)
    d.graph_exec_destroy(x)
    d.node_destroy(node)
    refused(Code.cudaErrorInvalidValue, d.graph_instantiate, g)


@pytest.mark.parametrize('how', ['unjoined', 'lost'])
def test_a_capture_to_a_graph_that_ends_badly_destroys_it(bench: Bench, how: str) -> None:
    d, g, s, lane = bench.device, bench.graph(pieces=1), bench.stream(), bench.stream()
    for joined in (True, False):
        d.begin_capture_to(s, g)
        bench.order(s, lane)
        bench.work(lane)
        if joined:
            d.set_dependencies(s, d.graph_nodes(g))
            assert d.end_capture(s) == g
        elif how == 'lost':
            refused(Code.cudaErrorStreamCaptureUnsupported, d.stream_synchronize, s)
            refused(Code.cudaErrorStreamCaptureInvalidated, d.end_capture, s)
        else:
            refused(Code.cudaErrorStreamCaptureUnjoined, d.end_capture, s)
    refused(Code.cudaErrorInvalidValue, d.graph_node_count, g)


def test_captures_to_a_graph_begin_where_others_do(bench: Bench) -> None:
    d = bench.device
    g = d.graph_create()
    origin, lane, _ = forked(bench)
    for s in (origin, lane):
        refused(Code.cudaErrorIllegalState, d.begin_capture_to, s, g)
    refused(Code.cudaErrorStreamCaptureUnsupported, d.begin_capture_to, 0, g)
    assert d.stream_status(origin) is ACTIVE
    d.graph_destroy(d.end_capture(origin))


def test_external_records_and_waits_are_nodes(bench: Bench) -> None:
    d, s = bench.device, bench.stream()
    e = d.event_create()
    d.event_record(e, bench.stream())
    d.begin_capture(s)
    d.stream_wait_event(s, e, True)
    d.event_record(e, s, True)
    assert d.graph_node_count(d.capture_info(s).graph) == 2
    assert d.event_state(e) is EventState.OUTSIDE
    d.graph_destroy(d.end_capture(s))
    refused(Code.cudaErrorIllegalState, d.stream_wait_event, s, e, True)
    refused(Code.cudaErrorIllegalState, d.event_record, e, s, True)


def test_the_threads_mode_is_exchanged_and_is_the_threads_own(bench: Bench) -> None:
    d = bench.device
    assert d.exchange_thread_mode(Mode.RELAXED) is Mode.GLOBAL
    assert bench.elsewhere(lambda: d.exchange_thread_mode(Mode.THREAD_LOCAL)) is Mode.GLOBAL
    assert d.exchange_thread_mode(Mode.THREAD_LOCAL) is Mode.RELAXED
    assert d.exchange_thread_mode(Mode.GLOBAL) is Mode.THREAD_LOCAL


def test_unsafe_calls_by_mode(bench: Bench) -> None:
    """An instantiation is unsafe: each mode keeps it away from the threads that it says."""
    d = bench.device
    g = bench.graph()
    for mode, here, there in (
        (Mode.GLOBAL, False, False),
        (Mode.THREAD_LOCAL, False, True),
        (Mode.RELAXED, True, True),
    ):
        for allowed, thread in ((here, lambda call: call()), (there, bench.elsewhere)):
            s = bench.stream()
            d.begin_capture(s, mode)
            if allowed:
                thread(lambda: d.graph_exec_destroy(d.graph_instantiate(g)))
                assert d.stream_status(s) is ACTIVE
            else:
                refused(Code.cudaErrorStreamCaptureUnsupported, thread, lambda: d.graph_instantiate(g))
                assert d.stream_status(s) is LOST
            end_somehow(bench, s)


def test_a_relaxed_thread_may_make_unsafe_calls_in_every_mode(bench: Bench) -> None:
    d = bench.device
    g = bench.graph()
    for mode in Mode:
        old = d.exchange_thread_mode(Mode.RELAXED)
        s, outside = bench.stream(), bench.stream()
        d.begin_capture(s, mode)
        d.graph_exec_destroy(d.graph_instantiate(g))
        d.stream_synchronize(outside)
        assert d.stream_status(s) is ACTIVE
        d.graph_destroy(d.end_capture(s))
        d.exchange_thread_mode(old)


# -- a device tells of the calls that are made to it, and of those alone that are asked for ------------------------


class Notes(Hears):
    """Hands the notices on, and keeps them."""

    def __init__(self, follower: Follower) -> None:
        super().__init__(follower)
        self.calls: list[tuple[Operation | None, int | None, int]] = []
        hear = self.after

        def after(call: ApiCall, code: int) -> None:
            hear(call, code)
            self.calls.append((call.operation, call.stream, code))

        self.after = after


def test_a_capture_is_told_from_its_begin_to_its_end(bench: Bench) -> None:
    """What a stream is can be asked as well; afterwards nothing is told."""
    d, s = bench.device, bench.stream()
    source = d.call_source()
    assert (source.blocking(bench.stream(blocking=True)), source.blocking(s)) == (True, False)
    assert source.status(s) is CaptureStatus.NONE and source.device() == 0
    follower = Follower(Asks(source))
    notes = Notes(follower)
    source.open(notes)
    try:
        d.begin_capture(s, Mode.RELAXED)
        bench.work(s)
        assert source.status(s) is CaptureStatus.ACTIVE and not follower.idle
        refused(Code.cudaErrorStreamCaptureUnsupported, d.stream_synchronize, s)
        assert source.status(s) is CaptureStatus.INVALIDATED
        refused(Code.cudaErrorStreamCaptureInvalidated, d.end_capture, s)
        assert source.status(s) is CaptureStatus.NONE and follower.idle
    finally:
        source.close()
        source.close()
    told = len(notes.calls)
    d.begin_capture(s, Mode.RELAXED)
    d.graph_destroy(d.end_capture(s))
    assert len(notes.calls) == told
    assert notes.calls[0] == (Operation.BEGIN_CAPTURE, s, 0)
    failed = [(operation, stream, code) for operation, stream, code in notes.calls if code]
    assert failed == [(Operation.STREAM_SYNCHRONIZE, s, 900), (Operation.END_CAPTURE, s, 901)]


#: A call in a capture with a lane: the code that it gets, and what becomes of the capture.
REFUSALS: dict[str, tuple[str, CaptureStatus]] = {
    'd.stream_synchronize(origin)': ('StreamCaptureUnsupported', LOST),
    'd.stream_synchronize(lane)': ('StreamCaptureUnsupported', LOST),
    'd.stream_query(origin)': ('StreamCaptureUnsupported', LOST),
    'd.stream_query(lane)': ('StreamCaptureUnsupported', LOST),
    'd.stream_flags(origin)': ('StreamCaptureUnsupported', LOST),
    'd.device_synchronize()': ('StreamCaptureUnsupported', LOST),
    'd.event_synchronize(e)': ('CapturedEvent', LOST), 'd.event_query(e)': ('CapturedEvent', LOST),
    'd.end_capture(lane)': ('StreamCaptureUnmatched', LOST),
    'd.begin_capture(origin)': ('IllegalState', ACTIVE), 'd.begin_capture(lane)': ('IllegalState', ACTIVE),
    'd.stream_wait_event(0, e)': ('StreamCaptureImplicit', LOST),
    'd.begin_capture(0)': ('StreamCaptureUnsupported', ACTIVE), 'd.end_capture(0)': ('IllegalState', ACTIVE),
}  # fmt: skip


@pytest.mark.parametrize('call', REFUSALS)
def test_refusals(bench: Bench, call: str) -> None:
    code, after = REFUSALS[call]
    d = bench.device
    origin, lane, e = forked(bench)
    refused(Code[f'cudaError{code}'], eval, call, {'d': d, 'origin': origin, 'lane': lane, 'e': e})
    assert d.stream_status(origin) is d.stream_status(lane) is after
    assert d.capture_info(origin).status is after
    if after is LOST:
        refused(Code.cudaErrorStreamCaptureInvalidated, bench.work, origin)
        refused(Code.cudaErrorStreamCaptureInvalidated, d.event_record, e, lane)
        refused(Code.cudaErrorStreamCaptureInvalidated, d.stream_priority, lane)
        refused(Code.cudaErrorStreamCaptureInvalidated, d.end_capture, origin)
    else:
        d.graph_destroy(d.end_capture(origin))
    assert d.stream_status(origin) is d.stream_status(lane) is NONE


def test_an_event_of_outside_is_isolated(bench: Bench) -> None:
    d = bench.device
    for e in bench.events():
        d.event_record(e, bench.stream())
        origin, lane, _ = forked(bench)
        refused(Code.cudaErrorStreamCaptureIsolation, d.stream_wait_event, lane, e)
        assert d.stream_status(origin) is LOST
        end_somehow(bench, origin)


def test_a_never_recorded_event_orders_nothing(bench: Bench) -> None:
    d = bench.device
    origin, _lane, _ = forked(bench)
    before = d.capture_info(origin).dependencies
    for e in bench.events():
        d.stream_wait_event(origin, e)
    assert d.capture_info(origin).dependencies == before
    d.graph_destroy(d.end_capture(origin))


def test_two_captures_do_not_merge(bench: Bench) -> None:
    d = bench.device
    one, _, _ = forked(bench)
    two, _, e = forked(bench)
    assert d.capture_info(one).number != d.capture_info(two).number
    refused(Code.cudaErrorStreamCaptureMerge, d.stream_wait_event, one, e)
    assert d.stream_status(one) is d.stream_status(two) is LOST
    for s in (one, two):
        refused(Code.cudaErrorStreamCaptureInvalidated, d.end_capture, s)


def test_captured_events_have_no_time_and_asking_is_harmless(bench: Bench) -> None:
    d, s = bench.device, bench.stream()
    e, outside = bench.timing_event(), bench.timing_event()
    d.event_record(outside, s)
    d.stream_synchronize(s)
    d.begin_capture(s)
    d.event_record(e, s)
    for pair in ((e, e), (outside, e)):
        refused(Code.cudaErrorCapturedEvent, d.event_elapsed_time, *pair)
    assert d.stream_status(s) is ACTIVE
    d.graph_destroy(d.end_capture(s))
    refused(Code.cudaErrorInvalidValue, d.event_elapsed_time, e, e)
    refused(Code.cudaErrorInvalidValue, d.event_synchronize, e)
    refused(Code.cudaErrorInvalidValue, d.stream_wait_event, s, e)


def test_ends_that_are_refused(bench: Bench) -> None:
    d = bench.device
    refused(Code.cudaErrorIllegalState, d.end_capture, bench.stream())
    origin, lane, _ = forked(bench)
    bench.work(lane)
    refused(Code.cudaErrorStreamCaptureUnjoined, d.end_capture, origin)
    assert d.stream_status(origin) is d.stream_status(lane) is NONE
    for mode in (Mode.GLOBAL, Mode.THREAD_LOCAL):
        s = bench.stream()
        d.begin_capture(s, mode)
        refused(Code.cudaErrorStreamCaptureWrongThread, bench.elsewhere, lambda s=s: d.end_capture(s))
        assert d.stream_status(s) is NONE
    s = bench.stream()
    d.begin_capture(s, Mode.RELAXED)
    d.graph_destroy(bench.elsewhere(lambda: d.end_capture(s)))


def test_graphs_do_not_go_into_captures(bench: Bench) -> None:
    d = bench.device
    g = bench.graph()
    x = bench.executable(g)
    for call in (d.graph_launch, d.graph_upload):
        for on_the_lane in (False, True):
            origin, lane, _ = forked(bench)
            with pytest.raises(RuntimeError, match='cudaErrorStreamCaptureUnsupported'):
                call(x, lane if on_the_lane else origin)
            assert d.stream_status(origin) is LOST
            end_somehow(bench, origin)


def test_the_legacy_stream_beside_a_blocking_one(bench: Bench) -> None:
    d = bench.device
    for call in (
        lambda: bench.work(0),
        lambda: d.stream_synchronize(0),
        lambda: d.event_record(bench.timing_event(), 0),
        lambda: d.stream_flags(0),
    ):
        s = bench.stream(blocking=True)
        d.begin_capture(s)
        refused(Code.cudaErrorStreamCaptureImplicit, call)
        assert d.stream_status(s) is LOST
        end_somehow(bench, s)
    s = bench.stream(blocking=True)
    d.begin_capture(s)
    refused(Code.cudaErrorStreamCaptureImplicit, d.stream_status, 0)  # asking is refused, too, but costs nothing
    assert d.stream_status(s) is ACTIVE
    end_somehow(bench, s)


def test_the_legacy_stream_runs_beside_a_non_blocking_one(bench: Bench) -> None:
    d, s = bench.device, bench.stream()
    d.begin_capture(s)
    bench.work(0)
    assert d.graph_nodes(d.capture_info(s).graph) == []
    assert d.stream_status(s) is ACTIVE
    d.graph_destroy(d.end_capture(s))


def test_a_blocking_lane_counts_as_a_blocking_stream(bench: Bench) -> None:
    d = bench.device
    origin, _lane, e = forked(bench)
    d.stream_wait_event(bench.stream(blocking=True), e)
    refused(Code.cudaErrorStreamCaptureImplicit, bench.work, 0)
    assert d.stream_status(origin) is LOST


def test_a_destroyed_lane_leaves_its_work_unjoined(bench: Bench) -> None:
    d = bench.device
    origin, _, e = forked(bench)
    lane = d.stream_create(True)
    d.stream_wait_event(lane, e)
    bench.work(lane)
    d.stream_destroy(lane)
    assert d.stream_status(origin) is ACTIVE
    refused(Code.cudaErrorStreamCaptureUnjoined, d.end_capture, origin)


def launched(b: Bench, x: int, *cells: int) -> list[int]:
    """What cells hold after a launch before which the first eight were 0."""
    s = b.stream()
    for number in range(8):
        b.fill(s, number, 0)
    b.device.graph_launch(x, s)
    b.device.stream_synchronize(s)
    return [b.read(number) for number in cells]


def fills(b: Bench, *cells: tuple[int, int]) -> int:
    """A graph that fills cells one after the other."""
    return b.recorded(lambda s: [b.fill(s, *cell) for cell in cells])


Work = Callable[[int], None]


def parted(b: Bench, left: Work, right: Work, swapped: bool = False, priority: int = 0) -> int:
    """A graph of a fork behind a fill; its lanes are recorded in this order or the other, and nothing comes after."""

    def record(s: int) -> None:
        lane = b.stream(priority=priority)
        b.fill(s, 0, 1)
        b.order(s, lane)
        for work, on in ((right, lane), (left, s)) if swapped else ((left, s), (right, lane)):
            work(on)
        b.order(lane, s)

    return b.recorded(record)


def test_a_kernels_node_has_the_priority_of_its_stream(bench: Bench) -> None:
    d = bench.device
    g = parted(bench, lambda s: bench.put(s, 1, 2), lambda s: bench.put(s, 2, 3))
    kernels = [info.handle for info in d.node_infos(g) if info.kind == 'kernel']
    assert len(kernels) == 2 and [d.node_priority(g, node) for node in kernels] == [0, 0]
    d.kernel_aim(g, kernels[1]).define()
    for by_priority in (False, True):
        assert launched(bench, bench.executable(g, by_priority), 0, 1, 2) == [1, 2, 3]


def test_an_executable_graph_takes_over_another(bench: Bench) -> None:
    d = bench.device
    old, new = fills(bench, (0, 1), (1, 2)), fills(bench, (0, 7), (2, 9))
    x = bench.executable(old)
    assert launched(bench, x, 0, 1, 2) == [1, 2, 0]
    assert d.graph_exec_update(x, new) == ('', 0)
    assert launched(bench, x, 0, 1, 2) == [7, 0, 9]
    d.graph_destroy(new)
    assert launched(bench, x, 0, 1, 2) == [7, 0, 9]
    assert d.graph_exec_update(x, old) == ('', 0)
    assert launched(bench, x, 0, 1, 2) == [1, 2, 0]


def test_heeded_node_priorities_can_not_change(bench: Bench) -> None:
    d = bench.device
    plain, quick, again = (
        parted(bench, lambda s: bench.put(s, 1, 2), lambda s: bench.put(s, 2, 3), priority=priority)
        for priority in (0, -1, -1)
    )
    heeding, other = bench.executable(quick, by_node_priority=True), bench.executable(quick)
    for x in (heeding, other):
        assert d.graph_exec_update(x, again) == ('', 0)
        assert launched(bench, x, 0, 1, 2) == [1, 2, 3]
    said, node = d.graph_exec_update(heeding, plain)
    assert said == 'attributes changed'
    assert node in d.graph_nodes(plain)
    assert launched(bench, heeding, 0, 1, 2) == [1, 2, 3]
    assert d.graph_exec_update(other, plain) == ('', 0)


#: Graphs that can not take the place of two fills in a row, with CUDA's reason; and whether it names a node.
OTHERS: dict[str, tuple[Callable[[Bench], int], str, bool]] = {
    'fewer nodes': (lambda b: fills(b, (0, 7)), 'topology changed', False),
    'more nodes': (lambda b: fills(b, (0, 7), (1, 7), (2, 7)), 'topology changed', False),
    'another kind': (
        lambda b: b.recorded(lambda s: (b.fill(s, 0, 7), b.copy(s, b.cell(1), b.cell(0)))), 'node type changed', True,
    ),
}  # fmt: skip


@pytest.mark.parametrize('name', OTHERS)
def test_updates_that_are_refused_change_nothing(bench: Bench, name: str) -> None:
    d = bench.device
    make, reason, named = OTHERS[name]
    old, new = fills(bench, (0, 1), (1, 2)), make(bench)
    x = bench.executable(old)
    said, node = d.graph_exec_update(x, new)
    assert said == reason
    assert (node in d.graph_nodes(new)) == named
    assert launched(bench, x, 0, 1) == [1, 2]
    assert d.graph_exec_update(x, old) == ('', 0)


def test_edges_must_be_the_same(bench: Bench) -> None:
    d = bench.device
    fork = parted(bench, lambda s: bench.fill(s, 1, 2), lambda s: bench.fill(s, 2, 3))
    row = fills(bench, (0, 1), (1, 2), (2, 3))
    for of, other in ((fork, row), (row, fork)):
        x = bench.executable(of)
        assert d.graph_exec_update(x, other)[0] == 'topology changed'
        assert launched(bench, x, 0, 1, 2) == [1, 2, 3]


def test_nodes_pair_once(bench: Bench) -> None:
    """As many nodes, last nodes and edges to each; but where one root has two behind it the other one has."""
    d, s = bench.device, bench.stream()

    def made(*roots: int) -> int:
        g, known = d.graph_create(), []
        for number, root in enumerate((None, None, *roots)):
            d.begin_capture_to(s, g, Mode.RELAXED, [] if root is None else [known[root]])
            bench.fill(s, number, number + 1)
            d.end_capture(s)
            known += [node for node in d.graph_nodes(g) if node not in known]
        return int(g)

    x = bench.executable(made(0, 0, 1))
    assert d.graph_exec_update(x, made(0, 0, 1)) == ('', 0)
    assert d.graph_exec_update(x, made(0, 1, 1))[0] == 'topology changed'
    assert launched(bench, x, *range(5)) == [1, 2, 3, 4, 5]


def test_the_order_of_different_last_nodes_does_not_matter(bench: Bench) -> None:
    """CUDA's guide says that it does; this is what drivers do (580.159.04, CUDA 13.0, 2026-11-21)."""
    d = bench.device

    def made(swapped: bool) -> int:
        copy = lambda s: bench.copy(s, bench.cell(1), bench.cell(0))  # noqa: E731
        return parted(bench, copy, lambda s: bench.fill(s, 2, 3), swapped)

    x = bench.executable(made(False))
    assert d.graph_exec_update(x, made(False)) == ('', 0)
    assert d.graph_exec_update(x, made(True)) == ('', 0)
    assert launched(bench, x, 0, 1, 2) == [1, 1, 3]


def test_an_update_may_change_the_memory_type_of_a_copy(bench: Bench) -> None:
    """CUDA's guide says that they may not; this is what drivers do (580.159.04, CUDA 13.0, 2026-11-21)."""
    d = bench.device
    device, other = (bench.recorded(lambda s, to=to: bench.copy(s, bench.cell(to), bench.cell(0))) for to in (1, 2))
    host = bench.recorded(lambda s: bench.copy(s, bench.cell(1), bench.pinned()))
    x = bench.executable(device)
    assert d.graph_exec_update(x, other) == ('', 0)
    assert d.graph_exec_update(x, host) == ('', 0)


def with_child(b: Bench, *cells: tuple[int, int]) -> int:
    d = b.device
    child, g = fills(b, *cells), d.graph_create()
    d.add_child(g, [], child)
    d.graph_destroy(child)
    return g


def test_child_graphs_are_updated_too(bench: Bench) -> None:
    d = bench.device
    g = with_child(bench, (0, 1), (1, 2))
    x = bench.executable(g)
    assert d.graph_exec_update(x, with_child(bench, (0, 5), (1, 6))) == ('', 0)
    assert launched(bench, x, 0, 1) == [5, 6]
    assert d.graph_exec_update(x, with_child(bench, (0, 7)))[0] != ''
    assert launched(bench, x, 0, 1) == [5, 6]
    (node,) = d.graph_nodes(g)
    child = fills(bench, (2, 8), (3, 9))
    d.child_take(x, node, child)
    assert launched(bench, x, 0, 1, 2, 3) == [0, 0, 8, 9]
    with pytest.raises(CudaCallError):
        d.child_take(x, node, fills(bench, (0, 7)))
    d.set_child(g, node, child)
    second = bench.executable(g)
    assert launched(bench, second, 0, 1, 2, 3) == [0, 0, 8, 9]
    refused(Code.cudaErrorGraphExecUpdateFailure, d.set_child, g, node, fills(bench, (0, 7)))


def decided(b: Bench, *cells: tuple[int, int], default: int = 1) -> tuple[int, int]:
    """A graph of one conditional node, whose body fills cells one after the other; and the body."""
    d, s = b.device, b.stream()
    g = d.graph_create()
    _, (body,) = d.add_conditional(g, [], d.condition_create(g, default), 'if', 1)
    d.begin_capture_to(s, body)
    for cell in cells:
        b.fill(s, *cell)
    d.end_capture(s)
    return g, body


def test_conditions_and_bodies_are_updated_too(bench: Bench) -> None:
    d = bench.device
    x = bench.executable(decided(bench, (0, 1), default=0)[0])
    assert launched(bench, x, 0) == [0]
    assert d.graph_exec_update(x, decided(bench, (0, 5))[0]) == ('', 0)
    assert launched(bench, x, 0) == [5]
    assert d.graph_exec_update(x, decided(bench, (0, 5), (1, 5))[0])[0] != ''
    assert launched(bench, x, 0) == [5]


def test_copies_of_graphs(bench: Bench) -> None:
    d = bench.device
    g = parted(bench, lambda s: bench.fill(s, 1, 2), lambda s: bench.fill(s, 2, 3))
    copy = d.graph_clone(g)
    mine, theirs = d.graph_nodes(g), d.graph_nodes(copy)
    assert len(theirs) == 3 and not set(mine) & set(theirs)
    of = dict(zip(mine, theirs))
    assert sorted(d.graph_edges(copy)) == sorted((of[a], of[b]) for a, b in d.graph_edges(g))
    assert [d.node_kind(copy, n) for n in theirs] == [d.node_kind(g, n) for n in mine]
    d.graph_destroy(g)
    assert launched(bench, bench.executable(copy), 0, 1, 2) == [1, 2, 3]
    d.graph_destroy(copy)
    conditional = d.graph_create()
    d.add_conditional(conditional, [], d.condition_create(conditional), 'if', 1)
    with pytest.raises(CudaCallError):
        d.graph_clone(conditional)


def test_nodes_are_disabled_and_enabled(bench: Bench) -> None:
    d = bench.device
    g = fills(bench, (0, 1), (1, 2))
    first, second = d.graph_nodes(g)
    x, other = bench.executable(g), bench.executable(g)
    d.node_enable(x, first, False)
    assert [d.node_enabled(x, n) for n in (first, second)] == [False, True]
    assert d.node_enabled(other, first)
    assert (launched(bench, x, 0, 1), launched(bench, other, 0, 1)) == ([0, 2], [1, 2])
    assert d.graph_exec_update(x, fills(bench, (0, 5), (1, 6))) == ('', 0)
    assert launched(bench, x, 0, 1) == [0, 6], 'an update leaves it as it is'
    d.node_enable(x, first, True)
    assert launched(bench, x, 0, 1) == [5, 6]


def test_some_kinds_can_not_be_disabled(bench: Bench) -> None:
    d, e = bench.device, bench.device.event_create()
    g = bench.recorded(lambda s: d.event_record(e, s, True))
    x = bench.executable(g)
    for call in (lambda n: d.node_enable(x, n, False), lambda n: d.node_enabled(x, n)):
        with pytest.raises(CudaCallError):
            call(d.graph_nodes(g)[0])


def test_memsets_and_copies_are_given_something_else(bench: Bench) -> None:
    """The definition first, which changes no executable graph; then the executable graph takes it over."""
    d = bench.device
    g = bench.recorded(lambda s: (bench.fill(s, 0, 1), bench.copy(s, bench.cell(1), bench.cell(0))))
    fill, copy = d.graph_nodes(g)
    x = bench.executable(g)
    changes = [
        d.set_memset(g, fill, bench.cell(2), 5, 64),
        d.set_memcpy(g, copy, bench.cell(3), bench.cell(2), 32),
    ]
    assert [info.detail for info in d.node_infos(g)] == [
        {'dst': bench.cell(2), 'value': 5, 'bytes': 64}, {'dst': bench.cell(3), 'src': bench.cell(2), 'bytes': 32},
    ]  # fmt: skip
    filled, copied = (d.graph_accesses(g)[node] for node in (fill, copy))
    assert [(*one.extent, one.writes) for one in filled.accesses] == [(bench.cell(2), bench.cell(2) + 64, True)]
    assert {(*one.extent, one.writes) for one in copied.accesses} == {
        (bench.cell(3), bench.cell(3) + 32, True), (bench.cell(2), bench.cell(2) + 32, False),
    }  # fmt: skip
    assert filled.complete and copied.complete
    assert launched(bench, x, 0, 1, 2, 3) == [1, 1, 0, 0]
    assert [d.node_info(g, node) for node in (fill, copy)] == d.node_infos(g)
    for node in (fill, copy):
        d.node_take(x, node, g, node)
    assert launched(bench, x, 0, 1, 2, 3) == [0, 0, 5, 5]
    for change in changes:
        change.undo()
    for node in (fill, copy):
        d.node_take(x, node, g, node)
    assert launched(bench, x, 0, 1, 2, 3) == [1, 1, 0, 0]

    def to_host() -> None:
        d.set_memcpy(g, copy, bench.cell(1), bench.pinned(), 64)
        d.node_take(x, copy, g, copy)

    with pytest.raises(CudaCallError):
        to_host()
    assert launched(bench, x, 0, 1) == [1, 1]


def test_kernels_are_given_something_else(bench: Bench) -> None:
    d = bench.device
    g = bench.recorded(lambda s: bench.put(s, 0, 1))
    (node,) = d.graph_nodes(g)
    x = bench.executable(g)
    pointer, value = d.node_arguments(g, node)
    assert (pointer.data, value.data) == (np.uint64(bench.cell(0)).tobytes(), np.int32(1).tobytes())
    args = [np.uint64(bench.cell(1)).tobytes(), np.int32(9).tobytes()]
    change = d.set_kernel(g, node, (1, 1, 1), (2, 1, 1), 128, args)
    assert [one.data for one in d.node_arguments(g, node)] == args
    assert d.node_infos(g)[0].detail == {'grid': (1, 1, 1), 'block': (2, 1, 1), 'shared': 128}
    assert launched(bench, x, 0, 1) == [1, 0]
    d.node_take(x, node, g, node)
    assert launched(bench, x, 0, 1) == [0, 9]
    change.undo()
    d.node_take(x, node, g, node)
    assert launched(bench, x, 0, 1) == [1, 0]


def test_addresses_in_kernels_are_changed_again_and_again(bench: Bench) -> None:
    d = bench.device
    g = bench.recorded(lambda s: bench.put(s, 0, 1))
    (node,) = d.graph_nodes(g)
    x = bench.executable(g)
    aim = d.kernel_aim(g, node)
    assert [one.data for one in aim.arguments] == [one.data for one in d.node_arguments(g, node)]
    for cell in (1, 0, 2):
        aim.write(0, 0, bench.cell(cell))
        aim.put(x, node)
        assert launched(bench, x, 0, 1, 2) == [int(cell == n) for n in range(3)]
        assert d.node_arguments(g, node)[0].data == np.uint64(bench.cell(cell)).tobytes()


def test_an_executable_graph_takes_over_a_foreign_node(bench: Bench) -> None:
    """After an update the definition is another, and the executable graph's nodes have the handles of the first."""
    d = bench.device
    old, new = fills(bench, (0, 1), (1, 2)), fills(bench, (0, 5), (1, 6))
    x = bench.executable(old)
    assert d.graph_exec_update(x, new) == ('', 0)
    d.set_memset(new, d.graph_nodes(new)[1], bench.cell(2), 7, 64)
    d.node_take(x, d.graph_nodes(old)[1], new, d.graph_nodes(new)[1])
    assert launched(bench, x, 0, 1, 2) == [5, 0, 7]


def test_host_functions_are_exchanged(bench: Bench) -> None:
    d, called = bench.device, []
    g = bench.recorded(lambda s: bench.call(s, lambda: called.append('old')))
    (node,) = d.graph_nodes(g)
    assert d.node_kind(g, node)[0] == 'host'
    x = bench.executable(g)
    change = d.set_host(g, node, lambda: called.append('new'))
    launched(bench, x)
    assert called == ['old']
    d.node_take(x, node, g, node)
    launched(bench, x)
    assert called == ['old', 'new']
    change.undo()
    d.node_take(x, node, g, node)
    launched(bench, x)
    assert called == ['old', 'new', 'old']


def test_events_of_nodes_are_exchanged(bench: Bench) -> None:
    d, (one, two) = bench.device, bench.events()
    g = bench.recorded(lambda s: (bench.fill(s, 0, 1), d.event_record(one, s, True), d.stream_wait_event(s, one, True)))
    fill, record, wait = d.graph_nodes(g)
    assert [d.node_kind(g, n)[0] for n in (record, wait)] == ['event record', 'wait event']
    x = bench.executable(g)
    for node in (record, wait):
        d.set_event(g, node, two)
        d.node_take(x, node, g, node)
    assert launched(bench, x, 0) == [1]
    with pytest.raises(CudaCallError):
        d.set_event(g, fill, two)


@pytest.mark.serial
def test_nodes_are_timed(bench: Bench) -> None:
    """A row, a lane beside it, and a node that is disabled; launched as often as it is said."""
    d, s, called = bench.device, bench.stream(), []

    def lanes(s: int) -> None:
        lane = bench.stream()
        bench.fill(s, 0, 1)
        bench.order(s, lane)
        bench.copy(s, bench.cell(1), bench.cell(0))
        bench.put(lane, 2, 3)
        bench.fill(lane, 3, 4)
        bench.order(lane, s)
        bench.call(s, lambda: called.append(1))

    g = bench.recorded(lanes)
    fill, copy, put, off, host = d.graph_nodes(g)
    x = bench.executable(g)
    d.node_enable(x, off, False)
    for number in range(8):
        bench.fill(s, number, 0)
    times = d.graph_measure(g, x, s, 3, 2, [off])
    assert [bench.read(number) for number in range(4)] == [1, 1, 3, 0]
    assert len(called) == 2 * (3 + 2)
    assert times.source == ('modelled' if isinstance(d, SimulatedDevice) else 'measured')
    assert times.nodes.keys() == {fill, copy, put, host}
    assert len(times.plain) == len(times.marked) == 3 and min(times.mark) >= 0
    for number in range(3):
        ran = {node: pairs[number] for node, pairs in times.nodes.items()}
        assert len(times.nodes[fill]) == 3
        assert all(0 <= start <= end <= times.marked[number] for start, end in ran.values())
        for before, after in ((fill, copy), (fill, put), (copy, host), (put, host)):
            # by events, marks on two queues of the device are stamped some microseconds apart: up to 3 were seen
            assert ran[before][1] <= ran[after][0] + 5
    assert sorted(d.graph_nodes(g)) == sorted((fill, copy, put, off, host)), 'the graph itself stays as it is'
    assert d.graph_time(x, s) > 0 and len(called) == 2 * (3 + 2) + 1
    conditional = d.graph_create()
    d.add_conditional(conditional, [], d.condition_create(conditional), 'if', 1)
    with pytest.raises(CudaCallError):
        d.graph_measure(conditional, bench.executable(conditional), s, 1, 0, (), 'events')


# -- edges ------------------------------------------------------------------------------------------------------


def test_edges_are_removed_and_added(bench: Bench) -> None:
    d = bench.device
    g = fills(bench, (0, 1), (1, 2), (2, 3))
    first, second, third = d.graph_nodes(g)
    old = bench.executable(g)
    d.graph_rewire(g, [(first, second)], [(first, third)])
    assert d.graph_nodes(g) == [first, second, third]
    assert sorted(d.graph_edges(g)) == sorted([(first, third), (second, third)])
    for removed, added in (([(first, second)], []), ([], [(first, third)])):
        with pytest.raises(CudaCallError):
            d.graph_rewire(g, removed, added)
        assert sorted(d.graph_edges(g)) == sorted([(first, third), (second, third)])
    for x in (old, bench.executable(g)):
        assert launched(bench, x, 0, 1, 2) == [1, 2, 3]


def test_edges_of_a_conditional_nodes_body_are_removed(bench: Bench) -> None:
    d = bench.device
    g, body = decided(bench, (0, 1), (1, 2))
    for rewired in (False, True):
        if rewired:
            d.graph_rewire(body, d.graph_edges(body), [])
            assert d.graph_edges(body) == []
        x = d.graph_instantiate(g)
        assert launched(bench, x, 0, 1) == [1, 2]
        d.graph_exec_destroy(x)


def test_with_conditional_nodes_one_executable_at_a_time(bench: Bench) -> None:
    d = bench.device
    g, _body = decided(bench, (0, 1))
    first = d.graph_instantiate(g)
    with pytest.raises(CudaCallError, match='cudaErrorNotSupported'):
        d.graph_instantiate(g)
    assert launched(bench, first, 0) == [1]
    d.graph_exec_destroy(first)
    second = d.graph_instantiate(g)
    assert launched(bench, second, 0) == [1]
    d.graph_exec_destroy(second)

"""One contract, two devices: what ``CudaDevice`` and ``SimulatedDevice`` answer to the same verbs.

The simulated half runs anywhere, the CUDA half on a GPU. Each test gets a :class:`Bench`: the device, and the few
things that have no verb (work, an event with timing, another thread).
"""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from capturekit.driver.cuda import CudaDevice
from capturekit.model.cuda_functions import ApiCall
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


def test_every_verb_is_used_in_these_files() -> None:
    text = ''.join(path.read_text() for path in Path(__file__).parent.glob('test_contract*.py'))
    assert [name for name in (*verbs(CudaDevice), 'graph_launch') if f'.{name}' not in text] == []


# -- streams --------------------------------------------------------------------------------------------------------


def test_streams(bench: Bench) -> None:
    d = bench.device
    plain, blocking = d.stream_create(non_blocking=True), d.stream_create()
    quick = d.stream_create(True, -1)
    assert len({plain, blocking, quick}) == 3
    assert d.driver_version() >= 12080
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


def test_memory_is_told(bench: Bench) -> None:
    free, total = bench.device.mem_get_info()
    assert 0 < free <= total


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
    g = d.end_capture(origin)
    d.exchange_thread_mode(old)
    assert d.event_state(captured) is EventState.DEAD
    d.event_record(captured, lane)
    assert d.event_state(captured) is EventState.OUTSIDE
    d.graph_destroy(g)


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
    e = d.event_create()
    d.event_record(e, origin)
    d.stream_wait_event(lane, e)
    assert last(lane) == seen[0]
    for stream in (lane, origin, lane):
        bench.work(stream)
        seen.append(last(stream))
        assert (seen[-1],) == d.capture_info(stream).dependencies
    assert d.graph_nodes(d.capture_info(origin).graph) == seen
    d.event_record(e, lane)
    d.stream_wait_event(origin, e)
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
    e = d.event_create()
    d.event_record(e, origin)
    d.stream_wait_event(lane, e)
    assert d.stream_status(lane) is ACTIVE
    assert (d.capture_info(lane).number, d.capture_info(lane).dependencies) == (first.number, a)
    bench.work(lane)
    b = d.capture_info(lane).dependencies
    bench.work(origin)
    c = d.capture_info(origin).dependencies
    d.event_record(e, lane)
    d.stream_wait_event(origin, e)
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
    d.graph_destroy(g)


def test_two_captures_have_numbers_of_their_own(bench: Bench) -> None:
    d, one, two = bench.device, bench.stream(), bench.stream()
    d.begin_capture(one)
    d.begin_capture(two)
    assert d.capture_info(one).number != d.capture_info(two).number
    for s in (two, one):
        d.graph_destroy(d.end_capture(s))


def test_a_graph_is_instantiated_uploaded_launched_and_destroyed(bench: Bench) -> None:
    d, s = bench.device, bench.stream()
    g = bench.graph(pieces=3)
    assert d.graph_node_count(g) == 3
    assert all(isinstance(part, str) for node in d.graph_nodes(g) for part in d.node_kind(g, node))
    x = d.graph_instantiate(g)
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
    d.graph_exec_destroy(x)


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
    d.graph_destroy(g)


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
    node, body = d.add_if(top, [first], yes)
    d.begin_capture_to(s, body)
    assert d.capture_info(s).graph == body
    assert d.capture_info(s).dependencies == ()
    no = d.condition_create(top)
    bench.work(s)
    bench.work(s)
    assert d.end_capture(s) == body
    behind, skipped = d.add_if(top, [node], no)
    d.begin_capture_to(s, skipped, Mode.THREAD_LOCAL)
    bench.work(s)
    d.end_capture(s)
    assert set(d.graph_nodes(top)) == {first, node, behind}
    assert set(d.graph_edges(top)) == {(first, node), (node, behind)}
    assert [d.graph_node_count(g) for g in (top, body, skipped)] == [3, 2, 1]
    assert d.graph_edge_count(body) == 1
    assert [d.node_kind(top, n)[0] for n in (node, behind)] == ['conditional'] * 2
    assert d.graph_dot(top).count('->') >= 2
    x = d.graph_instantiate(top)
    for _ in range(2):
        assert ran(bench, x, s) in (3, None)
    d.graph_destroy(top)
    assert ran(bench, x, s) in (3, None)
    d.graph_exec_destroy(x)


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
    x = d.graph_instantiate(top)
    runs = {('if', 0): 2, ('if', 5): 1, ('switch', 1): 2, ('switch', 7): 0}[decides, default]
    assert ran(bench, x, s) in (2 + runs, None)
    d.graph_exec_destroy(x)
    d.graph_destroy(top)


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
    x = d.graph_instantiate(g)
    assert ran(bench, x, s) in (1, None)
    d.graph_exec_destroy(x)
    d.graph_destroy(g)


@pytest.mark.parametrize(('decides', 'count'), [('while', 2), ('if', 3), ('switch', 0)])
def test_conditional_nodes_have_so_many_bodies(bench: Bench, decides: str, count: int) -> None:
    d = bench.device
    g = d.graph_create()
    refused(Code.cudaErrorInvalidValue, d.add_conditional, g, [], d.condition_create(g), decides, count)
    assert d.graph_nodes(g) == []
    d.graph_destroy(g)


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
    x = d.graph_instantiate(g)
    d.graph_destroy(g)
    assert ran(bench, x, s) in (5, None)
    d.graph_exec_destroy(x)


def test_nodes_are_taken_out_with_their_edges(bench: Bench) -> None:
    d, g = bench.device, bench.graph(pieces=3)
    first, second, third = d.graph_nodes(g)
    assert len(d.graph_edges(g)) == 2
    d.node_destroy(second)
    assert d.graph_nodes(g) == [first, third] and d.graph_edges(g) == []
    x, s = d.graph_instantiate(g), bench.stream()
    assert ran(bench, x, s) in (2, None)
    d.graph_exec_destroy(x)
    d.graph_destroy(g)


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
    d.graph_destroy(g)


@pytest.mark.parametrize('how', ['unjoined', 'lost'])
def test_a_capture_to_a_graph_that_ends_badly_destroys_it(bench: Bench, how: str) -> None:
    d, g, s, lane = bench.device, bench.graph(pieces=1), bench.stream(), bench.stream()
    for joined in (True, False):
        d.begin_capture_to(s, g)
        e = d.event_create()
        d.event_record(e, s)
        d.stream_wait_event(lane, e)
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
    d.graph_destroy(g)


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
    d.graph_destroy(g)


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
    d.graph_destroy(g)


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
    d, s = bench.device, bench.stream()
    source = d.call_source()
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
    assert notes.calls[0] == (Operation.BEGIN_CAPTURE, s, 0)
    failed = [(operation, stream, code) for operation, stream, code in notes.calls if code]
    assert failed == [(Operation.STREAM_SYNCHRONIZE, s, 900), (Operation.END_CAPTURE, s, 901)]


def test_what_a_stream_is_can_be_asked(bench: Bench) -> None:
    source = bench.device.call_source()
    blocking, other = bench.stream(blocking=True), bench.stream()
    assert (source.blocking(blocking), source.blocking(other)) == (True, False)
    assert source.status(other) is CaptureStatus.NONE and source.device() == 0


def test_afterwards_nothing_is_told(bench: Bench) -> None:
    d, s = bench.device, bench.stream()
    source = d.call_source()
    notes = Notes(Follower(Asks(source)))
    source.open(notes)
    source.close()
    source.close()
    d.begin_capture(s, Mode.RELAXED)
    d.graph_destroy(d.end_capture(s))
    assert notes.calls == []

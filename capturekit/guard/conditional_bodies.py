"""Conditional nodes in an open capture: work that the device decides about at every launch.

All lanes are joined, and a kernel that sets the condition comes before the node. The bodies of the node are recorded
one after the other: the driver's capture on the origin ends, begins again into the body, ends there, and continues
after the node (CUDA C++ Programming Guide, "Conditional Graph Nodes").

An array that was made in a body has a value only while the body runs. From then to the end of the capture it is of a
class that refuses whatever CuPy asks it. CuPy does not ask for everything (``out=``), so at the end the nodes outside
of the body are looked through, too. The memory is held until then, so that no other array can have got it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn

from capturekit.driver.node_accesses import Access, Touched, linear, overlap
from capturekit.guard.captures import Parts, decided_here, emptied, end_driver_capture, join_for_good
from capturekit.guard.lanes import Lanes
from capturekit.guard.open_capture import OpenCapture
from capturekit.guard.state import State
from capturekit.launch.current_stream import current_for_now
from capturekit.launch.own_kernels import KERNEL, decide
from capturekit.launch.plan import Part
from capturekit.model import errors
from capturekit.model.cleanup import collections, instances, others_of
from capturekit.model.errors import CaptureError, CudaCallError
from capturekit.model.rules import Code
from capturekit.model.source_line import Place, here, raised_at

#: What may be asked of such an array: nothing of this is work, and none of it leads to work in CuPy's compiled code.
_HARMLESS = frozenset(
    {
        'shape', 'dtype', 'itemsize', 'size', 'nbytes', 'strides', 'data', 'base', '_shape', '_strides', '__class__',
        '__doc__', '__module__', '__dict__',
    }
)  # fmt: skip
#: CuPy looks for these methods, and its compiled code takes any exception of the look-up for their absence.
_CALLED = ('__cupy_override_elementwise_kernel__', '__cupy_override_reduction_kernel__')


@dataclass(eq=False)
class LeftMemory:
    """Memory of an array that has outlived its body: the line that made it, and how many nodes there were by then."""

    mem: Any
    made: Place | None
    decides: str
    body: Place | None
    nodes: dict[int, int]

    def refusal(self, at: Place | None) -> CaptureError:
        """The error for work outside of the body that uses the array."""
        return errors.UnsupportedCallError(
            'Work with an array that was made in the body of a decision',
            location=at,
            rule=f'The array was made at {self.made}, in a body of `{self.decides}` (at {self.body}) that has ended. '
            'It has a value only while that body runs, and the device decides at each launch whether it does.',
            remedy=RETURNED,
        )

    def met_by(self, access: Access) -> bool:
        """Whether a node touches the memory. Where only an address is known, it may be what was left in a structure."""
        low, high = access.extent
        start = int(self.mem.ptr)
        return bool(access.itemsize) and low < start + int(self.mem.size) and start < high


#: What to write instead.
RETURNED = (
    'Let the decision return it: `y = cap.cond(condition, lambda: ..., lambda: ...)`, `x = cap.loop(condition, body, '
    'x)`; or write into an array from before the decision: `y[...] = ...`.'
)


def made_at(value: Any) -> int:
    """The address of the memory of an array; 0 for other values."""
    data = getattr(value, 'data', None)
    return int(getattr(getattr(data, 'mem', None), 'ptr', 0))


@functools.lru_cache(1)  # there is one CuPy, but in tests
def _class_of(kind: Any, refuse: Callable[[Any], NoReturn]) -> type:
    """A class with the layout of CuPy's arrays, whose objects refuse what they are asked."""

    class Left(kind):  # type: ignore[misc]
        """An array that was made in a body which has ended."""

        __slots__ = ()

        def __getattribute__(self, name: str) -> Any:
            if name in _HARMLESS:
                return super().__getattribute__(name)
            return (lambda *_args, **_kwargs: refuse(self)) if name in _CALLED else refuse(self)

        def __array_finalize__(self, obj: Any) -> None:
            refuse(obj)

    def refused(self: Any, *_args: Any) -> NoReturn:
        refuse(self)

    for name in 'getitem setitem iter len matmul rmatmul imatmul bool int float complex'.split():
        setattr(Left, f'__{name}__', refused)
    Left.__name__ = Left.__qualname__ = kind.__name__
    return Left


def _graphs(live: OpenCapture, now: int) -> list[int]:
    """The graphs that the capture has recorded into so far, with the present one."""
    parts = [] if live.parts.plan is None else [*live.parts.plan.parts, live.parts.current]
    graphs = [now]
    graphs += [graph for part in parts if part is not None for graph in (part.graph, *part.bodies) if graph]
    graphs += [body for bodies in live.decisions.bodies.values() for body in bodies]
    return list(dict.fromkeys(graphs))


@dataclass(eq=False)
class Decision:
    """A conditional node: what it decides (if, while or switch), by which array, and where the recording stands."""

    decides: str
    condition: Any
    limit: int
    at: Place | None
    graph: int = 0
    node: int = 0
    handle: int = 0
    bodies: list[int] = field(default_factory=list)
    passes: Any = None
    inside: int | None = None
    before: Any = None
    #: How many nodes of its graph were numbered when it was made.
    numbered: int = 0
    #: What its open body has made: by address, the line that allocated the memory of an array.
    made: dict[int, Place | None] = field(default_factory=dict)
    #: How often garbage was collected before that.
    collections: int = -1
    #: The graph of its open body, and those of the bodies in it.
    graphs: set[int] = field(default_factory=set)
    #: Where the recording stood when its open body began: the lines of the nodes, the numbers of nodes and of edges.
    began: tuple[Any, int, int] = (None, 0, 0)

    @property
    def call(self) -> str:
        """The call that made it."""
        name = {'while': 'while_', 'if': 'if_' if len(self.bodies) == 1 else 'if_else', 'switch': 'switch'}
        return f'cap.{name[self.decides]}(...)'


#: Why the body of a decision can't hold what the host does.
_DECIDED = 'runs on the device as often as the device decides: nothing in it can come from the host, or allocate memory'


class Bodies:
    """Conditional nodes in an open capture: work that the device decides about at every launch."""

    def __init__(self, state: State, lanes: Lanes, parts: Parts) -> None:
        self.state, self.lanes, self.parts = state, lanes, parts
        #: By address: the memory of all arrays that have outlived their body.
        self._left: dict[int, LeftMemory] = {}

    def decide(self, live: OpenCapture, decision: Decision, dropped: bool) -> None:
        """Record the kernel that sets the condition, and the node with empty bodies. ``dropped``: the code drops what
        the call returns, so that no body can follow."""
        device, count = live.platform.device, len(decision.bodies)
        if live.decisions.asked and live.decisions.asked[-1].inside is None:
            raise _between(decision.at)
        if self.parts.device_count(live) > 1 or self.state.current_device() != live.origin_device:
            raise decided_here(f'A decision on the device: {decision.decides}')
        if not device.can_decide(decision.decides, count):
            raise errors.UnsupportedCallError(
                f'A decision on the device: {decision.decides}',
                location=decision.at,
                rule='Loops and branches came to CUDA with 12.4, branches with an else and switches with 12.8; this '
                'driver, or this cuda-bindings, is older.',
                remedy='Decide on the host, between two graphs; or update the driver and cuda-bindings.',
                cuda_error=Code.cudaErrorNotSupported.name,
            )
        if dropped:
            raise without_a_body(decision)
        part = Part() if live.recorder.into else self.parts.part_of(live)
        before = self._one_line(live, decision.at)
        with self.state.inside:
            decision.graph = device.capture_info(live.origin.ptr).graph
            part.graph = live.recorder.into or part.graph or decision.graph
            decision.handle = device.condition_create(part.graph)
            decision.passes = live.platform.cupy.ndarray((1,), 'u8', live.graph_memory.grow(8))
            with current_for_now(live.platform.cupy.cuda, live.origin):
                self._set(live, decision, again=False)
            after = device.capture_info(live.origin.ptr).dependencies
            self._number(live, decision.graph)
            decision.node, decision.bodies[:] = device.add_conditional(
                decision.graph, after, decision.handle, decision.decides, count
            )
            part.decided[decision.node] = live.decisions.bodies[decision.node] = list(decision.bodies)
            decision.numbered = live.parts.numbered[decision.graph] = device.graph_node_count(decision.graph)
            device.set_dependencies(live.origin.ptr, [decision.node])
        live.decisions.unentered.append(decision)
        if before.ptr != live.origin.ptr and live.lane_of(before) is not None:
            before.wait_event(live.origin.record())  # the later work of the stream that is current comes after the node
            with self.state.inside:
                device.set_dependencies(before.ptr, [decision.node])
        live.note('decision', self.lanes.current_lane(live), f'{decision.decides}: the device decides', decision.at)

    def _set(self, live: OpenCapture, decision: Decision, *, again: bool, limit: int = 0) -> None:
        truth, limit = decision.decides != 'switch', limit or decision.limit
        decide(live.platform, decision.condition, truth, decision.passes, again, limit, decision.handle)

    def _one_line(self, live: OpenCapture, at: Place | None) -> Any:
        """Join the current lane, and in adapting mode all others; return the stream that is current."""
        current = self.state.current_stream()
        if current.ptr != live.origin.ptr and live.lane_of(current) is not None:
            live.origin.wait_event(current.record())
        return self.parts.leave_lanes(live, at, 'A decision while lanes are open', _JOINED)

    def _number(self, live: OpenCapture, graph: int) -> None:
        """Number the nodes that a graph has so far, before recording continues in another graph."""
        if live.trace is not None:
            live.poll()
            live.trace.next_part(live.order_of(graph))

    def enter_body(self, live: OpenCapture, decision: Decision, number: int, at: Place | None) -> None:
        """Continue the recording in a body of the node."""
        self.nothing_between(live, decision, at)
        body = decision.bodies[number]
        self.suspend(live, decision.graph)
        decision.inside, decision.made, decision.graphs = number, {}, {body}
        decision.collections = collections()
        for around in live.decisions.open:
            around.graphs.add(body)
        lines = None if live.trace is None else live.trace.now()
        decision.began = lines, live.recording.node_count, live.recording.edge_count
        live.decisions.open.append(decision)
        if decision.decides == 'while':
            live.graph_memory.enter_loop()
        self.parts.go_on(live, decision.before, at, body)

    def nothing_between(self, live: OpenCapture, decision: Decision, at: Place | None) -> None:
        """Refuse work that was recorded after the node, where the code is still about the decision; take it out."""
        decision.before = self._one_line(live, at)  # this shows work on other lanes since then, too
        device, trace = live.platform.device, live.trace
        with self.state.inside:
            info = device.capture_info(live.origin.ptr)
            if info.dependencies == (decision.node,):
                return
            nodes = live.order_of(decision.graph)
            found = trace.maker(nodes[0], nodes) if trace is not None and nodes else None
            refusal = _between(found or at)
            alone = info.graph == decision.graph and live.parts.numbered[info.graph] == decision.numbered
            if alone:  # no other decision was made since, so that the nodes can be taken out
                end_driver_capture(live)
                self.parts.has_ended(live)
                try:
                    for node in reversed(nodes):
                        device.node_destroy(node)
                except CudaCallError:  # a graph that allocates memory keeps all its nodes
                    live.decisions.broken = live.decisions.broken or (found or at, _told_of(refusal))
                if trace is not None:
                    trace.back_to(trace.now())
        if alone:
            self.parts.go_on(live, decision.before, at, decision.graph, [decision.node])
        raise refusal

    def suspend(self, live: OpenCapture, graph: int) -> None:
        """End the driver's capture; the graph will be continued."""
        with self.state.inside:
            self._number(live, graph)
            end_driver_capture(live)
            self.parts.has_ended(live)

    def leave_body(
        self, live: OpenCapture, decision: Decision, at: Place | None, error: BaseException | None, wrong: Any = None
    ) -> None:
        """End a body, and continue after the node. ``error``: the exception that leaves it; ``wrong``: a refusal, which
        is raised after the body was taken out, so that the capture stays good."""
        fault = wrong
        body = decision.bodies[decision.inside or 0]
        try:
            if error is None and fault is None:
                self._one_line(live, at)
                if decision.decides == 'while':
                    with self.state.inside, current_for_now(live.platform.cupy.cuda, live.origin):
                        self._set(live, decision, again=True)
        except BaseException as failure:
            fault = failure
        with self.state.inside:
            whole = self._end_body(live, body)
            live.decisions.open.pop()
            decision.inside = None
            if whole and fault is None and error is None:
                why, code = ('A body holds', 'Call it before the decision, or after it.'), Code.cudaErrorNotSupported
                fault = self.parts.unfit_node(live, body, at, 'in the body of a conditional node', *why, code)
                fault = fault or self.parts.unfit_copies(live, body)
                fault = fault or _endless(live, decision, body)
            if whole and (wrong is not None or isinstance(fault, errors.CaptureError)) and not live.lost:
                self._take_out(live, decision, body)
            elif fault is not None or error is not None:
                live.decisions.broken = live.decisions.broken or (at or decision.at, _told_of(error or fault))
            if decision.decides == 'while' and live.graph_memory.leave_loop():
                text = 'an array from before the loop was dropped in its body: each pass reads it as it was'
                live.note('note', None, text, at)
            if whole and not live.lost and not live.parts.spoilt:
                self.left_by(live, decision)
        self.parts.go_on(live, decision.before, at, decision.graph, [decision.node])
        try:
            if fault is not None:
                raise fault
        finally:
            del fault, error, wrong  # their tracebacks hold this frame

    def _take_out(self, live: OpenCapture, decision: Decision, body: int) -> None:
        """Empty a body that has ended. A loop gets the end of a pass, after which no other one follows."""
        device, recording, trace = live.platform.device, live.recording, live.trace
        emptied(device, body, live.decisions.bodies)
        if decision.decides == 'while':
            with self.state.lock, current_for_now(live.platform.cupy.cuda, live.origin):
                self.parts.begin(live, body)
                self._set(live, decision, again=True, limit=1)
                end_driver_capture(live)
        lines, recording.node_count, recording.edge_count = decision.began
        for graph in decision.graphs:
            live.parts.numbered.pop(graph, None)
        if trace is not None:
            trace.back_to(lines)
            trace.next_part(live.order_of(body))
        recording.node_count += device.graph_node_count(body)
        recording.edge_count += device.graph_edge_count(body)

    def _end_body(self, live: OpenCapture, body: int) -> bool:
        """End the driver's capture into a body; False if it is lost. Open lanes are joined before."""
        device = live.platform.device
        with suppress(CudaCallError):  # the capture is lost, and that will be reported
            self._number(live, body)
            live.recording.node_count += device.graph_node_count(body)
            live.recording.edge_count += device.graph_edge_count(body)
            join_for_good(device, live.origin.ptr, body)
        whole = True
        try:
            end_driver_capture(live)
        except CudaCallError as lost:
            whole, live.decisions.broken = False, live.decisions.broken or (here(), _told_of(lost))
        self.parts.has_ended(live)
        return whole

    @staticmethod
    def not_in_body(
        live: OpenCapture | None, what: str, remedy: str, why: str = _DECIDED, code: Code = Code.cudaErrorNotSupported
    ) -> None:
        """Raise an error if the body of a decision is being recorded, because it can't hold this."""
        if live is not None and live.decisions.open:
            decision = live.decisions.open[-1]
            raise errors.UnsupportedCallError(
                what,
                location=here(),
                rule=f'The body of `{decision.decides}` (at {decision.at}) {why}.',
                remedy=remedy,
                cuda_error=code.name,
            )

    def left_by(self, live: OpenCapture, decision: Any) -> None:
        """The body of a decision has ended: what it has made, and others still hold, refuses work from now on."""
        kind, device = self.state.platform.cupy.ndarray, self.state.platform.device
        left, nodes = _class_of(kind, self._refuse_left), dict[int, int]()
        for array in instances(kind, since=decision.collections) if decision.made else ():
            data = array.data
            if type(array) is not kind or data is None or int(data.mem.ptr) not in decision.made:
                continue
            address = int(data.mem.ptr)
            if address not in self._left:
                nodes = nodes or {graph: device.graph_node_count(graph) for graph in _graphs(live, decision.graph)}
                made = decision.made[address]
                self._left[address] = LeftMemory(data.mem, made, decision.decides, decision.at, nodes)
                live.decisions.left.append(self._left[address])
            array.__class__ = left

    def has_left(self, array: Any) -> bool:
        """Whether an array has outlived its body."""
        return type(array) is _class_of(self.state.platform.cupy.ndarray, self._refuse_left)

    def restore_left(self, live: OpenCapture) -> None:
        """The capture ends: the arrays are ordinary ones again."""
        mine, kind = {int(one.mem.ptr) for one in live.decisions.left}, self.state.platform.cupy.ndarray
        for array in instances(_class_of(kind, self._refuse_left)) if mine else ():
            if int(array.data.mem.ptr) in mine:
                array.__class__ = kind

    def check_left(self, live: OpenCapture) -> None:
        """Raise for a node outside of the bodies that uses such an array all the same."""
        left, trace, device = live.decisions.left, live.trace, live.platform.device
        with self.state.inside, suppress(CudaCallError):  # this driver does not tell what nodes touch
            for graph in _graphs(live, device.capture_info(live.origin.ptr).graph) if left else ():
                order, touched = device.graph_nodes(graph), device.graph_accesses(graph)
                later = ((one, node) for one in left for node in order[one.nodes.get(graph, 0) :])
                found = next((pair for pair in later if any(map(pair[0].met_by, touched[pair[1]].accesses))), None)
                if found is not None:
                    raise found[0].refusal((None if trace is None else trace.maker(found[1], order)) or live.at)

    def forget_left(self, live: OpenCapture) -> None:
        """The memory need not be held any more."""
        for one in live.decisions.left:
            self._left.pop(int(one.mem.ptr), None)
        live.decisions.left.clear()

    def _refuse_left(self, array: Any) -> NoReturn:
        raise self._left[int(array.data.mem.ptr)].refusal(here())


def without_a_body(decision: Decision) -> errors.CaptureError:
    """The error for a decision whose block is never entered."""
    return errors.UnsupportedCallError(
        'A loop without a body' if decision.decides == 'while' else 'A decision without a body',
        location=decision.at,
        rule=f'`{decision.call}` was called, but its block was never entered: what stands below it runs whatever the '
        'condition is.',
        remedy=f'Write `with {decision.call}:` around the work that it decides about.',
    )


def _between(at: Place | None) -> errors.CaptureError:
    return errors.UnsupportedCallError(
        'Work between the branches of a decision',
        location=at,
        rule='It would run after all branches, also after those that the code has below it.',
        remedy='Put it before the decision, after it, or into a branch.',
    )


def _told_of(error: BaseException) -> str:
    """What an exception says, and the line that raised it."""
    return f'{type(error).__name__}({str(error)[:200]!r}), raised at {raised_at(error) or "a line that is not known"}'


def _endless(live: OpenCapture, decision: Decision, body: int) -> errors.CaptureError | None:
    """The error for a loop whose condition no pass can change: nothing else holds it, or nothing writes it.

    A node whose accesses are unknown may write it. With a limit, a constant is as good: it makes so many passes."""
    if decision.decides != 'while' or (decision.limit and not _computed(live, decision)):
        return None
    if _is_held(live, decision) and _may_be_written(live, decision, body):
        return None
    return errors.UnsupportedCallError(
        'cap.while_() with a condition that no pass can change',
        location=decision.at,
        rule='The condition was computed before the loop, and the body never writes into that array: a launch would '
        'run no pass, or never end, or always run up to the limit.',
        remedy='Keep the array and write into it in the body: `going = x < 1000`, `with cap.while_(going): ...; '
        'cp.less(x, 1000, out=going)`; or let the loop do it: `x = cap.loop(lambda x: x < 1000, lambda x: x * 2, x)`. '
        'For n passes, give a constant, `cp.ones((), bool)`, and `limit=n`.',
    )


def _is_held(live: OpenCapture, decision: Decision) -> bool:
    """Whether something besides the decision and the graph, or the array of which it is a view, holds the condition."""
    held, memory = [decision.condition], live.memory
    others = others_of(held) - 2
    if held[0].base is not None:
        held = [held[0].base]
        others = others_of(held) - 1
    return bool(others) or memory is None or not memory.owns(held[0].data.mem)


def _may_be_written(live: OpenCapture, decision: Decision, body: int) -> bool:
    """Whether a node of the body may write the condition."""
    asked = decision.condition
    condition = linear(asked.data.ptr, asked.nbytes, False)
    try:
        touched = list(_touched(live, body))
    except CudaCallError:
        return True
    return not all(one.complete for one in touched) or any(
        _may_write(access, condition) for one in touched for access in one.accesses
    )


def _computed(live: OpenCapture, decision: Decision) -> bool:
    """Whether the node that wrote the condition last, before the loop, made it of other values."""
    asked, device = decision.condition, live.platform.device
    condition = linear(asked.data.ptr, asked.nbytes, False)
    with suppress(CudaCallError):
        touched = device.graph_accesses(decision.graph)
        before = decision.numbered - 2  # without the kernel that reads the condition
        for node in reversed(device.graph_nodes(decision.graph)[:before]):
            if any(_may_write(access, condition) for access in touched[node].accesses):
                return any(access.writes is False for access in touched[node].accesses)
    return False


def _touched(live: OpenCapture, body: int) -> Iterator[Touched]:
    """Yield the accesses of all nodes of a body and of nested bodies, except of the kernels that read conditions."""
    accesses = live.platform.device.graph_accesses(body)
    for info in live.platform.device.node_infos(body):
        if info.handle in live.decisions.bodies:
            for inner in live.decisions.bodies[info.handle]:
                yield from _touched(live, inner)
        elif info.name != KERNEL:
            yield Touched((), False) if info.kind == 'conditional' else accesses[info.handle]


def _may_write(access: Access, condition: Access) -> bool:
    if access.writes is False:
        return False
    if not access.itemsize:  # only an address is known, not how many bytes are used
        return access.address <= condition.address
    return overlap(access, condition) is not False


_JOINED = 'What the device decides about comes after everything before it, so that all lanes have to be joined.'

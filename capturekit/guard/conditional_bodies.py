"""Conditional nodes in an open capture: work that the device decides about at every launch.

All lanes are joined, and a kernel that sets the condition comes before the node. The bodies of the node are recorded
one after the other: the driver's capture on the origin ends, begins again into the body, ends there, and continues
after the node.
CUDA C++ Programming Guide, "Conditional Graph Nodes".
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from capturekit.driver.node_accesses import Access, Touched, linear, overlap
from capturekit.guard.capture_end import end_driver_capture, join_for_good
from capturekit.guard.lanes import Lanes
from capturekit.guard.open_capture import OpenCapture
from capturekit.guard.parts import INSIDE, Parts, decided_here, unfit_kind
from capturekit.guard.state import State
from capturekit.launch.condition_kernel import KERNEL, decide
from capturekit.launch.current_stream import current_for_now
from capturekit.launch.plan import Part
from capturekit.model import errors
from capturekit.model.errors import CudaCallError
from capturekit.model.rules import Code
from capturekit.model.source_line import Place, here


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


class Bodies:
    """Conditional nodes in an open capture: work that the device decides about at every launch."""

    def __init__(self, state: State, lanes: Lanes, parts: Parts) -> None:
        self.state = state
        self.lanes = lanes
        self.parts = parts

    def decide(self, live: OpenCapture, decision: Decision, count: int) -> None:
        """Record the kernel that sets the condition, and the node with ``count`` empty bodies."""
        device = live.platform.device
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
        part = Part() if live.recorder.into else self.parts.part_of(live)
        before = self._one_line(live, decision.at)
        assert live.memory is not None
        memory = live.memory
        with self.state.inside:
            decision.graph = device.capture_info(live.origin.ptr).graph
            part.graph = live.recorder.into or part.graph or decision.graph
            decision.handle = device.condition_create(part.graph)
            decision.passes = live.platform.cupy.ndarray((1,), 'u8', memory.grow(8))
            with current_for_now(live.platform.cupy.cuda, live.origin):
                self._set(live, decision, again=False)
            after = device.capture_info(live.origin.ptr).dependencies
            self._number(live, decision.graph)
            decision.node, decision.bodies = device.add_conditional(
                decision.graph, after, decision.handle, decision.decides, count
            )
            part.decided[decision.node] = live.decisions.bodies[decision.node] = list(decision.bodies)
            live.parts.numbered[decision.graph] = device.graph_node_count(decision.graph)
            device.set_dependencies(live.origin.ptr, [decision.node])
        if decision.decides == 'while':
            live.decisions.empty_loops.append(decision)
        self._back_on(live, before, decision.node)
        live.note('decision', self.lanes.current_lane(live), f'{decision.decides}: the device decides', decision.at)

    def _set(self, live: OpenCapture, decision: Decision, *, again: bool) -> None:
        truth = decision.decides != 'switch'
        decide(
            live.platform, decision.condition, truth, decision.passes, again, decision.limit, decision.handle
        )  # fmt: skip

    def _one_line(self, live: OpenCapture, at: Place | None) -> Any:
        """Join the current lane, and in adapting mode all others; return the stream that is current."""
        current = live.platform.cupy.cuda.get_current_stream()
        if current.ptr != live.origin.ptr and live.lane_of(current) is not None:
            live.origin.wait_event(current.record())
        return self.parts.leave_lanes(live, at, 'A decision while lanes are open', _JOINED)

    def _back_on(self, live: OpenCapture, before: Any, node: int) -> None:
        """Make the former stream current again, with its later work after the node."""
        if before.ptr != live.origin.ptr and live.lane_of(before) is not None:
            before.wait_event(live.origin.record())
            with self.state.inside:
                live.platform.device.set_dependencies(before.ptr, [node])

    def _number(self, live: OpenCapture, graph: int) -> None:
        """Number the nodes that a graph has so far, before recording continues in another graph."""
        if live.trace is not None:
            live.poll()
            live.trace.next_part(self.parts.order_of(live, graph))

    def enter_body(self, live: OpenCapture, decision: Decision, number: int, at: Place | None) -> None:
        """Continue the recording in a body of the node."""
        decision.before = self._one_line(live, at)  # this shows work on other lanes since then, too
        self._nothing_between(live, decision, at)
        self.suspend(live, decision.graph)
        decision.inside = number
        live.decisions.open.append(decision)
        if decision in live.decisions.empty_loops:
            live.decisions.empty_loops.remove(decision)
        assert live.memory is not None
        if decision.decides == 'while':
            live.memory.enter_loop()
        self.parts.go_on(live, decision.before, at, decision.bodies[number])

    def _nothing_between(self, live: OpenCapture, decision: Decision, at: Place | None) -> None:
        with self.state.inside:
            found = live.platform.device.capture_info(live.origin.ptr).dependencies
        if found != (decision.node,):
            raise errors.UnsupportedCallError(
                'Work between the branches of a decision',
                location=at,
                rule='It would run after all branches, also after those that the code has below it.',
                remedy='Put it before the decision, after it, or into a branch.',
            )

    def suspend(self, live: OpenCapture, graph: int) -> None:
        """End the driver's capture; the graph will be continued."""
        with self.state.inside:
            self._number(live, graph)
            end_driver_capture(live)
        with self.state.lock:
            live.parts.past.append(live.capture)
            self.state.ledger.end(live.capture)

    def leave_body(self, live: OpenCapture, decision: Decision, at: Place | None, *, failed: bool) -> None:
        """End a body, and continue after the node.

        An error about the body's nodes is raised after that, so that the capture stays good.
        """
        fault: BaseException | None = None
        body = decision.bodies[decision.inside or 0]
        try:
            if not failed:
                self._close_body(live, decision, at)
        except BaseException as error:
            fault = error
        with self.state.inside:
            self._end_body(live, body)
            live.decisions.open.pop()
            decision.inside = None
            if decision.decides == 'while' and live.memory is not None and live.memory.leave_loop():
                text = 'an array from before the loop was dropped in its body: each pass reads it as it was'
                live.note('note', None, text, at)
        self.parts.go_on(live, decision.before, at, decision.graph, [decision.node])
        if fault is None and not failed:
            fault = self._unfit(live, body, at) or self.parts.unfit_copies(live, body) or _endless(live, decision, body)
        if fault is not None or failed:
            live.decisions.broken = live.decisions.broken or at or decision.at
        try:
            if fault is not None:
                raise fault
        finally:
            del fault  # its traceback holds this frame

    def _close_body(self, live: OpenCapture, decision: Decision, at: Place | None) -> None:
        self._one_line(live, at)
        if decision.decides == 'while':
            with self.state.inside, current_for_now(live.platform.cupy.cuda, live.origin):
                self._set(live, decision, again=True)

    def _end_body(self, live: OpenCapture, body: int) -> None:
        """End the driver's capture into a body. One with open lanes is joined, and a lost one is thrown away."""
        device = live.platform.device
        with suppress(CudaCallError):  # the capture is lost, and that will be reported
            self._number(live, body)
            live.recording.node_count += device.graph_node_count(body)
            live.recording.edge_count += device.graph_edge_count(body)
            join_for_good(device, live.origin.ptr, body)
        try:
            end_driver_capture(live)
        except CudaCallError:
            live.decisions.broken = live.decisions.broken or here()
        with self.state.lock:
            live.parts.past.append(live.capture)
            self.state.ledger.end(live.capture)

    @staticmethod
    def _unfit(live: OpenCapture, body: int, at: Place | None) -> errors.CaptureError | None:
        kind = unfit_kind(live.platform.device, body)
        if kind is None:
            return None
        return errors.UnsupportedCallError(
            f'A {kind} node in the body of a conditional node',
            location=at,
            rule=f'A body holds {", ".join(sorted(INSIDE))} nodes.',
            remedy='Do that before the decision, or after it.',
            cuda_error=Code.cudaErrorNotSupported.name,
        )

    def no_memory_in_body(self, live: OpenCapture) -> None:
        """Raise an error if the body of a decision is being recorded, because it can't hold a library's allocation."""
        if live.decisions.open:
            decision = live.decisions.open[-1]
            raise errors.UnsupportedCallError(
                'A call of a library that allocates memory itself',
                location=here(),
                rule=f'The body of `{decision.decides}` (at {decision.at}) can not hold the nodes that allocate and '
                'free it: cuSOLVER always makes some, cuBLAS does for batches of matrices.',
                remedy='Call it before the decision, or after it.',
                cuda_error=Code.cudaErrorInvalidValue.name,
            )

    def not_in_body(self, live: OpenCapture | None, what: str, remedy: str) -> None:
        """Raise an error if the body of a decision is being recorded, because it can't hold this."""
        if live is not None and live.decisions.open:
            decision = live.decisions.open[-1]
            raise errors.UnsupportedCallError(
                what,
                location=here(),
                rule=f'The body of `{decision.decides}` (at {decision.at}) runs on the device as often as the device '
                'decides: nothing in it can come from the host.',
                remedy=remedy,
                cuda_error=Code.cudaErrorNotSupported.name,
            )


def _endless(live: OpenCapture, decision: Decision, body: int) -> errors.CaptureError | None:
    """Return the error for a loop whose body never writes the condition.

    A node whose accesses are unknown may write it.
    """
    if decision.decides != 'while' or decision.limit:
        return None
    asked = decision.condition
    try:
        touched = list(_touched(live, body))
    except CudaCallError:
        return None
    condition = linear(asked.data.ptr, asked.nbytes, False)
    if not all(one.complete for one in touched) or any(
        _may_write(access, condition) for one in touched for access in one.accesses
    ):
        return None
    return errors.UnsupportedCallError(
        'cap.while_() with a condition that the body never writes',
        location=decision.at,
        rule=f'No node of the body writes the memory of the condition ({asked.dtype}, at {asked.data.ptr:#x}): a '
        'launch would run no pass, or never end.',
        remedy='Write into the condition in the body: `going[...] = error > 1e-6`, or `cp.greater(a, b, out=going)`; '
        'or give `limit=n` for n passes.',
    )


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

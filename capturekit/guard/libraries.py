"""Calls of vendor libraries: what they touch, those that no capture can hold, and plans of cuFFT.

The own arguments of a kernel of cuBLAS, CUB or cuFFT are a structure that only its library understands; the arguments
of the library's call show what it touches, for :mod:`capturekit.lanes.contest` and for races.

The calls of :data:`SEAMS` (a *seam* is a call between two parts) would lose a capture, because a library waits for the
stream or allocates inside, or decides on the host. They are refused by name before they start, or made by the host
between two parts. A test on a GPU checks the table.

A plan of cuFFT that waits for the device, or is made beside a blocking stream, is made while the driver's capture is
suspended: it ends, and goes on into the same graph behind the same nodes. While a plan's transform is recorded, the
plan works in memory of the graph, since CuPy may drop the plan and its memory before a launch, or use them during
one."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from capturekit.driver.fft_plans import DIRECT, lengths_of, set_work_area, waits_for_the_device, work_bytes
from capturekit.driver.library_accesses import Rows, of_cub, of_cublas, of_cufft, rows_of
from capturekit.driver.node_accesses import Access
from capturekit.driver.vendor_libraries import Libraries
from capturekit.guard.allocators import Allocators
from capturekit.guard.entry_points import Entry
from capturekit.guard.open_capture import OpenCapture
from capturekit.guard.state import State
from capturekit.guard.stream_calls import CallsOnStreams, HostWaits
from capturekit.launch.current_stream import current_for_now
from capturekit.launch.declared import Called
from capturekit.launch.plan import Part, Seam
from capturekit.model import errors
from capturekit.model.errors import CudaCallError
from capturekit.model.pytree import put_together, take_apart
from capturekit.model.rules import Code
from capturekit.model.skipped_exits import contextmanager
from capturekit.model.source_line import Place, here
from capturekit.model.sparse import matrices, packed, unpacked

#: Where a stream is in its capture: the graph, and the nodes that its next work comes after.
_Place = tuple[int, tuple[int, ...]]


class LibraryAccess(Libraries):
    """CuPy's vendor libraries, open while the wrappers are installed."""

    def __init__(self, state: State) -> None:
        super().__init__(self._records, self.workspace_on)
        self._state = state

    def _recording(self, stream: int) -> OpenCapture | None:
        """The capture of capturekit's own that a stream is in."""
        live = self._state.open_on(stream)
        return None if live is None or live.memory is None else live

    def _records(self, stream: int) -> bool:
        """Whether libraries may record on a stream: in a capture of capturekit's own, or where a stream is held, whose
        work is thrown away."""
        lives = list(self._state.lives.values())  # other threads begin and end captures meanwhile
        return self._recording(stream) is not None or any(stream in live.outside.held for live in lives)

    def workspace_on(self, stream: int) -> tuple[int, int] | None:
        """The workspace that cuBLAS is to use on a stream: address and bytes, memory of the graph; else None."""
        live = self._recording(stream)
        if live is None:
            return None
        with self._state.inside():
            return live.graph_memory.workspaces.next(stream)


_NODES = (
    'can not hold the nodes that allocate and free it: cuSOLVER always makes some, cuBLAS does for batches of matrices'
)
_ALLOCATES = 'A call that allocates memory itself while lanes are open'
_IN_ANOTHER_PART = 'It begins another part of the graph behind a checked host read; all lanes are joined before that.'
_BETWEEN = 'The host makes this call between two parts of the graph, so that all lanes have to be joined before it.'


@dataclass(eq=False)
class LibraryCalls(CallsOnStreams):
    """Calls of vendor libraries: refused by name before they start, made between two parts, or noted."""

    access: LibraryAccess
    waits: HostWaits

    def seam(self, entry: Entry, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        live, name = self.state.recording(), entry.call
        if live is None:
            rehearsal = self.state.rehearsals.get(threading.get_ident())
            if rehearsal is not None:
                rehearsal.seams.append(name)
            return original(*args, **kwargs)
        at = here()
        if live.host_calls.stream is None:
            self.verdicts.check(live)
            raise errors.UnsupportedCallError(
                f'{name}()',
                stream=live.origin.ptr,
                location=at,
                rule='Its library waits for the stream inside, or decides on the host by values that are not computed '
                f'yet: no capture can hold it ({Code.cudaErrorStreamCaptureInvalidated.name} would follow).',
                remedy='Call it before the capture or between two graphs; ck.capture(pieces=True) and @ck.graphed do '
                'that by themselves.',
                cuda_error=Code.cudaErrorStreamCaptureInvalidated.name,
            )
        return self._between(live, name, at, original, (args, kwargs))

    def allocates_inside(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A call by which cuSOLVER, or cuBLAS for batches, will allocate memory on its stream. It is recorded outside
        of all bodies: instantiating a graph with such a node in a body fails with ``cudaErrorInvalidValue``, or ends
        the process."""
        if self.state.mine() is not None:
            what, why = 'A call of a library that allocates memory itself', (_NODES, Code.cudaErrorInvalidValue)
            self.out_of_body(self.state.current_stream().ptr, what, *why, cut=(_ALLOCATES, _IN_ANOTHER_PART))
        return original(*args, **kwargs)

    def _between(self, live: OpenCapture, name: str, at: Place | None, original: Callable[..., Any], given: Any) -> Any:
        """End this part; run what has not run yet; make the call with these results; continue in a new part."""
        self.bodies.not_in_body(live, f'{name}()', 'Call it before the decision, or after it.')
        before = self.parts.leave_lanes(live, at, f'{name}() while lanes are open', _BETWEEN)
        device = self.state.current_device()
        plan = self.parts.plan_of(live)
        self.parts.end_part(live)
        try:
            with outside_capture(self.state, self.allocators, live, live.host_calls.stream):
                for part in plan.parts:
                    plan.complete(part, live.by_priority)
                if live.host_calls.launch is None:
                    live.host_calls.launch = plan.start()
                    if live.host_calls.opening is not None:
                        live.host_calls.opening(live.host_calls.launch)
                self._after_the_caller(live)
                if live.host_calls.outside is not None:
                    self._keep_outside(live, plan.steps[live.host_calls.done :], given)
                plan.follow(live.host_calls.launch, live.host_calls.done, live.host_calls.stream)
                made = partial(self._joint, live, name, at, original, given)
                result, seam = on_device(self.state, device, made)
                plan.steps.append(seam)
                live.host_calls.done = len(plan.steps)
        finally:
            self.parts.go_on(live, before, at)
        live.note('seam', None, f'{name}() is called by the host at every launch, between two parts', at)
        return result

    def _after_the_caller(self, live: OpenCapture) -> None:
        """Order the parts that run now after what a graphed function's caller has given to streams of other devices."""
        outside = {} if live.caller is None else live.caller.outside
        for (device, _ptr), stream in outside.items():
            if device != live.origin_device:
                with self.state.on(device):
                    before = stream.record()
                live.host_calls.stream.wait_event(before)

    @staticmethod
    def _keep_outside(live: OpenCapture, steps: list[Part | Seam], given: Any) -> None:
        """Copy the memory outside of the graph that these steps, and a call with these arguments, may change."""
        outside = live.host_calls.outside
        assert outside is not None
        outside.keep([graph for step in steps if isinstance(step, Part) for graph in step.graphs if graph])
        outside.keep_arrays(_parts(packed(given), live.platform.cupy.ndarray)[0])

    def _joint(
        self, live: OpenCapture, name: str, at: Place | None, original: Callable[..., Any], given: Any
    ) -> tuple[Any, Seam]:
        """Make the call for the first time. Its results get arrays in the graph's memory, which later calls fill again.

        Results are what it returns, and the arrays that it, or the code after it, puts into sparse matrices among its
        arguments: later calls get new matrices, made from what these matrices held at first.
        """
        cupy, memory = live.platform.cupy, live.graph_memory
        taken, kept = packed(given), matrices(given)
        arrays = _parts(taken, cupy.ndarray)[0]
        live.host_calls.given |= {int(array.data.mem.ptr) for array in arrays}
        first = [original(*given[0], **given[1]), kept]
        leaves, form = _parts(first, cupy.ndarray)
        inside = {id(leaf) for leaf in arrays}
        own = [id(leaf) in inside or memory.owns(leaf.data.mem) for leaf in leaves]
        places = [leaf if is_own else memory.place_for(leaf) for leaf, is_own in zip(leaves, own)]
        shapes = [(leaf.shape, leaf.dtype, leaf.strides) for leaf in leaves]

        def fill(found: list[Any]) -> None:
            for place, leaf, is_own in zip(places, found, own):
                if not is_own:
                    place[...] = leaf

        def again() -> None:
            with self.state.inside, self.access.streams.following(cupy):
                args, kwargs = anew = unpacked(taken)
                found, now = _parts([original(*args, **kwargs), matrices(anew)], cupy.ndarray)
                if now != form or [(leaf.shape, leaf.dtype, leaf.strides) for leaf in found] != shapes:
                    raise errors.AssumptionError(
                        f'The result of {name}()',
                        location=at,
                        rule='It has another form in this launch than when it was recorded.',
                        remedy='Record again on these inputs, or use @ck.graphed, which does.',
                    )
                fill(found)

        fill(leaves)
        result, remade = put_together(form, places)
        for matrix, parts in zip(kept, remade):
            matrix.__dict__.update(zip(parts.names, parts.values))
        same = next((matrix for matrix in kept if matrix is first[0]), None)
        return unpacked(result) if same is None else same, Seam(name, at, on_its_device(self.state, again))

    def plan_made(self, entry: Entry, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Make a plan. If that waits for the device, no capture is open in the driver meanwhile."""
        call, make = entry.call, functools.partial(original, *args, **kwargs)
        lengths = lengths_of(args[0] if args else kwargs.get('nx', kwargs.get('shape', ())))
        live, waits = self.state.mine(), waits_for_the_device(lengths)
        if live is None:
            return self.waits.made_when_free(call, make) if waits else make()
        with self.state.lock:
            if not waits and not any(lane.blocking for lane in live.capture.lanes):
                return make()
            self.verdicts.check(live)
        if live.memory is None or not self._can_suspend(live):
            raise _refused(call, lengths, waits)
        return self._suspended(live, call, make) if self.state.policy.records else make()

    def _can_suspend(self, live: OpenCapture) -> bool:
        """Whether the capture can go on as if it had not been suspended: all is on its origin, in no body."""
        if not self.state.policy.records:
            return not live.decisions.open and all(lane.joined_at is not None for lane in live.capture.lanes[1:])
        if live.decisions.open or not live.platform.device.can_continue():
            return False
        if not live.strict:
            return True
        current = self.state.current_stream()
        with self.state.lock:
            self.parts.lanes.find_work(live)
            open_lanes = [lane for lane in live.capture.lanes[1:] if lane.joined_at is None]
            return int(current.ptr) == live.origin.ptr and not live.capture.unjoined() and not open_lanes

    def _suspended(self, live: OpenCapture, call: str, make: Callable[[], Any]) -> Any:
        """End the driver's capture, make the plan, and continue the capture in the same graph."""
        device, at = live.platform.device, here()
        before, current = self.parts.leave_lanes(live, at), self.state.current_device()
        with self.state.inside:
            info = device.capture_info(live.origin.ptr)
        self.bodies.suspend(live, info.graph)
        with self.state.inside:
            live.parts.numbered[info.graph] = device.graph_node_count(info.graph)
        try:
            with outside_capture(self.state, self.allocators, live, live.origin):
                plan = on_device(self.state, current, lambda: self.waits.made_when_free(call, make))
        finally:
            self.parts.go_on(live, before, at, info.graph, info.dependencies)
        live.note('note', None, f'{call}: the capture was suspended while cuFFT made the plan', at)
        return plan

    def plan_used(self, original: Callable[..., Any], plan: Any, *args: Any) -> Any:
        """Record a transform. The plan works in memory of the graph for it."""
        live, size = self.state.recording(), work_bytes(plan)
        if live is None or not self.state.policy.records:
            return original(plan, *args)
        if self.state.open_on(self.state.current_stream().ptr) is not live:
            return original(plan, *args)
        area = live.platform.cupy.cuda.alloc(size) if size else None
        if area is not None and not set_work_area(plan, int(area.ptr)):
            area = plan.work_area
            live.graph_memory.keep(area)
        try:
            used = None if area is None else (int(area.ptr), size)
            accesses = of_cufft(plan, args[0], args[1], used) if len(args) > 1 else None
            before = None if accesses is None else self._place(live)
            answer = original(plan, *args)
            if accesses is not None:
                self._note(live, f'{type(plan).__name__}.fft', before, accesses)
            return answer
        finally:
            if area is not None and area is not plan.work_area:
                set_work_area(plan, int(plan.work_area.ptr))

    def known_cublas(self, entry: Entry, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A function of cuBLAS. It works on the current stream."""
        live = self.state.recording()
        accesses = None if live is None or kwargs else of_cublas(entry.name, args)
        if live is None or accesses is None:
            return original(*args, **kwargs)
        before = self._place(live)
        answer = original(*args)
        self._note(live, entry.call, before, accesses)
        return answer

    def known_cub(self, entry: Entry, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A reduction or a scan of CUB's, which CuPy makes the result for; None where CUB does not do it."""
        live = self.state.recording()
        before = None if live is None else self._place(live)
        answer = original(*args, **kwargs)
        if live is not None and answer is not None and args:
            rows = rows_of(args[0], args[1], answer) if entry.name == 'cub_reduction' and len(args) > 1 else None
            self._note(live, entry.call, before, of_cub(entry.name, args[0], answer), rows)
        return answer

    def _place(self, live: OpenCapture) -> _Place | None:
        """Where the current stream is in the capture; None if it is in none, or held back with a graph of its own."""
        with self.state.inside, suppress(CudaCallError):  # a lost capture is reported at its end
            stream = self.state.current_stream().ptr
            info = live.platform.device.capture_info(stream)
            return (info.graph, info.dependencies) if info.graph and self.state.open_on(stream) is live else None
        return None

    def _note(
        self, live: OpenCapture, call: str, before: _Place | None, accesses: Iterable[Access], rows: Rows | None = None
    ) -> None:
        """Note that a call which began at ``before`` and has ended touches this, and memory of the graph's own."""
        after = self._place(live)
        if before is not None and after is not None and after[0] == before[0]:
            live.recorder.called.append(Called(before[0], call, before[1], after[1], tuple(accesses), rows))


def _parts(value: Any, array: type) -> tuple[list[Any], Any]:
    """Return the arrays in a call's result, each once, and the rest of the result in a form that can be compared."""
    return take_apart(packed(value), lambda part: isinstance(part, array), lambda part: not isinstance(part, tuple))


@contextmanager
def outside_capture(state: State, allocators: Allocators, live: OpenCapture, stream: Any) -> Iterator[None]:
    """A block between two parts, in which this thread has no capture and its former allocator.

    The origin's device is current, and ``stream`` of that device.
    """
    try:
        with state.lock:
            state.lives.pop(live.capture, None)
            state.threads[threading.get_ident()].remove(live)
            allocators.restore()
        with state.inside, state.on(live.origin_device), current_for_now(state.platform.cupy.cuda, stream):
            yield
    finally:
        with state.lock:
            state.threads.setdefault(threading.get_ident(), []).append(live)


T = TypeVar('T')


def on_device(state: State, device: int, go: Callable[[], T]) -> T:
    """Call ``go`` with a device current, as part of a launch that another device may be making.

    It works on CuPy's current stream of that device: after what the launching stream was given before, and before what
    it is given next, also if ``go`` raises: the arrays which it was changing may be put back next."""
    cuda, here = state.platform.cupy.cuda, state.current_device()
    if here == device:
        return go()
    launching = cuda.get_current_stream()
    with state.inside:
        before = launching.record()
        with state.on(device):
            stream = cuda.get_current_stream()
            stream.wait_event(before)
            try:
                return go()
            finally:
                after = stream.record()
                with state.on(here):
                    launching.wait_event(after)


def on_its_device(state: State, go: Callable[[], T]) -> Callable[[], T]:
    """``go``, to be called on the device that is current now, whichever one launches."""
    return partial(on_device, state, state.current_device(), go)


def _refused(call: str, lengths: tuple[int, ...], waits: bool) -> errors.CaptureError:
    code = Code.cudaErrorStreamCaptureImplicit
    rule = 'cuFFT uses the legacy default stream while it makes a plan, and a blocking stream is in the capture'
    if waits:
        code, shown = Code.cudaErrorStreamCaptureUnsupported, ', '.join(map(str, lengths))
        rule = f'cuFFT makes a plan for length {shown}, which has a prime factor above {DIRECT}, with work of its own, '
        rule += 'and waits for the whole device'
    return errors.UnsupportedCallError(
        call,
        location=here(),
        rule=f'{rule} ({code.name} would follow, and the capture would be lost).',
        remedy='Make the plan before the capture, where CuPy keeps it: call the transform once on an array of this '
        'shape and dtype; or make it where no lane is open.',
        cuda_error=code.name,
    )

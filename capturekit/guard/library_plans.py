"""Plans of cuFFT that a block makes, or works with.

A plan that waits for the device, or is made beside a blocking stream, is made while the driver's capture is
suspended: it ends, and goes on into the same graph behind the same nodes. And while a plan's transform is recorded, the
plan works in memory of the graph: CuPy may drop the plan and its own memory before a launch, or use them on another
stream during one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from capturekit.driver.fft_plans import DIRECT, lengths_of, set_work_area, waits_for_the_device, work_bytes
from capturekit.driver.library_accesses import of_cufft
from capturekit.guard.allocators import Allocators
from capturekit.guard.conditional_bodies import Bodies
from capturekit.guard.host_calls import on_device, outside_capture
from capturekit.guard.host_waits import HostWaits
from capturekit.guard.lanes import Lanes
from capturekit.guard.library_calls import LibraryCalls
from capturekit.guard.open_capture import OpenCapture
from capturekit.guard.parts import Parts
from capturekit.guard.state import State
from capturekit.guard.verdicts import Verdicts
from capturekit.model import errors
from capturekit.model.rules import Code
from capturekit.model.source_line import here


@dataclass(eq=False)
class LibraryPlans:
    """Makes plans of cuFFT beside a capture, and gives them memory of its graph."""

    state: State
    verdicts: Verdicts
    allocators: Allocators
    lanes: Lanes
    parts: Parts
    bodies: Bodies
    waits: HostWaits
    known: LibraryCalls

    def plan_made(self, call: str, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Make a plan. If that waits for the device, no capture is open in the driver meanwhile."""
        make = functools.partial(original, *args, **kwargs)
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
        return self._suspended(live, call, make)

    def _can_suspend(self, live: OpenCapture) -> bool:
        """Whether the capture can go on as if it had not been suspended: all is on its origin, in no body."""
        if live.decisions.open or not live.platform.device.can_continue():
            return False
        if not live.strict:
            return True
        current = live.platform.cupy.cuda.get_current_stream()
        with self.state.lock:
            self.parts.joins.find_work(live)
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
        live, size = self.state.mine(), work_bytes(plan)
        if live is None or live.memory is None:
            return original(plan, *args)
        cuda = live.platform.cupy.cuda
        lane = self.state.ledger.lane(cuda.get_current_stream().ptr)
        if lane is None or lane.capture is not live.capture:
            return original(plan, *args)
        if not size:
            return self._transformed(live, original, plan, args, None)
        area = cuda.alloc(size)
        if not set_work_area(plan, int(area.ptr)):
            live.memory.keep(plan.work_area)
            return self._transformed(live, original, plan, args, (int(plan.work_area.ptr), size))
        try:
            return self._transformed(live, original, plan, args, (int(area.ptr), size))
        finally:
            set_work_area(plan, int(plan.work_area.ptr))

    def _transformed(
        self,
        live: OpenCapture,
        original: Callable[..., Any],
        plan: Any,
        args: tuple[Any, ...],
        area: tuple[int, int] | None,
    ) -> Any:
        """Record a transform, and note what it touches."""
        accesses = of_cufft(plan, args[0], args[1], area) if len(args) > 1 else None
        before = None if accesses is None else self.known.place(live)
        answer = original(plan, *args)
        if accesses is not None:
            self.known.note(live, f'{type(plan).__name__}.fft', before, accesses)
        return answer


def _refused(call: str, lengths: tuple[int, ...], waits: bool) -> errors.CaptureError:
    shown = ', '.join(map(str, lengths))
    rule = (
        f'cuFFT makes a plan for length {shown}, which has a prime factor above {DIRECT}, with work of its own, and '
        'waits for the whole device'
        if waits
        else 'cuFFT uses the legacy default stream while it makes a plan, and a blocking stream is in the capture'
    )
    code = Code.cudaErrorStreamCaptureUnsupported if waits else Code.cudaErrorStreamCaptureImplicit
    return errors.UnsupportedCallError(
        call,
        location=here(),
        rule=f'{rule} ({code.name} would follow, and the capture would be lost).',
        remedy='Make the plan before the capture, where CuPy keeps it: call the transform once on an array of this '
        'shape and dtype; or make it where no lane is open.',
        cuda_error=code.name,
    )

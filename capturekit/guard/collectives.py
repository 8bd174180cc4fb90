"""Collectives of NCCL.

NCCL (``cupy.cuda.nccl``) records a collective on a captured stream as a kernel, between two nodes that keep the
collectives of one communicator in order. From then on the graph uses the communicators: CUDA and NCCL hold them as long
as an executable graph lives, and ``ncclCommDestroy`` waits forever for that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from capturekit.guard.entry_points import Entry
from capturekit.guard.open_capture import OpenCapture
from capturekit.guard.stream_calls import CallsOnStreams, StreamWork
from capturekit.model import errors
from capturekit.model.errors import CudaCallError
from capturekit.model.ledger import Lane
from capturekit.model.rules import Operation

#: How many addresses each collective takes: its arguments before the first count.
_ADDRESSES = {'bcast': 1, 'send': 1, 'recv': 1}


@dataclass(eq=False)
class Collectives(CallsOnStreams):
    """NCCL's collectives."""

    work: StreamWork

    def collective(self, entry: Entry, original: Callable[..., Any], comm: Any, *args: Any) -> Any:
        """A collective, or a send or receive, whose last argument is the stream."""
        ptr, call = int(args[-1]), entry.call
        if self.state.mine() is None and self.state.ledger.lane(ptr) is None:
            return original(comm, *args)
        self._one_device(call, comm, ptr)
        live = self.state.open_on(ptr)
        if live is not None and live.trace is not None and not live.collectives.grouped:
            device = self.state.platform.device
            with self.state.lock, self.state.inside, suppress(CudaCallError):  # a lost capture is reported later
                graph = device.capture_info(live.origin.ptr).graph
                live.collectives.nodes_before = device.graph_node_count(graph)
        answer = self.work.on_stream(Operation.WORK, call, ptr, lambda: original(comm, *args))
        live = self.state.open_on(ptr)
        if live is not None:
            with self.state.lock:
                self._noted(live, self.state.ledger.lanes[ptr], call, comm, args)
        return answer

    def _noted(self, live: OpenCapture, lane: Lane, call: str, comm: Any, args: tuple[Any, ...]) -> None:
        name = call.rpartition('.')[2].rstrip('()')
        live.collectives.addresses.update((int(address), call) for address in args[: _ADDRESSES.get(name, 2)])
        if live.memory is not None and comm not in live.collectives.communicators:
            live.collectives.communicators.append(comm)
            live.memory.keep(comm)
            live.memory.to_close = True
        if live.trace is not None:
            live.trace.touch(lane.stream)
        if live.collectives.depth:
            live.collectives.grouped.append(lane.stream)
        else:
            self._attributed(live, [lane.stream])

    def _attributed(self, live: OpenCapture, streams: list[int]) -> None:
        """Find out which lane made which of the new nodes: NCCL makes those of all ranks together, some on other
        streams."""
        if live.trace is None:
            return
        device = self.state.platform.device
        with self.state.inside, suppress(CudaCallError):
            graph = device.capture_info(live.origin.ptr).graph
            new = device.graph_nodes(graph)[live.collectives.nodes_before :]
            owner = {node: ptr for ptr in streams for node in device.capture_info(ptr).dependencies}
            edges = [(a, b) for a, b in device.graph_edges(graph) if a in owner or b in owner]
            for a, b in edges:
                owner.setdefault(a, owner.get(b, streams[0]))
                owner.setdefault(b, owner[a])
            live.trace.belong((node, owner.get(node, streams[0])) for node in new)

    def _one_device(self, call: str, comm: Any, ptr: int) -> None:
        """Refuse a stream that is not on the communicator's device: NCCL would fail with half of the work captured."""
        lane = self.state.ledger.lane(ptr)
        if lane is None:
            return
        device = int(comm.device_id())
        if device != lane.device:
            raise self.verdicts.error(
                call,
                ptr,
                rule=f'The communicator is of device {device} and the stream of device {lane.device}.',
                remedy='Give each communicator the lane of its own device: `lanes[comm.device_id()].ptr`.',
            )

    def group_started(self, original: Callable[..., Any]) -> Any:
        answer = original()
        for live in self.state.threads.get(threading.get_ident(), ()):
            live.collectives.depth += 1
        return answer

    def group_ended(self, original: Callable[..., Any]) -> Any:
        """End a group, which records its collectives."""
        try:
            return original()
        finally:
            for live in list(self.state.threads.get(threading.get_ident(), ())):
                live.collectives.depth = max(live.collectives.depth - 1, 0)
                if not live.collectives.depth:
                    self._group_is_over(live)

    def _group_is_over(self, live: OpenCapture) -> None:
        """Note that a group has given work to its lanes."""
        with self.state.lock:
            streams, live.collectives.grouped = list(dict.fromkeys(live.collectives.grouped)), []
            if not streams:
                return
            self._attributed(live, streams)
            for lane in filter(None, map(self.state.ledger.lane, streams)):
                lane.used = True
                if live.memory is not None:
                    live.memory.active(lane)
                if live.trace is not None:
                    live.trace.touch(lane.stream)
            self.allocators.refresh()

    def communicator(self, entry: Entry, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Refuse to make or to end a communicator in a block."""
        if self.state.mine() is None:
            return original(*args, **kwargs)
        raise self.verdicts.error(
            entry.call,
            rule='Making or ending a communicator waits for the devices, and a graph can not hold it.',
            remedy='Make communicators before the block. End them after `cap.graph.close()`: NCCL waits for graphs '
            'that hold them.',
        )

    def open_group(self, live: OpenCapture) -> errors.CaptureError | None:
        """The error for a group that is open at the end of a capture, or None."""
        if not live.collectives.grouped:
            return None
        live.collectives.grouped.clear()
        return self.verdicts.error(
            'A group of NCCL was left open',
            rule='NCCL starts the collectives of a group when the group ends, and the block has ended before that: the '
            'collectives would run at once, and be missing from the graph.',
            remedy='Call `nccl.groupEnd()` in the block.',
        )

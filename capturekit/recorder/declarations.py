"""``reads()`` and ``writes()``: blocks by which the user says what the nodes recorded in them touch."""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import Any

import numpy as np

from capturekit.driver.cuda import current
from capturekit.driver.node_accesses import Access
from capturekit.guard import GUARD, OpenCapture
from capturekit.launch.declared import Said
from capturekit.model.counted import counted
from capturekit.model.errors import CudaCallError
from capturekit.model.source_line import here

_CUT = 'a block of ck.reads or ck.writes is not used: it begins in one part of the graph and ends in another'


class Declaration:
    """A block of :func:`reads` or :func:`writes`. It can be entered again; one thread uses it at a time."""

    def __init__(self, call: str, arrays: tuple[Any, ...], *, writes: bool) -> None:
        for array in arrays:
            if not isinstance(array, np.ndarray) and not isinstance(array, current().cupy.ndarray):
                raise TypeError(f'{call} takes CuPy arrays and NumPy arrays, got {type(array).__name__}')
        self._call, self._writes = call, writes
        self._arrays = tuple(array for array in arrays if array.size)
        self._open: list[tuple[OpenCapture | None, tuple[int, int] | None]] = []

    def __enter__(self) -> None:
        live = GUARD.mine()
        recorded = live is not None and live.memory is not None
        self._open.append((live, _count(live) if live is not None and recorded else None))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        live, begun = self._open.pop()
        if live is None or begun is None or error is not None or GUARD.mine() is not live:
            return
        ended = _count(live)
        if ended is None:
            return
        if ended[0] != begun[0]:
            live.note('note', None, _CUT, here())
            return
        accesses = tuple(
            Access(_address(one), one.shape, one.strides, one.itemsize, self._writes) for one in self._arrays
        )
        blocks = tuple(
            (int(one.data.mem.ptr), int(one.data.mem.ptr) + int(one.data.mem.size))
            for one in self._arrays
            if not isinstance(one, np.ndarray)
        )
        live.recorder.said.append(Said(begun[0], begun[1], ended[1], self._writes, accesses, blocks))

    def __repr__(self) -> str:
        return f'<{self._call} of {counted(len(self._arrays), "array")}>'


def _address(array: Any) -> int:
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)


def _count(live: OpenCapture) -> tuple[int, int] | None:
    """The graph that is being recorded, and how many nodes it has; None in a capture that is lost."""
    device = live.platform.device
    with GUARD.inside, suppress(CudaCallError):  # a lost capture is reported at its end
        graph = device.capture_info(live.origin.ptr).graph
        return (graph, device.graph_node_count(graph)) if graph else None
    return None


def reads(*arrays: Any) -> Declaration:
    """Say what the nodes recorded in a block read: ``with ck.reads(x), ck.writes(y): kernel(grid, block, (y, x))``.

    capturekit does not know what kernels of your own, some kernels of libraries and host functions touch. So
    :meth:`Graph.relane` keeps their order with all other nodes, and :meth:`Graph.races` can only guess. In a block of
    ``ck.reads`` and one of ``ck.writes``, such a node is taken to touch what the two name, and no more. Both have to be
    said, because each is silent about the other half: ``ck.reads()`` without arrays says that nothing is read. What
    is written may be read as well. Blocks inside each other add up.

    It is a block, and no argument of a call, because a library's function launches kernels that you never see; and
    because it leaves the call itself as it is. It counts for all nodes recorded while it is open, on every lane.

    - Nodes that capturekit knows (CuPy's kernels, copies, memsets) keep what is known of them.
    - Memory of the graph's own that a kernel gets by an argument (a temporary array, a library's workspace) counts as
      written, whether you name it or not.
    - Host functions keep their order with each other. Name the NumPy arrays that they use.
    - Nodes in the body of a ``cap.while_`` or ``cap.if_`` need a block within the body. Collectives of NCCL, child
      graphs and conditional nodes keep their order. A block across a host read that a rehearsal checks is not used,
      which ``cap.recording.notes`` tells.
    - ``graph.rebind()`` moves what was said; a node that ``set_kernel`` or ``set_host`` changes is unknown again.

    You promise that what you say is complete: memory that a node touches and no block names is in no order. The first
    launch of a relaned graph is still compared with the recorded order, as far as it can be.

    Args:
        arrays: CuPy arrays or NumPy arrays; views count for their own elements only.

    Raises:
        TypeError: an argument is not an array.

    Outside of a capture it does nothing, so that code runs unchanged; so does a block that begins before the capture.
    Each block asks the driver twice how many nodes there are, which takes up to 100 us where there are 10,000. Threads:
    the block counts for the capture of its thread. Streams: all of the capture. CUDA C++ Programming Guide, "Graph
    Structure".
    """
    return Declaration('ck.reads()', arrays, writes=False)


def writes(*arrays: Any) -> Declaration:
    """Say what the nodes recorded in a block write: the other half of :func:`reads`, which tells all about both."""
    return Declaration('ck.writes()', arrays, writes=True)

"""The methods of :class:`capturekit.Graph` that change it; the modules that are named here do the work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from capturekit.analysis.graph_diff import Update
from capturekit.analysis.node_view import Node
from capturekit.graph import edit
from capturekit.graph.extending import EXTENSIONS
from capturekit.graph.state import GraphState
from capturekit.graph.update import update

if TYPE_CHECKING:
    from capturekit.fusion.report import Fused
    from capturekit.lanes.report import Relaned


class Changeable:
    """The methods of :class:`capturekit.Graph` that change it."""

    __slots__ = ()

    _state: GraphState
    launch: Callable[..., None]

    # -- single nodes -------------------------------------------------------------------------------------------

    def set_kernel(
        self,
        node: Node | int,
        *,
        grid: int | Sequence[int] | None = None,
        block: int | Sequence[int] | None = None,
        shared: int | None = None,
        args: Mapping[int, Any] | None = None,
    ) -> None:
        """Give a kernel node another grid, block, shared memory or arguments (``cudaGraphExecKernelNodeSetParams``).

        Args:
            node: one of ``graph.nodes``, or its number. Parameters that are left out stay.
            grid, block: one to three positive whole numbers. shared: bytes of dynamic shared memory.
            args: new arguments by number, counted from 0: a CuPy array or a NumPy scalar, or a Python number if CuPy
                made the kernel. For a kernel that CuPy made, an array must be contiguous, with as many elements of the
                same dtype as before. The graph keeps the arrays.

        Raises:
            UpdateError: CUDA refuses, or the node can not be changed. TypeError, ValueError, IndexError: an argument
            does not fit. ClosedError: the graph is closed. If it raises, nothing has changed; or the change has ended
            halfway, and the graph is closed, which the exception says. Launches that have begun are not affected;
            later ones do what was set.
        """
        edit.set_kernel(self._state, node, grid, block, shared, args)

    def set_memcpy(self, node: Node | int, *, dst: Any = None, src: Any = None, nbytes: int | None = None) -> None:
        """Give a copy node another source, destination or size (``cudaGraphExecMemcpyNodeSetParams1D``).

        Args:
            node: one of ``graph.nodes``, or its number. What is not named stays.
            dst, src: a C-contiguous CuPy or NumPy array, which the graph keeps; or an address. Host memory can only
                be replaced by host memory, and device memory by device memory.
            nbytes: the number of bytes to copy; the arrays must be as large.

        Raises as :meth:`set_kernel`.
        """
        edit.set_memcpy(self._state, node, dst, src, nbytes)

    def set_memset(
        self, node: Node | int, *, dst: Any = None, value: int | None = None, nbytes: int | None = None
    ) -> None:
        """Give a memset node another address, value or size (``cudaGraphExecMemsetNodeSetParams``).

        Args:
            node: one of ``graph.nodes``, or its number. What is not named stays.
            dst: a C-contiguous CuPy array, which the graph keeps; or an address of device memory.
            value: the new value of each element of the memset (a byte in those that CuPy records).
            nbytes: bytes to set. CUDA may refuse another size than before.

        Raises as :meth:`set_kernel`.
        """
        edit.set_memset(self._state, node, dst, value, nbytes)

    def set_host(self, node: Node | int, fn: Callable[[Any], Any], arg: Any = None) -> None:
        """Let a host node call ``fn(arg)`` (``cudaGraphExecHostNodeSetParams``). CUDA calls it in its own thread, where
        it must not call CUDA. The graph keeps both. Raises as :meth:`set_kernel`."""
        edit.set_host(self._state, node, fn, arg)

    def set_event(self, node: Node | int, event: Any) -> None:
        """Let an event node record, or wait for, another CuPy event, which the graph keeps
        (``cudaGraphExecEventRecordNodeSetEvent``, ``cudaGraphExecEventWaitNodeSetEvent``). Raises as
        :meth:`set_kernel`."""
        edit.set_event(self._state, node, event)

    def set_child(self, node: Node | int, other: Changeable) -> None:
        """Let a child graph node run what ``other`` runs now (``cudaGraphExecChildGraphNodeSetParams``).

        ``other`` must have the same nodes and edges, in the same order, as the present child graph. It stays as it is
        and may be closed: this graph keeps what the nodes use. Priorities of its lanes count only if this graph uses
        those of its own lanes. Raises as :meth:`set_kernel`.
        """
        edit.set_child(self._state, node, _state_of(other, 'set_child()'))

    def disable(self, node: Node | int) -> None:
        """Let a kernel, a memset or a copy do nothing at launches until :meth:`enable` (``cudaGraphNodeSetEnabled``).

        Its place in the order stays. Raises as :meth:`set_kernel`.
        """
        edit.set_enabled(self._state, node, False)

    def enable(self, node: Node | int) -> None:
        """Let a node that was disabled run again, with the parameters that it has now. Raises as :meth:`set_kernel`."""
        edit.set_enabled(self._state, node, True)

    def enabled(self, node: Node | int) -> bool:
        """False for a node that :meth:`disable` was called for. Raises IndexError, TypeError and ClosedError."""
        return edit.is_enabled(self._state, node)

    # -- the whole graph ----------------------------------------------------------------------------------------

    def rebind(self, *pairs: tuple[Any, Any]) -> int:
        """Let every node that reads or writes the first array of a pair use the second; return how many were changed.

        ``graph.rebind((x, new_x), (y, new_y))``. Views are replaced as well: an address in the old array's memory
        becomes the one at the same offset in the new array. Both arrays must have the same shape, dtype and strides,
        and lie on the graph's device. Two arrays may change places. The graph keeps the new arrays, and drops those
        that an earlier call had put in their place. Either all nodes are changed or none; launches that have begun are
        not affected. The first call reads all nodes; later calls take some microseconds for each node that is changed.
        In a kernel of your own, an argument that could be an address inside the array is taken for one; in other
        kernels' structures, so is any word.

        Raises:
            TypeError: the arguments are not pairs of arrays. ValueError: they do not fit, no node uses an old one, or
                the new ones overlap each other or what else the graph uses.
            UpdateError: a node that uses the old array can't be changed: a child graph's, a conditional body's, a
                library's kernel whose arguments hide addresses, or one whose larger temporary array lay there before.
            ClosedError: the graph is closed.
        """
        from capturekit.graph.rebind import rebind

        return rebind(self._state, pairs)

    def update(self, other: Changeable, *, instantiate: bool = False) -> Update:
        """Let the next launches do what ``other`` does, by updating this graph in place (``cudaGraphExecUpdate``).

        CUDA can do so if ``other`` has as many nodes of the same kinds with the same edges, recorded in the same order,
        and if both use the priorities of their lanes or neither does; kernels and nearly all parameters may differ.
        ``other`` is closed, and what it held (memory, arrays, host functions, its recording) belongs to this graph.
        What this graph held before is given back; arrays that still lie there keep their memory. If there is memory to
        give back, the call waits for launches that have begun.

        Args:
            other: another recording, of the same device.
            instantiate: True: if CUDA refuses, make a new executable graph instead of raising.

        Returns an :class:`Update`: ``how`` ('updated' or 'instantiated'), ``why``, ``seconds``, ``differences`` (up to
        1,000 nodes).

        Raises:
            UpdateError: CUDA refuses, and says why as a difference of the two graphs; or one of them is launched in
                several parts. Both graphs are as they were.
            TypeError: ``other`` is not a graph. ValueError: it is this one, or lives on another device.
            ClosedError: one of the two is closed.
        """
        return update(self._state, _state_of(other, 'update()'), instantiate)

    def relane(self, *, report: bool = False, rounds: int = 0) -> Relaned:
        """Let the graph have the edges that its data needs, and no others; ``print(graph.relane())`` tells which.

        A read comes after the write before it, a write after the reads and the write before it, to the byte: disjoint
        views of an array need no order. A node keeps its order with all others where it is not known what it touches:
        kernels of your own, kernels of libraries whose call is not understood, and host functions, unless
        :func:`reads` and :func:`writes` say it; conditional nodes and nodes for events. Nodes that were recorded in
        no order stay in none, if no lanes are chosen for them (``rounds``). Bodies of conditional nodes are treated
        each by itself.

        The graph stays as it was recorded, and ``kept`` has the reason, where its data needs the whole order, where
        CUDA refuses, where :meth:`races` would find something new, and where the graph is too large (more than 32,768
        nodes). The first launch runs the graph with the old edges as well, compares all that both wrote, byte by byte
        (sums of CUB's scans, which differ from launch to launch, as numbers), and waits for this; where they differ,
        the graph gets its old edges again, with a RuntimeWarning. ``compared`` tells the outcome, or why a launch can
        not be compared: host functions, checks of host reads and conditional nodes would act twice. Copies of what the
        graph writes take memory for that one launch.

        Nodes keep their numbers, and ``graphExec`` is another one afterwards. Changes of nodes, :meth:`rebind` and
        :meth:`update` compute the order again, from the edges as recorded.

        Args:
            report: True: only tell what would be done.
            rounds: how often each order is timed, in turn, after one round that does not count; 0: not at all. The
                orders are: as recorded; as the data needs it; the same with all first nodes behind one of them; and on
                2, 4, 8, 16 and 32 lanes, as far as the data lets so many run at once and some five seconds suffice.
                Then the best ones are timed with their temporaries packed (of ``lanes='auto'``), and the winner with a
                priority for each kernel, by the longest path behind it. Each time a graph is launched 4 to 25 times in
                a row. Its memory is put back from a copy before that and at the end, so fill its inputs first. The
                graph keeps the fastest order whose upper quartile is below the lower quartile of the recorded one;
                where there is none, the recorded one, and ``kept`` tells why. ``times`` has the figures. A graph that
                can not be launched twice with the same effect is not timed, and ``untimed`` tells why. On the
                simulated device times come from a model.

        Raises:
            TypeError, ValueError: ``report`` is not a bool, ``rounds`` not a whole number of 0 or more; or both are
                asked for. ClosedError: the graph was closed. UpdateError: the graph of a ``@graphed`` function.
            UnmatchedError: ``rounds`` is not 0, and this thread has a capture open.

        Threads: calls take turns; with ``rounds`` no other thread may use the arrays. Streams: nothing is launched,
        and launches under way are not affected; with ``rounds`` it works on CuPy's current stream and waits for it, and
        launches on other streams must have ended. Some 200 microseconds for each node.
        """
        return EXTENSIONS.relane(self._state, self.launch, report, rounds)

    def fuse(self, how: Literal['exact', 'fast'] = 'exact', *, report: bool = False) -> Fused:
        """Let runs of elementwise kernels become one kernel each; ``print(graph.fuse())`` tells which, and why not.

        A run is several of CuPy's elementwise kernels (ufuncs, ``ElementwiseKernel``, ``where``, ``clip``, casts,
        copies) that follow each other and work on as many elements. Values go from one to the next in registers.
        Temporary arrays that nobody can see any more are not written; everything else is. An array that copies fill
        (``roll``) is read from the sources of the copies. Each operation keeps its own code, dtypes and rounding, so
        that every bit is the same as without. Arrays of any shapes, strides and dtypes of
        booleans, integers, floating point (half, too) and complex numbers take part; so do numbers. Other kernels,
        events, lanes that meet, conditional nodes and child graphs end a run. CuPy's own reductions compute what they
        read and work on their results, and combine values in the same order. Nodes whose results nobody reads are
        taken out, and equal nodes run once.

        The graph stays as it was recorded, and ``kept`` has the reason, where nothing can be fused, where it is
        launched in several parts or was relaned, and where CUDA or the compiler refuses. The first launch runs the
        graph as recorded as well, compares everything that can be seen, byte by byte, and waits for this; where they
        differ, the graph is as it was recorded again, with a RuntimeWarning. ``compared`` tells the outcome, or why a
        launch can not be compared. Copies of what the graph writes take memory for that one launch.

        A fused kernel has the number and the line of its last node; ``node.inner`` are the nodes that it replaces.
        ``graphExec`` is another one afterwards. A second call returns the same report.

        With ``how='fast'`` results may be rounded otherwise: the compiler makes products and sums one instruction,
        operations that add products are fused, too (kernels of ``cupy.fuse``, products of complex numbers, ``hypot``),
        and so are sums, products, minima and maxima of rows that lie in one piece, in another order of sums. Nothing is
        less accurate than such rounding makes it. The first launch then lets numbers differ by a tolerance: 1e-12 for
        float64, 1e-5 for float32, 1e-2 for float16, 4e-2 for bfloat16, as a part of the number plus the mean size of
        the numbers in its array; for complex numbers part by part. Whole numbers and truth values have to be the same.

        Args:
            how: ``'exact'`` keeps every bit; ``'fast'`` does not.
            report: True: only tell what would be done.

        Raises:
            TypeError: ``report`` is not a bool. ValueError: ``how`` is something else. ClosedError: the graph was
                closed.
            UpdateError: the graph of a ``@graphed`` function: write ``@ck.graphed(fuse=True)``; or it has been fused
                in the other way.

        Threads: calls take turns. Streams: nothing is launched; launches under way are not affected. The compiler takes
        some 100 milliseconds for each kernel that CuPy's cache on disk does not have yet.
        """
        return EXTENSIONS.fuse(self._state, self.launch, how, report)


def _state_of(other: Any, call: str) -> GraphState:
    """The state of another graph that is given to a call."""
    if not isinstance(other, Changeable):
        raise TypeError(f'{call} takes another capturekit.Graph, got {type(other).__name__}')
    return other._state

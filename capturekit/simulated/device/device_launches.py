"""Executable graphs of the simulated device: instantiated, launched, destroyed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from capturekit.model.errors import CudaCallError
from capturekit.model.rules import Code, Operation
from capturekit.simulated.device.device_state import (
    LEGACY,
    DeviceState,
)
from capturekit.simulated.device.graph_nodes import ExecutableGraph, GraphNode
from capturekit.simulated.device.stream_queues import any_order

#: Of so many nodes drawn from those that may run now, the one of the highest priority runs.
_DRAWS = 3


class Launches(DeviceState):
    """The calls about executable graphs of :class:`capturekit.simulated.device.machine.SimulatedDevice`."""

    def condition_set(self, condition: int, value: int) -> None:
        """``cudaGraphSetConditional``, which a kernel calls while it runs in a launch of the condition's graph.

        Raises InvalidValue anywhere else, where CUDA would do what it likes.
        """
        for values in reversed(self._launching()):
            if condition in values:
                values[condition] = value & 0xFFFFFFFF
                return
        raise CudaCallError(Code.cudaErrorInvalidValue, f'condition {condition:#x} belongs to no graph that runs here')

    def graph_instantiate(self, g: int, by_node_priority: bool = False) -> int:
        """``cudaGraphInstantiate``; a body alone is refused, and so are bodies that allocate memory.

        Of a graph with conditional nodes there is one executable graph at a time (measured: driver 580.159.04).
        ``by_node_priority``: kernels have the priorities of the streams that they were recorded on.
        """
        with self._lock:
            self._unsafe('graphInstantiate')
            graph = self._whole(self._graph(g))
            executable = ExecutableGraph.of(graph, by_node_priority)
            lost = not executable.conditions.keys() >= executable.used()
            if graph.is_body or graph.maimed or lost or executable.allocates_in_a_body():
                raise CudaCallError(Code.cudaErrorInvalidValue, 'graphInstantiate')
            if executable.bodies and any(one.source == g for one in self.executables.values()):
                raise CudaCallError(Code.cudaErrorNotSupported, 'graphInstantiate')
            x = self._handle()
            executable.source = g
            self.executables[x] = executable
            return x

    def graph_launch(self, x: int, s: int) -> None:
        """``cudaGraphLaunch``: run the nodes in a random order among those that the edges allow."""
        with self._lock:
            if s in LEGACY:
                self._legacy('graphLaunch')
            else:
                self._conflict(self._stream(s), Operation.GRAPH_LAUNCH)
            executable = self._exec(x)
            self.launches += 1
            queue = self.queue
            if queue is not None:
                now = executable.as_now()
                queue.launched[x] = queue.put(self._line(s), lambda: self._launch(now), [queue.launched.get(x)])
        self._begin_work(None if queue is not None else lambda: self._launch(executable))

    def _launch(self, executable: ExecutableGraph) -> None:
        values = dict(executable.conditions)
        launching = self._launching()
        launching.append(values)
        try:
            self._run(executable, values, executable.by_priority)
        finally:
            launching.pop()

    def launch_in_order(self, x: int, order: Sequence[int]) -> None:
        """Run an executable graph in an order of its nodes that the edges allow, at once. CUDA can not.

        Raises InvalidValue for any other order.
        """
        self.finish()
        with self._lock:
            executable = self._exec(x)
            nodes = [executable.anchors.get(handle) for handle in order]
        done: set[GraphNode | None] = set()
        for node in nodes:
            if node is None or node in done or not done >= node.after:
                raise CudaCallError(Code.cudaErrorInvalidValue, 'launchInOrder')
            done.add(node)
        if len(done) != len(executable.nodes):
            raise CudaCallError(Code.cudaErrorInvalidValue, 'launchInOrder')
        values = dict(executable.conditions)
        launching = self._launching()
        launching.append(values)
        try:
            self._run(executable, values, False, [node for node in nodes if node is not None])
        finally:
            launching.pop()

    def _launching(self) -> list[dict[int, int]]:
        """The values of conditions in the launches that this thread is in."""
        try:
            found: list[dict[int, int]] = self._running.values
        except AttributeError:
            found = self._running.values = []
        return found

    def _run(
        self,
        executable: ExecutableGraph,
        values: dict[int, int],
        by_priority: bool,
        order: list[GraphNode] | None = None,
    ) -> None:
        with self._lock:
            order = self._order(executable, by_priority) if order is None else order
        for node in order:
            if self.queue is not None:
                self.queue.between()
            bodies = executable.bodies.get(node)
            if node in executable.off:
                continue
            if node in executable.children:
                self._run(executable.children[node], {}, by_priority)
            elif bodies is None:
                _do(node, executable.works[node])
            elif node.decides == 'while':
                while values[node.condition]:
                    self._run(bodies[0], values, by_priority)
            else:
                chosen = values[node.condition] if node.decides == 'switch' else int(not values[node.condition])
                if chosen < len(bodies):
                    self._run(bodies[chosen], values, by_priority)

    def _order(self, graph: ExecutableGraph, by_priority: bool) -> list[GraphNode]:
        draws = _DRAWS if by_priority else 1

        def choose(ready: list[GraphNode]) -> int:
            drawn = (self.random.randrange(len(ready)) for _ in range(draws))
            return min(drawn, key=lambda at: graph.priorities.get(ready[at], 0))

        return any_order({n: n.after for n in graph.nodes}, choose)

    def graph_upload(self, x: int, s: int) -> None:
        """``cudaGraphUpload``."""
        with self._lock:
            if s in LEGACY:
                self._legacy('graphUpload')
            else:
                self._conflict(self._stream(s), Operation.GRAPH_UPLOAD)
            self._exec(x)

    def graph_exec_destroy(self, x: int) -> None:
        """``cudaGraphExecDestroy``: unsafe, so kept away by modes that do."""
        with self._lock:
            self._unsafe('graphExecDestroy')
            self._exec(x)
            del self.executables[x]
            if self.queue is not None:
                self.queue.launched.pop(x, None)


def _do(node: GraphNode, work: Callable[[], None]) -> None:
    try:
        work()
    except (ValueError, ArithmeticError, LookupError) as error:  # what NumPy raises for values
        raise RuntimeError(
            f'The Python body of kernel {node.name!r} raised {type(error).__name__} in a launch ({error}). No kernel '
            'on a GPU raises: a body that was given by `capturekit.simulated.body` has to take any values; '
            'that any other body does not is a fault of the simulated device.'
        ) from error

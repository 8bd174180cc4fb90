"""Fused reductions on the simulated device: all elements in front, NumPy's own reduction of them, then the results.

NumPy adds in an order that depends on how the elements lie. So they are reduced from a copy that lies as the array lay
which is not in memory any more; but from one that lies in another way where sums may be rounded otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capturekit.driver.elementwise import ElementOperand, Rounded
from capturekit.driver.fused_kernel import FusedKernel, FusedPlace
from capturekit.driver.fused_nodes import name_of
from capturekit.driver.fused_reduction import FusedReduction
from capturekit.driver.node_accesses import Access
from capturekit.driver.reduction import CUB, Reduction
from capturekit.simulated.device.graph_nodes import Given, GraphDefinition, GraphNode

#: Reductions of CuPy's that are one kernel of its own.
_NAMES = frozenset({'cupy_sum', 'cupy_prod', 'cupy_max', 'cupy_min', 'cupy_mean', 'cupy_var', 'cupy_all', 'cupy_any'})


@dataclass(frozen=True)
class _Code:
    """What a reduction does: the name, what it was told besides its input, and the work on two arrays.

    ``axes``: the axes of the array in the order in which they are gone through; () where that is their own order.
    """

    name: str
    told: str
    whole: Callable[[Sequence[Any]], None] = field(compare=False)
    inputs: tuple[Any, ...] = ()
    axes: tuple[int, ...] = ()


class FusedReductions:
    """The verbs of a device that read what nodes reduce, and put fused reductions into nodes."""

    _lock: Any
    _graph: Callable[[int], GraphDefinition]
    _node: Callable[..., GraphNode]
    fusing: list[float]

    def graph_reductions(self, g: int) -> dict[int, Reduction | str]:
        """What each reduction kernel's node of a definition reduces, by its handle. Other nodes are left out."""
        with self._lock:
            found = {node.handle: _reduction(node) for node in self._graph(g).nodes if node.kind == 'kernel'}
        return {handle: one for handle, one in found.items() if one is not None}

    def fused_reduction(self, kernel: FusedReduction, names: tuple[str, ...]) -> tuple[str, Any]:
        """The name and the function of a fused reduction."""
        words = tuple(repr((one.dtype, one.shape, one.loads, one.stores)) for one in kernel.places)
        self.fusing[0] += 1
        return name_of(kernel, names, words), kernel

    def reduce_node(self, g: int, node: int, kernel: FusedReduction, name: str, function: Any) -> None:
        """``cuGraphKernelNodeSetParams``: a kernel's node of a definition runs a fused reduction from now on."""
        with self._lock:
            found = self._node(g, node, 'kernel')
            assert found.given is not None
            form = next(one for one in found.given.values['args'] if hasattr(one, 'ptr'))
            given = _given(kernel, form)
            found.given, found.work, found.name = given, given.work(), name


def _reduction(node: GraphNode) -> Reduction | str | None:
    given = node.given
    if given is None or node.name not in _NAMES or given.whole is None or not isinstance(given.beside, Mapping):
        return None
    args, beside = given.values['args'], given.beside.values()
    if len(args) != 2 or given.writes != frozenset({1}) or any(not hasattr(one, 'ptr') for one in args):
        return None
    if any(hasattr(one, 'ptr') for one in beside) or any(0 in one.shape for one in args):
        return None
    source, output = (
        ElementOperand(str(one.dtype), one.ptr, one.shape, one.strides, None, not writes, writes, writes)
        for one, writes in zip(args, (False, True))
    )
    code = _Code(node.name, repr(sorted(given.beside.items())), given.whole)
    axis = given.beside.get('axis')
    if node.name == 'cupy_var' or not _in_rows(args[0], axis):
        return Reduction(node.name, code, (source,), output)
    ndim = len(source.shape)
    going = range(ndim) if axis is None else sorted(n % ndim for n in np.atleast_1d(axis))
    axes = (*going, *(n for n in range(ndim) if n not in going))
    shape, strides = (tuple(one[n] for n in axes) for one in (source.shape, source.strides))
    rows = replace(source, shape=shape, strides=strides)
    return Rounded.of(CUB, Reduction(node.name, replace(code, axes=axes), (rows,), output))


def _in_rows(source: Any, axis: Any) -> bool:
    """Whether what is reduced to one element lies in one piece: such rows CuPy gives to CUB."""
    ndim = len(source.shape)
    axes = range(ndim) if axis is None else sorted(n % ndim for n in np.atleast_1d(axis))
    for order in (range(ndim), reversed(range(ndim))):
        inner_first, step = list(order)[::-1], source.dtype.itemsize
        strides = {}
        for n in inner_first:
            strides[n] = step
            step *= source.shape[n]
        if all(source.strides[n] == strides[n] for n in range(ndim) if source.shape[n] > 1):
            return sorted(inner_first[: len(axes)]) == list(axes)
    return False


def _given(kernel: FusedReduction, form: Any) -> Given:
    """What a node is given that runs this kernel. ``form`` is an array among the arguments of a node."""

    def slot(place: FusedPlace) -> Any:
        return replace(form, ptr=place.address, shape=place.shape, strides=place.strides, dtype=np.dtype(place.dtype))

    places = kernel.places
    loaded = [n for n, place in enumerate(places) if place.loads and not place.stores]
    stored = [n for n, place in enumerate(places) if place.stores]
    numbers = [number[0] for _dtype, number in (*kernel.front.numbers, *kernel.behind.numbers)]
    first = len(loaded) + len(numbers)
    args = (*(slot(places[n]) for n in loaded), *numbers, *(slot(places[n]) for n in stored))

    def make(args: tuple[Any, ...], **_shape: Any) -> Callable[[], None]:
        memory = dict(zip([*loaded, *stored], [*args[: len(loaded)], *args[first:]]))
        return lambda: _run(kernel, memory, args[len(loaded) : first])

    values = {'args': args, 'grid': None, 'block': None, 'shared': 0}
    return Given(values, make, writes=frozenset(range(first, first + len(stored))))


def _run(kernel: FusedReduction, memory: Mapping[int, Any], numbers: Sequence[Any]) -> None:
    count, reduction = len(kernel.front.places), kernel.reduction
    front = _values(kernel.front, memory, 0)
    _steps(kernel.front, front, numbers)
    source, output = reduction.inputs[0], reduction.output
    axes = reduction.code.axes
    elements = np.empty(source.shape, source.dtype, 'C' if axes else 'F') if kernel.front.fast else _lying(source)
    elements[...] = front[kernel.inputs[0]].reshape(source.shape)
    result = np.empty(output.shape, np.dtype(output.dtype))
    reduction.code.whole([elements.transpose(np.argsort(axes)) if axes else elements, result])
    behind = _values(kernel.behind, memory, count)
    behind[kernel.output] = result.reshape(-1).copy()
    _steps(kernel.behind, behind, numbers[len(kernel.front.numbers) :])
    for n, values in enumerate((*front, *behind)):
        if kernel.places[n].stores:
            memory[n].view()[...] = values.reshape(kernel.places[n].shape)


def _values(half: FusedKernel, memory: Mapping[int, Any], first: int) -> list[NDArray[Any]]:
    """The elements of each place before the first step."""
    return [
        memory[n].view().reshape(-1).copy() if place.loads else np.empty(half.size, np.dtype(place.dtype))
        for n, place in enumerate(half.places, first)
    ]


def _steps(half: FusedKernel, values: list[NDArray[Any]], numbers: Sequence[Any]) -> None:
    for step in half.steps:
        step.operation.each([values[n] if n >= 0 else numbers[-1 - n] for n in step.operands])


def _lying(operand: ElementOperand) -> NDArray[Any]:
    """Memory for elements that lie as those of an operand."""
    dtype = np.dtype(operand.dtype)
    low, high = Access(0, operand.shape, operand.strides, dtype.itemsize, True).extent
    found: NDArray[Any] = np.ndarray(operand.shape, dtype, bytearray(high - low), -low, operand.strides)
    return found

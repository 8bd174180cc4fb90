"""Fused kernels on the simulated device: elements are copied, computed in NumPy, and stored at the end.

As in a GPU's registers, what a step computes is seen by later steps, and by nobody else until the kernel ends: elements
that the kernel does not write keep what they had.

NumPy adds in an order that depends on how the elements lie. So a fused reduction reduces a copy that lies as the array
lay which is not in memory any more; but one that lies in another way where sums may be rounded otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capturekit.fusion.elementwise import ElementOperand, Elementwise, Rounded
from capturekit.fusion.fused_kernel import FusedKernel, FusedPlace, contiguous, name_of
from capturekit.fusion.fused_reduction import FusedReduction
from capturekit.fusion.reduction import CUB, Reduction
from capturekit.simulated.device.graph_nodes import Given, GraphNode

#: Reductions of CuPy's that are one kernel of its own.
_NAMES = frozenset({'cupy_sum', 'cupy_prod', 'cupy_max', 'cupy_min', 'cupy_mean', 'cupy_var', 'cupy_all', 'cupy_any'})


@dataclass(frozen=True)
class _Operation:
    """What a node does to each element, on values in the place of its arguments; the numbers of those it writes.

    ``told`` is equal for nodes that do the same: the name and the options of a universal function.
    """

    each: Callable[[Sequence[Any]], None] = field(compare=False)
    writes: frozenset[int]
    told: Any


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


class SimulatedNodes:
    """Reads and fuses the nodes of a :class:`capturekit.simulated.device.machine.SimulatedDevice`.

    It has the methods of :class:`capturekit.fusion.cuda_nodes.CudaNodes`.
    """

    def __init__(self, device: Any) -> None:
        self._device = device

    def copy_operation(self, dtype: str) -> Any:
        """The operation that copies an element of a dtype."""
        return _Operation(_copy, frozenset({1}), ('copy', dtype))

    def graph_work(self, g: int) -> dict[int, Elementwise | Reduction | str]:
        """What each kernel's node of a definition computes for each element or reduces, by its handle; or why it can
        not be fused. Other nodes are left out."""
        with self._device._lock:
            kernels = [node for node in self._device._graph(g).nodes if node.kind == 'kernel']
        return {node.handle: _reduction(node) or _elementwise(node) for node in kernels}

    def fused_function(self, kernel: FusedKernel | FusedReduction, names: tuple[str, ...]) -> tuple[str, Any]:
        """The name and the function of a fused kernel."""
        words = tuple(repr((one.dtype, one.shape, one.loads, one.stores)) for one in kernel.places)
        return name_of(names, words), kernel

    def fuse_node(self, g: int, node: int, kernel: FusedKernel | FusedReduction, name: str, function: Any) -> None:
        """``cuGraphKernelNodeSetParams``: a kernel's node of a definition runs a fused kernel from now on."""
        with self._device._lock:
            found = self._device._node(g, node, 'kernel')
            assert found.given is not None
            form = next(one for one in found.given.values['args'] if hasattr(one, 'ptr'))
            given = _given(kernel, form)
            found.given, found.work, found.name = given, given.work(), name


# -- elementwise kernels ---------------------------------------------------------------------------------------------


def _copy(values: Sequence[Any]) -> None:
    values[1][...] = values[0]


def _elementwise(node: GraphNode) -> Elementwise | str:
    given = node.given
    if given is None or given.each is None or given.writes is None:
        return "it is not one of CuPy's elementwise kernels"
    args = given.values['args']
    shape = next(args[number].shape for number in sorted(given.writes))
    operands = []
    for number, value in enumerate(args):
        if not hasattr(value, 'ptr'):
            operands.append(ElementOperand('', number=(value,)))
            continue
        writes = number in given.writes
        strides = _broadcast(value.shape, value.strides, shape)
        operands.append(ElementOperand(str(value.dtype), value.ptr, shape, strides, None, not writes, writes, writes))
    copies = node.name == 'cupy_copy' and len({one.dtype for one in operands}) == 1 and len(operands) == 2
    return Elementwise(node.name, _Operation(given.each, given.writes, _told(node, given)), tuple(operands), copies)


def _told(node: GraphNode, given: Given) -> Any:
    if isinstance(getattr(np, node.name.removeprefix('cupy_'), None), np.ufunc):
        return node.name, repr(given.beside)
    return node.handle


def _broadcast(shape: tuple[int, ...], strides: tuple[int, ...], to: tuple[int, ...]) -> tuple[int, ...]:
    own = [0 if length == 1 else stride for length, stride in zip(shape, strides)]
    return (*[0] * (len(to) - len(shape)), *own)[-len(to) or len(own) :]


# -- reductions ------------------------------------------------------------------------------------------------------


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
    axis, ndim = given.beside.get('axis'), len(source.shape)
    going = list(range(ndim)) if axis is None else sorted(n % ndim for n in np.atleast_1d(axis))
    if node.name == 'cupy_var' or not _in_rows(args[0], going):
        return Reduction(node.name, code, (source,), output)
    axes = (*going, *(n for n in range(ndim) if n not in going))
    shape, strides = (tuple(one[n] for n in axes) for one in (source.shape, source.strides))
    rows = replace(source, shape=shape, strides=strides)
    return Rounded.of(CUB, Reduction(node.name, replace(code, axes=axes), (rows,), output))


def _in_rows(source: Any, going: list[int]) -> bool:
    """Whether what is reduced to one element, along axes, lies in one piece: such rows CuPy gives to CUB."""
    shape, strides, size, ndim = source.shape, source.strides, source.dtype.itemsize, len(source.shape)
    if contiguous(shape, strides, size):
        return going == list(range(ndim - len(going), ndim))
    return contiguous(shape[::-1], strides[::-1], size) and going == list(range(len(going)))


# -- what a node is given that runs a fused kernel -------------------------------------------------------------------


def _given(kernel: FusedKernel | FusedReduction, form: Any) -> Given:
    """``form`` is an array among the arguments of a node."""
    places = kernel.places
    halves = (kernel.front, kernel.behind) if isinstance(kernel, FusedReduction) else (kernel,)
    run: Callable[..., None] = _run_reduction if isinstance(kernel, FusedReduction) else _run_kernel
    loaded = {n: place for n, place in enumerate(places) if place.loads and not place.stores and not place.pieces}
    parts = {(n, k): part for n, place in enumerate(places) for k, part in enumerate(place.parts)}
    stored = {n: place for n, place in enumerate(places) if place.stores}
    numbers = [number[0] for half in halves for _dtype, number in half.numbers]
    read: dict[Any, FusedPlace] = {**loaded, **parts}
    first = len(read) + len(numbers)
    args = (*(_slot(form, one) for one in read.values()), *numbers, *(_slot(form, one) for one in stored.values()))

    def make(args: tuple[Any, ...], **_shape: Any) -> Callable[[], None]:
        memory = dict(zip([*read, *stored], [*args[: len(read)], *args[first:]]))
        return lambda: run(kernel, memory, args[len(read) : first])

    values = {'args': args, 'grid': None, 'block': None, 'shared': 0}
    return Given(values, make, writes=frozenset(range(first, len(args))))


def _slot(form: Any, place: FusedPlace) -> Any:
    """An argument like ``form`` that is a place of a fused kernel."""
    return replace(form, ptr=place.address, shape=place.shape, strides=place.strides, dtype=np.dtype(place.dtype))


def _loaded(kernel: FusedKernel, memory: Mapping[Any, Any], first: int = 0) -> list[NDArray[Any]]:
    """The elements of each place before the first step. ``first`` is the number of the first place."""
    values = []
    for n, place in enumerate(kernel.places, first):
        found = np.empty(kernel.size, np.dtype(place.dtype))
        for k, piece in enumerate(place.pieces):
            box = tuple(slice(start, start + length) for start, length in zip(piece.offsets, piece.lengths))
            found.reshape(piece.whole)[box] = memory[n, k].view()
        values.append(memory[n].view().reshape(-1).copy() if place.loads and not place.pieces else found)
    return values


def _steps(kernel: FusedKernel, values: list[NDArray[Any]], numbers: Sequence[Any]) -> list[NDArray[Any]]:
    """What all threads have in their registers after the last step."""
    for step in kernel.steps:
        step.operation.each([values[n] if n >= 0 else numbers[-1 - n] for n in step.operands])
    return values


def _run_kernel(kernel: FusedKernel, memory: Mapping[Any, Any], numbers: Sequence[Any]) -> None:
    """The threads run in two parts: those of the second one see what those of the first one have written."""
    first = np.random.default_rng(kernel.size).random(kernel.size) < 0.5
    first[0] = True
    for part in (first, ~first):
        with np.errstate() if part is first else np.errstate(all='ignore'):  # the others' work is done in vain
            values = _steps(kernel, _loaded(kernel, memory), numbers)
        for n, place in enumerate(kernel.places):
            if place.stores:
                _store(memory[n].view(), values[n].reshape(place.shape), part.reshape(place.shape))


def _store(array: NDArray[Any], values: NDArray[Any], part: NDArray[Any]) -> None:
    """Store the values of a part of the threads. What all threads have is stored by that of the first element."""
    if array.size > 1 and not any(array.strides):
        if part.flat[0]:
            array[(0,) * array.ndim] = values.flat[0]
    else:
        array[part] = values[part]


def _run_reduction(kernel: FusedReduction, memory: Mapping[Any, Any], numbers: Sequence[Any]) -> None:
    reduction = kernel.reduction
    front = _steps(kernel.front, _loaded(kernel.front, memory), numbers)
    source, output = reduction.inputs[0], reduction.output
    axes = reduction.code.axes
    elements = np.empty(source.shape, source.dtype, 'C' if axes else 'F') if kernel.front.fast else _lying(source)
    elements[...] = front[kernel.inputs[0]].reshape(source.shape)
    result = np.empty(output.shape, np.dtype(output.dtype))
    reduction.code.whole([elements.transpose(np.argsort(axes)) if axes else elements, result])
    behind = _loaded(kernel.behind, memory, len(front))
    behind[kernel.output] = result.reshape(-1).copy()
    _steps(kernel.behind, behind, numbers[len(kernel.front.numbers) :])
    for n, values in enumerate((*front, *behind)):
        if kernel.places[n].stores:
            memory[n].view()[...] = values.reshape(kernel.places[n].shape)


def _lying(operand: ElementOperand) -> NDArray[Any]:
    """Memory for elements that lie as those of an operand."""
    low, high = operand.access.extent
    first = operand.address - low
    return np.ndarray(operand.shape, operand.dtype, bytearray(high - low), first, operand.strides)

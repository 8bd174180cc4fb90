"""Fused kernels on the simulated device: the steps of one after the other, on copies of all elements.

As in a GPU's registers, what a step computes is seen by later steps, and by nobody else until the kernel ends: elements
that the kernel does not write keep what they had.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capturekit.driver.elementwise import ElementOperand, Elementwise
from capturekit.driver.fused_kernel import FusedKernel, FusedPlace
from capturekit.driver.fused_nodes import name_of
from capturekit.simulated.device.graph_nodes import Given, GraphDefinition, GraphNode


@dataclass(frozen=True)
class _Operation:
    """What a node does to each element, on values in the place of its arguments; the numbers of those it writes.

    ``told`` is equal for nodes that do the same: the name and the options of a universal function.
    """

    each: Callable[[Sequence[Any]], None] = field(compare=False)
    writes: frozenset[int]
    told: Any


class FusedNodes:
    """The verbs of a device that read elementwise nodes and put fused kernels into nodes."""

    _lock: Any
    _graph: Callable[[int], GraphDefinition]
    _node: Callable[..., GraphNode]
    #: How many kernels were made, and the seconds that took.
    fusing: list[float]

    def graph_elementwise(self, g: int) -> dict[int, Elementwise | str]:
        """What each kernel's node of a definition computes for each element, by its handle; or why that is not known.

        Other nodes are left out.
        """
        with self._lock:
            return {node.handle: _elementwise(node) for node in self._graph(g).nodes if node.kind == 'kernel'}

    def copy_operation(self, dtype: str) -> Any:
        """The operation that copies an element of a dtype."""
        return _Operation(_copy, frozenset({1}), ('copy', dtype))

    def fused_function(self, kernel: FusedKernel, names: tuple[str, ...]) -> tuple[str, Any]:
        """The name and the function of a fused kernel."""
        words = tuple(repr((one.dtype, one.shape, one.loads, one.stores)) for one in kernel.places)
        self.fusing[0] += 1
        return name_of(kernel, names, words), kernel

    def fuse_node(self, g: int, node: int, kernel: FusedKernel, name: str, function: Any) -> None:
        """``cuGraphKernelNodeSetParams``: a kernel's node of a definition runs a fused kernel from now on."""
        with self._lock:
            found = self._node(g, node, 'kernel')
            assert found.given is not None
            form = next(one for one in found.given.values['args'] if hasattr(one, 'ptr'))
            given = _given(function, form)
            found.given, found.work, found.name = given, given.work(), name


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


def _given(kernel: FusedKernel, form: Any) -> Given:
    """What a node is given that runs this kernel. ``form`` is an array among the arguments of a node."""

    def slot(place: FusedPlace) -> Any:
        dtype = np.dtype(place.dtype)
        return replace(form, ptr=place.address, shape=place.shape, strides=place.strides, dtype=dtype)

    loaded = [n for n, place in enumerate(kernel.places) if place.loads and not place.stores and not place.pieces]
    stored = [n for n, place in enumerate(kernel.places) if place.stores]
    pieces = [(n, k) for n, place in enumerate(kernel.places) for k in range(len(place.pieces))]
    first = len(loaded) + len(pieces) + len(kernel.numbers)
    numbers = [number[0] for _dtype, number in kernel.numbers]
    parts = [_part(kernel.places[n], k) for n, k in pieces]
    read = [*(kernel.places[n] for n in loaded), *parts]
    args = (*map(slot, read), *numbers, *(slot(kernel.places[n]) for n in stored))

    def make(args: tuple[Any, ...], **_shape: Any) -> Callable[[], None]:
        memory: dict[Any, Any] = dict(zip([*loaded, *pieces], args))
        memory |= {n: args[first + at] for at, n in enumerate(stored)}
        return lambda: _run(kernel, memory, args[first - len(numbers) : first])

    values = {'args': args, 'grid': None, 'block': None, 'shared': 0}
    return Given(values, make, writes=frozenset(range(first, first + len(stored))))


def _part(place: FusedPlace, k: int) -> FusedPlace:
    piece = place.pieces[k]
    return FusedPlace(place.dtype, piece.address, piece.lengths, piece.strides, True, False)


def _loaded(kernel: FusedKernel, n: int, memory: dict[Any, Any]) -> NDArray[Any]:
    """The elements of a place before the first step."""
    place = kernel.places[n]
    found = np.empty(kernel.size, np.dtype(place.dtype))
    for k, piece in enumerate(place.pieces):
        box = tuple(slice(start, start + length) for start, length in zip(piece.offsets, piece.lengths))
        found.reshape(piece.whole)[box] = memory[n, k].view()
    return memory[n].view().reshape(-1).copy() if place.loads and not place.pieces else found


def _run(kernel: FusedKernel, memory: dict[Any, Any], numbers: Sequence[Any]) -> None:
    """The threads run in two parts: those of the second one see what those of the first one have written."""
    first = np.random.default_rng(kernel.size).random(kernel.size) < 0.5
    first[0] = True
    for part in (first, ~first):
        with np.errstate() if part is first else np.errstate(all='ignore'):  # the others' work is done in vain
            values = _computed(kernel, memory, numbers)
        for n, place in enumerate(kernel.places):
            if place.stores:
                _store(memory[n].view(), values[n].reshape(place.shape), part.reshape(place.shape))


def _computed(kernel: FusedKernel, memory: dict[Any, Any], numbers: Sequence[Any]) -> list[NDArray[Any]]:
    """What all threads have in their registers after the last step."""
    values = [_loaded(kernel, n, memory) for n in range(len(kernel.places))]
    for step in kernel.steps:
        step.operation.each([values[n] if n >= 0 else numbers[-1 - n] for n in step.operands])
    return values


def _store(array: NDArray[Any], values: NDArray[Any], part: NDArray[Any]) -> None:
    """Store the values of a part of the threads. What all threads have is stored by that of the first element."""
    if array.size > 1 and not any(array.strides):
        if part.flat[0]:
            array[(0,) * array.ndim] = values.flat[0]
    else:
        array[part] = values[part]

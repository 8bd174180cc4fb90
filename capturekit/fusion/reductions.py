"""Reductions that take in the elementwise kernel in front of them, and the one behind.

A fused reduction computes each element that it reads, in the place of loading it, and goes on with each of its results.
Elements in front are computed by threads all over the device while the first results are already there, so nothing that
is written behind may lie where the front reads or writes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

import numpy as np

from capturekit.analysis.node_memory import Memory
from capturekit.driver.node_accesses import Access, overlap
from capturekit.fusion.elementwise import ElementOperand, Elementwise
from capturekit.fusion.fused_kernel import FusedKernel, FusedPlace, FusedStep, in_order
from capturekit.fusion.fused_reduction import FusedReduction, uses_number
from capturekit.fusion.lines import Definition, Fusing, Fusion, Liveness, edges_between, lines_of
from capturekit.fusion.reduction import Reduction
from capturekit.fusion.runs import MOST_BYTES, MOST_PLACES, Run, Shape, common, kernel_of, meet, shortest, split

# -- two ways to go through the same elements of memory, brought to one: axes split and put into another order --------
#
# A reduction goes through its input with the axes that it reduces first; the kernel that made the input went through it
# in C order of another shape. As each element has an address, the two ways can be compared by their strides alone.


@dataclass(frozen=True)
class Arrangement:
    """How one way to go through elements is gone through in the order of another one.

    ``shape`` is that of both, in the order of the other one; ``mine`` and ``theirs`` bring the strides of an array of
    the one way, and of the other, into that form. ``in_order``: whether both number the elements alike.
    """

    shape: Shape
    mine: Callable[[Sequence[int]], Shape]
    theirs: Callable[[Sequence[int]], Shape]
    in_order: bool = True


def arranged(mine: tuple[Shape, Shape], theirs: tuple[Shape, Shape]) -> Arrangement | None:
    """Bring two ways together, each given by the shape and the strides of elements that lie apart.

    None if they do not go through the same elements, or no axes can be found for both.
    """
    ways = mine, theirs
    axes = [_by_falling_strides(*way) for way in ways]
    lengths = [tuple(shape[n] for n in each) for (shape, _strides), each in zip(ways, axes)]
    both = common(lengths)
    if both is None or prod(lengths[0]) != prod(lengths[1]):
        return None
    order = list(range(len(both)))

    def to(way: int, strides: Sequence[int]) -> Shape:
        found = split(lengths[way], tuple(strides[n] for n in axes[way]), both)
        return tuple(found[n] for n in order)

    if to(0, mine[1]) != to(1, theirs[1]):
        return None
    order.sort(key=to(1, in_order(1, theirs[0])).__getitem__, reverse=True)
    own = to(0, in_order(1, mine[0]))
    alike = list(own) == sorted(own, reverse=True)
    return Arrangement(tuple(both[n] for n in order), partial(to, 0), partial(to, 1), alike)


def _by_falling_strides(shape: Shape, strides: Shape) -> list[int]:
    """The numbers of the axes that have more than one element."""
    return sorted((n for n, length in enumerate(shape) if length > 1), key=lambda n: -abs(strides[n]))


_ALONE = 'no elementwise kernel of its elements is in front of it, and none of its results behind it'
#: A reduction whose threads combine so many elements in turn is made anew: it loads several at once then.
_IN_TURN = 16


@dataclass(frozen=True)
class _Around:
    """A reduction with what becomes part of it."""

    node: int
    front: Fusing | None
    behind: Fusing | None

    @property
    def units(self) -> list[Fusing]:
        """The elementwise kernels."""
        return [one for one in (self.front, self.behind) if one is not None]

    @property
    def nodes(self) -> set[int]:
        """All nodes."""
        return {self.node, *(n for one in self.units for n in one.nodes)}


def accesses_of(kernel: FusedKernel | FusedReduction) -> list[Access]:
    """What a fused kernel touches in memory."""
    return [access for place in kernel.places for access in place.accesses]


class _Reducing:
    """One pass over the lines of a definition.

    ``memory`` is what each node touches after elementwise kernels became one. ``moved`` are nodes that read from other
    memory than they were recorded with.
    """

    def __init__(self, fusion: Fusion, known: Definition, memory: list[Memory], moved: Collection[int]) -> None:
        self._fusion, self._does, self._memory, self._moved = fusion, known.does, memory, moved
        self._live = Liveness(known.order, known.seen(memory), [], known.free)
        self._reductions = {n: one for n, one in enumerate(known.does) if isinstance(one, Reduction)}
        self._reductions.update((one.nodes[0], one.does[0]) for one in known.halves)
        #: By the first of two nodes the other one and what it does.
        self._then = {one.nodes[0]: (one.nodes[1], one.does[1]) for one in known.halves}
        #: Nodes that have to be kernels of CuPy's template.
        self._owed: set[int] = set()
        self._absorbed = set(fusion.gone)
        self._units = {one.nodes[-1]: one for one in fusion.kernels}
        self.made: list[Fusing] = []

    def line(self, line: Sequence[int]) -> None:
        """Let the reductions of a line take in what is around them."""
        for place, node in enumerate(line):
            reduction = self._reductions.get(node)
            if reduction is None or node in self._absorbed:
                continue
            found = self._around(line, place, reduction)
            if found is not None:
                self._take(line, *found)
                if node in self._then:  # a library's kernel: so must be replaced the one that goes on with its results
                    other, does = self._then[node]
                    self._reductions[other] = does
                    self._owed.add(other)
            elif node not in self._then:
                assert node not in self._owed, 'the first half was replaced'
                self._fusion.why[node] = _ALONE

    def moved(self) -> None:
        """Nodes that read from other memory than they were recorded with are kernels by themselves at least."""
        for node in sorted(set(self._moved) - self._absorbed - set(self._units)):
            unit = self._unit(node) if node not in self._reductions else None
            if unit is not None:
                self.made.append(unit)
                self._fusion.why.pop(node, None)

    def _take(self, line: Sequence[int], around: _Around, kernel: FusedReduction) -> None:
        nodes = tuple(n for n in line if n in around.nodes)
        names = [one.names if one is not None else () for one in (around.front, around.behind)]
        self.made.append(Fusing(nodes, kernel, (*names[0], self._reductions[around.node].name, *names[1])))
        for one in around.units:
            self._units.pop(one.nodes[-1], None)
        for n in nodes:
            self._memory[n] = ()
            self._fusion.why.pop(n, None)
        self._absorbed |= set(nodes)
        self._memory[nodes[-1]] = accesses_of(kernel)

    # -- what is around -----------------------------------------------------------------------------------------

    def _around(self, line: Sequence[int], place: int, reduction: Reduction) -> tuple[_Around, FusedReduction] | None:
        """What a reduction takes in, and the kernel; None if that is nothing."""
        node = line[place]
        pays_alone = node in self._moved or node in self._owed or reduction.in_turn >= _IN_TURN
        fronts = [*self._fronts(line, place, reduction), None]
        behinds = [*self._behinds(line, place, reduction), None]
        for around in (_Around(node, front, behind) for front in fronts for behind in behinds):
            if (around.units or pays_alone) and self._moves(line, around, reduction):
                kernel = self._kernel(around, reduction)
                if kernel is not None:
                    return around, kernel
        return None

    def _unit(self, node: int) -> Fusing | None:
        """The elementwise kernel that a node is, or that it is the last node of."""
        does = self._does[node]
        if node in self._units or node in self._absorbed or not isinstance(does, Elementwise):
            return self._units.get(node)
        run = Run().joined(0, does)
        if isinstance(run, str):
            return None
        stores = {key: use.writes for key, use in run.used.items()}
        return Fusing((node,), kernel_of(run, stores), (does.name,))

    def _fronts(self, line: Sequence[int], place: int, reduction: Reduction) -> Iterator[Fusing]:
        """The kernel that makes an input of a reduction."""
        for operand in reduction.inputs:
            if operand.number is not None:
                continue
            access = [operand.access]
            for node in reversed(line[:place]):
                memory = self._memory[node]
                if memory is None or meet(access, memory):
                    unit = self._unit(node)
                    if unit is not None:
                        yield unit
                    break

    def _behinds(self, line: Sequence[int], place: int, reduction: Reduction) -> Iterator[Fusing]:
        """The first kernel that reads the result of a reduction."""
        output = reduction.output.access
        for node in line[place + 1 :]:
            memory = self._memory[node]
            if memory is None or meet([output], memory):
                unit = self._unit(node)
                if unit is not None and unit.kernel.size == prod(output.shape):
                    yield unit
                return

    def _moves(self, line: Sequence[int], around: _Around, reduction: Reduction) -> bool:
        """Whether all can be done where the last of them is done."""
        mine = around.nodes
        done: list[Access] = []
        for node in line[: max(line.index(n) for n in mine)]:
            if node == around.node:
                done += [one.access for one in reduction.operands if one.number is None]
            elif around.front is not None and node == around.front.nodes[-1]:
                done += accesses_of(around.front.kernel)
            elif node not in mine and done:
                memory = self._memory[node]
                if memory is None or meet(done, memory):
                    return False
        return True

    # -- the kernel ---------------------------------------------------------------------------------------------

    def _kernel(self, around: _Around, reduction: Reduction) -> FusedReduction | None:
        front = _front(_elementwise(around.front), reduction)
        behind = _behind(_elementwise(around.behind), reduction)
        if front is None or behind is None:
            return None
        (places, steps, numbers, inputs), (results, more, others, output) = front, behind
        last = around.node if around.front is None else around.front.nodes[-1]
        # what is behind would read what other threads write, or what is not written at all
        made = [one.access(True) for one in places if one.stores]
        if meet(made, [one.access(False) for one in results if one.loads]):
            return None
        places = [self._stored(one, last, around) for one in places]
        last = around.node if around.behind is None else around.behind.nodes[-1]
        results = [self._stored(one, last, around) for one in results]
        if not any(one.stores for one in (*places, *results)):  # one write does no harm, and a kernel needs one
            results[output] = behind[0][output]
        if _tangled(places, results):
            return None
        shapes = _shape(places, reduction.inner), _shape(results, reduction.output.shape)
        ndim = max(1, *map(len, shapes))
        halves = _half(shapes[0], places, numbers, steps, ndim), _half(shapes[1], results, others, more, ndim)
        kernel = FusedReduction(reduction, *halves, inputs, output)
        size = sum(16 + 16 * ndim for one in kernel.places if one.in_memory) + 2 * (8 + 16 * ndim)
        size += 16 * (len(numbers) + len(others) + len(inputs) + 2)
        return kernel if len(kernel.places) <= MOST_PLACES and size <= MOST_BYTES else None

    def _stored(self, place: FusedPlace, node: int, around: _Around) -> FusedPlace:
        """A place that is only written if anybody else reads it."""
        if not place.stores or self._live.needed(node, [place.access(True)], around.nodes):
            return place
        if place.loads:
            return replace(place, stores=False)
        return FusedPlace(place.dtype, 0, (), (), False, False)


_Numbers = tuple[tuple[str, Any], ...]
_Front = tuple[list[FusedPlace], tuple[FusedStep, ...], _Numbers, tuple[Any, ...]]
_Behind = tuple[list[FusedPlace], tuple[FusedStep, ...], _Numbers, int]


def _elementwise(unit: Fusing | None) -> FusedKernel | None:
    return unit.kernel if unit is not None and isinstance(unit.kernel, FusedKernel) else None


def _taken(kernel: FusedKernel, way: Arrangement) -> list[FusedPlace] | None:
    """The places of a kernel in another order; None if that can not be."""
    if any(one.pieces for one in kernel.places):
        return None
    if not way.in_order and any(uses_number(step.operation) for step in kernel.steps):
        return None
    return [
        replace(one, shape=way.shape, strides=way.mine(one.strides)) if one.in_memory else one for one in kernel.places
    ]


def _front(kernel: FusedKernel | None, reduction: Reduction) -> _Front | None:
    """The part in front: places, steps, numbers, and for each input of the reduction its place or its number."""
    shape, places = reduction.inner, list[FusedPlace]()
    way = None if kernel is None else _way(kernel, reduction.inputs)
    if kernel is not None:
        taken = None if way is None else _taken(kernel, way)
        if way is None or taken is None:
            return None
        shape, places = way.shape, taken
    inputs: list[Any] = []
    for operand in reduction.inputs:
        if operand.number is not None:
            inputs.append(operand.number)
            continue
        strides = tuple(one if n > 1 else 0 for n, one in zip(shape, operand.strides))
        if way is not None:
            strides = way.theirs(operand.strides)
        wanted = (operand.dtype, operand.address, strides)
        same = [n for n, one in enumerate(places) if one.in_memory and (one.dtype, one.address, one.strides) == wanted]
        if not same:
            new = FusedPlace(operand.dtype, operand.address, shape, strides, True, False)
            if any(one.stores and overlap(one.access(True), new.access(False)) is not False for one in places):
                return None
            places.append(new)
        inputs.append(same[0] if same else len(places) - 1)
    steps, numbers = (kernel.steps, kernel.numbers) if kernel is not None else ((), ())
    return places, steps, numbers, tuple(inputs)


def _way(kernel: FusedKernel, inputs: Sequence[ElementOperand]) -> Arrangement | None:
    """How the elements that a kernel makes are gone through by a reduction that reads them."""
    for operand in inputs:
        for place in kernel.places:
            if operand.number is None and place.stores and place.address == operand.address:
                way = arranged((place.shape, place.strides), (operand.shape, operand.strides))
                if way is not None and place.dtype == operand.dtype:
                    return way
    return None


def _behind(kernel: FusedKernel | None, reduction: Reduction) -> _Behind | None:
    """The part behind: places, steps, numbers, and the place of the result."""
    output = reduction.output
    if kernel is None:
        return [FusedPlace(output.dtype, output.address, output.shape, output.strides, False, True)], (), (), 0
    for n, place in enumerate(kernel.places):
        if not place.loads or place.pieces or (place.dtype, place.address) != (output.dtype, output.address):
            continue
        way = arranged((place.shape, place.strides), (output.shape, output.strides))
        places = None if way is None else _taken(kernel, way)
        if places is None:
            return None
        places[n] = replace(places[n], loads=False, stores=True)
        return places, kernel.steps, kernel.numbers, n
    return None


def _tangled(places: Sequence[FusedPlace], results: Sequence[FusedPlace]) -> bool:
    """Whether what is done to results needs its order with what is done to the elements in front.

    All elements of one result are done by one block, before the result: what the front reads once for each result may
    be written over by that result.
    """
    for result in results:
        for place in places:
            own = not place.stores and result.in_memory and _of_results(place, result)
            if not own and meet(place.accesses, result.accesses):
                return True
    return False


def _of_results(place: FusedPlace, result: FusedPlace) -> bool:
    """Whether a place of the front is, for all elements of a result, the memory of that result."""
    if np.dtype(place.dtype).itemsize != np.dtype(result.dtype).itemsize or place.address != result.address:
        return False
    first = len(place.shape)
    while first and prod(place.shape[first:]) < prod(result.shape):
        first -= 1
    if prod(place.shape[first:]) != prod(result.shape) or any(place.strides[:first]):
        return False
    return shortest(place.shape[first:], place.strides[first:]) == shortest(result.shape, result.strides)


def _shape(places: Sequence[FusedPlace], otherwise: Shape) -> Shape:
    return next((one.shape for one in places if one.in_memory), otherwise)


def _half(
    shape: Shape, places: Sequence[FusedPlace], numbers: _Numbers, steps: tuple[FusedStep, ...], ndim: int
) -> FusedKernel:
    """A part of the kernel, with so many axes."""
    even = []
    for one in places:
        more = ndim - len(one.shape) if one.in_memory else 0
        lengths, strides = (one.shape, one.strides) if one.in_memory else ((), ())
        even.append(replace(one, shape=(1,) * more + lengths, strides=(0,) * more + strides))
    return FusedKernel((1,) * (ndim - len(shape)) + shape, tuple(even), numbers, steps)


def reduced(fusion: Fusion, known: Definition, moved: Collection[int]) -> None:
    """Let the reductions of a definition take in what is around them; ``fusion`` is changed.

    ``moved`` are nodes that read from other memory than they were recorded with.
    """
    seen: list[Memory] = list(known.memory)
    for n in fusion.gone:
        seen[n] = ()
    for one in fusion.kernels:
        seen[one.nodes[-1]] = accesses_of(one.kernel)
    work = _Reducing(fusion, known, seen, moved)
    for line in lines_of(known.order):
        work.line(line)
    work.moved()
    inside = {n for one in work.made for n in one.nodes}
    fusion.kernels = [one for one in fusion.kernels if not inside.intersection(one.nodes)] + work.made
    fusion.gone = sorted({*fusion.gone, *(n for one in work.made for n in one.nodes[:-1])})
    fusion.edges = edges_between(known.order, fusion.gone)

"""Random fused kernels over random arrays in the host's memory, and what they compute, by NumPy.

A kernel is drawn by a function that chooses one of several things. Its arrays lie in one buffer, in blocks apart, with
strides of every kind; its joins read boxes of other arrays.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capturekit.fusion.elementwise import ARRAY, SCALAR, ElementOperation, OperationParameter, Piece
from capturekit.fusion.fused_kernel import FusedKernel, FusedPlace, FusedStep
from capturekit.fusion.runs import common, shortest, split
from tests.fusion.on_host import PAGE

Choose = Callable[[Sequence[Any]], Any]

SHAPES = (
    (7,),
    (64,),
    (130,),
    (5, 24),
    (9, 33),
    (40, 16),
    (3, 4, 20),
    (2, 3, 5),
    (6, 1, 32),
    (2, 3, 2, 17),
    (1,),
    (70, 3),
)
DTYPES = ('float32', 'float64', 'bool', 'int32', 'uint8', 'int64')
NUMBERS = tuple(one for one in DTYPES if one != 'bool')
LAYOUTS = ('whole', 'whole', 'whole', 'padded', 'turned', 'row', 'column', 'one', 'reverse', 'step', 'off')
#: Codes of universal functions, with what NumPy does for them.
CODES: dict[str, Callable[..., Any]] = {
    'out0 = in0 + in1': lambda a, b: a + b,
    'out0 = in0 - in1': lambda a, b: a - b,
    'out0 = in0 * in1': lambda a, b: a * b,
    'out0 = in0 < in1 ? in1 : in0': lambda a, b: np.where(a < b, b, a),
}


@dataclass
class Drawn:
    """A kernel, the buffer that its arrays lie in, what each operation does, and pages that no kernel may touch."""

    kernel: FusedKernel
    memory: NDArray[np.uint8]
    does: list[Callable[..., Any]]
    guards: list[int]

    def expected(self) -> bytes:
        """The buffer's bytes after the kernel, as NumPy computes it."""
        kernel, memory = self.kernel, self.memory.copy()
        away = memory.ctypes.data - self.memory.ctypes.data
        values = [_loaded(place, kernel.shape, away) for place in kernel.places]
        for step, does in zip(kernel.steps, self.does):
            given = [values[n] if n >= 0 else np.frombuffer(kernel.numbers[-1 - n][1], kernel.numbers[-1 - n][0])[0]
                     for n in step.operands]  # fmt: skip
            *read, to = given
            to[...] = does(*(one.astype(to.dtype) for one in read))
        for place, value in zip(kernel.places, values):
            if place.stores:
                _view(place.dtype, place.address + away, place.shape, place.strides)[...] = value
        return memory.tobytes()


def _view(dtype: str, address: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> NDArray[Any]:
    class Memory:
        __array_interface__ = {  # noqa: RUF012
            'version': 3, 'data': (address, False), 'shape': shape, 'strides': strides, 'typestr': np.dtype(dtype).str,
        }  # fmt: skip

    return np.asarray(Memory())


def _loaded(place: FusedPlace, shape: tuple[int, ...], away: int) -> NDArray[Any]:
    found = np.zeros(shape, place.dtype)
    if place.loads and not place.pieces:
        found[...] = _view(place.dtype, place.address + away, place.shape, place.strides)
    for piece in place.pieces:
        box = tuple(slice(start, start + length) for start, length in zip(piece.offsets, piece.lengths))
        found.reshape(piece.whole)[box] = _view(place.dtype, piece.address + away, piece.lengths, piece.strides)
    return found


class _Blocks:
    """Blocks of the buffer, each with a page behind it that no kernel may touch. An array ends where its block does."""

    def __init__(self, choose: Choose) -> None:
        self.memory = np.frombuffer(mmap.mmap(-1, 1 << 19), np.uint8)  # shared with the process that runs the kernel
        self.guards: list[int] = []
        self._at = 0
        self._choose = choose
        self._values = np.random.default_rng(choose(range(1000)))

    def take(self, dtype: str, count: int) -> int:
        """The address of so many elements, with numbers in them."""
        size = np.dtype(dtype).itemsize
        end = self._at + -(-count * size // PAGE) * PAGE
        first = end - count * size
        values = self._values.integers(0, 2 if dtype == 'bool' else 9, count).astype(dtype)
        self.memory[first:end] = values.view(np.uint8)
        base = int(self.memory.ctypes.data)
        self.guards.append(base + end)
        self._at = end + PAGE
        return base + first

    def array(self, dtype: str, shape: tuple[int, ...], how: str, stored: bool = False) -> tuple[int, tuple[int, ...]]:
        """The address and the strides of an array of some layout."""
        size = np.dtype(dtype).itemsize
        if stored and how in ('row', 'column'):
            how = 'padded'
        long = (*shape[:-1], 2 * shape[-1]) if how == 'step' else (*shape[:-1], shape[-1] + 3 * (how == 'padded'))
        order = long[::-1] if how == 'turned' else long
        strides = [size * prod(order[n + 1 :]) for n in range(len(order))]
        strides = strides[::-1] if how == 'turned' else strides
        spare = self._choose((0, 0, 1, 2, 3))
        address = self.take(dtype, prod(order) + spare) + (spare * size if how == 'off' else 0)
        if how == 'step':
            strides[-1] *= 2
        if how == 'reverse':
            address, strides[-1] = address + strides[-1] * (shape[-1] - 1), -strides[-1]
        kept = {'row': len(shape) - 1, 'column': 0}.get(how)
        if how == 'one' or kept is not None:
            strides = [stride if n == kept else 0 for n, stride in enumerate(strides)]
        return address, tuple(stride if length > 1 else 0 for stride, length in zip(strides, shape))


def draw(choose: Choose) -> Drawn:
    """A kernel over a random shape."""
    blocks, whole = _Blocks(choose), choose(SHAPES)
    given = [(choose(DTYPES), choose(LAYOUTS)) for _ in range(choose((1, 2, 3)))]
    arrays = [(dtype, *blocks.array(dtype, whole, how)) for dtype, how in given]
    joins = [
        (dtype, _pieces(blocks, choose, dtype, whole))
        for dtype in (choose(DTYPES) for _ in range(choose((0, 1, 1, 2))))
    ]
    stored = [(choose(NUMBERS), choose([one for one in LAYOUTS if one != 'one'])) for _ in range(choose((1, 1, 2)))]
    stored += [(choose(NUMBERS), 'one') for _ in range(choose((0, 0, 1, 2)))]
    results = [(dtype, *blocks.array(dtype, whole, how, True)) for dtype, how in stored]
    short = [shortest(whole, strides) for _dtype, _address, strides in (*arrays, *results)]
    shape = common([*(one for one, _strides in short), *(p.whole for _dtype, pieces in joins for p in pieces)])
    assert shape is not None
    shape = shape or (1,)
    places = [
        FusedPlace(dtype, address, shape, split(*one, shape), True, False)
        for (dtype, address, _strides), one in zip(arrays, short)
    ]
    places += [FusedPlace(dtype, 0, (), (), True, False, pieces) for dtype, pieces in joins]
    places += [FusedPlace(choose(NUMBERS), 0, (), (), False, False) for _ in range(choose((1, 2)))]
    first = len(places)
    for (dtype, address, _strides), one, in_place in zip(
        results, short[len(arrays) :], (*choose(((0, 0), (1, 0), (0, 1))), 0, 0)
    ):
        strides = split(*one, shape)
        places.append(FusedPlace(dtype, address, shape, strides, bool(in_place) and any(strides), True))
    return _with_steps(choose, blocks, shape, places, first)


def _with_steps(choose: Choose, blocks: _Blocks, shape: tuple[int, ...], places: list[FusedPlace], first: int) -> Drawn:
    numbers: list[tuple[str, bytes]] = []
    steps, does = [], []
    ready = [n for n, place in enumerate(places) if place.loads]
    ones = [n for n in ready if places[n].one]
    targets = [n for n, place in enumerate(places) if not place.in_memory] + list(range(first, len(places)))
    for to in targets:
        code = choose(sorted(CODES))
        of = (ones or ['number']) if places[to].one else ready
        operands = [choose(of), choose([*of, 'number'])]
        for n, one in enumerate(operands):
            if one == 'number':
                numbers.append(('float32', np.float32(choose((2, 3))).tobytes()))
                operands[n] = -len(numbers)
        dtypes = [places[n].dtype if n >= 0 else 'float32' for n in operands]
        steps.append(FusedStep(_operation(code, dtypes, [n < 0 for n in operands], places[to].dtype), (*operands, to)))
        does.append(CODES[code])
        ready.append(to)
    return Drawn(FusedKernel(shape, tuple(places), tuple(numbers), tuple(steps)), blocks.memory, does, blocks.guards)


def _operation(code: str, given: list[str], number: list[bool], to: str) -> ElementOperation:
    """One that computes in the dtype of its result."""
    found = [OperationParameter(f'in{n}', d, to, SCALAR if number[n] else ARRAY) for n, d in enumerate(given)]
    types = (*((f'in{n}_type', to) for n in range(len(given))), ('out0_type', to))
    return ElementOperation(code, '', (*found, OperationParameter('out0', to, to, ARRAY, True)), types, True)


def _pieces(blocks: _Blocks, choose: Choose, dtype: str, whole: tuple[int, ...]) -> tuple[Piece, ...]:
    """Boxes of several arrays that make a whole one, cut along one axis."""
    whole = choose(((prod(whole),), whole)) if prod(whole) > 1 else (1,)
    axis = choose(range(len(whole)))
    length = whole[axis]
    cuts = sorted({choose((0, 1, length // 2, length - 1)) for _ in range(choose((0, 1, 1, 2, 3)))} - {0, length})
    found = []
    for low, high in pairwise([0, *cuts, length]):
        lengths = (*whole[:axis], high - low, *whole[axis + 1 :])
        address, strides = blocks.array(
            dtype, lengths, choose(('whole', 'whole', 'padded', 'step', 'reverse', 'turned'))
        )
        offsets = tuple(low if n == axis else 0 for n in range(len(whole)))
        found.append(Piece(address, lengths, strides, whole, offsets))
    return tuple(found if choose((False, True)) else found[::-1])

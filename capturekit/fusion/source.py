"""The source of a fused kernel in CUDA's C++, and the bytes of its arguments.

The arguments have CuPy's layout: an array is its address, its number of elements, its shape and its strides, and the
index comes last. So all that reads or changes the nodes of CuPy's own kernels reads and changes these. Shapes, strides
and addresses are arguments; the source says only how they relate, so that one source serves many kernels.

A thread loads all of its elements, works on each, and stores them.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np

from capturekit.fusion.elementwise import ElementOperation, Piece, sealed
from capturekit.fusion.fused_kernel import (
    _C_TYPES,
    _SEALS,
    FusedArgument,
    FusedKernel,
    FusedPlace,
    _power,
    functions,
    in_order,
    index_of,
    narrow,
)
from capturekit.fusion.runs import split

# ---------------------------------------------------------------------------------------------------------------------
# How the threads of a fused kernel are laid over its elements: rows of the innermost axis, in tiles of one block
# each.
#
# The columns of a row are worked on several at a time by one thread, so that several loads are under way and one index
# is found for all of them. Where there are more rows than one, a block has a tile of both, so that what lies in the
# rows beside an element is in the block's cache. Which tile a block has is one division, done by multiplying.


#: Threads of a block.
THREADS = 128
#: The most threads of a block that lie along a row where there are several rows: with several columns each, the
#: addresses of a warp lie one after the other.
_ALONG = 64
#: So many elements a thread works on, and for how many elements there are threads enough to do so.
_TOGETHER, _MANY = 4, 1 << 16
#: Rows that are shorter than this have one element a thread.
_SHORT = 16
#: Distances and sizes above this do not fit into 32 bits, with what one tile may go beyond.
_MOST = (1 << 31) - (1 << 16)


@dataclass(frozen=True)
class TileLayout:
    """Rows and columns, how many columns a thread has, the block's threads (along a row, rows), and the tiles of a row.

    ``narrow``: 32 bits are enough for all indices and distances.
    """

    rows: int
    columns: int
    together: int
    block: tuple[int, int]
    narrow: bool

    @property
    def across(self) -> int:
        """How many tiles a row of them has."""
        return -(-self.columns // (self.together * self.block[0]))

    @property
    def blocks(self) -> int:
        """How many blocks there are."""
        return self.across * -(-self.rows // self.block[1])

    @property
    def even(self) -> bool:
        """Whether no thread has fewer columns than others."""
        return self.columns % self.together == 0


def layout_of(kernel: FusedKernel) -> TileLayout:
    """The layout for a kernel."""
    *outer, columns = kernel.shape
    rows = prod(outer)
    together = _TOGETHER if columns >= _SHORT and kernel.size >= _MANY else 1
    along = min(THREADS if rows == 1 else _ALONG, _power(-(-columns // together)))
    return TileLayout(rows, columns, together, (along, min(THREADS // along, _power(rows))), _narrow(kernel))


def _narrow(kernel: FusedKernel) -> bool:
    if kernel.size > _MOST:
        return False
    for place in kernel.places:
        if place.in_memory and not place.pieces and not narrow(place):
            return False
        size = np.dtype(place.dtype).itemsize
        for piece, part in zip(place.pieces, place.parts):
            reach = sum((n - 1) * abs(s) for n, s in zip(kernel.shape, through(kernel.shape, piece, size)))
            if not narrow(part) or reach > _MOST or abs(shift(piece, size)) > _MOST:
                return False
    return True


def steps(shape: tuple[int, ...], whole: tuple[int, ...]) -> list[dict[int, int]]:
    """For each axis of ``whole`` the axes of ``shape`` that it is split into, each with its step."""
    found = []
    for n, length in enumerate(whole):
        inner = prod(whole[n + 1 :])
        every = {k: prod(shape[k + 1 :]) for k in range(len(shape)) if shape[k] > 1}
        found.append({k: step // inner for k, step in every.items() if inner <= step < inner * length})
    return found


def through(shape: tuple[int, ...], piece: Piece, size: int) -> tuple[int, ...]:
    """The distances in bytes between elements of a piece along the axes of the whole kernel."""
    return split(piece.whole, _strides(piece, size), shape)


def shift(piece: Piece, size: int) -> int:
    """How many bytes before its first element the first element of the whole would lie, if it went on like that."""
    return sum(offset * stride for offset, stride in zip(piece.offsets, _strides(piece, size)))


def _strides(piece: Piece, size: int) -> tuple[int, ...]:
    """Those of a piece; where it has one element along an axis that of the whole, so that it equals others."""
    own = zip(in_order(size, piece.whole), piece.lengths, piece.strides)
    return tuple(one if length == 1 else stride for one, length, stride in own)


def divisor(number: int) -> tuple[int, int]:
    """A factor and a shift that divide by a number: (high word of n times factor, plus n) >> shift, for n below 2^31.

    Granlund and Montgomery, "Division by Invariant Integers using Multiplication" (1994).
    """
    places = (number - 1).bit_length()
    return ((1 << 32) * ((1 << places) - number)) // number + 1, places


# ---------------------------------------------------------------------------------------------------------------------
# Numbers that a fused kernel's source refers to by name, so that equal sources serve other sizes: 32-bit arguments.


_WORD = 1 << 32


class SourceNumbers:
    """The numbers in the order in which the source asks for them, by name. ``narrow``: distances fit into one word."""

    def __init__(self, narrow: bool) -> None:
        self._narrow = narrow
        self.named: dict[str, int] = {}

    def word(self, number: int) -> str:
        """The name of a number between 0 and 2^32."""
        name = f'ck_g{len(self.named)}'
        self.named[name] = number
        return name

    def distance(self, number: int) -> str:
        """An expression of the type ``ck_int`` that has this number, which may be negative."""
        if self._narrow:
            return f'static_cast<ck_int>({self.word(number % _WORD)})'
        low, high = self.word(number % _WORD), self.word((number >> 32) % _WORD)
        return f'static_cast<ck_int>(static_cast<ck_uint>({high}) << 32 | {low})'


# -- how a fused kernel loads and stores the elements of its arrays: distances shared by arrays of equal strides ------
#
# Elements that lie one after the other are moved by words of up to 16 bytes where the strides allow it and the kernel
# finds that the addresses do. Elements that begin within a word, as those of a view, are loaded by the words that they
# lie in, which are one more, and never reach into another page than the elements do: at which byte they begin is part
# of the source, and the kernel finds whether it is so.
#
# Whether all addresses allow words is asked once, so that no load waits for what another one depends on. What is stored
# by words goes past the L1 cache, which keeps what the threads beside will load: no thread of the kernel reads it
# again. (Ten steps of the heat equation of 2048 x 2048 on an H100 took 125 us before both, and take 104.)


#: The widest load of a GPU, in bytes.
WIDEST = 16
ACCESS = """
template <typename T, int N> struct ck_array { T *data; long long size, shape[N], strides[N]; };
template <int N> struct ck_index { long long size, shape[N], index[N]; };
template <int N> struct ck_word;
template <> struct ck_word<1> { typedef uchar1 type; };
template <> struct ck_word<2> { typedef ushort1 type; };
template <> struct ck_word<4> { typedef uint1 type; };
template <> struct ck_word<8> { typedef uint2 type; };
template <> struct ck_word<16> { typedef uint4 type; };
template <typename T> __device__ __forceinline__ void ck_put(T *to, T one) { *to = one; }
__device__ __forceinline__ void ck_put(uint2 *to, uint2 one) { __stcg(to, one); }
__device__ __forceinline__ void ck_put(uint4 *to, uint4 one) { __stcg(to, one); }
__device__ __forceinline__ unsigned int ck_over(unsigned int n, unsigned int factor, unsigned int places) {
  return (__umulhi(n, factor) + n) >> places;
}
template <typename T> __device__ __forceinline__ T *ck_far(T *from, ptrdiff_t bytes) {
  return reinterpret_cast<T *>(reinterpret_cast<size_t>(from) + bytes);
}
template <int N, typename T> __device__ __forceinline__ void ck_load(T (&to)[N], const T *from, bool wide, int left) {
  constexpr int bytes = N * sizeof(T) < 16 ? N * sizeof(T) : 16;
  typedef typename ck_word<bytes>::type word;
  if (wide && left >= N) {
#pragma unroll
    for (int k = 0; k < static_cast<int>(N * sizeof(T)) / bytes; k++) {
      const word got = reinterpret_cast<const word *>(from)[k];
      memcpy(reinterpret_cast<char *>(to) + k * bytes, &got, bytes);
    }
  } else {
#pragma unroll
    for (int e = 0; e < N; e++) to[e] = from[e < left ? e : left - 1];
  }
}
template <int OFF, int N, typename T>
__device__ __forceinline__ void ck_load_askew(T (&to)[N], const T *from, bool wide, int left) {
  constexpr int bytes = N * sizeof(T) < 16 ? N * sizeof(T) : 16, words = N * sizeof(T) / bytes;
  typedef typename ck_word<bytes>::type word;
  if (wide && left >= N) {
    T got[N + bytes / sizeof(T)];
#pragma unroll
    for (int k = 0; k <= words; k++) {
      const word one = reinterpret_cast<const word *>(reinterpret_cast<size_t>(from) - OFF)[k];
      memcpy(reinterpret_cast<char *>(got) + k * bytes, &one, bytes);
    }
#pragma unroll
    for (int e = 0; e < N; e++) to[e] = got[e + OFF / static_cast<int>(sizeof(T))];
  } else {
#pragma unroll
    for (int e = 0; e < N; e++) to[e] = from[e < left ? e : left - 1];
  }
}
template <int N, typename T> __device__ __forceinline__ void ck_store(T *to, const T (&from)[N], bool wide, int left) {
  constexpr int bytes = N * sizeof(T) < 16 ? N * sizeof(T) : 16;
  typedef typename ck_word<bytes>::type word;
  if (wide && left >= N) {
#pragma unroll
    for (int k = 0; k < static_cast<int>(N * sizeof(T)) / bytes; k++) {
      word put;
      memcpy(&put, reinterpret_cast<const char *>(from) + k * bytes, bytes);
      ck_put(reinterpret_cast<word *>(to) + k, put);
    }
  } else {
#pragma unroll
    for (int e = 0; e < N; e++) if (e < left) to[e] = from[e];
  }
}
template <int N, typename T>
__device__ __forceinline__ void ck_load_apart(T (&to)[N], const T *from, ptrdiff_t step, int left) {
#pragma unroll
  for (int e = 0; e < N; e++) to[e] = *ck_far(from, step * (e < left ? e : left - 1));
}
template <int N, typename T>
__device__ __forceinline__ void ck_store_apart(T *to, const T (&from)[N], ptrdiff_t step, int left) {
#pragma unroll
  for (int e = 0; e < N; e++) if (e < left) *ck_far(to, step * e) = from[e];
}
template <int N, typename T> __device__ __forceinline__ void ck_load_one(T (&to)[N], const T *from) {
  const T got = *from;
#pragma unroll
  for (int e = 0; e < N; e++) to[e] = got;
}
"""
JOINS = """
template <int N, bool DENSE, int BYTES, typename T, typename W, typename F>
__device__ __forceinline__ void ck_join(T (&to)[N], W which, F from, int left) {
  const int first = which(0);
  if (DENSE && first == which(left - 1)) {
    const T *at = from(first, 0);
    ck_load(to, at, BYTES > 0 && (reinterpret_cast<size_t>(at) & (BYTES - 1)) == 0, left);
  } else {
#pragma unroll
    for (int e = 0; e < N; e++) {
      const int k = e < left ? e : left - 1;
      to[e] = *from(which(k), k);
    }
  }
}
"""


class Places:
    """The code that loads and stores places."""

    def __init__(self, kernel: FusedKernel, layout: TileLayout, numbers: SourceNumbers) -> None:
        self._kernel = kernel
        self._layout = layout
        self._numbers = numbers
        self._left = str(layout.together) if layout.even else 'ck_left'
        self._inner = len(kernel.shape) - 1
        #: How values are loaded where addresses allow words and a thread has all of its elements, and elsewhere.
        self._by_words: list[str] = []
        self._one_by_one: list[str] = []
        #: By the distances along all axes the variable that has an element's distance from the first one, in bytes.
        self._distances: dict[tuple[int, ...], str] = {}

    def checks(self) -> Iterator[str]:
        """Whether words can be moved: that depends on addresses, which are arguments."""
        words: list[str] = []
        for n, place in enumerate(self._kernel.places):
            off = self._off(place)
            if place.pieces:
                words += self._off_piece(n, place)
            elif off is not None and (place.loads or off == 0):
                words.append(self._rest(f'ck_m{n}', str(off), np.dtype(place.dtype).itemsize))
        if words:
            yield f'const bool ck_wide = ({" | ".join(words)}) == 0;'

    def _rest(self, array: str, off: str, size: int) -> str:
        """How many bytes behind a word an address lies, besides ``off``."""
        word = min(WIDEST, self._layout.together * size)
        low = f'static_cast<unsigned int>(reinterpret_cast<size_t>({array}.data))'
        return f'(({low} - static_cast<unsigned int>({off})) & {word - 1})'

    def _off_piece(self, n: int, place: FusedPlace) -> Iterator[str]:
        """What has to be a multiple of a word, for the largest piece of a place."""
        size = np.dtype(place.dtype).itemsize
        k = _largest(place)
        piece, far = place.pieces[k], through(self._kernel.shape, place.pieces[k], size)
        off = self._begins(piece.address - shift(piece, size), far, size)
        if off is not None:
            away = self._numbers.distance(shift(piece, size) + off)
            yield self._rest(f'ck_s{n}_{k}', away, size)

    def declare(self, n: int) -> Iterator[str]:
        """Declare the values of a place in memory; load them if all threads do that in the same way."""
        place = self._kernel.places[n]
        yield f'{_C_TYPES[place.dtype]} ck_v{n}[{self._layout.together}];'
        if place.pieces:
            yield from self._join(n, place)
            return
        if not place.loads:
            return
        yield from self._reach(n, place)
        stride, size = place.strides[-1], np.dtype(place.dtype).itemsize
        if stride == 0:
            yield f'ck_load_one(ck_v{n}, {self._at(n, place)});'
        elif stride != size:
            yield f'ck_load_apart(ck_v{n}, {self._at(n, place)}, ck_m{n}.strides[{self._inner}], {self._left});'
        else:
            self._load(n, self._at(n, place), self._off(place))

    def load(self) -> Iterator[str]:
        """Load the values that are declared: by words, all of them, where each can be."""
        if self._by_words == self._one_by_one:
            yield from self._one_by_one
            return
        yield f'if (ck_wide{"" if self._layout.even else f" && ck_left == {self._layout.together}"}) {{'
        yield from self._by_words
        yield '} else {'
        yield from self._one_by_one
        yield '}'

    def store(self, n: int) -> Iterator[str]:
        """Store the values of a place. What all threads have is stored by that of the first element."""
        place = self._kernel.places[n]
        if place.one:
            yield f'if (ck_flat == 0) *ck_m{n}.data = ck_v{n}[0];'
            return
        yield from self._reach(n, place)
        if place.strides[-1] in (0, np.dtype(place.dtype).itemsize):
            wide = 'ck_wide' if self._off(place) == 0 else 'false'
            yield f'ck_store({self._at(n, place)}, ck_v{n}, {wide}, {self._left});'
        else:
            yield f'ck_store_apart({self._at(n, place)}, ck_v{n}, ck_m{n}.strides[{self._inner}], {self._left});'

    # -- distances ----------------------------------------------------------------------------------------------

    def _reach(self, n: int, place: FusedPlace) -> Iterator[str]:
        """Make the variable with the distance of a place's element, if there is none yet."""
        size = np.dtype(place.dtype).itemsize
        terms = {axis: f'static_cast<ck_int>(ck_m{n}.strides[{axis}])' for axis, one in enumerate(place.strides) if one}
        if place.strides[-1] == size:
            terms[self._inner] = str(size)
        yield from self._reached(size, place.strides, terms.items())

    def _reached(self, size: int, strides: tuple[int, ...], terms: Iterable[tuple[int, str]]) -> Iterator[str]:
        if strides in self._distances:
            return
        name = f'ck_d{len(self._distances)}'
        shape = self._kernel.shape
        if strides == tuple(one if n > 1 else 0 for n, one in zip(shape, in_order(size, shape))):
            words = f'ck_flat * {size}'
        else:
            words = ' + '.join(f'ck_i{axis} * {stride}' for axis, stride in terms) or '0'
        self._distances[strides] = name
        yield f'const ck_int {name} = {words};'

    def _at(self, n: int, place: FusedPlace) -> str:
        return f'ck_far(ck_m{n}.data, {self._distances[place.strides]})'

    def _load(self, n: int, at: str, off: int | None, before: str = '', after: str = '') -> None:
        """Load elements that begin so many bytes behind a word; None: their strides allow no words. ``before`` and
        ``after``: what stands around it."""
        load = f'ck_load_askew<{off}>' if off else 'ck_load'
        plain = f'ck_load(ck_v{n}, {at}, false, {self._left});'
        words = plain if off is None else f'{load}(ck_v{n}, {at}, true, {self._layout.together});'
        self._by_words.append(f'{before}{words}{after}')
        self._one_by_one.append(f'{before}{plain}{after}')

    def _off(self, place: FusedPlace) -> int | None:
        """How many bytes behind a word the elements of each thread begin; None if the strides allow no words."""
        if place.pieces or not place.in_memory:
            return None
        return self._begins(place.address, place.strides, np.dtype(place.dtype).itemsize)

    def _begins(self, address: int, strides: Sequence[int], size: int) -> int | None:
        word = min(WIDEST, self._layout.together * size)
        if self._layout.together == 1 or strides[-1] != size or any(one % word for one in strides[:-1]):
            return None
        return None if address % word % size else address % word

    # -- places that are read from several parts ----------------------------------------------------------------

    def _join(self, n: int, place: FusedPlace) -> Iterator[str]:
        """Load each element from the part that it lies in. A thread's elements mostly lie in the largest one."""
        size = np.dtype(place.dtype).itemsize
        far = [through(self._kernel.shape, piece, size) for piece in place.pieces]
        for strides in far:
            terms = ((axis, self._stride(axis, one, size)) for axis, one in enumerate(strides) if one)
            yield from self._reached(size, strides, terms)
        which, largest, inside = str(len(place.pieces) - 1), _largest(place), ''
        for k, piece in reversed(list(enumerate(place.pieces))):
            within = yield from self._within(n, k, piece)
            inside = within if k == largest else inside
            if k < len(place.pieces) - 1:
                which = f'{within} ? {k} : {which}' if within else str(k)
        found = []
        for k, (piece, strides) in enumerate(zip(place.pieces, far)):
            away = f'{self._distances[strides]} - {self._numbers.distance(shift(piece, size))}'
            step = self._stride(self._inner, strides[-1], size)
            chosen = f'ck_k == {k} ? ' if k < len(far) - 1 else ''
            found.append(f'{chosen}ck_far(ck_s{n}_{k}.data, {away} + ck_e * {step})')
        dense = str(all(strides[-1] == size for strides in far)).lower()
        join = f"""ck_join<{self._layout.together}, {dense}, {self._word_of(place, far)}>(
  ck_v{n}, [&](int ck_e) {{ return {which}; }},
  [&](int ck_k, int ck_e) {{ return {' : '.join(found)}; }}, {self._left});"""
        if far[largest][-1] != size:
            self._by_words.append(join)
            self._one_by_one.append(join)
            return
        piece = place.pieces[largest]
        off = self._begins(piece.address - shift(piece, size), far[largest], size)
        away = f'{self._distances[far[largest]]} - {self._numbers.distance(shift(piece, size))}'
        ends = [inside.replace('ck_e', one) for one in ('0', f'({self._left} - 1)')]
        before = f'if ({" && ".join(dict.fromkeys(ends)) or "true"}) '
        self._load(n, f'ck_far(ck_s{n}_{largest}.data, {away})', off, before, f' else\n{join}')

    def _stride(self, axis: int, stride: int, size: int) -> str:
        return str(size) if axis == self._inner and stride == size else self._numbers.distance(stride)

    def _word_of(self, place: FusedPlace, far: Sequence[tuple[int, ...]]) -> int:
        """The bytes of a word by which the parts can be loaded if addresses allow it; 0 if their strides do not."""
        size = np.dtype(place.dtype).itemsize
        word = min(WIDEST, self._layout.together * size)
        steps = [(shift(piece, size), *strides[:-1]) for piece, strides in zip(place.pieces, far)]
        return word if self._layout.together > 1 and not any(one % word for several in steps for one in several) else 0

    def _within(self, n: int, k: int, piece: Piece) -> Generator[str, None, str]:
        """An expression for whether an element lies in a part; '' where all do."""
        found = []
        for axis, into in enumerate(steps(self._kernel.shape, piece.whole)):
            if piece.lengths[axis] == piece.whole[axis]:
                continue
            if len(piece.whole) == 1:
                words = 'ck_flat'
            else:
                terms = ((at, '' if step == 1 else f' * {self._numbers.distance(step)}') for at, step in into.items())
                words = ' + '.join(f'ck_i{at}{step}' for at, step in terms) or '0'
            name = f'ck_a{n}_{k}_{axis}'
            yield f'const ck_int {name} = {words} - {self._numbers.distance(piece.offsets[axis])};'
            moving = ' + ck_e' if self._inner in into else ''
            length = self._numbers.distance(piece.lengths[axis])
            found.append(f'static_cast<ck_uint>({name}{moving}) < static_cast<ck_uint>({length})')
        return ' && '.join(found)


def _largest(place: FusedPlace) -> int:
    """The number of the largest piece of a place, in which most threads have all of their elements."""
    return max(range(len(place.pieces)), key=lambda k: prod(place.pieces[k].lengths))


@dataclass(frozen=True)
class Source:
    """A kernel's source but for its name, its parameters (those that are only read first), and how it is launched."""

    inputs: tuple[FusedArgument, ...]
    outputs: tuple[FusedArgument, ...]
    index: FusedArgument
    functions: str
    body: str
    layout: TileLayout

    @property
    def text(self) -> tuple[str, str, str, str]:
        """What the kernel reads and writes, as CuPy declares it, and all else that makes one source another one."""
        code = ', '.join(one.code for one in (*self.inputs, *self.outputs, self.index))
        reads, writes = (', '.join(one.declared for one in part) for part in (self.inputs, self.outputs))
        return reads, writes, self.functions, f'({code}) {{\n{self.body}\n}}\n'

    @property
    def operation(self) -> str:
        """Code that tells CuPy which elements are written: all."""
        return '\n'.join(f'{one.declared.split()[-1]} = 0;' for one in self.outputs)

    def code(self, name: str) -> str:
        """The whole source."""
        return f'{self.functions}\nextern "C" __global__ void __launch_bounds__({THREADS}) {name}{self.text[-1]}'

    def arguments(self) -> list[bytes]:
        """The bytes of the arguments, in their order."""
        return [one.data for one in (*self.inputs, *self.outputs, self.index)]


@lru_cache(maxsize=64)
def source(kernel: FusedKernel) -> Source:
    """The source and the arguments of a kernel."""
    layout = layout_of(kernel)
    numbers = SourceNumbers(layout.narrow)
    known = {one: n for n, one in enumerate(dict.fromkeys(step.operation for step in kernel.steps))}
    body = '\n'.join(_body(kernel, layout, numbers, known))
    inputs = list[FusedArgument]()
    for n, place in enumerate(kernel.places):
        inputs += [FusedArgument.array(f'ck_s{n}_{k}', part, 'raw ') for k, part in enumerate(place.parts)]
        if place.loads and not place.stores and not place.pieces:
            inputs.append(FusedArgument.array(f'ck_m{n}', place))
    outputs = [FusedArgument.array(f'ck_m{n}', place) for n, place in enumerate(kernel.places) if place.stores]
    inputs += [FusedArgument.number(f'ck_n{n}', dtype, data) for n, (dtype, data) in enumerate(kernel.numbers)]
    words = {**numbers.named, 'ck_zero': 0}
    inputs += [FusedArgument.number(name, 'uint32', struct.pack('I', number)) for name, number in words.items()]
    last = FusedArgument('', index_of(kernel), code=f'const ck_index<{len(kernel.shape)}> ck_at')
    kind = 'int' if layout.narrow else 'long long'
    before = [_SEALS, f'typedef {kind} ck_int;', f'typedef unsigned {kind} ck_uint;', ACCESS]
    before += [JOINS] if any(place.pieces for place in kernel.places) else []
    before += functions(known, kernel.fast)
    return Source(tuple(inputs), tuple(outputs), last, '\n'.join(before), body, layout)


# -- the body ---------------------------------------------------------------------------------------------------


def _body(
    kernel: FusedKernel, layout: TileLayout, numbers: SourceNumbers, known: Mapping[ElementOperation, int]
) -> Iterator[str]:
    places = Places(kernel, layout, numbers)
    in_memory = [n for n, place in enumerate(kernel.places) if place.in_memory]
    yield from _here(kernel.shape, layout, numbers)
    yield from places.checks()
    for n in in_memory:
        yield from places.declare(n)
    yield from places.load()
    yield '#pragma unroll'
    yield f'for (int ck_e = 0; ck_e < {layout.together}; ck_e++) {{'
    yield 'const ptrdiff_t ck_i = static_cast<ptrdiff_t>(ck_flat) + ck_e;'
    yield from (f'{_C_TYPES[place.dtype]} ck_v{n};' for n, place in enumerate(kernel.places) if not place.in_memory)
    name = {n: f'ck_v{n}[ck_e]' if place.in_memory else f'ck_v{n}' for n, place in enumerate(kernel.places)}
    kept_apart = sealed([(one.operation, one.operands) for one in kernel.steps])
    for step, seals in zip(kernel.steps, kept_apart):
        given = [name[n] if n >= 0 else f'ck_n{-1 - n}' for n in step.operands]
        yield f'ck_{known[step.operation]}::run({", ".join(["ck_i", *given])});'
        if seals and not kernel.fast:
            pairs = zip(given, step.operation.parameters)
            yield from (f'ck_seal({one}, ck_zero);' for one, parameter in pairs if parameter.written)
    yield '}'
    for n in in_memory:
        if kernel.places[n].stores:
            yield from places.store(n)


def _here(shape: tuple[int, ...], layout: TileLayout, numbers: SourceNumbers) -> Iterator[str]:
    """Which elements a thread has: the index along each axis, that of the first one among all, how many are left."""
    inner = len(shape) - 1
    columns, together, tile, row = f'static_cast<ck_uint>(ck_at.shape[{inner}])', layout.together, 'blockIdx.x', ''
    if layout.rows > 1:
        across, factor, places = (numbers.word(one) for one in (layout.across, *divisor(layout.across)))
        yield f'const unsigned int ck_down = ck_over(blockIdx.x, {factor}, {places});'
        yield 'const ck_uint ck_row = static_cast<ck_uint>(ck_down) * blockDim.y + threadIdx.y;'
        yield from _axes(shape, layout, numbers)
        tile, row = f'(blockIdx.x - ck_down * {across})', f' + static_cast<ck_int>(ck_row * {columns})'
    yield f'const ck_uint ck_first = (static_cast<ck_uint>({tile}) * blockDim.x + threadIdx.x) * {together};'
    yield f'if (ck_first >= {columns}) return;'
    yield f'const ck_int ck_i{inner} = static_cast<ck_int>(ck_first);'
    yield f'const ck_int ck_flat = ck_i{inner}{row};'
    if not layout.even:
        rest = f'{columns} - ck_first'
        yield f'const int ck_left = {rest} < {together} ? static_cast<int>({rest}) : {together};'


def _axes(shape: tuple[int, ...], layout: TileLayout, numbers: SourceNumbers) -> Iterator[str]:
    """The index along each axis but the innermost one, of the number of a row."""
    yield 'ck_uint ck_rest = ck_row;'
    for axis in range(len(shape) - 2, 0, -1):
        length = f'static_cast<ck_uint>(ck_at.shape[{axis}])'
        over = f'ck_rest / {length}'
        if layout.narrow:
            factor, places = (numbers.word(one) for one in divisor(shape[axis]))
            over = f'ck_over(ck_rest, {factor}, {places})'
        yield f'const ck_uint ck_q{axis} = {over};'
        yield f'const ck_int ck_i{axis} = static_cast<ck_int>(ck_rest - ck_q{axis} * {length});'
        yield f'ck_rest = ck_q{axis};'
    yield 'if (ck_rest >= static_cast<ck_uint>(ck_at.shape[0])) return;'
    yield 'const ck_int ck_i0 = static_cast<ck_int>(ck_rest);'

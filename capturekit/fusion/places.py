"""How a fused kernel loads and stores the elements of its arrays: distances shared by arrays of equal strides.

Elements that lie one after the other are moved by words of up to 16 bytes where the strides allow it and the kernel
finds that the addresses do. Elements that begin within a word, as those of a view, are loaded by the words that they
lie in, which are one more, and never reach into another page than the elements do: at which byte they begin is part of
the source, and the kernel finds whether it is so.

Whether all addresses allow words is asked once, so that no load waits for what another one depends on. What is stored
by words goes past the L1 cache, which keeps what the threads beside will load: no thread of the kernel reads it again.
(Ten steps of the heat equation of 2048 x 2048 on an H100 took 125 us before both, and take 104.)
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from math import prod

import numpy as np

from capturekit.fusion.elementwise import Piece
from capturekit.fusion.fused_kernel import _C_TYPES, FusedKernel, FusedPlace
from capturekit.fusion.layout import TileLayout, in_order, shift, steps, through
from capturekit.fusion.source_numbers import SourceNumbers

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
        terms = [
            (
                axis,
                str(size)
                if axis == self._inner and stride == size
                else f'static_cast<ck_int>(ck_m{n}.strides[{axis}])',
            )
            for axis, stride in enumerate(place.strides)
            if stride
        ]
        yield from self._reached(place.dtype, place.strides, terms)

    def _reached(self, dtype: str, strides: tuple[int, ...], terms: Iterable[tuple[int, str]]) -> Iterator[str]:
        if strides in self._distances:
            return
        name = f'ck_d{len(self._distances)}'
        if strides == in_order(dtype, self._kernel.shape):
            words = f'ck_flat * {np.dtype(dtype).itemsize}'
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
            yield from self._reached(place.dtype, strides, terms)
        which, largest, inside = str(len(place.pieces) - 1), _largest(place), ''
        for k, piece in reversed(list(enumerate(place.pieces))):
            within = yield from self._within(n, k, piece)
            inside = within if k == largest else inside
            if k < len(place.pieces) - 1:
                which = f'{within} ? {k} : {which}' if within else str(k)
        found = ''
        for k, (piece, strides) in enumerate(zip(place.pieces, far)):
            away = f'{self._distances[strides]} - {self._numbers.distance(shift(piece, size))}'
            found += f'ck_k == {k} ? ' if k < len(far) - 1 else ''
            found += f'ck_far(ck_s{n}_{k}.data, {away} + ck_e * {self._stride(self._inner, strides[-1], size)})'
            found += ' : ' if k < len(far) - 1 else ''
        dense = str(all(strides[-1] == size for strides in far)).lower()
        join = f"""ck_join<{self._layout.together}, {dense}, {self._word_of(place, far)}>(
  ck_v{n}, [&](int ck_e) {{ return {which}; }},
  [&](int ck_k, int ck_e) {{ return {found}; }}, {self._left});"""
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
        for axis, split in enumerate(steps(self._kernel.shape, piece.whole)):
            if piece.lengths[axis] == piece.whole[axis]:
                continue
            if len(piece.whole) == 1:
                words = 'ck_flat'
            else:
                terms = ((at, '' if step == 1 else f' * {self._numbers.distance(step)}') for at, step in split.items())
                words = ' + '.join(f'ck_i{at}{step}' for at, step in terms) or '0'
            name = f'ck_a{n}_{k}_{axis}'
            yield f'const ck_int {name} = {words} - {self._numbers.distance(piece.offsets[axis])};'
            moving = ' + ck_e' if self._inner in split else ''
            length = self._numbers.distance(piece.lengths[axis])
            found.append(f'static_cast<ck_uint>({name}{moving}) < static_cast<ck_uint>({length})')
        return ' && '.join(found)


def _largest(place: FusedPlace) -> int:
    """The number of the largest piece of a place, in which most threads have all of their elements."""
    return max(range(len(place.pieces)), key=lambda k: prod(place.pieces[k].lengths))

"""Copies arguments into the graph and results out of it, by nodes of the graph itself.

A graph works on addresses that were recorded; its caller's arrays lie elsewhere at each call. So the graph's first node
fetches the arguments into the graph's memory, and its last node stores the results. Both find the caller's addresses
in a table in pinned memory, in which each of the last :data:`RING` launches has its own row: a call writes a few
words there and launches one graph. Thread blocks that read host memory wait for each other (measured: about 0.4 us for
each block, whatever it copies). So for large arrays a kernel of one block first copies the row to the device.

Only the elements of an argument that the work has changed are stored back. Only elements are copied, never the bytes
between them. CUDA C++ Programming Guide, "Page-Locked Host Memory, Mapped Memory".
"""

from __future__ import annotations

import importlib
import struct
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from capturekit.driver.cuda import Platform
from capturekit.guard import GUARD
from capturekit.launch.array_extent import extent
from capturekit.launch.graph_memory import GraphMemory
from capturekit.model.cleanup import uninterrupted

if TYPE_CHECKING:
    from numpy.typing import NDArray

RING = 64
#: CuPy's kernels take arrays of up to 25 axes.
_DIMENSIONS = 32
#: Where a descriptor's parts begin; the number of elements and the flag for comparing follow the strides.
_SHAPE, _STRIDES, _SIZE, _DIFFERING, _WORDS = 5, 5 + _DIMENSIONS, 5 + 2 * _DIMENSIONS, 6 + 2 * _DIMENSIONS, 72
_THREADS, _BLOCKS = 256, 512
#: Where the launch's row begins in the state on the device; and up to how many blocks read the host's row instead.
_ROW, _DIRECT = 4, 8

#: A descriptor's words: 0 the table's column, 1 the address in the graph's memory, 2 bytes in one piece or 0, 3 bytes
#: of an element, 4 axes, then the shape, the strides in bytes, the number of elements, whether to store only what
#: differs.
_SOURCE = r"""
typedef unsigned long long u64;

template <typename T>
__device__ void run(char* to, const char* from, u64 count, bool differing)
{
    u64 step = gridDim.x * (u64)blockDim.x;
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < count; i += step) {
        T now = ((const T*)from)[i];
        if (!differing || ((const T*)to)[i] != now) ((T*)to)[i] = now;
    }
}

__device__ void piece(char* to, const char* from, u64 nbytes, bool differing)
{
    u64 bits = (u64)to | (u64)from | nbytes;
    if ((bits & 7) == 0) run<u64>(to, from, nbytes / 8, differing);
    else if ((bits & 3) == 0) run<unsigned int>(to, from, nbytes / 4, differing);
    else run<char>(to, from, nbytes, differing);
}

__device__ void elements(char* to, const char* from, const u64* d, bool differing)
{
    u64 step = gridDim.x * (u64)blockDim.x;
    bool wide = (((u64)to | (u64)from | d[3]) & 3) == 0;
    for (int axis = 0; axis < (int)d[4]; axis++) wide = wide && (d[STRIDES + axis] & 3) == 0;
    u64 unit = wide ? 4 : 1;
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < d[SIZE]; i += step) {
        u64 rest = i;
        long long offset = 0;
        for (int axis = (int)d[4] - 1; axis >= 0; axis--) {
            offset += (long long)(rest % d[SHAPE + axis]) * (long long)d[STRIDES + axis];
            rest /= d[SHAPE + axis];
        }
        for (u64 b = 0; b < d[3]; b += unit) {
            char* t = to + offset + b;
            const char* f = from + offset + b;
            if (wide) {
                const unsigned int word = *(const unsigned int*)f;
                if (!differing || *(unsigned int*)t != word) *(unsigned int*)t = word;
            } else if (!differing || *t != *f) *t = *f;
        }
    }
}

__device__ bool last_block(u64* state)
{
    __syncthreads();
    if (threadIdx.x != 0) return false;
    __threadfence();
    if (atomicAdd(&state[2], 1ull) != gridDim.x * (u64)gridDim.y - 1) return false;
    state[2] = 0;
    return true;
}

extern "C" __global__ void capturekit_row(const volatile u64* table, u64 columns, u64* state, u64 next)
{
    u64 first = (state[0] + next) % RING * columns;
    for (u64 i = threadIdx.x; i < columns; i += blockDim.x) state[ROW + i] = table[first + i];
}

extern "C" __global__ void capturekit_fetch(
    const u64* ports, u64 count, const volatile u64* table, u64 columns, u64* state, volatile u64* begun, u64 brought)
{
    __shared__ u64 launch, found;
    const u64* d = ports + blockIdx.y * WORDS;
    if (threadIdx.x == 0) {  // one read from the host's memory for each block, not for each thread
        launch = ((volatile u64*)state)[0] + 1;
        if (blockIdx.y < count) found = brought ? state[ROW + d[0]] : table[launch % RING * columns + d[0]];
    }
    __syncthreads();
    if (blockIdx.y < count) {
        const char* from = (const char*)found;
        if (d[2]) piece((char*)d[1], from, d[2], false);
        else elements((char*)d[1], from, d, false);
    }
    if (last_block(state)) {
        state[0] = launch;
        state[1] = 0;
        *begun = launch;
    }
}

extern "C" __global__ void capturekit_store(
    const u64* ports, const volatile u64* table, u64 columns, const u64* state, u64 brought)
{
    __shared__ u64 found;
    const u64* d = ports + blockIdx.y * WORDS;
    if (threadIdx.x == 0) found = brought ? state[ROW + d[0]] : table[state[0] % RING * columns + d[0]];
    __syncthreads();
    char* to = (char*)found;
    if (d[2]) piece(to, (const char*)d[1], d[2], d[DIFFERING]);
    else elements(to, (const char*)d[1], d, d[DIFFERING]);
}
"""


def descriptor(column: int, array: Any, differing: bool) -> list[int]:
    """The words that describe an array of the graph to the kernels."""
    low, high = extent(array)
    dense = array.size * array.itemsize == high - low
    if array.ndim > _DIMENSIONS:
        raise ValueError(f'an array of {array.ndim} axes: {_DIMENSIONS} are the most')
    pad = [0] * (_DIMENSIONS - array.ndim)
    spare = [0] * (_WORDS - _DIFFERING - 1)
    address = low if dense else int(array.data.ptr)
    return [
        column, address, high - low if dense else 0, array.itemsize, array.ndim,
        *array.shape, *pad, *array.strides, *pad, array.size, int(differing), *spare,
    ]  # fmt: skip


def from_low(array: Any) -> int:
    """Bytes from an array's lowest address, which a dense port is given, to the first element; 0 for others."""
    low, high = extent(array)
    return int(array.data.ptr) - low if array.size * array.itemsize == high - low else 0


class Ports:
    """The table of one graph. ``upload`` copies a NumPy array to the device at once and keeps it with the graph."""

    def __init__(
        self, platform: Platform, memory: GraphMemory, upload: Callable[[NDArray[Any]], Any], columns: int
    ) -> None:
        self._platform = platform
        self._upload = upload
        self.columns = max(columns, 1)
        self.state = upload(np.zeros(_ROW + self.columns, np.uint64))
        self._brought = False
        size = (RING * self.columns + 1) * 8
        self._pinned = platform.cupy.cuda.alloc_pinned_memory(size)
        self._bytes = memoryview(self._pinned).cast('B')[:size]
        self._bytes[:] = bytes(size)
        self.begun = self._bytes[:8].cast('Q')
        #: Where the table begins, and the word before it, in which the device counts the launches that have begun.
        self._table, self._begun = np.uint64(int(self._pinned.ptr) + 8), np.uint64(int(self._pinned.ptr))
        self._kernels = _compiled(platform)
        memory.keep_pinned(self._pinned)

    def fetch(self, places: Sequence[Any]) -> None:
        """Record, on the current stream, that arguments are fetched: column i into ``places[i]``; None is left out."""
        rows = [descriptor(i, place, False) for i, place in enumerate(places) if place is not None and place.size]
        places = [place for place in places if place is not None]
        ports = self._upload(np.array(rows or [[0] * _WORDS], np.int64).view(np.uint64))
        grid = (_grid(places), max(len(rows), 1))
        self._bring(grid, 1)
        self._kernels[0](
            grid, (_THREADS,),
            (
                ports, np.uint64(len(rows)), self._table, np.uint64(self.columns), self.state, self._begun,
                np.uint64(self._brought),
            ),
        )  # fmt: skip

    def _bring(self, grid: tuple[int, int], following: int) -> None:
        """Before a kernel of many blocks, record once that this launch's row (or the next) is copied to the device."""
        if not self._brought and grid[0] * grid[1] > _DIRECT:
            self._kernels[2]((1,), (64,), (self._table, np.uint64(self.columns), self.state, np.uint64(following)))
            self._brought = True

    def refill(self) -> None:
        """Copy the row again before the next kernel: the copy lacks addresses that were not known yet."""
        self._brought = False

    def store(self, places: Sequence[tuple[int, Any, bool]]) -> None:
        """Record that results are stored. Each place is (column, array of the graph, whether only where it differs)."""
        rows = [descriptor(*place) for place in places if place[1].size]
        if rows:
            ports = self._upload(np.array(rows, np.int64).view(np.uint64))
            grid = (_grid([place[1] for place in places]), len(rows))
            self._bring(grid, 0)
            self._kernels[1](
                grid, (_THREADS,),
                (ports, self._table, np.uint64(self.columns), self.state, np.uint64(self._brought)),
            )  # fmt: skip

    def row(self, columns: int) -> tuple[Callable[..., None], memoryview, int]:
        """What fills the first columns of a launch's row: ``pack(table, 8 + launch % RING * size, *addresses)``."""
        return struct.Struct(f'={columns}Q').pack_into, self._bytes, self.columns * 8

    def recount(self) -> int | None:
        """The number of the last launch that the device has begun, after one that an exception has ended.

        That one may have reached the device or not: the next has to write the row that the device will read. None where
        the device can't be asked: beside an open capture, which that would lose, or because it fails.
        """
        try:
            with uninterrupted(), GUARD.inside:
                return int(self.state.get()[0]) if GUARD.waits.unless_captured(self._platform.device) else None
        except RuntimeError:  # of CUDA's; the exception that has ended the launch is to arrive
            return None

    def free(self, launch: int, synchronize: Callable[[], Any]) -> None:
        """Wait until the row of a launch can be written: the launch :data:`RING` before it has ended."""
        deadline = time.perf_counter() + 0.002
        while self.begun[0] < launch - RING + 1:
            if time.perf_counter() > deadline:
                synchronize()
                return


def _grid(places: Sequence[Any]) -> int:
    most = max((place.size * place.itemsize for place in places), default=0)
    return max(1, min(_BLOCKS, -(-most // (16 * _THREADS))))


def _compiled(platform: Platform) -> tuple[Any, ...]:
    found: tuple[Any, ...] | None = platform.device.kernels.get('capturekit_ports')
    if found is None:
        if platform.simulated:
            body = importlib.import_module('capturekit.simulated').body
            body('capturekit_fetch')(_fetch)
            body('capturekit_store')(_store)
            body('capturekit_row')(_row)
        names = ('RING', 'ROW', 'WORDS', 'SHAPE', 'STRIDES', 'SIZE', 'DIFFERING')
        numbers = zip(names, (RING, _ROW, _WORDS, _SHAPE, _STRIDES, _SIZE, _DIFFERING))
        source = ''.join(f'#define {name} {number}\n' for name, number in numbers) + _SOURCE
        kernels = tuple(platform.cupy.RawKernel(source, f'capturekit_{name}') for name in ('fetch', 'store', 'row'))
        found = platform.device.kernels['capturekit_ports'] = kernels
    return found


def _memory_at(address: int, nbytes: int) -> NDArray[Any]:
    """The bytes at an address on the simulated device."""
    return importlib.import_module('capturekit.simulated').memory_at(address, nbytes)  # type: ignore[no-any-return]


def _view(address: int, words: NDArray[np.uint64]) -> NDArray[Any]:
    """The elements of a port at an address, on the simulated device."""
    d = words.view(np.int64)
    if d[2]:
        return _memory_at(address, int(d[2]))
    rank = int(d[4])
    shape, strides = [int(n) for n in d[_SHAPE : _SHAPE + rank]], [int(n) for n in d[_STRIDES : _STRIDES + rank]]
    low = sum(min(0, (n - 1) * s) for n, s in zip(shape, strides))
    high = sum(max(0, (n - 1) * s) for n, s in zip(shape, strides)) + int(d[3])
    flat = _memory_at(address + low, high - low)
    found: NDArray[Any] = np.ndarray((*shape, int(d[3])), np.uint8, flat, -low, (*strides, 1))
    return found


def _row_of(launch: int, table: Any, columns: Any) -> NDArray[np.uint64]:
    return _memory_at(int(table) + launch % RING * int(columns) * 8, int(columns) * 8).view(np.uint64)


def _row(_grid: Any, _block: Any, args: Any) -> None:
    """The kernel for the simulated device."""
    table, columns, state, following = args
    state[_ROW : _ROW + int(columns)] = _row_of(int(state[0]) + int(following), table, columns)


def _fetch(_grid: Any, _block: Any, args: Any) -> None:
    """The kernel for the simulated device."""
    ports, count, table, columns, state, begun, brought = args
    launch = int(state[0]) + 1
    row = state[_ROW:] if brought else _row_of(launch, table, columns)
    for words in ports.reshape(-1, _WORDS)[: int(count)]:
        _view(int(words[1]), words)[...] = _view(int(row[int(words[0])]), words)
    state[0], state[1] = launch, 0
    _memory_at(int(begun), 8).view(np.uint64)[0] = launch


def _store(_grid: Any, _block: Any, args: Any) -> None:
    """The kernel for the simulated device."""
    ports, table, columns, state, brought = args
    row = state[_ROW:] if brought else _row_of(int(state[0]), table, columns)
    for words in ports.reshape(-1, _WORDS):
        now, then = _view(int(words[1]), words), _view(int(row[int(words[0])]), words)
        if words[_DIFFERING]:
            np.copyto(then, now, where=then != now)
        else:
            then[...] = now

"""Kernels of capturekit's own: one sets the condition of a conditional node, one checks an assumed value.

CUDA C++ Programming Guide, "Conditional Graph Nodes": a condition has 32 bits; kernels set it while a launch runs. An
IF node runs its first body if the condition is not 0, and otherwise its second, if it has one; a WHILE node runs its
body until the condition is 0; a SWITCH node runs the body of that number, and none if there are fewer.

After each host read that a rehearsal answered, one kernel compares the bytes computed now with those assumed then. It
reports into pinned memory ("Page-Locked Host Memory, Mapped Memory"), so that the host knows without waiting for the
stream, and sets the condition of the node that holds the rest of the graph: after a value that differs, nothing more
runs.

Launches are numbered 1, 2, 3 ... The ring in pinned memory has a slot of 16 words for each of the last
:data:`RING` launches: word 0 is the launch's number and how many checks are done, word 1 its number and the failed
check's, counted from 1, words 2 to 9 the first 64 bytes found there instead.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from capturekit.driver.cuda import Platform, current
from capturekit.launch.graph_memory import GraphMemory
from capturekit.model import errors
from capturekit.model.source_line import Place

KERNEL = 'capturekit_decide'
#: CUDA's function that sets a condition.
DECLARED = (
    'extern "C" __device__ __cudart_builtin__ void CUDARTAPI '
    'cudaGraphSetConditional(cudaGraphConditionalHandle handle, unsigned int value);\n'
)
_DECIDES = r"""
extern "C" __global__ void capturekit_decide(
    const unsigned char* value, int nbytes, int negative, int truth, unsigned long long* passes, int again,
    unsigned long long limit, unsigned long long condition)
{
    unsigned long long found = 0;
    for (int i = 0; i < nbytes; i++) found |= (unsigned long long)value[i] << (8 * i);
    if (negative && nbytes < 8 && (found >> (8 * nbytes - 1) & 1)) found |= ~0ull << (8 * nbytes);
    if (truth) found = found != 0;
    else if (found > 0xffffffffull) found = 0xffffffffull;
    passes[0] = again ? passes[0] + 1 : 0;
    if (limit && passes[0] >= limit) found = 0;
    cudaGraphSetConditional(condition, (unsigned int)found);
}
"""


def decide(platform: Platform, value: Any, truth: bool, passes: Any, again: bool, limit: int, condition: int) -> None:
    """Record, on the current stream, that ``condition`` is set from ``value``, a boolean or whole number.

    ``truth``: to 0 or 1, not to the number. ``passes``: one word that counts, from 0 where ``again`` is False;
    from ``limit`` on, unless that is 0, the condition is 0.
    """
    dtype = value.dtype
    compiled(platform, KERNEL, DECLARED + _DECIDES, _decide)(
        (1,), (1,),
        (
            value, np.int32(dtype.itemsize), np.int32(dtype.kind == 'i'), np.int32(truth), passes, np.int32(again),
            np.uint64(limit), np.uint64(condition),
        ),
    )  # fmt: skip


def compiled(platform: Platform, name: str, source: str, body: Callable[[Any, Any, Any], None]) -> Any:
    """A kernel of capturekit's own, compiled once for each CuPy. ``body``: what it does on the simulated device."""
    found = platform.device.kernels.get(name)
    if found is None:
        if platform.simulated:
            importlib.import_module('capturekit.simulated').body(name)(body)
        found = platform.device.kernels[name] = platform.cupy.RawKernel(source, name)
    return found


def _decide(_grid: Any, _block: Any, args: Any) -> None:
    """The kernel for the simulated device."""
    value, _nbytes, _negative, truth, passes, again, limit, condition = args
    number = int(value.reshape(-1)[0])
    found = int(number != 0) if truth else number if 0 <= number <= 0xFFFFFFFF else 0xFFFFFFFF
    passes[0] = int(passes[0]) + 1 if again else 0
    if limit and int(passes[0]) >= int(limit):
        found = 0
    current().device.condition_set(int(condition), found)


if TYPE_CHECKING:
    from numpy.typing import NDArray

RING = 64
_WORDS = 16
_KEPT = 64
#: Checks are numbered in 16 bits.
_MOST = (1 << 16) - 1
_BLOCKS, _THREADS = 64, 256
#: Seconds of polling pinned memory before the stream is synchronised instead, which also raises CUDA's errors.
_PATIENCE = 0.002

_CHECKS = r"""
extern "C" __global__ void capturekit_check(
    const unsigned char* now, const unsigned char* assumed, unsigned long long nbytes, unsigned long long index,
    unsigned long long opens, unsigned long long* state, volatile unsigned long long* ring,
    unsigned long long condition)
{
    __shared__ int differs;
    if (threadIdx.x == 0) differs = 0;
    __syncthreads();
    unsigned long long first = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
    unsigned long long step = gridDim.x * (unsigned long long)blockDim.x;
    bool aligned = (((unsigned long long)now | (unsigned long long)assumed) & 7) == 0;
    unsigned long long words = aligned ? nbytes / 8 : 0;
    for (unsigned long long i = first; i < words; i += step)
        if (((const unsigned long long*)now)[i] != ((const unsigned long long*)assumed)[i]) differs = 1;
    for (unsigned long long i = words * 8 + first; i < nbytes; i += step)
        if (now[i] != assumed[i]) differs = 1;
    __syncthreads();
    if (threadIdx.x != 0) return;
    if (differs) atomicExch(&state[3], 1ull);
    __threadfence();
    if (atomicAdd(&state[2], 1ull) != gridDim.x - 1) return;
    state[2] = 0;
    bool failed = atomicExch(&state[3], 0ull) != 0;
    if (opens) { state[0] += 1; state[1] = 0; }
    volatile unsigned long long* slot = ring + state[0] % RING * WORDS;
    unsigned long long tag = state[0] << 16;
    if (failed) {
        state[1] = index + 1;
        unsigned char kept[KEPT] = {0};
        for (int i = 0; i < KEPT && i < nbytes; i++) kept[i] = now[i];
        for (int i = 0; i < KEPT / 8; i++) slot[2 + i] = ((unsigned long long*)kept)[i];
        __threadfence_system();
        slot[1] = tag | (index + 1);
        __threadfence_system();
    }
    slot[0] = tag | (index + 1);
    if (condition) cudaGraphSetConditional(condition, !failed);
}
"""
_DEFINED = f'#define RING {RING}\n#define WORDS {_WORDS}\n#define KEPT {_KEPT}\n'


@dataclass(frozen=True)
class Check:
    """An assumption: ``value`` at ``at``, after the ``index``-th read."""

    index: int
    at: Place | None
    value: NDArray[Any]


class Checks:
    """The checks of one graph. ``upload`` puts a NumPy array on the device at once, for as long as the graph lives.

    ``state`` is four words on the device: the number of the launch under way, the failed check's, and two for the
    kernels' own use. The first check counts the launch, unless something before it does and gives its ``state``.
    """

    def __init__(
        self, platform: Platform, memory: GraphMemory, upload: Callable[[NDArray[Any]], Any], state: Any = None
    ) -> None:
        self._platform = platform
        self._upload: Callable[[NDArray[Any]], Any] | None = upload
        self._opened = state is not None
        self.made: list[Check] = []
        self.state = upload(np.zeros(4, np.uint64)) if state is None else state
        self._pinned = platform.cupy.cuda.alloc_pinned_memory(RING * _WORDS * 8)
        self._ring: NDArray[np.uint64] = np.frombuffer(self._pinned, np.uint64, RING * _WORDS)
        self._ring[:] = 0
        #: The same words, read as Python's numbers: that takes a third of the time.
        self._words = memoryview(self._ring)
        memory.keep_pinned(self._pinned)

    def record(self, array: Any, value: NDArray[Any], at: Place | None, condition: int) -> None:
        """Record, on the current stream, the check that ``array`` (contiguous) holds ``value``."""
        if len(self.made) >= _MOST:
            raise errors.HostReadError(
                'ndarray.get()',
                location=at,
                rule=f'A graph checks up to {_MOST} host reads.',
                remedy='Read larger arrays, fewer times.',
            )
        made = Check(len(self.made), at, value)
        self.made.append(made)
        assert self._upload is not None
        flat = array.reshape(-1).view(np.uint8)
        assumed = self._upload(np.ascontiguousarray(value).reshape(-1).view(np.uint8))
        blocks = max(1, min(_BLOCKS, -(-value.nbytes // (8 * _THREADS))))
        opens = made.index == 0 and not self._opened
        words = [np.uint64(word) for word in (value.nbytes, made.index, opens)]
        ring = np.uint64(self._pinned.ptr)
        compiled(self._platform, 'capturekit_check', _DEFINED + DECLARED + _CHECKS, _check)(
            (blocks,), (_THREADS,), (flat, assumed, *words, self.state, ring, np.uint64(condition))
        )

    def complete(self) -> None:
        """Finish: no check will be added."""
        self._upload = None

    def done(self, launch: int, upto: int) -> bool:
        """True when the first ``upto`` checks of a launch are done, or one of them has failed."""
        word = self._words[launch % RING * _WORDS]
        return word >> 16 == launch and (word & 0xFFFF >= upto or self._failed(launch) > 0)

    def _failed(self, launch: int) -> int:
        word = self._words[launch % RING * _WORDS + 1]
        return word & 0xFFFF if word >> 16 == launch else 0

    def wait(self, launch: int, upto: int, synchronize: Callable[[], Any]) -> errors.AssumptionError | None:
        """Wait for the first ``upto`` checks of a launch; return the error if one has failed."""
        if upto and not self.done(launch, upto):
            deadline = time.perf_counter() + _PATIENCE
            while not self.done(launch, upto):
                if time.perf_counter() > deadline:
                    synchronize()
                    break
        failed = self._failed(launch)
        first = launch % RING * _WORDS
        # unfinished checks count as failed: their results will never be known
        if failed == 0 and upto and max(self._words[first], self._words[first + 1]) >> 16 > launch:
            rule = f'Launch {launch} was followed by {RING} others or more: its checks are not kept that long.'
            return errors.AssumptionError(
                'A launch whose checks were asked for too late', rule=rule, remedy='Ask sooner.'
            )
        if failed == 0 and upto and not self.done(launch, upto):
            rule = f'Launch {launch} has ended without reporting whether its assumptions held.'
            remedy = 'Launch again; if it happens again, please report it.'
            return errors.AssumptionError('A launch whose checks have not reported', rule=rule, remedy=remedy)
        return None if failed == 0 else self._error(self.made[failed - 1], launch)

    def _error(self, check: Check, launch: int) -> errors.AssumptionError:
        value = check.value
        actual: NDArray[Any] | None = None
        if value.nbytes <= _KEPT:
            words = self._ring[launch % RING * _WORDS + 2 :][: _KEPT // 8].copy()
            actual = words.view(np.uint8)[: value.nbytes].view(value.dtype).reshape(value.shape)
        error = errors.AssumptionError(
            'A value that was assumed while recording',
            location=check.at,
            rule=f'It was {_text(value)} in the rehearsal and is {_text(actual)} in this launch, so the program may '
            'go another way from here on. The graph was stopped there.',
            remedy='Record again with a rehearsal on these inputs, or use @ck.graphed, which does.',
        )
        error.assumed, error.actual, error.index = value, actual, check.index
        return error


def _text(value: NDArray[Any] | None) -> str:
    if value is None:
        return 'another one'
    if value.ndim == 0:
        return repr(value.item())
    elements = np.array2string(value, threshold=6, edgeitems=2, separator=', ').replace('\n', '')
    return f'{value.dtype}{list(value.shape)} {elements}'


def _check(_grid: Any, _block: Any, args: Any) -> None:
    """The kernel for the simulated device."""
    from capturekit.simulated import memory_at

    now, assumed, _nbytes, index, opens, state, ring, condition = args
    if opens:
        state[0] += 1
        state[1] = 0
    at = int(ring) + int(state[0]) % RING * _WORDS * 8
    slot = memory_at(at, _WORDS * 8).view(np.uint64)
    tag = int(state[0]) << 16
    failed = not np.array_equal(now, assumed)
    if failed:
        state[1] = int(index) + 1
        kept = np.zeros(_KEPT, np.uint8)
        kept[: min(_KEPT, now.size)] = now[:_KEPT]
        slot[2 : 2 + _KEPT // 8] = kept.view(np.uint64)
        slot[1] = tag | (int(index) + 1)
    slot[0] = tag | (int(index) + 1)
    if condition:
        current().device.condition_set(int(condition), int(not failed))

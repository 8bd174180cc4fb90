"""Large arguments and results are not copied: before a launch, the graph's nodes are aimed at the caller's arrays.

To change a node takes the host some time, to copy an array the device some, in proportion to its bytes. Both are
measured, and an array is aimed at where that is the shorter, or where the device is busy for so long that the host's
time is not seen. CUDA Driver API, ``cuGraphExecKernelNodeSetParams``:
launches that have begun keep the parameters that they began with.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from capturekit.driver.cuda import Platform
from capturekit.graph.rebind import movable, moved_bytes, runners
from capturekit.graph.state import GraphState
from capturekit.guard import GUARD
from capturekit.launch.array_extent import extent
from capturekit.model.errors import UpdateError

#: How often each byte of an argument, and of a result, goes through memory where it is copied. An argument is fetched,
#: and compared afterwards with what the function made of it.
ARGUMENT, RESULT = 4, 2
#: What the simulated device, which has no time, is taken to need: seconds for a node, and bytes in a second.
_SIMULATED = 2e-6, 4e12
#: So many bytes are copied to measure how fast that is.
_TRIED = 64 << 20
#: The nodes are changed so many times to measure how long that takes the host, until so many seconds have gone.
_TIMES, _LONG = 7, 2e-3
#: A call takes the host about as long as changing so many nodes, besides those that it changes.
_CALL = 10
_rates: dict[int, float] = {}


class AimedArray(NamedTuple):
    """An array that nodes use: argument or result ``number``, and how often its bytes go through memory if copied."""

    kind: str
    number: int
    array: Any
    times: int


class Aimer:
    """Lets the nodes of a graph use other memory in the place of some arrays.

    Raises UpdateError if a node that uses one of the arrays can't be changed.
    """

    def __init__(self, state: GraphState, targets: Sequence[AimedArray]) -> None:
        self.targets = list(targets)
        self._state = state
        #: Where the arrays were when the graph was recorded, which its definition goes on to say.
        self._recorded = [int(one.array.data.ptr) for one in targets]
        self._extents = [(*extent(one.array), one.kind == 'argument') for one in targets]
        self._arguments = [n for n, one in enumerate(targets) if one.kind == 'argument']
        #: Where the arrays lie that the nodes use now; None if the graph was changed since, and nodes may use any.
        self._at: list[int] | None = list(self._recorded)
        self._find()
        self._used = [bool(words) for words in self.words]
        self._aim(tuple(range(len(targets))), self._recorded)  # changes nothing, and shows that it can be done

    def _find(self) -> None:
        """Find the nodes that use memory of the arrays, and where in them the addresses stand."""
        state = self._state
        found = movable(state, self._extents)
        self._made: Any = state.made
        self._index = state.index
        #: For each array its words: what writes them, the place there, and the distance from the first element.
        self.words = [
            [(word.slot.write, word.place, word.address - at) for word in words]
            for words, at in zip(found, self._recorded)
        ]
        self.slots = [list(dict.fromkeys(word.slot for word in words)) for words in found]
        slots = list(dict.fromkeys(slot for one in self.slots for slot in one))
        self._run = dict(zip(slots, runners(state, slots)))
        #: By the numbers of arrays that lie elsewhere now: what brings the nodes that use them to the graph.
        self._runs: dict[tuple[int, ...], list[Callable[[], int]]] = {}

    def __call__(self, addresses: list[int]) -> bool:
        """Aim at arrays whose first elements are at these addresses. The next launch uses them.

        Return False if the next launch is compared with the graph before it was fused: it uses the recorded arguments,
        and the results have to be copied. Raises UpdateError if CUDA refuses; all nodes are then as they were.
        """
        state = self._state
        if state.trial is not None and not state.trial.as_aimed:
            if any(self._recorded[n] != addresses[n] for n in self._arguments):
                raise UpdateError('The first launch of fused kernels', rule='It needs the arguments recorded.')
            return False
        if state.made is not self._made or state.index is not self._index:
            self._find_again()
        if addresses != self._at:
            at = self._at if self._at is not None else [None] * len(addresses)
            changed = tuple([n for n, (was, to) in enumerate(zip(at, addresses)) if was != to])
            if GUARD.lives:  # another thread may have a capture open
                with state.relaxed():
                    self._aim(changed, addresses)
            else:
                self._aim(changed, addresses)
            self._at = addresses
        return True

    def _find_again(self) -> None:
        """Find the nodes of a graph that has been changed; all of them have to be aimed anew."""
        self._find()
        if [bool(words) for words in self.words] != self._used:
            self._made = None  # so that each later call looks again, and is refused as well
            raise UpdateError('A graph that calls launch', rule='Its nodes use other memory than they did.')
        self._at = None

    def _aim(self, changed: tuple[int, ...], addresses: Sequence[int]) -> None:
        runs = self._runs.get(changed)
        if runs is None:
            slots = dict.fromkeys(slot for number in changed for slot in self.slots[number])
            runs = self._runs[changed] = [self._run[slot] for slot in slots]
        self._write(changed, addresses)
        for run in runs:
            code = run()
            if code:
                self._write(changed, self._recorded if self._at is None else self._at)
                for again in runs:
                    again()
                raise UpdateError('A graph that calls launch', rule=f'CUDA refuses new addresses (error {code}).')

    def _write(self, changed: tuple[int, ...], addresses: Sequence[int]) -> None:
        for number in changed:
            address = addresses[number]
            for write, place, distance in self.words[number]:
                write(place, address + distance)

    def too_dear(self, platform: Platform) -> list[AimedArray]:
        """The arrays that are copied in less time than it takes to change the nodes that use them.

        None are, where the device needs longer for the graph than the host for a call with all its changes: then the
        host is ahead of the device, and what it does takes no time that anybody sees, but a copy does.
        """
        node, rate = _SIMULATED if platform.simulated else (self._seconds(), _rate(platform))
        if moved_bytes(self._state) / rate > (_CALL + len(self._run)) * node:
            return []
        return [
            target
            for target, slots in zip(self.targets, self.slots)
            if len(slots) * node > target.times * target.array.nbytes / rate
        ]

    def _seconds(self) -> float:
        """The seconds that the host needs for one node, measured by changing nothing in each of them.

        The shortest of a few times counts: the first one pays for what is used for the first time, and any may be
        interrupted.
        """
        best, spent = float('inf'), 0.0
        for _ in range(_TIMES):
            begun = time.perf_counter()
            self._aim(tuple(range(len(self.targets))), self._recorded)
            took = time.perf_counter() - begun
            best, spent = min(best, took), spent + took
            if spent > _LONG:
                break
        return best / max(len(self._run), 1)


def _rate(platform: Platform) -> float:
    """The bytes that go through the memory of the current device in a second, measured once by copying."""
    cuda = platform.cupy.cuda
    device = int(cuda.get_device_id())
    if device not in _rates:
        with GUARD.inside():
            nbytes = min(_TRIED, cuda.runtime.memGetInfo()[0] // 8)
            blocks = [platform.cupy.ndarray((nbytes,), 'u1') for _ in range(2)]
            stream = cuda.Stream(non_blocking=True)
            events = [cuda.Event() for _ in range(2)]
            for event in events:  # the first copy warms up
                blocks[0].data.copy_from_device_async(blocks[1].data, nbytes, stream)
                event.record(stream)
            events[-1].synchronize()
            _rates[device] = 2 * nbytes / max(cuda.get_elapsed_time(*events) * 1e-3, 1e-9)
    return _rates[device]

"""Random numbers of the legacy generators: drawn by the host at every launch, as eager code draws them.

cuRAND's generators keep their position on the host, so a recorded draw would follow neither the sequence nor a new
seed. Instead a copy from the graph's memory is recorded, and before the part that needs them, each launch draws the
numbers into that memory by the same call. (``cupy.random.Generator`` keeps its state on the device, so its draws are
simply recorded.)"""

from __future__ import annotations

import itertools
import math
import operator
import sys
import threading
import traceback
from collections.abc import Callable, Iterable
from functools import partial
from types import FrameType
from typing import Any

import numpy as np

from capturekit.guard.entry_points import Entry
from capturekit.guard.libraries import on_its_device
from capturekit.guard.open_capture import OpenCapture
from capturekit.guard.stream_calls import CallsOnStreams
from capturekit.launch.plan import Backup, Feed
from capturekit.model.source_line import here

_DEVICE_TO_DEVICE = 3
#: The bytes of one number, by the end of the draw's name.
_BYTES = {'Double': 8, 'LongLong': 8}
#: The modules in which CuPy and the stand-in have the generators of devices; how many calls above their seeding.
_WITH_GENERATORS, _NEAR = ('cupy.random.', '_capturekit_simulated'), 10
#: The dtype of the integers that ``choice`` draws without replacement.
_DRAWN = np.dtype(np.int64)


class RandomDraws(CallsOnStreams):
    """Random numbers of the legacy generators: drawn by the host at every launch, as eager code draws them."""

    def _recording(self, what: str) -> OpenCapture | None:
        """The capture into whose graph a draw goes; a linted run notes what it would draw, and has none."""
        return self.state.recording()

    def curand_draw(
        self, entry: Entry, original: Callable[..., Any], generator: int, ptr: int, size: int, *params: Any
    ) -> Any:
        call, signature = entry.call, (entry.call, generator, size, params)
        known, live = self._drawn_or_recording(signature, f'{call}: {size:,} numbers')
        if known is not None:
            return known.take(ptr)
        if live is None:
            return original(generator, ptr, size, *params)
        nbytes = size * next((n for end, n in _BYTES.items() if entry.name.endswith(end)), 4)
        with self.state.lock:
            self._before_feed(live, _owner(generator))
            buffer = live.graph_memory.grow(nbytes)

            def take(to: int) -> None:
                stream = self.state.current_stream().ptr
                self.state.own('cupy.cuda.runtime.memcpyAsync', to, buffer.ptr, nbytes, _DEVICE_TO_DEVICE, stream)

            draw = partial(original, generator, buffer.ptr, size, *params)
            self._feed(live, signature, draw, take, f'{call}: {size} numbers are drawn')
        return take(ptr)

    def random_seed_given(self, original: Callable[..., Any], state: Any, size: int) -> Any:
        """Return an array on the device for a seed that CuPy passes from the host to a kernel."""
        signature = ('seed for a kernel', id(state), int(size))
        known, live = self._drawn_or_recording(signature, 'a seed for a kernel')
        if known is not None:
            return known.take(None)
        if live is None:
            return original(state, size)
        with self.state.lock:
            self._before_feed(live, state)
            with self.state.inside:
                buffer = self.state.platform.cupy.ndarray((), np.uint64, live.graph_memory.grow(8))
            given: list[int] = []

            def draw() -> None:
                given[:] = [int(original(state, size))]
                buffer.fill(given[0])

            self._feed(live, signature, draw, lambda _to: given[0], 'a seed is drawn')
        return buffer

    def choice_drawn(
        self, original: Callable[..., Any], state: Any, a: Any, size: Any = None, replace: Any = True, p: Any = None
    ) -> Any:
        """Draw integers without replacement at every launch: CuPy's host makes their order of a seed."""
        count = drawn_without_replacement(a, size, replace, p)
        if count is None:
            return original(state, a, size, replace, p)
        signature = ('integers without replacement', id(state), int(a), size)
        what = f'RandomState.choice(): {count} of {a} integers'
        known, live = self._drawn_or_recording(signature, what)
        if known is not None:
            return known.take(None)
        if live is None:
            return original(state, a, size, replace, p)
        cupy, nbytes = self.state.platform.cupy, max(count, 1) * _DRAWN.itemsize
        drawn_to = cupy.empty(size, _DRAWN)  # on a stream outside of the capture this is refused, before any draw
        with self.state.lock:
            self._before_feed(live, state)
            with self.state.inside:
                buffer = cupy.ndarray((count,), _DRAWN, live.graph_memory.grow(nbytes))

            def take(to: Any) -> Any:
                made = cupy.empty(size, _DRAWN) if to is None else to
                with self.state.inside:
                    made.ravel()[...] = buffer
                return made

            def draw() -> None:
                buffer[...] = original(state, a, count, False)

            self._feed(live, signature, draw, take, f'{what} are drawn')
        return take(drawn_to)

    def random_seeded(self, original: Callable[..., Any], state: Any, seed: Any = None) -> Any:
        """Seed a generator at every launch (``RandomState.seed`` in a capture)."""
        signature = ('seeding', id(state), repr(seed))
        known, live = self._drawn_or_recording(signature, 'a generator is seeded')
        if known is not None:
            return None
        if live is None or _is_cupys_own():
            return original(state, seed)
        with self.state.lock:
            self.verdicts.check(live)
            _check_seed(seed)
            self._before_feed(live, state)
            if not hasattr(state, '_rk_seed'):
                original(state, seed)
            self._feed(live, signature, partial(original, state, seed), lambda _to: None, 'a generator is seeded')
        return None

    def bit_generator_made(self, original: Callable[..., Any], generator: Any, seed: Any = None) -> Any:
        """Refuse a device generator without a seed: a seed that the system gives would become a constant."""
        if self.state.recording() is not None and seed is None:
            raise self.verdicts.error(
                f'{type(generator).__name__}() without a seed',
                rule='Its seed, taken once from the system, would be a constant: all launches would draw the same.',
                remedy='Make the generator before the capture; its state then goes on from launch to launch.',
            )
        return original(generator, seed)

    def generator_state(self, original: Callable[..., Any], generator: Any) -> Any:
        """Copy the state of a device generator before it draws, in case a later check fails."""
        live = self.state.mine()
        if live is not None and live.host_calls.opening is not None:  # only such a launch is taken back
            self.back_up(live, generator._state)
        return original(generator)

    def back_up(self, live: OpenCapture, array: Any) -> None:
        """Record, once for each array, a copy of it as it is, so that a launch that fails a check leaves no trace."""
        memory, plan = live.graph_memory, live.parts.plan
        known = any(kept.array is array for kept in live.host_calls.backups)
        if known or not array.size or memory.owns(array.data.mem):
            return
        made = 0 if plan is None or plan.checks is None else len(plan.checks.made)
        kept = memory.place_for(array)
        backup = Backup(array, kept, made, live.parts.current)
        live.host_calls.backups.append(backup)
        with self.state.inside:
            kept[...] = array
            stream = self.state.current_stream()
            backup.node = max(live.platform.device.capture_info(stream.ptr).dependencies, default=0)

    def _default_state(self, device: int) -> Any:
        """Return CuPy's default RandomState of a device, or None: get_random_state() would make one."""
        with self.state.inside:
            return self.state.platform.cupy.random._generator._random_states.get(device)

    def _before_feed(self, live: OpenCapture, state: Any) -> None:
        """End a part that waits for a check, because the host draws before it launches a part; keep what draws."""
        self.verdicts.check(live)
        remedy = 'Draw before the decision, or write a kernel with a generator of its own.'
        self.bodies.not_in_body(live, 'Random numbers drawn by the host', remedy)
        if live.parts.check_node:
            self.parts.cut_on_host(live, here())
        live.graph_memory.keep(state)
        device = self.state.current_device()
        if live.caller is not None and self._default_state(device) is state:  # launches hold while it is this one
            live.caller.conditions.append(lambda: self._default_state(device) is state)

    def _feed(
        self, live: OpenCapture, signature: Any, draw: Callable[[], object], take: Callable[[Any], Any], text: str
    ) -> None:
        """Let the host draw before the present part of each launch."""

        def go() -> None:
            with self.state.inside:
                draw()

        self.parts.part_of(live).feeds.append(Feed(signature, on_its_device(self.state, go), take))
        live.note('drawn', self.lanes.current_lane(live), f'{text} by the host at every launch', here())

    def _drawn_or_recording(self, signature: tuple[Any, ...], what: str) -> tuple[Feed | None, OpenCapture | None]:
        """In an eager run that replaces a launch, what the launch drew for this call; else the capture that records."""
        drawn = self.state.redraws.get(threading.get_ident(), [])
        found = next((number for number, feed in enumerate(drawn) if feed.signature == signature), None)
        return (None, self._recording(what)) if found is None else (drawn.pop(found), None)


def _owner(generator: int) -> Any:
    """Return the RandomState that the present draw belongs to, and which destroys the generator when it goes."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        state = frame.f_locals.get('self')
        if getattr(state, '_generator', None) == generator:
            return state
        frame = frame.f_back
    return None


def drawn_without_replacement(a: Any, size: Any = None, replace: Any = True, p: Any = None) -> int | None:
    """How many integers below ``a`` a call of ``choice`` draws without replacement; None if it draws otherwise, or
    raises."""
    if replace or p is not None or not isinstance(a, int) or size is None:
        return None
    lengths = [*map(operator.index, size if isinstance(size, Iterable) else (size,))]
    count = math.prod(lengths)
    return count if min(lengths, default=0) >= 0 and count <= a else None


def _is_cupys_own() -> bool:
    """Whether CuPy makes the generator of a device at present, as it does once, for the first draw of a process."""
    frames = itertools.islice(traceback.walk_stack(sys._getframe(2)), _NEAR)
    return any(
        frame.f_code.co_name == 'get_random_state' and str(frame.f_globals['__name__']).startswith(_WITH_GENERATORS)
        for frame, _line in frames
    )


def _check_seed(seed: Any) -> None:
    """Raise what CuPy would raise for a bad seed, since the call itself is only made at the first launch."""
    if seed is None or isinstance(seed, np.ndarray):
        return
    found = np.asarray(seed)
    if found.dtype.kind not in 'biu':
        raise TypeError('Seed must be an integer.')
    if not 0 <= int(found) < 2**64:
        raise ValueError('Seed must be an integer between 0 and 2**64 - 1')

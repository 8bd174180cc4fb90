"""Every call that a capture makes of the device is made to fail in its turn, before it is done and after it.

Whatever comes out, afterwards no stream captures, nothing of the guard is left, and the next capture is good.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import capturekit as ck
from capturekit.driver.cuda import current
from capturekit.model.rules import CaptureStatus, Code
from tests.soak.ground import left_open

N = 64
#: Asked while what failed is being undone, or by others: a failure there would be of the test's making. The stand-in
#: asks for the device at each switch of streams; CuPy's compiled code does so past us.
_NOT = frozenset(
    'event_destroy get_device stream_destroy free reader library spare_streams simulated random launches submitted '
    'submit'.split()
)


class Tripwire:
    """Counts the calls of a device's verbs, and makes one of them fail."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self.calls = 0
        self.at = -1
        self.after = False
        self.name = ''
        self._inside = False

    def _wrapped(self, name: str, verb: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._inside:  # the simulated device asks itself
                return verb(*args, **kwargs)
            self._inside = True
            try:
                number, self.calls = self.calls, self.calls + 1
                planted = number == self.at
                if not planted or self.after:
                    answer = verb(*args, **kwargs)
                if not planted:
                    return answer
                self.name = name
                raise ck.CudaCallError(Code.cudaErrorInvalidValue, f'{name}, call {number}')
            finally:
                self._inside = False

        return call

    @contextmanager
    def set(self, at: int, after: bool) -> Iterator[None]:
        """In this block call number ``at`` fails: before it is done, or after it."""
        self.calls, self.at, self.after, self.name = 0, at, after, ''
        names = [name for name in dir(self._device) if not name.startswith('_') and name not in _NOT]
        verbs = {name: verb for name in names if callable(verb := getattr(self._device, name))}
        own = {name: verb for name, verb in vars(self._device).items() if name in verbs}
        try:
            for name, verb in verbs.items():
                setattr(self._device, name, self._wrapped(name, verb))
            yield
        finally:
            for name in verbs:
                vars(self._device).pop(name, None)
            vars(self._device).update(own)


def program(cp: Any, x: Any, origin: Any) -> Any:
    """A block with lanes, an upload, a decision and a join by hand."""
    with ck.capture(origin, check_races=True, lines=False) as cap:
        y = x * 2 + cp.array([1.0])
        with cap.fork(2) as (left, right):
            with left:
                a = y + 1
            with right:
                b = y + 2
        c = a + b
        with cap.if_(cp.ones((), bool)):
            cp.add(c, 1, out=c)
    cap.graph.launch(origin)
    origin.synchronize()
    return cap, c


def program_of_devices(cp: Any) -> Callable[[Any, Any, Any], Any]:
    """A block with a lane on each of two devices, work on the second that is held back, a copy back; left there."""
    with cp.cuda.Device(1):
        z = cp.zeros(N)
        cp.cuda.Device().synchronize()

    def program(cp: Any, x: Any, origin: Any) -> Any:
        told = False
        with ck.capture(origin, check_races=True, lines=False) as cap:
            y = x * 2 + 1
            with cap.fork(devices=[0, 1]) as (here, there):
                with here:
                    a = y + 1
                with there:
                    b = cp.full(N, 2.0)
            try:
                with cp.cuda.Device(1):
                    cp.add(z, 1, out=z)
            except ck.EscapedWorkError:
                told = True
            c = y + a + b.copy() + 1
            cp.cuda.runtime.setDevice(1)
        assert cp.cuda.Device().id == 0 and told
        cap.graph.launch(origin)
        origin.synchronize()
        return cap, c

    return program


def _check(cp: Any, cap: Any, c: Any) -> None:
    assert np.array_equal(cp.asnumpy(c), (np.arange(N) * 2.0 + 1) * 2 + 4)
    cap.graph.close()


def run(
    cp: Any, say: Callable[[str], None] = print, program: Callable[[Any, Any, Any], Any] = program
) -> dict[str, Any]:
    """All calls, one after the other; how many there were, by verb, and what came out."""
    gc.collect()  # of what others have left in cycles: to destroy it makes calls, too
    x, origin = cp.arange(float(N)), cp.cuda.Stream(non_blocking=True)
    home = cp.cuda.Device().id
    _check(cp, *program(cp, x, origin))
    device = current().device
    wire = Tripwire(device)
    tripped: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    for after in (False, True):
        at = 0
        while True:
            outcome, made = 'no exception', None
            with wire.set(at, after):
                try:
                    made = program(cp, x, origin)
                except BaseException as error:
                    outcome = type(error).__name__
            if made is not None:
                _check(cp, *made)
            if not wire.name:
                break
            tripped[wire.name] += 1
            outcomes[outcome] += 1
            told = f'{wire.name}, call {at}, {"after" if after else "before"} its work: {outcome}'
            assert not left_open(), (told, left_open())
            assert device.stream_status(origin.ptr) is CaptureStatus.NONE, told
            if wire.name == 'set_device' and not after:
                cp.cuda.Device(home).use()  # nobody could go back
            assert cp.cuda.Device().id == home and cp.cuda.get_current_stream() == cp.cuda.Stream.null, told
            _check(cp, *program(cp, x, origin))
            at += 1
        say(f'exits: {at} calls made to fail {"after" if after else "before"} their work')
    return {'calls': dict(tripped), 'outcomes': dict(outcomes)}

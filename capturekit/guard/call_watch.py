"""Watching CUDA's own calls: every capture of the process is followed, whoever began it, and whoever harms it.

A watch (``ck.capture(watch=True)``, ``run --watch``) also sees what torch, Numba, cuda-bindings or a C library asks of
CUDA. It can't refuse a call, but it knows the first one that lost a capture: function, stream, library and line. While
a watched capture is open, garbage collection is off: a collection in the watch's own code, in the midst of a call,
would destroy things there."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Any

from capturekit.driver.call_notices import CallSource
from capturekit.driver.cuda import Platform
from capturekit.model.cleanup import GARBAGE
from capturekit.model.cuda_functions import ApiCall
from capturekit.model.followed_captures import CaptureFinding, FollowedCapture, Follower
from capturekit.model.rules import Operation
from capturekit.model.skipped_exits import Lock
from capturekit.model.source_line import Place, here, is_foreign_frame

Told = Callable[[FollowedCapture], None]
#: Modules that lie between a call to CUDA and the watch that hears of it.
_BETWEEN = (
    'capturekit.guard.call_watch',
    'capturekit.model.followed_captures',
    'capturekit.driver.cupti_calls',
    'capturekit.simulated.device',
    'functools',
    'contextlib',
)
#: Modules that make a call for CuPy: a wrapper around CuPy's compiled code, and the stand-in.
_FOR_CUPY = ('capturekit.guard.', '_capturekit_simulated_')
#: Package names for what libraries are called.
_PACKAGES = {'torch': ('libtorch', 'libc10', 'torch'), 'cupy': ('cupy',), 'numba': ('numba',), 'warp': ('warp',)}


class _Process:
    """What the follower asks about the process."""

    def __init__(self, source: CallSource, inside: Any) -> None:
        self.status, self.blocking, self.device = source.status, source.blocking, source.device
        self.libraries, self.own = source.libraries, inside.active

    def place(self, thread: int) -> Place | None:
        frame = sys._getframe() if thread == threading.get_ident() else sys._current_frames().get(thread)
        return None if frame is None else here(frame)

    def maker(self) -> str:
        frame: FrameType | None = sys._getframe()
        while frame is not None and _module(frame).startswith(_BETWEEN):
            frame = frame.f_back
        if frame is not None and is_foreign_frame(frame):
            module = _module(frame)
            return 'cupy' if module.startswith(_FOR_CUPY) else module.partition('.')[0]
        nearest = self.libraries()[:1]
        return next((one for one, starts in _PACKAGES.items() if nearest and nearest[0].startswith(starts)), '')


class CallWatch:
    """Follows the captures of the process as long as somebody watches. Each :meth:`open` needs its :meth:`close`."""

    def __init__(self, inside: Any) -> None:
        self._inside = inside
        self._lock = Lock()
        self._waiting: deque[Callable[[], None]] = deque()
        self._busy = False
        self._source: CallSource | None = None
        self._follower: Follower | None = None
        self._told: list[Told] = []
        self._losses: dict[int, CaptureFinding] = {}
        #: How many open captures hold garbage collection off.
        self._held = 0
        #: What went wrong in the watch itself: it then follows nothing more, and the program goes on.
        self.failure: BaseException | None = None

    @property
    def watching(self) -> bool:
        """Whether somebody watches."""
        return bool(self._told)

    def open(self, platform: Platform, told: Told) -> None:
        """Begin to watch. ``told`` is called with each capture that has ended.

        Raises:
            Untraceable: CUPTI is not available, or another tool uses it.
        """
        with self._lock:
            if not self._told:
                source: CallSource = platform.device.call_source()
                self._follower = Follower(_Process(source, self._inside), self._ended)
                self.failure = None
                source.open(self)
                self._source = source
            self._told.append(told)

    def close(self, told: Told) -> None:
        """Stop watching for one that has opened the watch; the last one detaches it."""
        with self._lock:
            self._told.remove(told)
            if self._told:
                return
            source, self._source, self._follower = self._source, None, None
            self._losses.clear()
        if source is not None:
            source.close()  # without the lock: callbacks that are under way may wait for it
        self._collect_again()

    def loss(self, stream: int) -> CaptureFinding | None:
        """Return what has lost the capture that began on a stream, the last one if there were several."""
        with self._lock:
            known = [] if self._follower is None else list(self._follower.captures.values())
            now = next((one for one in known if one.capture.origin.stream == stream), None)
            return self._losses.get(stream) if now is None else now.loss

    def open_captures(self) -> list[FollowedCapture]:
        """Return the captures that have not ended. The driver is asked which of them are lost."""
        with self._lock:
            if self._follower is None:
                return []
            self._follower.settle()
            return list(self._follower.captures.values())

    @property
    def idle(self) -> bool:
        """Whether no capture is open."""
        return (follower := self._follower) is None or follower.idle

    def before(self, call: ApiCall) -> None:
        """Hear that a call is about to be made."""
        if (follower := self._follower) is not None:
            if call.operation is Operation.BEGIN_CAPTURE:
                self._hold()
            self._hear(lambda: follower.before(call))

    def after(self, call: ApiCall, code: int) -> None:
        """Hear what a call was answered."""
        if (follower := self._follower) is not None:
            self._hear(lambda: follower.after(call, code))
            if call.operation is Operation.BEGIN_CAPTURE and code:
                self._release()

    def worked(self, stream: int) -> bool:
        """Hear that work was given to a stream."""
        return (follower := self._follower) is not None and follower.worked(stream)

    def failed(self, failure: BaseException) -> None:
        """Hear that a call could not be told of: the watch is over, and the program goes on."""
        self.failure, self._follower = failure, None
        self._collect_again()

    def _hold(self) -> None:
        with self._lock:
            self._held += 1
            GARBAGE.hold()

    def _release(self) -> None:
        with self._lock:
            if self._held:
                self._held -= 1
                GARBAGE.release()

    def _collect_again(self) -> None:
        while self._held:
            self._release()

    def _hear(self, step: Callable[[], None]) -> None:
        """Make a step. One that a destructor causes within another step comes after that."""
        with self._lock:
            self._waiting.append(step)
            if self._busy:
                return
            self._busy = True
            try:
                while self._waiting:
                    self._waiting.popleft()()
            except KeyboardInterrupt:
                raise
            except BaseException as failure:
                self.failed(failure)
                self._waiting.clear()
            finally:
                self._busy = False

    def _ended(self, one: FollowedCapture) -> None:
        self._release()
        stream = one.capture.origin.stream
        self._losses.pop(stream, None)
        if one.loss is not None:
            self._losses[stream] = one.loss
        for told in list(self._told):
            told(one)


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get('__name__', ''))

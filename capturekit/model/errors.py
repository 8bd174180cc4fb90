"""The exceptions of capturekit.

There is one class for each fault that calls for a different repair; the object has the data, and ``__str__`` makes the
text. All are :class:`RuntimeError`, so that ``except RuntimeError`` around CuPy keeps working.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from capturekit.model.causes import Cause, sentences
from capturekit.model.skipped_exits import contextmanager
from capturekit.model.source_line import Place

#: How notebooks show an error that has a recording, by MIME type: filled by capturekit.render, a higher package.
SHOWN_AS: dict[str, Callable[[CaptureError], str]] = {}


class _Made(threading.local):
    """The number of errors that this thread has made, which shows whether one was caught in a recording."""

    count = 0
    #: Whether they go through the code of a graphed function, which is recorded and must not handle them.
    unseen = False


MADE = _Made()


class PerformanceWarning(UserWarning):
    """Calls of a graphed function run eagerly: nothing of it could be launched, or eager calls take less time."""


class CudaCallError(RuntimeError):
    """A CUDA call returned an error code: ``code`` (:class:`capturekit.model.rules.Code`). ``call`` names the call."""

    def __init__(self, code: int, call: str = '') -> None:
        super().__init__(code, call)
        self.code = code
        self.call = call

    def __str__(self) -> str:
        name = getattr(self.code, 'name', str(int(self.code)))
        return f'{name} from {self.call}' if self.call else name


class CaptureError(RuntimeError):
    """A call in a capture, or a use of a graph, was refused. Base class of all refusals.

    A notebook shows a picture of the capture so far, with the finding marked, where the error ends a cell, and for
    ``display(error)`` or an ``error`` at the end of a cell. ``error.recording`` is what is drawn.

    Attributes:
        operation: the call, as it is written in code: ``'Stream.synchronize()'``.
        stream: the stream's handle as an int, or None.
        lane: the lane's number in the capture (0 is the origin), or None.
        location: the user's :class:`~capturekit.model.source_line.Place` (file, line, function), or None.
        rule: the CUDA rule in one sentence.
        remedy: what to write instead.
        cuda_error: CUDA's name of the error that the driver would have returned (or did return), or ''.
        subject: the stream or event that the call addressed, in words: ``'lane 1 (stream 0x55d0, forked at
            train.py:38)'``.
        recording: for an error that ended a capture, the :class:`~capturekit.model.recording.Recording` so far; for one
            that stopped a launch, the recording of that graph; else None.
        earlier: what went wrong before it, in order: refusals that the code caught, and the exception whose cleanup was
            refused (:class:`~capturekit.model.causes.Cause`). The message begins with these.
    """

    earlier: tuple[Cause, ...] = ()
    #: The user's lines that led to the refused call, the outermost first.
    way: tuple[Place, ...] = ()
    #: A sentence on a capture begun by hand that is still open. Its end takes the sentence off an error on its way.
    still_open: str = ''

    def __init__(
        self,
        operation: str = '',
        *,
        stream: int | None = None,
        lane: int | None = None,
        subject: str = '',
        location: Place | None = None,
        rule: str = '',
        remedy: str = '',
        cuda_error: str = '',
    ) -> None:
        super().__init__(operation)
        MADE.count += 1
        self.operation = operation
        self.stream = stream
        self.lane = lane
        self.subject = subject
        self.location = location
        self.rule = rule
        self.remedy = remedy
        self.cuda_error = cuda_error
        self.recording: Any = None

    def __str__(self) -> str:
        if not self.earlier:
            return self.own_text()
        return '\n  '.join([*sentences(self.earlier), f'Then: {self.own_text()}'])

    def in_one_line(self) -> str:
        """The message without line breaks, each of its lines a sentence."""
        lines = [line.strip() for line in str(self).splitlines()]
        return ' '.join(line if line.endswith(('.', ':', ';', ',')) else f'{line}.' for line in lines if line)

    def own_text(self) -> str:
        """The message without what came before."""
        what = self.operation
        if self.subject:
            what += f' on {self.subject}'
        what += self._where()
        instead = f'{self.remedy} {self.still_open}'.strip()
        return '\n  '.join(part for part in (what, self.rule, instead) if part)

    def _where(self) -> str:
        return '' if self.location is None else f', at {self.location}'

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        drawn = {} if self.recording is None else {mime: make(self) for mime, make in SHOWN_AS.items()}
        return {'text/plain': f'{type(self).__name__}: {self}', **drawn}

    def _render_traceback_(self) -> list[str]:
        """The lines that IPython, which alone calls this, prints of an error; in a notebook the picture goes before."""
        shell = sys.modules['IPython'].get_ipython()
        notebook = getattr(shell, 'kernel', None) is not None
        if notebook and self.recording is not None and not self.__dict__.get('_shown'):
            self.__dict__['_shown'] = True  # IPython asks again to keep the text
            importlib.import_module('IPython.display').display(self)
        return list(shell.InteractiveTB.structured_traceback(type(self), self, self.__traceback__))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), dict(self.__dict__))


class Unseen(BaseException):
    """A refusal on its way through a graphed function that is recorded: ``error``.

    An eager run raises nothing there, so the function's ``except Exception`` must not count, log or try again.
    """

    def __init__(self, error: CaptureError) -> None:
        super().__init__(error)
        self.error = error


def as_raised(error: CaptureError) -> BaseException:
    """What is raised in the code whose call is refused."""
    return Unseen(error) if MADE.unseen else error


@contextmanager
def unseen() -> Iterator[None]:
    """A block in which code does not handle refusals. It raises them."""
    before, MADE.unseen = MADE.unseen, True
    try:
        yield
    except Unseen as found:
        raise found.error from None
    finally:
        MADE.unseen = before


def _rebuild(cls: type[CaptureError], state: dict[str, Any]) -> CaptureError:
    error = cls.__new__(cls, state.get('operation', ''))
    error.__dict__.update(state)
    return error


class SynchronizationError(CaptureError):
    """The host would wait for, or ask about, work that is only being recorded (900, 907)."""


class HostReadError(CaptureError):
    """The host would read a value on the device while the work that computes it is only being recorded."""


class LegacyStreamError(CaptureError):
    """The legacy default stream was used during a capture (906, or its work would be missing from the graph)."""


class EscapedWorkError(CaptureError):
    """Work went to a stream that is not in the capture: it would run at once and be missing from the graph."""


class IsolationError(CaptureError):
    """A captured stream would wait for an event that was recorded outside the capture (905)."""


class MergeError(CaptureError):
    """A stream of one capture would wait for an event of another capture (902)."""


class UnmatchedError(CaptureError):
    """A capture was ended on a stream that did not begin it, or begun where another one is open (903, 401)."""


class WrongThreadError(CaptureError):
    """A capture was ended, or used, by a thread that did not begin it (908)."""


class UnjoinedError(CaptureError):
    """Lanes were left unjoined at the end of the capture (904). ``lanes`` says of each where it was forked and used."""

    lanes: list[dict[str, Any]]

    def _where(self) -> str:
        return '' if self.__dict__.get('lanes') else super()._where()  # the text of each lane names its own lines


class RaceError(CaptureError):
    """Two nodes touch the same memory, one of them writing, and no path of edges orders them.

    ``races`` is the :class:`~capturekit.analysis.races.Races` of the graph, whose certain ones are the reason.
    """

    races: Any


class UnsupportedCallError(CaptureError):
    """The code makes a call that no capture can hold (``add_callback``, launching a graph into a capture ...)."""


class InvalidatedError(CaptureError):
    """A call that capturekit can not see lost the capture: a C library's, or one through cuda-bindings.

    ``active_at`` is the last line after which it was still good, ``lost_at`` the one after which it was not (None where
    lines are not followed). Where CUDA's calls were watched (``ck.capture(watch=True)``), the message names the call:
    ``function`` is CUDA's function, ``libraries`` are what it was called through, the nearest first, and ``answer`` is
    CUDA's name of the error that it got.
    """

    active_at: Place | None = None
    lost_at: Place | None = None
    function: str = ''
    libraries: tuple[str, ...] = ()
    answer: str = ''


class UpdateError(CaptureError):
    """A graph could not be updated to another one, or a node could not be changed (910).

    ``reason`` is CUDA's, ``differences`` are those of the two graphs
    (:class:`capturekit.analysis.graph_diff.GraphDifference`).
    """

    reason: str = ''
    differences: tuple[Any, ...] = ()


class FreedMemoryError(CaptureError):
    """Recorded work reads or writes memory whose array is gone: a launch would find other values there."""


class AssumptionError(CaptureError):
    """A value assumed while recording turned out different at launch.

    ``location`` is the line of the host read, ``assumed`` and ``actual`` the two values as NumPy arrays (``actual`` is
    None above 64 bytes, and for a call between two parts whose result changed its form), ``index`` the read's number.
    """

    assumed: Any = None
    actual: Any = None
    index: int | None = None


class CheckError(CaptureError):
    """A launch of a graphed function gave another result than the eager run it was compared with (``check=``)."""


class ClosedError(CaptureError):
    """A graph was used after it was closed, or a capture before or after its time."""


class GeneratorError(CaptureError):
    """A generator or coroutine suspended while a capture that it opened was open."""

"""What came before an exception: refusals that the code caught, and exceptions that a cleanup has hidden.

The exception that ends a program is often not the first thing that went wrong. A refusal that ``except Exception``
catches is followed, lines below, by a NameError; and a refusal in a ``finally`` takes the place of the exception that
led there. A :class:`Cause` is plain data: it holds no frame, and so nothing that a frame holds.
"""

from __future__ import annotations

import ast
import functools
import linecache
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

from capturekit.model.counted import counted
from capturekit.model.source_line import Place, is_foreign_frame, way_of

#: So many causes are kept, and so many of them are told in full.
_KEPT, _TOLD = 16, 3
#: Below so many frames nobody looks for the start of a program.
_DEEPEST = 50


@dataclass(frozen=True, eq=False)
class Cause:
    """An exception that came before another one. Two refusals are equal where the same lines led to the same call.

    Attributes:
        name: its class. text: its message. at: its line. refused: whether it is a refusal of capturekit's.
        frames: the lines that led to it, the outermost first.
    """

    name: str
    at: Place | None
    text: str
    refused: bool
    frames: tuple[Place, ...] = ()

    def _key(self) -> tuple[Any, ...]:
        return self.name, self.at, self.frames if self.refused else ()  # those of others grow on their way out

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cause) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def sentence(self, when: str) -> str:
        """Return a sentence about it that begins with ``when``."""
        if self.refused:
            return f'{when}, the code caught {self.name}: {self.text}'
        return f'{when}, {self.name} was raised at {self.at}: {self.text}'.rstrip(': ')


class Causes:
    """What went wrong so far, in the order of time: in one capture, or in a program."""

    def __init__(self) -> None:
        self.found: list[Cause] = []
        #: The exception that was being handled when this began, which is no cause of what follows; its identity.
        self._handled = id(sys.exception())

    def remember(self, error: Any) -> None:
        """Remember a refusal, a CaptureError, and what a cleanup has hidden by it."""
        for hidden in _hidden(error, self._handled):
            self._add(hidden)
        error.way = error.way or _frames(sys._getframe(1))
        self._add(cause_of(error))

    def add_to(self, error: Any) -> None:
        """Tell a CaptureError what came before it."""
        error.earlier = tuple(dict.fromkeys((*error.earlier, *self.before(error))))

    def before(self, *shown: BaseException) -> list[Cause]:
        """Return what came before an exception, without those that are shown anyway."""
        known = [cause_of(one) for one in shown]
        return [cause for cause in self.found if cause not in known]

    def clear(self) -> None:
        """Forget everything."""
        self.found.clear()

    def _add(self, cause: Cause) -> None:
        if cause not in self.found and len(self.found) < _KEPT:
            self.found.append(cause)


#: Of the whole process, for ``capturekit run``, which tells of them where an exception ends the program.
PROGRAM = Causes()


def cause_of(error: Any) -> Cause:
    """Return an exception as plain data."""
    if hasattr(error, 'own_text'):
        return Cause(type(error).__name__, error.location, error.own_text(), True, error.way)
    way = way_of(error)
    return Cause(type(error).__name__, (None, *way)[-1], str(error), False, way[-_DEEPEST:])


def sentences(causes: Iterable[Cause]) -> list[str]:
    """Return causes in words: the first ones in full, of the others the lines."""
    first, others = full(list(causes))
    words = [cause.sentence('Then' if number else 'First') for number, cause in enumerate(first)]
    if others:
        places = ', '.join(f'{cause.name} at {cause.at}' for cause in others)
        words.append(f'{counted(len(others), "more exception")} came after that: {places}.')
    return words


def notes(causes: Iterable[Cause]) -> list[str]:
    """Return causes as notes on another exception."""
    return [f'capturekit: {words}' for words in sentences(causes)]


def full(causes: list[Cause]) -> tuple[list[Cause], list[Cause]]:
    """Return those that are told in full, and the others."""
    return causes[:_TOLD], causes[_TOLD:]


def shown_with(error: BaseException | None, seen: set[int] | None = None) -> Iterator[BaseException]:
    """Yield an exception and all that Python shows with it: what it came from, and the members of a group."""
    seen = set() if seen is None else seen
    if error is None or id(error) in seen:
        return
    seen.add(id(error))
    yield error
    hidden = error.__suppress_context__
    for other in (error.__cause__, None if hidden else error.__context__, *getattr(error, 'exceptions', ())):
        yield from shown_with(other, seen)


def _frames(frame: FrameType | None) -> tuple[Place, ...]:
    """Return the user's lines from the program's start to a frame."""
    found: list[Place] = []
    while frame is not None and len(found) < _DEEPEST:
        if not is_foreign_frame(frame):
            found.append(Place(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return tuple(reversed(found))


# -- exceptions that a cleanup hides ----------------------------------------------------------------------------------


def _hidden(error: BaseException, handled: int) -> list[Cause]:
    """Return the exceptions that were on their way out when a call of a cleanup was refused, the first one first."""
    found: list[Cause] = []
    seen = {id(error)}
    one = error.__context__
    while one is not None and id(one) not in seen and id(one) != handled:
        seen.add(id(one))
        refused = hasattr(one, 'own_text')  # which was heard when it was raised
        if not refused and isinstance(one, Exception) and way_of(one) and passes(one):
            found.append(cause_of(one))
        one = one.__context__
    return found[::-1]


def passes(error: BaseException) -> bool:
    """Whether an exception goes on after what runs now, as it does after a ``finally``.

    An ``except`` clause that does not raise it again has dealt with it. Where the source can't be had, nobody knows.
    """
    trace = error.__traceback__
    if trace is None:
        return False
    at, raised = trace.tb_frame.f_lineno, trace.tb_lineno
    source = ''.join(linecache.getlines(trace.tb_frame.f_code.co_filename, trace.tb_frame.f_globals))
    handlers = _handlers(source)
    if handlers is None or at is None:
        return False
    return not any(raised in tried and at in handler for tried, handler in handlers)


@functools.lru_cache(maxsize=16)
def _handlers(source: str) -> list[tuple[range, range]] | None:
    """Return the lines of each ``try`` with those of an ``except`` that ends there; None where there is no source."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return None
    if not tree.body:
        return None
    found = []
    for node in ast.walk(tree):
        for handler in getattr(node, 'handlers', ()):
            again = any(isinstance(inner, ast.Raise) and inner.exc is None for inner in ast.walk(handler))
            if not again:
                found.append((_lines(node.body), _lines([handler])))  # type: ignore[attr-defined]
    return found


def _lines(nodes: list[Any]) -> range:
    return range(nodes[0].lineno, (nodes[-1].end_lineno or nodes[-1].lineno) + 1)

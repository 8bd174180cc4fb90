"""Host reads of an eager run, remembered, so that a recording can take the same branches.

Recording with a rehearsal gives the values of its reads back, in order; a read that the recording does not make (of a
value that CuPy has cached since) is skipped. Each value that is given back is an assumption, which
:mod:`capturekit.launch.own_kernels` checks at each launch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

import numpy as np

from capturekit.model.source_line import Place, is_foreign, is_ours

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The origin of a read: the lines from CuPy's own out to the first of the user's.
Signature = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Site:
    """The instruction of the user's code that is under way."""

    code: CodeType
    offset: int


@dataclass(frozen=True)
class Read:
    """One host read: ``value`` as NumPy has it, ``at`` the user's line, ``site`` the instruction there.

    ``parameters``: the numbers that the function of that line got.
    """

    value: NDArray[Any]
    at: Place | None
    signature: Signature
    site: Site | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f'{self.value.dtype}{list(self.value.shape)} at {self.at}'


@dataclass
class Rehearsal:
    """What :func:`capturekit.rehearse` returns: ``result``, the host ``reads`` in order (``value``, ``at``), and the
    calls that no capture can hold."""

    result: Any = None
    reads: list[Read] = field(default_factory=list)
    seams: list[str] = field(default_factory=list)
    #: What the run did that no launch would repeat, each as a word and a sentence; and the host memory that was filled.
    effects: list[tuple[str, str]] = field(default_factory=list)
    filled: list[Any] = field(default_factory=list)
    #: Whether a function that iterates counts as a call by the host between two parts, so that its reads do not count.
    pieces: bool = False
    #: Whether it recorded events, as CuPy does after each copy from the host.
    records_events: bool = False

    def add(self, value: Any, at: Place | None) -> None:
        """Remember the read under way."""
        found, frame = _origin()
        site = None if frame is None else Site(frame.f_code, frame.f_lasti)
        self.reads.append(Read(np.array(value), at, found, site, {} if frame is None else _parameters(frame)))


class Answers:
    """The reads of a rehearsal, given back one after the other.

    ``late``: takes the array of a read whose value each launch reads anew. It returns what the recording gets instead,
    and what has to be as it was: an array and its value, or None. It returns None for a read whose value is assumed.
    """

    def __init__(self, reads: list[Read]) -> None:
        self._reads = list(reads)
        self._next = 0
        self.late: Callable[[Read, Any], tuple[NDArray[Any], tuple[Any, NDArray[Any]] | None] | None] = (
            lambda _read, _array: None
        )

    def answer(self, shape: tuple[int, ...], dtype: Any, signature: Signature) -> Read | None:
        """The next read of this kind; None if the rehearsal has none left."""
        for number in range(self._next, len(self._reads)):
            read = self._reads[number]
            if read.signature == signature and read.value.shape == shape and read.value.dtype == dtype:
                self._next = number + 1
                return read
        return None


def signature() -> Signature:
    """The origin of the read under way."""
    return _origin()[0]


def _origin() -> tuple[Signature, FrameType | None]:
    """The origin of the read under way, and the frame of the user's code."""
    found = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if not is_ours(code.co_filename):
            found.append((code.co_filename, frame.f_lineno))
            if not is_foreign(code.co_filename):
                break
        frame = frame.f_back
    return tuple(found), frame


def _parameters(frame: FrameType) -> dict[str, Any]:
    """The numbers that a function has got."""
    code = frame.f_code
    names, variables = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount], frame.f_locals
    return {name: variables[name] for name in names if type(variables.get(name)) in (int, float)}

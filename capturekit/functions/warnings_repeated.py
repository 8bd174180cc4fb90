"""Warnings that a filter shows each time: every launch shows them again, as the eager run has shown them.

Only filters that look at no module are understood, and warnings that are nothing but a text and a class. A recording
makes the same warnings once more. They are gathered then and compared, and nobody sees them.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from types import BuiltinFunctionType, WrapperDescriptorType
from typing import Any, NamedTuple

from capturekit.functions.carried_state import CarriedPlace
from capturekit.functions.warnings_shown import EACH_TIME, FORGETS_IN_CONTEXTS, action_for
from capturekit.guard import GUARD
from capturekit.model.class_layout import found_in_class, own_layout

_MODULE: Any = warnings
#: The methods that make a warning and its text, with the types that they have in Python's own classes.
_PYTHONS = {'__init__': WrapperDescriptorType, '__new__': BuiltinFunctionType, '__str__': WrapperDescriptorType}


class ShownWarning(NamedTuple):
    """One warning: what its message is made of, the class that it counts as, and the line that it names."""

    kind: type[Warning]
    texts: tuple[str, ...]
    category: type[Warning]
    file: str
    line: int


def how_shown() -> tuple[Any, ...]:
    """What decides how this thread shows warnings."""
    return [*warnings.filters], _MODULE.defaultaction, warnings.showwarning, _MODULE._showwarnmsg_impl


def shown_again(shown: Any, before: tuple[Any, ...]) -> ShownWarning | None:
    """The warning that launches are to show again; None if they can not.

    ``shown``: the ``WarningMessage`` that Python shows now. ``before``: what :func:`how_shown` gave when the run began.
    """
    message = shown.message
    if FORGETS_IN_CONTEXTS or how_shown() != before or shown.source is not None or not _is_only_a_text(message):
        return None
    action = action_for(str(message), shown.category, shown.lineno)
    return _of(shown) if action in EACH_TIME else None


def _is_only_a_text(message: Any) -> bool:
    """Whether Python's own code makes such a warning, and all that it holds are its texts."""
    cls = type(message)
    pythons = all(type(found_in_class(cls, name)) is kind for name, kind in _PYTHONS.items())
    whole = pythons and not vars(message) and not own_layout(cls)[1]
    return whole and all(type(text) is str for text in message.args)


def _of(shown: Any) -> ShownWarning:
    return ShownWarning(type(shown.message), shown.message.args, shown.category, shown.filename, shown.lineno)


class RepeatedWarnings(CarriedPlace):
    """The warnings of one run, in their order. A launch shows them again."""

    how = 'shown'

    def __init__(self, shown: Sequence[ShownWarning]) -> None:
        self.shown = list(shown)
        self._gathered: list[Any] | None = None

    def where(self) -> str:
        places = dict.fromkeys(f'{os.path.basename(one.file)}:{one.line}' for one in self.shown)
        return f'the warnings of {", ".join(places)}'

    def read(self) -> Any:
        return None

    def put(self, value: Any) -> None:
        """A warning is no value that could be put back."""

    def arrays(self, array: type) -> list[Any] | None:
        return []

    def begin(self, left: Any) -> None:
        self._gathered = GUARD.warned.gather()

    def is_as_recorded(self, before: Any) -> bool:
        return self._gathered is None or [_of(one) for one in self._gathered] == self.shown

    def end(self, before: Any) -> None:
        if self._gathered is not None:
            GUARD.warned.gather_no_more()
            self._gathered = None

    def after(self) -> Any:
        return None

    def change(self, value: Any) -> None:
        for one in self.shown:
            message = one.kind(*one.texts)
            _MODULE._showwarnmsg(warnings.WarningMessage(message, one.category, one.file, one.line))

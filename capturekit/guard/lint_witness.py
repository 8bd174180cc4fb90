"""What real captures of a script refuse, heard in every thread: the script goes on as with ``strict=False``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from capturekit.guard.components import Components
from capturekit.guard.patching import Inside
from capturekit.model.counters import refused
from capturekit.model.errors import CaptureError


class Witness:
    """Hears what real captures refuse, in every thread, and lets the script go on as with ``strict=False``.

    ``tell`` is what a :class:`Shadow` tells by. A refusal with no such meaning is raised as ever: the capture would be
    over there. It stands where a shadow stands, beneath those of linted functions.
    """

    #: Arrays that are made, and CuPy's switches, are not asked about.
    asks_calls_only = True

    def __init__(self, guard: Components, tell: Callable[[CaptureError, str | None], None]) -> None:
        self._guard = guard
        self._tell_of = tell

    def open(self) -> None:
        """From now on every thread's calls come by here."""
        Inside.shadow = self
        self._guard.state.installation.inside.shadow = self

    def close(self) -> None:
        """No thread's calls come by here any more; one that has met it meets nothing but the guard."""
        Inside.shadow = None
        self._guard.state.installation.inside.shadow = None
        self._tell_of = lambda error, adapted: None

    def instead_of(self, verb: Callable[..., Any]) -> Callable[..., Any]:
        """The guard's own verb, asked a second time where a strict capture refuses and ``strict=False`` would not."""
        name = getattr(verb, 'func', verb).__name__
        return verb if name == 'stream_handed_out' else functools.partial(self._asked, verb)

    def launching(self, upload: bool, ptr: int) -> None:
        """A graph of capturekit's own is about to be launched: the guard says whether it may."""
        inside = self._guard.state.installation.inside
        inside.shadow = None
        try:
            self._guard.launches.launching(upload, ptr)
        finally:
            inside.shadow = self

    def _asked(self, verb: Callable[..., Any], original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        live, made = self._guard.state.mine(), False

        def make(*given: Any, **named: Any) -> Any:
            nonlocal made
            made = True
            return original(*given, **named)

        given = make if callable(original) else original  # of an attribute it is the instance
        try:
            return verb(given, *args, **kwargs)
        except CaptureError as error:
            if live is not None and live.strict and not made:
                steps = live.recording.steps
                before, live.strict = len(steps), False
                try:
                    answer = verb(original, *args, **kwargs)
                except CaptureError:
                    pass
                else:
                    words = '; '.join(step.text for step in steps[before:] if step.kind == 'adapted')
                    self._tell_of(error, words or 'lets it be')
                    return answer
                finally:
                    live.strict = True
            refused(error)
            self._guard.verdicts.has_refused(error, getattr(verb, 'func', verb).__name__)
            self._tell_of(error, None)
            raise error

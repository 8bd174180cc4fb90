"""Reports what the real captures of a linted script refuse, in every thread; the script continues as with
``strict=False``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from capturekit.guard.components import Components
from capturekit.guard.patching import Inside
from capturekit.model.counters import refused
from capturekit.model.errors import CaptureError


class Witness:
    """Reports what real captures refuse, in every thread, and lets the script continue as with ``strict=False``.

    ``tell`` is the function that a :class:`LintGuard` reports to. A refusal that ``strict=False`` could not adapt is
    raised: the capture ends there. A witness is installed like a shadow, below the shadows of linted functions.
    """

    #: Arrays that are made, and CuPy's switches, are not asked about.
    asks_calls_only = True

    def __init__(self, guard: Components, tell: Callable[[CaptureError, str | None], None]) -> None:
        self._guard = guard
        self._tell_of = tell

    def open(self) -> None:
        """Install the witness for all threads."""
        Inside.substitute = self
        self._guard.state.inside.substitute = self

    def close(self) -> None:
        """Remove the witness; threads that have it use the plain guard from now on."""
        Inside.substitute = None
        self._guard.state.inside.substitute = None
        self._tell_of = lambda error, adapted: None

    def instead_of(self, verb: Callable[..., Any]) -> Callable[..., Any]:
        """The guard's verb, called once more as with ``strict=False`` if the strict capture refuses."""
        name = getattr(verb, 'func', verb).__name__
        return verb if name == 'stream_handed_out' else functools.partial(self._asked, verb)

    def launching(self, upload: bool, ptr: int) -> None:
        """Let the guard judge the launch of a capturekit graph."""
        inside = self._guard.state.inside
        inside.substitute = None
        try:
            self._guard.launches.launching(upload, ptr)
        finally:
            inside.substitute = self

    def _asked(self, verb: Callable[..., Any], original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        live, made = self._guard.state.mine(), False

        def make(*given: Any, **named: Any) -> Any:
            nonlocal made
            made = True
            return original(*given, **named)

        given = make if callable(original) else original  # for an attribute, `original` is the instance
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

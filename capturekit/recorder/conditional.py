"""``cap.while_``, ``cap.if_``, ``cap.if_else``, ``cap.switch``: work that the device decides about at every launch.

CUDA C++ Programming Guide, "Conditional Graph Nodes".
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any, TypeVar

from capturekit.guard import GUARD
from capturekit.guard.conditional_bodies import Decision
from capturekit.guard.open_capture import OpenCapture
from capturekit.launch.outside_arrays import names_of
from capturekit.model import errors
from capturekit.model.cleanup import uninterrupted
from capturekit.model.source_line import here, is_foreign_frame

#: A branch, or its subclass for a loop.
_Body = TypeVar('_Body', bound='Branch')


class Branch:
    """One body of a decision: what its ``with`` block records runs when the device decides so. It is entered once."""

    def __init__(self, live: OpenCapture, decision: Decision, number: int) -> None:
        self._live = live
        self._decision = decision
        self._number = number
        self._state = 'new'
        self._names: dict[str, Any] = {}

    def __enter__(self: _Body) -> _Body:
        if self._state != 'new':
            raise errors.UnsupportedCallError(
                'A branch entered twice',
                location=here(),
                rule='Each body of a conditional node is recorded once.',
                remedy='Put all of its work into one block, or make another decision.',
            )
        self._state = 'open'
        with uninterrupted(), GUARD.lock:
            GUARD.bodies.enter_body(self._live, self._decision, self._number, here())
        self._names = names_of(_user(sys._getframe(1)), self._live.platform.cupy.ndarray)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _trace: object) -> None:
        self._state = 'over'
        live, decision = self._live, self._decision
        at = here()
        now = names_of(_user(sys._getframe(1)), live.platform.cupy.ndarray)
        wrong = self._rebound(now) if error is None and decision.decides == 'while' else None
        self._names = {}
        with uninterrupted(), GUARD.lock:
            if not live.decisions.open or live.decisions.open[-1] is not decision:
                return  # the capture around it is over
            try:
                GUARD.bodies.leave_body(live, decision, at, failed=error is not None or wrong is not None)
            except errors.CaptureError as fault:
                if error is None and wrong is None:
                    raise
                wrong = wrong or fault
        if error is None and wrong is not None:
            raise wrong

    def _rebound(self, now: dict[str, Any]) -> errors.CaptureError | None:
        """Look for names that are another array than before the loop: the next pass would not see the new array."""
        condition = self._decision.condition
        for name, array in self._names.items():
            found = now.get(name)
            if found is None or found is array:
                continue
            if array is condition:
                return errors.UnsupportedCallError(
                    f'`{name}`, the condition of a loop, is another array at its end',
                    location=here(),
                    rule='The loop reads the array that it was given, so it would end at once or never.',
                    remedy=f'Write into it: `{name}[...] = ...`, or `cp.greater(a, b, out={name})`.',
                )
            text = (
                f'`{name}` is another array at the end of the loop: each pass begins with the one from before the loop'
            )
            self._live.note('note', None, f'{text}; to pass a value on to the next pass, write into the array', here())
        return None


class Loop(Branch):
    """The body of ``cap.while_``."""

    @property
    def passes(self) -> Any:
        """How many passes the last launch made: a CuPy array of shape (), dtype uint64."""
        return self._decision.passes.reshape(())


class Branches:
    """The bodies of ``cap.if_else`` and ``cap.switch``: ``with`` each of them; nothing may be recorded in between."""

    def __init__(self, live: OpenCapture, decision: Decision) -> None:
        self._live = live
        self._all = tuple(Branch(live, decision, number) for number in range(len(decision.bodies)))

    def __enter__(self) -> tuple[Branch, ...]:
        return self._all

    def __exit__(self, *_exc: object) -> None:
        return None


def loop(live: OpenCapture, condition: Any, limit: int | None) -> Loop:
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or not 0 < limit < 1 << 63):
        wrong = ValueError if isinstance(limit, int) and not isinstance(limit, bool) else TypeError
        raise wrong(f'limit must be a positive whole number, or None: {limit!r}')
    return Loop(live, _decided(live, 'while', condition, 1, limit or 0), 0)


def branch(live: OpenCapture, condition: Any) -> Branch:
    return Branch(live, _decided(live, 'if', condition, 1), 0)


def branches(live: OpenCapture, condition: Any) -> Branches:
    return Branches(live, _decided(live, 'if', condition, 2))


def cases(live: OpenCapture, index: Any, count: int) -> Branches:
    if not isinstance(count, int) or isinstance(count, bool):
        raise TypeError(f'the number of cases must be a whole number: {count!r}')
    if count < 1:
        raise ValueError(f'a switch has at least one case: {count}')
    return Branches(live, _decided(live, 'switch', index, count))


def _decided(live: OpenCapture, decides: str, condition: Any, count: int, limit: int = 0) -> Decision:
    ndarray = live.platform.cupy.ndarray
    if not isinstance(condition, ndarray):
        raise TypeError(f'the condition must be a CuPy array of one element, not {type(condition).__name__}')
    if condition.size != 1:
        raise ValueError(f'the condition must be one element, not {condition.shape}')
    if condition.dtype.kind not in 'biu':
        raise TypeError(f'the condition must be boolean or a whole number, not {condition.dtype}: compare first')
    decision = Decision(decides, condition, limit, here())
    with uninterrupted(), GUARD.lock:
        assert live.memory is not None
        live.memory.keep(condition)
        GUARD.bodies.decide(live, decision, count)
    return decision


def _user(frame: FrameType | None) -> FrameType | None:
    while frame is not None and is_foreign_frame(frame):
        frame = frame.f_back
    return frame

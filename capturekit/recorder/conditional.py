"""``cap.while_``, ``cap.if_``, ``cap.if_else``, ``cap.switch``: work that the device decides about at every launch.

CUDA C++ Programming Guide, "Conditional Graph Nodes".
"""

from __future__ import annotations

import sys
import warnings
from types import FrameType
from typing import Any, Self

from capturekit.guard import GUARD
from capturekit.guard.conditional_bodies import Decision
from capturekit.guard.left_arrays import RETURNED, made_at
from capturekit.guard.open_capture import OpenCapture
from capturekit.model import errors
from capturekit.model.cleanup import uninterrupted
from capturekit.model.source_line import Place, here, is_foreign_frame
from capturekit.recorder.places import FramePlaces, is_dropped, is_used_again, way_out
from capturekit.recorder.told import told


class Branch:
    """One body of a decision: what its ``with`` block records runs when the device decides so. It is entered once."""

    def __init__(self, live: OpenCapture, decision: Decision, number: int) -> None:
        self._live = live
        self._decision = decision
        self._number = number
        self._state = 'new'
        self._places: FramePlaces | None = None
        self._way_out: tuple[str, Place] | None = None
        #: What is refused at the end of the body.
        self.wrong: Exception | None = None

    @told
    def __enter__(self) -> Self:
        if self._state != 'new':
            raise errors.UnsupportedCallError(
                'A branch entered twice',
                location=here(),
                rule='Each body of a conditional node is recorded once.',
                remedy='Put all of its work into one block, or make another decision.',
            )
        live, decision = self._live, self._decision
        with uninterrupted(), GUARD.lock:
            GUARD.bodies.enter_body(live, decision, self._number, here())
            self._state = 'open'
        frame = sys._getframe(1).f_back  # past `told`
        self._places = FramePlaces(frame, live.platform.cupy.ndarray)
        self._way_out = None if frame is None or is_foreign_frame(frame) else way_out(frame)
        return self

    @told
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _trace: object) -> None:
        self._state = 'over'
        live, decision = self._live, self._decision
        frame = sys._getframe(1)
        wrong = (self.wrong or self._moved(frame)) if error is None else None
        self._places = self.wrong = None
        with uninterrupted(), GUARD.lock:
            if not live.decisions.open or live.decisions.open[-1] is not decision:
                return  # the capture around it is over
            try:
                GUARD.bodies.leave_body(live, decision, here(), error, wrong)
            except errors.CaptureError:
                if error is None:
                    raise

    def _moved(self, frame: FrameType | None) -> errors.CaptureError | None:
        """Look for places that mean another array than before the body; adapting captures only warn of them."""
        live, decision, before = self._live, self._decision, self._places
        assert before is not None
        if self._way_out is not None:
            return _left_by(decision, *self._way_out)
        known = decision.made
        after = FramePlaces(frame, live.platform.cupy.ndarray)
        for name, was, now, owner in before.changed(after, lambda one: made_at(one) in known):
            if was is decision.condition and decision.decides == 'while':
                return _other_condition(name)
            if owner is not None and GUARD.left.has_left(was) and not is_used_again(owner, name):
                continue  # a name for the time of a body, as it was in an earlier one
            made = known.get(made_at(now))
            fault = errors.UnsupportedCallError(
                f'`{name}` is another array at the end of the body of `{decision.call}` than before it',
                location=made or here(),
                rule='Python has set it once, while the body was recorded; the device decides at each launch how often '
                'the body runs. So what reads it afterwards, or in the next pass, would read the wrong array.',
                remedy=RETURNED,
            )
            if live.strict:
                return fault
            at = fault.location or Place('<unknown>', 0, '')
            live.note('note', None, f'{fault.operation}: {fault.rule}', fault.location)
            warnings.warn_explicit(f'{fault}', RuntimeWarning, at.file, at.line)
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
        self._decision = decision
        self._all = tuple(Branch(live, decision, number) for number in range(len(decision.bodies)))

    def __enter__(self) -> tuple[Branch, ...]:
        self._live.decisions.asked.append(self._decision)
        return self._all

    @told
    def __exit__(self, kind: type[BaseException] | None, _error: BaseException | None, _trace: object) -> None:
        live, decision = self._live, self._decision
        if decision not in live.decisions.asked:
            return
        live.decisions.asked.remove(decision)
        if kind is None and decision.inside is None and GUARD.mine() is live:
            with uninterrupted(), GUARD.lock:
                GUARD.bodies.nothing_between(live, decision, here())


def loop(live: OpenCapture, condition: Any, limit: int | None, frame: FrameType | None = None) -> Loop:
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or not 0 < limit < 1 << 63):
        wrong = ValueError if isinstance(limit, int) and not isinstance(limit, bool) else TypeError
        raise wrong(f'limit must be a positive whole number, or None: {limit!r}')
    return Loop(live, _decided(live, 'while', condition, 1, limit or 0, frame), 0)


def branch(live: OpenCapture, condition: Any, frame: FrameType) -> Branch:
    return Branch(live, _decided(live, 'if', condition, 1, frame=frame), 0)


def branches(live: OpenCapture, condition: Any, frame: FrameType | None = None) -> Branches:
    return Branches(live, _decided(live, 'if', condition, 2, frame=frame))


def cases(live: OpenCapture, index: Any, count: int, frame: FrameType) -> Branches:
    if not isinstance(count, int) or isinstance(count, bool):
        raise TypeError(f'the number of cases must be a whole number: {count!r}')
    if count < 1:
        raise ValueError(f'a switch has at least one case: {count}')
    return Branches(live, _decided(live, 'switch', index, count, frame=frame))


def _decided(
    live: OpenCapture, decides: str, condition: Any, count: int, limit: int = 0, frame: FrameType | None = None
) -> Decision:
    """Record the node. ``frame``: who must enter a block that is returned."""
    ndarray = live.platform.cupy.ndarray
    if not isinstance(condition, ndarray):
        raise TypeError(f'the condition must be a CuPy array of one element, not {type(condition).__name__}')
    if condition.size != 1:
        raise ValueError(f'the condition must be one element, not {condition.shape}')
    if condition.dtype.kind not in 'biu':
        raise TypeError(f'the condition must be boolean or a whole number, not {condition.dtype}: compare first')
    decision = Decision(decides, condition, limit, here(), bodies=[0] * count)
    with uninterrupted(), GUARD.lock:
        assert live.memory is not None
        live.memory.keep(condition)
        GUARD.bodies.decide(live, decision, count, is_dropped(frame))
    return decision


def _other_condition(name: str) -> errors.CaptureError:
    return errors.UnsupportedCallError(
        f'`{name}`, the condition of a loop, is another array at its end',
        location=here(),
        rule='The loop reads the array that it was given, so it would end at once or never.',
        remedy=f'Write into it: `{name}[...] = ...`, or `cp.greater(a, b, out={name})`; or use `cap.loop`.',
    )


def _left_by(decision: Decision, way: str, at: Place) -> errors.CaptureError:
    return errors.UnsupportedCallError(
        f'`{way}` in the body of `{decision.call}`',
        location=at,
        rule='Python takes it once, while the body is recorded, whatever the device will decide: what stands below it '
        'would be missing from the graph.',
        remedy='Let the device decide about what stands below, too, in a branch of `cap.if_else`; about a loop with '
        '`cap.while_` or `cap.loop`; about a value with `cap.cond`.',
    )

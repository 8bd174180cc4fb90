"""``ck.capture(watch=True)``: what CUDA's own calls, of whatever library, have done to a capture."""

from __future__ import annotations

from functools import partial

from capturekit.driver.cuda import Platform
from capturekit.guard import GUARD, OpenCapture
from capturekit.guard.remedies import error_of
from capturekit.model.cleanup import Undo
from capturekit.model.errors import CaptureError
from capturekit.model.followed_captures import FollowedCapture


def start(platform: Platform, undo: Undo) -> list[FollowedCapture]:
    """Watch until ``undo``; return the list that each capture is added to when it has ended.

    Raises:
        Untraceable: CUPTI is not available, or another tool uses it.
    """
    ended: list[FollowedCapture] = []
    told = ended.append
    GUARD.state.call_watch.open(platform, told, GUARD.ledger.table)
    undo.push(partial(GUARD.state.call_watch.close, told))
    return ended


def note_escaped(live: OpenCapture) -> None:
    """Note in the recording the work that other libraries have given to streams outside of the capture."""
    for one in _its_captures(live):
        for finding in one.escaped:
            error = error_of(finding, live.at, 'capturekit')
            often = '' if finding.count == 1 else f' It was made {finding.count} times.'
            text = f'work escaped: {type(error).__name__}: {error.operation} on {error.subject}. {error.rule}{often}'
            live.note('note', None, text, finding.at)


def explained(live: OpenCapture, fault: BaseException) -> BaseException:
    """Return CUDA's error at the end of a capture as that of the call that caused it, if a watch has seen that call."""
    if isinstance(fault, CaptureError) or not isinstance(fault, RuntimeError):
        return fault
    for one in _its_captures(live):
        if one.loss is not None and one.loss.kind == 'unjoined':
            error = error_of(one.loss, live.at, 'capturekit')
            error.__cause__ = fault
            return error
    return GUARD.verdicts.invalidated(live) if any(one.loss for one in _its_captures(live)) else fault


def _its_captures(live: OpenCapture) -> list[FollowedCapture]:
    """The driver's captures that a block was made of: several if it was recorded in parts."""
    return [one for one in live.watched if one.capture.origin.stream == live.origin.ptr]

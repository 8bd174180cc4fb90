"""The mends of causes in blocks, each taken out on its own, to see that the programs of blocks find the cause again.

Interrupts are not among them: tests/recorder/test_interrupts.py has one at each place of a block.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

from capturekit.guard import GUARD, conditional_bodies
from capturekit.guard.conditional_bodies import Bodies
from capturekit.guard.current_streams import CurrentStreams
from capturekit.guard.lanes import Lanes
from capturekit.recorder import conditional
from capturekit.recorder.capture import Capture
from tests.agreement.lost_mends import LostMend, Patch, _gives, _replaced


def _as_the_ledger_says(_original):
    return lambda self, ptr, stream=None: self.state.ledger.lane(ptr)


def _never_taken_out(_original):
    return lambda self, live, decision, body: None


def _with(owner: Any, name: str, answer: Any = None) -> Patch:
    """An object of the guard, to which others keep its methods, only gives this answer."""
    return lambda: mock.patch.object(owner, name, lambda *args, **kwargs: answer)


_LEFT = (_gives(Bodies, 'left_by'), _gives(Bodies, 'check_left'))
_MOVED = (_gives(conditional.Branch, '_moved'),)
_SETTLED = (_with(GUARD.allocators, 'settle', False), _with(GUARD.verdicts, 'settle'), _gives(CurrentStreams, 'settle'))
#: A stream is forked, but not made current; then comes a decision; then it works.
_IDLE = r'(S\[\d\])\.wait_event\(.*\n(?! *with \1)[^?]*with cap\d+\.(if_|while_|switch)[^?]*with \1:'
LOST = (
    LostMend('arrays of a body are used later', 0, "'a name leaves (if_|while_)'", _LEFT, _MOVED),
    LostMend('a name means another array', 0, "'a name of both branches'", _MOVED, _LEFT),
    LostMend('a place means another array', 0, "'an item of a dict leaves while_'", (*_LEFT, *_MOVED)),
    LostMend(
        'a condition cannot change', 0, "'a condition that cannot change'", (_gives(conditional_bodies, '_endless'),)
    ),
    LostMend(
        'work outside of both branches', 0, "'work outside of both branches'", (_gives(Bodies, 'nothing_between'),)
    ),
    LostMend('a race', 0, "'a race'", (_gives(Capture, '_check_races'),)),
    LostMend('a stream becomes current unseen', 0, "'a bound use'|'an ExitStack'", _SETTLED),
    LostMend('a lane is forked unseen', 0, r'wait\d+ = S.*wait_event', (_replaced(Lanes, 'met', _as_the_ledger_says),)),
    LostMend('lanes at a cut', 0, _IDLE, (_gives(Lanes, 'carry_over'),)),
    LostMend(
        'a refused loop spoils the capture', 0, r'while_\(t\d', (_replaced(Bodies, '_take_out', _never_taken_out),)
    ),
)

"""The mends of causes in blocks, each taken out on its own, to see that the programs of blocks find the cause again.

Interrupts are not among them: tests/recorder/test_interrupts.py has one at each place of a block.
"""

from __future__ import annotations

from capturekit.guard import GUARD, conditional_bodies
from capturekit.guard.conditional_bodies import Bodies
from capturekit.guard.current_streams import CurrentStreams
from capturekit.guard.lanes import Lanes
from capturekit.recorder import conditional
from capturekit.recorder.capture import Capture
from tests.agreement.lost_mends import LostMend, gives, replaced

_LEFT = (gives(Bodies, 'left_by'), gives(Bodies, 'check_left'))
_MOVED = (gives(conditional.Branch, '_moved'),)
_ENDLESS, _BETWEEN = (gives(conditional_bodies, '_endless'),), (gives(Bodies, 'nothing_between'),)
_SETTLED = (gives(GUARD.allocators, 'settle', False), gives(GUARD.verdicts, 'settle'), gives(CurrentStreams, 'settle'))
#: A stream is forked, but not made current; then comes a decision; then it works.
_IDLE = r'(S\[\d\])\.wait_event\(.*\n(?! *with \1)[^?]*with cap\d+\.(if_|while_|switch)[^?]*with \1:'
LOST = (
    LostMend('arrays of a body are used later', 0, "'a name leaves (if_|while_)'", _LEFT, _MOVED),
    LostMend('a name means another array', 0, "'a name of both branches'", _MOVED, _LEFT),
    LostMend('a place means another array', 0, "'an item of a dict leaves while_'", (*_LEFT, *_MOVED)),
    LostMend('a condition cannot change', 0, "'a condition that cannot change'", _ENDLESS),
    LostMend('work outside of both branches', 0, "'work outside of both branches'", _BETWEEN),
    LostMend('a race', 0, "'a race'", (gives(Capture, '_check_races'),)),
    LostMend('a stream becomes current unseen', 0, "'a bound use'|'an ExitStack'", _SETTLED),
    LostMend('a lane is forked unseen', 0, r'wait\d+ = S.*wait_event',
             (replaced(Lanes, 'met', lambda _original, self, ptr, stream=None: self.state.ledger.lane(ptr)),)),
    LostMend('lanes at a cut', 0, _IDLE, (gives(Lanes, 'carry_over'),)),
    LostMend('a refused loop spoils the capture', 0, r'while_\(t\d', (gives(Bodies, '_take_out'),)),
)  # fmt: skip

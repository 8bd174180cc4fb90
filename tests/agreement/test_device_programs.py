"""Random programs on two devices give the same plainly and graphed."""

from __future__ import annotations

from tests.agreement.device_programs import PRELUDE, DeviceProgram, difference, kind
from tests.agreement.trying import try_many
from tests.examples import examples

#: With the promise of ``pure=True`` broken, launches go on with the number that was there while recording.
STALE = DeviceProgram(
    f'{PRELUDE}\nSCALE = [1.0]\ndef fn(x, n):\n'
    '    with Over(1):\n        y = cp.asarray(x) * SCALE[0]\n    return [cp.asarray(y)]\n',
    [f'SCALE[0] = float({n} > 3)\nx = cp.ones(4)\ntry:\n    r = over(x, 1)\nfinally:\n    now()' for n in range(6)],
)


def test_programs_on_two_devices_agree() -> None:
    with kind(seeds=(1,)) as programs:
        tally = try_many(programs, 0, examples(24), 3)
    assert not tally.found, tally.found
    assert tally.counts['launched'] > examples(24) and tally.counts['raced'] * 5 < examples(24)


def test_a_wrong_answer_is_seen() -> None:
    """The comparison itself can fail."""
    assert difference(STALE)[0] == ''
    STALE.options = {'pure': True}
    assert 'graphed' in difference(STALE)[0]

"""Random programs on two devices give the same plainly and graphed."""

from __future__ import annotations

from dataclasses import replace

from tests.agreement.device_programs import PRELUDE, kind
from tests.agreement.program_runner import Machine, Program
from tests.agreement.trying import try_many
from tests.examples import examples

#: With the promise of ``pure=True`` broken, launches go on with the number that was there while recording.
STALE = Program(
    f'{PRELUDE}\nSCALE = [1.0]\ndef fn(x, n):\n'
    '    with Over(1):\n        y = cp.asarray(x) * SCALE[0]\n    return [cp.asarray(y)]\nf = over(fn)\n',
    [f'SCALE[0] = float({n} > 3)\nx = cp.ones(4)\nr = f(x, 1)\nSEEN.append(r)' for n in range(6)],
    late=True,
)


def test_programs_on_two_devices_agree() -> None:
    with kind() as programs:
        tally = try_many(programs, 0, examples(24), 3)
    assert not tally.found, tally.found
    assert tally.counts['launched'] > examples(24) and tally.counts['raced'] * 5 < examples(24)


def test_a_wrong_answer_is_seen() -> None:
    """The comparison itself can fail."""
    with Machine() as machine:
        assert machine.compared(STALE).finding == ''
        assert 'graphed' in machine.compared(replace(STALE, options={'pure': True})).finding

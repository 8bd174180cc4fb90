"""Random programs of blocks, captured and plainly: right, or refused where they may be, and all is as before.

``python -m tests.agreement.blocks --programs 20000 --seed 1`` tries many, tells how far it is, and prints each program
with a finding, shortened. With ``--gpu`` they run on the CuPy that is there, in processes of their own.
"""

from __future__ import annotations

import argparse
import faulthandler
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

from tests.agreement.block_programs import program
from tests.agreement.block_runner import Found, Machine
from tests.agreement.choices import replayed, seeded, shortest


@dataclass
class Tally:
    """What a run has seen so far."""

    tried: int = 0
    blocks: int = 0
    launched: int = 0
    sound: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    found: dict[str, list[int]] = field(default_factory=dict)

    def __str__(self) -> str:
        ends = ', '.join(f'{count} {name}' for name, count in self.ends.most_common())
        share = 100 * self.launched // max(self.blocks, 1)
        return (
            f'{self.tried} programs, {self.sound} of them sound, {self.blocks} blocks, {share} % of them launched; '
            f'the others ended by: {ends}; {sum(map(len, self.found.values()))} findings of {len(self.found)} kinds'
        )


def try_many(first: int, count: int, seed: int, shows: int = 1, there: bool = False, longest: int = 0) -> Tally:
    """Run programs, and print how far it is and the first ``shows`` of each kind of finding, shortened."""
    tally, begun, said = Tally(), time.monotonic(), 0.0
    with Machine(there) as machine:
        for number in range(first, first + count):
            if longest:
                faulthandler.dump_traceback_later(longest, exit=True)
            choices = seeded(f'blocks {seed}/{number}')
            one = program(choices)
            found = machine.run(one, number)
            tally.tried += 1
            tally.sound += one.sound
            tally.blocks += found.blocks
            tally.launched += found.launched
            tally.ends.update(found.ends)
            if found.finding:
                numbers = tally.found.setdefault(found.signature, [])
                numbers.append(number)
                if len(numbers) <= shows:
                    print(f'--- program {number}: {_shown(machine, number, choices.drawn, found)}', flush=True)
            if time.monotonic() - said > 10:
                said = time.monotonic()
                print(f'{said - begun:6.0f} s: {tally}', flush=True)
    if longest:
        faulthandler.cancel_dump_traceback_later()
    return tally


def _shown(machine: Machine, number: int, drawn: list[int], found: Found) -> str:
    """The finding with the shortest program that has it."""
    same = lambda numbers: machine.run(program(replayed(numbers)), number).signature == found.signature  # noqa: E731
    short = program(replayed(shortest(drawn, same)))
    return f'{machine.run(short, number).finding or found.finding}\n{short}'


def main() -> int:
    """Run the command; 1 if there is a finding."""
    faulthandler.enable()
    parser = argparse.ArgumentParser(description='Random programs of blocks, captured and plainly.')
    parser.add_argument('--programs', type=int, default=2000, help='how many programs (%(default)s)')
    parser.add_argument('--seed', type=int, default=1, help='another seed is another sequence (%(default)s)')
    parser.add_argument('--first', type=int, default=0, help='the number of the first program (%(default)s)')
    parser.add_argument('--shows', type=int, default=1, help='how many programs of each kind to print (%(default)s)')
    parser.add_argument('--gpu', action='store_true', help='run on the CuPy that is installed, not the simulated one')
    given = parser.parse_args()
    tally = try_many(given.first, given.programs, given.seed, given.shows, given.gpu, 120)
    for kind, numbers in sorted(tally.found.items(), key=lambda one: -len(one[1])):
        print(f'{len(numbers):5} {kind}: {numbers[:5]}')
    print(tally)
    return 1 if tally.found else 0


if __name__ == '__main__':
    sys.exit(main())

"""Random programs of blocks, captured and plainly: right, or refused where they may be, and all is as before.

``python -m tests.agreement.blocks --programs 20000 --seed 1`` tries many, tells how far it is, and prints each program
with a finding, shortened. With ``--gpu`` they run on the CuPy that is there, in processes of their own.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from tests.agreement.block_programs import program
from tests.agreement.block_runner import Found, Workers
from tests.agreement.choices import replayed, seeded, shortest

#: A folder into which programs with a finding are written, as scripts, if it is set.
SCRIPTS = os.environ.get('SCRIPTS', '')
#: Seconds after which a program counts as hanging.
LONGEST = 120
#: Runs the program of some draws, on a device with a seed.
Run = Callable[[list[int], int], Found]


@dataclass
class Tally:
    """What a run has seen so far."""

    tried: int = 0
    blocks: int = 0
    launched: int = 0
    sound: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    found: dict[str, list[int]] = field(default_factory=dict)

    def add(self, number: int, sound: bool, found: Found) -> None:
        self.tried += 1
        self.sound += sound
        self.blocks += found.blocks
        self.launched += found.launched
        self.ends.update(found.ends)
        if found.finding:
            self.found.setdefault(found.signature, []).append(number)

    def __str__(self) -> str:
        ends = ', '.join(f'{count} {name}' for name, count in self.ends.most_common())
        share = 100 * self.launched // max(self.blocks, 1)
        return (
            f'{self.tried} programs, {self.sound} of them sound, {self.blocks} blocks, {share} % of them launched; '
            f'the others ended by: {ends}; {sum(map(len, self.found.values()))} findings of {len(self.found)} kinds'
        )


def try_many(run: Run, first: int, count: int, seed: int, shows: int = 1) -> Tally:
    """Run programs, and print how far it is and the first ``shows`` of each kind of finding, shortened."""
    tally, begun, said = Tally(), time.monotonic(), 0.0
    for number in range(first, first + count):
        choices = seeded(f'blocks {seed}/{number}')
        one = program(choices)
        found = run(choices.drawn, number)
        tally.add(number, one.sound, found)
        if found.finding:
            print(f'program {number}: {found.signature}', flush=True)
            if len(tally.found[found.signature]) <= shows:
                print(f'--- {_shown(run, number, choices.drawn, found)}', flush=True)
        if time.monotonic() - said > 10:
            said = time.monotonic()
            print(f'{said - begun:6.0f} s: {tally}', flush=True)
    return tally


def _shown(run: Run, number: int, drawn: list[int], found: Found) -> str:
    """The finding with the shortest program that has it."""
    short = shortest(drawn, lambda numbers: run(list(numbers), number).signature == found.signature, 120)
    told = program(replayed(short))
    if SCRIPTS:
        with open(os.path.join(SCRIPTS, f'{number}.py'), 'w', encoding='utf-8') as file:
            file.write(f'# {found.signature}\n{told.script()}')
    return f'{run(short, number).finding or found.finding}\n{told}'


def _shared_out(given: argparse.Namespace) -> int:
    """Run a share of the programs in each of several processes; 1 if one of them has a finding."""
    command = [sys.executable, '-m', __spec__.name, '--seed', str(given.seed), '--shows', str(given.shows)]
    command += ['--gpu'] if given.gpu else []
    edges = [given.first + given.programs * job // given.jobs for job in range(given.jobs + 1)]
    shares = [[*command, '--first', str(one), '--programs', str(next_one - one)] for one, next_one in pairwise(edges)]
    running = [subprocess.Popen(share) for share in shares]
    return max(abs(one.wait()) for one in running)


def main() -> int:
    """Run the command; 1 if there is a finding."""
    parser = argparse.ArgumentParser(description='Random programs of blocks, captured and plainly.')
    parser.add_argument('--programs', type=int, default=2000, help='how many programs (%(default)s)')
    parser.add_argument('--seed', type=int, default=1, help='another seed is another sequence (%(default)s)')
    parser.add_argument('--first', type=int, default=0, help='the number of the first program (%(default)s)')
    parser.add_argument('--shows', type=int, default=1, help='how many programs of each kind to print (%(default)s)')
    parser.add_argument('--gpu', action='store_true', help='run on the CuPy that is installed, not the simulated one')
    parser.add_argument('--jobs', type=int, default=1, help='run so many processes, each with its share (%(default)s)')
    given = parser.parse_args()
    if given.jobs > 1:
        return _shared_out(given)
    workers = Workers(given.gpu, LONGEST)
    tally = try_many(workers.run, given.first, given.programs, given.seed, given.shows)
    workers.close()
    for kind, numbers in sorted(tally.found.items(), key=lambda one: -len(one[1])):
        print(f'{len(numbers):5} {kind}: {numbers[:5]}')
    print(tally)
    return 1 if tally.found else 0


if __name__ == '__main__':
    sys.exit(main())

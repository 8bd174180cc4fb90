"""Random programs, run plainly and otherwise, which have to agree: ``python -m tests.agreement KIND --programs 20000``.

``python``   programs around one graphed function      ``blocks``   blocks, captured and plainly
``devices``  a graphed function on two devices         ``threads``  threads that share graphed functions
``relaned``  graphs in the order that their data needs ``changed``  graphs that are changed again and again

It tells how far it is, and prints each program with a finding, shortened; its status is 1 then. Without ``--gpu`` it
runs on the simulated device.
"""

from __future__ import annotations

import argparse
import faulthandler
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import pairwise
from typing import Any

from capturekit.graphed import policy
from tests.agreement import block_runner, device_programs, python_programs, thread_programs
from tests.agreement.choices import seeded
from tests.agreement.program_runner import Machine
from tests.agreement.trying import Kind, try_many
from tests.captured import simulated
from tests.graph import changed_programs
from tests.lanes import relaned_programs

#: Seconds after which a program counts as hanging: the process ends then.
LONGEST = 300


@contextmanager
def on_a_device(kind: Callable[[Any], Kind], gpu: bool) -> Iterator[Kind]:
    """A kind of programs that run on the CuPy that is there, or on a simulated one."""
    with nullcontext(__import__('cupy')) if gpu else simulated() as cp:
        yield kind(cp)


KINDS: dict[str, Callable[[bool], AbstractContextManager[Kind]]] = {
    'python': python_programs.kind,
    'blocks': block_runner.kind,
    'devices': device_programs.kind,
    'threads': partial(on_a_device, thread_programs.kind),
    'relaned': partial(on_a_device, relaned_programs.kind),
    'changed': partial(on_a_device, changed_programs.kind),
}


def shared_out(given: argparse.Namespace) -> int:
    """Run a share of the programs in each of several processes; 1 if one of them has a finding."""
    command = [sys.executable, '-m', 'tests.agreement', given.kind, '--seed', str(given.seed)]
    command += ['--seconds', str(given.seconds), *['--gpu'] * given.gpu]
    edges = [given.first + given.programs * job // given.jobs for job in range(given.jobs + 1)]
    shares = [[*command, '--first', str(one), '--programs', str(next_one - one)] for one, next_one in pairwise(edges)]
    running = [subprocess.Popen(share) for share in shares]
    return max(abs(one.wait()) for one in running)


def main() -> int:
    """Run the command; 1 if there is a finding."""
    faulthandler.enable()  # a process that dies says where
    parser = argparse.ArgumentParser(
        'python -m tests.agreement', description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('kind', choices=KINDS)
    parser.add_argument('--programs', type=int, default=2000, help='how many programs (%(default)s)')
    parser.add_argument('--seed', type=int, default=1, help='another seed is another sequence (%(default)s)')
    parser.add_argument('--first', type=int, default=0, help='the number of the first program (%(default)s)')
    parser.add_argument('--jobs', type=int, default=1, help='run so many processes, each with its share (%(default)s)')
    parser.add_argument('--seconds', type=float, default=math.inf, help='no new program after so many')
    parser.add_argument('--gpu', action='store_true', help='run on the CuPy that is installed, not the simulated one')
    parser.add_argument('--reasons', action='store_true', help='print why functions ran eagerly, or what ended blocks')
    parser.add_argument('--show', action='store_true', help='python: print the program --first, and what its runs gave')
    given = parser.parse_args()
    policy.TOLD = None  # a warning that functions run eagerly would be one that plain runs do not give
    if given.show:
        with Machine(given.gpu) as machine:
            print(machine.told(python_programs.program(seeded(f'{given.seed}/{given.first}'))))
        return 0
    if given.jobs > 1:
        return shared_out(given)
    with KINDS[given.kind](given.gpu) as kind:
        tally = try_many(kind, given.first, given.programs, given.seed, LONGEST, given.seconds)
    for reason, count in tally.reasons.most_common(60) if given.reasons else ():
        print(f'{count:6} {reason}')
    print(f'{given.kind}, seed {given.seed}{", on a GPU" * given.gpu}: {tally}')
    return 1 if tally.found else 0


if __name__ == '__main__':
    sys.exit(main())

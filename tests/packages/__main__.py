"""All programs, those of each package in a process of their own: ``python -m tests.packages``.

A process that ends before its last program has *died* in the one it had begun; another one runs those after it.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.packages.child import ALWAYS
from tests.packages.judge import FAILS, UNSTEADY, Row
from tests.packages.registry import load

ROOT = Path(__file__).parents[2]
REQUIREMENTS = Path(__file__).with_name('requirements.txt')
RIGHT = ('equal', 'near')
DIED = 'died'
#: How many times as long as an eager call a graphed one may take, after some calls.
AT_MOST = 1.05


@dataclass
class Family:
    """The processes that run a package's programs."""

    package: str
    names: list[str]
    library: str
    path: str
    timeout: float
    machine: dict[str, str]

    def rows(self) -> Iterator[Row]:
        """What becomes of each program, as it comes."""
        left = list(self.names)
        while left:
            before = len(left)
            for row in self._rows_of_a_process(list(left)):
                left.remove(row['program'])
                yield row
            if len(left) == before:
                raise RuntimeError(f'a process for {self.package} ends before its first program')

    def _rows_of_a_process(self, names: list[str]) -> Iterator[Row]:
        """The rows that one process writes, and one for the program in which it died."""
        begun = ''
        with tempfile.TemporaryFile('w+') as said:
            process = self._started(names, said)
            for line in self._lines(process):
                told = json.loads(line)
                self.machine.update(told.get('machine', {}))
                begun = told.get('begun', begun)
                if 'row' in told:
                    begun = ''
                    yield told['row']
            status = process.wait()
            said.seek(0)
            words = ' '.join(said.read().split())[-400:]
        if begun:
            yield {'package': self.package, 'program': begun, 'outcome': DIED, 'text': f'status {status}: {words}'}
        elif not self.machine:
            raise RuntimeError(f'a process for {self.package} does not start: {words}')

    def _started(self, names: list[str], said: Any) -> subprocess.Popen[str]:
        path = os.pathsep.join(filter(None, (self.path, str(ROOT), os.environ.get('PYTHONPATH', ''))))
        command = [sys.executable, '-m', 'tests.packages.child', self.library, self.package, *names]
        env = {**os.environ, 'PYTHONPATH': path}
        return subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=said, text=True)

    def _lines(self, process: subprocess.Popen[str]) -> Iterator[str]:
        """The lines of a process, which is killed if one takes too long."""
        assert process.stdout is not None
        with process.stdout as lines:
            while True:
                late = threading.Timer(self.timeout, process.kill)
                late.start()
                line = lines.readline()
                late.cancel()
                if not line.endswith('\n'):
                    return
                yield line


def install(folder: Path) -> None:
    """Put what requirements.txt names into a folder."""
    command = [sys.executable, '-m', 'pip', 'install', '--quiet', '--no-deps', '--upgrade', '--target', str(folder)]
    subprocess.run([*command, '-r', str(REQUIREMENTS)], check=True)


def told(row: Row) -> str:
    """A row in one line."""
    ratio = ratio_of(row)
    times = '' if ratio is None else f'x{ratio:.2f}'
    way = f'{row["state"]:9} {row["launches"]} launches {times}' if 'state' in row else times
    why = ' '.join(filter(None, (row.get('text'), row.get('reason'), row.get('untimed'))))
    return f'{row["package"]}.{row["program"]:32} {row["outcome"]:8} {way:28} {why[:200]}'.rstrip()


def ratio_of(row: Row) -> float | None:
    """The time of a graphed call in parts of an eager one."""
    return row['other_us'] / row['eager_us'] if row.get('eager_us') else None


def summary(rows: list[Row]) -> Iterator[str]:
    """How many are right, how many run in which way, and why some stay eager."""
    outcomes = Counter(row['outcome'] for row in rows)
    right = sum(outcomes[name] for name in RIGHT)
    ran = len(rows) - outcomes[FAILS]
    yield f'{len(rows)} programs: {outcomes[FAILS]} do not run here; of the other {ran} {right} are right'
    yield ', '.join(f'{count} {outcome}' for outcome, count in outcomes.most_common())
    states = Counter(row['state'] for row in rows if 'state' in row)
    if states:
        yield ', '.join(f'{count} {state}' for state, count in states.most_common())
    ratios = [ratio for row in rows if (ratio := ratio_of(row)) is not None]
    yield f'{len(ratios)} were timed; {sum(ratio > AT_MOST for ratio in ratios)} take more than {AT_MOST} times as long'
    reasons = Counter(row['reason'] for row in rows if row.get('reason'))
    yield from (f'{count:4} {reason}' for reason, count in reasons.most_common())


def results(families: list[Family], tell: Callable[[str], None]) -> dict[str, Any]:
    """Run everything; return the machine and the rows."""
    rows: list[Row] = []
    for family in families:
        left = set(family.names)
        try:
            for row in family.rows():
                rows.append(row)
                left.remove(row['program'])
                tell(f'[{len(rows)}] {told(row)}')
        except RuntimeError as error:
            died = {'package': family.package, 'outcome': DIED, 'text': str(error)}
            rows += [{**died, 'program': name} for name in family.names if name in left]
            tell(str(error))
    return {'machine': {name: value for family in families for name, value in family.machine.items()}, 'rows': rows}


def write(path: Path, rows: list[Row]) -> None:
    """Write the results as CSV, without the folders of this machine."""
    columns = ('package', 'program', 'outcome', 'state', 'launches', 'ratio', 'reason')
    with path.open('w', newline='') as file:
        writer = csv.DictWriter(file, columns, restval='', extrasaction='ignore', lineterminator='\n')
        writer.writeheader()
        for row in rows:
            ratio = ratio_of(row)
            reason = re.sub(r'(?:/[\w.+-]+)+/(?=[\w.-]+)', '', ' '.join((row.get('reason') or row['text']).split()))
            writer.writerow({**row, 'ratio': '' if ratio is None else f'{ratio:.2f}', 'reason': reason[:300]})


def main() -> int:
    parser = argparse.ArgumentParser(prog='python -m tests.packages', description=(__doc__ or '').partition('\n')[0])
    parser.add_argument('--install', type=Path, metavar='DIR', help='install requirements.txt into DIR and use it')
    parser.add_argument('--only', nargs='+', metavar='PACKAGE', help='only the programs of these packages')
    parser.add_argument('--csv', type=Path, metavar='FILE', help='where the results go')
    parser.add_argument('--numpy', action='store_true', help='run plainly with NumPy in the place of CuPy')
    parser.add_argument('--launched', action='store_true', help='launch also what is faster when it runs eagerly')
    given = parser.parse_args()
    programs = load()
    if unknown := set(given.only or ()) - programs.keys():
        parser.error(f'no programs of {", ".join(sorted(unknown))}; there are {", ".join(programs)}')
    if given.install:
        install(given.install)
    path = str(given.install.resolve()) if given.install else ''
    if given.launched:
        os.environ[ALWAYS] = '1'
    library = 'numpy' if given.numpy else 'cupy'
    families = [
        Family(package, [one.name for one in programs[package]], library, path, 120, {})
        for package in given.only or programs
    ]
    found = results(families, lambda text: print(text, flush=True))
    if given.csv:
        write(given.csv, found['rows'])
    print(', '.join(f'{name} {version}' for name, version in found['machine'].items()))
    print('\n'.join(summary(found['rows'])))
    return int(any(row['outcome'] not in (*RIGHT, FAILS, UNSTEADY) for row in found['rows']))


if __name__ == '__main__':
    sys.exit(main())

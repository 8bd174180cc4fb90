"""All programs, those of each package in a process of their own: ``python -m tests.packages``."""

from __future__ import annotations

import argparse
import csv
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.packages.judge import FAILS, UNSTEADY, Judging, Row
from tests.packages.registry import load

REQUIREMENTS = Path(__file__).with_name('requirements.txt')
RIGHT = ('equal', 'near')
#: How many times as long as an eager call a graphed one may take, after some calls.
AT_MOST = 1.05


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
        sys.path.insert(0, str(given.install.resolve()))
    found: list[Row] = []
    about: dict[str, str] = {}
    for package in given.only or programs:
        judging = Judging(package, 'numpy' if given.numpy else 'cupy', always=given.launched)
        for row in judging.rows([one.name for one in programs[package]]):
            found.append(row)
            about |= row.pop('machine', {})
            print(f'[{len(found)}] {told(row)}', flush=True)
    if given.csv:
        write(given.csv, found)
    print(', '.join(f'{name} {version}' for name, version in about.items()))
    print('\n'.join(summary(found)))
    return int(any(row['outcome'] not in (*RIGHT, FAILS, UNSTEADY) for row in found))


if __name__ == '__main__':
    sys.exit(main())

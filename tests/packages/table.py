"""A page in Markdown of what a run has found: ``python -m tests.packages.table FILE.json``."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from capturekit.model.counted import counted
from tests.packages.judge import FAILS, Row
from tests.packages.run import RIGHT, ratio_of

#: What the column *right* says.
WORDS = {
    'equal': 'yes, bit by bit',
    'near': 'yes, but for rounding',
    'wrong': '**no**',
    'unsteady': 'not told: two eager runs differ',
    'died': '**the process ended**',
}
INTRODUCTION = """\
# Programs on public packages

{count} programs, as users of these packages would write them, were run twice: eagerly, and with `@ck.graphed`. Each had
6 calls with fresh arguments of the same shapes and equal seeds. Results, arguments and the state that a program keeps
were compared after each call: equal bits, or for floating-point numbers a difference of at most 1e-9 (float64) or 1e-4
(float32) of the largest in the array. Launches are counted in these 6 calls. The times are medians of 20 calls more, so
that the price of the first calls is not in them, but that of runs which are still watched is. Some programs are
recorded and never launched: each of these calls reads other values on the host than the recording, so it runs eagerly.
The programs are in `tests/packages`; this page is made by `python -m tests.packages --json FILE` and
`python -m tests.packages.table FILE`.
"""


def cell(text: str) -> str:
    """A text that can stand in a cell of a table, without the folders of this machine."""
    return re.sub(r'(?:/[\w.+-]+)+/(?=[\w.-]+)', '', ' '.join(text.split())).replace('|', '\\|')[:300]


def of_machine(machine: dict[str, str], packages: list[str]) -> Iterator[str]:
    """The line of the machine, and the versions of the packages."""
    known = [machine[key] if key == 'gpu' else f'{key} {machine[key]}' for key in machine if key not in packages]
    yield f'Run on: {", ".join(sorted(known))}.'
    yield ''
    yield f'Packages: {", ".join(f"{name} {machine[name]}" for name in packages if name in machine)}.'


def in_numbers(rows: list[Row], packages: list[str]) -> Iterator[str]:
    """A line for each package, and one for all: how many programs run in which way."""
    yield '| package | programs | right | recorded | in pieces | recorded, never launched | eager | not recorded yet |'
    yield '| --- |' + ' ---: |' * 7
    for package in [*packages, '']:
        mine = [row for row in rows if package in (row['package'], '') and row['outcome'] != FAILS]
        right = sum(row['outcome'] in RIGHT for row in mine)
        ways = [(str(row.get('state')), bool(row.get('launches'))) for row in mine]
        numbers = [ways.count(('recorded', True)), ways.count(('pieces', True))]
        numbers.append(ways.count(('recorded', False)) + ways.count(('pieces', False)))
        numbers += [sum(state == one for one, _ in ways) for state in ('eager', 'rehearsed')]
        yield f'| {package or "all"} | {len(mine)} | {right} | {" | ".join(map(str, numbers))} |'


def in_short(rows: list[Row]) -> Iterator[str]:
    """What the calls of programs that are launched take, in the geometric mean."""
    ratios = [ratio for row in rows if row.get('launches') and (ratio := ratio_of(row)) is not None]
    if ratios:
        slower = sum(ratio > 1 for ratio in ratios)
        some = f'{counted(len(ratios), "program")}, of which {slower} take longer'
        mean = f'{geometric_mean(ratios):.2f} of the eager time, in the geometric mean'
        yield f'\nA call of what is launched ({some}) takes {mean}.'


def way(row: Row) -> str:
    """How a program runs."""
    state = str(row.get('state', ''))
    return {'pieces': 'in pieces', 'rehearsed': 'not recorded yet'}.get(state, state)


def of_package(package: str, rows: list[Row]) -> Iterator[str]:
    """The table of one package."""
    yield f'\n## {package}\n'
    yield '| program | | right | how it runs | launches | graphed/eager time |'
    yield '| --- | --- | --- | --- | ---: | ---: |'
    for row in rows:
        ratio = ratio_of(row)
        cells = [f'`{row["program"]}`', cell(row.get('about', '')), WORDS[row['outcome']], way(row)]
        cells += [str(row.get('launches', '')), '' if ratio is None else f'{ratio:.2f}']
        yield f'| {" | ".join(cells)} |'


def reasons(rows: list[Row]) -> Iterator[str]:
    """Why programs are not launched, with those that it is true of."""
    found: dict[str, list[str]] = {}
    for row in rows:
        if row.get('reason'):
            found.setdefault(cell(row['reason']), []).append(f'{row["package"]}: `{row["program"]}`')
    if found:
        yield '\n## What is not launched, and why\n'
        yield '| because | programs | |\n| --- | ---: | --- |'
        for reason, names in sorted(found.items(), key=lambda item: -len(item[1])):
            yield f'| {reason} | {len(names)} | {", ".join(names)} |'


def told_in_full(title: str, rows: list[Row]) -> Iterator[str]:
    """What programs say that are not simply right."""
    if rows:
        yield f'\n## {title}\n'
        yield '| program | |\n| --- | --- |'
        yield from (f'| {row["package"]}: `{row["program"]}` | {cell(row["text"])} |' for row in rows)


def page(found: dict[str, Any]) -> str:
    """The whole page."""
    rows: list[Row] = found['rows']
    packages = list(dict.fromkeys(row['package'] for row in rows))
    ran = [row for row in rows if row['outcome'] != FAILS]
    parts = [INTRODUCTION.format(count=len(ran)), *of_machine(found['machine'], packages), '']
    parts += [*in_numbers(rows, packages), *in_short(ran)]
    for package in packages:
        mine = [row for row in ran if row['package'] == package]
        parts += of_package(package, mine) if mine else ()
    parts += reasons(ran)
    parts += told_in_full('What is not right', [row for row in ran if row['outcome'] not in RIGHT])
    parts += told_in_full('What differs by rounding', [row for row in ran if row['outcome'] == 'near'])
    parts += told_in_full('What does not run on this machine', [row for row in rows if row['outcome'] == FAILS])
    return '\n'.join(parts) + '\n'


def main() -> None:
    sys.stdout.write(page(json.loads(Path(sys.argv[1]).read_text())))


if __name__ == '__main__':
    main()

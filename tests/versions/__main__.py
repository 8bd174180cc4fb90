"""Make the environments, look at each, and write tests/data/versions.json and docs/evidence/versions.md."""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from pathlib import Path
from typing import Any

from tests.versions.matrix import (
    INSIDE,
    OUTSIDE,
    PYTHONS,
    NoPython,
    look_inside,
    look_outside,
    look_suite,
    suite_here,
    tell,
)
from tests.versions.probe import ROOT, why_not
from tests.versions.table import DATA, PAGE, load, page, wrong


def main() -> int:
    parser = argparse.ArgumentParser(prog='python -m tests.versions', description=__doc__)
    parser.add_argument('--home', type=Path, default=ROOT / 'build' / 'versions', help='where environments are made')
    parser.add_argument('--page', action='store_true', help='only make the page again, of what was found before')
    parser.add_argument('--suite', action='store_true', help='only run the whole suite, here, and print what it counts')
    given = parser.parse_args()
    if given.suite:
        print(json.dumps(suite_here()))
        return 0
    if not given.page:
        if 'driver' in (reason := why_not()):
            tell(reason)
            return 1
        found = look(given.home, load())
        DATA.write_text(json.dumps(found, indent=1) + '\n')
    PAGE.write_text(page(load()))
    tell(f'{DATA.relative_to(ROOT)} and {PAGE.relative_to(ROOT)} are written')
    return 0


def look(home: Path, before: dict[str, Any]) -> dict[str, Any]:
    """All that can be looked at on this machine. Of a Python that is not here, what was found ``before`` stays."""
    home.mkdir(parents=True, exist_ok=True)
    rows, outside, suites = [], [], []
    for number, wanted in enumerate(INSIDE, 1):
        tell(f'[{number}/{len(INSIDE) + len(OUTSIDE)}] {wanted}')
        try:
            row = look_inside(wanted, home)
        except NoPython as error:
            tell(f'    {error}: the row stays as it was')
            rows.append(before['rows'][number - 1])
            continue
        tell(f'    {", ".join(row["environment"].values())}: {row["tests"]["passed"]} tests passed')
        for what in wrong(row):
            tell(f'    {what}')
        rows.append(row)
    for number, wanted in enumerate(OUTSIDE, len(INSIDE) + 1):
        tell(f'[{number}/{len(INSIDE) + len(OUTSIDE)}] {wanted}')
        try:
            outside.append(look_outside(wanted, home))
        except NoPython as error:
            tell(f'    {error}: the row stays as it was')
            outside.append(before['outside'][number - len(INSIDE) - 1])
        tell(f'    {outside[-1]["says"]}')
    for python in PYTHONS:
        tell(f'the whole suite with Python {python}')
        try:
            suites.append(look_suite(python, home))
        except NoPython as error:
            tell(f'    {error}: the count stays as it was')
            suites += [one for one in before['suites'] if one['python'].startswith(f'{python}.')]
    return {'made': datetime.date.today().isoformat(), 'rows': rows, 'outside': outside, 'suites': suites}


if __name__ == '__main__':
    sys.exit(main())

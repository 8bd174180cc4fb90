"""Make the environments, look at each, and write tests/data/versions.json and docs/versions.md."""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from pathlib import Path

from tests.versions.matrix import INSIDE, OUTSIDE, NoPython, look_inside, look_outside, tell
from tests.versions.probe import ROOT, why_not
from tests.versions.table import DATA, PAGE, load, page, wrong


def main() -> int:
    parser = argparse.ArgumentParser(prog='python -m tests.versions', description=__doc__)
    parser.add_argument('--home', type=Path, default=ROOT / 'build' / 'versions', help='where environments are made')
    parser.add_argument('--page', action='store_true', help='only make the page again, of what was found before')
    given = parser.parse_args()
    if not given.page:
        if 'driver' in (reason := why_not()):
            tell(reason)
            return 1
        try:
            found = look(given.home)
        except NoPython as error:
            tell(str(error))
            return 1
        DATA.write_text(json.dumps(found, indent=1) + '\n')
    PAGE.write_text(page(load()))
    tell(f'{DATA.relative_to(ROOT)} and {PAGE.relative_to(ROOT)} are written')
    return 0


def look(home: Path) -> dict[str, object]:
    home.mkdir(parents=True, exist_ok=True)
    rows, outside = [], []
    for number, wanted in enumerate(INSIDE, 1):
        tell(f'[{number}/{len(INSIDE) + len(OUTSIDE)}] {wanted}')
        row = look_inside(wanted, home)
        tell(f'    {", ".join(row["environment"].values())}: {row["tests"]["passed"]} tests passed')
        for what in wrong(row):
            tell(f'    {what}')
        rows.append(row)
    for number, wanted in enumerate(OUTSIDE, len(INSIDE) + 1):
        tell(f'[{number}/{len(INSIDE) + len(OUTSIDE)}] {wanted}')
        outside.append(look_outside(wanted, home))
        tell(f'    {outside[-1]["says"]}')
    return {'made': datetime.date.today().isoformat(), 'rows': rows, 'outside': outside}


if __name__ == '__main__':
    sys.exit(main())

"""What came of the runs: a file of results, the list of changes that change nothing, and the page made of both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / 'results.json'
EQUIVALENT = HERE / 'equivalent.json'
Entry = dict[str, Any]


def read(path: Path) -> Any:
    """What a file holds; nothing, where there is none yet."""
    return json.loads(path.read_text()) if path.exists() else {}


def write(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data, indent=1) + '\n')


def same(a: Entry, b: Entry) -> bool:
    """True where two entries are one change; lines may have moved."""
    return all(a[key] == b[key] for key in ('where', 'before', 'after'))


def reason(entry: Entry, listed: list[Entry]) -> str | None:
    """Why a change changes nothing, where that is known."""
    return next((e['reason'] for e in listed if same(e, entry)), None)


def page() -> str:
    """The page about the last run over each module."""
    results, listed = read(RESULTS), read(EQUIVALENT)
    return '\n'.join([_HEAD, *(_summary(m, r, listed.get(m, [])) for m, r in sorted(results.items()))]) + '\n'


_HEAD = """# Mutants

One thing at a time is changed in a module, and the tests that concern it are run: a change that no test notices
(*a survivor*) is a missing test, dead code, or no change in meaning at all. This page is made from the last runs by
`python -m tests.mutation --page > docs/evidence/mutants.md`; `python -m tests.mutation capturekit/model/ledger.py`
makes such a run. Texts for people (docstrings, what a rule says, messages of exceptions) are not changed. Survivors are
tried again, by `--again`, once tests were written for them or lines taken out; what the run had noticed is not.
"""


def _summary(module: str, result: Entry, listed: list[Entry]) -> str:
    known = [(entry, reason(entry, listed)) for entry in result['survived']]
    left = [entry for entry, why in known if why is None]
    lines = [
        f'## {module}',
        '',
        f'{result["date"]}, Python {result["python"]}; tests: {", ".join(f"`{t}`" for t in result["tests"])}.',
        '',
        f'{_tried(result)} Noticed {result["killed"]}, of these {result["timed_out"]} by the limit of time; '
        f'without a change in meaning {len(known) - len(left)}; surviving {len(left)}.',
        '',
    ]
    for title, entries in (('Without a change in meaning', [k for k in known if k[1]]), ('Surviving', known)):
        rows = [_line(entry, why) for entry, why in entries if bool(why) == (title != 'Surviving')]
        if rows:
            lines += [f'{title}:', '', *rows, '']
    return '\n'.join(lines)


def _tried(result: Entry) -> str:
    if result['tried'] == result['made']:
        return f'All {result["made"]} mutants were tried.'
    return (
        f'A sample: {result["tried"]} of {result["made"]} mutants were tried ({result["sampled"]}; seed '
        f'{result["seed"]}). The others may hide survivors.'
    )


def _line(entry: Entry, why: str | None) -> str:
    place = f' in `{entry["where"]}`' if entry['where'] else ''
    change = f'- `{entry["before"]}` to `{entry["after"] or "nothing"}`{place}'
    return f'{change}: {why}' if why else change

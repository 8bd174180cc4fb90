"""Ledgers: as files, as sums, and two of them compared by program."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from tests.ledger.outcomes import ABSENT, EAGER, LAUNCHED, PARTS

#: The ledger that the repository keeps.
KEPT = Path(__file__).with_name('ledger.json.gz')
_LAUNCHED = (LAUNCHED, PARTS)


@dataclass
class Ledger:
    """``about``: on what it was made. ``programs``: what became of the calls of each, by kind and name."""

    about: dict[str, str]
    programs: dict[str, list[str]]

    def of(self, kind: str) -> dict[str, list[str]]:
        """The programs of one kind that ran; of all for ''."""
        ran = {name: calls for name, calls in self.programs.items() if calls and not calls[0].startswith(ABSENT)}
        return {name: calls for name, calls in ran.items() if name.startswith(kind)}


def write(ledger: Ledger, path: Path) -> None:
    """Write a ledger, a line for each program; compressed if the name ends in ``.gz``."""
    lines = [
        f'{json.dumps(name)}: {json.dumps([[call, len(list(same))] for call, same in groupby(calls)])}'
        for name, calls in ledger.programs.items()
    ]
    text = f'{{"about": {json.dumps(ledger.about)}, "programs": {{\n' + ',\n'.join(lines) + '\n}}\n'
    path.write_bytes(gzip.compress(text.encode(), mtime=0) if path.suffix == '.gz' else text.encode())


def read(path: Path) -> Ledger:
    """Read what :func:`write` has written."""
    data = path.read_bytes()
    found = json.loads(gzip.decompress(data) if path.suffix == '.gz' else data)
    return Ledger(
        found['about'],
        {name: [call for call, n in calls for _ in range(n)] for name, calls in found['programs'].items()},
    )


def merged(old: Ledger, new: Ledger) -> Ledger:
    """The new ledger, with the old one's programs of other kinds."""
    kinds = {kind_of(name) for name in new.programs}
    return Ledger(new.about, {n: c for n, c in old.programs.items() if kind_of(n) not in kinds} | new.programs)


def kind_of(name: str) -> str:
    return name.partition('/')[0]


def launched(calls: list[str]) -> int:
    """How many of these calls a graph answered, in one or in parts."""
    return sum(call in _LAUNCHED for call in calls)


def why(calls: list[str]) -> str:
    """The last reason for which one of these calls ran eagerly, or why there are none, after a semicolon; or ''."""
    return next((f'; {call}' for call in reversed(calls) if call not in _LAUNCHED), '')


def sums(ledger: Ledger) -> Iterator[tuple[str, list[int]]]:
    """For each kind and for all: programs, those that ran, those launched, calls, launched, in parts, eager."""
    for kind in [*sorted({kind_of(name) + '/' for name in ledger.programs}), '']:
        ran = ledger.of(kind)
        calls = [call for every in ran.values() for call in every]
        counts = [sum(call.startswith(word) for call in calls) for word in (LAUNCHED, PARTS, EAGER)]
        programs = sum(name.startswith(kind) for name in ledger.programs)
        some = sum(launched(every) > 0 for every in ran.values())
        yield kind.rstrip('/') or 'all', [programs, len(ran), some, len(calls), *counts]


def reasons(ledger: Ledger) -> Counter[str]:
    """How many calls ran eagerly, by reason."""
    return Counter(call for calls in ledger.of('').values() for call in calls if call.startswith(EAGER))


def table(ledger: Ledger) -> str:
    """The sums, as a table of a page."""
    head = ['', 'programs', 'that run here', 'launched at least once', 'calls', 'launched', 'in parts', 'eager']
    rows = [[kind, *(f'{number:,}' for number in numbers)] for kind, numbers in sums(ledger)]
    return '\n'.join(f'| {" | ".join(row)} |' for row in (head, ['---', *['---:'] * 7], *rows)) + '\n'


def compared(old: Ledger, new: Ledger) -> tuple[list[str], bool]:
    """What differs, in lines, and whether fewer programs or fewer calls are launched, of the programs that ran both
    times."""
    before, now = old.of(''), new.of('')
    counts = {name: (launched(before[name]), launched(now[name])) for name in before if name in now}
    lines = [
        f'{key}: {old.about.get(key)} and {new.about[key]}' for key in new.about if old.about.get(key) != new.about[key]
    ]
    for title, names in (
        ('No longer launched', [name for name, (was, is_now) in counts.items() if was and not is_now]),
        ('Launched less often', [name for name, (was, is_now) in counts.items() if was > is_now > 0]),
        ('Launched now', [name for name, (was, is_now) in counts.items() if is_now and not was]),
        ('Launched more often', [name for name, (was, is_now) in counts.items() if is_now > was > 0]),
    ):
        lines += [f'{title}: {len(names)}'] * bool(names)
        lines += [f'  {n}: {counts[n][0]} and {counts[n][1]} of {len(now[n])} calls{why(now[n])}' for n in names]
    for title, some, others in (('Ran in the old one only', before, now), ('Ran in the new one only', now, before)):
        alone = [name for name in some if name not in others]
        lines += [f'{title}: {len(alone)}, as {alone[0]}{why(new.programs.get(alone[0], []))}'] if alone else []
    lines += [f'Old:\n{table(old)}New:\n{table(new)}']
    programs = sum(is_now > 0 for _, is_now in counts.values()) - sum(was > 0 for was, _ in counts.values())
    return lines, min(programs, sum(is_now - was for was, is_now in counts.values())) < 0

"""The figures of docs/evidence.md, made of the files that the commands there write. ``python -m tests.pages`` puts them
into the page."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from capturekit.model.versions import BINDINGS, CUPY
from tests.ledger.compare import KEPT, read, sums

TESTS = Path(__file__).parent
BENCHMARKS = TESTS / 'benchmarks' / 'results'
COVERAGE = TESTS / 'gpu' / 'coverage' / 'results.json'
CUPYS_TESTS = TESTS / 'gpu' / 'coverage' / 'cupys_tests.csv'
GUARDED = TESTS / 'gpu' / 'guarded' / 'results.csv'
PACKAGES = TESTS / 'packages' / 'results.csv'
PROGRAMS = TESTS / 'agreement' / 'runs.csv'
VERSIONS = TESTS / 'versions.json'

#: The ratios that the page shows, of all that were measured.
RATIOS = (
    'CuPy op, no capture open: capturekit imported / before the import',
    'recording 1,000 operations with new arrays: guard / bare begin_capture ... end_capture, per op',
    'recording 1,000 operations, a fork and a join every 10 of them: guard / bare begin_capture ... end_capture, '
    'per op',
    '10,000 nodes: capturekit / bare CuPy, per node',
    'graph.launch() / cupy.cuda.Graph.launch()',
    'graphed call, two arrays in, one out: host time / eager',
    'kmeans, per call: graphed / eager',
    'conjugate_gradient, per call: graphed / eager',
    'conjugate gradients, 256 x 256: decided on the device / on the host',
    'recording 1,000 operations in place: watched / not watched, per op',
    'CuPy op, no capture open: watched / not watched',
    'memory, operations on eight arrays: 20 variants of a graphed function / eager',
    'memory, image classifier: one graph / eager',
)
#: The columns of the table of peers, by their names in the results.
PEERS = {
    'eager': 'CuPy', 'graphed': '`@ck.graphed`', 'graphed, fused': '`fuse=True`', 'torch compile': 'torch.compile',
    'jax': 'jax.jit',
}  # fmt: skip


def latest(name: str) -> list[dict[str, Any]]:
    """The lines of the last committed run of a table of ``tests.benchmarks`` on an H100."""
    lines: list[dict[str, Any]] = json.loads(sorted(BENCHMARKS.glob(f'{name}h100_*.json'))[-1].read_text())['lines']
    return lines


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline='') as file:
        return list(csv.DictReader(file))


def number(value: float) -> str:
    return f'{value:,.0f}' if value >= 100 else f'{value:.3g}'


def costs() -> Iterator[str]:
    """Ratios of times and of memory."""
    lines = {line['name']: line for table in ('', 'watching_', 'memory_') for line in latest(table)}
    return (f'- {lines[name]["ratio"]:.2f}: {name}' for name in RATIOS)


def peers() -> Iterator[str]:
    """A row for each program: microseconds of a call in each library."""
    yield f'| microseconds | {" | ".join(PEERS.values())} |'
    yield f'| --- |{" ---: |" * len(PEERS)}'
    for line in latest('peers_'):
        title, _, way = line['name'].rpartition(': ')
        if way == 'eager':
            yield f'| {title} | {" | ".join(number(line["medians"][one]) for one in PEERS)} |'


def lanes() -> Iterator[str]:
    """What lanes that are found take, beside one lane and lanes by hand."""
    for other in ('one lane', 'by hand'):
        found = [line['ratio'] for line in latest('lanes_') if line['name'].endswith(f'found / {other}')]
        spread = f'{min(found):.2f} to {max(found):.2f}, at most 0.95 in {sum(ratio <= 0.95 for ratio in found)}'
        yield f'- found / {other}, of {len(found)} programs: {spread}'


def guarded() -> Iterator[str]:
    calls = rows(GUARDED)
    allowed = sum(row['outcome'] == 'allowed' for row in calls)
    good = sum((row['origin'], row['lane'], row['launched']) == ('Active', 'Active', 'yes') for row in calls)
    entries = len({row['entry'] for row in calls})
    yield f'- {entries} entry points, {len(calls)} calls: {allowed} let through, {len(calls) - allowed} refused'
    yield f'- the capture was good afterwards, and its graph gave the right numbers: {good}'


def coverage() -> Iterator[str]:
    """What came of each expression in each way to record it, in a process in which it had run before."""
    warm = [row for row in json.loads(COVERAGE.read_text())['rows'] if row['temperature'] == 'warm']
    for column in dict.fromkeys(row['column'] for row in warm):
        mine = [row for row in warm if row['column'] == column]
        outcomes = Counter(row['outcome'] for row in mine).most_common()
        ways = Counter(row['how'] for row in mine if column == 'graphed' and row['outcome'] == 'equal').most_common()
        told = ', '.join(f'{count} {name}' for name, count in outcomes)
        yield f'- {column}: {told}' + f' ({", ".join(f"{count} {way}" for way, count in ways)})' * bool(ways)


def cupys_tests() -> Iterator[str]:
    for column in ('graphed', 'pieces'):
        mine = [row for row in rows(CUPYS_TESTS) if row['column'] == column]
        found = {name: sum(int(row[name] or 0) for row in mine) for name in list(mine[0])[2:]}
        yield f'- {column}: {", ".join(f"{count:,} {name}" for name, count in found.items() if count)}'


def packages() -> Iterator[str]:
    """How many programs run in which way, and the mean time of those that are launched."""
    ran = [row for row in rows(PACKAGES) if row['outcome'] != 'fails']
    right = sum(row['outcome'] in ('equal', 'near') for row in ran)
    launched = [row for row in ran if row['launches'] not in ('', '0')]
    ways = Counter(row['state'] if row in launched else f'{row["state"]}, never launched' for row in ran)
    ratios = [float(row['ratio']) for row in launched if row['ratio']]
    yield f'- right: {right} of {len(ran)}'
    yield f'- how they run: {"; ".join(f"{count} {way}" for way, count in ways.most_common())}'
    mean = f'{geometric_mean(ratios):.2f} (geometric mean); {sum(ratio > 1 for ratio in ratios)} take longer'
    yield f'- graphed / eager, of the {len(ratios)} that are launched: {mean}'


def programs() -> Iterator[str]:
    """The random programs that were run, and how many came out different."""
    for gpu in (False, True):
        mine = [row for row in rows(PROGRAMS) if (row['device'] != 'simulated') == gpu]
        count, calls = (sum(int(row[name]) for row in mine) for name in ('programs', 'calls'))
        launched = sum(int(row['calls']) * int(row['launched, %']) for row in mine) / calls
        differ = sum(int(row['different']) for row in mine)
        where = 'on a GPU' if gpu else 'on the simulated device'
        yield f'- {where}: {count:,} programs, {calls:,} calls, {launched:.0f} % launched, {differ} different'


def versions() -> Iterator[str]:
    tried = json.loads(VERSIONS.read_text())
    for row in tried['suite']:
        on = f', on {row["date"]}' if 'date' in row else ''
        yield f'- Python {row["python"]}{on}: {row["passed"]:,} tests passed, {row["failed"]} failed'
    pairs, passed = len(tried['cupy']), sum(row['passed'] == row['of'] for row in tried['cupy'])
    yield f'- CuPy {CUPY}, cuda-bindings {BINDINGS}: all passed in {passed} of {pairs} environments'


def ledger() -> Iterator[str]:
    for kind, (_programs, ran, _some, _calls, launched, parts, eager) in sums(read(KEPT)):
        yield f'- {kind}, {ran:,} programs: {launched:,} calls launched, {parts:,} in parts, {eager:,} eager'


#: What the page has between its marks, by name.
PARTS: dict[str, Callable[[], Iterator[str]]] = {
    part.__name__: part
    for part in (costs, peers, lanes, guarded, coverage, cupys_tests, packages, programs, versions, ledger)
}

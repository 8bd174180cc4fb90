"""docs/evidence/versions.md, made of tests/data/versions.json alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.versions.probe import ROOT

DATA = ROOT / 'tests' / 'data' / 'versions.json'
PAGE = ROOT / 'docs' / 'evidence' / 'versions.md'
Row = dict[str, Any]


def load(path: Path = DATA) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def _of(there: int, wrong: int, note: str = '') -> str:
    return f'{there} of {there + wrong}{note}'


def _names(row: Row) -> str:
    names = row['names']
    lost = len(names['absent']) + len(names['missing'])
    return f'{names["there"]} + {names["written"]} of {names["there"] + names["written"] + lost}'


def _signatures(row: Row) -> str:
    found = row['signatures']
    return _of(found['agreeing'], len(found['wrong']))


def _tests(row: Row) -> str:
    tests = row['tests']
    return _of(tests['passed'], tests['failed'])


#: Head, what the column says, and its cell.
COLUMNS: tuple[tuple[str, str, Callable[[Row], str]], ...] = (
    (
        'names',
        'rows of the interception table that are in this CuPy: found by importing, and (after the +) found in the '
        "files of modules that load only where CUDA's libraries are installed",
        _names,
    ),
    (
        'replaced',
        'of those that can be imported, the names that were replaced and put back: the same objects, and nothing more',
        lambda row: _of(row['replaced']['count'], len(row['replaced']['wrong'])),
    ),
    (
        'signatures',
        "functions that tell their parameters: the guard takes every call that they take, by place and by CuPy's names",
        _signatures,
    ),
    (
        'used',
        "names of CuPy's that capturekit's own code spells out",
        lambda row: _of(row['used']['there'], len(row['used']['missing'])),
    ),
    (
        'seams',
        "things about CuPy's inside that capturekit rests on (listed below), each tried",
        lambda row: _of(sum(not why for why in row['seams'].values()), sum(bool(why) for why in row['seams'].values())),
    ),
    (
        'verbs',
        'verbs of the real device whose calls cuda-bindings takes, and which find in its answers (made up, of the '
        'documented form) what they look for',
        lambda row: _of(row['verbs']['reached'], len(row['verbs']['wrong'])),
    ),
    (
        'tests',
        'of the tests, those that rest on the versions: what is held against the installed CuPy, the contract of the '
        'simulated device, what is said of versions',
        _tests,
    ),
)


def page(data: dict[str, Any]) -> str:
    """The whole page."""
    return '\n'.join(
        [
            *_head(data),
            *_suites(data['suites']),
            *_table(data['rows']),
            *_columns(),
            *_differences(data),
            *_rest(data),
            '',
        ]
    )


def _head(data: dict[str, Any]) -> Iterator[str]:
    from capturekit.model.versions import BINDINGS, CUPY, PYTHON

    yield '# Versions'
    yield ''
    yield f'capturekit works with Python {PYTHON}, CuPy {CUPY} and cuda-bindings {BINDINGS}.'
    yield f'What holds for which versions, as it was found on {data["made"]}, each row in an environment of its own:'
    yield '`python -m tests.versions` makes them, and this page. No GPU and no driver is needed, and none was there.'
    yield ''


def _suites(suites: list[dict[str, Any]]) -> Iterator[str]:
    """The whole suite, by each Python."""
    yield "The whole suite, in a bare environment of each Python: `pip install '.[test]'`, no CuPy, no GPU."
    yield 'What is skipped needs a GPU, a real CuPy or a newer Python, and says so (`pytest -rs`).'
    yield ''
    yield '| Python | passed | failed | skipped |'
    yield '| --- | --- | --- | --- |'
    for one in suites:
        yield f'| {one["python"]} | {one["passed"]} | {one["failed"]} | {one["skipped"]} |'
    yield from ('', '## With CuPy', '')
    yield 'Of these environments each has the CuPy and the cuda-bindings that its row names.'
    yield ''


def _table(rows: list[Row]) -> Iterator[str]:
    heads = ['Python', 'CuPy', 'cuda-bindings', 'NumPy', *(head for head, _says, _cell in COLUMNS)]
    yield f'| {" | ".join(heads)} |'
    yield f'| {" | ".join(["---"] * len(heads))} |'
    for row in rows:
        cells = [*row['environment'].values(), *(cell(row) for _head, _says, cell in COLUMNS)]
        yield f'| {" | ".join(cells)} |'
    yield ''


def _columns() -> Iterator[str]:
    for head, says, _cell in COLUMNS:
        yield f'- **{head}**: {says}.'
    yield ''


def _differences(data: dict[str, Any]) -> Iterator[str]:
    """What does not hold somewhere, and where."""
    yield '## What is not the same everywhere'
    yield ''
    found: dict[str, list[str]] = {}
    for row in data['rows']:
        for what in wrong(row):
            found.setdefault(what, []).append(_short(row))
    yield from (f'- {what}: {"; ".join(where)}.' for what, where in found.items())
    if not found:
        yield 'Nothing.'
    yield ''


def wrong(row: Row) -> list[str]:
    """What does not hold in an environment, each in a few words."""
    return [
        *(f'CuPy has no `{name}`, which is then not listened to' for name in row['names']['absent']),
        *(f'CuPy has no `{name}`, which capturekit needs' for name in row['names']['missing']),
        *(f'`{name}` can not be replaced and put back' for name in row['replaced']['wrong']),
        *(f'`{name}` is called otherwise: {why}' for name, why in row['signatures']['wrong'].items()),
        *(f'CuPy has no `{name}`, which capturekit uses' for name in row['used']['missing']),
        *(f'not so: {seam}: {why}' for seam, why in row['seams'].items() if why),
        *(f'`{name}` of the device fails: {why}' for name, why in row['verbs']['wrong'].items()),
        *(f'a test fails: `{name}`' for name in row['tests']['failures']),
    ]


def _short(row: Row) -> str:
    found = row['environment']
    return f'{found["cupy"]} with Python {found["python"]}'


def _rest(data: dict[str, Any]) -> Iterator[str]:
    newest = data['rows'][-1]
    skipped = ' or '.join(map(str, sorted({row['tests']['skipped'] for row in data['rows']})))
    driver = ', '.join(f'`{name}`' for name in newest['verbs']['driver'])
    untold = ', '.join(f'`{name}`' for name in newest['signatures']['untold'])
    yield 'The simulated CuPy is 14.2. In what 14.0 and 14.1 differ from it, tests/simulated/test_signatures.py lists.'
    yield from ('', '## The seams', '')
    yield from (f'- {seam}' for seam in newest['seams'])
    yield from ('', '## Not tested here', '')
    yield '- What any of it does on a GPU. Tests run on one with Python 3.12, CuPy 14.2.0 and cuda-bindings 13.3.1.'
    yield f'- Tests that need a GPU: {skipped} in the files whose tests are counted above.'
    yield "- The driver's functions that are called by ctypes: without a driver there is nothing to look them up in."
    yield f'  The verbs that need them are {driver}.'
    yield "- Pointers in the modules for cuBLAS, cuSOLVER, cuRAND and cuSPARSE: they load only with CUDA's libraries."
    yield f'- Parameters of what tells none: {untold}. They are properties.'
    yield from ('', '## Outside the table', '')
    yield 'An older version is refused: Python at `import capturekit`, the others where a capture first needs them.'
    yield 'A newer one is let through, and `capturekit doctor` notes it; where it lacks a name that the guard has to'
    yield 'listen to, entering a capture says so. What is said:'
    yield from ('', '| environment | what it says |', '| --- | --- |')
    yield from (f'| {one["wanted"]} | `{one["says"]}` |' for one in data['outside'])

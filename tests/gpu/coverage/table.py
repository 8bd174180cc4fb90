"""The page docs/evidence/coverage.md from the results of a run: ``python -m tests.gpu.coverage.table FILE.json``."""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.gpu.coverage import cases

Row = dict[str, Any]
ALL = {**cases.GIVEN, **cases.MORE}
OUTCOMES = ('equal', 'refused', 'other error', 'lost', 'wrong', 'died', 'eager failed')
COLUMNS = {
    'bare': "CuPy's own `begin_capture` and `end_capture`, with a memory pool of its own; capturekit is not imported",
    'strict': '`with ck.capture() as cap:`, launched twice',
    'rehearsed': '`with ck.capture(rehearsal=ck.rehearse(fn)) as cap:`, launched twice',
    'pieces': '`with ck.capture(rehearsal=ck.rehearse(fn), pieces=True) as cap:`, launched twice',
    'graphed': '`ck.graphed(fn)`, called four times',
}
MEANINGS = {
    'equal': 'every launch or call gave what the eager run gives',
    'refused': 'capturekit raised a `CaptureError`, and afterwards a small capture worked',
    'other error': 'another exception came out of the block, most of them from CuPy itself',
    'lost': 'the driver invalidated the capture',
    'wrong': 'a launch gave other values, or failed',
    'died': 'the process ended, or took too long',
    'eager failed': 'the expression does not run on this machine, captured or not',
}
INTRODUCTION = """\
# Existing CuPy code, captured unchanged

{given} given expressions and {more} more over CuPy's and cupyx's public functions were recorded as they stand.
Each ran in a process of its own: *warm*, after it has run eagerly, and *cold*, when nothing of it has run in the
process. Every answer is compared with the eager one, and freed memory is written over between launches. For random
numbers only shapes and dtypes are compared, and whether two launches draw different ones. The expressions are in
`tests/gpu/coverage/cases.py`; `python -m tests.gpu.coverage.run` and `python -m tests.gpu.coverage.table` make this
page.
"""


def cell(text: str) -> str:
    """A text that can stand in a cell of a table."""
    return ' '.join(text.split()).replace('|', '\\|')


def code(text: str) -> str:
    return f'`{cell(text)}`'


def function_of(expression: str) -> str:
    """The function that a case is about: the outermost call with its module's full name, else the expression."""
    node: ast.AST = ast.parse(expression, mode='eval').body
    while isinstance(node, (ast.Subscript, ast.BinOp)):
        node = node.value if isinstance(node, ast.Subscript) else node.left
    if not isinstance(node, ast.Call):
        return expression
    called = ast.unparse(node.func)
    first, dot, rest = called.partition('.')
    if first in cases.MODULES:
        return f'{cases.MODULES[first]}.{rest}' if dot else called
    return f'.{node.func.attr}()' if isinstance(node.func, ast.Attribute) and len(called) > 30 else f'{called}()'


def plain(text: str) -> str:
    """A reason without what differs from run to run: places, addresses and the longer explanations after them."""
    text = re.sub(r',? at [^\s,:]+:\d+( in [\w.<>]+)?', '', text)
    return cell(re.sub(r' \(stream 0x[0-9a-f]+(, [^)]*)?\)|\b0x[0-9a-f]+', '', text))[:500]


def reason_of(row: Row) -> str:
    """Why a run is not equal, in one line."""
    text = row.get('text', '')
    if row['outcome'] == 'refused':
        told = text.split('\n')
        return plain(told[0] if len(told) < 2 else f'{row.get("operation") or told[0]}: {told[1]}')
    if row['outcome'] == 'died':
        return plain(row['error'])
    return plain(' '.join(part for part in (f'{row["error"]}:' if row.get('error') else '', text) if part))[:200]


def why_eager(row: Row) -> str:
    """Why calls of a graphed case ran eagerly, in one line."""
    reasons = [plain(variant['reason']) for variant in row.get('variants', []) if variant['reason']]
    return '; '.join(dict.fromkeys(reasons)) or 'each call reads other values on the host than the recordings'


def seams_of(row: Row) -> str:
    """The calls that a graphed case makes between its pieces."""
    seams = [seam for variant in row.get('variants', []) for seam in variant['seams']]
    return ', '.join(dict.fromkeys(plain(seam.partition(':')[0]) for seam in seams)) or 'not told'


def counts(rows: list[Row]) -> Iterator[str]:
    """The numbers of outcomes, column by column."""
    for title, part in (('given', cases.GIVEN), ('more', cases.MORE)):
        yield f'\n## The {len(part)} {title} expressions\n'
        mine = [row for row in rows if row['label'] in part]
        yield '| column | | ' + ' | '.join(OUTCOMES) + ' |'
        yield '| --- | --- |' + ' ---: |' * len(OUTCOMES)
        for column in COLUMNS:
            for temperature in ('warm', 'cold'):
                found = [row for row in mine if row['column'] == column and row['temperature'] == temperature]
                numbers = Counter(row['outcome'] for row in found)
                if found:
                    yield f'| {column} | {temperature} | ' + ' | '.join(str(numbers[o]) for o in OUTCOMES) + ' |'
        graphed = [row for row in mine if row['column'] == 'graphed' and row['outcome'] == 'equal']
        for temperature in ('warm', 'cold'):
            ways = Counter(row['how'] for row in graphed if row['temperature'] == temperature)
            if ways:
                told = f'{ways["recorded"]} as one graph, {ways["pieces"]} in pieces, {ways["eager"]} eagerly'
                yield f'\nOf the graphed ones that are equal, {temperature}: {told}.'


def by_case(rows: Iterable[Row], tell: Callable[[Row], str]) -> Iterator[str]:
    """Lines of a table: function, expression, temperatures, and what ``tell`` says; like rows are put together."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        expression = ALL[row['label']]
        found.setdefault((function_of(expression), expression, tell(row)), []).append(row['temperature'])
    for (function, expression, text), temperatures in sorted(found.items()):
        when = ' and '.join(t for t in ('warm', 'cold') if t in temperatures)
        yield f'| {code(function)} | {code(expression)} | {when} | {text} |'


def section(title: str, rows: list[Row], tell: Callable[[Row], str], last: str) -> Iterator[str]:
    if rows:
        yield f'\n{title}\n'
        yield f'| function | expression | | {last} |\n| --- | --- | --- | --- |'
        yield from by_case(rows, tell)


def refusals(rows: list[Row]) -> Iterator[str]:
    """What is refused, by exception and reason, with the functions of each."""
    yield '\n## What is refused'
    refused = [row for row in rows if row['outcome'] == 'refused']
    if not refused:
        yield '\nNothing.'
    for column in COLUMNS:
        mine = [row for row in refused if row['column'] == column]
        yield from section(f'### {column}', mine, lambda row: f'{row["error"]}: {reason_of(row)}', 'refused with')


def page(results: dict[str, Any]) -> str:
    """The whole page."""
    machine, rows = results['machine'], [row for row in results['rows'] if row['label'] in ALL]
    known = [f'{machine[key]}' if key == 'gpu' else f'{key} {machine[key]}' for key in machine if machine[key]]
    parts = [INTRODUCTION.format(given=len(cases.GIVEN), more=len(cases.MORE))]
    parts += [f'Run on: {", ".join(sorted(known))}.\n'] if known else []
    tried = {row['column'] for row in rows}
    parts += [f'- *{name}*: {text}' for name, text in COLUMNS.items() if name in tried]
    parts += ['']
    parts += [f'- *{name}*: {text}' for name, text in MEANINGS.items()]
    parts += counts(rows)
    parts += refusals(rows)
    graphed = [row for row in rows if row['column'] == 'graphed' and row['outcome'] == 'equal']
    eager, pieces = ([row for row in graphed if row['how'] == how] for how in ('eager', 'pieces'))
    parts += section('## What `ck.graphed` runs eagerly', eager, why_eager, 'because')
    parts += section('## What `ck.graphed` runs in pieces', pieces, seams_of, 'between the pieces')
    for outcome in ('wrong', 'lost', 'died', 'other error'):
        mine = [row for row in rows if row['outcome'] == outcome and row['column'] != 'bare']
        told = section(f'## With capturekit: {outcome}', mine, lambda row: f'{row["column"]}: {reason_of(row)}', 'how')
        parts += told
    failed = {row['label']: row for row in rows if row['outcome'] == 'eager failed'}
    if failed:
        parts += ['\n## What does not run on this machine\n', '| expression | because |\n| --- | --- |']
        parts += [f'| {code(ALL[label])} | {reason_of(failed[label])} |' for label in sorted(failed)]
    return '\n'.join(parts) + '\n'


def main() -> None:
    sys.stdout.write(page(json.loads(Path(sys.argv[1]).read_text())))


if __name__ == '__main__':
    main()

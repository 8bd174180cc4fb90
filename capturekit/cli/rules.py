"""``capturekit rules``: what CUDA answers to each kind of call while a stream is being captured, as a table."""

from __future__ import annotations

import argparse
import itertools
import json
import re
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

from capturekit.cli.explain import Case, cases, end_after, status_after
from capturekit.model.rules import RULES, Answer, Code, Effect, Mode, Operation

_WIDTH = 100
_TARGET = 37
_ORIGINS = {False: 'non-blocking', True: 'blocking'}
_SHORT = ['nonblk', 'blk']
_DESCRIPTION = """\
Show what CUDA answers to each kind of call while a stream is being captured, by the capture's mode and beside a
non-blocking or a blocking origin, and the rule by which capturekit refuses it (see `explain RULE`).
"""
_LOST = Answer(Code.cudaErrorStreamCaptureUnsupported, Effect.INVALIDATES)
_LEGEND = """\
ok      allowed                           rec  recorded as a node of the graph
905!    refused, the capture is lost: its status is Invalidated, ending it gives {end}
908.    refused, the capture is over      401  refused, the capture goes on
runs    no error: runs at once and is missing from the graph      ends  ends the capture
"""


def add(commands: Any) -> None:
    """Add ``rules`` to the commands."""
    told = 'show what CUDA allows during a capture, as a table'
    parser = commands.add_parser('rules', help=told, description=_DESCRIPTION)
    parser.add_argument('--mode', choices=[mode.name.lower() for mode in Mode], help='show only this mode, in words')
    entries = 'print JSON: a list with an entry for each call and situation'
    parser.add_argument('--json', action='store_true', help=entries)
    parser.set_defaults(go=_go)


def _go(given: argparse.Namespace) -> int:
    modes = list(Mode) if given.mode is None else [Mode[given.mode.upper()]]
    if given.json:
        print(json.dumps(list(_entries(modes)), indent=1))
    else:
        print('\n'.join(table_of(modes)))
    return 0


def _entries(modes: list[Mode]) -> Iterator[dict[str, Any]]:
    for case, mode, (blocking, origin) in itertools.product(cases(), modes, _ORIGINS.items()):
        answer = case.pattern(mode, blocking)
        rule = RULES.get(case.rule)
        for call in case.calls:
            yield {
                'call': call,
                'operation': case.operation.value,
                'target': case.target,
                'mode': mode.name.lower(),
                'origin': origin,
                'refused': answer.refused,
                'code': int(answer.code),
                'name': answer.code.name,
                'effect': answer.effect.value,
                'status_after': status_after(answer).name.capitalize(),
                'end_capture': end_after(answer).name,
                'rule': case.rule,
                'raises': '' if rule is None else rule.error.__name__,
            }


def table_of(modes: list[Mode]) -> Iterator[str]:
    long = len(modes) == 1
    width = 20 if long else 7
    if not long:
        yield from _LEGEND.format(end=int(end_after(_LOST))).splitlines()
        yield ''
        yield _line('', [mode.name.lower() for mode in modes], '', 2 * width)
    yield _line('', [*_ORIGINS.values()] if long else _SHORT * len(modes), 'rule', width)
    for operation, group in itertools.groupby(cases(), key=lambda case: case.operation):
        rows = list(group)
        yield _heading(operation, rows)
        for case in rows:
            answers = [case.pattern(mode, blocking) for mode in modes for blocking in _ORIGINS]
            told = case.rule if any(answer.refused or answer.effect is Effect.ESCAPES for answer in answers) else ''
            yield _line(f'  {case.target}', [(_words if long else _mark)(answer) for answer in answers], told, width)


def _line(target: str, cells: Iterable[str], rule: str, width: int) -> str:
    return f'{target:<{_TARGET}}{"".join(f"{cell:<{width}}" for cell in cells)}{rule}'.rstrip()


def _heading(operation: Operation, rows: list[Case]) -> str:
    """The operation, and the calls that it stands for where these have other names."""
    calls = list(dict.fromkeys(re.split(r'[ (,]', call)[0] for case in rows for call in case.calls))
    if operation.value in calls:
        return operation.value
    return textwrap.fill(f'{operation.value}: {", ".join(calls)}', _WIDTH, subsequent_indent='    ')


def _mark(answer: Answer) -> str:
    """An answer in five characters."""
    if answer.refused:
        return f'{answer.code.value}{ {Effect.INVALIDATES: "!", Effect.ENDS: "."}.get(answer.effect, "") }'
    return {Effect.RECORDED: 'rec', Effect.ESCAPES: 'runs', Effect.ENDS: 'ends'}.get(answer.effect, 'ok')


def _words(answer: Answer) -> str:
    if answer.refused:
        return f'{answer.code.value}, {status_after(answer).name.capitalize()}'
    words = {Effect.RECORDED: 'recorded', Effect.ESCAPES: 'runs, not recorded', Effect.ENDS: 'ends the capture'}
    return words.get(answer.effect, 'allowed')

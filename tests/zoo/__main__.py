"""``python -m tests.zoo > docs/evidence/zoo.md``: the zoo as a table, with messages of the simulated device."""

from __future__ import annotations

import sys
from typing import Any

import capturekit as ck
from capturekit.model.progress import each
from capturekit.simulated import SimulatedDevice, install, uninstall
from tests.zoo.cases import FAMILIES, HERE, INSTEAD, Case, all_cases, family_does, marked
from tests.zoo.trial import Outcome, run_broken

HEAD = """\
# The zoo: what people write, and what capturekit says

{count} broken programs are listed here. Each was made after trouble that people report, and has the repair that the
message asks for. The programs are in `tests/zoo`; tests run all of them on the simulated device, and on a GPU, each
in a process of its own. What only a GPU can show is marked (GPU).
`python -m tests.zoo > docs/evidence/zoo.md` makes this page.
"""


def table() -> str:
    """The whole page."""
    cases = all_cases()
    install(SimulatedDevice(0))
    try:
        cp = sys.modules['cupy']
        said = {case: told(case, cp) for case in each('programs', cases)}
    finally:
        uninstall()
    parts = [HEAD.format(count=len(cases))]
    for family in FAMILIES:
        rows = [row(case, said[case]) for case in cases if case.family == family]
        head = ['| what people write | capturekit says | instead |', '| --- | --- | --- |']
        parts.append('\n'.join([f'## {family_does(family)}', '', *head, *rows]) + '\n')
    return '\n'.join(parts)


def row(case: Case, said: str) -> str:
    wrong = ''.join(f'`{code}`' for _line, code, _words in marked(case.broken, HERE))
    assert case.repair is not None
    right = '<br>'.join(
        f'{words}: `{code}`' if words else f'`{code}`' for _line, code, words in marked(case.repair, INSTEAD)
    )
    return f'| {case.does} ([{thread(case.thread)}]({case.thread}))<br>{wrong} | {said} | {right} |'


def thread(url: str) -> str:
    """The short name of a thread: ``cupy#9655``."""
    repository, _kind, number = url.split('/')[-3:]
    return f'{repository}#{number}'


def told(case: Case, cp: Any) -> str:
    """What is said of a case: the exception and its remedy, or the words of a step."""
    if case.needs:
        name = case.says.__name__ if isinstance(case.says, type) else 'cap.graph.constants()'
        return f'(GPU) `{name}`: ... {case.words} ...'
    outcome = run_broken(case, cp)
    if isinstance(outcome.error, ck.CaptureError):
        remedy = outcome.error.remedy.partition(' The capture begun at ')[0]  # whose line is the zoo's own
        return f'`{type(outcome.error).__name__}`: {remedy}'
    if outcome.error is not None:
        return f'`{type(outcome.error).__name__}`: {noted(outcome) or outcome.message}'
    return f'a {case.says}: {outcome.message}' if case.says else 'nothing, because each call by itself is allowed'


def noted(outcome: Outcome) -> str:
    """The remedy in a note on somebody else's exception."""
    notes = getattr(outcome.error, '__notes__', None)
    return f'its own, and a note on it: {notes[-1].splitlines()[-1].strip()}' if notes else ''


if __name__ == '__main__':
    print(table(), end='')

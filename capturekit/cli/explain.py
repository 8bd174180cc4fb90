"""``capturekit explain``: a code, a rule or an exception in words, with a wrong and a right example.

What is legal is read from the table that the guard reads (:mod:`capturekit.model.rules`). Only words and examples are
written down, in :mod:`capturekit.cli.examples`. :func:`cases` is the whole of it as data, for ``capturekit rules``.
"""

from __future__ import annotations

import argparse
import difflib
import inspect
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from capturekit.cli.examples import KINDS, LESSONS, MEANINGS, ExampleKind, Lesson, program
from capturekit.cli.terminal import say
from capturekit.model import errors
from capturekit.model.errors import CaptureError, CudaCallError
from capturekit.model.rules import (
    BY_HISTORY,
    ROWS,
    RULES,
    Answer,
    CaptureStatus,
    Code,
    Effect,
    History,
    Mode,
    Operation,
    Pattern,
    Rule,
    Target,
    row,
)

#: The past of a capture, where the answer depends on it.
_STORIES = {History.UNJOINED: 'a lane unjoined', History.LOST: 'lost before'}
_STATUSES = {Effect.INVALIDATES: CaptureStatus.INVALIDATED, Effect.ENDS: CaptureStatus.NONE}
_WIDTH = 100

Topic = Code | Rule | ExampleKind | type[RuntimeError]


@dataclass(frozen=True)
class Case:
    """A kind of call: operation, what it addresses, CUDA's answers, the rule's name or '', the calls measured."""

    operation: Operation
    target: str
    pattern: Pattern
    rule: str
    calls: tuple[str, ...]


# -- what the table says --------------------------------------------------------------------------------------


@cache
def cases() -> tuple[Case, ...]:
    """All kinds of calls that the table or the ledger knows, those of one operation together."""
    found: dict[tuple[Operation, str, Pattern, str], list[str]] = {}
    for label, operation, target, pattern, rule in ROWS:
        found.setdefault((operation, target.value, pattern, rule), []).append(label)
    made = [Case(*key, tuple(labels)) for key, labels in found.items()] + list(_by_past())
    order = list(Operation)
    return tuple(sorted(made, key=lambda case: order.index(case.operation)))


def _by_past() -> Iterator[Case]:
    """Calls on the origin that are answered by the capture's past, and not by a row of the table."""
    for history, story in _STORIES.items():
        for (past, operation), (answer, rule) in BY_HISTORY.items():
            if past is history:
                if history is History.LOST and answer.effect is Effect.NOTHING:  # it stays lost
                    answer = Answer(answer.code, Effect.INVALIDATES)
                call = f'{operation.value}(origin), {story}'
                yield Case(operation, f'origin, {story}', Pattern((answer,) * 6), rule, (call,))


def status_after(answer: Answer) -> CaptureStatus:
    """The capture's status after a call was answered so."""
    return _STATUSES.get(answer.effect, CaptureStatus.ACTIVE)


def end_after(answer: Answer) -> Code:
    """What CUDA says to ``endCapture`` on the origin after a call was answered so, and nothing else went wrong."""
    if answer.effect is Effect.INVALIDATES:
        return BY_HISTORY[History.LOST, Operation.END_CAPTURE][0].code
    target = Target.OUTSIDE if answer.effect is Effect.ENDS else Target.ORIGIN
    return row(Operation.END_CAPTURE, target)[0](Mode.RELAXED, False).code


def situations(pattern: Pattern, code: Code | None = None) -> list[tuple[str, Answer]]:
    """The answers of a pattern, each once, with the modes and origins that get it; only those with ``code``."""
    groups: dict[Answer, list[tuple[Mode, bool]]] = {}
    for mode in Mode:
        for blocking in (False, True):
            groups.setdefault(pattern(mode, blocking), []).append((mode, blocking))
    return [(_where(cells), answer) for answer, cells in groups.items() if code in (None, answer.code)]


def _where(cells: list[tuple[Mode, bool]]) -> str:
    modes = [mode for mode in Mode if any(mode is m for m, _blocking in cells)]
    origins = {blocking for _mode, blocking in cells}
    if len(cells) < len(modes) * len(origins):  # not every mode with every origin
        parts = [[cell for cell in cells if cell[1] is blocking] for blocking in (False, True)]
        return '; '.join(_where(part) for part in parts if part)
    told = 'every mode' if len(modes) == len(Mode) else ', '.join(mode.name.lower() for mode in modes)
    return told if len(origins) == 2 else f'{told}, {"" if True in origins else "non-"}blocking origin'


def says(answer: Answer) -> str:
    """An answer in words: the code, and what becomes of the capture."""
    if not answer.refused:
        return {
            Effect.NOTHING: 'allowed',
            Effect.RECORDED: 'recorded',
            Effect.ENDS: 'allowed, ends the capture',
            Effect.ESCAPES: 'no error: runs at once and is missing from the graph',
        }.get(answer.effect, answer.effect.value)
    status = status_after(answer).name.capitalize()
    return f'{_code(answer.code)}; the status is then {status}, ending gives {_code(end_after(answer))}'


def _code(code: Code) -> str:
    return code.name if code is Code.cudaSuccess else f'{code.value} {code.name}'


# -- words ----------------------------------------------------------------------------------------------------


@cache
def topics() -> dict[str, Topic]:
    """All that can be explained, by its name: codes, rules, kinds of steps, exceptions."""
    told = {answer.code for case in cases() for answer in case.pattern.answers if answer.refused}
    capturing = {code for code in Code if 900 <= code <= 910}
    found: dict[str, Topic] = {code.name: code for code in sorted(told | capturing)}
    found.update(RULES)
    found.update(KINDS)
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, (CaptureError, CudaCallError)):
            found[name] = kind
    return found


def find(word: str) -> Topic:
    """The topic of a word: a code's number or name, a rule's name, a kind of step, an exception's name.

    Raises:
        LookupError: there is none; the message has those that are close.
    """
    known = topics()
    plain = {_plain(name): name for name in known}
    plain.update({str(int(topic)): name for name, topic in known.items() if isinstance(topic, Code)})
    name = plain.get(_plain(word))
    if name is None:
        close = [plain[near] for near in difflib.get_close_matches(_plain(word), plain, 4, 0.5)]
        near = f'; close to it: {", ".join(dict.fromkeys(close))}' if close else ''
        raise LookupError(f'there is no code, rule, kind of step or exception {word!r}{near}')
    return known[name]


def _plain(word: str) -> str:
    """The letters and digits of a word; ``CUDA_ERROR_X_Y``, ``cudaErrorXY`` and ``capturekit.XY`` give the same."""
    last = re.sub(r'[^a-z0-9.]', '', word.lower()).rpartition('.')[2]
    return last.removeprefix('cudaerror') or last


def listing() -> str:
    """All words that can be explained, each with a line."""
    lines = []
    for name, topic in topics().items():
        if isinstance(topic, Code):
            lines.append(f'{topic.value:<23}{name}')
            continue
        about = _docstring(topic) if isinstance(topic, type) else topic.says
        lines.append(f'{name:<23}{textwrap.shorten(about, _WIDTH - 23, placeholder=" ...")}')
    return '\n'.join(lines) + '\n'


def _docstring(kind: type) -> str:
    first = inspect.cleandoc(kind.__doc__ or '').partition('\n\n')[0]
    return re.sub(r':\w+:`~?', '`', first.replace('``', '`'))


# -- an explanation -------------------------------------------------------------------------------------------


def explain(word: str) -> str:
    """Explain a word, in lines of 100 columns; LookupError if there is nothing by that name."""
    topic = find(word)
    kinds: dict[type, Any] = {Code: _of_code, Rule: _of_rule, ExampleKind: _of_kind}
    return '\n\n'.join(kinds.get(type(topic), _of_exception)(topic)) + '\n'


def lesson(topic: Topic) -> Lesson:
    """Words and examples for a topic: its own, or those of its first rule."""
    name = topic.__name__ if isinstance(topic, type) else topic.name
    return LESSONS[name] if name in LESSONS else LESSONS[_rules_of(topic)[0].name]


def _rules_of(topic: Topic) -> list[Rule]:
    """The rules of a code or an exception, in the order of the table."""
    if isinstance(topic, Code):
        names = [case.rule for case in cases() if any(answer.code is topic for answer in case.pattern.answers)]
        return [rule for name, rule in RULES.items() if name in names]
    return [rule for rule in RULES.values() if rule.error is topic]


def _of_code(code: Code) -> Iterator[str]:
    taught = lesson(code)
    yield f'{code.value}  {code.name}\n{_text(MEANINGS[code])}\n{_text(taught.met)}'
    rules = _rules_of(code)
    yield 'CUDA gives this code to' if rules else 'CUDA gives this code to\n  no call in the table'
    for rule in rules:
        yield f'  rule {rule.name}, capturekit raises {rule.error.__name__}\n{_answers(rule, code)}\n{_instead(rule)}'
    raised: list[type[RuntimeError]] = [rule.error for rule in rules if lesson(rule) is taught]
    if not rules:  # an exception of its own
        raised = [kind for name, kind in topics().items() if isinstance(kind, type) and LESSONS.get(name) is taught]
    yield from _ends(taught, raised or [rule.error for rule in rules], [rule.name for rule in rules])


def _of_rule(rule: Rule) -> Iterator[str]:
    taught = lesson(rule)
    yield f'{rule.name}  capturekit raises {rule.error.__name__}\n{_text(rule.says + ".")}\n{_text(taught.met)}'
    mine = [case for case in cases() if case.rule == rule.name]
    none = _text('CUDA has no rule for it. The host would act now, and not at each launch.')
    yield f'CUDA answers\n{_answers(rule) if mine else none}'
    codes = {int(answer.code) for case in mine for answer in case.pattern.answers if answer.refused}
    yield from _ends(taught, [rule.error], [*map(str, sorted(codes)), rule.error.__name__], rule.remedy)


def _of_kind(kind: ExampleKind) -> Iterator[str]:
    taught = lesson(kind)
    yield f'{kind.name}  a kind of step in recordings\n{_text(kind.says)}\n{_text(taught.met)}'
    yield from _ends(taught, [], [taught.raises] if taught.raises in topics() else [])


def _of_exception(kind: type[RuntimeError]) -> Iterator[str]:
    taught = lesson(kind)
    yield f'{kind.__name__}\n{_text(_docstring(kind))}\n{_text(taught.met)}'
    rules = _rules_of(kind)
    for rule in rules:
        answers = f'\n{_answers(rule)}' if any(case.rule == rule.name for case in cases()) else ''
        yield f'  rule {rule.name}\n{_text(rule.says + ".", 4)}{answers}\n{_instead(rule)}'
    yield from _ends(taught, [kind], [rule.name for rule in rules])


def _answers(rule: Rule, code: Code | None = None) -> str:
    """The calls under a rule, and what CUDA answers in which modes (only ``code``); those answered alike together."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for case in cases():
        said = tuple(f'{where}: {says(answer)}' for where, answer in situations(case.pattern, code))
        if case.rule == rule.name and said:
            alike.setdefault(said, []).extend(_words(case))
    lines = []
    for said, calls in alike.items():
        lines.append(_text('; '.join(calls), 4))
        lines += [_text(line, 6, 8) for line in said]
    return '\n'.join(lines)


def _instead(rule: Rule) -> str:
    return _text(f'Instead: {rule.remedy}', 4)


def _words(case: Case) -> list[str]:
    """The calls of a case in the words of ``rules``: ``waitEvent(outside event)``."""
    names = dict.fromkeys(re.split(r'[ (,]', label)[0] for label in case.calls)
    return [f'{name}({case.target})' if case.target else name for name in names]


def _ends(taught: Lesson, kinds: Sequence[type[RuntimeError]], words: list[str], instead: str = '') -> Iterator[str]:
    """The examples, and what to read. ``kinds``: the first is what the wrong one raises, unless it says another."""
    if taught.wrong:
        yield f'Wrong: {taught.raises or kinds[0].__name__}\n{_indented(taught.wrong)}'
    if taught.unshown:
        yield _text(taught.unshown, 0)
    if taught.right:
        yield f'Right\n{_indented(taught.right)}'
    if instead:
        yield f'Instead\n{_text(instead)}'
    lines = [f'Met in {url}' for url in taught.seen]
    if words:
        lines.append(_text(f'See also: capturekit explain {" | ".join(words)}', 0, 2))
    if lines:
        yield '\n'.join(lines)


def _text(text: str, indent: int = 2, hanging: int | None = None) -> str:
    first, rest = ' ' * indent, ' ' * (indent if hanging is None else hanging)
    return textwrap.fill(
        text, _WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )


def _indented(code: str) -> str:
    return textwrap.indent(program(code).rstrip(), '    ')


# -- the command ----------------------------------------------------------------------------------------------

_DESCRIPTION = """\
Explain one of CUDA's codes, a rule of capturekit, a kind of step in its recordings or one of its exceptions: what
triggers it, what CUDA answers in which modes, what becomes of the capture, a wrong and a right example. Without a word,
it lists all the words.
"""
_EPILOG = """\
examples:
  python -m capturekit explain 905
  python -m capturekit explain cudaErrorStreamCaptureIsolation
  python -m capturekit explain host-read
  python -m capturekit explain HostReadError
"""


def add(commands: Any) -> None:
    """Add ``explain`` to the commands."""
    told = 'explain a CUDA code, a rule or an exception, with examples'
    parser = commands.add_parser('explain', help=told, description=_DESCRIPTION, epilog=_EPILOG)
    words = 'a code (905), its name, a rule (host-read), a kind of step (seam), an exception'
    parser.add_argument('word', nargs='?', help=words)
    parser.set_defaults(go=_go)


def _go(given: argparse.Namespace) -> int:
    try:
        print(listing() if given.word is None else explain(given.word), end='')
    except LookupError as error:
        say(error.args[0])
        return 2
    return 0

"""``capturekit lint``: a script or a function run once; what a capture would refuse, leave out or make a constant."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import importlib
import inspect
import io
import json
import linecache
import os
import sys
import traceback
from collections.abc import Callable, Collection
from typing import Any

from capturekit.cli.script_runner import add_device, as_main, device, join_threads, run_code
from capturekit.cli.terminal import paint, say
from capturekit.lab.file_lint import MARK, Judging, marked
from capturekit.lab.lint import Finding, Linting, Report, known_rules
from capturekit.model.source_line import raised_at

# -- a lint report for people, for programs, and for the pages of a code review: each takes it and gives text ---------


def concise(report: Report, sentence: str, whole: bool) -> str:
    """A line for each finding, the remedy once for each rule, and a sentence that says what was looked at."""
    if not report.findings:
        return f'nothing found{report.left_out}: {sentence}' if whole else sentence + report.left_out
    return '\n'.join([*map(_coloured, report.findings), '', *report.rules(), '', report.count, sentence])


def as_json(report: Report, sentence: str, whole: bool) -> str:
    """One object: the findings, whether all was looked at, and the sentence."""
    return json.dumps({**report.to_json(), 'complete': whole, 'summary': sentence}, indent=1)


def github(report: Report, sentence: str, whole: bool) -> str:
    """Workflow commands: GitHub shows each finding at its line."""
    lines = []
    for finding in report.findings:
        where = ''
        if finding.at is not None:
            file = _data(_path(finding.at.file)).replace(':', '%3A').replace(',', '%2C')
            where = f'file={file},line={finding.at.line},'
        level = 'error' if finding.refused_adapting else 'warning' if finding.refused else 'notice'
        text = f'{finding.call}. {finding.says} {finding.remedy}'
        lines.append(f'::{level} {where}title=capturekit {finding.rule}::{_data(text)}')
    level = 'notice' if whole else 'warning'
    return '\n'.join([*lines, f'::{level} title=capturekit lint::{_data(sentence)}'])


def _coloured(finding: Finding) -> str:
    """The finding in one line, with the path of its file as an editor or terminal can open it."""
    at, rule, what = finding.at, f'[{finding.rule}]', 'error' if finding.refused else 'warning'
    where = 'an unknown line' if at is None else f'{_path(at.file)}:{at.line}'
    if at is not None and at.function != '<module>':
        where += f' in {at.function}'
    line = finding.in_line(paint(where, 'place', sys.stdout))
    return line.replace(rule, paint(rule, what, sys.stdout), 1)


def _path(file: str) -> str:
    near = os.path.relpath(file) if os.path.isabs(file) else file
    return file if near.startswith(os.pardir) else near


def _data(text: str) -> str:
    return text.replace('%', '%25').replace('\r', '%0D').replace('\n', '%0A')


FORMATS: dict[str, Callable[[Report, str, bool], str]] = {'concise': concise, 'json': as_json, 'github': github}


_DESCRIPTION = """\
Run a script, or a function without arguments, once, and list what a capture would refuse, silently leave out, or make
a constant: each with its line and what strict=False makes of it, and for each rule what to write instead. In a script,
lint checks what is in captures (`with ck.capture()`, begin_capture and end_capture), functions under @ck.graphed,
functions marked capture_safe (@pytest.mark.capture_safe), and those that --function names; it checks nothing else in
it. With module:function it checks the whole function. A capture ends at the first call that strict=False refuses as
well, or at work that escapes: repair that, and run lint again.
"""
_EPILOG = """\
A line that ends in `# capturekit: ignore[host-read]` is left out for that rule, `# capturekit: ignore` for all.

exit status: 0 a strict capture (with --no-strict: one with strict=False) would refuse nothing; 1 there is something, or
the code failed; 2 nothing was looked at, or there is nothing to run; 130 interrupted. Without a GPU the simulated
device is used; one line on standard error says which one it is. Options go before the target; what follows a
script is its own. With json and github standard output is the report alone; what the code prints goes to standard
error.

examples:
  python -m capturekit lint samples/fork_join.py
  python -m capturekit lint --simulate --function step train.py --epochs 3
  python -m capturekit lint --select host-read,device-sync --output-format github train.py
  python -m capturekit lint --no-strict --output-format json mypackage.model:step
"""


def add(commands: Any) -> None:
    """Add the command's parser."""
    told = 'list all that a capture of a script or function would refuse, leave out or make a constant'
    parser = commands.add_parser('lint', help=told, description=_DESCRIPTION, epilog=_EPILOG)
    add_device(parser)
    parser.add_argument('--no-strict', action='store_true', help='count only what strict=False would refuse')
    more = 'check this function of the script as well'
    parser.add_argument('--function', action='append', default=[], metavar='NAME', help=more)
    only = 'report only these rules, with commas between them'
    parser.add_argument('--select', type=_rules, metavar='RULES', help=only)
    parser.add_argument('--ignore', type=_rules, default=set(), metavar='RULES', help='report all rules except these')
    parser.add_argument('--output-format', choices=list(FORMATS), default='concise', help='(default: concise)')
    parser.add_argument('target', help='a Python file, or module:function')
    parser.add_argument('args', nargs=argparse.REMAINDER, help="the script's own arguments")
    parser.set_defaults(go=_go)


def _rules(text: str) -> set[str]:
    names = {name.strip() for name in text.split(',')}
    for name in sorted(names - known_rules()):
        hint = _near(name, known_rules()) or ' (see `capturekit explain`)'
        raise argparse.ArgumentTypeError(f'there is no rule {name!r}{hint}')
    return names


def _near(name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    return f': did you mean {near[0]}?' if near else ''


class _Missing(Exception):
    """There is nothing to lint."""


def _go(given: argparse.Namespace) -> int:
    try:
        return _linted(given)
    except _Missing as missing:
        say(str(missing))
        return 2


def _linted(given: argparse.Namespace) -> int:
    module, colon, function = given.target.partition(':')
    script = not colon or os.path.exists(given.target)
    if script and not os.path.isfile(given.target):
        raise _Missing(f'there is no file {given.target!r}; a function is given as module:function')
    if not script and os.path.isfile(module):
        raise _Missing(f'a function of a file is named by an option: lint --function {function} {module}')
    if not script and (given.args or given.function or not module or not function):
        raise _Missing('a function is given as module:function, and takes no arguments')
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(device(given.simulate, given.seed))
        except ImportError as error:
            say(str(error))
            return 1
        folder = os.path.dirname(os.path.realpath(given.target)) if script else os.getcwd()
        stack.enter_context(as_main([given.target, *given.args], folder))
        if given.output_format != 'concise':
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        return _lint_file(given) if script else _lint_function(module, function, given)


def _lint_file(given: argparse.Namespace) -> int:
    file, named = given.target, set(given.function)
    with io.open_code(os.path.abspath(file)) as opened:
        source = opened.read()
    linecache.checkcache(file)
    judged = Judging()
    names: list[str] = []

    def go() -> None:
        code, marked_names, there = marked(source, file, named)
        names.extend(marked_names)
        for name in sorted(named.difference(there)):
            raise _Missing(f'there is no function {name!r} in {file}{_near(name, there)}')
        with judged:
            run_code(code, file, judged.names)
            join_threads()

    how, status = _ended(go, judged.told)
    never = [name for name in names if name not in judged.functions] if not how else []
    nothing = (
        f'nothing was looked at: {os.path.basename(file)} records nothing in a capture, and calls no graphed function '
        f'and none that is marked {MARK}; --function NAME checks a function'
    )
    return _report(given, judged.report, (how, status), judged.looked or nothing, bool(judged.looked), never)


def _lint_function(module: str, function: str, given: argparse.Namespace) -> int:
    reports: list[Report] = []

    def go() -> None:
        found = _resolve(module, function)
        with Linting() as report:
            reports.append(report)
            try:
                report.result = found()
            finally:
                join_threads()

    ended = _ended(go, lambda _error: False)
    report = reports[0] if reports else Report()
    return _report(given, report, ended, f'1 function ({given.target})', bool(reports), [])


def _imported(module: str) -> Any:
    if not all(module.split('.')):
        raise _Missing(f'{module!r} is no name of a module: give it whole, from its first package on')
    try:
        return importlib.import_module(module)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and f'{module}.'.startswith(f'{error.name}.'):
            raise _Missing(f'there is no module {error.name!r}') from None
        at = raised_at(error)
        why = ' '.join(f'{type(error).__name__}: {error}'.split())
        raise _Missing(f'{module!r} can not be imported: {why}' + (f', at {at}' if at else '')) from None


def _resolve(module: str, function: str) -> Callable[[], Any]:
    found = _imported(module)
    for name in function.split('.'):
        found = getattr(found, name, None)
    if not callable(found):
        raise _Missing(f'there is no function {function!r} in {module}')
    if inspect.iscoroutinefunction(found) or inspect.isgeneratorfunction(found):
        raise _Missing(f'{function!r} is a generator or a coroutine: a call of it runs nothing that could be looked at')
    try:
        inspect.signature(found).bind()
    except TypeError as error:
        raise _Missing(f'{function!r} takes no arguments here ({error}): name a function that makes its own') from None
    except ValueError:
        pass  # compiled code may have no signature
    return found  # type: ignore[no-any-return]


_FURTHER = (
    '; repair that and lint again, or lint a function without arguments in a module: `capturekit lint MODULE:FUNCTION` '
    'runs it eagerly and to its end'
)


def _ended(go: Callable[[], None], is_finding: Callable[[BaseException], bool]) -> tuple[str, int]:
    """Run code that is not ours; return how it ended and its status, or '' where it came to its own end.

    An exception that is no finding is shown.
    """
    try:
        go()
    except _Missing:
        raise
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        at = raised_at(error)
        where = '' if at is None else f' at {at}'
        if isinstance(error, SystemExit):
            return ('', 0) if error.code in (None, 0) else (f'left with {error.code!r}{where}', 1)
        if isinstance(error, KeyboardInterrupt):
            return f'was interrupted{where}', 130
        if is_finding(error):
            return f'ended at {type(error).__name__}{where}{_FURTHER}', 1
        notes = getattr(error, '__notes__', [])
        notes[:] = [note for note in notes if not note.startswith('capturekit lint, up to here')]
        sys.stdout.flush()
        traceback.print_exception(error)
        return f'failed with {type(error).__name__}{where}', 1
    return '', 0


def _report(
    given: argparse.Namespace, report: Report, ended: tuple[str, int], looked: str, any_looked: bool, never: list[str]
) -> int:
    """Print the report and a last sentence that says what was looked at; return the exit status."""
    how, status = ended
    select, ignore = given.select, given.ignore
    kept = [f for f in report.findings if (select is None or f.rule in select) and f.rule not in ignore]
    report.ignored += len(report.findings) - len(kept)
    report.findings[:] = sorted(kept, key=lambda f: ('', 0) if f.at is None else (f.at.file, f.at.line))
    sentence = f'looked at {looked}' if any_looked else looked
    if how:
        sentence = f'{sentence}, and not at everything: ' if any_looked else 'nothing was looked at to its end: '
        sentence += f'{os.path.basename(given.target)} {how}'
    if never:
        sentence += f'; never called, and not looked at: {", ".join(never)}'
    text = FORMATS[given.output_format](report, sentence, any_looked and not how and not never)
    print(text, file=sys.stdout if given.output_format == 'concise' else sys.__stdout__, flush=True)
    counts = not (report.ok_adapting if given.no_strict else report.ok)
    return status or int(counts) or (2 if never or not any_looked else 0)

"""README.md is checked against the code: its examples run, what they print is so, its tables list what there is."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import capturekit as ck
from tests.test_cli import ROOT, capturekit, errors
from tests.test_samples import PRINTS

README = (ROOT / 'README.md').read_text()
PACKAGE = ROOT / 'capturekit'


class Block(NamedTuple):
    """A fenced block: its language, the number of its first line, and its text."""

    language: str
    line: int
    text: str


def blocks(*languages: str) -> list[Block]:
    found = []
    for match in re.finditer(r'^```(\w*)\n(.*?)^```$', README, re.MULTILINE | re.DOTALL):
        if match[1] in languages:
            found.append(Block(match[1], README.count('\n', 0, match.start(2)) + 1, match[2]))
    return found


def rows(heading: str) -> list[list[str]]:
    """The cells of the first table below a heading, without its head."""
    section = README.split(f'\n## {heading}\n')[1].split('\n## ')[0]
    lines = [line for line in section.splitlines() if line.startswith('| ')]
    return [[cell.strip() for cell in line.strip('|').split('|')] for line in lines[2:]]


def without_handles(text: str) -> str:
    return re.sub(r'0x[0-9a-f]+', '0x', text)


# -- examples -------------------------------------------------------------------------------------------------


def test_examples_run_and_print_what_is_shown(tmp_path: Path) -> None:
    """All python blocks, in order, as one script whose line numbers are the README's."""
    examples = blocks('python')
    assert len(examples) >= 5
    script: list[str] = []
    for block in examples:
        script += [''] * (block.line - 1 - len(script))
        script += block.text.splitlines()
    path = tmp_path / 'README.md'
    path.write_text('\n'.join(script) + '\n')
    ran = capturekit('run', '--simulate', str(path))
    assert ran.returncode == 0, ran.stderr
    assert errors(ran) == []
    shown = [block.text for block in blocks('text') if not block.text.startswith('usage: ')]
    assert without_handles(ran.stdout) == without_handles(''.join(shown))


def test_usage_is_shown_as_it_is() -> None:
    (shown,) = [block.text for block in blocks('text') if block.text.startswith('usage: ')]
    usage = capturekit('run', '--help', COLUMNS='200').stdout.split('\n\n')[0]
    assert shown.strip() == usage


def commands() -> list[str]:
    return [line for block in blocks('') for line in block.text.splitlines()]


def test_the_main_command_runs_the_main_job() -> None:
    (command,) = [line for line in commands() if 'fork_join' in line]
    install, _, job = command.partition(' && ')
    assert install == 'pip install .'
    python, _m, _capturekit, *args = shlex.split(job)
    assert (python, _m, _capturekit) == ('python', '-m', 'capturekit')
    ran = capturekit(args[0], '--simulate', *args[1:])
    assert ran.returncode == 0
    assert 'on the simulated device' in ran.stderr
    for pattern, line in zip(PRINTS['fork_join.py'], ran.stdout.splitlines()):
        assert re.fullmatch(pattern, line)


def test_ci_runs_exactly_the_test_command() -> None:
    (command,) = [line for line in commands() if 'pytest' in line]
    install, _, tests = command.partition(' && ')
    assert install == "pip install '.[test]'"
    assert tests in (ROOT / '.ci' / 'run').read_text().splitlines()


# -- tables ---------------------------------------------------------------------------------------------------


def test_table_of_exceptions_is_complete() -> None:
    listed = [name for row in rows('Exceptions') for name in re.findall(r'`(\w+)`', row[0])]
    exported = {
        name for name in ck.__all__ if isinstance(kind := getattr(ck, name), type) and issubclass(kind, ck.CaptureError)
    }
    assert sorted(listed) == sorted(exported - {'CaptureError'})


#: Code for the rows of the strict table, by their first cells; ``fork()`` makes ``side`` a lane with work on it.
TRIALS = {
    '`side.synchronize()`': [
        'fork(); side.synchronize(); cap.join(side)',
        'fork(); side.record().synchronize(); cap.join(side)',
    ],
    '`Device.synchronize()`': ['cp.cuda.Device().synchronize()', 'cp.cuda.Stream.null.synchronize()'],
    'works on a stream': ['with side: x * 2'],
    'leaves a lane': ['fork()'],
    'makes the legacy': ['with cp.cuda.Stream.null: x * 2', 'cp.cuda.Stream.null.use()'],
    'works on the legacy': ['x.data.memset(0, 8)', 'x.data.copy_from_device(x.data + 8, 8)'],
    'asks': ['cap.stream.done', 'cap.stream.record().done', 'e = cap.stream.record(); cp.cuda.get_elapsed_time(e, e)'],
    'reads a device': ['float(x[0])', 'bool(x.any())', 'x[x > 1]', 'print(x)'],
    'uploads host': ['cp.array([1, 2])', 'x[[0, 2]]'],
}


def trials() -> Iterator[tuple[str, bool, str | None]]:
    """Code, strict or not, and the exception that the README promises."""
    for row in rows('What is refused, and what is adapted'):
        (codes,) = [codes for start, codes in TRIALS.items() if row[0].startswith(start)]
        names: list[str | None] = [*re.findall(r'`(\w+Error)`', row[1])] or [None]
        for code, name in zip(codes, names if len(names) == len(codes) else names * len(codes)):
            yield code, True, name
            yield code, False, name if row[2] == 'the same' else None


@pytest.mark.parametrize(('code', 'strict', 'promised'), list(trials()))
def test_strict_table_is_so(sim: Any, code: str, strict: bool, promised: str | None) -> None:
    x = sim.arange(4.0)
    side = sim.cuda.Stream(non_blocking=True)
    cap = ck.capture(strict=strict)

    def fork() -> None:
        side.wait_event(cap.stream.record())
        with side:
            x * 2

    names = {'cp': sim, 'cap': cap, 'x': x, 'side': side, 'fork': fork}
    if promised is None:
        with cap:
            exec(code, names)
        constant = 'uploads' in next(start for start, codes in TRIALS.items() if code in codes)
        assert bool(cap.recording.constants) == constant
        assert bool(cap.recording.adaptations) == (not constant)
        cap.graph.launch()
    else:
        with pytest.raises(getattr(ck, promised)), cap:
            exec(code, names)


def test_table_of_modules_is_complete_and_imports_go_down_only() -> None:
    order = [re.findall(r'`(.+?)/?`', row[1])[0].removesuffix('.py') for row in rows('Inside')]
    levels = [int(row[0]) for row in rows('Inside')]
    assert levels == sorted(levels)
    there = {path.stem for path in PACKAGE.glob('*.py')} | {path.parent.name for path in PACKAGE.glob('*/__init__.py')}
    assert sorted(order) == sorted(there)
    for path in PACKAGE.rglob('*.py'):
        own = path.relative_to(PACKAGE).parts[0].removesuffix('.py')
        for name in imported(path):
            assert name == own or order.index(name) < order.index(own), f'{path.name} imports {name}'


def imported(path: Path) -> set[str]:
    """The rows of the table that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == 'capturekit':
            # the version, which __init__ sets before anything else could ask for it, stands for no import
            found |= {alias.name for alias in node.names} - {'__version__'}
        elif isinstance(node, ast.ImportFrom) and (node.module or '').startswith('capturekit.'):
            found.add(str(node.module).split('.')[1])
        elif isinstance(node, ast.Import):
            found |= {alias.name.split('.')[1] for alias in node.names if alias.name.startswith('capturekit.')}
    return found

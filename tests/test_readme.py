"""The README's commands are those that CI runs; its table and those of the reference list what there is."""

from __future__ import annotations

import re
import runpy
import shlex
from collections.abc import Iterator
from typing import Any

import pytest

import capturekit as ck
from capturekit.model.rules import RULES
from capturekit.model.versions import FEATURES, dotted
from tests.command import ROOT, called
from tests.pages import blocks
from tests.test_samples import PRINTS

RULES_PAGE = (ROOT / 'docs' / 'reference' / 'rules.md').read_text()
README = (ROOT / 'README.md').read_text()


def rows(head: str) -> list[list[str]]:
    """The cells of a table of the reference, by the first words of its head."""
    lines = RULES_PAGE[RULES_PAGE.index(f'\n| {head} |') :].strip().split('\n\n')[0].splitlines()
    return [[cell.strip() for cell in line.strip('|').split('|')] for line in lines[2:]]


# -- commands -------------------------------------------------------------------------------------------------


def commands() -> list[str]:
    return [line for block in blocks(README) if not block.language for line in block.text.splitlines()]


def test_the_main_command_runs_the_main_job() -> None:
    (command,) = [line for line in commands() if 'fork_join' in line]
    install, _, job = command.partition(' && ')
    assert install == 'pip install .'
    python, _m, _capturekit, *args = shlex.split(job)
    assert (python, _m, _capturekit) == ('python', '-m', 'capturekit')
    ran = called(args[0], '--simulate', *args[1:])
    assert ran.returncode == 0
    assert 'on the simulated device' in ran.stderr
    for pattern, line in zip(PRINTS['fork_join.py'], ran.stdout.splitlines()):
        assert re.fullmatch(pattern, line)


def test_ci_takes_both_commands_out_of_the_readme() -> None:
    reads = runpy.run_path(str(ROOT / '.ci' / 'readme.py'))['commands']
    found = [line for line in commands() if line.startswith('pip install ')]
    assert reads(README) == found[:2] and len(found) == 2
    shown = '# x\n```bash\n# first\npip install . && a\n```\n\n```python\nb\n```\n'
    shown += "```\npip install '.[test]' && c | d\n```\n"
    assert reads(shown) == ['pip install . && a', "pip install '.[test]' && c | d"]
    with pytest.raises(LookupError, match='test'):
        reads(shown.replace('.[test]', '.[tests]'))


def test_ci_runs_what_it_took_out_of_the_readme() -> None:
    script = (ROOT / '.ci' / 'run').read_text()
    assert 'mapfile -t readme < <("$system" .ci/readme.py)' in script
    assert 'for command in "${readme[@]}"; do' in script and 'bash -euo pipefail -c "$command"' in script
    rest = "if ! python -m pytest tests -q -n auto --assert=plain -m 'slow or not slow'; then"
    assert rest in script.splitlines(), 'all other tests'


# -- tables ---------------------------------------------------------------------------------------------------


def test_every_exception_and_every_rule_has_a_section() -> None:
    listed = re.findall(r'^### (\w+)$', RULES_PAGE, re.MULTILINE)
    exported = {
        name for name in ck.__all__ if isinstance(kind := getattr(ck, name), type) and issubclass(kind, ck.CaptureError)
    }
    assert sorted(listed) == sorted(exported - {'CaptureError'})
    shown = set(re.findall(r'^#### ([\w-]+)$', RULES_PAGE, re.MULTILINE))
    assert shown == set(RULES)


def test_every_public_name_is_in_the_reference() -> None:
    api = (ROOT / 'docs' / 'reference' / 'api.rst').read_text()
    named = set(re.findall(r'^\.\. auto\w+:: (?:capturekit\.)?(\w+)$', api, re.MULTILINE))
    named |= set(re.findall(r'^### (\w+)$', RULES_PAGE, re.MULTILINE)) | {'render'}
    assert set(ck.__all__) - named == set()


def test_the_table_of_pythons_is_what_the_doctor_says() -> None:
    header = r'^\| what \| from Python \| in older versions \|\n\|[ -|]+\|\n'
    found = re.search(header + r'((?:\|.*\n)+)', README, re.MULTILINE)
    assert found is not None
    listed = [[cell.strip() for cell in line.strip('|').split('|')] for line in found[1].splitlines()]
    assert listed == [[one.what, dotted(one.since), one.before] for one in FEATURES]


#: Code for the rows of the strict table, by their first cells; ``fork()`` makes ``side`` a lane with work on it.
TRIALS = {
    '`side.synchronize()`': [
        'fork(); side.synchronize(); cap.join(side)',
        'fork(); side.record().synchronize(); cap.join(side)',
    ],
    '`Device.synchronize()`': ['cp.cuda.Device().synchronize()', 'cp.cuda.Stream.null.synchronize()'],
    'works on a stream': ['with side: x * 2'],
    'leaves a lane': ['fork()'],
    'lets two lanes': ['y = x * 1; fork(); exec("with side: y *= 2"); y += 1; cap.join(side)'],
    'makes the legacy': ['with cp.cuda.Stream.null: x * 2', 'cp.cuda.Stream.null.use()'],
    'works on the legacy': ['x.data.memset(0, 8)', 'x.data.copy_from_device(x.data + 8, 8)'],
    'asks': ['cap.stream.done', 'cap.stream.record().done', 'e = cap.stream.record(); cp.cuda.get_elapsed_time(e, e)'],
    'reads a device': ['float(x[0])', 'bool(x.any())', 'x[x > 1]', 'print(x)'],
    'uploads host': ['cp.array([1, 2])', 'x[[0, 2]]'],
}


def trials() -> Iterator[tuple[str, bool, str | None]]:
    """Code, strict or not, and the exception that the table promises."""
    for row in rows('the code does'):
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

"""``python -m capturekit run --observe``: nothing is refused, and the end says what would have been."""

from __future__ import annotations

from pathlib import Path

from tests.cli.test_main import errors
from tests.command import called, run
from tests.pages import DOCS, blocks, without_handles

LOSES = """
import sys
import cupy as cp
stream = cp.cuda.Stream(non_blocking=True)
x = cp.arange(4.0)
with stream:
    stream.begin_capture()
    try:
        x.get()
    except RuntimeError as error:
        print(error)
    stream.done
    try:
        stream.end_capture()
    except cp.cuda.runtime.CUDARuntimeError as error:
        print(error.status, type(error).__name__)
"""


def test_the_script_gets_cupys_answers_and_the_report_comes_last(tmp_path: Path) -> None:
    ran = run(tmp_path, LOSES, '--observe')
    assert ran.stdout.splitlines() == [
        'the current stream is capturing, so D2H transfers are disallowed',
        '901 CUDARuntimeError',
    ]
    assert ran.returncode == 0
    lines = errors(ran)
    assert lines[0] == 'capturekit: 2 calls would have been refused, and what has lost a capture comes first:'
    starts = [line.partition(' on lane')[0] for line in lines if not line.startswith(('  ', 'capturekit:'))]
    assert starts == ['SynchronizationError: Stream.done', 'HostReadError: ndarray.get()']
    assert 'at script.py:12' in lines[1] and 'at script.py:9' in lines[5]
    assert lines[4] == '  It was let through, and the capture was lost. CuPy raised nothing.'
    assert lines[8].startswith('  It was let through. CuPy raised RuntimeError: the current stream is capturing')
    assert len(lines) == 9


def test_an_answer_that_nobody_catches_ends_the_script(tmp_path: Path) -> None:
    script = LOSES.partition('    try:')[0] + '    stream.synchronize()\n'
    ran = run(tmp_path, script, '--observe')
    assert ran.returncode == 1
    at = next(n for n, line in enumerate(errors(ran)) if line.startswith('capturekit: 1 call would'))
    before = '\n'.join(errors(ran)[:at])
    assert 'stream.synchronize()' in before and 'cudaErrorStreamCaptureUnsupported' in before
    assert 'During handling' not in before and 'CaptureError' not in before


def test_a_line_in_a_loop_is_listed_once(tmp_path: Path) -> None:
    script = LOSES.partition('    try:')[0] + (
        '    for _ in range(3):\n        try:\n            x.get()\n        except RuntimeError:\n            pass\n'
        '    stream.end_capture()\n'
    )
    ran = run(tmp_path, script, '--observe')
    lines = errors(ran)
    assert lines[0] == 'capturekit: 3 calls would have been refused, and no capture was lost:'
    assert lines[4].startswith('  It was let through 3 times. CuPy raised RuntimeError')
    assert len(lines) == 5


def test_reports_and_recordings_are_written(tmp_path: Path) -> None:
    ran = run(tmp_path, LOSES, '--observe', '--report', str(tmp_path / 'r.html'))
    assert 'report of a failed capture' in ran.stderr
    page = (tmp_path / 'r.html').read_text()
    assert 'let through: SynchronizationError' in page and 'script.py:12' in page


def test_the_guides_example_says_what_is_shown(tmp_path: Path) -> None:
    page = blocks((DOCS / 'guide' / 'commands.md').read_text())
    at = next(n for n, block in enumerate(page) if 'stream.done' in block.text)
    path = tmp_path / 'observed.py'
    path.write_text(page[at].text)
    ran = called('run', '--simulate', '--observe', str(path))
    assert (ran.stdout.split(), ran.returncode) == (['False', '901'], 0)
    shown = without_handles(page[at + 1].text)
    assert [without_handles(line) for line in errors(ran)] == shown.splitlines()

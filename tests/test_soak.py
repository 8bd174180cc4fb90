"""The long runs, kept short: they find nothing here, and what they are made to find they find."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from capturekit.guard import GUARD
from capturekit.simulated import SimulatedDevice, install, uninstall
from tests.soak import captures, devmode, exits, sanitizer

pytestmark = pytest.mark.slow


def quiet(_text: str) -> None:
    """Say nothing."""


def test_captures_leave_nothing_behind(sim: Any) -> None:
    found = captures.run(sim, 80, quiet)
    assert sum(found['captures'].values()) == 80 and found['captures']['good'] == 40
    assert found['growth']['streams'] <= 2 and found['growth']['events'] <= 2 and found['growth']['file handles'] == 0


@contextmanager
def no_exception_in_a_cycle() -> Iterator[None]:
    """An exception that waits for the collector keeps the frames of its block, and so the graph, its arrays, all."""
    threshold = gc.get_threshold()
    gc.collect()
    gc.set_threshold(1 << 30)
    try:
        yield
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        assert [repr(one) for one in gc.garbage if isinstance(one, BaseException)] == []
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.set_threshold(*threshold)


def test_each_call_of_the_device_may_fail(sim: Any) -> None:
    with no_exception_in_a_cycle():
        found = exits.run(sim, quiet)
    assert {'begin_capture', 'end_capture', 'graph_instantiate', 'begin_capture_to'} <= found['calls'].keys()
    assert sum(found['calls'].values()) == sum(found['outcomes'].values()) > 100


def test_each_call_of_a_capture_on_two_devices_may_fail() -> None:
    install(SimulatedDevice(3, devices=2))
    try:
        cp = sys.modules['cupy']
        with no_exception_in_a_cycle():
            found = exits.run(cp, quiet, exits.program_of_devices(cp))
    finally:
        uninstall()
    assert {'begin_capture', 'end_capture', 'graph_instantiate', 'set_device'} <= found['calls'].keys()
    assert sum(found['calls'].values()) == sum(found['outcomes'].values()) > 100


def test_what_is_left_behind_is_found(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GUARD.captures, 'gone', lambda live: None)
    with pytest.raises(AssertionError, match='captures'):
        exits.run(sim, quiet)
    monkeypatch.undo()
    for live in list(GUARD.lives.values()):
        GUARD.captures.gone(live)


# -- the sanitizer: a program in its place that says what it is told to -------------------------------------------

PROGRAM = """#!{python}
import sys
log = sys.argv[sys.argv.index('--log-file') + 1]
planted = '-c' in sys.argv[-2:]
open(log, 'w').write({planted!r} if planted else {tests!r})
assert planted or ('-m', 'gpu') in zip(sys.argv, sys.argv[1:])
print('' if planted else {said!r})
"""
FOUND = '========= Invalid __global__ write of size 4 bytes\n========= ERROR SUMMARY: 1 error\n'
CLEAN = '========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n'


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def make(planted: str = FOUND, tests: str = CLEAN, said: str = '99 passed in 1 s') -> None:
        path = tmp_path / 'compute-sanitizer'
        path.write_text(PROGRAM.format(python=sys.executable, planted=planted, tests=tests, said=said))
        path.chmod(0o755)
        monkeypatch.setenv('PATH', str(tmp_path))

    return make


@pytest.mark.slow
def test_the_sanitizer_counts_tests_and_errors(program: Any) -> None:
    program()
    assert sanitizer.run(quiet, ['a', 'b']) == {'tests': 198, 'errors': 0}


@pytest.mark.slow
@pytest.mark.parametrize(
    ('how', 'said'),
    [
        ({'tests': CLEAN + FOUND}, 'a: status 0, 1 errors\n\nInvalid __global__ write of size 4 bytes'),
        ({'tests': ''}, 'b: status 0, -1 errors'),
        ({'said': 'FAILED one\n1 failed'}, 'a: status 0, 0 errors\nFAILED one'),
        ({'planted': CLEAN}, 'does not find a planted write'),
        ({'planted': '========= Error: Device not supported'}, 'planted write beyond an allocation: .*Device not supp'),
    ],
)
def test_a_sanitizer_that_finds_or_can_not_find_is_told(program: Any, how: Any, said: str) -> None:
    program(**how)
    with pytest.raises(AssertionError, match=said):
        sanitizer.run(quiet, ['a', 'b'])


@pytest.mark.slow
def test_an_absent_sanitizer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sanitizer.shutil, 'which', lambda *args, **kwargs: None)
    with pytest.raises(sanitizer.Absent, match='not here: it comes with the CUDA toolkit'):
        sanitizer.run(quiet)


@pytest.mark.slow
def test_the_sanitizers_core_is_about_ninety_tests() -> None:
    pytest.importorskip('cupy')
    command = [
        sys.executable,
        '-m',
        'pytest',
        '--co',
        '-q',
        '-m',
        'gpu',
        '-k',
        f'not ({sanitizer._NOT})',
        *sanitizer.CORE,
    ]
    asked = subprocess.run(command, capture_output=True, text=True, cwd=sanitizer._ROOT)
    assert asked.returncode == 0, asked.stdout[-2000:]
    found = [line for line in asked.stdout.splitlines() if '::' in line]
    assert 80 < len(found) < 150
    assert {line.partition('::')[0] for line in found} == {part.partition('::')[0] for part in sanitizer.CORE}


# -- the development mode ----------------------------------------------------------------------------------------

LEAVES = """
import subprocess, sys


def test_is_good():
    {first}
    code = 'import sys; sys.exit(not sys.flags.dev_mode)'
    assert subprocess.run([sys.executable, '-c', code]).returncode == 0
"""


@pytest.mark.slow
def test_the_suite_is_in_development_mode_in_all_its_processes(tmp_path: Path) -> None:
    (tmp_path / 'test_one.py').write_text(LEAVES.format(first='pass'))
    assert devmode.run(quiet, [str(tmp_path), '--rootdir', str(tmp_path)])['passed'] == 1


@pytest.mark.slow
@pytest.mark.parametrize('first', ['open(__file__)', 'assert False'])
def test_a_file_that_is_left_open_is_found(tmp_path: Path, first: str) -> None:
    (tmp_path / 'test_one.py').write_text(LEAVES.format(first=first))
    with pytest.raises(AssertionError, match='1 failed'):
        devmode.run(quiet, [str(tmp_path), '--rootdir', str(tmp_path)])

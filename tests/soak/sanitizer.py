"""compute-sanitizer's memcheck over the core of the tests on a GPU: recording, memory, functions, updates, decisions.

By hand: ``compute-sanitizer --tool memcheck --target-processes all --report-api-errors no python -m pytest -m gpu ..``.
API errors are left out: CuPy and the tests ask for what CUDA refuses, and look at the answer. First it is made to find
a planted write beyond an allocation, since there are machines on which it runs and checks nothing. CuPy's pools give
out pieces of larger allocations: an access beyond an array, and within its pool's block, is not found. Conditional
nodes are left out: under compute-sanitizer 2025.3.1 (driver 580) launching them ends in an illegal address with nothing
recorded, and without it they run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]
CORE = (
    'tests/gpu/test_main_job_gpu.py',
    'tests/gpu/test_memory_gpu.py',
    'tests/gpu/test_adapting_gpu.py::test_equal_to_the_eager_run_and_noted',
    'tests/corpus/test_corpus.py::test_programs_are_right_on_a_gpu[arguments]',
    'tests/graph/test_update.py',
    'tests/graph/test_rebind.py',
    'tests/recorder/test_embed.py',
)
#: Those that need minutes, all of the memory, or count bytes; and those that break things on purpose.
_NOT = (
    'bare_cupy or hundred or leave_nothing_behind or memory_runs_out or the_memory or any_program'
    ' or user_s_pool or new_arrays_are_kept or body_of_a_loop or decisions_and_lanes'
)
_PLANTED = """
import cupy, numpy
beyond = cupy.RawKernel('extern "C" __global__ void beyond(int* x) { x[1 << 22] = 1; }', 'beyond')
beyond((1,), (1,), (numpy.intp(cupy.cuda.runtime.malloc(4)),))
cupy.cuda.runtime.deviceSynchronize()
"""
#: Lines of a log that are no records.
_HEADS = ('COMPUTE-SANITIZER', 'ERROR SUMMARY')
_SUMMARY = re.compile(r'ERROR SUMMARY: (\d+) error')


class Absent(AssertionError):
    """compute-sanitizer is not here, or can check nothing here."""


def find() -> str:
    """The program: on the path, beside CUDA, or in the wheel ``nvidia-cuda-sanitizer-api``.

    Raises:
        Absent: it is in none of these.
    """
    homes = [os.environ.get('CUDA_HOME', ''), os.environ.get('CUDA_PATH', ''), '/usr/local/cuda']
    homes += sorted(map(str, Path('/usr/local').glob('cuda-*')), reverse=True)
    homes += [str(home) for entry in sys.path for home in Path(entry or '.').glob('nvidia/cu*')]
    places = [f'{home}/{folder}' for home in homes if home for folder in ('bin', 'compute-sanitizer')]
    found = shutil.which('compute-sanitizer') or shutil.which('compute-sanitizer', path=os.pathsep.join(places))
    if found is None:
        raise Absent(
            'compute-sanitizer is not here: it comes with the CUDA toolkit, or pip install nvidia-cuda-sanitizer-api'
        )
    return found


def checked(program: str, command: Sequence[str]) -> tuple[int, str, int, str]:
    """Run Python under memcheck: its status and output, the number of errors (-1: nothing was counted), the log."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / 'log'
        options = ['--tool', 'memcheck', '--target-processes', 'all', '--report-api-errors', 'no']
        options += ['--check-exit-code', 'no', '--print-limit', '20', '--log-file', str(log)]
        ran = subprocess.run([program, *options, sys.executable, *command], capture_output=True, text=True, cwd=_ROOT)
        told = log.read_text() if log.exists() else ''
    counts = [int(count) for count in _SUMMARY.findall(told)]
    return ran.returncode, ran.stdout + ran.stderr, sum(counts) if counts else -1, told


def run(say: Callable[[str], None] = print, core: Sequence[str] = CORE, jobs: int = 6) -> dict[str, Any]:
    """The number of tests, and of errors in them: none. Each entry of ``core`` is a process, ``jobs`` at a time."""
    program = find()
    say(f'sanitizer: {program}')
    _status, said, errors, log = checked(program, ['-c', _PLANTED])
    if errors < 1 or 'Invalid __global__ write' not in log:
        raise Absent(f'compute-sanitizer does not find a planted write beyond an allocation: {(log or said)[-1500:]}')
    say('sanitizer: a planted write beyond an allocation was found')

    def one(entry: str) -> tuple[int, int, str]:
        tests = ['-m', 'pytest', '-m', 'gpu', '-k', f'not ({_NOT})', '-q', '-p', 'no:cacheprovider', entry]
        status, said, errors, log = checked(program, tests)
        passed = re.search(r'(\d+) passed', said)
        count = int(passed[1]) if passed else 0
        say(f'sanitizer: {entry}: {count} passed, {errors} errors')
        if status == 0 and errors == 0 and passed:
            return count, 0, ''
        named = '\n'.join(line for line in said.splitlines() if line.startswith(('FAILED', 'ERROR', 'E  ')))
        return count, errors, f'{entry}: status {status}, {errors} errors\n{named[:800]}\n{_first(log)}'

    with ThreadPoolExecutor(jobs) as pool:
        found = list(pool.map(one, core))
    wrong = [text for _count, _errors, text in found if text]
    assert not wrong, '\n'.join(wrong)
    return {'tests': sum(count for count, _errors, _text in found), 'errors': 0}


def _first(log: str) -> str:
    """The first record: what was accessed, by which kernel, called from where."""
    lines = [line for line in log.splitlines() if line.startswith('=========')]
    at = next((n for n, line in enumerate(lines) if not any(one in line for one in _HEADS)), 0)
    return '\n'.join(line.removeprefix('=========').strip()[:200] for line in lines[at : at + 30])

"""Environments: which ones are tried, how each is made, and what is found in it."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.versions.probe import ROOT

#: Pythons that run the whole suite, with what `pip install '.[test]'` brings and no CuPy.
PYTHONS = ('3.10', '3.11', '3.12', '3.13', '3.14')
#: The part of the tests that rests on the versions: what is held against the installed CuPy, the simulated device's
#: contract, what is said of versions.
TESTS = (
    'guard/test_entry_points', 'guard/test_entry_table', 'guard/test_keywords', 'driver/test_vendor_libraries',
    'driver/test_elf', 'simulated/test_signatures', 'simulated/test_contract', 'simulated/test_contract_changes',
    'simulated/test_contract_refusals', 'test_import', 'cli/test_doctor',
)  # fmt: skip
_TRY = """
try:
    import capturekit as ck
    ck.capture().__enter__()
except Exception as error:
    print(f'{type(error).__name__}: {error}')
"""


class NoPython(Exception):
    """A version of Python that is not on this machine."""


@dataclass(frozen=True)
class Wanted:
    """One environment: a Python, and what pip is told to install."""

    python: str
    packages: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f'Python {self.python}, {", ".join(self.packages) or "nothing installed"}'


#: Each Python twice or more, each CuPy for both CUDAs, the least and the newest of all. With 13.3.1 a GPU was used.
INSIDE = (
    Wanted('3.10', ('cupy-cuda12x==14.0.0', 'cuda-bindings==12.8.0', 'numpy==2.0.*')),
    Wanted('3.11', ('cupy-cuda13x==14.0.1', 'cuda-bindings==13.1.1')),
    Wanted('3.12', ('cupy-cuda12x==14.1.1', 'cuda-bindings==12.9.0')),
    Wanted('3.13', ('cupy-cuda13x==14.1.0', 'cuda-bindings==13.0.0')),
    Wanted('3.10', ('cupy-cuda13x==14.2.*', 'cuda-bindings<14')),
    Wanted('3.11', ('cupy-cuda12x==14.2.*', 'cuda-bindings<13')),
    Wanted('3.12', ('cupy-cuda13x==14.2.0', 'cuda-bindings==13.3.1')),
    Wanted('3.12', ('cupy-cuda13x', 'cuda-bindings')),
    Wanted('3.13', ('cupy-cuda12x', 'cuda-bindings<13')),
    Wanted('3.14', ('cupy-cuda13x', 'cuda-bindings<14')),
)
OUTSIDE = (
    Wanted('3.12', ('cupy-cuda12x==13.6.0', 'cuda-bindings==12.9.0')),
    Wanted('3.12', ('cupy-cuda12x==14.2.0', 'cuda-bindings==11.8.7')),
    Wanted('3.12', ('cupy-cuda12x==14.2.0',)),
    Wanted('3.9'),
)


def python_of(version: str) -> str | None:
    """A Python of that version: of this name on the PATH, or pyenv's. A name may stand there and run nothing."""
    ask = f'import sys; assert sys.version_info[:2] == {tuple(map(int, version.split(".")))}; print(sys.executable)'
    for more in ({}, {'PYENV_VERSION': version}):
        try:
            ran = subprocess.run(
                [f'python{version}', '-c', ask], env={**os.environ, **more}, capture_output=True, text=True
            )
        except FileNotFoundError:
            continue
        if ran.returncode == 0:
            return ran.stdout.strip()
    return None


class Environment:
    """A virtual environment with what is wanted."""

    def __init__(self, wanted: Wanted, home: Path) -> None:
        self.wanted = wanted
        self._folder = home / re.sub(r'[^\w.]+', '-', '-'.join((wanted.python, *wanted.packages))).strip('-')
        self._python = self._folder / 'bin' / 'python'

    def make(self, more: tuple[str, ...] = ()) -> None:
        """Make it, or bring it up to date. Raises NoPython where there is none of that version."""
        base = python_of(self.wanted.python)
        if base is None:
            raise NoPython(f'no Python {self.wanted.python} runs here')
        if not self._python.exists():
            subprocess.run([base, '-m', 'venv', self._folder], check=True)
        wanted = [*self.wanted.packages, *more]
        if wanted:
            install = ['-m', 'pip', 'install', '--quiet', '--disable-pip-version-check', '--upgrade', *wanted]
            self._run(*install, check=True)

    def _run(self, *args: str, check: bool = False) -> subprocess.CompletedProcess[str]:
        done = subprocess.run([self._python, *args], cwd=ROOT, capture_output=True, text=True)
        if check and done.returncode:
            raise RuntimeError(f'{self.wanted}: {" ".join(args[:3])} failed:\n{done.stdout}{done.stderr}')
        return done

    def probe(self) -> dict[str, Any]:
        """What :mod:`tests.versions.probe` finds in it."""
        found: dict[str, Any] = json.loads(self._run('-m', 'tests.versions.probe', check=True).stdout)
        return found

    def test(self) -> dict[str, Any]:
        """How many of the tests pass in it."""
        paths = [f'tests/{name}.py' for name in TESTS]
        said = self._run('-m', 'pytest', '-q', '-m', '', '-p', 'no:cacheprovider', '-rfE', *paths).stdout
        return counted(said)

    def suite(self) -> dict[str, Any]:
        """How many tests of the whole suite pass in it, with the Python's whole version."""
        found: dict[str, Any] = json.loads(self._run('-m', 'tests.versions', '--suite', check=True).stdout)
        return found

    def refusal(self) -> str:
        """What entering a capture says in it."""
        return self._run('-c', _TRY, check=True).stdout.strip()


def counted(said: str) -> dict[str, Any]:
    """What pytest's output says of how many tests passed."""
    last = said.strip().rpartition('\n')[2]
    counts = {word: int((re.search(rf'(\d+) {word}', last) or [0, 0])[1]) for word in ('passed', 'failed', 'skipped')}
    if not counts['passed']:
        raise RuntimeError(f'no test ran:\n{said[-2000:]}')
    errors = int((re.search(r'(\d+) error', last) or [0, 0])[1])
    failures = re.findall(r'^(?:FAILED|ERROR) tests/(\S+)', said, re.M)
    return {**counts, 'failed': counts['failed'] + errors, 'failures': sorted(failures)}


#: What holds these counts themselves.
_OF_COUNTS = 'tests/model/test_versions.py::test_every_python_has_run_the_whole_suite'


def suite_here() -> dict[str, Any]:
    """The whole suite, run by this Python in its environment."""
    options = ('-q', '-n', 'auto', '-p', 'no:cacheprovider', '-rfE', '--deselect', _OF_COUNTS)
    command = [sys.executable, '-m', 'pytest', 'tests', *options]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    return {'python': platform.python_version(), **counted(said)}


def look_suite(python: str, home: Path) -> dict[str, Any]:
    """The whole suite in an environment of its own with the extra ``test``."""
    there = Environment(Wanted(python), home)
    there.make(('numpy', 'pytest', 'hypothesis', 'pytest-xdist'))
    return there.suite()


def look_inside(wanted: Wanted, home: Path) -> dict[str, Any]:
    """One row of the table."""
    there = Environment(wanted, home)
    there.make(('pytest', 'hypothesis'))
    return {**there.probe(), 'tests': there.test()}


def look_outside(wanted: Wanted, home: Path) -> dict[str, Any]:
    """What is said where a version is none that capturekit works with."""
    there = Environment(wanted, home)
    there.make(('numpy',) if wanted.packages else ())
    return {'wanted': str(wanted), 'says': there.refusal()}


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)

"""Trials of mutants: a copy of the checkout, a process for each run of tests, a limit of time."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import pytest

NOTICED, MISSED, TIMED_OUT = 'killed', 'survived', 'timed out'
_LEFT_OUT = shutil.ignore_patterns('.*', '__pycache__', '*.egg-info', 'build', 'dist')
#: What every run needs and no mutant changes is imported once: the runs are forks of this process.
_SHARED = ('numpy', 'hypothesis', '_pytest.assertion.rewrite')


class Trials:
    """Tries sources of one module in a copy of a checkout; the checkout itself is not touched."""

    def __init__(self, root: Path, module: str, tests: tuple[str, ...]) -> None:
        self._home = tempfile.TemporaryDirectory(prefix='mutants-')
        self.copy = Path(self._home.name) / 'checkout'
        shutil.copytree(root, self.copy, ignore=_LEFT_OUT)
        self._root = root
        self._module = self.copy / module
        self._tests = tests
        self._limits = dict.fromkeys(tests, 600.0)
        for name in _SHARED:
            try:
                __import__(name)
            except ModuleNotFoundError:
                print(f'{name} is not here: each run looks for it again')

    def __enter__(self) -> Trials:
        return self

    def __exit__(self, *_: object) -> None:
        self._home.cleanup()

    def prove(self) -> float:
        """Run the tests on the unchanged source: they must pass. Returns the seconds, which limit later runs."""
        total = 0.0
        for test in self._tests:
            self._run(test)  # leaves compiled files for the next
            begun = time.monotonic()
            if self._run(test) != 0:
                raise SystemExit(f'{test} fails without any change: python -m pytest {test}')
            took = time.monotonic() - begun
            self._limits[test] = 4 * took + 10
            total += took
        return total

    def attempt(self, source: str) -> str:
        """Try one source; the module is as it was afterwards."""
        before = self._module.read_text()
        self._module.write_text(source)
        try:
            for test in self._tests:
                code = self._run(test)
                if code != 0:
                    return TIMED_OUT if code is None else NOTICED
            return MISSED
        finally:
            self._module.write_text(before)
            self._forget()

    def _forget(self) -> None:
        """A compiled file counts as new by its second and size: two mutants may share both."""
        for compiled in (self._module.parent / '__pycache__').glob(f'{self._module.stem}.*.pyc'):
            compiled.unlink()

    def _run(self, test: str) -> int | None:
        """Run one file of tests in a process of its own; None where it took too long."""
        self._forget()
        sys.stdout.flush()
        child = os.fork()
        if not child:
            _become_a_run(self._root, self.copy, test)
        return _waited(child, self._limits[test])


def _become_a_run(root: Path, copy: Path, test: str) -> None:
    code = 70
    try:
        os.setsid()
        os.chdir(copy)
        silence = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(silence, stream)
        _forget_the_checkout(root)
        sys.path.insert(0, str(copy))
        os.environ['HYPOTHESIS_PROFILE'] = 'ci'
        os.environ['PYTHONPATH'] = os.pathsep.join(p for p in (str(copy), os.environ.get('PYTHONPATH', '')) if p)
        seeded = ['--hypothesis-seed=0'] if 'hypothesis' in sys.modules else []
        code = int(pytest.main(['-x', '-q', '-m', '', '-p', 'no:cacheprovider', *seeded, test]))
    finally:
        os._exit(code)


def _forget_the_checkout(root: Path) -> None:
    """What was imported from the checkout is imported again, from the copy."""
    sys.path[:] = [p for p in sys.path if Path(p or '.').resolve() != root]
    for name in [n for n in sys.modules if n.partition('.')[0] in ('tests', 'capturekit')]:
        del sys.modules[name]


def _waited(child: int, limit: float) -> int | None:
    until = time.monotonic() + limit
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None

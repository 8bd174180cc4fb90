"""``python -m capturekit`` called in this process, where what is tested needs no process of its own."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

from capturekit.cli import main

ROOT = Path(__file__).parents[1]
Ran = subprocess.CompletedProcess[str]
Way = Callable[..., Ran]
_OF_HERE = tuple(str(path) for path in (sys.prefix, sys.base_prefix, ROOT / 'capturekit', ROOT / 'tests'))


def python(*args: str, cwd: Path = ROOT, timeout: float = 120, **environment: str) -> Ran:
    """Run Python in a process of its own."""
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get('PYTHONPATH'))))
    here = {**os.environ, 'PYTHONPATH': paths, **environment}
    command = [sys.executable, *args]
    return subprocess.run(command, cwd=cwd, env=here, capture_output=True, text=True, timeout=timeout)


def started(*args: str, cwd: Path = ROOT, **environment: str) -> Ran:
    """Run a command line in a process of its own."""
    return python('-m', 'capturekit', *args, cwd=cwd, **environment)


def called(*args: str, cwd: Path = ROOT, **environment: str) -> Ran:
    """Run a command line in this process; return what :func:`started` does."""
    out, err = io.StringIO(), io.StringIO()
    first = mock.patch.multiple(sys, __stdout__=out, __stderr__=err)
    with redirect_stdout(out), redirect_stderr(err), first, _as_a_process(cwd, environment):
        try:
            status = main.main(args)
        except SystemExit as left:
            status = _status(left.code)
    return subprocess.CompletedProcess(args, status, out.getvalue(), err.getvalue())


def run(folder: Path, script: str, *options: str, args: Sequence[str] = (), way: Way = called) -> Ran:
    """Run a script, given as text, on the simulated device."""
    path = folder / 'script.py'
    path.write_text(textwrap.dedent(script))
    return way('run', '--simulate', *options, str(path), *args)


def _status(code: object) -> int:
    """Return what Python ends with after ``sys.exit(code)``, and say what it says."""
    if code is None or isinstance(code, int):
        return code or 0
    print(code, file=sys.stderr)
    return 1


@contextmanager
def _as_a_process(cwd: Path, environment: dict[str, str]) -> Iterator[None]:
    """Give a command the folder, paths, warnings and modules that a process gives it, and put ours back."""
    before, path, modules = os.getcwd(), sys.path[:], set(sys.modules)
    os.chdir(cwd)
    sys.path.insert(0, str(cwd))
    try:
        with mock.patch.dict(os.environ, environment), warnings.catch_warnings():
            _warn_as_python_does()
            yield
    finally:
        os.chdir(before)
        sys.path[:] = path
        for name in set(sys.modules) - modules:
            if not (getattr(sys.modules[name], '__file__', None) or sys.prefix).startswith(_OF_HERE):
                del sys.modules[name]


def _warn_as_python_does() -> None:
    def show(message: Warning | str, kind: type[Warning], file: str, line: int, *_: object) -> None:
        sys.stderr.write(warnings.formatwarning(message, kind, file, line))

    warnings.resetwarnings()
    for kind in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
        warnings.simplefilter('ignore', kind)
    warnings.filterwarnings('default', category=DeprecationWarning, module='__main__')
    warnings.showwarning = show  # type: ignore[assignment]

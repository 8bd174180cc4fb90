"""``capturekit lint``: a script or a function run once, and all that a capture of it would refuse, lose or bake in."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import runpy
import sys
import traceback
from collections.abc import Callable
from typing import Any

from capturekit.linting import Linting, Report
from capturekit.scripts import as_main, join_threads, why_no_gpu

_DESCRIPTION = """\
Run a script, or a function without arguments, once and eagerly, as if a capture had been opened before its first line,
and list at once all that the capture would refuse, silently leave out, or record otherwise than it reads: each with its
line, the rule, what a strict capture does, what strict=False makes of it, and what to write instead. Nothing is
recorded and nothing refused: the results are those of an eager run.
"""
_EPILOG = """\
The exit status is 0 if a strict capture would refuse nothing (with --adapting: one with strict=False), 1 if there is
something or the code failed, 2 if there is nothing to run. Without a GPU the simulated device is used; one line on
standard error says which of the two it was. Options go before the target; what follows a script is its own. With
--json standard output is the report alone; what the code prints goes to standard error.

examples:
  python -m capturekit lint samples/fork_join.py
  python -m capturekit lint --simulate train.py --epochs 3
  python -m capturekit lint --adapting --json mypackage.model:step
"""


def add(commands: Any) -> None:
    """Add the command's parser."""
    parser = commands.add_parser(
        'lint',
        help='list all that a capture of a script or function would refuse, lose or bake in',
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument('--simulate', action='store_true', help='use the simulated device even where there is a GPU')
    parser.add_argument('--seed', type=int, default=0, metavar='N', help="the simulated device's seed (default 0)")
    parser.add_argument('--adapting', action='store_true', help='only what strict=False would refuse counts')
    parser.add_argument('--json', action='store_true', help='print the report as JSON')
    parser.add_argument('target', help='a Python file, or module:function')
    parser.add_argument('args', nargs=argparse.REMAINDER, help="a script's own arguments")
    parser.set_defaults(go=_go)


def _go(given: argparse.Namespace) -> int:
    module, colon, function = given.target.partition(':')
    script = not colon or os.path.exists(given.target)
    if script and not os.path.isfile(given.target):
        return _usage(f'there is no file {given.target!r}; a function is given as module:function')
    if not script and (given.args or not module or not function):
        return _usage('a function is given as module:function, and takes no arguments')
    with contextlib.ExitStack() as stack:
        if not _device(stack, given):
            return 1
        folder = os.path.dirname(os.path.realpath(given.target)) if script else os.getcwd()
        stack.enter_context(as_main([given.target, *given.args], folder))
        if given.json:
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        if script:
            return _lint(lambda: runpy.run_path(given.target, run_name='__main__'), given)
        try:
            found = _resolve(module, function)
        except _Missing as missing:
            return _usage(str(missing))
        except Exception:
            traceback.print_exc()
            return 1
        return _lint(found, given)


class _Missing(Exception):
    """There is no such function."""


def _resolve(module: str, function: str) -> Callable[[], Any]:
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and f'{module}.'.startswith(f'{error.name}.'):
            raise _Missing(f'there is no module {error.name!r}') from None
        raise
    for name in function.split('.'):
        found = getattr(found, name, None)
    if not callable(found):
        raise _Missing(f'there is no function {function!r} in {module}')
    return found  # type: ignore[no-any-return]


def _usage(text: str) -> int:
    print(f'capturekit: {text}', file=sys.stderr)
    return 2


def _device(stack: contextlib.ExitStack, given: argparse.Namespace) -> bool:
    """Put the device in place, and say which; False if there is a GPU that can't be used."""
    why = '--simulate was given' if given.simulate else why_no_gpu()
    if why is None:
        from capturekit.cuda import current

        try:
            platform = current()
        except ImportError as error:
            print(f'capturekit: {error}', file=sys.stderr)
            return False
        said = f'on the GPU, CuPy {platform.cupy.__version__}'
    else:
        from capturekit.simulated import SimulatedDevice, install, uninstall

        install(SimulatedDevice(given.seed))
        stack.callback(uninstall)
        said = f'on the simulated device, seed {given.seed} ({why})'
    print(f'capturekit: {said}', file=sys.stderr, flush=True)
    return True


def _lint(run: Callable[[], Any], given: argparse.Namespace) -> int:
    report, failed = Report(), 0
    try:
        with Linting() as report:
            try:
                report.result = run()
            except SystemExit as left:
                failed = _left(left.code)
            join_threads()
    except KeyboardInterrupt:
        failed = 130
    except Exception as error:
        failed = 1
        notes = getattr(error, '__notes__', [])
        notes[:] = [note for note in notes if not note.startswith('capturekit lint, up to here')]
        sys.stdout.flush()
        traceback.print_exception(type(error), error, error.__traceback__)
    text = json.dumps(report.to_json(), indent=1) if given.json else str(report)
    print(text, file=sys.__stdout__ if given.json else sys.stdout, flush=True)
    return failed or int(not (report.ok_adapting if given.adapting else report.ok))


def _left(code: Any) -> int:
    """What ``sys.exit`` was given, as a status."""
    if code is None or code == 0:
        return 0
    print(f'capturekit: the script left with {code!r}', file=sys.stderr)
    return 1

"""The commands: ``python -m capturekit run script.py`` and what else ``--help`` names.

``run`` runs a script as Python would, with the guard in force, on the GPU or on the simulated device. What goes wrong
in the script is shown as the script's own: a refused call by its message, anything else by the script's frames.
"""

from __future__ import annotations

import argparse
import importlib
import os
import runpy
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import numpy

from capturekit import __version__
from capturekit.errors import CaptureError
from capturekit.recording import Recording
from capturekit.scripts import as_main, join_threads, why_no_gpu

_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
_NUMPY = os.path.dirname(os.path.abspath(numpy.__file__)) + os.sep
_RUNPY = ('<frozen runpy>', runpy.__file__)

#: Modules of capturekit.commands, in the order in which --help names them: each has ``add(commands)``.
COMMANDS: tuple[str, ...] = ('rules', 'explain', 'doctor', 'view', 'lint')

_DESCRIPTION = 'Record CuPy work into CUDA graphs, across streams, and refuse what would break the capture.'
_EPILOG = """\
examples:
  python -m capturekit run train.py --epochs 3     an unchanged script, on the GPU if there is one
  python -m capturekit run --simulate train.py     the same without a GPU
  python -m capturekit run --help                  what `run` does, and its options
"""
_RUN_DESCRIPTION = """\
Run a script as `python script.py` would, and watch over every capture in it: those of capturekit and those that the
script begins and ends by itself with CuPy's begin_capture and end_capture. A call that would lose the capture, or
leave work out of it, is refused before CUDA sees it: the message says what and where, CUDA's rule, and what to write
instead; the exit status is 1.
"""
_RUN_EPILOG = """\
Without a GPU, `import cupy` in the script finds a stand-in that computes with NumPy and answers as CUDA does. One line
on standard error says which of the two it was. Options go before the script; what follows it is the script's own.

examples:
  python -m capturekit run samples/fork_join.py
  python -m capturekit run --simulate samples/fork_join.py 100000
  python -m capturekit run --simulate --seed 7 train.py --epochs 3
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (``sys.argv[1:]`` if None) and return the exit status."""
    given = _parser().parse_args(argv)
    status: int = given.go(given)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog='python -m capturekit',
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument('--version', action='version', version=f'capturekit {__version__}')
    commands = parser.add_subparsers(title='commands', metavar='command', required=True)
    run = commands.add_parser(
        'run',
        help='run a script with the guard in force, on the GPU or the simulated device',
        description=_RUN_DESCRIPTION,
        epilog=_RUN_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    run.add_argument('--simulate', action='store_true', help='use the simulated device even where there is a GPU')
    run.add_argument(
        '--seed',
        type=int,
        default=0,
        metavar='N',
        help='seed of the order in which simulated graphs compute their nodes (default 0)',
    )
    run.add_argument(
        '--devices', type=int, default=1, metavar='N', help='how many devices the simulated machine has (default 1)'
    )
    run.add_argument('--full-traceback', action='store_true', help="show capturekit's own frames, too")
    run.add_argument('--save', metavar='FILE', help='write what each capture left behind to FILE, FILE-2 ... (JSON)')
    run.add_argument('--report', metavar='FILE', help='write a page (HTML) of the capture that failed, or the last')
    run.add_argument('script', help='the Python file to run')
    run.add_argument('args', nargs=argparse.REMAINDER, help="the script's own arguments")
    run.set_defaults(go=_run_given)
    for name in COMMANDS:
        importlib.import_module(f'capturekit.commands.{name}').add(commands)
    return parser


# -- run ------------------------------------------------------------------------------------------------------


def _run_given(given: argparse.Namespace) -> int:
    with _kept(given.save, given.report):
        simulated = given.simulate, given.seed, given.devices
        return _run(given.script, given.args, *simulated, whole=given.full_traceback)


@contextmanager
def _kept(save: str | None, report: str | None) -> Iterator[None]:
    """Write what captures leave behind: each recording as it ends, and at the end a page of the one to look at."""
    if save is None and report is None:
        yield
        return
    from capturekit.guard import HEARD
    from capturekit.render import to_html

    found: list[Recording] = []

    def hear(recording: Recording, graph: Any) -> None:
        if graph is not None:
            graph.describe()
        found.append(recording)
        if save is not None:
            stem, suffix = os.path.splitext(save)
            path = save if len(found) == 1 else f'{stem}-{len(found)}{suffix}'
            recording.save(path)
            _say(f'{recording.outcome} recording of {recording.nodes} nodes written to {path}')

    HEARD.append(hear)
    try:
        yield
    finally:
        HEARD.remove(hear)
        if report is not None and found:
            shown = next((one for one in found if one.outcome != 'good'), found[-1])
            with open(report, 'w', encoding='utf-8') as f:
                f.write(to_html(shown))
            _say(f'report of a {shown.outcome} capture written to {report}')
        elif report is not None:
            _say('no capture ended, so there is nothing to report')


def _run(script: str, args: list[str], simulate: bool, seed: int, devices: int, *, whole: bool) -> int:
    if not os.path.exists(script):
        _say(f'there is no file {script!r}')
        return 2
    if devices < 1:
        _say(f'--devices takes a number of at least 1, got {devices}')
        return 2
    missing = '--simulate was given' if simulate else why_no_gpu()
    if missing is None:
        return _on_gpu(script, args, whole)
    return _on_simulated(script, args, missing, seed, devices, whole)


def _on_gpu(script: str, args: list[str], whole: bool) -> int:
    import cupy

    from capturekit.cuda import current

    try:
        current()
    except ImportError as error:
        _say(f'{error}\n  Or without the GPU: python -m capturekit run --simulate {script}')
        return 1
    name = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)['name'].decode()
    _say(f'on the GPU ({name}), CuPy {cupy.__version__}')
    return _guarded(script, args, whole)


def _on_simulated(script: str, args: list[str], why: str, seed: int, devices: int, whole: bool) -> int:
    from capturekit.simulated import SimulatedDevice, install, uninstall

    _say(f'on the simulated device, seed {seed} ({why})')
    install(SimulatedDevice(seed, devices=devices))
    try:
        return _guarded(script, args, whole)
    finally:
        uninstall()


def _say(text: str) -> None:
    print(f'capturekit: {text}', file=sys.stderr, flush=True)


def _guarded(script: str, args: list[str], whole: bool) -> int:
    from capturekit.figures import aloud
    from capturekit.guard import GUARD, watch

    folder = os.path.dirname(os.path.realpath(script)) if os.path.isfile(script) else None
    with as_main([script, *args], folder), aloud(), watch():
        try:
            runpy.run_path(script, run_name='__main__')
            join_threads()
            for live in GUARD.lives.values():
                _say(f'the capture begun at {live.at} was never ended: it made no graph')
            return 0
        except SystemExit:
            raise
        except BaseException as error:
            sys.stdout.flush()
            _show(error, whole)
            return 130 if isinstance(error, KeyboardInterrupt) else 1
        finally:
            for live in list(GUARD.lives.values()):
                GUARD.gone(live)


def _show(error: BaseException, whole: bool) -> None:
    """Print a refusal as its message, another exception as Python would but with the script's own frames only."""
    notes = getattr(error, '__notes__', ())
    if isinstance(error, CaptureError) and not whole:
        print(f'{type(error).__name__}: {error}', *notes, sep='\n', file=sys.stderr)
        return
    if not whole:
        _trim(error, set())
    sys.excepthook(type(error), error, error.__traceback__)
    if sys.version_info < (3, 11):
        print(*notes, sep='\n', end='\n' if notes else '', file=sys.stderr)


def _trim(error: BaseException | None, seen: set[int]) -> None:
    """Take the frames that are not the script's out of an exception, and of those that it came from."""
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        error.__traceback__ = _of_script(error.__traceback__)
        _trim(error.__cause__, seen)
        error = error.__context__


def _of_script(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of runpy and capturekit, and of NumPy where capturekit called it."""
    frames: list[TracebackType] = []
    below_us = False
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file.startswith(_OURS) or file in _RUNPY:
            below_us = True
        elif not (below_us and file.startswith(_NUMPY)):
            below_us = False
            frames.append(trace)
        trace = trace.tb_next
    kept: TracebackType | None = None
    for at in reversed(frames):
        kept = TracebackType(kept, at.tb_frame, at.tb_lasti, at.tb_lineno)
    return kept

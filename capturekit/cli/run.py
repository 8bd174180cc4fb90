"""Running a script: ``python -m capturekit run``.

The script runs as Python would run it, with the guard in force, on the GPU or on the simulated device. An error in it
is shown as the script's own: a refused call by its message, anything else by the script's frames.
"""

from __future__ import annotations

import argparse
import importlib.util
import linecache
import os
import runpy
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from capturekit.cli.script_runner import ExitCallbacks, add_device, as_main, device, observed, run_code, watched
from capturekit.cli.terminal import pipe_closed, say, tell_of_crashes, unwritable
from capturekit.cli.traceback_text import LEFT, NO_END, LostRefusals, show, show_causes
from capturekit.driver.cupti import Untraceable
from capturekit.guard import GUARD, LISTENERS, watch
from capturekit.guard.verdicts import unended
from capturekit.model.causes import PROGRAM, shown_with
from capturekit.model.counted import counted
from capturekit.model.counters import aloud
from capturekit.model.errors import CaptureError
from capturekit.model.recording import Recording
from capturekit.render import to_html

#: The file's name of code that was given with -c.
_STRING = '<string>'
_DESCRIPTION = """\
Run a script as `python script.py` would, and watch over every capture in it: those of capturekit and those that the
script begins and ends by itself with CuPy's begin_capture and end_capture. A call that would lose the capture, or
leave work out of it, is refused before CUDA sees it. The message says what was called and where, why CUDA can not do
it, and what to write instead; the exit status is 1.

With --observe no call is refused: the script runs as it does without capturekit, and at the end standard error lists
what would have been refused. What has lost a capture comes first.

With --watch every call to CUDA is watched, whoever makes it: PyTorch, Numba, Warp, cuda.core, a C++ library. Every
capture of the process is followed, torch.cuda.graph too, and at the end standard error lists the first call that lost
a capture, with its line and library, work that escaped, and lanes that were never joined. Calls of CuPy are refused
all the same, unless --observe is given. It needs CUPTI (pip install nvidia-cuda-cupti, which PyTorch brings) and no
other profiler in the process.
"""
EPILOG = """\
Without a GPU, `import cupy` in the script finds a stand-in that computes with NumPy and answers as CUDA does. One line
on standard error says which one is used. Options go before the script; what follows it is the script's own.

examples:
  python -m capturekit run samples/fork_join.py
  python -m capturekit run --simulate samples/fork_join.py 100000
  python -m capturekit run --simulate --seed 7 train.py --epochs 3
  python -m capturekit run --report failed.html -m mypackage.train --epochs 3
  python -m capturekit run --observe -m pytest tests/test_graphs.py
  python -m capturekit run --watch train_with_torch.py
  python -m capturekit run -c 'import cupy; print(cupy.arange(3) * 2)'
"""


def add(commands: Any) -> None:
    told = 'run a script, and refuse what would break its captures'
    run = commands.add_parser('run', help=told, description=_DESCRIPTION, epilog=EPILOG)
    add_device(run)
    devices = 'how many devices the simulated machine has (default 1)'
    run.add_argument('--devices', type=int, default=1, metavar='N', help=devices)
    frames = "short: the script's own frames (default); full: those of CuPy and capturekit, too"
    run.add_argument('--traceback', choices=('short', 'full'), default='short', help=frames)
    nothing = 'refuse nothing, and list at the end what would have been refused'
    run.add_argument('--observe', action='store_true', help=nothing)
    harm = "watch the calls to CUDA of every library, and list at the end what has harmed any library's captures"
    run.add_argument('--watch', action='store_true', help=harm)
    run.add_argument('--save', metavar='FILE', help='write the recording of each capture to FILE, FILE-2 ... (JSON)')
    run.add_argument('--report', metavar='FILE', help='write a page (HTML) of the capture that failed, or of the last')
    run.add_argument('-m', dest='module', nargs=argparse.REMAINDER, metavar='...', help='run a module, as python -m')
    run.add_argument('-c', dest='code', nargs=argparse.REMAINDER, metavar='...', help='run code, as python -c')
    run.add_argument('script', nargs='?', help='the Python file to run')
    run.add_argument('args', nargs=argparse.REMAINDER, help="the script's own arguments")
    run.set_defaults(go=lambda given: _run_given(run, given))


@dataclass
class _Program:
    """The program to run: ``words``, as Python's own command line has them, ``argv`` as it sees them, where it looks
    first."""

    words: str
    argv: list[str]
    folder: str | None
    go: Callable[[], Any]


#: Programs that run tests, which expect refusals themselves: what ends them is told by them.
_RUNNERS = (['-m', 'pytest'], ['-m', 'unittest'])


def _run_given(parser: argparse.ArgumentParser, given: argparse.Namespace) -> int:
    try:
        program = _program(parser, given)
        for path in (given.save, given.report):
            why = '' if path is None else unwritable(path)
            if why:
                raise _Wrong(f'{path!r} can not be written: {why}. Nothing was run.')
        if given.devices < 1:
            raise _Wrong(f'--devices takes a number of at least 1, got {given.devices}')
        with _kept(given.save, given.report), ExitStack() as stack:
            try:
                stack.enter_context(device(given.simulate, given.seed, given.devices))
            except ImportError as error:
                say(f'{error}\n  Or without the GPU: python -m capturekit run --simulate {program.words}')
                return 1
            return _guarded(program, given)
    except _Wrong as wrong:
        say(str(wrong))
    except Untraceable as missing:  # of --watch: what the script raises has been shown
        say(f'--watch is not possible here: {missing}. Nothing was run.')
    return 2


class _Wrong(Exception):
    """There is nothing to run."""


def _program(parser: argparse.ArgumentParser, given: argparse.Namespace) -> _Program:
    """The program that the command line names."""
    if given.module is not None or given.code is not None:
        option, words = ('-m', given.module) if given.module is not None else ('-c', given.code)
        if not words:
            parser.error(f'argument {option}: expected {"a module" if option == "-m" else "code"}')
        if given.script is not None:
            parser.error(f'a script and {option}: only one can be run')
        first, *rest = words
        if option == '-m':
            return _Program(f'-m {first}', [first, *rest], os.getcwd(), lambda: _run_module(first))
        return _Program("-c '...'", ['-c', *rest], os.getcwd(), lambda: _run_code(first))
    script = given.script
    if script is None:
        parser.error('the following arguments are required: script, -m module or -c code')
    if not os.path.exists(script):
        raise _Wrong(f'there is no file {script!r}')
    if os.path.isdir(script) and not os.path.exists(os.path.join(script, '__main__.py')):
        raise _Wrong(f'{script!r} is a folder without a __main__.py')
    if not os.access(script, os.R_OK):
        raise _Wrong(f'{script!r} can not be read')
    folder = os.path.dirname(os.path.realpath(script)) if os.path.isfile(script) else None
    return _Program(script, [script, *given.args], folder, lambda: runpy.run_path(script, run_name='__main__'))


def _run_module(name: str) -> None:
    """Run a module, or a package's ``__main__``. Raises _Wrong if there is none."""
    try:
        found = importlib.util.find_spec(name)
    except (ModuleNotFoundError, ValueError) as error:
        if isinstance(error, ModuleNotFoundError) and not f'{name}.'.startswith(f'{error.name}.'):
            raise
        found = None
    if found is None:
        raise _Wrong(f'there is no module {name!r}')
    if found.submodule_search_locations is not None and importlib.util.find_spec(f'{name}.__main__') is None:
        raise _Wrong(f'{name!r} is a package without a __main__')
    runpy.run_module(name, run_name='__main__', alter_sys=True)


def _run_code(text: str) -> None:
    lines = text.splitlines(keepends=True)
    linecache.cache[_STRING] = (len(text), None, lines, _STRING)  # so that its lines can be shown
    run_code(compile(text, _STRING, 'exec', dont_inherit=True), None, {})


@contextmanager
def _kept(save: str | None, report: str | None) -> Iterator[None]:
    """Write what captures leave behind: each recording as it ends, and at the end a page of the one to look at."""
    if save is None and report is None:
        yield
        return
    found: list[Recording] = []

    def hear(recording: Recording, graph: Any) -> None:
        if graph is not None:
            graph.describe()
        found.append(recording)
        if save is not None:
            stem, suffix = os.path.splitext(save)
            path = save if len(found) == 1 else f'{stem}-{len(found)}{suffix}'
            recording.save(path)
            say(f'{recording.outcome} recording of {counted(recording.node_count, "node")} written to {path}')

    LISTENERS.append(hear)
    try:
        yield
    finally:
        LISTENERS.remove(hear)
        if report is not None and found:
            shown = next((one for one in found if one.outcome != 'good'), found[-1])
            with open(report, 'w', encoding='utf-8') as f:
                f.write(to_html(shown))
            say(f'report of a {shown.outcome} capture written to {report}')
        elif report is not None:
            say('no report was written, because no capture was begun')


def _guarded(program: _Program, given: argparse.Namespace) -> int:
    tell_of_crashes()
    PROGRAM.clear()
    whole = given.traceback == 'full'
    lost, last, ended = LostRefusals(whole), ExitCallbacks(), None
    with ExitStack() as stack:
        for block in (as_main(program.argv, program.folder), aloud(), watch()):
            stack.enter_context(block)
        if given.watch:
            stack.enter_context(watched())
        if given.observe:
            stack.enter_context(observed())
        stack.enter_context(lost.heard())
        stack.enter_context(last)
        try:
            program.go()
            last.run(lost.of_callback)
            return _done(given.observe, lost)
        except SystemExit as leaving:
            well = leaving.code in (None, 0)
            if not well and program.words.split()[:2] not in _RUNNERS:
                show_causes(PROGRAM.before(), LEFT)
            last.run(lost.of_callback)
            known = any(isinstance(one, CaptureError) for one in shown_with(leaving))
            if well and not known and _done(given.observe, lost):
                return 1
            raise  # code that knows of a refusal, and ends well all the same, has decided
        except _Wrong as wrong:
            say(str(wrong))
            return 2
        except BaseException as error:
            ended = error
            if pipe_closed(error):
                return 1
            show(error, whole)
            return 130 if isinstance(error, KeyboardInterrupt) else 1
        finally:
            last.run(lost.of_callback)
            for live in list(GUARD.lives.values()):
                GUARD.manual.never_ended(live, ended)


def _done(observed: bool, lost: LostRefusals) -> int:
    """Say what a program that has come to its end is missing, and return the exit status.

    A program that is only observed decides itself about its exit status.
    """
    missing = lost.told()
    for live in list(GUARD.lives.values()):
        show_causes(live.causes.found, NO_END)
        held = GUARD.manual.kept_out(live) if live.memory is None else None
        if held is not None:
            missing.append(f'{held.operation}, at {held.location}, was held back and never ran')
        missing.append(unended(live))
    for what in missing:
        say(what)
    return 1 if missing and not observed else 0

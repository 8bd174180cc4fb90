"""What ``run`` and ``lint`` do alike around a script: find the GPU, run code as Python does, wait for threads."""

from __future__ import annotations

import argparse
import atexit
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import CodeType, ModuleType
from typing import Any

from capturekit.cli.by_environment import NAME, wanted
from capturekit.cli.terminal import paint, say
from capturekit.driver.cuda import current
from capturekit.guard import GUARD
from capturekit.guard.observer import LetThrough, Observer
from capturekit.guard.remedies import error_of
from capturekit.model.counted import counted
from capturekit.model.followed_captures import CaptureFinding, FollowedCapture
from capturekit.model.source_line import is_foreign_frame

# -- ``run --observe``: nothing is refused, and the end of standard error lists what would have been ------------------


@contextmanager
def observed() -> Iterator[None]:
    """Let every call of a block through to CUDA, and print at its end what would have been refused."""
    observer = Observer(GUARD)
    observer.open()
    try:
        yield
    finally:
        observer.close()
        found = observer.found
        calls = counted(sum(one.count for one in found), 'call')
        lost = 'what has lost a capture comes first' if any(one.loses for one in found) else 'no capture was lost'
        head = f'{calls} would have been refused, and {lost}:' if found else 'nothing would have been refused'
        say('\n'.join([head, *map(_told, found)]))


def _told(one: LetThrough) -> str:
    came = 'It was let through' if one.count == 1 else f'It was let through {one.count} times'
    came += ', and the capture was lost.' if one.loses else '.'
    answer = f'CuPy raised {one.answer}' if one.answer else 'CuPy raised nothing.'
    return f'{paint(one.name, "error", sys.stderr)}: {one.message}\n  {came} {answer}'


# -- ``run --watch``: every capture of the process is followed, and the end lists what has harmed them ----------------


@contextmanager
def watched() -> Iterator[None]:
    """Follow the captures of a block, and print at its end what has harmed them.

    Raises:
        Untraceable: CUPTI is not available, or another tool uses it.
    """
    report = WatchReport()
    hear, watch = report.hear, GUARD.state.call_watch
    watch.open(current(), hear)
    try:
        yield
    finally:
        for one in watch.open_captures():
            hear(one)
        watch.close(hear)
        say(report.text())
        if watch.failure is not None:
            say(f'the watch itself has failed, and saw nothing after that: {watch.failure!r}')


@dataclass
class _Found:
    """Findings of one line and one function: the first, with its capture, and the numbers of calls and captures."""

    finding: CaptureFinding
    one: FollowedCapture
    calls: int = 0
    captures: int = 0


class WatchReport:
    """What has harmed captures, in the words of refusals. Of captures that are good it keeps the number."""

    def __init__(self) -> None:
        self._followed = self._lost = self._past = 0
        self._found: dict[tuple[object, ...], _Found] = {}

    def hear(self, one: FollowedCapture) -> None:
        """Take in a capture that has ended."""
        if one.own:
            return
        self._followed += 1
        self._lost += one.loss is not None
        self._past += bool(one.escaped)
        for finding in one.findings:
            key = finding.kind, finding.call.function, finding.at, finding.code, one.at
            alike = self._found.setdefault(key, _Found(finding, one))
            alike.calls += finding.count
            alike.captures += 1

    def text(self) -> str:
        """Return the report: first what has lost a capture, then what went past one."""
        one = self._followed == 1
        text = f'{counted(self._followed, "capture")} {"was" if one else "were"} followed'
        if not self._found:
            return f'{text}, and nothing has harmed {"it" if one else "them"}' if self._followed else text
        text += f'; {self._lost or "none"} {"were" if self._lost > 1 else "was"} lost'
        text += f', and work went past {self._past}:' if self._past else ':'
        found = sorted(self._found.values(), key=lambda alike: alike.finding.kind == 'escaped')
        return '\n'.join([text, *map(_told_watching, found)])


def _told_watching(alike: _Found) -> str:
    error = error_of(alike.finding, alike.one.at, alike.one.maker)
    calls, captures = alike.calls, counted(alike.captures, 'capture')
    often = '' if calls == 1 else f'\n  The call was made {calls} times, in {captures}.'
    return f'{paint(type(error).__name__, "error", sys.stderr)}: {error}{often}'


# -- the device, and code that runs as Python runs it -----------------------------------------------------------------


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose a device."""
    parser.add_argument('--simulate', action='store_true', help='use the simulated device even where there is a GPU')
    order = 'seed of the order in which simulated graphs compute their nodes (default 0)'
    parser.add_argument('--seed', type=int, default=0, metavar='N', help=order)


@contextmanager
def device(simulate: bool, seed: int, devices: int = 1) -> Iterator[None]:
    """Use the GPU for a block, or the simulated device, and say which one it is.

    Raises ImportError where there is a GPU that can't be used.
    """
    why = '--simulate was given' if simulate else why_no_gpu()
    if why is None:
        cupy = current().cupy
        name = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)['name'].decode()
        say(f'on the GPU ({name}), CuPy {cupy.__version__}')
        yield
        return
    from capturekit.simulated import SimulatedDevice, install, uninstall

    say(f'on the simulated device, seed {seed} ({why})')
    install(SimulatedDevice(seed, devices=devices))
    try:
        yield
    finally:
        uninstall()


def why_no_gpu() -> str | None:
    """Return None where CuPy finds a GPU, and otherwise what CuPy said, or who wants the simulated device."""
    if wanted():
        return f'{NAME} is set'
    try:
        import cupy

        return None if cupy.cuda.runtime.getDeviceCount() > 0 else 'no GPU: CuPy counts none'
    except Exception as error:
        return f'no GPU: {error}'.splitlines()[0]


@contextmanager
def as_main(argv: Sequence[str], folder: str | None) -> Iterator[None]:
    """Give code the ``sys.argv`` that Python would, and ``folder`` as the first place of ``sys.path``."""
    before, path = sys.argv, sys.path[:]
    sys.argv = list(argv)
    if folder is not None and not getattr(sys.flags, 'safe_path', False):
        sys.path[0] = folder
    try:
        yield
    finally:
        sys.argv, sys.path[:] = before, path


def run_code(code: CodeType, file: str | None, names: dict[str, Any]) -> None:
    """Run compiled code as the module ``__main__``, with more names in it."""
    module = ModuleType('__main__')
    vars(module).update({'__file__': file} if file is not None else {}, **names)
    before = sys.modules['__main__']
    sys.modules['__main__'] = module
    try:
        exec(code, vars(module))
    finally:
        sys.modules['__main__'] = before


def join_threads() -> None:
    """Wait as Python itself does before a script is over."""
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join()


class ExitCallbacks:
    """What a program gives to ``atexit`` in the block is called by :meth:`run`, while the program is still guarded.

    What libraries give to it stays there.
    """

    def __init__(self) -> None:
        self._given: list[Callable[[], Any]] = []
        self._register, self._unregister = atexit.register, atexit.unregister

    def __enter__(self) -> ExitCallbacks:
        atexit.register, atexit.unregister = self._take, self._drop
        return self

    def __exit__(self, *_exc: object) -> None:
        atexit.register, atexit.unregister = self._register, self._unregister
        while self._given:
            self._register(self._given.pop(0))

    def _take(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if is_foreign_frame(sys._getframe(1)) or not callable(function):
            return self._register(function, *args, **kwargs)
        self._given.append(partial(function, *args, **kwargs))
        return function

    def _drop(self, function: Callable[..., Any]) -> None:
        self._given = [one for one in self._given if getattr(one, 'func', None) != function]
        self._unregister(function)

    def run(self, failed: Callable[[BaseException], object]) -> None:
        """Wait for threads, and call the callbacks, the last one first, as Python does when a program has ended."""
        join_threads()
        while self._given:
            try:
                self._given.pop()()
            except BaseException as error:
                failed(error)

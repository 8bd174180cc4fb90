"""Runs a program of blocks, captured and plainly, and says what is neither right nor refused where it may be."""

from __future__ import annotations

import faulthandler
import gc
import importlib
import linecache
import multiprocessing
import os
import re
import signal
import sys
import threading
import traceback
import types
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np

import capturekit as ck
import capturekit.simulated
from capturekit.guard import GUARD
from capturekit.model.skipped_exits import CertainExit
from capturekit.simulated import SimulatedDevice, install, uninstall
from tests.agreement.block_programs import program
from tests.agreement.block_source import Program
from tests.agreement.choices import replayed
from tests.agreement.program_runner import Standin
from tests.agreement.trying import Kind, Outcome

FILE = 'program_of_blocks.py'
#: Where no interrupt comes: what the stand-in does there CuPy does in C.
STANDIN = os.path.dirname(capturekit.simulated.__file__)
#: Seconds after which a program in a process of its own counts as hanging.
LONGEST = 120


@dataclass
class Found(Outcome):
    """What a program gave. ``reasons``: what ended blocks; ``stains``: it leaves more than a finding."""

    stains: bool = False

    def tell(self, finding: str) -> None:
        self.finding = self.finding or finding
        first = self.finding.partition('\n')[0]
        first = re.sub(r"0x[0-9a-f]+|'[a-z]+\d+'|`[a-z]+\d+`", '#', first)
        first = re.sub(r'(wrong number .*?:).*', r'\1', first)
        self.signature = re.sub(r'\w*\d[\w.]*', '#', first).replace('program_of_blocks.py:', '')[:150]


class World:
    """One of the two sides: the module of a source, and the arrays and streams that its blocks work on."""

    def __init__(self, cp: Any, source: str, name: str) -> None:
        self.cp = cp
        self.module = types.ModuleType(name)
        self.module.__file__ = name
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
        exec(compile(source, name, 'exec'), vars(self.module))
        self.x = [cp.arange(4.0) * (n + 1) * 0.5 - n for n in range(4)]
        self.y = [cp.arange(4.0) - n for n in range(4)]
        self.m = cp.eye(4) * 0.5 + 0.125
        self.s = [cp.cuda.Stream(non_blocking=n % 4 != 3) for n in range(8)]
        cp.cuda.Device().synchronize()

    def change(self, number: int, how: int) -> None:
        """What happens between launches."""
        array = self.x[(number + how) % 4]
        array[...] = array[::-1] * 0.5 + (number + how)
        self.y[how][...] = self.y[how] - 1.0

    def block(self, number: int, keep: Any, caught: Any = None, missed: Any = None, right: Any = None) -> None:
        getattr(self.module, f'block{number}')(self.x, self.y, self.m, self.s, keep, caught, missed, right)

    def seen(self, kept: list[dict[str, Any]]) -> dict[str, Any]:
        """The values of all that can be compared."""
        self.cp.cuda.Device().synchronize()
        named = {f'X[{n}]': a for n, a in enumerate(self.x)} | {f'Y[{n}]': a for n, a in enumerate(self.y)}
        for some in kept:
            named.update(some)
        return {name: array.get() for name, array in named.items()}


class Machine(Standin):
    """Runs programs of blocks."""

    DEVICES, LASTS = 1, 60

    def run(self, program: Program, seed: int = 0) -> Found:
        """Run a program both ways."""
        if not self._is_there:
            self._there(program.late, seed)
        found = Found(counts=Counter(sound=int(program.sound), blocks=0, launched=0))
        with _quiet():
            try:
                Trial(importlib.import_module('cupy'), program, found).run()
            except Exception as error:  # what a finding has left behind
                found.tell(f'the run fails: {_words(error)}\n{_story(error)}')
        if found.finding:
            self._left = 0
            found.stains = bool(GUARD.lives or GUARD.installation.installed or not gc.isenabled())
        return found


class Workers:
    """Runs programs in a process that is another one after each finding, hang or crash. On a GPU it begins anew."""

    def __init__(self, there: bool, longest: float) -> None:
        self._there, self._longest, self._process, self._pipe = there, longest, None, None
        if not there:  # what the first one loads, the children have
            install(SimulatedDevice())
            uninstall()

    def run(self, drawn: list[int], seed: int) -> Found:
        """Run the program of these draws."""
        if self._process is None:
            context = multiprocessing.get_context('spawn' if self._there else 'fork')
            self._pipe, theirs = context.Pipe()
            self._process = context.Process(target=_serve, args=(theirs, self._there), daemon=True)
            self._process.start()
            theirs.close()
        found = _stained(f'no answer for {self._longest} seconds')
        try:
            self._pipe.send((drawn, seed))
            if self._pipe.poll(self._longest):
                found = self._pipe.recv()
        except (EOFError, OSError):
            found = _stained('the process died')
        if found.stains:
            self.close()
        return found

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None


def _stained(finding: str) -> Found:
    found = Found(stains=True)
    found.tell(finding)
    return found


def _serve(pipe: Any, there: bool) -> None:
    faulthandler.enable()
    with Machine(there) as machine:
        parent: Any = multiprocessing.parent_process()
        while parent.is_alive():
            if pipe.poll(5):
                drawn, seed = pipe.recv()
                pipe.send(machine.run(program(replayed(drawn)), seed))


@contextmanager
def kind(there: bool = False) -> Iterator[Kind]:
    """These programs, in processes of their own."""
    workers = Workers(there, LONGEST)
    try:
        yield Kind(program, lambda choices, _one, number: workers.run(choices.drawn, number), 'blocks ')
    finally:
        workers.close()


class Trial:
    """One program on one machine."""

    def __init__(self, cp: Any, program: Program, found: Found) -> None:
        self.cp, self.program, self.found = cp, program, found
        self.at = 0
        self.records: list[tuple[int, list[Any], list[dict[str, Any]]]] = []

    def run(self) -> None:
        self.captured = World(self.cp, self.program.captured, FILE)
        self.plain = World(self.cp, self.program.plain, f'plain_{FILE}')
        for number in range(len(self.program.blocks)):
            self.at = number
            self._block(number)
            if self.found.finding:
                break
        else:
            for record in self.records:
                self._launch(record, 3)
        self.probe()
        for _, caps, _ in self.records:
            for cap in caps:
                cap.graph.close()

    def _block(self, number: int) -> None:
        block, before, values = self.program.blocks[number], sight(self.cp, self.captured.s), self.captured.seen([])
        self.found.counts['blocks'] += 1
        caps, kept, error = self._recorded(number)
        if block.moves:
            self.cp.cuda.Stream.null.use()
        self._restored(before, values, 'after a block')
        if error is not None or caps is None:
            self._ended(number, error)
            return
        if block.ends != 'launched':
            self.found.tell(f'{block.ends} did not leave the block')
        record = (number, caps, kept)
        self.records.append(record)
        self.found.counts['launched'] += 1
        for launch, how in enumerate(self.program.changes):
            self._launch(record, how + launch)
        if block.interrupted and not block.wrong:
            self._interrupted(number)

    def _recorded(self, number: int, profile: Any = None) -> tuple[list[Any], list[dict[str, Any]], Any]:
        caps: list[Any] = []
        kept: list[dict[str, Any]] = []
        try:
            sys.setprofile(profile)
            self.captured.block(number, _keeps(caps, kept), self.caught, self.missed, self.right)
        except BaseException as error:
            return caps, kept, error
        finally:
            sys.setprofile(None)
            for thread in threading.enumerate():
                if thread.name == 'beside' and thread.is_alive():  # an interrupt may have come before the block's join
                    thread.join()
        return caps, kept, None

    def _ended(self, number: int, error: BaseException | None) -> None:
        """A block was left by an exception: it is the block's own, or a refusal at a line that may be refused."""
        block = self.program.blocks[number]
        self.found.reasons.append(type(error).__name__)
        if isinstance(error, KeyError) and block.ends == 'KeyError':
            return
        if not isinstance(error, ck.CaptureError):
            self.found.tell(f'bare {_words(error)} ({block.wrong or "sound"})\n{_story(error)}')
        elif not block.wrong:
            self.found.tell(f'a sound block is refused: {_words(error)}\n{_story(error)}')
        elif not self._at(error, 0):
            self.found.tell(f'refused at another line ({block.wrong}): {_words(error)}\n{_story(error)}')

    def _at(self, error: ck.CaptureError, mark: int) -> bool:
        lines = self.program.marks.get(mark, frozenset())
        if error.location is not None and not isinstance(error, ck.RaceError):
            return error.location.file == FILE and error.location.line in lines
        return any(int(line) in lines for line in re.findall(rf'{re.escape(FILE)}:(\d+)', str(error)))

    def caught(self, error: ck.CaptureError, mark: int) -> None:
        if not self._at(error, mark):
            wanted = sorted(self.program.marks[mark])
            self.found.tell(f'caught, but of another line: {_words(error)}\nwanted: {wanted}')

    def missed(self, mark: int) -> None:
        line = self.program.captured.splitlines()[min(self.program.marks[mark]) - 1].strip()
        self.found.tell(f'not refused: {line}')

    def right(self, is_right: bool) -> None:
        if not is_right:
            self.found.tell('another thread got a wrong number')

    def _launch(self, record: tuple[int, list[Any], list[dict[str, Any]]], how: int) -> None:
        """Launch, do the same plainly, and compare."""
        number, caps, kept = record
        block = self.program.blocks[number]
        plainly: list[dict[str, Any]] = []
        for world in (self.captured, self.plain):
            world.change(number, how % 4)
        try:
            for cap in caps:
                cap.graph.launch()
            got = self.captured.seen(kept)
        except Exception as error:
            self.found.tell(f'a launch raises ({block.wrong or "sound"}): {_words(error)}\n{_story(error)}')
            return
        self.plain.block(number, _keeps([], plainly))
        wanted = self.plain.seen(plainly)
        for name, array in wanted.items():
            if not np.allclose(got[name], array, rtol=1e-8, atol=1e-10, equal_nan=True):
                self.found.tell(f'wrong number ({block.wrong or "sound"}): {name} is {got[name]}, plainly {array}')

    def _interrupted(self, number: int) -> None:
        """Record the block again, and interrupt that at some moments."""
        before, values = sight(self.cp, self.captured.s), self.captured.seen([])
        count = [0]
        self._recorded(number, _interrupts(-1, count))
        self._restored(before, values, 'after a block')
        for place in self.program.blocks[number].interrupted:
            at = 1 + place * count[0] // 1000
            error = self._recorded(number, _interrupts(at, [0]))[2]
            self.found.reasons.append(type(error).__name__)
            if not isinstance(error, (type(None), KeyboardInterrupt, KeyError)):
                self.found.tell(f'an interrupt becomes {_words(error)}\n{_story(error)}')
            self._restored(before, values, f'after {type(error).__name__}')
            self.probe(f' after {type(error).__name__}')
            if self.found.finding:
                self.found.finding += f'\ninterrupted at {at} of {count[0]}:\n{_story(error)}'
                return

    def _restored(self, before: dict[str, Any], values: dict[str, Any], when: str) -> None:
        now = sight(self.cp, self.captured.s)
        for name, value in before.items():
            if now[name] != value:
                self.found.tell(f'not restored {when}: {name}: {value!r} became {now[name]!r}')
        if self.found.finding:
            return
        for name, array in self.captured.seen([]).items():
            if not np.array_equal(array, values[name], equal_nan=True):
                self.found.tell(
                    f'work of a block ran at once ({self.program.blocks[self.at].wrong or "sound"}): {name}'
                )

    def probe(self, when: str = '') -> None:
        """A plain capture afterwards is guarded, follows joins, and gives a right graph."""
        cp, side = self.cp, self.captured.s[0]
        x, refused = cp.arange(4.0), 0
        try:
            with ck.capture() as cap:
                y = x * 2.0
                side.wait_event(cap.stream.record())
                with side:
                    z = y + 1.0
                cap.join(side)
                try:
                    float(z.sum())
                except ck.HostReadError:
                    refused = 1
                try:
                    with self.captured.s[1]:
                        x * 3.0
                except ck.EscapedWorkError:
                    refused += 1
            cap.graph.launch()
            if refused != 2 or z.get().tolist() != [1.0, 3.0, 5.0, 7.0]:
                self.found.tell(f'the next capture{when} is wrong: {z}, refused {refused} of 2')
            cap.graph.close()
        except Exception as error:
            self.found.tell(f'the next capture{when} fails: {_words(error)}\n{_story(error)}')


def _keeps(caps: list[Any], kept: list[dict[str, Any]]) -> Callable[..., None]:
    def keep(cap: Any, **named: Any) -> None:
        caps.append(cap)
        kept.append(named)

    return keep


def capturing(cp: Any, streams: list[Any]) -> int:
    """How many of the streams are captured, or were until that was lost."""
    found = 0
    for stream in streams:
        try:
            found += bool(cp.cuda.runtime.streamIsCapturing(stream.ptr))
        except RuntimeError:
            found += 1
    return found


def sight(cp: Any, streams: list[Any]) -> dict[str, Any]:
    """All that has to be as before when a block is over."""
    allocator = cp.cuda.get_allocator()
    tools = [sys.monitoring.get_tool(n) for n in range(6)] if sys.version_info >= (3, 12) else []
    return {
        'the current stream': cp.cuda.get_current_stream().ptr, 'the device': cp.cuda.Device().id,
        'the allocator': (getattr(allocator, '__func__', allocator), id(getattr(allocator, '__self__', None))),
        'garbage collection': gc.isenabled(), 'callbacks of the collector': list(gc.callbacks),
        'the hooks': (sys.excepthook, sys.unraisablehook, threading.excepthook, sys.gettrace(), sys.getprofile()),
        'SIGINT': signal.getsignal(signal.SIGINT), 'tools': tools, 'open captures': len(GUARD.lives),
        'wrappers': GUARD.installation.installed, 'float': id(cp.ndarray.__dict__.get('__float__')),
        'synchronize': id(cp.cuda.Stream.__dict__.get('synchronize')), 'alloc': id(cp.cuda.alloc),
        'svd': id(cp.linalg.svd), 'captured streams': capturing(cp, streams),
    }  # fmt: skip


@contextmanager
def _quiet() -> Iterator[None]:
    """Nobody hears of warnings, nor of an interrupt in a finalizer, which Python only tells of."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with mock.patch.object(sys, 'unraisablehook', lambda _: None), warnings.catch_warnings(action='ignore'):
            yield
    finally:
        signal.signal(signal.SIGINT, before)


def _interrupts(at: int, count: list[int]) -> Callable[[Any, str, Any], None]:
    """A signal comes at so many entries of functions and ends of calls into C, where Python looks for signals."""
    looked_up = CertainExit.__get__.__code__  # a program that leaves its block by hand has not left it then

    def event(frame: Any, kind: str, _arg: Any) -> None:
        code = frame.f_code
        if kind in ('call', 'c_return') and STANDIN not in code.co_filename and code is not looked_up:
            count[0] += 1
            if count[0] == at:
                sys.setprofile(None)
                signal.raise_signal(signal.SIGINT)

    return event


def _words(error: BaseException) -> str:
    """The class and the first line, without what was caught before it."""
    text = error.own_text() if isinstance(error, ck.CaptureError) else str(error)
    return f'{type(error).__name__}: {text.strip().partition(chr(10))[0]}'


def _story(error: BaseException | None) -> str:
    return '' if error is None else ''.join(traceback.format_exception(error))[-4000:]

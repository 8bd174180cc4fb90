"""Signals whose handlers raise, at every place of a block where Python calls a handler: all is undone, and later
captures are guarded.

Python calls handlers at the first instruction of a function, and when a call of a C function returns. There a profile
function is called, too, which raises the signal.
"""

from __future__ import annotations

import gc
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import capturekit as ck
from capturekit.driver.cuda import current
from capturekit.graphed.call_turns import BUSY, TURNS
from capturekit.guard import GUARD
from capturekit.launch.graph_memory import LaneBlocks
from capturekit.launch.memory_group import LaunchTurns
from capturekit.model.cleanup import instances
from capturekit.model.skipped_exits import Lock
from capturekit.simulated import device
from tests.examples import examples
from tests.recorder.test_teardown import view

DEVICE = str(Path(device.__file__).parent)


class _Elsewhere(Exception):
    """What the handler of another signal than Ctrl-C raises."""


def _raise_elsewhere(_number: int, _frame: FrameType | None) -> None:
    raise _Elsewhere


@pytest.fixture
def numbers() -> Iterator[list[int]]:
    """Ctrl-C, and another signal: their handlers raise exceptions of two kinds."""
    kinds = {signal.SIGINT: signal.default_int_handler, signal.SIGALRM: _raise_elsewhere}
    before = {number: signal.signal(number, handler) for number, handler in kinds.items()}
    yield list(kinds)
    for number, handler in before.items():
        signal.signal(number, handler)


def in_cuda(frame: FrameType | None) -> bool:
    """Whether this is a call of CUDA, in which no Python runs outside of the simulated device."""
    while frame is not None and not frame.f_code.co_filename.startswith(DEVICE):
        frame = frame.f_back
    return frame is not None


class Points:
    """Counts the places where handlers are called, and raises a signal at one of them."""

    def __init__(self, number: int, at: int = -1) -> None:
        self.number, self.at = number, at
        self.seen: list[tuple[object, ...]] = []

    def __enter__(self) -> Points:
        sys.setprofile(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _called(self, frame: FrameType, event: str, _argument: object) -> None:
        if event in ('call', 'c_return') and frame.f_code is not Points.__exit__.__code__ and not in_cuda(frame):
            self.meet((frame.f_code, frame.f_lasti, event))

    def meet(self, place: tuple[object, ...]) -> None:
        self.seen.append(place)
        if len(self.seen) - 1 == self.at:
            signal.raise_signal(self.number)


def block(cp: Any, x: Any, s: Any, a: Any) -> None:
    with ck.capture(s, memory=ck.MemoryGroup()) as cap:
        y = x * 2
        a.wait_event(s.record())
        with a:
            z = y + 1
        cap.join(a)
        with suppress(ck.HostReadError):
            float(z.sum())
        with cap.fork(2) as (left, right):
            with left:
                y += 1
            with right:
                z += 1
        going = x[:1] < 1
        with cap.while_(going, limit=3):
            x += 1
            cp.less(x[:1], 1, out=going)
    for stream in (s, a):
        cap.graph.launch(stream)
    cap.graph.close()


def guarded(x: Any, s: Any, a: Any) -> None:
    """A later capture refuses what loses it, and follows what is joined; other threads are not kept out."""
    with ck.capture(s) as cap:
        y = x * 2
        a.wait_event(s.record())
        with a:
            z = y + 1
        cap.join(a)
        with pytest.raises(ck.HostReadError):
            float(z.sum())
    cap.graph.launch()
    assert bool((z == x * 2 + 1).all())
    free: list[bool] = []

    def take() -> None:
        free.append(GUARD.lock.acquire(timeout=5))
        GUARD.lock.release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    assert free == [True]


def chosen(seen: list[tuple[object, ...]]) -> list[int]:
    """The first and the last time that each place comes."""
    first = {key: n for n, key in reversed(list(enumerate(seen)))}
    last = {key: n for n, key in enumerate(seen)}
    return sorted({*first.values(), *last.values()})


def some(places: list[int], number: int) -> list[int]:
    return places[:: max(len(places) // examples(number), 1)]


def kept() -> list[Any]:
    """The locks that this thread has not given back."""
    return [one for one in instances(Lock) if one.depth()]


@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')  # signals in destructors
def test_interrupted_at_any_place(sim: Any, numbers: list[int]) -> None:
    """Some of all places are tried, with one signal and with the other in turn: the others are alike."""
    x, s, a = sim.arange(8.0), *(sim.cuda.Stream(non_blocking=True) for _ in range(2))
    for _ in range(2):
        block(sim, x, s, a)
    with Points(numbers[0]) as points:
        block(sim, x, s, a)
    for turn, at in enumerate(some(chosen(points.seen), 200)):
        before = view(sim)
        with suppress(KeyboardInterrupt, _Elsewhere), Points(numbers[turn % 2], at) as raised:
            block(sim, x, s, a)
        assert len(raised.seen) >= at
        assert view(sim) == before, raised.seen[at]
        assert not kept(), raised.seen[at]
        guarded(x, s, a)


@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')  # signals in destructors
@pytest.mark.parametrize('kind', ['lock', 'lanes', 'turn'])
def test_no_block_keeps_its_lock(sim: Any, numbers: list[int], kind: str) -> None:
    turns, stream = LaunchTurns(current(), sim.cuda.Device), sim.cuda.Stream()
    blocks: Any = {'lock': Lock(), 'lanes': LaneBlocks(current().cupy), 'turn': turns.taken(stream.ptr)}
    block, lock = blocks[kind], turns.lock if kind == 'turn' else blocks[kind]

    def whole() -> None:
        with block:
            pass

    with Points(numbers[0]) as points:
        whole()
    for at in range(len(points.seen)):
        with suppress(KeyboardInterrupt), Points(numbers[0], at) as raised:
            whole()
        assert not lock.depth(), raised.seen[at]
    assert len(points.seen) > 1


@pytest.mark.parametrize('place', ['current_streams.here', 'line_trace.Trace.taken'])
def test_no_stream_stays_held(sim: Any, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    s, other = (sim.cuda.Stream(non_blocking=True) for _ in range(2))
    came: list[str] = []

    def interrupted(*_: Any) -> None:
        if not came and sys._getframe(1).f_code.co_name in ('hold', 'release'):
            came.append(place)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), ck.capture(s), other:
        with other:  # it is held again below
            pass
        monkeypatch.setattr(f'capturekit.guard.{place}', interrupted)
        with s:
            pass
    assert came and not other.is_capturing() and not s.is_capturing()


class Model:
    """State that each call changes, a number that is computed with, and a decision by what the host reads."""

    def __init__(self, cp: Any) -> None:
        self.n, self.v = 0, cp.zeros(4)

    def step(self, x: Any) -> Any:
        self.n += 1
        self.v = self.v * 0.5 + x
        return self.v + self.n if float(x.max()) > 2 else self.v - self.n


def begun() -> list[Any]:
    """What a call of a graphed function leaves as it was."""
    tools = [sys.monitoring.get_tool(n) for n in (3, 4, 5)] if sys.version_info >= (3, 12) else []
    left = [GUARD.installation.installed, GUARD.occupied(), BUSY.depth, TURNS.mark() is None, sys.getprofile()]
    return [*left, gc.isenabled(), len(gc.callbacks), tools]


@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')  # signals in destructors
@pytest.mark.parametrize('earlier', [0, 1, 4], ids=['watched', 'recorded', 'launched'])
def test_interrupted_at_any_place_of_a_call(
    sim: Any, numbers: list[int], earlier: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_destructors: list[object] = []
    monkeypatch.setattr(sys, 'unraisablehook', lambda told: in_destructors.append(told.exc_type))

    def made() -> Any:
        model: Any = Model(sim)
        model.graphed = ck.graphed(model.step)
        for n in range(earlier):
            model.graphed(sim.arange(4.0) + n)
        return model

    for _ in range(2):  # the first time there is more to do
        with Points(numbers[0]) as points:
            made().graphed(sim.arange(4.0))
    places, before = chosen(points.seen), begun()
    for n, at in enumerate(some(places, 100)):
        model, x, found, answered = made(), sim.arange(4.0) + 9, list[Any](), False
        with suppress(KeyboardInterrupt, _Elsewhere), Points(numbers[n % 2], at) as raised:
            model.graphed(sim.arange(4.0))
            answered = True
        assert not answered or in_destructors or len(raised.seen) <= at, raised.seen[-1]  # what is raised arrives
        in_destructors.clear()
        assert begun() == before, raised.seen[-1]
        assert not kept(), raised.seen[-1]
        wanted = (model.v * 0.5 + x + model.n + 1).get().tolist()
        other = threading.Thread(target=lambda: found.append(model.graphed(x).get().tolist()), daemon=True)  # noqa: B023
        other.start()
        other.join(30)
        assert found == [wanted], raised.seen[-1]

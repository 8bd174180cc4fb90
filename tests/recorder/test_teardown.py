"""The way out: whatever happens in the block or on its edges, afterwards the world is as before."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import capturekit as ck
from capturekit.guard import GUARD
from capturekit.guard.entry_points import ENTRIES
from capturekit.guard.patching import resolve
from capturekit.launch.deferred_unload import UNLOADING
from capturekit.model.cleanup import GARBAGE, Undo
from capturekit.model.errors import CudaCallError
from capturekit.model.rules import Mode
from capturekit.recorder import capture as blocks
from tests.captured import launched


def view(cp: Any) -> dict[str, object]:
    """All that a capture touches, by identity where it can be."""
    device = cp.__capturekit_simulated__
    mode = device.exchange_thread_mode(Mode.GLOBAL)
    device.exchange_thread_mode(mode)
    names = {
        str(e): resolve(e.holder).__dict__.get(e.name, 'absent')
        for e in ENTRIES
        if not e.optional and hasattr(resolve(e.holder), e.name)
    }
    return {
        **names,
        'gc': gc.isenabled(),
        'allocator': cp.cuda.memory._get_thread_local_allocator(),
        'stream': cp.cuda.get_current_stream(),
        'mode': mode,
        'open captures': len(device.captures),
        'lives': dict(GUARD.lives),
        'allocators kept': dict(GUARD.allocators.kept),
        'topology': (list(GUARD.ledger.captures), dict(GUARD.ledger.lanes)),
        'interception': GUARD.installation.installed,
    }


@contextmanager
def unchanged(cp: Any) -> Iterator[None]:
    """Whatever the block raises, afterwards all is as before and the next capture works."""
    before = view(cp)
    yield
    assert view(cp) == before
    x = cp.arange(4, dtype='f8')
    with ck.capture() as cap:
        y = x * 2
    assert launched(cap, y) == [[0, 2, 4, 6]]
    assert view(cp) == before


def fail(kind: type[BaseException]) -> Callable[..., Any]:
    def failing(*_args: Any, **_kwargs: Any) -> Any:
        raise kind('made to fail')

    return failing


@pytest.mark.parametrize('kind', [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError])
def test_the_bodys_exception_arrives(sim: Any, kind: type[BaseException]) -> None:
    x = sim.arange(4, dtype='f8')
    side = sim.cuda.Stream(non_blocking=True)
    with unchanged(sim):
        error = kind('from the body')
        with pytest.raises(kind) as info, ck.capture() as cap:
            side.wait_event(cap.stream.record())
            with side:
                x + 1
                raise error
        assert info.value is error
        assert cap.recording.outcome == 'failed'
        with pytest.raises(ck.ClosedError, match='made no graph'):
            cap.graph  # noqa: B018


def test_the_bodys_exception_arrives_from_a_lost_capture(sim: Any) -> None:
    with unchanged(sim):
        with pytest.raises(ZeroDivisionError), ck.capture() as cap:
            lose(sim)
            1 / 0  # noqa: B018
        assert cap.recording.outcome == 'failed'


def lose(cp: Any) -> None:
    """What a C library might do: the device is asked past every wrapper."""
    with pytest.raises(CudaCallError):
        cp.__capturekit_simulated__.device_synchronize()


def test_unjoined_names_every_lane(sim: Any) -> None:
    x = sim.arange(4, dtype='f8')
    streams = [sim.cuda.Stream(non_blocking=True) for _ in range(5)]
    with unchanged(sim):
        with pytest.raises(ck.UnjoinedError) as info, ck.capture() as cap:
            for i, s in enumerate(streams):
                s.wait_event(cap.stream.record())
                if i != 3:  # forked and never worked on: CUDA asks nothing of it
                    with s:
                        x * i
            cap.join(streams[1])
            cap.join(streams[2])
            with streams[2]:
                x * 7
        lanes = info.value.lanes
        assert [lane['stream'] for lane in lanes] == [streams[0].ptr, streams[2].ptr, streams[4].ptr]
        assert all(lane['forked_at'].file == __file__ for lane in lanes)
        assert 'joined at' in lanes[1]['text'] and 'worked on again' in lanes[1]['text']
        assert '3 lanes left unjoined' in str(info.value)


def work_on(stream: Any, x: Any) -> int:
    with stream:
        x + 1
        line = sys._getframe().f_lineno
        x * 2
    return line + 1


@pytest.mark.parametrize('count', [1, 2])
def test_unjoined_says_where_each_lane_worked_last(sim: Any, count: int) -> None:
    """Not where it was made current last."""
    x = sim.arange(4, dtype='f8')
    streams = [sim.cuda.Stream(non_blocking=True) for _ in range(count)]
    with unchanged(sim):
        with pytest.raises(ck.UnjoinedError) as info, ck.capture() as cap:
            for s in streams:
                forked = sys._getframe().f_lineno + 1
                s.wait_event(cap.stream.record())
                worked = work_on(s, x)
            for s in streams:
                with s:
                    pass
            y = x + 1
        del y
        name = Path(__file__).name
        told = str(info.value).splitlines()[0]
        assert [lane['last_use'].line for lane in info.value.lanes] == [worked] * count
        assert told.count(f'at {name}:{forked} in') == told.count(f'last used at {name}:{worked} in work_on') == count
        assert told.count(f'{name}:') == 2 * count, 'no place without a word'


#: The steps, and the priority of a lane: where lanes have several, it is capturekit that instantiates.
DEVICE_STEPS = [
    *((verb, None) for verb in ('begin_capture', 'exchange_thread_mode', 'stream_flags')),
    *((verb, priority) for verb in ('end_capture', 'graph_instantiate') for priority in (None, -1)),
    ('stream_priority', -1),
]


@pytest.mark.parametrize('kind', [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize(('verb', 'priority'), DEVICE_STEPS)
def test_each_step_of_the_device_may_fail(
    sim: Any, monkeypatch: pytest.MonkeyPatch, verb: str, priority: int | None, kind: type[BaseException]
) -> None:
    device = sim.__capturekit_simulated__
    with ck.fork(1, priority=priority):  # the stream is there, and stays
        pass
    x = sim.arange(4, dtype='f8')
    with unchanged(sim):
        original = getattr(device, verb)
        calls = []

        def once(*args: Any, **kwargs: Any) -> Any:
            calls.append(args)
            if len(calls) == 1:
                raise kind('made to fail')
            return original(*args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(device, verb, once)
            with pytest.raises(kind, match='made to fail'), ck.capture():
                with ck.fork(1, priority=priority) as (lane,), lane:
                    x * 2
        assert calls and not device.captures


OUR_STEPS: list[tuple[Any, str]] = [
    (GUARD, 'install'),
    (GUARD.captures, 'opened'),
    (GUARD.allocators, 'to_lane'),
    (GUARD.lanes, 'find_work'),
    (GUARD.verdicts, 'check'),
    (GUARD.captures, 'gone'),
    (GUARD.allocators, 'restore'),
    (GUARD.ledger, 'begin'),
    (GARBAGE, 'hold'),
    (blocks, 'new_recording'),
    (blocks, 'close_recording'),
    (blocks, 'GraphMemory'),
]


@pytest.mark.parametrize('kind', [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize(('owner', 'name'), OUR_STEPS, ids=lambda v: v if isinstance(v, str) else '')
def test_each_step_of_ours_may_be_interrupted(
    sim: Any, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, kind: type[BaseException]
) -> None:
    """Before its work for steps of the way in; after its work for those of the way out, as an interrupt would."""
    x = sim.arange(4, dtype='f8')
    original = getattr(owner, name)
    calls = []

    def once(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        if len(calls) > 1 or name not in ('gone', 'restore', 'close_recording'):
            if len(calls) == 1:
                raise kind('made to fail')
            return original(*args, **kwargs)
        original(*args, **kwargs)
        raise kind('made to fail')

    with unchanged(sim):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, once)
            with pytest.raises(kind, match='made to fail'), ck.capture():
                x * 2
        assert calls


def test_a_graph_that_can_not_be_made_keeps_nothing(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = sim.arange(512, dtype='f8')
    device = sim.__capturekit_simulated__
    gc.collect()
    before = device.mem_get_info()[0], UNLOADING.holders
    with unchanged(sim):
        with monkeypatch.context() as patch:
            patch.setattr(blocks.Graph, '_make', fail(RuntimeError))
            with pytest.raises(RuntimeError, match='made to fail'), ck.capture() as cap:
                x * 2
        with pytest.raises(ck.ClosedError, match='made no graph'):
            cap.graph  # noqa: B018
        assert (device.mem_get_info()[0], UNLOADING.holders) == before


def test_undo_tries_every_step_and_an_interrupted_one_twice() -> None:
    done: list[str] = []
    undo = Undo()
    state = {'interrupted': False}

    def interrupted() -> None:
        if not state['interrupted']:
            state['interrupted'] = True
            raise KeyboardInterrupt
        done.append('second')

    undo.push(lambda: done.append('first'))
    undo.push(interrupted)
    undo.push(fail(ValueError))
    undo.push(lambda: done.append('fourth'))
    failure = undo.run()
    assert isinstance(failure, ValueError)
    assert done == ['fourth', 'second', 'first']
    assert undo.run() is None


def test_garbage_collection_is_held_off_and_given_back(sim: Any) -> None:
    with unchanged(sim):
        with ck.capture():
            assert not gc.isenabled()
            with ck.capture():
                assert not gc.isenabled()
            assert not gc.isenabled()
        assert gc.isenabled()
    gc.disable()
    try:
        with ck.capture():
            pass
        assert not gc.isenabled(), 'it was off before'
    finally:
        gc.enable()


def test_memory_runs_out(sim: Any) -> None:
    pool = sim.cuda.MemoryPool()
    pool.set_limit(size=4096)
    with unchanged(sim):
        with pytest.raises(sim.cuda.memory.OutOfMemoryError), ck.capture(pool=pool):
            sim.empty(1 << 20)


def test_leaving_on_another_thread_is_refused(sim: Any) -> None:
    cap = ck.capture()
    cap.__enter__()
    with ThreadPoolExecutor(1) as pool, pytest.raises(ck.WrongThreadError):
        pool.submit(cap.__exit__, None, None, None).result()
    cap.__exit__(None, None, None)
    assert cap.graph is not None

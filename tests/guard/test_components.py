"""Components of the guard, each made of stand-ins for what it calls: no capture is open, and no wrapper in place."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

import capturekit as ck
from capturekit.guard import GUARD, Components
from capturekit.guard.allocators import Allocators, CompiledUploads, Uploads
from capturekit.guard.captures import Captures
from capturekit.guard.current_streams import OutsideStreams, StreamSwitches
from capturekit.guard.effects import Effects
from capturekit.guard.entry_points import ENTRIES, Entry
from capturekit.guard.lanes import Joins, Lanes
from capturekit.guard.state import State
from capturekit.guard.stream_calls import StreamWork
from capturekit.guard.verdicts import Verdicts
from capturekit.model.host_reads import Rehearsal
from capturekit.model.ledger import LedgerCapture
from capturekit.model.rules import Mode, Operation

ORIGIN, SIDE, STRANGER = 0x10, 0x20, 0x30
#: The thread of the captures below; no test runs in it.
THEIRS = -1


def stream(ptr: int) -> Any:
    return SimpleNamespace(ptr=ptr)


def entry(name: str) -> Entry:
    """A row of the table, by the end of its name."""
    return next(one for one in ENTRIES if str(one).endswith(name))


@pytest.fixture
def state() -> State:
    """A state whose CuPy and device answer what these tests ask, and have nothing else."""
    made = State()
    runtime = SimpleNamespace(getDevice=lambda: 0, getDeviceCount=lambda: 1)
    cuda = SimpleNamespace(runtime=runtime, get_current_stream=lambda *_device: stream(0))
    made.platform = SimpleNamespace(cupy=SimpleNamespace(cuda=cuda), device=SimpleNamespace(), simulated=True)  # type: ignore[assignment]
    return made


def captured(state: State, thread: int = THEIRS) -> LedgerCapture:
    """A capture in the ledger, with a forked lane; nobody has opened it."""
    capture = state.ledger.begin(ORIGIN, Mode.RELAXED, thread, blocking=False)
    state.ledger.record(1, ORIGIN)
    state.ledger.wait(SIDE, 1, blocking=True)
    return capture


def test_each_component_of_the_guard_is_an_object_of_its_own() -> None:
    """Lint finds the verb that it asks instead by the component and the method's name."""
    components = {name: one for name, one in vars(GUARD).items() if name in vars(Components(State()))}
    assert len({id(one) for one in components.values()}) == len(components) > 30
    assert {name for name, one in components.items() if getattr(one, 'state', GUARD.state) is not GUARD.state} == set()


def test_a_table_of_others_is_made_of_what_stands_instead() -> None:
    class Mine(Lanes):
        pass

    class Others(Components):
        kind_of_lanes = Mine

    made = Others(State())
    assert type(made.lanes) is Mine
    assert made.joins.lanes is made.lanes
    assert type(made.verdicts) is Verdicts


def test_verdicts_name_a_stream(state: State) -> None:
    captured(state)
    verdicts = Verdicts(state)
    assert verdicts.subject(None) == ''
    assert verdicts.subject(ORIGIN) == 'lane 0, the origin (stream 0x10)'
    assert verdicts.subject(SIDE) == 'lane 1 (stream 0x20)'
    assert verdicts.subject(STRANGER) == 'stream 0x30, which is not in the capture'


def test_verdicts_refuse_in_the_words_of_the_rule(state: State) -> None:
    captured(state)
    verdicts = Verdicts(state)
    verdict = verdicts.judge(Operation.STREAM_SYNCHRONIZE, stream=SIDE)
    with pytest.raises(ck.SynchronizationError) as raised:
        verdicts.refuse(verdict, 'Stream.synchronize()', SIDE)
    assert (raised.value.stream, raised.value.lane) == (SIDE, 1)
    assert 'and the capture would be lost' in raised.value.rule


def test_what_is_allowed_is_carried_out_once(state: State) -> None:
    captured(state)
    verdicts, made = Verdicts(state), []
    verdict = verdicts.judge(Operation.WORK, stream=SIDE)
    assert verdicts.carry_out(verdict, 'Work', SIDE, lambda: made.append(1)) is None
    assert made == [1]


def test_the_end_of_a_capture_is_told_in_order(state: State) -> None:
    captures, told = Captures(state), []
    capture = captured(state)
    live: Any = SimpleNamespace(capture=capture, allocators={}, trace=None, thread=THEIRS, uncollected=None)
    state.lives[capture] = live
    state.threads[THEIRS] = [live]

    def fails(_live: Any) -> None:
        told.append(('before', capture in state.lives))
        raise ValueError

    captures.before_end.append(fails)
    captures.after_end.append(lambda _live: told.append(('after', capture in state.lives)))
    with pytest.raises(ValueError):
        captures.gone(live)
    assert (state.lives, state.threads, state.ledger.captures) == ({}, {}, [])
    captures.before_end[:] = [lambda _live: told.append(('again', capture in state.lives))]
    captures.gone(live)
    assert told == [('before', True), ('again', False), ('after', False)]


def test_lanes_tell_what_is_outside(state: State) -> None:
    captured(state)
    lanes = Lanes(state)
    assert [lanes.is_outside(ptr) for ptr in (ORIGIN, SIDE, STRANGER, 0)] == [False, False, True, False]
    assert [lanes.lane_number(ptr) for ptr in (ORIGIN, SIDE, STRANGER)] == [0, 1, None]


def test_the_device_of_a_stream_is_looked_up_before_it_is_asked(state: State) -> None:
    lanes = Lanes(state)
    assert lanes.device_of(SimpleNamespace(ptr=STRANGER, device_id=3)) == 3
    assert lanes.device_of(stream(STRANGER)) == 0  # the only one that there is
    captured(state)
    assert lanes.device_of(SimpleNamespace(ptr=SIDE, device_id=3)) == 0  # that of the lane


def test_a_lane_may_be_left_more_often_than_entered(state: State) -> None:
    capture = captured(state)
    state.lives[capture] = SimpleNamespace(memory=None)  # type: ignore[assignment]
    lane = capture.lanes[1]
    lane.current = 1
    for _ in range(2):
        Lanes(state).leave(stream(SIDE))
        assert lane.current == 0
    assert lane.used


def test_joins_name_each_lane_that_was_left(state: State) -> None:
    capture = captured(state)
    live: Any = SimpleNamespace(capture=capture, trace=None)
    error = Joins(state, Lanes(state)).unjoined(live, lanes=[capture.lanes[1]])
    assert [story['lane'] for story in error.lanes] == [1]
    assert '1 lane left unjoined: lane 1 (stream 0x20) forked from lane 0' in str(error)


def allocators_of(state: State) -> Allocators:
    return Allocators(state, Verdicts(state), CompiledUploads(state, Lanes(state), Uploads(state)))


def test_a_thread_without_a_capture_keeps_its_allocator(state: State) -> None:
    given: list[Any] = []
    state.installation.originals['cupy.cuda.memory._set_thread_local_allocator'] = given.append
    allocators = allocators_of(state)
    assert allocators.allocator_set(given.append, 'mine') is None
    allocators.restore()
    assert (given, allocators.kept) == (['mine'], {})


def test_a_pool_that_is_nobodys_is_freed(state: State) -> None:
    freed: list[Any] = []
    allocators_of(state).pool_free(entry('MemoryPool.free_all_blocks'), freed.append, 'pool')
    assert freed == ['pool']


def test_placeholders_go_back_to_the_stock_of_their_device(state: State) -> None:
    stock: dict[Any, list[Any]] = {}
    state.platform.device.spare_streams = stock
    outside = OutsideStreams(state, *(None,) * 4)  # type: ignore[arg-type]
    outside.give_back(1, 'a stream')
    assert [(key[0], streams) for key, streams in stock.items()] == [(1, ['a stream'])]
    assert outside.meant(STRANGER) == STRANGER


def test_the_legacy_stream_is_not_asked_for_its_flags(state: State) -> None:
    streams = StreamSwitches(state, *(None,) * 5)  # type: ignore[arg-type]

    def asked(*_args: Any) -> Any:
        raise AssertionError('the legacy stream was asked, which loses captures')

    of_stream, of_handle = entry('_BaseStream.is_non_blocking'), entry('runtime.streamGetFlags')
    assert streams.flags(of_stream, asked, stream(0)) is False
    assert streams.flags(of_handle, asked, 0) == 0
    assert streams.priority(entry('_BaseStream.priority'), asked, stream(0)) == 0
    assert streams.priority(entry('runtime.streamGetPriority'), asked, 1) == 0
    assert streams.flags(of_handle, lambda _ptr: 7, STRANGER) == 7


def test_copies_without_a_stream_pass_where_nobody_captures(state: State) -> None:
    work = StreamWork(state, Verdicts(state), *(None,) * 6)  # type: ignore[arg-type]
    assert work.legacy_work(entry('runtime.memcpy'), lambda *args: args, 1, 2, 3) == (1, 2, 3)


def test_a_copy_without_a_stream_is_refused_with_what_to_write(state: State) -> None:
    capture = state.ledger.begin(ORIGIN, Mode.RELAXED, THEIRS, blocking=True)
    me = threading.get_ident()
    state.threads[me] = [SimpleNamespace(capture=capture, memory=None, strict=True, unsettled=False)]  # type: ignore[list-item]
    verdicts = Verdicts(state)
    verdicts.check = lambda live: None  # type: ignore[method-assign]
    work = StreamWork(state, verdicts, *(None,) * 6)  # type: ignore[arg-type]
    with pytest.raises(ck.LegacyStreamError, match='Use `memcpyAsync`'):
        work.legacy_work(entry('runtime.memcpy'), lambda *args: args, 1, 2, 3)


def test_a_rehearsal_hears_of_threads(state: State) -> None:
    me = threading.get_ident()
    rehearsal = state.rehearsals[me] = Rehearsal()
    effects = Effects(state, None)  # type: ignore[arg-type]
    assert effects.thread_fed(entry('threading.Thread.start'), lambda thread: thread, 'started') == 'started'
    assert len(rehearsal.effects) == 1 and 'Thread.start()' in rehearsal.effects[0]

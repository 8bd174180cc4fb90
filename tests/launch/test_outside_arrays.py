"""Arrays from outside stay as long as the graph that uses them; one that is gone already is told before any launch.

The simulated device's nodes can't be read, so these captures are given a reader that is told what the nodes hold.
"""

from __future__ import annotations

import gc
import struct
import sys
import types
import weakref
from types import FrameType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.driver.node_reader import Kernel
from capturekit.launch import outside_arrays
from capturekit.launch.outside_arrays import held_by
from capturekit.recorder import capture as blocks
from tests.captured import launched
from tests.recorder.test_teardown import unchanged

MULTIPLY = 'cupy_multiply__float64_float_float64'
N = 1024


class Reader:
    """What the driver would tell: the words that each kernel's nodes hold."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self.told: list[tuple[str, list[int]]] = []
        self.asked: list[list[int]] = []
        self._kernels: dict[int, list[Kernel]] = {}

    def tell(self, name: str, *arrays: Any) -> None:
        """A kernel was recorded with these arrays, or addresses."""
        self.told.append((name, [one if isinstance(one, int) else int(one.data.ptr) for one in arrays]))

    def kernels(self, graph: int, first: int = 0) -> tuple[list[Kernel], list[int]]:
        self.asked[-1].append(graph)
        told, self.told = self.told, []
        return [
            Kernel(name, [(i * 8, 8) for i in range(len(held))], [struct.pack(f'<{len(held)}Q', *held)])
            for name, held in told
        ], []

    def is_device_memory(self, address: int) -> bool:
        return any(space.find(address) is not None for space in self._device.address_spaces)


@pytest.fixture
def reader(sim: Any, monkeypatch: pytest.MonkeyPatch) -> Reader:
    """From now on captures end as they do on a GPU."""
    found = Reader(sim.__capturekit_simulated__)
    original = blocks.keep_outside

    def as_on_a_gpu(live: Any, graphs: list[int]) -> None:
        real = live.platform
        found.asked.append([])
        live.platform = SimpleNamespace(simulated=False, cupy=real.cupy, device=SimpleNamespace(reader=found))
        try:
            original(live, graphs)
        finally:
            live.platform = real

    monkeypatch.setattr(blocks, 'keep_outside', as_on_a_gpu)
    monkeypatch.setattr(blocks, 'held_by', lambda *_frame_and_array: [])
    return found


def hold(cap: ck.Capture, sim: Any) -> None:
    """What entering the block does on a GPU."""
    live = cap._live
    assert live is not None
    live.recorder.arrays = held_by(sys._getframe(1), sim.ndarray)


def being_made(cp: Any) -> Any:
    """An array that another thread is making: it has a size, and no memory yet."""

    class Half(cp.ndarray):  # type: ignore[misc, name-defined]
        size = N
        data = None

    return Half.__new__(Half, _no_init=True)


def free_bytes(sim: Any) -> int:
    gc.collect()
    sim.get_default_memory_pool().free_all_blocks()
    sim.get_default_pinned_memory_pool().free_all_blocks()
    return int(sim.__capturekit_simulated__.mem_get_info()[0])


# -- while the graph lives ----------------------------------------------------------------------------------------


def overwritten(sim: Any) -> list[Any]:
    """Arrays that take every place that is free."""
    return [sim.full(N, -1.0) for _ in range(8)]


def test_the_simulated_device_keeps_what_the_code_drops(sim: Any) -> None:
    x, part, unused = sim.arange(float(N)), sim.arange(float(N)), sim.zeros(N)
    dropped = weakref.ref(unused)
    with ck.capture() as cap:
        y = x * 2 + part[8:16].sum()
        x = y + 1
    del part, unused
    assert dropped() is None
    later = overwritten(sim)
    assert launched(cap, x) == [[n * 2.0 + sum(range(8, 16)) + 1 for n in range(N)]]
    assert later


def test_an_array_that_another_thread_is_making_is_left_out(sim: Any, reader: Reader) -> None:
    half, held = being_made(sim), [[sim.arange(float(N))]]
    with ck.capture() as cap:
        y = held[0][0] * 2
        reader.tell(MULTIPLY, held[0][0], y)
    held.clear()
    later = overwritten(sim)
    cap.graph.launch()
    assert np.array_equal(y.get(), np.arange(N) * 2)
    assert later and half.data is None


def test_no_array_is_searched_in_pinned_memory_of_the_graph(
    sim: Any, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To look through all objects of Python takes longer than all else at a block's end."""
    searched: list[type] = []
    monkeypatch.setattr(outside_arrays, 'instances', lambda *kinds: searched.extend(kinds) or [])
    monkeypatch.setattr(reader, 'is_device_memory', lambda _address: True)  # the driver says so of pinned memory
    for kept, expected in ((True, []), (False, [sim.ndarray])):
        pinned = sim.cuda.alloc_pinned_memory(1 << 20)  # small ones may lie where no pinned memory of CUDA does
        with ck.capture() as cap:
            live = cap._live
            assert live is not None and live.memory is not None
            if kept:
                live.memory.keep_pinned(pinned)
            reader.tell('table', int(pinned.ptr) + 8)
        assert searched == expected


def test_an_array_dropped_after_the_block_stays(sim: Any, reader: Reader) -> None:
    x = sim.arange(float(N))
    with ck.capture() as cap:
        hold(cap, sim)
        y = x * 2
        reader.tell(MULTIPLY, x, y)
    memory = weakref.ref(x.data.mem)
    del x
    later = overwritten(sim)
    cap.graph.launch()
    assert np.array_equal(y.get(), np.arange(N) * 2)
    assert later and memory() is not None
    cap.graph.close()
    gc.collect()
    assert memory() is None, 'and no longer than the graph'


def test_a_pool_of_the_users_own(sim: Any, reader: Reader) -> None:
    """Arrays from the same pool as the graph's are none of the graph's."""
    pool = sim.cuda.MemoryPool()
    with sim.cuda.using_allocator(pool.malloc):
        x = sim.arange(float(N))
    with ck.capture(pool=pool) as cap:
        hold(cap, sim)
        y = x * 2
        reader.tell(MULTIPLY, x, y)
    del x
    with sim.cuda.using_allocator(pool.malloc):
        later = overwritten(sim)
    cap.graph.launch()
    assert np.array_equal(y.get(), np.arange(N) * 2)
    assert later


# -- what is gone -------------------------------------------------------------------------------------------------


def test_an_array_that_is_gone_is_an_error(sim: Any, reader: Reader) -> None:
    """Nobody held it when the block began: it was made, and dropped, without a name that lasts."""
    x = sim.arange(float(N))
    before = free_bytes(sim)
    with unchanged(sim):
        address = 0
        with pytest.raises(ck.FreedMemoryError) as info, ck.capture() as cap:
            address = int(x.data.ptr)
            y = x * 2
            reader.tell(MULTIPLY, address, y)
            del x
        assert f'{MULTIPLY} uses memory at {address:#x}' in str(info.value)
        assert info.value.location is not None and info.value.location.file == __file__
        assert cap.recording.outcome == 'failed'
        with pytest.raises(ck.ClosedError, match='made no graph'):
            cap.graph  # noqa: B018
        del y, cap, info
    assert free_bytes(sim) >= before


def test_each_array_that_is_gone_is_noted(sim: Any, reader: Reader) -> None:
    arrays = [sim.arange(float(N)) for _ in range(3)]
    addresses = [int(x.data.ptr) for x in arrays]
    with ck.capture(strict=False) as cap:
        reader.tell(MULTIPLY, *addresses)
        del arrays[1:]
    notes = [step.text for step in cap.recording.notes if 'gone already' in step.text]
    assert len(notes) == 2 and all(f'{at:#x}' in text for at, text in zip(addresses[1:], notes))


def test_no_false_alarm(sim: Any, reader: Reader) -> None:
    """Not for numbers, nor for memory of the graph's own, nor for kernels of others, whose words may mean anything."""
    x, gone = sim.arange(float(N)), sim.arange(float(N))
    address = int(gone.data.ptr)
    with ck.capture() as cap:
        hold(cap, sim)
        t = x * 2
        y = t + 1
        reader.tell(MULTIPLY, x, t, 0, 7, N, (1 << 32) - 1, 0x3FF0000000000000, 0xFFFFFFFFFFFFFFFF)
        reader.tell('cupy_add__float64_float_float64', t, y)
        reader.tell('somebodys_kernel', address)
        cap._live.recorder.arrays.clear()  # type: ignore[union-attr]
        del t, gone
    cap.graph.launch()
    assert np.array_equal(y.get(), np.arange(N) * 2 + 1)


def test_in_a_graph_of_several_parts_each_body_is_read(sim: Any, reader: Reader) -> None:
    x = sim.arange(float(N))

    def fn() -> Any:
        y = x * 2
        if float(y[1]) > 1:
            y = y + 1
        return y[y > 3]

    rehearsal = ck.rehearse(fn)
    with ck.capture(rehearsal=rehearsal) as cap:
        fn()
    (asked,) = reader.asked
    assert asked[0] == cap.graph.graph
    assert len(asked) == len(set(asked)) == 1 + len(rehearsal.reads)
    gone = [sim.arange(float(N))]
    before = free_bytes(sim)
    with unchanged(sim):
        with pytest.raises(ck.FreedMemoryError), ck.capture(rehearsal=rehearsal):
            fn()
            reader.tell(MULTIPLY, *gone)
            gone.clear()
    assert free_bytes(sim) >= before


# -- what frames hold ---------------------------------------------------------------------------------------------


class Thing:
    shared: Any = None

    def __init__(self, inside: Any) -> None:
        self.inside = inside


class Slotted:
    __slots__ = ('inside',)

    def __init__(self, inside: Any) -> None:
        self.inside = inside


IN_THE_MODULE: list[Any] = []


def frame_of(**names: Any) -> Any:
    """A frame with these variables, called from nowhere."""
    return SimpleNamespace(f_locals=names, f_globals={}, f_back=None, f_code=compile('', '', 'exec'))


def numbers(sim: Any, frame: FrameType | None) -> list[int]:
    """The first elements of the arrays that a frame holds."""
    return sorted(int(one.get()[0]) for one in held_by(frame, sim.ndarray))


def one(sim: Any, number: int) -> Any:
    return sim.full(3, number)


def test_one_container_deep(sim: Any) -> None:
    variables = {
        'two_deep': [[one(sim, 1)]],
        'in_a_thing_in_a_list': [Thing(one(sim, 2))],
        'a_class': type('Class', (), {'array': one(sim, 3)}),
        'slotted': Slotted(one(sim, 4)),
        'long': [one(sim, 5)] * 1000,
        'not_so_long': [one(sim, 6)] * 999,
    }
    assert numbers(sim, frame_of(**variables)) == [6]


def test_callers_and_their_modules_count(sim: Any) -> None:
    outer = one(sim, 1)
    IN_THE_MODULE.append(one(sim, 2))

    def inner() -> list[int]:
        mine = one(sim, 3)
        found = numbers(sim, sys._getframe())
        assert mine is not None
        return found

    try:
        assert inner() == [1, 2, 3]
    finally:
        IN_THE_MODULE.clear()
    assert inner() == [1, 3]
    assert outer is not None
    assert held_by(None, sim.ndarray) == []


@pytest.mark.parametrize('file, found', [
    ('/home/me/mine.py', [7]), ('/venv/lib/python3.12/site-packages/theirs/data.py', []), (None, []), (7, []),
])  # fmt: skip
def test_arrays_in_modules_of_the_user_count(sim: Any, file: Any, found: list[int]) -> None:
    module = types.ModuleType('a_module')
    module.__file__, module.array = file, one(sim, 7)  # type: ignore[attr-defined]
    assert numbers(sim, frame_of(module=module)) == found


def test_variables_of_every_kind(sim: Any) -> None:
    """Arguments, variables of functions inside and outside of this one, ones not assigned yet; of classes as well."""
    given = one(sim, 1)

    def inner(argument: Any, *rest: Any, **more: Any) -> set[int]:
        shared = one(sim, 5)

        class Body:
            own = one(sim, 6)
            found = held_by(sys._getframe(), sim.ndarray)

        if argument is None:
            unknown = one(sim, 7)
        assert (lambda: (given, shared, unknown, rest, more)) is not None
        return {int(array.get()[0]) for array in Body.found}

    assert inner(one(sim, 2), one(sim, 3), key=one(sim, 4)) >= {1, 2, 3, 4, 5, 6}


def test_looking_keeps_no_variable_alive(sim: Any) -> None:
    def looked_at() -> Any:
        big = one(sim, 1)
        memory = weakref.ref(big.data.mem)
        found = held_by(sys._getframe(), sim.ndarray)
        assert any(array.data.mem is memory() for array in found)
        del big, found
        gc.collect()
        return memory()

    assert looked_at() is None


# -- blocks -------------------------------------------------------------------------------------------------------


def test_an_array_whose_allocation_was_refused_is_passed_over(sim: Any) -> None:
    x, m, side = sim.arange(4.0), sim.eye(4), sim.cuda.Stream(non_blocking=True)
    with ck.capture() as cap:
        y = x * 2.0
        with pytest.raises(ck.EscapedWorkError) as kept, side:  # its traceback holds the array that has no memory
            x * 3.0
    cap.graph.launch()
    with ck.capture(pieces=True) as parts:
        values = sim.linalg.svd(m * 2.0, compute_uv=False) * 2.0
    parts.graph.launch()
    assert y.get().tolist() == [0.0, 2.0, 4.0, 6.0] and values.get().tolist() == [4.0] * 4 and kept.value


class Nameless:
    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise TypeError('no dictionary')


def test_an_object_that_can_not_be_looked_into_is_passed_over(sim: Any) -> None:
    nameless, x = Nameless(), sim.ones(2)
    with ck.capture() as cap:
        y = x + 1
    cap.graph.launch()
    assert y.get().tolist() == [2, 2] and nameless is not None

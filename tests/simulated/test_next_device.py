"""A device that is installed finds the stand-in for CuPy as it was put together: nothing is left of the one before."""

from __future__ import annotations

import gc
import importlib
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from types import FunctionType
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from tests.captured import simulated

#: Classes of which each device has its own, and names for them.
OF_ONE_DEVICE = ('State', 'SimulatedDevice', 'MemoryPool', 'PinnedMemoryPool')
ITS = {'state', '__capturekit_simulated__', '_default_memory_pool', '_default_pinned_memory_pool'}


def contents() -> dict[str, Any]:
    """What modules, classes and kernels of the stand-in hold, by where it is; of what can be filled, a copy."""
    modules = {name: vars(module) for name, module in sys.modules.items() if name.startswith('cupy')}
    for values in list(modules.values()):  # the modules that they are made of
        inside = [one.__globals__ for one in values.values() if isinstance(one, FunctionType)]
        modules |= {f'in {one["__name__"]}': one for one in inside if one['__name__'].startswith('_capturekit')}
    holders = dict(modules)
    for place, values in modules.items():
        for key, value in values.items():
            if hasattr(value, '__dict__') and type(value).__name__ not in ('module', *OF_ONE_DEVICE):
                holders[f'{place}.{key}'] = vars(value)
    left_out = set('__builtins__ __annotations__ __annotations_cache__ public _memos _max_vals _min_vals'.split())
    return {
        f'{place}.{key}': value.copy() if isinstance(value, (dict, list, set)) else value
        for place, values in holders.items()
        for key, value in values.items()
        if key not in left_out
    }


def change_much(cp: Any) -> None:
    """Leave something behind wherever CuPy keeps anything."""
    cupyx = importlib.import_module('cupyx')
    cp.new = cp.ndarray.new = cp.add.new = cp.arange.new = cp.cuda.runtime.new = 1
    cp.ndarray.get = cp.ndarray.copy = cp.cuda.runtime.streamSynchronize = cp.sum = 0
    cp.ndarray.__array_ufunc__ = None
    del cp.zeros, cp.ndarray.get, cp.cuda.Stream.from_external
    for name in ('cupy._core', 'cupy._core.syncdetect', 'cupy_backends.cuda.libs.cublas'):
        vars(sys.modules[name])['streamIsCapturing'] = vars(sys.modules[name])['new'] = None
    cp.random.seed(3)
    cp.fft.fft(cp.ones(4))
    cp.memoize()(abs)(1)
    cp._core.set_routine_accelerators(['cub'])
    cp._core.set_compute_type('f4', 2)
    cupyx.seterr(linalg='raise')
    cp.cuda.Device().cublas_handle  # noqa: B018
    cp.cuda.set_allocator(None)
    cp.cuda.set_pinned_memory_allocator(None)
    cp.cuda.memory._set_thread_local_allocator(cp.cuda.MemoryPool().malloc)
    cp.cuda.MemoryHook().__enter__()
    cp.cuda.Stream(non_blocking=True).use()
    cp.cuda.Stream(non_blocking=True).__enter__()
    cp.cuda.Device(1).use()
    cp.cuda.nccl.NcclCommunicator(1, cp.cuda.nccl.get_unique_id(), 0)


def answers(cp: Any) -> list[Any]:
    """What CuPy says of its state."""
    cupyx = importlib.import_module('cupyx')
    pool = cp.get_default_memory_pool()
    found = [cp.cuda.runtime.getDevice(), cp.cuda.get_current_stream().ptr, cupyx.geterr(), pool.total_bytes()]
    found += [cp._core.get_compute_type('f4'), cp._core.get_routine_accelerators()]
    found += [cp.fft.config.get_plan_cache().get_curr_size(), len(cp.random._generator._random_states)]
    found += [cp.cuda.get_allocator() == pool.malloc, cp.cuda.memory._get_thread_local_allocator()]
    x = cp.arange(4.0)
    found += [len(cp.cuda.memory_hook.get_memory_hooks()), x.sum().get(), x.data.mem.size, pool.total_bytes()]
    return [*found, cp.cuda.alloc_pinned_memory(8).mem.size]


def test_nothing_is_left_for_the_next_device() -> None:
    with simulated(devices=2) as cp:
        before, said = contents(), answers(cp)
    assert len(before) > 5000
    with simulated(devices=2) as cp:
        change_much(cp)
        changed = contents()
    different = {place for place in before.keys() | changed.keys() if changed.get(place) is not before.get(place)}
    assert {'cupy.new', 'cupy.ndarray.copy', 'cupy.add.new', 'cupy.arange.new', 'cupy.zeros'} <= different
    with simulated(devices=2) as cp:
        after = contents()
        assert answers(cp) == said
    assert after.keys() == before.keys()
    assert [
        place
        for place, value in after.items()
        if value is not before[place] and place.rpartition('.')[2] not in ITS
        if not (isinstance(value, (dict, list, set)) and value == before[place])
    ] == []


def test_another_thread_begins_anew_as_well() -> None:
    """It may belong to a pool of threads that outlives a device."""

    def initial(cp: Any) -> tuple[bool, bool]:
        return cp.cuda.get_current_stream().ptr == 0, cp.cuda.memory._get_thread_local_allocator() is None

    def change(cp: Any) -> tuple[bool, bool]:
        cp.cuda.Stream(non_blocking=True).use()
        cp.cuda.memory._set_thread_local_allocator(cp.cuda.MemoryPool().malloc)
        return initial(cp)

    with ThreadPoolExecutor(1) as threads:
        for call, told in ((change, (False, False)), (initial, (True, True))):
            with simulated() as cp:
                assert threads.submit(call, cp).result() == told


def made(cp: Any) -> set[int]:
    return {cp.arange(3).data.ptr, cp.cuda.Stream().ptr, cp.cuda.Event().ptr}


def test_what_outlives_its_device_gives_nothing_back_to_the_next() -> None:
    """Nor are addresses and handles given again."""
    with simulated() as cp:
        given = made(cp)
        stream = cp.cuda.Stream(non_blocking=True)
        with stream:
            stream.begin_capture()
            cp.zeros(3)
            graph = stream.end_capture()
        kept = [graph, stream, cp.cuda.Event(), cp.arange(3), cp.cuda.Memory(64), cp.cuda.alloc_pinned_memory(64)]
        kept += [cp.random.RandomState(0), cp.cuda.malloc_async(64)]
    with simulated() as cp:
        assert given.isdisjoint(made(cp))
        device = cp.__capturekit_simulated__
        held = [cp.arange(3), cp.cuda.alloc_pinned_memory(64), cp.random.RandomState(0)]
        before = len(device.streams), len(device.events), device.mem_get_info()
        del stream, graph
        kept.clear()
        gc.collect()
        assert (len(device.streams), len(device.events), device.mem_get_info()) == before
        assert held[0].tolist() == [0, 1, 2]
        assert 0 < held[2].random_sample() < 1


def test_a_device_may_be_installed_for_a_while() -> None:
    with simulated() as cp:
        x, device = cp.arange(3.0), cp.__capturekit_simulated__
        pool = cp.get_default_memory_pool()
        side = cp.cuda.Stream(non_blocking=True).use()
        with simulated() as inner:
            assert inner.__capturekit_simulated__ is not device
            assert inner.cuda.get_current_stream() == inner.cuda.Stream.null
            with pytest.raises(inner.cuda.runtime.CUDARuntimeError, match='IllegalAddress'):
                x + 1
        assert cp.__capturekit_simulated__ is device
        assert cp.get_default_memory_pool() is pool
        assert cp.cuda.get_current_stream() == side
        assert (x + 1).tolist() == [1, 2, 3]
        cp.cuda.Stream.null.use()


def test_a_device_is_freed_when_another_is_used() -> None:
    """Also after the guard was asked about CuPy's functions, and the decorator about its compiler."""
    devices = []
    for _ in range(4):
        with simulated() as cp:
            x = cp.arange(4.0)
            with ck.capture() as cap:
                stream = cp.cuda.get_current_stream()
                stream.wait_event(event=stream.record())
                y = x.astype('f4', copy=True)
            cap.graph.launch()
            assert y.get(order='C').tolist() == [0, 1, 2, 3]
            graphed = ck.graphed(lambda a, cp=cp: cp.sqrt(a) + 1)
            for _ in range(4):
                assert np.allclose(graphed(x).get(), np.sqrt(np.arange(4)) + 1)
            assert graphed.variants[0].launches == 3
            devices.append(weakref.ref(cp.__capturekit_simulated__))
        del cp, x, cap, stream, y, graphed
    gc.collect()
    assert [device() for device in devices[:-1]] == [None] * 3

"""The memory of ``cupy.cuda.runtime`` on the simulated device: the bytes behind addresses and their copies.

Device memory lies at simulated addresses, pinned memory at its true host address, so that NumPy's own
``array.ctypes.data`` can be recognised as pinned.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from capturekit.model.rules import CaptureStatus, Mode
from capturekit.simulated.device.address_space import GARBAGE, Bytes
from capturekit.simulated.device.constants import CONSTANTS
from capturekit.simulated.device.graph_nodes import Given

from . import runtime_calls as calls

_INVALID_VALUE = 1
ILLEGAL_ADDRESS = 700
_H2H, _H2D, _D2H = (CONSTANTS[f'memcpy{kind}'] for kind in ('HostToHost', 'HostToDevice', 'DeviceToHost'))

_recorded_lock = threading.RLock()
_UNIT = 512


def _allocate(size: int) -> int:
    ptr: int = calls.ask(calls.device().malloc, size)
    calls.state.device_memory.add(ptr, np.full(max(size, 1), GARBAGE, np.uint8))
    return ptr


def spoil(stream: int, ptr: int, size: int) -> None:
    """Let a block that was in use before hold garbage, in the order of the stream that gets it."""
    if not calls.is_late():
        return

    def work() -> None:
        found = calls.state.device_memory.find(ptr, size)
        if found is not None:
            found[0][found[1] : found[1] + size] = GARBAGE

    calls.device().spoil(stream, work)


def first_recorded(ptr: int, size: int) -> bool:
    """Note that recorded work uses a block; whether all of it is new to recorded work, so that nothing reads it yet."""
    block, offset = device_block(ptr, size)
    with _recorded_lock:
        used = calls.state.recorded.get(ptr - offset)
        if used is None:
            used = calls.state.recorded[ptr - offset] = np.zeros(-(-block.size // _UNIT), np.bool_)
        units = used[offset // _UNIT : -(-(offset + size) // _UNIT)]
        first = not units.any() and not calls.device().busy()
        units[:] = True
        return first


def malloc(size: int) -> int:
    return _allocate(size)


def mallocManaged(size: int, flags: int = CONSTANTS['cudaMemAttachGlobal']) -> int:
    return _allocate(size)


def mallocAsync(size: int, stream: int) -> int:
    # Stream-ordered allocation is no unsafe call, so the device's verdict on cudaMalloc must not apply.
    old = calls.device().exchange_thread_mode(Mode.RELAXED)
    try:
        recorded = calls.submit(stream, lambda: None, 'mallocAsync', 'memAlloc')
        ptr = _allocate(size)
        if recorded:
            calls.state.of_graphs.add(ptr)
        return ptr
    finally:
        calls.device().exchange_thread_mode(old)


def free(ptr: int) -> None:
    if ptr:
        calls.ask(calls.device().free, ptr)
        calls.after_all(lambda: _let_go(ptr))


def _let_go(ptr: int) -> None:
    calls.state.device_memory.remove(ptr)
    calls.state.of_graphs.discard(ptr)
    calls.state.recorded.pop(ptr, None)


def freeAsync(ptr: int, stream: int) -> None:
    captured = (
        stream > CONSTANTS['streamPerThread']
        and calls.ask(calls.device().stream_status, stream) is CaptureStatus.ACTIVE
    )
    if captured and ptr not in calls.state.of_graphs:
        raise calls.CUDARuntimeError(_INVALID_VALUE)
    old = calls.device().exchange_thread_mode(Mode.RELAXED)
    try:
        # A free recorded in a graph leaves the memory to the graph, which allocates it again at each launch.
        if not captured:
            calls.ask(calls.device().free, ptr)
        calls.submit(stream, lambda: None if captured else _let_go(ptr), 'freeAsync', 'memFree')
    finally:
        calls.device().exchange_thread_mode(old)


def hostAlloc(size: int, flags: int) -> int:
    handle: int = calls.ask(calls.device().host_alloc, size)
    block = np.zeros(max(size, 1), np.uint8)
    ptr = block.ctypes.data
    calls.state.pinned_memory.add(ptr, block)
    calls.state.pinned_handles[ptr] = handle
    return ptr


def freeHost(ptr: int) -> None:
    if ptr not in calls.state.pinned_handles:
        raise calls.CUDARuntimeError(_INVALID_VALUE)
    calls.ask(calls.device().host_free, calls.state.pinned_handles[ptr])
    del calls.state.pinned_handles[ptr]
    calls.after_all(lambda: calls.state.pinned_memory.remove(ptr))


def memGetInfo() -> tuple[int, int]:
    free_bytes, total = calls.device().mem_get_info()
    return free_bytes, total


def device_bytes(ptr: int, size: int) -> Bytes:
    """Return the bytes at a device address, as a view. Raises cudaErrorIllegalAddress where there are none."""
    found = calls.state.device_memory.find(ptr, size)
    if found is None:
        raise calls.CUDARuntimeError(ILLEGAL_ADDRESS)
    block, offset = found
    return block[offset : offset + size]


def device_block(ptr: int, size: int) -> tuple[Bytes, int]:
    """Return the whole block around a device address and the offset in it."""
    found = calls.state.device_memory.find(ptr, size)
    if found is None:
        raise calls.CUDARuntimeError(ILLEGAL_ADDRESS)
    return found


def host_bytes(ptr: int, size: int) -> Bytes:
    """Return the bytes at a host address, as a view."""
    found = calls.state.pinned_memory.find(ptr, size)
    if found is not None:
        return found[0][found[1] : found[1] + size]
    return np.frombuffer((ctypes.c_ubyte * size).from_address(ptr), np.uint8)


def _any_bytes(ptr: int, size: int) -> Bytes:
    found = calls.state.device_memory.find(ptr, size)
    return host_bytes(ptr, size) if found is None else found[0][found[1] : found[1] + size]


def _copy(dst: int, src: int, size: int, kind: int) -> None:
    if not size:
        return
    to = host_bytes if kind in (_H2H, _D2H) else device_bytes if kind == _H2D else _any_bytes
    of = host_bytes if kind in (_H2H, _H2D) else device_bytes if kind == _D2H else _any_bytes
    to(dst, size)[:] = of(src, size).copy()


def memcpy(dst: int, src: int, size: int, kind: int) -> None:
    calls.ask(calls.device().legacy_call, 'memcpy')
    _at_once(lambda: _copy(dst, src, size, kind), _is_host(dst) or _is_host(src))


def _at_once(work: Callable[[], None], waits: bool = True) -> None:
    """What the legacy stream does for a synchronous call; ``waits``: the host waits for it."""
    queue = calls.device().queue
    if queue is None:
        work()
        return
    done = queue.put(queue.legacy(calls.device().get_device()), work)
    if waits:
        queue.wait([done])


def _is_host(address: int) -> bool:
    return calls.state.device_memory.find(address) is None


def _is_pageable(address: int) -> bool:
    return _is_host(address) and calls.state.pinned_memory.find(address) is None


def _submit_copy(
    stream: int,
    work: Callable[[], None],
    given: Given | None,
    ends: tuple[int, int, int],
    name: str,
    to: Callable[[Bytes], None],
) -> None:
    """Copy: what comes from pageable memory is taken at once, and the host waits for what goes there.

    ``ends``: to where, from where, how many bytes. ``to`` puts bytes that were taken where they belong.
    """
    dst, src, size = ends
    if not calls.is_late() or not size or calls.is_captured(stream):
        calls.submit(stream, work, name, 'memcpy', given)
        return
    if _is_pageable(src):
        taken = host_bytes(src, size).copy()
        work = functools.partial(to, taken)
    calls.submit(stream, work, name, 'memcpy', given)
    if _is_pageable(dst):
        calls.ask(calls.device().wait_for, stream)


def memcpyAsync(dst: int, src: int, size: int, kind: int, stream: int) -> None:
    values = {'dst': dst, 'src': src, 'bytes': size}

    def make(**now: int) -> Callable[[], None]:
        return lambda: _copy(now['dst'], now['src'], now['bytes'], kind)

    def put(taken: Bytes) -> None:
        _any_bytes(dst, size)[:] = taken

    given = Given(values, make, _in_memory_like(values))
    _submit_copy(stream, given.work(), given, (dst, src, size), 'memcpyAsync', put)


def _in_memory_like(values: Mapping[str, Any]) -> Callable[[Mapping[str, Any], Mapping[str, Any]], bool]:
    """Whether a node may go to other addresses: device memory takes the place of device memory alone."""
    ends = {end: calls.state.device_memory.find(values[end]) is None for end in ('dst', 'src') if end in values}
    return lambda _old, new: all(
        (calls.state.device_memory.find(new[end]) is None) == host for end, host in ends.items()
    )


def memcpyPeer(dst: int, dstDevice: int, src: int, srcDevice: int, size: int) -> None:
    memcpy(dst, src, size, CONSTANTS['memcpyDeviceToDevice'])


def memcpyPeerAsync(dst: int, dstDevice: int, src: int, srcDevice: int, size: int, stream: int) -> None:
    memcpyAsync(dst, src, size, CONSTANTS['memcpyDeviceToDevice'], stream)


def _copy_rows(dst: int, dpitch: int, src: int, spitch: int, width: int, height: int, kind: int) -> None:
    for row in range(height):
        _copy(dst + row * dpitch, src + row * spitch, width, kind)


def memcpy2D(dst: int, dpitch: int, src: int, spitch: int, width: int, height: int, kind: int) -> None:
    calls.ask(calls.device().legacy_call, 'memcpy2D')
    rows = (dst, dpitch, src, spitch, width, height, kind)
    _at_once(lambda: _copy_rows(*rows), _is_host(dst) or _is_host(src))


def memcpy2DAsync(
    dst: int, dpitch: int, src: int, spitch: int, width: int, height: int, kind: int, stream: int
) -> None:
    rows = (dst, dpitch, src, spitch, width, height, kind)
    size = spitch * (height - 1) + width if width and height else 0

    def put(taken: Bytes) -> None:
        for row in range(height):
            _any_bytes(dst + row * dpitch, width)[:] = taken[row * spitch : row * spitch + width]

    _submit_copy(stream, lambda: _copy_rows(*rows), None, (dst, src, size), 'memcpy2DAsync', put)


def _fill(ptr: int, value: int, size: int) -> None:
    if size:
        device_bytes(ptr, size)[:] = value & 0xFF


def memset(ptr: int, value: int, size: int) -> None:
    calls.ask(calls.device().legacy_call, 'memset')
    _at_once(lambda: _fill(ptr, value, size), _is_host(ptr))


def memsetAsync(ptr: int, value: int, size: int, stream: int) -> None:
    values = {'dst': ptr, 'value': value, 'bytes': size}

    def make(**now: int) -> Callable[[], None]:
        return lambda: _fill(now['dst'], now['value'], now['bytes'])

    given = Given(values, make, _in_memory_like(values))
    calls.submit(stream, given.work(), 'memsetAsync', 'memset', given)

"""Rows: `cupy.cuda.runtime`, with handles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import capturekit as ck
from tests.gpu.guarded.scene import (
    BYTES,
    Scene,
    cp,
    equal,
    escaped,
    legacy,
    row,
    rt,
    sync,
    unmatched,
    unsupported,
)
from tests.gpu.guarded.scene import RUNTIME as R

row(f'{R}.streamSynchronize', 'lane', lambda s: rt.streamSynchronize(s.side.ptr), sync)
row(f'{R}.streamSynchronize', 'legacy (0)', lambda s: rt.streamSynchronize(0), legacy)
row(f'{R}.streamSynchronize', 'legacy (1)', lambda s: rt.streamSynchronize(1), legacy)
row(f'{R}.streamSynchronize', 'outside', lambda s: rt.streamSynchronize(s.outside.ptr))
row(f'{R}.streamSynchronize', 'per thread (2)', lambda s: rt.streamSynchronize(2))
row(f'{R}.streamQuery', 'lane', lambda s: rt.streamQuery(s.side.ptr), sync)
row(f'{R}.streamQuery', 'outside', lambda s: rt.streamQuery(s.outside.ptr))
row(
    f'{R}.streamWaitEvent',
    'origin, outside',
    lambda s: rt.streamWaitEvent(s.origin.ptr, s.before.ptr),
    ck.IsolationError,
)
row(f'{R}.streamWaitEvent', 'outside, captured (fork)', lambda s: rt.streamWaitEvent(s.outside.ptr, s.e.ptr))
row(f'{R}.streamWaitEvent', 'origin, outside, external', lambda s: rt.streamWaitEvent(s.origin.ptr, s.before.ptr, 1))
row(f'{R}.streamWaitEvent', 'outside, external', lambda s: rt.streamWaitEvent(s.outside.ptr, s.before.ptr, 1), escaped)
row(f'{R}.streamBeginCapture', 'lane', lambda s: rt.streamBeginCapture(s.side.ptr), unmatched)
row(f'{R}.streamBeginCapture', 'origin', lambda s: rt.streamBeginCapture(s.origin.ptr, 2), unmatched)


def by_handle(s: Scene) -> None:
    rt.streamBeginCapture(s.outside.ptr, rt.streamCaptureModeRelaxed)
    rt.graphDestroy(rt.streamEndCapture(s.outside.ptr))


row(f'{R}.streamBeginCapture', 'outside', by_handle)
row(f'{R}.streamEndCapture', 'outside', by_handle)
row(f'{R}.streamEndCapture', 'lane', lambda s: rt.streamEndCapture(s.side.ptr), unmatched)
row(f'{R}.streamEndCapture', 'origin', lambda s: rt.streamEndCapture(s.origin.ptr), unmatched)
row(f'{R}.streamEndCapture', 'outside, not capturing', lambda s: rt.streamEndCapture(s.outside.ptr), unmatched)
row(f'{R}.streamGetFlags', 'lane', lambda s: equal(rt.streamGetFlags(s.side.ptr), 1))
row(f'{R}.streamGetFlags', 'origin', lambda s: equal(rt.streamGetFlags(s.origin.ptr), 1))
row(f'{R}.streamGetFlags', 'outside', lambda s: equal(rt.streamGetFlags(s.outside.ptr), 1))
row(f'{R}.streamGetPriority', 'lane', lambda s: equal(rt.streamGetPriority(s.side.ptr), 0))
row(f'{R}.streamGetPriority', 'origin', lambda s: equal(rt.streamGetPriority(s.origin.ptr), 0))
row(f'{R}.streamGetPriority', 'outside', lambda s: equal(rt.streamGetPriority(s.outside.ptr), 0))
row(f'{R}.streamGetPriority', 'legacy (0)', lambda s: equal(rt.streamGetPriority(0), 0))
row(f'{R}.streamAddCallback', 'lane', lambda s: rt.streamAddCallback(s.side.ptr, lambda *a: None, 0), unsupported)
row(f'{R}.streamAddCallback', 'outside', lambda s: rt.streamAddCallback(s.outside.ptr, lambda *a: None, 0), escaped)
row(f'{R}.streamDestroy', 'lane', lambda s: rt.streamDestroy(s.side.ptr), unsupported)
row(f'{R}.streamDestroy', 'origin', lambda s: rt.streamDestroy(s.origin.ptr), unsupported)
row(f'{R}.streamDestroy', 'a stream of its own', lambda s: rt.streamDestroy(rt.streamCreateWithFlags(1)))
row(f'{R}.eventRecord', 'lane', lambda s: rt.eventRecord(s.spare.ptr, s.side.ptr))
row(f'{R}.eventRecord', 'outside', lambda s: rt.eventRecord(s.before2.ptr, s.outside.ptr))
row(f'{R}.eventQuery', 'captured', lambda s: rt.eventQuery(s.e.ptr), sync)
row(f'{R}.eventQuery', 'recorded outside', lambda s: rt.eventQuery(s.before.ptr))
row(f'{R}.eventSynchronize', 'captured', lambda s: rt.eventSynchronize(s.e.ptr), sync)
row(f'{R}.eventSynchronize', 'recorded outside', lambda s: rt.eventSynchronize(s.before.ptr))
row(f'{R}.eventElapsedTime', 'captured', lambda s: rt.eventElapsedTime(s.e.ptr, s.e.ptr), sync)
row(f'{R}.eventElapsedTime', 'outside', lambda s: rt.eventElapsedTime(s.before.ptr, s.before.ptr))


def raw_event(s: Scene, make: Callable[[], int]) -> None:
    event = make()
    rt.eventRecord(event, s.side.ptr)
    rt.streamWaitEvent(s.origin.ptr, event)


row(f'{R}.eventCreate', 'used to join', lambda s: raw_event(s, rt.eventCreate))
row(f'{R}.eventCreateWithFlags', 'used to join', lambda s: raw_event(s, lambda: rt.eventCreateWithFlags(2)))
row(f'{R}.deviceSynchronize', 'this device', lambda s: rt.deviceSynchronize(), sync)
row(f'{R}.setDevice', 'this device', lambda s: rt.setDevice(0))
row(f'{R}.graphLaunch', 'origin', lambda s: rt.graphLaunch(s.cupy_graph.graphExec, s.origin.ptr), unsupported)
row(f'{R}.graphLaunch', 'outside', lambda s: rt.graphLaunch(s.cupy_graph.graphExec, s.outside.ptr), escaped)
row(f'{R}.graphLaunch', 'legacy (0)', lambda s: rt.graphLaunch(s.cupy_graph.graphExec, 0), legacy)
row(f'{R}.graphUpload', 'lane', lambda s: rt.graphUpload(s.cupy_graph.graphExec, s.side.ptr), unsupported)
row(f'{R}.graphUpload', 'outside', lambda s: rt.graphUpload(s.cupy_graph.graphExec, s.outside.ptr))


def cuda_array(s: Scene) -> Any:
    """16 x 4 floats as a CUDA array."""
    form = cp.cuda.texture.ChannelFormatDescriptor(32, 0, 0, 0, rt.cudaChannelFormatKindFloat)
    s.kept.append(cp.cuda.texture.CUDAarray(form, 16, 4))
    return s.kept[-1].ptr


def copy_3d(s: Scene) -> int:
    """The address of parameters for a copy of 64 x 4 x 1 bytes from ``w`` to ``scratch``."""
    from cuda.bindings import runtime as bindings

    params = bindings.cudaMemcpy3DParms()
    params.srcPtr = bindings.make_cudaPitchedPtr(s.w.data.ptr, BYTES, BYTES, 4)
    params.dstPtr = bindings.make_cudaPitchedPtr(s.scratch.data.ptr, BYTES, BYTES, 4)
    params.extent = bindings.make_cudaExtent(BYTES, 4, 1)
    params.kind = bindings.cudaMemcpyKind.cudaMemcpyDeviceToDevice
    s.seen.append(params)
    return int(params.getPtr())


D2D = 3
#: function -> its arguments without the stream
WORK: dict[str, Callable[[Scene], tuple[Any, ...]]] = {
    'memcpyAsync': lambda s: (s.scratch.data.ptr, s.w.data.ptr, BYTES, D2D),
    'memsetAsync': lambda s: (s.scratch.data.ptr, 0, BYTES),
    'memcpy2DAsync': lambda s: (s.scratch.data.ptr, BYTES, s.w.data.ptr, BYTES, BYTES, 4, D2D),
    'memcpy3DAsync': lambda s: (copy_3d(s),),
    'memcpy2DFromArrayAsync': lambda s: (s.scratch.data.ptr, BYTES, cuda_array(s), 0, 0, BYTES, 4, D2D),
    'memcpy2DToArrayAsync': lambda s: (cuda_array(s), 0, 0, s.w.data.ptr, BYTES, BYTES, 4, D2D),
}
for name, arguments in WORK.items():
    for where, at, what in (
        ('origin', lambda s: s.origin.ptr, None),
        ('lane', lambda s: s.side.ptr, None),
        ('outside', lambda s: s.outside.ptr, escaped),
        ('per thread (2)', lambda s: 2, escaped),
        ('legacy (0)', lambda s: 0, legacy),
    ):
        row(
            f'{R}.{name}', where, lambda s, f=name, to=arguments, at=at: getattr(rt, f)(*to(s), at(s)), what,
            needs='cuda.bindings' if name == 'memcpy3DAsync' else '',
        )  # fmt: skip

row(f'{R}.launchHostFunc', 'lane', lambda s: rt.launchHostFunc(s.side.ptr, s.seen.append, 5), ck.UnsupportedCallError)
row(f'{R}.launchHostFunc', 'outside', lambda s: rt.launchHostFunc(s.outside.ptr, s.seen.append, 5), escaped)


def peer(s: Scene, to: int) -> None:
    rt.memcpyPeerAsync(s.scratch.data.ptr, 0, s.w.data.ptr, 0, BYTES, to)


row(f'{R}.memcpyPeerAsync', 'lane', lambda s: peer(s, s.side.ptr), unsupported)
row(f'{R}.memcpyPeerAsync', 'outside', lambda s: peer(s, s.outside.ptr), escaped)
row(f'{R}.memPrefetchAsync', 'lane', lambda s: rt.memPrefetchAsync(s.managed.ptr, 4096, 0, s.side.ptr), unsupported)
row(f'{R}.memPrefetchAsync', 'outside', lambda s: rt.memPrefetchAsync(s.managed.ptr, 4096, 0, s.outside.ptr), escaped)

#: functions that use the legacy stream: refused before their arguments are looked at
LEGACY = ('memcpy', 'memset', 'memcpy2D', 'memcpy3D', 'memcpyPeer', 'memcpy2DFromArray', 'memcpy2DToArray')
for name in LEGACY:
    row(f'{R}.{name}', 'uses the legacy stream', lambda s, f=name: getattr(rt, f)(), legacy)

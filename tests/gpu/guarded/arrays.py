"""Rows: the device, values, arrays of other libraries."""

from __future__ import annotations

import numpy as np

from tests.gpu.guarded.scene import ARRAY as A
from tests.gpu.guarded.scene import (
    OfOtherLibrary,
    Scene,
    cp,
    equal,
    keep,
    kept_equals,
    legacy,
    read,
    row,
    sync,
    unsupported,
)

row('cupy.cuda.device.Device.synchronize', 'this device', lambda s: cp.cuda.Device().synchronize(), sync)


def on_this_device(s: Scene) -> None:
    with cp.cuda.Device(0):
        s.kept.append(s.a + 3)


for name in ('__enter__', '__exit__'):
    row(f'cupy.cuda.device.Device.{name}', 'this device', on_this_device)
row('cupy.cuda.device.Device.use', 'this device', lambda s: cp.cuda.Device(0).use())
row('cupy.copyto', 'to this device', lambda s: cp.copyto(s.scratch, s.a))
row(
    'cupy._core.syncdetect._declare_synchronize', 'as CuPy calls it',
    lambda s: cp._core.syncdetect._declare_synchronize(), sync,
)  # fmt: skip

row(f'{A}.get', 'captured array', lambda s: s.a.get(), read)
row(f'{A}.get', 'captured array, on outside', lambda s: s.a.get(stream=s.outside), read)
row(f'{A}.get', 'array of before', lambda s: s.x.get(), read)
row(f'{A}.get', 'array of before, on outside', lambda s: equal(float(s.x.get(stream=s.outside)[3]), 3.0))
row(f'{A}.get', 'cp.asnumpy', lambda s: cp.asnumpy(s.a), read)
row(f'{A}.get', 'float()', lambda s: float(s.a.sum()), read)
row(f'{A}.get', 'bool()', lambda s: bool((s.a > 3).any()), read)
row(f'{A}.get', 'item()', lambda s: s.a[0].item(), read)
row(f'{A}.get', 'tolist()', lambda s: s.a.tolist(), read)
row(f'{A}.get', 'str()', lambda s: str(s.a), read)
row(f'{A}.get', 'empty array', lambda s: cp.empty(0).get())
row(f'{A}.set', 'captured array', lambda s: s.a.set(s.host), unsupported)
row(f'{A}.set', 'array of before', lambda s: s.x.set(s.host), unsupported)
row(f'{A}.set', 'array of before, on outside', lambda s: s.x.set(s.host, s.outside), unsupported)


row(f'{A}.__getitem__', 'slice', lambda s: keep(s, s.a[1:3] + 0), check=kept_equals(2, 3))
row(f'{A}.__getitem__', 'list', lambda s: keep(s, s.a[[1, 5]]), check=kept_equals(2, 6))
row(f'{A}.__getitem__', 'NumPy array', lambda s: keep(s, s.a[np.array([2, 0])]), check=kept_equals(3, 1))
row(f'{A}.__getitem__', 'boolean mask', lambda s: s.a[s.a > 3], read)
row(
    f'{A}.__setitem__', 'list', lambda s: s.scratch.__setitem__([1, 3], 7.0),
    check=lambda s: s.scratch[:4].tolist() == [0, 7, 0, 7],
)  # fmt: skip
row(f'{A}.__dlpack__', 'no stream', lambda s: s.a.__dlpack__(), legacy)
row(f'{A}.__dlpack__', 'legacy stream (1)', lambda s: s.a.__dlpack__(stream=1), legacy)
row(f'{A}.__dlpack__', 'origin', lambda s: s.a.__dlpack__(stream=s.origin.ptr))
row(f'{A}.__dlpack__', 'lane', lambda s: s.a.__dlpack__(stream=s.side.ptr))
row(f'{A}.__dlpack__', 'no order (-1)', lambda s: s.a.__dlpack__(stream=-1))
row(f'{A}.__dlpack__', 'outside, which is forked', lambda s: s.a.__dlpack__(stream=s.outside.ptr))
row(f'{A}.__dlpack__', 'to the CPU', lambda s: s.a.__dlpack__(dl_device=(1, 0)), read)
row(f'{A}.__dlpack__', 'array of before, to the CPU', lambda s: s.x.__dlpack__(dl_device=(1, 0)), read)
row(f'{A}.__dlpack__', 'cp.from_dlpack', lambda s: keep(s, cp.from_dlpack(s.a)[:2] * 1), check=kept_equals(1, 2))

C = 'cupy._core.array'
row(C, 'list', lambda s: keep(s, cp.array([1.0, 2.0]) * 3), check=kept_equals(3, 6))
row(C, 'NumPy array', lambda s: keep(s, cp.asarray(np.array([4.0, 5.0])) * 3), check=kept_equals(12, 15))
row(C, 'list of arrays', lambda s: keep(s, cp.array([s.a[0], s.a[1]])), check=kept_equals(1, 2))
for name, on, what in (
    ('interface without a stream', lambda s: None, None),
    ('interface naming the current stream', lambda s: s.origin.ptr, None),
    ('interface naming another lane', lambda s: s.side.ptr, sync),
    ('interface naming an outside stream', lambda s: s.outside.ptr, None),
    ('interface naming the legacy stream', lambda s: 1, None),
):
    row(C, name, lambda s, on=on: keep(s, cp.asarray(OfOtherLibrary(s.x[:2], on(s))) * 2), what)
for entry in ('cupy.cuda.memory.UnownedMemory', 'cupy._util.CUDA_ARRAY_INTERFACE_SYNC'):
    for name, on, what in (
        ('operand without a stream', lambda s: None, None),
        ('operand naming the current stream', lambda s: s.origin.ptr, None),
        ('operand naming another lane', lambda s: s.side.ptr, sync),
        ('operand naming an outside stream', lambda s: s.outside.ptr, None),
    ):
        row(entry, name, lambda s, on=on: keep(s, s.x[:2] + OfOtherLibrary(s.x[:2], on(s))), what)
J = 'cupy._core.concatenate_method'
row(J, 'two arrays', lambda s: keep(s, cp.concatenate([s.a[:1], s.a[2:3]])), check=kept_equals(1, 3))
row(J, 'eight arrays', lambda s: keep(s, cp.stack([s.a[0]] * 8)[:2] * 1), check=kept_equals(1, 1))
row(J, 'nine arrays', lambda s: keep(s, cp.concatenate([s.a[:1]] * 9)[7:] * 1), check=kept_equals(1, 1))
row(J, 'twenty arrays, stacked', lambda s: keep(s, cp.stack([s.a[0]] * 20)[18:] * 1), check=kept_equals(1, 1))
F, C2C = 'cupy.cuda.cufft', 0x29
row(f'{F}.Plan1d', 'of 64', lambda s: keep(s, cp.cuda.cufft.Plan1d(64, C2C, 1)))
row(f'{F}.Plan1d', 'of 131 beside an open lane', lambda s: cp.cuda.cufft.Plan1d(131, C2C, 1), unsupported)
row(f'{F}.PlanNd', 'of 7 by 131 beside an open lane', lambda s: cp.fft.fft2(s.a[:917].reshape(7, 131)), unsupported)
row(f'{F}.PlanNd', 'of 8 by 8', lambda s: keep(s, cp.fft.fft2((s.a[:64] * 0 + 1).reshape(8, 8))[0, :2].real * 1),
    check=kept_equals(64, 0))  # fmt: skip
row(f'{F}.Plan1d.fft', 'on a lane', lambda s: keep(s, cp.fft.fft(s.a[:64] * 0 + 1)[:2].real * 1),
    check=kept_equals(64, 0))  # fmt: skip
row(f'{F}.PlanNd.fft', 'on a lane', lambda s: keep(s, cp.fft.fft2((s.a[:64] * 0 + 2).reshape(8, 8))[0, :2].real * 1),
    check=kept_equals(128, 0))  # fmt: skip

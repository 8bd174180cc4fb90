"""Rows: calls that no capture can hold."""

from __future__ import annotations

from typing import Any

import numpy as np

import capturekit as ck
from capturekit.guard.entry_points import SEAMS
from capturekit.guard.patching import resolve
from tests.gpu.guarded.scene import MODES, Call, cp, in_lane, row, unsupported

for name in SEAMS:
    # no arguments: if it were let through, Python itself would complain
    row(name, 'by its name', lambda s, f=name: resolve(f)(), unsupported)

#: function -> a call of it that is right outside of a capture
SOLVERS: dict[str, Call] = {
    'svd': lambda s: cp.linalg.svd(s.matrix),
    'eigh': lambda s: cp.linalg.eigh(s.matrix),
    'eigvalsh': lambda s: cp.linalg.eigvalsh(s.matrix),
    'eig': lambda s: cp.linalg.eig(s.matrix),
    'eigvals': lambda s: cp.linalg.eigvals(s.matrix),
    'lstsq': lambda s: cp.linalg.lstsq(s.matrix, s.w[:4], rcond=None),
    'pinv': lambda s: cp.linalg.pinv(s.matrix),
    'cond': lambda s: cp.linalg.cond(s.matrix),
    'matrix_rank': lambda s: cp.linalg.matrix_rank(s.matrix),
}
for name, call in SOLVERS.items():
    row(f'cupy.linalg.{name}', 'a matrix', call, unsupported)
row('cupy.linalg.svd', 'a captured matrix', lambda s: cp.linalg.svd(s.a[:16].reshape(4, 4)), unsupported)
row('cupy.linalg.svd', 'lane', lambda s: in_lane(s, lambda s: cp.linalg.svd(s.matrix)), unsupported)
row('cupy.linalg.svd', 'a name imported before the capture', lambda s: s.svd_of_before(s.matrix), unsupported)
row('cupy.linalg.svd', 'cp.linalg.norm(a, 2)', lambda s: cp.linalg.norm(s.matrix, 2), unsupported)
row('cupy.polyfit', 'a line', lambda s: cp.polyfit(s.x[:8], s.w[:8], 1), unsupported)
row('cupy.roots', 'of a polynomial', lambda s: cp.roots(s.x[1:4]), unsupported)
for mode in MODES:
    row('cupy.linalg.svd', 'a matrix', lambda s: cp.linalg.svd(s.matrix), unsupported, mode=mode)

#: What allocates on its stream is recorded where no decision is open; tests/guard/test_library_calls.py has the rest.
HANDLE = 'cupy.cuda.device.get_cusolver_handle'
for name in ('solve', 'inv', 'qr', 'cholesky'):
    row(HANDLE, name, lambda s, f=name: ALLOCATING[f](s.matrix + 9 * cp.eye(4), s.w[:4]))
row(HANDLE, 'lane', lambda s: in_lane(s, lambda s: cp.linalg.inv(s.matrix + 9 * cp.eye(4))))
row('cupy.linalg._solve._batched_inv', 'two matrices', lambda s: cp.linalg.inv(two(s)))
row('cupy.linalg._decomposition._lu_factor', 'two matrices', lambda s: cp.linalg.slogdet(two(s)))
row('cupy.cublas.batched_gesv', 'two matrices', lambda s: cp.linalg.solve(two(s), two(s)))
ALLOCATING = {
    'solve': lambda a, b: cp.linalg.solve(a, b),
    'inv': lambda a, _b: cp.linalg.inv(a),
    'qr': lambda a, _b: cp.linalg.qr(a),
    'cholesky': lambda a, _b: cp.linalg.cholesky(a @ a.T),
}

TEXTURE = 'cupy.cuda.texture.CUDAarray'
row(f'{TEXTURE}.copy_from', 'an array', lambda s: texture(s).copy_from(s.w[:16].astype('f').reshape(4, 4)))
row(f'{TEXTURE}.copy_from', 'an array, lane', lambda s: in_lane(s, copied_on_a_lane))
row(f'{TEXTURE}.copy_from', 'of the host', lambda s: texture(s).copy_from(np.zeros((4, 4), 'f')), unsupported)
row(f'{TEXTURE}.copy_to', 'an array', lambda s: texture(s).copy_to(cp.zeros((4, 4), 'f')))
row(f'{TEXTURE}.copy_to', 'of the host', lambda s: texture(s).copy_to(np.zeros((4, 4), 'f')), ck.HostReadError)


def texture(s: Any) -> Any:
    """A CUDA array that nobody else holds."""
    of_floats = cp.cuda.texture.ChannelFormatDescriptor(32, 0, 0, 0, cp.cuda.runtime.cudaChannelFormatKindFloat)
    return cp.cuda.texture.CUDAarray(of_floats, 4, 4)


def copied_on_a_lane(s: Any) -> None:
    """An array of the lane is copied there."""
    texture(s).copy_from(cp.zeros((4, 4), 'f'), s.side)


def two(s: Any) -> Any:
    """Two matrices that can be inverted."""
    return cp.stack([s.matrix + 9 * cp.eye(4), s.matrix + 8 * cp.eye(4)])

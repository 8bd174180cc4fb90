"""Rows: calls that no capture can hold."""

from __future__ import annotations

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

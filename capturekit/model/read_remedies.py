"""What to write in a capture instead of CuPy's functions that read on the host, by their names.

Each form was recorded and launched by a test, on the program that it is told to.
"""

from __future__ import annotations

_DRAWS = 'Make `rng = cp.random.default_rng()` before the capture, and write `{}`: it draws anew at each launch.'
_LENGTH = (
    'The values decide how long its result is. Keep the length, as `cp.where(mask, x, 0)` does, or let `@ck.graphed` '
    'record the function: it checks the length at each launch.'
)
_UNIQUE = (
    'The values decide how long its result is. Keep the length: sort, `s = cp.sort(x)`, and mark what is new, '
    '`new = cp.concatenate([cp.ones(1, bool), s[1:] != s[:-1]])`. Or let `@ck.graphed` record the function: it checks '
    'the length at each launch.'
)
_MODE = 'Write `mode={!r}`, with which CuPy does not look for indices out of bounds.'
_MASKED = 'Write `cp.copyto(a, values, where=mask)`, with a number or an array of the form of `a` as `values`.'
_FACTORED = (
    "CuPy reads here whether it has failed, because of `cupyx.errstate(linalg='raise')`. Write "
    "`with cupyx.errstate(linalg='ignore'):` around it. The device can tell a failure by the result: of `cholesky` by "
    '`cp.allclose(l @ l.T, a)`, of `solve` by `cp.allclose(a @ x, b)`.'
)

#: By the name of the function that the user's line called.
READ_REMEDIES: dict[str, str] = {
    'randint': _DRAWS.format('rng.integers(low, high, size)'),
    'random_integers': _DRAWS.format('rng.integers(low, high, size, endpoint=True)'),
    'choice': _DRAWS.format('a[rng.integers(0, len(a), size)]')
    + ' With probabilities, write `a[cp.searchsorted(cp.cumsum(p), rng.random(size))]`.',
    'exponential': _DRAWS.format('rng.exponential(scale, size)'),
    'logseries': _DRAWS.format('rng.logseries(p, size)'),
    'power': _DRAWS.format('rng.power(a, size)'),
    'rayleigh': _DRAWS.format('scale * cp.sqrt(2 * rng.standard_exponential(size))'),
    'weibull': _DRAWS.format('rng.standard_exponential(size) ** (1 / a)'),
    **dict.fromkeys(('unique', 'unique_values'), _UNIQUE),
    **dict.fromkeys(
        'argwhere compress extract flatnonzero intersect1d nonzero setdiff1d setxor1d trim_zeros union1d unique_all '
        'unique_counts unique_inverse where'.split(),
        _LENGTH,
    ),
    'average': 'Write `(x * w).sum() / w.sum()`.',
    'bincount': 'Make `counts = cp.zeros(n, int)` before the capture, and write `counts[...] = 0` and '
    '`cp.add.at(counts, x, 1)`.',
    'choose': _MODE.format('clip'),
    'histogram': 'Give the number of bins and `range=(low, high)`, two numbers of the host: `cp.histogram(x, n, '
    'range=(low, high))`.',
    'nanmax': 'Write `cp.where(cp.isnan(x), -cp.inf, x).max()`.',
    'nanmin': 'Write `cp.where(cp.isnan(x), cp.inf, x).min()`.',
    **dict.fromkeys(('percentile', 'quantile'), 'Give `q` as a number or a list of the host.'),
    **dict.fromkeys(('place', 'putmask'), _MASKED),
    **dict.fromkeys(('put', 'ravel_multi_index'), _MODE.format('wrap')),
    'repeat': 'Make `rows = cp.asarray(np.repeat(np.arange(len(x)), counts))` before the capture, and write `x[rows]`.',
    'unravel_index': 'Write `//` and `%`: for two axes, `i // dims[1], i % dims[1]`.',
    **dict.fromkeys('cholesky inv matrix_power qr solve tensorinv tensorsolve'.split(), _FACTORED),
}

"""Functions of CuPy that read on the host: each is refused by name, and what the refusal tells is followed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.guard.remedies import READ_REMEDIES

X = [3.0, 1.0, 3.0, 2.0]
#: What is refused; the code that the refusal names instead; what that gives, computed by NumPy from the array ``h``.
#: None: numbers that are drawn, of which the form, the range and that they change are looked at.
FOLLOWED: dict[str, tuple[str, str, str | None]] = {
    'randint': ('cp.random.randint(low, high, size)', 'rng.integers(low, high, size)', None),
    'random_integers': (
        'cp.random.random_integers(low, high, size)', 'rng.integers(low, high, size, endpoint=True)', None
    ),
    'choice': ('cp.random.choice(a, size)', 'a[rng.integers(0, len(a), size)]', None),
    'choice by p': ('cp.random.choice(a, size, p=p)', 'a[cp.searchsorted(cp.cumsum(p), rng.random(size))]', None),
    'exponential': ('cp.random.exponential(scale, size)', 'rng.exponential(scale, size)', None),
    'logseries': ('cp.random.logseries(0.5, size)', 'rng.logseries(p, size)', None),
    'power': ('cp.random.power(2.0, size)', 'rng.power(a, size)', None),
    'rayleigh': ('cp.random.rayleigh(scale, size)', 'scale * cp.sqrt(2 * rng.standard_exponential(size))', None),
    'weibull': ('cp.random.weibull(2.0, size)', 'rng.standard_exponential(size) ** (1 / a)', None),
    'unique': (
        'cp.unique(x)',
        's = cp.sort(x)`, and mark what is new, `new = cp.concatenate([cp.ones(1, bool), s[1:] != s[:-1]])',
        'np.sort(h), np.append(True, np.diff(np.sort(h)) != 0)',
    ),
    'nonzero': ('cp.nonzero(x)', 'cp.where(mask, x, 0)', 'np.where(h > 1, h, 0)'),
    'average': ('cp.average(x, weights=w)', '(x * w).sum() / w.sum()', 'np.average(h, weights=[1, 2, 3, 4])'),
    'bincount': (
        'cp.bincount(i)', 'counts[...] = 0` and `cp.add.at(counts, x, 1)', 'np.bincount(h.astype(int), None, 5)'
    ),
    'choose': ("cp.choose(i % 2, cp.stack([x, w]))", "mode='clip'", 'np.choose(h.astype(int) % 2, [h, [1, 2, 3, 4]])'),
    'histogram': (
        'cp.histogram(x, 2)', 'cp.histogram(x, n, range=(low, high))', 'np.histogram(h, 4, range=(0, 7))[0]'
    ),
    'nanmax': ('cp.nanmax(x)', 'cp.where(cp.isnan(x), -cp.inf, x).max()', 'h.max()'),
    'nanmin': ('cp.nanmin(x)', 'cp.where(cp.isnan(x), cp.inf, x).min()', 'h.min()'),
    'percentile': ('cp.percentile(x, cp.asarray([50.0]))', 'a list of the host', 'np.percentile(h, [50.0])'),
    'putmask': (
        'cp.putmask(w.copy(), mask, x)', 'cp.copyto(a, values, where=mask)', 'np.where(h > 1, h, [0.0, 1, 2, 3])'
    ),
    'put': ("cp.put(w.copy(), i, 1, mode='raise')", "mode='wrap'", 'np.array([0, 9, 9, 9])'),
    'ravel_multi_index': (
        "cp.ravel_multi_index((i, i), (4, 4), mode='raise')", "mode='wrap'",
        'np.ravel_multi_index((h.astype(int),) * 2, (4, 4))',
    ),
    'repeat': ('cp.repeat(x, counts)', 'x[rows]', 'np.repeat(h, [1, 0, 2, 1])'),
    'unravel_index': (
        'cp.unravel_index(i, dims)', 'i // dims[1], i % dims[1]', 'np.unravel_index(h.astype(int), (2, 2))'
    ),
}  # fmt: skip
#: What a remedy comes to that is told in words, or makes no value of its own; and what is done for it before.
AS_WRITTEN = {
    'unique': 's, new',
    'bincount': 'counts',
    'choose': "cp.choose(i % 2, cp.stack([x, w]), mode='clip')",
    'percentile': 'cp.percentile(x, [50.0])',
    'putmask': 'a',
    'put': 'target',
    'ravel_multi_index': "cp.ravel_multi_index((i, i), (4, 4), mode='wrap')",
}
BEFORE = {
    'bincount': 'counts[...] = 0; cp.add.at(counts, i, 1)',
    'unique': 's = cp.sort(x); new = cp.concatenate([cp.ones(1, bool), s[1:] != s[:-1]])',
    'putmask': 'a[...] = cp.arange(4.0); cp.copyto(a, values, where=mask)',
    'put': "target = cp.zeros(4); cp.put(target, i, 9, mode='wrap')",
}


def names(cp: Any, name: str) -> dict[str, Any]:
    """What the code of a test may name."""
    x = cp.asarray(X if name != 'unravel_index' else [3.0, 1.0, 0.0, 2.0])
    a = 2.0 if name in ('power', 'weibull') else cp.arange(5.0 if name.startswith('choice') else 4.0)
    p: Any = 0.5 if name == 'logseries' else cp.asarray([0.2] * 5)
    return {
        'cp': cp, 'x': x, 'i': x.astype(int), 'w': cp.asarray([1.0, 2, 3, 4]), 'mask': x > 1, 'values': x, 'a': a,
        'p': p, 'rng': cp.random.default_rng(), 'low': 0, 'high': 6 if name == 'random_integers' else 7, 'n': 4,
        'size': (5,), 'scale': 2.0, 'dims': (2, 2),
        'counts': [1, 0, 2, 1] if name == 'repeat' else cp.zeros(5, int), 'rows': cp.asarray([0, 2, 2, 3]),
    }  # fmt: skip


def arrays(found: Any) -> list[Any]:
    return [one.get() if hasattr(one, 'get') else one for one in (found if isinstance(found, tuple) else (found,))]


@pytest.mark.parametrize('name', FOLLOWED)
def test_the_form_that_is_named_is_recorded_and_right(cp: Any, name: str) -> None:
    refused, named, wanted = FOLLOWED[name]
    given, key = names(cp, name), name.partition(' ')[0]
    eval(refused, given)
    with ck.capture() as cap:
        with pytest.raises(ck.HostReadError) as error:
            eval(refused, given)
        exec(BEFORE.get(name, ''), given)
        found = eval(AS_WRITTEN.get(name, named), given)
    assert f'Here `{key}()` of CuPy does so' in error.value.rule
    assert named in error.value.remedy and error.value.remedy.startswith(READ_REMEDIES[key])
    cap.graph.launch()
    first = arrays(found)
    if wanted is None:
        (one,), others = first, list[Any]()
        for _ in range(20):  # five small numbers may be the same twice
            cap.graph.launch()
            others += arrays(found)
        assert one.shape == (5,) and (one >= 0).all() and np.isfinite(one).all()
        assert not all(np.array_equal(one, other) for other in others)
        return
    for values in (given['x'].get(), np.roll(given['x'].get(), 1)):
        given['x'][...] = cp.asarray(values)
        given['i'][...] = given['x'].astype(int)
        given['mask'][...] = given['x'] > 1
        cap.graph.launch()
        right = eval(wanted, {'np': np, 'h': values})
        found_now = arrays(found[0] if name == 'histogram' else found)
        assert all(np.allclose(a, b) for a, b in zip(found_now, right if isinstance(right, tuple) else (right,)))


@pytest.mark.parametrize('name', ['nonzero', 'unique', 'union1d', 'flatnonzero'])
def test_a_graphed_function_records_what_the_values_make_longer(cp: Any, name: str) -> None:
    assert '`@ck.graphed`' in READ_REMEDIES[name]
    function = getattr(cp, name)
    step = ck.graphed(lambda x: function(x, x) if name == 'union1d' else function(x))
    for values in (X, X, X, [0.0, 5, 5, 0], X, [0.0, 5, 5, 0], X):
        found, right = step(cp.asarray(values)), getattr(np, name)(*[values] * (1 + (name == 'union1d')))
        assert all(np.array_equal(a, b) for a, b in zip(arrays(found), right if isinstance(right, tuple) else (right,)))
    assert any(variant.launches for variant in step.variants)


def test_a_factorization_that_is_looked_at(cp: Any) -> None:
    import cupyx

    a, b = cp.eye(2), cp.ones(2)
    l, x = cp.linalg.cholesky(a), cp.linalg.solve(a, b)  # noqa: E741
    cp.allclose(l @ l.T, a)
    with ck.capture() as cap, cupyx.errstate(linalg='raise'):
        with pytest.raises(ck.HostReadError, match=r"with cupyx.errstate\(linalg='ignore'\):") as error:
            cp.linalg.cholesky(a)
        with cupyx.errstate(linalg='ignore'):
            l, x = cp.linalg.cholesky(a), cp.linalg.solve(a, b)  # noqa: E741
        factored, solved = cp.allclose(l @ l.T, a), cp.allclose(a @ x, b)
    assert '`cp.allclose(l @ l.T, a)`, of `solve` by `cp.allclose(a @ x, b)`' in error.value.remedy
    for factor in (1, -1, 0, 1):
        a[...] = cp.eye(2) * factor
        cap.graph.launch()
        assert bool(solved) == (factor != 0) and (bool(factored) == (factor > 0) or not factor)


@pytest.mark.parametrize('strict', [True, False])
def test_a_copy_into_an_array_of_the_host(cp: Any, strict: bool) -> None:
    import cupyx

    x, buffer, later = cp.arange(4.0), cupyx.empty_pinned((4,)), cupyx.empty_pinned((4,))
    with ck.capture(strict=strict) as cap:
        y = x * 2
        with pytest.raises(ck.HostReadError) as error:
            y.get(out=buffer, blocking=False)
        code = error.value.remedy.partition('write `')[2].partition('`')[0]
        exec(code, {'cp': cp, 'buffer': buffer, 'y': y})
    assert '`y.get(out=buffer)`' in error.value.remedy
    for n in range(3):
        x[...] = cp.arange(4.0) + n
        cap.graph.launch()
        cp.cuda.get_current_stream().synchronize()
        assert y.get(out=later) is later
        assert later.tolist() == buffer.tolist() == [2.0 * (i + n) for i in range(4)]

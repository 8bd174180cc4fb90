"""``cupy``'s functions that do what NumPy's function of the same name does, made from tables of names.

Arguments are bound to CuPy's signature, which is NumPy's or a part of it, so that what CuPy does not take is refused
here as well.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from capturekit.simulated.cupy.signatures import Call, declared, signature_like
from capturekit.simulated.cupy.surface import CUBLAS, FFT, HOST, LINALG, LOOKING_AT_INFO, PLAIN, SAME_AS, VIEWS, WAITING
from capturekit.simulated.unchecked_functions import UNCHECKED, info_of

from . import arrays, creation, cufft, extras, launches, runtime, runtime_calls, vendor
from .launches import Layout, array_of
from .runtime_calls import get_current_stream_ptr


def numpy_function(name: str, module: ModuleType = np) -> Callable[..., Any] | None:
    """Return what CuPy's ``name`` calls, NumPy's function or one of :data:`UNCHECKED`; None where NumPy has none."""
    found = getattr(module, SAME_AS.get(name, name), None) or getattr(module, name, None)
    return UNCHECKED.get(name, found) if callable(found) else None


def _without_warnings(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def quiet(*args: Any, **kwargs: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            return fn(*args, **kwargs)

    return quiet


def _plain(name: str, fn: Callable[..., Any]) -> Call:
    if name in _JOINING:
        return _joining(name, fn)
    if name in ('clip', 'choose', 'repeat'):  # CuPy's call the methods
        return lambda args, kwargs: getattr(args[0], name)(*args[1:], **kwargs)
    if name.startswith(('nan', 'corrcoef', 'cov', 'polyfit')):
        fn = _without_warnings(fn)
    prepare = vendor.needed_by(name)

    def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out, kwargs = kwargs.pop('out', None), dict(kwargs)
        if name in _READ:
            _READ[name](*args, **kwargs)
        args, kwargs = _uploaded(name, args, kwargs)
        dtype = kwargs.pop('dtype', None) if name in _DTYPE_AFTERWARDS else None
        if name in _ORDER_STABLE:
            kwargs['kind'] = 'stable'
        for ours, theirs in _KEYWORDS.get(name, {}).items():
            if ours in kwargs:
                value = kwargs.pop(ours)
                if theirs and value is not None:
                    kwargs[theirs] = value
        if prepare is not None and (name not in CUBLAS or _needs_cublas(args)):
            prepare()
        found = launches.launch(f'cupy_{name}', fn, args, kwargs, out=out)
        vendor.allocate_inside(name)
        if name in WAITING and runtime_calls.is_late():
            runtime.streamSynchronize(get_current_stream_ptr())
        if name in LOOKING_AT_INFO and extras.get_config_linalg() == 'raise':
            _check_info(name, args, kwargs)
        if name in _READ_AFTERWARDS:
            _READ_AFTERWARDS[name](found)
        return found if dtype is None else found.astype(dtype, copy=False)

    return call


# -- what CuPy's functions read of arrays on the host before they work: they decide, or refuse, by what they read -----


def _read_array(given: Any) -> Any:
    return arrays.array(given, None, None)


def _average(a: Any, axis: Any = None, weights: Any = None, **_: Any) -> None:
    if weights is None:
        return
    weights = _read_array(weights)
    total = weights.sum(axis) if weights.shape == _read_array(a).shape else weights.sum()
    if bool((total == 0.0).any()):
        raise ZeroDivisionError("Weights sum to zero, can't be normalized")


def _cov(a: Any, y: Any = None, fweights: Any = None, aweights: Any = None, **_: Any) -> None:
    weights = [one for one in (fweights, aweights) if one is not None]
    if weights and float(math.prod(weights).sum()) == 0:
        raise ZeroDivisionError("Weights sum to zero, can't be normalized")


def _within(q: Any, most: float, message: str) -> None:
    """Refuse ``q`` if none is large enough, or none is small enough: of some that are, CuPy takes all."""
    given = launches.as_array(q)
    found: Any = np.asarray(q) if given is None else given
    if not ((found >= 0).any() and (found <= most).any()):
        raise ValueError(message)


def _ravel_multi_index(multi_index: Any, dims: Any, mode: Any = 'wrap', **_: Any) -> None:
    modes = [mode] * len(dims) if isinstance(mode, str) else mode
    for index, length, one in zip(multi_index, dims, modes):
        if one == 'raise' and bool(((index >= length) | (index < 0)).any()):
            raise ValueError('invalid entry in coordinates array')


def _poly(x: Any) -> None:
    if x.ndim == 2 and not bool((x == x.conj().T).all()):
        raise NotImplementedError('Only complex Hermitian and real symmetric 2d arrays are supported currently')


def _all_nan(found: Any) -> None:
    if bool((found != found).any()):
        warnings.warn('All-NaN slice encountered', RuntimeWarning, stacklevel=5)


def _unravel_index(indices: Any, dims: Any, order: str = 'C') -> None:
    indices = _read_array(indices)
    if bool((indices < 0).any()) or bool((indices // math.prod(dims) > 0).any()):
        raise ValueError('invalid entry in index array')


def _gradient(_f: Any, *distances: Any, **_: Any) -> None:
    for one in distances:
        coordinates = launches.as_array(one)
        if coordinates is not None and coordinates.ndim == 1:
            steps = coordinates[1:] - coordinates[:-1]
            bool((steps == steps[0]).all())


def _linspace(start: Any, stop: Any, num: int = 50, **_: Any) -> None:
    if num > 1 and not all(launches.as_array(end) is None for end in (start, stop)):
        bool((_read_array(stop - start) == 0).any())


def _polymul(*factors: Any) -> None:
    for factor in factors:
        if launches.as_array(factor) is not None:
            int((factor != 0).sum())  # trim_zeros() looks for the first that is not 0


def _real_if_close(a: Any, tol: float = 100) -> None:
    a = _read_array(a)
    if a.dtype.kind == 'c':
        bool((abs(a.imag) < tol).all())


_READ: dict[str, Callable[..., None]] = {
    'average': _average,
    'cov': _cov,
    'gradient': _gradient,
    'linspace': _linspace,
    'percentile': lambda a, q, **_: _within(q, 100, 'Percentiles must be in the range [0, 100]'),
    'poly': _poly,
    'polymul': _polymul,
    'quantile': lambda a, q, **_: _within(q, 1, 'Quantiles must be in the range [0, 1]'),
    'ravel_multi_index': _ravel_multi_index,
    'real_if_close': _real_if_close,
    'unravel_index': _unravel_index,
}
#: What they read of their results.
_READ_AFTERWARDS: dict[str, Callable[[Any], None]] = {'nanmax': _all_nan, 'nanmin': _all_nan}


# -- how each is called -----------------------------------------------------------------------------------------------


def _check_info(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    function = getattr(np.linalg, name, getattr(np, name, None))
    assert function is not None
    info = launches.launch('cusolver_info', info_of(function), args, kwargs)
    if (info != 0).any():
        raise np.linalg.LinAlgError(
            f'Error reported by {name} in cuSOLVER. devInfo = {info}. Please refer to the cuSOLVER documentation.'
        )


#: Functions that take host data for these arguments, by position or keyword, and upload it first.
_UPLOADS: dict[str, tuple[int | str, ...]] = {
    'append': (0, 1),
    'average': (0, 'weights'),
    'corrcoef': (0, 'y'),
    'cov': (0, 'y'),
    'percentile': (1,),
    'quantile': (1,),
    'resize': (0,),
    'searchsorted': (1,),
    'tile': (0,),
}


def _uploaded(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    found = list(args)
    for which in _UPLOADS.get(name, ()):
        if isinstance(which, int):
            found[which] = creation.asarray(found[which])
        elif kwargs.get(which) is not None:
            kwargs[which] = creation.asarray(kwargs[which])
    return tuple(found), kwargs


#: Functions with a ``dtype`` that NumPy's have not.
_DTYPE_AFTERWARDS = frozenset(('argmax', 'argmin', 'nanargmax', 'nanargmin'))
#: Functions whose ``kind`` can only mean a stable sort.
_ORDER_STABLE = frozenset(('sort', 'argsort'))
#: Function -> CuPy's keyword -> NumPy's; '' for one that NumPy has no more.
_KEYWORDS: dict[str, dict[str, str]] = {
    'corrcoef': {'bias': '', 'ddof': ''},
    'percentile': {'interpolation': 'method'},
    'quantile': {'interpolation': 'method'},
    'matrix_rank': {'tol': 'tol'},
}


def _concatenate(tup: Any, axis: int | None, kwargs: dict[str, Any]) -> Any:
    arrays = [array_of(one) for one in tup] if isinstance(tup, (list, tuple)) else list(tup)
    if axis is None:
        arrays, axis = [one.ravel() for one in arrays], 0
    out, dtype = kwargs.get('out'), kwargs.get('dtype')
    return creation._core.concatenate_method(arrays, axis, out, dtype, kwargs.get('casting', 'same_kind'))


def _joining(name: str, fn: Callable[..., Any]) -> Call:
    """What CuPy makes of ``concatenate``."""

    def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tup, axis = args[0], kwargs.pop('axis', 0)
        if name in ('concatenate', 'concat'):
            return _concatenate(tup, axis, kwargs)
        if name == 'stack':
            return _concatenate([launches.view(np.expand_dims, array_of(one), axis) for one in tup], axis, kwargs)
        axes = {'hstack': 1, 'dstack': 3}.get(name, 2)
        least: Callable[..., Any] = (np.atleast_1d, np.atleast_2d, np.atleast_3d)[axes - 1]
        arrays = [launches.view(least, array_of(one)) for one in tup]
        along = {'hstack': min(arrays[0].ndim - 1, 1), 'dstack': 2}.get(name, 0)
        return _concatenate(arrays, along, kwargs)

    return call


#: Functions that come to :func:`_concatenate`.
_JOINING = ('concat', 'concatenate', 'dstack', 'hstack', 'row_stack', 'stack', 'vstack')


def _needs_cublas(args: tuple[Any, ...]) -> bool:
    """Integers, and the product of two vectors, go without."""
    arrays = [a for a in args if isinstance(a, Layout)]
    if not arrays or np.result_type(*(a.dtype for a in arrays)).kind not in 'fc':
        return False
    if len(args) and isinstance(args[0], str):
        return len(arrays) > 1
    return not all(a.ndim <= 1 for a in arrays)


def _viewing(name: str, fn: Callable[..., Any]) -> Call:
    def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name.startswith('atleast'):
            found = [launches.view(fn, array_of(a)) for a in args]
            return found[0] if len(found) == 1 else found
        return launches.view(fn, array_of(args[0]), *args[1:], **kwargs)

    return call


def _answering(fn: Callable[..., Any]) -> Call:
    def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        recipe = (launches.lower(args), launches.lower(kwargs))
        now_args, now_kwargs = launches.lift(recipe)
        return fn(*now_args, **now_kwargs)

    return call


def _made(
    names: list[str], source: ModuleType, way: Callable[[str, Callable[..., Any]], Call], module: str
) -> dict[str, Any]:
    found = {}
    for name in names:
        fn = numpy_function(name, source)
        if fn is not None:
            own = getattr(source, SAME_AS.get(name, name), None) or getattr(source, name)
            found[name] = declared(name, signature_like(name, own), way(name, fn), module)
    return found


def top_level() -> dict[str, Any]:
    """Return the functions of ``cupy`` that follow a rule."""
    found = _made(PLAIN, np, _plain, 'cupy')
    found.update(_made(VIEWS, np, _viewing, 'cupy'))
    found.update(_made(HOST, np, lambda name, fn: _answering(fn), 'cupy'))
    found.update(permute_dims=_permute_dims, matrix_transpose=_matrix_transpose)
    return found


def _permute_dims(a: Any, axes: Any = None) -> Any:
    return launches.view(np.transpose, array_of(a), axes)


def _matrix_transpose(x: Any, /) -> Any:
    return array_of(x).mT


def _norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    axes = axis if isinstance(axis, tuple) else (axis,)
    matrix = len(axes) == 2 or (axis is None and x.ndim == 2)
    if matrix and ord in (2, -2, 'nuc'):
        # asked of the public svd(), as CuPy does: whoever guards that sees the call
        runtime_calls.cupy.linalg.svd(
            x if axis is None else launches.view(np.moveaxis, x, axes, (-2, -1)), compute_uv=False
        )
    return launches.launch('cupy_norm', UNCHECKED['norm'], (x, ord, axis, keepdims))


def linalg() -> dict[str, Any]:
    """Return the functions of ``cupy.linalg``."""
    found = _made(LINALG, np.linalg, _plain, 'cupy.linalg')
    _norm.__name__, _norm.__module__ = 'norm', 'cupy.linalg'
    found.update(norm=_norm, matrix_transpose=lambda a: _matrix_transpose(a), LinAlgError=np.linalg.LinAlgError)
    return found


def fft() -> dict[str, Any]:
    """Return the functions of ``cupy.fft``."""
    return _made(FFT, np.fft, lambda name, fn: cufft.transforming(name, _plain(name, fn)), 'cupy.fft')

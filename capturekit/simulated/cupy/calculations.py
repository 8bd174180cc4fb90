"""Methods of ``cupy.ndarray`` that select elements, put them in order and calculate with them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from capturekit.simulated.cupy.signatures import declared, signature_like
from capturekit.simulated.cupy.surface import METHODS
from capturekit.simulated.unchecked_functions import UNCHECKED

from . import conversions, decisions, indexing, launches, operators
from .operators import Operators
from .ufuncs import TABLE, ufunc

_CLIP = ufunc('clip', 3, 1, np.clip)


def _bound(dtype: Any, given: Any, end: str) -> Any:
    """What CuPy gives its kernel where one end of ``clip`` is not given."""
    if given is not None or dtype.kind not in 'fiu':
        return given
    return dtype.type({'min': '-inf', 'max': 'inf'}[end] if dtype.kind == 'f' else getattr(np.iinfo(dtype), end))


def _inside(indices: Any, size: int) -> Any:
    return (indices >= -size) & (indices < size)


class Calculations(Operators):
    """The methods; their receiver is an array."""

    __slots__ = ()

    diagonal: Callable[..., Any]

    # -- selection ----------------------------------------------------------------------------------------------

    def take(self, indices: Any, axis: Any = None, out: Any = None) -> Any:
        """Return the elements at ``indices``; those out of bounds wrap around."""
        if launches.as_array(indices) is None and not np.isscalar(indices):
            indices = conversions.array(indices, dtype=int)

        def wrapping(a: Any, i: Any, out: Any = None) -> Any:
            length = a.size if axis is None else a.shape[axis]
            # Reduced first: NumPy wraps one length at a time, and indices that nothing has computed yet are anything.
            return np.take(a, np.asarray(i) % length if length else i, axis, out, 'wrap')

        return launches.launch('cupy_take', wrapping, (self, indices), out=out)

    def put(self, indices: Any, values: Any, mode: str = 'wrap') -> None:
        """Set the elements at flat ``indices``."""
        if mode not in ('raise', 'wrap', 'clip'):
            raise ValueError('clipmode not understood')
        given = [
            v if launches.as_array(v) is not None else conversions.array(v, dtype=d)
            for v, d in ((indices, None), (values, self.dtype))
        ]

        def put(a: Any, i: Any, v: Any) -> None:
            if mode == 'raise':  # the kernel leaves out what is out of bounds, and tells the host
                there = _inside(i, a.size)
                v, i = np.resize(v, i.shape)[there], i[there]
            np.put(a, i if mode == 'clip' or not a.size else i % a.size, v, 'clip')  # as in take()

        launches.mutate('cupy_put', put, self, given)
        if mode == 'raise' and not bool(_inside(given[0], self.size).all()):
            raise IndexError('invalid entry in indices array')

    def repeat(self, repeats: Any, axis: int | None = None) -> Any:
        """Return repeated elements. CuPy uploads counts that are a list, and reads their sum and the least of them."""
        decisions.repeat(self, repeats, axis)
        if launches.as_array(repeats) is not None:
            repeats = repeats.get().tolist()
        return launches.launch('cupy_repeat', np.repeat, (self, repeats, axis))

    def choose(self, choices: Any, out: Any = None, mode: str = 'raise') -> Any:
        """Return elements of ``choices`` picked by this array."""
        decisions.choose(self, choices, out, mode)
        return launches.launch('cupy_choose', np.choose, (self, choices), {'mode': mode}, out=out)

    @staticmethod
    def _check_kind_sort(kind: Any) -> None:
        if kind is not None and kind != 'stable':
            raise ValueError("kind can only be None or 'stable'")

    def sort(self, axis: int = -1, kind: Any = None) -> None:
        self._check_kind_sort(kind)
        launches.mutate('cupy_sort', lambda a: a.sort(axis=axis, kind='stable'), self)

    def argsort(self, axis: int | None = -1, kind: Any = None) -> Any:
        self._check_kind_sort(kind)
        return launches.launch('cupy_argsort', np.argsort, (self,), {'axis': axis, 'kind': 'stable'})

    def partition(self, kth: Any, axis: int = -1) -> None:
        """Partition in place: here, sort."""
        launches.mutate('cupy_partition', lambda a: a.partition(kth, axis=axis), self)

    def argpartition(self, kth: Any, axis: int | None = -1) -> Any:
        return launches.launch('cupy_argpartition', np.argpartition, (self, kth, axis))

    def nonzero(self) -> tuple[Any, ...]:
        """Return the indices of elements that are not zero; the host waits for their number."""
        return indexing.nonzero(self)

    def compress(self, condition: Any, axis: int | None = None, out: Any = None) -> Any:
        """Return slices where ``condition`` holds; the host waits for their number."""
        if np.isscalar(condition):
            raise ValueError('condition must be a 1-d array')
        if launches.as_array(condition) is None:
            condition = conversions.array(condition, dtype=int)
        return self.take(indexing.nonzero(condition)[0], axis, out)

    # -- calculation --------------------------------------------------------------------------------------------

    def clip(self, min: Any = None, max: Any = None, out: Any = None) -> Any:
        if min is None and max is None:
            raise ValueError('array_clip: must set either max or min')
        ends = [_bound(self.dtype, one, end) for one, end in ((min, 'min'), (max, 'max'))]
        if any(hasattr(one, '__cupy_override_elementwise_kernel__') for one in ends):
            return _CLIP(self, *ends)
        return launches.launch('cupy_clip', np.clip, (self, *ends), out=out, elementwise=True)

    def trace(self, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None, out: Any = None) -> Any:
        return self.diagonal(offset, axis1, axis2).sum(-1, dtype, out, False)

    def dot(self, b: Any, out: Any = None) -> Any:
        assert operators.namespace is not None
        return operators.namespace.dot(self, b, out)

    def conj(self) -> Any:
        return TABLE['conjugate'](self) if self.dtype.kind == 'c' else self

    conjugate = conj

    def scatter_add(self, slices: Any, value: Any) -> None:
        """(Deprecated) Use ``cupy.add.at``."""
        self._deprecated_scatter(slices, value, 'add', 'add')

    def scatter_max(self, slices: Any, value: Any) -> None:
        """(Deprecated) Use ``cupy.maximum.at``."""
        self._deprecated_scatter(slices, value, 'max', 'maximum')

    def scatter_min(self, slices: Any, value: Any) -> None:
        """(Deprecated) Use ``cupy.minimum.at``."""
        self._deprecated_scatter(slices, value, 'min', 'minimum')

    def _deprecated_scatter(self, slices: Any, value: Any, op: str, instead: str) -> None:
        warnings.warn(
            f'`ndarray.scatter_{op}` is deprecated. Please use `cupy.{instead}.at` instead.',
            DeprecationWarning,
            stacklevel=3,
        )
        self._scatter_op(slices, value, op)

    def _scatter_op(self, slices: Any, value: Any, op: str) -> None:
        indexing.scatter(self, slices, value, op)


def _method(name: str) -> Callable[..., Any]:
    own = getattr(np, name)
    function = UNCHECKED.get(name, own)

    def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = kwargs.pop('out', None)
        dtype = kwargs.pop('dtype', None) if name in ('argmax', 'argmin') else None  # NumPy's have none
        given = {key: value for key, value in kwargs.items() if value is not None and value is not False}
        found = launches.launch(f'cupy_{name}', function, args, given, out=out)
        return found if dtype is None else found.astype(dtype, copy=False)

    return declared(name, signature_like(f'ndarray.{name}', own), call)


for _name in METHODS:
    setattr(Calculations, _name, _method(_name))

"""What CuPy's own kernels do with their arguments: which of them they can only read, and how large the elements are.

CuPy declares the inputs of its elementwise and reduction kernels ``const``, which its kernel objects tell, also those
that a user has made. A node only has the kernel's name: the objects are found by that. Held for CuPy 14.0 to 14.2
(``cupy/_core/_kernel.pyx``, ``_reduction.pyx``, ``_cub_reduction.pyx``).
"""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

_PASS = re.compile(r'_pass[12]$')
#: Dtypes end in their size, or are these.
_SIZED = re.compile(r'^(bool|u?int\d+|float\d+|complex\d+)$')


@dataclass(frozen=True)
class Parameter:
    """A kernel's parameter. ``itemsize`` is an element's, in bytes, 0 where it is not known.

    ``memory`` is False for sizes and indices, which hold no address.
    """

    reads_only: bool
    itemsize: int = 0
    memory: bool = True


class Forms:
    """The parameters of CuPy's kernels, by the name that a node has, as things are when this is made."""

    def __init__(self) -> None:
        self._kernels: dict[str, list[Any]] = {}
        self._of: dict[tuple[str, tuple[int, ...]], tuple[Parameter, ...]] = {}
        for one in _objects():
            self._kernels.setdefault(str(one.name), []).append(one)

    def of(self, name: str, ndims: tuple[int, ...]) -> tuple[Parameter, ...]:
        """The parameters of the kernel of this name; () where it is not known.

        ``ndims`` has one number for each argument of the node: the axes of an array, -1 for anything else.
        """
        key = (name, ndims)
        if key not in self._of:
            self._of[key] = self._find(name, ndims)
        return self._of[key]

    def _find(self, name: str, ndims: tuple[int, ...]) -> tuple[Parameter, ...]:
        base, _, words = name.rpartition('__')
        found: list[tuple[Parameter, ...]] = []
        for wanted, typed in ((name, ''), (base, words), (base.removesuffix('_where'), words)):
            for kernel in self._kernels.get(wanted, ()):
                found += [one for one in _forms(kernel, typed, ndims) if len(one) == len(ndims)]
            if found:
                return _agreed(found)
        if '_cub_' in name:
            for kernel in self._kernels.get(_PASS.sub('', name).replace('_cub_', '_', 1), ()):
                found.append(_cub(kernel, len(ndims)))
        return _agreed(found)


def _objects() -> Iterable[Any]:
    """All kernels that CuPy has, and those of the user's that are alive."""
    kernel, reduction = sys.modules.get('cupy._core._kernel'), sys.modules.get('cupy._core._reduction')
    if kernel is None or reduction is None:
        return []
    kinds = (kernel.ElementwiseKernel, kernel.ufunc, reduction._AbstractReductionKernel)
    return [one for one in gc.get_objects() if issubclass(type(one), kinds)]  # what an object says it is may be code


def _parameter(info: Any) -> Parameter:
    if info.dtype is None and info.ctype is None:  # an indexer
        return Parameter(True, memory=False)
    # CuPy leaves the condition of `where=` without its const, and only reads it
    return Parameter(
        bool(info.is_const) or info.name == '_where', 0 if info.dtype is None else int(np.dtype(info.dtype).itemsize)
    )


def _forms(kernel: Any, words: str, ndims: tuple[int, ...]) -> Iterable[tuple[Parameter, ...]]:
    for infos in (getattr(kernel, name, None) for name in ('params', '_params', '_params_with_where')):
        if infos:
            form = tuple(map(_parameter, infos))
            yield _sized(form, words.split('_')) if words else _compiled(kernel, form, ndims)


def _sized(form: tuple[Parameter, ...], words: list[str]) -> tuple[Parameter, ...]:
    """A ufunc's kernel has the dtypes of its arguments in its name."""
    sizes = [np.dtype(word).itemsize if _SIZED.match(word) else 0 for word in words]
    sizes += [0] * (len(form) - len(sizes))
    return tuple(replace(one, itemsize=size or one.itemsize) for one, size in zip(form, sizes))


def _compiled(kernel: Any, form: tuple[Parameter, ...], ndims: tuple[int, ...]) -> tuple[Parameter, ...]:
    """An elementwise kernel remembers for which dtypes it was compiled: where all of them have one size, that is it."""
    sizes: list[set[int]] = [set() for _ in form]
    for key in list(getattr(kernel, '_elementwise_kernel_memo', ())):
        infos = key[1]
        if len(infos) != len(form) or any(n >= 0 and info.ndim != n for info, n in zip(infos, ndims)):
            continue
        for found, info in zip(sizes, infos):
            if info.dtype is not None:
                found.add(int(np.dtype(info.dtype).itemsize))
    return tuple(
        replace(one, itemsize=next(iter(found))) if len(found) == 1 and not one.itemsize else one
        for one, found in zip(form, sizes)
    )


def _cub(kernel: Any, count: int) -> tuple[Parameter, ...]:
    """CUB's kernels take the inputs and outputs as bare addresses, then two sizes."""
    form = tuple(map(_parameter, (*kernel.in_params, *kernel.out_params)))
    return (*form, *[Parameter(True, memory=False)] * (count - len(form))) if len(form) <= count else ()


def _agreed(forms: list[tuple[Parameter, ...]]) -> tuple[Parameter, ...]:
    """What all kernels of a name have in common: they may be several."""
    if not forms or len({len(form) for form in forms}) > 1:
        return ()
    return tuple(map(_common, zip(*forms)))


def _common(column: tuple[Parameter, ...]) -> Parameter:
    sizes = {one.itemsize for one in column}
    return Parameter(
        all(one.reads_only for one in column), sizes.pop() if len(sizes) == 1 else 0, any(one.memory for one in column)
    )

"""How CuPy's own kernels use their arguments: which they only read, whether wholly, and the size of the elements.

CuPy declares the inputs of its elementwise and reduction kernels ``const``, as their kernel objects show, including
those that a user has made. A node has the compiled function, which identifies an ``ElementwiseKernel`` for sure: CuPy
remembers what each was made from, also after the object is gone. For other kernels a node only has the name: objects
are found by the name, and accepted if they would pass arguments of the sizes that the node's arguments have. Tested
with CuPy 14.0 to 14.2 (``cupy/_core/_kernel.pyx``, ``_reduction.pyx``, ``_cub_reduction.pyx``, ``_util.pyx``).
"""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from types import ModuleType
from typing import Any

import numpy as np

from capturekit.model.cleanup import instances

_PASS = re.compile(r'_pass[12]$')
#: Code in a user's kernel because of which it may touch only some elements.
_CHOICE = re.compile(r'\b(if|for|while|do|switch|goto|return|continue|break)\b')
_WORD = 8
#: Letters of kinds of dtypes that hold no address.
_FLOATS = frozenset('fc')
#: Dtypes end in their size, or are these.
_SIZED = re.compile(r'^(bool|u?int\d+|float\d+|complex\d+)$')


@dataclass(frozen=True)
class KernelParameter:
    """A kernel's parameter. ``itemsize`` is the size of an element in bytes, 0 if it is not known.

    ``reads_only`` is None where kernels of one name differ. ``memory`` is False for sizes and indices, which hold no
    address. ``whole`` is False if some elements may not be touched. ``number``: where it is as short as an
    address, it is a floating-point number. ``texture``: it may be a texture, whose memory is not known.
    """

    reads_only: bool | None
    itemsize: int = 0
    memory: bool = True
    whole: bool = True
    number: bool = False
    texture: bool = False


def axes(size: int) -> int:
    """The number of axes of a CuPy array that takes so many bytes (address, size, shape, strides); -1 if it is none."""
    found, odd = divmod(size - 2 * _WORD, 2 * _WORD)
    return -1 if odd else found


#: What was found by a look at all objects, which takes milliseconds, for a function with the name and sizes of a node.
#: Whoever made it was there when its node was first met, so that kernels which are made later change nothing.
_FOUND: dict[tuple[str, tuple[int, ...], int], tuple[KernelParameter, ...]] = {}


class Forms:
    """The parameters of CuPy's kernels, by the function or the name that a node has, as things are when it is made."""

    _remembered = 0  # functions, by CuPy, at the last look

    def __init__(self) -> None:
        self._of: dict[tuple[str, tuple[int, ...], int], tuple[KernelParameter, ...]] = {}
        self._compiled: dict[int, _Compiled] = dict(_remembered())
        if len(self._compiled) < Forms._remembered:  # `cupy.clear_memo()`: handles are given to other functions now
            _FOUND.clear()
        Forms._remembered = len(self._compiled)

    @cached_property
    def _kernels(self) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {}
        for one in _objects():
            found.setdefault(str(one.name), []).append(one)
            self._compiled.update(_compilations(one))
        return found

    def of(self, name: str, sizes: tuple[int, ...], function: int = 0) -> tuple[KernelParameter, ...]:
        """The parameters of the kernel of this name, whose node has arguments of so many bytes; () if not known.

        ``function`` is the driver's handle of it, 0 if that is not known.
        """
        key = (name, sizes, function)
        if key not in self._of:
            told = self._told(sizes, function)
            found = _agreed(told) if told else _FOUND.get(key)
            if found is None:
                told = self._told(sizes, function) if self._kernels else []
                found = _agreed(told) if told else self._find(name, sizes)
                if function:
                    _FOUND[key] = found
            self._of[key] = found
        return self._of[key]

    def _told(self, sizes: tuple[int, ...], function: int) -> list[tuple[KernelParameter, ...]]:
        """What the function itself tells, if its origin is known."""
        compiled = self._compiled.get(function)
        return [] if compiled is None else list(_forms(compiled, '', sizes))

    def _find(self, name: str, sizes: tuple[int, ...]) -> tuple[KernelParameter, ...]:
        base, _, words = name.rpartition('__')
        found: list[tuple[KernelParameter, ...]] = []
        for wanted, typed in ((name, ''), (base, words), (base.removesuffix('_where'), words)):
            for kernel in self._kernels.get(wanted, ()):
                found += _forms(kernel, typed, sizes)
            if found:
                return _agreed(found)
        if '_cub_' in name:
            for kernel in self._kernels.get(_PASS.sub('', name).replace('_cub_', '_', 1), ()):
                found += _cub(kernel, sizes)
        return _agreed(found)


def _objects() -> Iterable[Any]:
    """All kernels that CuPy has, and those of the user's that are alive.

    After ``gc.freeze()`` the collector lists no older object: then those that modules have by a name are found.
    """
    kernel, reduction = sys.modules.get('cupy._core._kernel'), sys.modules.get('cupy._core._reduction')
    if kernel is None or reduction is None:
        return []
    kinds = (kernel.ElementwiseKernel, kernel.ufunc, reduction._AbstractReductionKernel)
    objects: Iterable[Any] = instances(*kinds)
    if gc.get_freeze_count():
        named = [list(vars(module).values()) for module in list(sys.modules.values()) if isinstance(module, ModuleType)]
        objects = chain(objects, (one for one in chain(*named) if issubclass(type(one), kinds)))
    return {id(one): one for one in objects}.values()


@dataclass(frozen=True)
class _Compiled:
    """The origin of one function, with the attributes of the ``ElementwiseKernel`` that it was made for."""

    params: Sequence[Any]
    operation: Any
    kwargs: Mapping[str, Any]
    _elementwise_kernel_memo: Sequence[Any]


def _compilations(kernel: Any) -> Iterable[tuple[int, _Compiled]]:
    """The functions of a kernel object, by their handles."""
    for key, function in list(getattr(kernel, '_elementwise_kernel_memo', {}).items()):
        yield int(function.ptr), _Compiled(kernel.params, kernel.operation, kernel.kwargs, (key,))


def _remembered() -> Iterable[tuple[int, _Compiled]]:
    """The functions of all kernel objects that there were: ``cupy._util.memoize`` keeps the arguments of its calls."""
    make = getattr(sys.modules.get('cupy._core._kernel'), '_get_elementwise_kernel', None)
    for key, function in _memo(make):
        arguments, options = key[1], dict(key[2]) if len(key) > 2 else {}
        if len(arguments) < 4 or not hasattr(function, 'ptr'):
            continue
        infos, types, params, operation = arguments[:4]
        yield int(function.ptr), _Compiled(params, operation, options, ((key[0], infos, types),))


def _memo(function: Any) -> list[tuple[tuple[Any, ...], Any]]:
    """The cache of a memoized CuPy function, a closure variable that Cython hides."""
    scopes = [one for one in gc.get_referents(function) if type(one).__module__ == 'cupy._util']
    memos = [one for scope in scopes for one in gc.get_referents(scope) if type(one) is dict]
    return [
        (key, value) for memo in memos for key, value in list(memo.items()) if isinstance(key, tuple) and len(key) > 1
    ]


def _parameter(info: Any) -> KernelParameter:
    if info.dtype is None and info.ctype is None:  # an indexer
        return KernelParameter(True, memory=False)
    # CuPy leaves the condition of `where=` without its const, and only reads it
    return KernelParameter(
        bool(info.is_const) or info.name == '_where',
        0 if info.dtype is None else int(np.dtype(info.dtype).itemsize),
        whole=not info.raw,
        number=info.dtype is not None and np.dtype(info.dtype).kind in _FLOATS,
    )


def _forms(kernel: Any, words: str, sizes: tuple[int, ...]) -> Iterable[tuple[KernelParameter, ...]]:
    for where in ('params', '_params', '_params_with_where'):
        infos = getattr(kernel, where, None)
        if not infos or not _passes(infos, sizes):
            continue
        form = tuple(map(_parameter, infos))
        if where == '_params_with_where':
            form = tuple(replace(one, whole=info.name == '_where') for one, info in zip(form, infos))
        elif where == 'params':
            form = _chosen(kernel, infos, form)
        yield _sized(form, words.split('_')) if words else _compiled(kernel, form, sizes)


def _passes(infos: Sequence[Any], sizes: tuple[int, ...]) -> bool:
    """Whether CuPy passes arguments of these sizes for parameters like these.

    An index has as many axes as the arrays it is for; inputs may be numbers and textures as well, outputs are arrays.
    """
    if len(infos) != len(sizes):
        return False
    indexers = [size for info, size in zip(infos, sizes) if info.dtype is None and info.ctype is None]
    if any(size % (2 * _WORD) != _WORD for size in indexers):
        return False
    inputs, outputs = ((size - _WORD) // (2 * _WORD) for size in (indexers[0], indexers[-1]))
    for info, size in zip(infos, sizes):
        if info.ctype is None and info.dtype is None:
            continue
        found, written = axes(size), not info.is_const and info.name != '_where'
        fits = info.raw or found == (outputs if written else inputs)
        if (found < 0 or not fits) and (written or size > 2 * _WORD):  # no number is larger than a complex one
            return False
    return True


def _chosen(kernel: Any, infos: Sequence[Any], form: tuple[KernelParameter, ...]) -> tuple[KernelParameter, ...]:
    """Whether an elementwise kernel may leave some elements untouched, as far as its code shows."""
    code = ';\n'.join((str(getattr(kernel, 'kwargs', {}).get('loop_prep', '')), str(kernel.operation)))
    choice = _CHOICE.search(code) is not None
    found = []
    for info, one in zip(infos, form):
        sure = not choice and (one.reads_only or re.search(rf'(^|[;{{}}])\s*{info.name}\s*[^\s\w=]{{0,2}}=[^=]', code))
        found.append(one if sure else replace(one, whole=False))
    return tuple(found)


def _sized(form: tuple[KernelParameter, ...], words: list[str]) -> tuple[KernelParameter, ...]:
    """A ufunc's kernel has the dtypes of its arguments in its name."""
    sizes = [2 if word == 'bfloat16' else np.dtype(word).itemsize if _SIZED.match(word) else 0 for word in words]
    sizes += [0] * (len(form) - len(sizes))
    return tuple(replace(one, itemsize=size or one.itemsize) for one, size in zip(form, sizes))


def _compiled(
    kernel: Any, form: tuple[KernelParameter, ...], arguments: tuple[int, ...]
) -> tuple[KernelParameter, ...]:
    """An elementwise kernel remembers for which dtypes it was compiled: where all of them have one size, that is it."""
    sizes: list[set[int]] = [set() for _ in form]
    kinds: list[set[str]] = [set() for _ in form]
    textures: set[int] = set()
    ndims = [axes(size) if size > 2 * _WORD else -1 for size in arguments]  # 16 bytes may be a complex number
    for key in list(getattr(kernel, '_elementwise_kernel_memo', ())):
        infos = key[1]
        if len(infos) != len(form) or any(n >= 0 and info.ndim != n for info, n in zip(infos, ndims)):
            continue
        for number, info in enumerate(infos):
            if info.dtype is not None:
                sizes[number].add(int(np.dtype(info.dtype).itemsize))
                kinds[number].add(np.dtype(info.dtype).kind)
            elif form[number].memory:
                textures.add(number)
    return tuple(
        replace(
            one,
            itemsize=next(iter(found)) if len(found) == 1 and not one.itemsize else one.itemsize,
            number=one.number or (bool(kinds[number]) and kinds[number] <= _FLOATS),
            texture=number in textures and arguments[number] == _WORD,
        )
        for number, (one, found) in enumerate(zip(form, sizes))
    )


def _cub(kernel: Any, sizes: tuple[int, ...]) -> Iterable[tuple[KernelParameter, ...]]:
    """CUB's kernels take an input and an output as bare addresses, then two sizes."""
    infos = (*kernel.in_params, *kernel.out_params)
    if len(infos) == 2 and len(sizes) == 4 and sizes[:2] == (_WORD, _WORD) and set(sizes[2:]) <= {4, 8}:
        yield (*(replace(_parameter(one), number=False) for one in infos), *[KernelParameter(True, memory=False)] * 2)


def _agreed(forms: list[tuple[KernelParameter, ...]]) -> tuple[KernelParameter, ...]:
    """The properties that all kernels of one name share."""
    if not forms or len({len(form) for form in forms}) > 1:
        return ()
    return tuple(map(_common, zip(*forms)))


def _common(column: tuple[KernelParameter, ...]) -> KernelParameter:
    reads, sizes = {one.reads_only for one in column}, {one.itemsize for one in column}
    return KernelParameter(
        reads.pop() if len(reads) == 1 else None,
        sizes.pop() if len(sizes) == 1 else 0,
        any(one.memory for one in column),
        all(one.whole for one in column),
        all(one.number for one in column),
        any(one.texture for one in column),
    )

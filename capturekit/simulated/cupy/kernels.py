"""User-written kernels: ``ElementwiseKernel``, ``ReductionKernel``, ``RawKernel``, ``fuse``, ``vectorize``.

CUDA source can't run here. A kernel runs the Python body registered for its name (:func:`bodies.body`).
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from capturekit.simulated.kernel_bodies import body_of, kernel_made

from . import launches
from .launches import Layout


class Parameter(NamedTuple):
    """A parameter of an elementwise kernel, as it is declared."""

    type: str
    name: str
    raw: bool


def parameters_of(text: str) -> tuple[Parameter, ...]:
    """Read declarations as ``'float32 x, raw T y'``."""
    words = [part.split() for part in text.split(',') if part.strip()]
    return tuple(Parameter(one[-2], one[-1], 'raw' in one[:-2]) for one in words)


def _on(stream: Any) -> Any:
    return contextlib.nullcontext() if stream is None else stream


def _types(parameters: tuple[Parameter, ...], args: tuple[Any, ...]) -> dict[str, np.dtype[Any]]:
    """Return what the type names of inputs stand for; arrays decide before scalars."""
    found: dict[str, np.dtype[Any]] = {}
    for arrays in (True, False):
        for p, a in zip(parameters, args):
            if isinstance(a, Layout) is arrays:
                found.setdefault(p.type, a.dtype if arrays else np.asarray(a).dtype)
    return found


def _dtype(name: str, known: dict[str, np.dtype[Any]]) -> np.dtype[Any]:
    if len(name) == 1 and name in known:
        return known[name]
    try:
        return np.dtype(name)
    except TypeError:
        raise ValueError(f'the type {name!r} of an output is not decided by the inputs') from None


class _Kernel:
    """What elementwise kernels and reductions are made of."""

    def __init__(self, name: str, in_params: str, out_params: str, **told: Any) -> None:
        if re.match(r'^[a-zA-Z_][a-zA-Z_0-9]*$', name) is None:
            raise ValueError(f'Invalid kernel name: "{name}"')
        self.name = self.__name__ = name
        self.in_params, self.out_params = parameters_of(in_params), parameters_of(out_params)
        self.nin, self.nout = len(self.in_params), len(self.out_params)
        self.nargs = self.nin + self.nout
        vars(self).update(told)


class ElementwiseKernel(_Kernel):
    """A kernel for every element."""

    body_keywords = ()
    no_return: bool
    return_tuple: bool

    def __init__(
        self, in_params: str, out_params: str, operation: str, name: str = 'kernel', reduce_dims: bool = True,
        preamble: str = '', no_return: bool = False, return_tuple: bool = False, **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__(
            name, in_params, out_params, operation=operation, reduce_dims=reduce_dims, preamble=preamble,
            no_return=no_return, return_tuple=return_tuple, kwargs=kwargs,
        )  # fmt: skip
        inputs, outputs = ([p.name for p in some] for some in (self.in_params, self.out_params))
        if 'i' in (*inputs, *outputs):
            raise ValueError("Can not use 'i' as a parameter name")
        self.body_calls = ([*inputs, *outputs], inputs)
        kernel_made(self)

    def __call__(self, *args: Any, size: int = -1, stream: Any = None, block_size: int = 128) -> Any:
        if block_size <= 0:
            raise ValueError('block_size must be greater than zero')
        if len(args) not in (self.nin, self.nargs):
            raise TypeError(
                f'Wrong number of arguments for {self.name!r}. '
                f'It must be either {self.nin} or {self.nargs} (with outputs), but given {len(args)}.'
            )
        inputs, outputs = args[: self.nin], args[self.nin :]
        work = self._work(inputs, outputs, size)
        with _on(stream):
            each = size == -1 and not any(p.raw for p in self.in_params + self.out_params)
            found = launches.launch(self.name, work, inputs, out=tuple(outputs) or None, elementwise=each)
        if self.no_return:
            return None
        return tuple(found) if self.return_tuple or self.nout != 1 else found[0]

    def _work(self, inputs: tuple[Any, ...], outputs: tuple[Any, ...], size: int) -> Callable[..., Any]:
        fn, names = body_of(self)
        known = _types(self.in_params, inputs)
        known.update(_types(self.out_params, outputs))
        dtypes = [_dtype(p.type, known) for p in self.out_params]
        raw = [p.raw for p in self.in_params]
        with_outputs = len(names) > self.nin

        def work(*values: Any, out: tuple[NDArray[Any], ...] | None = None) -> Any:
            if size != -1:
                shape: tuple[int, ...] = (size,)
            else:
                shape = np.broadcast_shapes(*(np.shape(v) for v, r in zip(values, raw) if not r))
            results = out or tuple(np.zeros(shape, d) for d in dtypes)
            found = fn(*values, *results) if with_outputs else fn(*values)
            if found is not None:
                for result, value in zip(results, found if isinstance(found, tuple) else (found,)):
                    np.copyto(result, value, casting='unsafe')
            return results

        return work


class ReductionKernel(_Kernel):
    """A kernel that reduces along axes."""

    body_keywords = ('axis', 'keepdims')

    def __init__(
        self, in_params: str, out_params: str, map_expr: str, reduce_expr: str, post_map_expr: str, identity: Any,
        name: str = 'reduce_kernel', reduce_type: str | None = None, reduce_dims: bool = True, preamble: str = '',
        options: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        super().__init__(
            name, in_params, out_params, map_expr=map_expr, reduce_expr=reduce_expr, post_map_expr=post_map_expr,
            identity='' if identity is None else str(identity),
        )  # fmt: skip
        self.body_calls = ([p.name for p in self.in_params],)
        kernel_made(self)

    def __call__(
        self, *args: Any, out: Any = None, axis: Any = None, keepdims: bool = False, stream: Any = None
    ) -> Any:
        out = args[self.nin] if len(args) > self.nin else out
        fn, _ = body_of(self)
        dtype = _dtype(self.out_params[0].type, _types(self.in_params, args[: self.nin]))

        def work(*values: Any, out: Any = None) -> Any:
            found = np.asarray(fn(*values, axis=axis, keepdims=keepdims))
            if out is None:
                return found.astype(dtype)
            np.copyto(out, found, casting='unsafe')
            return out

        with _on(stream):
            return launches.launch(self.name, work, args[: self.nin], out=out)


class RawKernel:
    """A kernel given as CUDA source."""

    body_calls, body_keywords = (('grid', 'block', 'args'),), ()

    def __init__(
        self, code: str | None, name: str, options: tuple[str, ...] = (), backend: str = 'nvrtc', *,
        translate_cucomplex: bool = False, enable_cooperative_groups: bool = False, jitify: Any = None,
    ) -> None:  # fmt: skip
        self.code, self.options, self.backend = code, options, backend
        self.name = self.__name__ = name
        kernel_made(self)

    def __call__(self, grid: Any, block: Any, args: Any, *, shared_mem: int = 0, stream: Any = None) -> None:
        fn, _ = body_of(self)
        grid, block = tuple(grid), tuple(block)
        with _on(stream):
            launches.run(self.name, fn, tuple(args), grid=grid, block=block, shared=shared_mem)

    def compile(self, log_stream: Any = None) -> None:
        """Do nothing: there is no compiler."""


class RawModule:
    """Several kernels given as CUDA source."""

    def __init__(
        self, code: str | None = None, *, path: str | None = None, options: tuple[str, ...] = (),
        backend: str = 'nvrtc', translate_cucomplex: bool = False, enable_cooperative_groups: bool = False,
        name_expressions: Any = None, jitify: Any = None,
    ) -> None:  # fmt: skip
        if (code is None) == (path is None):
            raise TypeError('Exactly one of `code` and `path` keyword arguments must be given.')
        self.code, self.file_path = code, path

    compile = RawKernel.compile

    def get_function(self, name: str) -> RawKernel:
        return RawKernel(self.code, name)


class _JitRawKernel:
    def __init__(self, func: Callable[..., Any]) -> None:
        self._func = func
        functools.update_wrapper(self, func)

    def __call__(self, grid: Any, block: Any, args: Any, shared_mem: int = 0, stream: Any = None) -> None:
        RawKernel(None, self._func.__name__)(grid, block, args, shared_mem=shared_mem, stream=stream)

    def __getitem__(self, grid_and_block: tuple[Any, Any]) -> Callable[..., None]:
        grid, block = (g if isinstance(g, tuple) else (g,) for g in grid_and_block)
        return lambda *args, **kwargs: self(grid, block, args, **kwargs)


def rawkernel(*, mode: str = 'cuda', device: bool = False) -> Callable[[Callable[..., Any]], _JitRawKernel]:
    """``cupyx.jit.rawkernel``: the decorated function is not run, its body registered by name is."""
    return _JitRawKernel


def fuse(*args: Any, **kwargs: Any) -> Any:
    """Return the function as it is: its operations run one by one."""

    def wrapper(f: Callable[..., Any], kernel_name: str | None = None) -> Callable[..., Any]:
        return functools.wraps(f)(lambda *a, **k: f(*a, **k))

    return wrapper(args[0]) if len(args) == 1 and not kwargs and callable(args[0]) else wrapper


class vectorize:
    """A Python function for every element, run by :class:`numpy.vectorize`."""

    def __init__(
        self, pyfunc: Callable[..., Any], otypes: Any = None, doc: str | None = None, excluded: Any = None,
        cache: bool = False, signature: Any = None,
    ) -> None:  # fmt: skip
        self.pyfunc = pyfunc
        self.__doc__ = doc or pyfunc.__doc__
        self.otypes = otypes
        if excluded is not None or signature is not None:
            raise NotImplementedError('cupy.vectorize does not support `excluded` and `signature` currently.')

    def __call__(self, *args: Any) -> Any:
        name = getattr(self.pyfunc, '__name__', 'vectorize')
        return launches.launch(name, np.vectorize(self.pyfunc, otypes=self.otypes), args)


#: Functions that remember. As in CuPy these are all that were ever made.
_memos: list[Any] = []


def memoize(for_each_device: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def decorate(f: Callable[..., Any]) -> Callable[..., Any]:
        remembering = functools.cache(f)
        _memos.append(remembering)
        return remembering

    return decorate


def clear_memo() -> None:
    for remembering in _memos:
        remembering.cache_clear()

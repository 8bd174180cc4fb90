"""CuPy's compiler, which a run comes to where it uses a kernel for the first time: its code is not followed.

CuPy remembers each kernel that it has made by all that the kernel depends on (``cupy.memoize``), until
``cupy.clear_memo()``. So the first run goes through the compiler, or through CuPy's files of compiled kernels, and a
later one does not: whatever somebody puts into the compiler in between, an eager run uses the kernel that there is.
Two things have to hold for that, and both are looked at. CuPy has forgotten nothing since, which is compared at each
call. And the run that is recorded, the second, does not have the same sources compiled again, as one would that calls
the compiler directly: otherwise the function stays eager. Other kernels may be new to it, since it is recorded with
arguments in the graph's memory.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FrameType, FunctionType, TracebackType
from typing import Any

from capturekit.model import errors
from capturekit.model.class_layout import attributes_of, name_of
from capturekit.model.source_line import here

FORGOTTEN = 'whether CuPy remembers the kernels that it has made'
#: These compile at each run, with nothing that remembers.
_EACH_TIME = 'cupyx.jit'
#: The CuPy that was asked last, and a function that it remembers.
_marked: list[tuple[Any, Callable[[], object]]] = []


def compiler_code() -> CodeType | None:
    """The code of the function through which CuPy makes kernels; None if CuPy has no such function of its own."""
    module = sys.modules.get('cupy.cuda.compiler')
    found = None if module is None else vars(module).get('_compile_module_with_cache')
    if type(found) is FunctionType and found.__globals__ is vars(module):
        return found.__code__
    return None


def asked_by_kernel(frame: FrameType) -> bool:
    """Whether the compiler is entered by what remembers its kernels."""
    outer = frame.f_back
    return outer is None or not str(outer.f_globals.get('__name__')).startswith(_EACH_TIME)


def source_of(frame: FrameType) -> Any:
    """The source that the compiler is given."""
    return frame.f_locals.get('source')


def remembers() -> Callable[[], bool]:
    """A function that returns True until CuPy forgets what it remembers now."""
    cupy: Any = sys.modules['cupy']
    found = [mark for module, mark in _marked if module is cupy]
    mark = found[0] if found else cupy.memoize()(_new_mark)
    if not found:
        _marked[:] = [(cupy, mark)]
    before = mark()
    return lambda: mark() is before


def is_memoized(value: object) -> bool:
    """Whether ``cupy.memoize`` made a function, in C: nobody sees what it remembers of the function that it wraps."""
    return name_of(type(value)) == 'cython_function_or_method' and '__wrapped__' in attributes_of(value)


def _new_mark() -> object:
    return object()


def profile_again(previous: Any) -> None:
    """Let the profiler that was there follow calls again."""
    sys.setprofile(previous if callable(previous) else None)
    if hasattr(previous, 'enable'):
        previous.enable()  # cProfile before Python 3.12 is not a function and can't be set as one


class NoCompiler:
    """A block that does not compile these sources again. If it does, its end raises UnsupportedCallError."""

    def __init__(self, code: CodeType | None, sources: frozenset[Any]) -> None:
        self._code = code
        self._sources = sources
        self._met = False
        self._previous: Any = None

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == 'call' and frame.f_code is self._code and source_of(frame) in self._sources:
            self._met = True
        if callable(self._previous):
            self._previous(frame, event, argument)

    def __enter__(self) -> None:
        self._previous = sys.getprofile()
        self._callback = self._profile
        sys.setprofile(self._callback)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        lost = sys.getprofile() is not self._callback
        if not lost:
            profile_again(self._previous)
        if kind is None and (self._met or lost):
            raise errors.UnsupportedCallError(
                "CuPy's compiler",
                location=here(),
                rule='The function sets a profile function, or compiles again at each call what CuPy forgets.',
            )

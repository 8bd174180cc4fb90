"""What ``run`` and ``lint`` do alike around a script: find the GPU, run code as Python does, wait for threads."""

from __future__ import annotations

import atexit
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import CodeType, ModuleType
from typing import Any

from capturekit.cli.by_environment import NAME, wanted
from capturekit.model.source_line import is_foreign_frame


def why_no_gpu() -> str | None:
    """Return None where CuPy finds a GPU, and otherwise what CuPy said, or who wants the simulated device."""
    if wanted():
        return f'{NAME} is set'
    try:
        import cupy

        return None if cupy.cuda.runtime.getDeviceCount() > 0 else 'no GPU: CuPy counts none'
    except Exception as error:
        return f'no GPU: {error}'.splitlines()[0]


@contextmanager
def as_main(argv: Sequence[str], folder: str | None) -> Iterator[None]:
    """Give code the ``sys.argv`` that Python would, and ``folder`` as the first place of ``sys.path``."""
    before, path = sys.argv, sys.path[:]
    sys.argv = list(argv)
    if folder is not None and not getattr(sys.flags, 'safe_path', False):
        sys.path[0] = folder
    try:
        yield
    finally:
        sys.argv, sys.path[:] = before, path


def run_code(code: CodeType, file: str | None, names: dict[str, Any]) -> None:
    """Run compiled code as the module ``__main__``, with more names in it."""
    module = ModuleType('__main__')
    vars(module).update({'__file__': file} if file is not None else {}, **names)
    before = sys.modules['__main__']
    sys.modules['__main__'] = module
    try:
        exec(code, vars(module))
    finally:
        sys.modules['__main__'] = before


def join_threads() -> None:
    """Wait as Python itself does before a script is over."""
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join()


class ExitCallbacks:
    """What a program gives to ``atexit`` in the block is called by :meth:`run`, while the program is still guarded.

    What libraries give to it stays there.
    """

    def __init__(self) -> None:
        self._given: list[Callable[[], Any]] = []
        self._register, self._unregister = atexit.register, atexit.unregister

    def __enter__(self) -> ExitCallbacks:
        atexit.register, atexit.unregister = self._take, self._drop
        return self

    def __exit__(self, *_exc: object) -> None:
        atexit.register, atexit.unregister = self._register, self._unregister
        while self._given:
            self._register(self._given.pop(0))

    def _take(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if is_foreign_frame(sys._getframe(1)) or not callable(function):
            return self._register(function, *args, **kwargs)
        self._given.append(partial(function, *args, **kwargs))
        return function

    def _drop(self, function: Callable[..., Any]) -> None:
        self._given = [one for one in self._given if getattr(one, 'func', None) != function]
        self._unregister(function)

    def run(self, failed: Callable[[BaseException], object]) -> None:
        """Wait for threads, and call the callbacks, the last one first, as Python does when a program has ended."""
        join_threads()
        while self._given:
            try:
                self._given.pop()()
            except BaseException as error:
                failed(error)

"""Lines in the user's code: where a call came from, skipping frames of CuPy, Python and capturekit."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
from dataclasses import dataclass
from threading import get_ident
from types import FrameType

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
#: Packages whose frames are never the user's line, because captured calls go through them.
_PACKAGES = (
    'cupy', 'cupyx', 'cupy_backends', 'cuda.bindings', 'cuda.core', 'numpy', 'scipy', 'torch', 'triton', 'numba',
    'numba_cuda', 'warp', 'rmm', 'cudf', 'cuml', 'jax',
)  # fmt: skip
#: Their compiled code tells tracebacks the files that it was made of: ``cupy_backends/cuda/api/runtime.pyx``.
_COMPILED = tuple(name.replace('.', '/') + '/' for name in _PACKAGES)
#: The folders of Python's standard library, and the folders inside them into which packages are installed.
_PYTHON = tuple({sysconfig.get_path(name) + os.sep for name in ('stdlib', 'platstdlib')})
_INSTALLED = ('site-packages', 'dist-packages')
_foreign: dict[str, bool] = {}
#: How the names of modules of CuPy begin, and of the stand-in for it.
_CUPYS = ('cupy.', 'cupyx.', '_capturekit_simulated', 'capturekit.simulated.cupy.')


@dataclass(frozen=True)
class Place:
    """One line: ``file``, ``line``, ``function``."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        where = f'{os.path.basename(self.file)}:{self.line}'
        return where if self.function == '<module>' else f'{where} in {self.function}'

    @property
    def short(self) -> str:
        """The file's own name and the line: ``train.py:38``."""
        return f'{os.path.basename(self.file)}:{self.line}'

    def to_json(self) -> list[object]:
        return [self.file, self.line, self.function]

    @classmethod
    def from_json(cls, data: list[object] | None) -> Place | None:
        return None if data is None else cls(str(data[0]), int(str(data[1])), str(data[2]))


def is_foreign(filename: str) -> bool:
    """True for code of capturekit, of the libraries that make calls to CUDA for others, and of Python's own modules."""
    answer = _foreign.get(filename)
    if answer is None:
        starts = (_OURS, '<frozen', *_COMPILED, *_package_folders())
        pythons = (filename[len(one) :] for one in _PYTHON if filename.startswith(one))
        answer = filename.startswith(starts) or not all(rest.startswith(_INSTALLED) for rest in pythons)
        _foreign[filename] = answer
    return answer


def is_ours(filename: str) -> bool:
    """True for code of capturekit, including its simulated CuPy."""
    return filename.startswith(_OURS)


def is_foreign_frame(frame: FrameType) -> bool:
    """:func:`is_foreign` for a frame's code. Code made from a string, as by dataclasses, belongs to its module."""
    name = frame.f_code.co_filename
    answer = _foreign.get(name)
    if answer is None:
        answer = is_foreign(name)
    if answer or name[:1] != '<':
        return answer
    made = frame.f_code.co_qualname.startswith('__create_fn__')
    return made or is_foreign(str(frame.f_globals.get('__file__', '')))


def _package_folders() -> list[str]:
    files = (getattr(sys.modules.get(name), '__file__', None) for name in _PACKAGES)
    return [os.path.dirname(file) + os.sep for file in files if file]


def other_threads() -> dict[int, FrameType]:
    """The frame in which each other thread is. This thread's own one, held in one of its frames, would never go."""
    frames = sys._current_frames()
    del frames[get_ident()]
    return frames


def here(frame: FrameType | None = None) -> Place | None:
    """Return the innermost line that is the user's, from ``frame`` outwards (default: the caller's)."""
    at: FrameType | None = frame or sys._getframe(1)
    known = _foreign
    while at is not None:
        code = at.f_code
        file = code.co_filename
        answer = known.get(file)
        if answer is None or (not answer and file[:1] == '<'):
            answer = is_foreign_frame(at)
        if not answer:
            return _place(file, at.f_lineno, code.co_name)
        at = at.f_back
    return None


#: Lines that were asked for, which come again in loops.
_place = functools.lru_cache(4096)(Place)


def way_of(error: BaseException) -> tuple[Place, ...]:
    """The lines of the user's code that an exception has come through, the outermost first."""
    found: list[Place] = []
    trace = error.__traceback__
    while trace is not None:
        if not is_foreign_frame(trace.tb_frame):
            code = trace.tb_frame.f_code
            found.append(Place(code.co_filename, trace.tb_lineno, code.co_name))
        trace = trace.tb_next
    return tuple(found)


def raised_at(error: BaseException) -> Place | None:
    """The innermost line of the user's code that an exception has come through, or None."""
    return (None, *way_of(error))[-1]


def function_of_cupy() -> str:
    """The name of the function written in Python, of CuPy's, that the user's line called; '' if it called none."""
    name, module = _called()
    return '' if not module.startswith(_CUPYS) or name.startswith(('_', '<')) else name


def called() -> str:
    """The name of the function that the user's line called; '' if that is not a Python function of CuPy."""
    return _called()[0]


def _called() -> tuple[str, str]:
    at: FrameType | None = sys._getframe(2)
    name = module = ''
    while at is not None and is_foreign_frame(at):
        name, module = at.f_code.co_name, str(at.f_globals.get('__name__'))
        at = at.f_back
    return name, module

"""Whether a file holds the user's code, a library that is understood as a whole, or Python's standard library."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable
from types import FrameType

from capturekit.functions.understood import FOLLOWED, PACKAGES, WHOLE
from capturekit.model.source_line import is_ours

#: Modules of SciPy that ask for a backend, or change which one is asked: a module or a class of anybody's.
_OF_BACKENDS = ('scipy._lib._uarray', 'scipy.fft._backend', 'uarray')
_skipped: dict[str, bool] = {}
_modules: dict[str, str] = {}


def default_skip(filename: str) -> bool:
    """True for code of CuPy, capturekit, numpy, scipy and Python's standard library.

    Code of torch, JAX or Numba is never the line that a message shows, but it may read state of its own like any code.
    """
    answer = _skipped.get(filename)
    if answer is None:
        answer = _skipped[filename] = is_ours(filename) or _is_library(filename)
    return answer


def _is_library(filename: str) -> bool:
    if filename.startswith('<__array_function__') or python_module(filename):
        return True
    for name in PACKAGES:
        for folder in getattr(sys.modules.get(name), '__path__', ()):
            if filename.startswith(str(folder) + os.sep):
                return True
    return False


def asks_for_backends(module: str, function: str = '') -> bool:
    """Whether a function of SciPy, by the name of its module and its own, asks for a backend or changes these."""
    return function.startswith('__ua_') or module.startswith(_OF_BACKENDS)


def python_module(filename: str) -> str:
    """The name of the standard module that a file holds; '' for other files."""
    found = _modules.get(filename)
    if found is None:
        found = _modules[filename] = _python_module(filename)
    return found


def _python_module(filename: str) -> str:
    if filename.startswith('<frozen '):
        return filename[8:-1]
    paths = sysconfig.get_paths()
    for folder in {paths['stdlib'], paths['platstdlib'], os.path.dirname(os.__file__)}:
        if filename.startswith(folder + os.sep):
            inside = filename[len(folder) + 1 :]
            if not inside.startswith(('site-packages', 'dist-packages')):
                return inside.removesuffix('.py').removesuffix(os.sep + '__init__').replace(os.sep, '.')
    return ''


def is_library_frame(frame: FrameType, skip: Callable[[str], bool]) -> bool:
    """True if a frame's code is not the user's. Code made from a string, as by dataclasses, belongs to its module."""
    name = frame.f_code.co_filename
    if skip(name):
        return True
    file = frame.f_globals.get('__file__') if name[:1] == '<' else None
    return type(file) is str and skip(file)


def asked_by_user(frame: FrameType | None, skip: Callable[[str], bool]) -> bool:
    """True if the frame, or the one that called it through Python's standard library, is the user's.

    False if a library that is understood as a whole comes between: its own row in the table says what it reads.
    """
    while frame is not None:
        name = frame.f_code.co_filename
        if not is_library_frame(frame, skip):
            return True
        module = python_module(name)
        if not module or module.partition('.')[0] in WHOLE:
            return False
        frame = frame.f_back
    return False


def called_by(frame: FrameType, function: str) -> bool:
    """True if a function of this name has called the frame, and nothing but code of their module was between."""
    outer, file = frame.f_back, frame.f_code.co_filename
    while outer is not None and outer.f_code.co_filename == file:
        if outer.f_code.co_name == function:
            return True
        outer = outer.f_back
    return False


def is_followed(filename: str, function: str) -> bool:
    """True for code of the standard library that can be followed like the user's."""
    module = python_module(filename)
    only = FOLLOWED.get(module, FOLLOWED.get(module.partition('.')[0]))
    return only is not None and (not only or function in only)

"""The world that a program finds: Python's own state as it always is, and put back when the program has ended."""

from __future__ import annotations

import builtins
import decimal
import gc
import linecache
import logging
import math
import os
import random
import sys
import types
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import numpy as np

#: The names of a program's two modules.
HOME, OTHER = 'program_under_test', 'settings_of_program'
#: The name of the first module's file, which does not exist.
FILE = f'{HOME}.py'
#: What programs may change of these, besides what the other functions here put back.
_KEPT: tuple[tuple[Any, bool], ...] = (
    (math, True), (builtins, True), (logging, False), (logging.Logger, False), (logging.Handler, False),
    (logging.NullHandler, False), (logging.LoggerAdapter, False), (logging.root, False), (logging.root.manager, False),
)  # fmt: skip
_NO_DATA = frozenset('__dict__ __weakref__ __doc__ __builtins__ __warningregistry__'.split())


@contextmanager
def world() -> Iterator[tuple[Any, Any]]:
    """Two new modules and CuPy, Python's own state as it always is; all of it is put back afterwards."""
    home, other = types.ModuleType(HOME), types.ModuleType(OTHER)
    home.__file__ = FILE
    cupy: Any = sys.modules['cupy']
    modules = dict(sys.modules)
    with ExitStack() as stack:
        for owner, whole in _KEPT:
            stack.callback(_put_back, owner, dict(vars(owner)), whole)
        for here in (
            mock.patch.dict(os.environ),
            _numbers(cupy),
            _files(),
            _loggers(),
            _collector(),
            warnings.catch_warnings(),
        ):
            stack.enter_context(here)
        warnings.simplefilter('ignore')
        sys.modules.update({HOME: home, OTHER: other})
        try:
            yield home, cupy
        finally:
            for name, made in list(sys.modules.items()):
                if made is not modules.get(name) and getattr(made, '__spec__', None) is None:  # by the program
                    del sys.modules[name]
                    sys.modules.update({name: modules[name]} if name in modules else {})
            linecache.checkcache(FILE)
            vars(home).clear()


def _put_back(owner: Any, values: dict[str, Any], whole: bool) -> None:
    """Give a module, a class or an object its names back. ``whole``: nothing else stays in it."""
    for name in set(vars(owner)) - values.keys() if whole or isinstance(owner, type) else ():
        delattr(owner, name)
    for name, value in values.items():
        if name not in _NO_DATA and vars(owner).get(name, vars) is not value:
            setattr(owner, name, value)


@contextmanager
def _numbers(cupy: Any) -> Iterator[None]:
    """NumPy's options and errors, and the generators of random numbers, which begin with the same seeds."""
    options, errors, call = np.get_printoptions(), np.geterr(), np.geterrcall()
    states, context = (random.getstate(), np.random.get_state()), decimal.getcontext().copy()
    of_cupy = sys.modules['cupyx'].geterr()
    random.seed(0)
    np.random.seed(0)
    cupy.random.set_random_state(cupy.random.RandomState(0))
    try:
        yield
    finally:
        np.set_printoptions(**options)
        np.seterr(**errors)
        np.seterrcall(call)
        sys.modules['cupyx'].seterr(**of_cupy)
        random.setstate(states[0])
        np.random.set_state(states[1])
        decimal.setcontext(context)


@contextmanager
def _files() -> Iterator[None]:
    """Two files of which nobody reads what is printed, in the place of the standard output."""
    with open(os.devnull, 'w', encoding='utf-8') as out, open(os.devnull, 'w', encoding='utf-8') as err:
        with mock.patch.multiple(sys, stdout=out, stderr=err, displayhook=sys.displayhook):
            yield


@contextmanager
def _loggers() -> Iterator[None]:
    """The root without handlers, and no loggers of programs."""
    root, manager = logging.root, logging.root.manager
    handlers, filters = list(root.handlers), list(root.filters)
    root.handlers.clear()
    try:
        with mock.patch.dict(vars(logging)['_levelToName']), mock.patch.dict(vars(logging)['_nameToLevel']):
            yield
    finally:
        for name in [name for name in manager.loggerDict if name.partition('.')[0] == 'program']:
            del manager.loggerDict[name]
        root.handlers[:], root.filters[:] = handlers, filters
        root.setLevel(root.level)  # which forgets what loggers have found out


@contextmanager
def _collector() -> Iterator[None]:
    """The garbage collector is on in the beginning."""
    before, often = gc.isenabled(), gc.get_threshold()
    gc.enable()
    try:
        yield
    finally:
        gc.set_threshold(*often)
        (gc.enable if before else gc.disable)()

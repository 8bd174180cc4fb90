"""The table of functions that a run may call: what is in it, and what is not."""

from __future__ import annotations

import builtins
import collections
import contextlib
import dis
import functools
import itertools
import math
import operator
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from capturekit.graphed.allowlists import FUNCTIONS, METHODS, reads
from capturekit.graphed.code_reads import names_of
from capturekit.model import code_steps
from capturekit.model.code_steps import UNDERSTOOD, Does, steps_of


def _written_in_c(module: types.ModuleType) -> Iterator[Any]:
    for value in vars(module).values():
        if type(value) is types.BuiltinFunctionType:
            yield value


@pytest.mark.parametrize('module', [math, operator, itertools, functools, collections], ids=lambda one: one.__name__)
def test_pythons_functions_are_in_the_table(module: types.ModuleType) -> None:
    unknown = [one.__name__ for one in _written_in_c(module) if reads(one) is None]
    assert unknown == ['proxy'] * (module is collections)  # of weakref


def test_builtins_that_are_not_understood_are_these() -> None:
    unknown = {one.__name__ for one in _written_in_c(builtins) if reads(one) is None}
    eager = {'__import__', 'breakpoint', 'compile', 'eval', 'exec', 'globals', 'hash', 'id', 'input', 'open'}
    assert unknown - {'_'} == eager


def test_numpys_functions_are_understood_but_settings_and_files() -> None:
    assert reads(np.zeros) == 'arguments' and reads(np.fromfile) is None


def test_the_table_names_what_there_is() -> None:
    assert not [name for name in METHODS if '.' not in name]
    assert all(hasattr(builtins, name) or name in ('aiter', 'anext') for name in FUNCTIONS['builtins'])


def test_two_in_one_are_not_taken_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    code = (lambda a, b: a + b).__code__
    two = {one.opname for one in dis.get_instructions(code) if type(one.argval) is tuple}
    if not two:
        pytest.skip('no instruction loads two variables before Python 3.13')
    monkeypatch.setattr(code_steps, '_TWO', {})
    monkeypatch.setattr(code_steps, '_KNOWN', code_steps._KNOWN | dict.fromkeys(two, Does.LOADS_LOCAL))
    assert Does.UNKNOWN in [step.does for step in steps_of(code)]


def test_instructions_that_are_not_known_are_told() -> None:
    async def waits() -> None:
        async with contextlib.nullcontext():
            pass

    assert 'the instruction' in names_of(waits.__code__).unknown
    unknown = {name for name in dis.opmap if not name.startswith('INSTRUMENTED_')} - UNDERSTOOD
    assert not [name for name in unknown if 'ASYNC' not in name and name not in (
        'IMPORT_STAR', 'GET_AITER', 'GET_ANEXT', 'RESERVED', 'PRINT_EXPR', 'ENTER_EXECUTOR', 'GET_AWAITABLE',
        'ANNOTATIONS_PLACEHOLDER', 'BUILD_INTERPOLATION', 'BUILD_TEMPLATE',
    )]  # fmt: skip


def test_names_of_a_calls_arguments_are_known() -> None:
    code = compile('f(x, top=v)', 'a line', 'eval')
    assert [(step.amount, step.names) for step in steps_of(code) if step.does == Does.CALLS] == [(2, ('top',))]

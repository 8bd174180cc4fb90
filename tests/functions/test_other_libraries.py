"""Libraries beside CuPy that call CUDA for others: their modules are held, and their code is followed."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import capturekit as ck
from tests.functions.test_read_paths import CHAINS, READ, UNREAD, made, results, told

#: The name of a library that is known to call CUDA for others, and that no test machine has.
NAME = 'cuml'
CODE = """
import hashlib

class ndarray:
    pass

class MetaThatLooks(type):
    def __instancecheck__(cls, value):
        return multiply.digest()[0] > 127

class looks(metaclass=MetaThatLooks):
    pass

multiply = hashlib.sha256(b'one')
setting = 3

def factor():
    return setting
"""


@pytest.fixture
def lib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    folder = tmp_path / NAME
    folder.mkdir()
    (folder / '__init__.py').write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    module = importlib.import_module(NAME)
    sys.modules['another_library'] = module
    yield module
    for name in (NAME, 'another_library'):
        del sys.modules[name]


@told
@pytest.mark.parametrize('name', [*UNREAD, *CHAINS])
def test_a_module_that_is_only_held_does_not_count(cp: Any, lib: Any, name: str) -> None:
    fn = ck.graphed(made({**UNREAD, **CHAINS}[name], cp, lib))
    assert results(cp, fn, lib) == [2.0] * 6
    assert sum(variant.launches for variant in fn.variants) >= 4


@pytest.mark.parametrize('name', READ)
def test_what_code_can_have_got_counts(cp: Any, lib: Any, name: str) -> None:
    source = READ[name] + ('' if 'return step' in READ[name] else '    return cp.multiply(x, len(found) + found[0])\n')
    fn = made(source, cp, lib)
    graphed = ck.graphed(fn)
    assert results(cp, graphed, lib) == results(cp, fn, lib)
    assert sum(variant.launches for variant in graphed.variants) == 0


def test_what_its_own_code_names_counts(cp: Any, lib: Any) -> None:
    """Code of the library runs where Python asks its class, and names what the function names in a dead branch."""
    source = """
def step(x):
    if isinstance(x, lib.looks):
        return cp.multiply(x, 3)
    return cp.multiply(x, 2)
"""
    fn = made(source, cp, lib)
    graphed = ck.graphed(fn)
    assert results(cp, graphed, lib) == results(cp, fn, lib)
    assert sum(variant.launches for variant in graphed.variants) == 0


@pytest.mark.parametrize(
    'call', ['lib.factor()', 'list(map(int, [lib.factor()]))[0]', 'sorted([1], key=lambda n: lib.factor())[0]']
)
def test_what_a_function_of_it_reads_counts(cp: Any, lib: Any, call: str) -> None:
    fn = made(f'def step(x):\n    return x * {call}\n', cp, lib)
    graphed = ck.graphed(fn)
    for number in range(6):
        lib.setting = number
        assert graphed(cp.ones(2)).get().tolist() == fn(cp.ones(2)).get().tolist()
    assert sum(variant.launches for variant in graphed.variants) == 0

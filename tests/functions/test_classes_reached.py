"""Classes written in C that code reaches without naming them: what their objects read makes no event."""

from __future__ import annotations

import io
import math
import os
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capturekit as ck

PATH = ''
NAME = 'File' + 'IO'


class Holder:
    module = io
    rate1 = 2.0


HOLDER = Holder()


def out_of_an_import() -> Any:
    import io as files

    return vars(files)[NAME](PATH)


def out_of_a_variable() -> Any:
    files = io
    return files.__dict__[NAME](PATH)


def of_a_file() -> Any:
    return type(io.__dict__.get(NAME)) and OPENED[0].__class__(PATH)


OPENED: list[Any] = []
REACHES: dict[str, Callable[[], Any]] = {
    'vars': lambda: vars(io)['FileIO'](PATH),
    'a dictionary': lambda: io.__dict__['FileIO'](PATH),
    'getattr': lambda: getattr(io, NAME)(PATH),
    'an import': out_of_an_import,
    'a variable': out_of_a_variable,
    'an attribute': lambda: vars(HOLDER.module)[NAME](PATH),
    'all that a module has': lambda: next(cls for name, cls in vars(io).items() if name == NAME)(PATH),
    'sys.modules': lambda: vars(sys.modules['io'])[NAME](PATH),
    'the type of a file': lambda: type(OPENED[0])(PATH),
    'the class of a file': of_a_file,
}


@pytest.mark.filterwarnings('ignore::ResourceWarning', 'ignore::pytest.PytestUnraisableExceptionWarning')
@pytest.mark.parametrize('name', REACHES)
def test_a_file_that_such_a_class_reads(cp: Any, tmp_path: Path, name: str) -> None:
    global PATH
    path, reach = tmp_path / 'lines', REACHES[name]
    path.write_text('')
    PATH = str(path)
    with open(path, 'rb', buffering=0) as opened:
        OPENED[:] = [opened]
        fn = ck.graphed(lambda x: x * len(list(reach())))
        for number in range(1, 6):
            with open(path, 'a') as file:
                file.write('line\n')
            assert fn(cp.ones(2)).get().tolist() == [float(number)] * 2
    OPENED.clear()
    assert not any(variant.launches for variant in fn.variants)


class Rate:
    def __init__(self) -> None:
        self.value = 2.0


def grow(rates: list[float]) -> None:
    rates[0] = 3.0


#: What somebody puts into a module of Python or NumPy, how it changes in place, and how a function reads it.
IN_PLACE: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], Callable[[Any], float]]] = {
    'a list': (lambda: [2.0], grow, lambda held: held[0]),
    'a list in a tuple': (lambda: ([2.0],), lambda held: grow(held[0]), lambda held: held[0][0]),
    'a dict': (lambda: {'a': 2.0}, lambda held: held.update(a=3.0), lambda held: held['a']),
    'an object': (Rate, lambda held: setattr(held, 'value', 3.0), lambda held: held.value),
    'an identifier': (
        lambda: uuid.UUID(int=2), lambda held: object.__setattr__(held, 'int', 3), lambda held: float(held.int)
    ),
}  # fmt: skip


@pytest.mark.parametrize('module', [math, np])
@pytest.mark.parametrize('name', IN_PLACE)
def test_what_a_module_holds_changes_in_place(cp: Any, name: str, module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    make, change, read = IN_PLACE[name]
    monkeypatch.setattr(module, 'put_there', make(), raising=False)
    fn = ck.graphed(lambda x: x * read(vars(module).get('put_there', None)))
    found = []
    for number in range(6):
        if number == 3:
            change(module.put_there)
        found.append(float(fn(cp.ones(2))[0]))
    assert found == [2.0] * 3 + [3.0] * 3


def test_modules_of_which_code_takes_attributes_by_name(cp: Any) -> None:
    """That other objects are asked for computed names is no reason to leave the function eager."""

    def fn(x: Any) -> Any:
        for number in (1,):
            x = x * getattr(HOLDER, f'rate{number}')
        return x * len(os.path.join('a', 'b')) * math.sqrt(4) * len(vars(Box())) if io.SEEK_SET == 0 else x

    graphed = ck.graphed(fn)
    for _ in range(3):
        assert graphed(cp.ones(2)).get().tolist() == fn(cp.ones(2)).get().tolist()
    assert [variant.launches for variant in graphed.variants] == [2]


class Box:
    def __init__(self) -> None:
        self.value = 1

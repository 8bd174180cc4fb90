"""Values whose state can't be seen: they keep a call eager only where the run can have got them."""

from __future__ import annotations

import hashlib
import importlib
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import capturekit as ck

told = pytest.mark.skipif(sys.version_info < (3, 12), reason='lines are told of from Python 3.12 on')


class Array:
    """An array of another library."""


@pytest.fixture
def lib() -> Iterator[Any]:
    """Another library for arrays, one of whose names is a digest: what went into it can't be seen."""
    module: Any = types.ModuleType('another_library')
    module.ndarray, module.multiply = Array, hashlib.sha256(b'one')
    sys.modules['another_library'] = module
    yield module
    del sys.modules['another_library']


#: What the digest that such a function gets holds is a part of its result.
_ENDING = '    return cp.multiply(x, len(found) + found[0])\n'
UNREAD = {
    'a branch that does not run': """
def namespace(x):
    if type(x) is not cp.ndarray:
        return lib
    return cp

def step(x):
    return namespace(x).multiply(x, 2)
""",
    'a class of it is compared with': """
def step(x):
    if isinstance(x, lib.ndarray):
        return lib.multiply(x, 2)
    return cp.multiply(x, 2)
""",
    'a name in a branch': """
digest = lib.multiply

def step(x):
    if isinstance(x, list):
        return digest.digest()
    return cp.multiply(x, 2)
""",
    'a class of which nothing is made has that name': """
class Other:
    multiply = lib.multiply

def step(x):
    if isinstance(x, Other):
        return x.multiply
    return cp.multiply(x, 2)
""",
    'its name is asked of something else': """
class Scale:
    multiply = 2

def step(x):
    if isinstance(x, lib.ndarray):
        return x
    return cp.multiply(x, getattr(Scale, 'multiply'))
""",
    'the annotations of a function are asked for': """
def other(x: digest.digest = 2):
    return x

def step(x: int):
    if isinstance(x, list):
        return other(x)
    return cp.multiply(x, 1 + len(step.__annotations__))
""".replace('digest.digest', 'lib.multiply'),
}
#: The same with one line: these are recorded in all Pythons.
CHAINS = {
    'only a class of it is asked for': """
def step(x):
    return x * 2 if isinstance(x, lib.ndarray) else cp.multiply(x, 2)
""",
    'it is only compared with': """
def step(x):
    return x * 2 if cp == lib or cp is lib else cp.multiply(x, 2)
""",
}
READ = {
    'its method is called': 'def step(x):\n    found = lib.multiply.digest()\n',
    'the library is in a variable': 'def step(x):\n    xp = lib\n    found = xp.multiply.digest()\n',
    'the library is an argument': 'def of(xp):\n    return xp.multiply\n\ndef step(x):\n    found = of(lib).digest()\n',
    'the library is given back': 'def of():\n    return lib\n\ndef step(x):\n    found = of().multiply.digest()\n',
    'the library is in a list': 'libs = [cp, lib]\n\ndef step(x):\n    found = libs[1].multiply.digest()\n',
    'the library is in a loop': """
def step(x):
    for xp in (cp, lib):
        found = xp.multiply
    found = found.digest()
""",
    'the library is in an attribute': """
class Holder:
    xp = lib

def step(x):
    found = Holder.xp.multiply.digest()
""",
    'the library is in an object': """
class Holder:
    def __init__(self):
        self.xp = lib

holder = Holder()

def step(x):
    found = holder.xp.multiply.digest()
""",
    'the library is a default': 'def step(x, xp=lib):\n    found = xp.multiply.digest()\n',
    'the library is in a closure': """
def make(xp):
    def step(x):
        found = xp.multiply.digest()
        return cp.multiply(x, len(found) + found[0])
    return step

step = make(lib)
""",
    'the library is imported there': """
def step(x):
    import another_library as xp
    found = xp.multiply.digest()
""",
    'its name is imported there': """
def step(x):
    from another_library import multiply
    found = multiply.digest()
""",
    'its name is asked for': "def step(x):\n    found = getattr(lib, 'multiply').digest()\n",
    'its name is put together': "def step(x):\n    found = getattr(lib, 'multi' + 'ply').digest()\n",
    'its dictionary is asked for': "def step(x):\n    found = vars(lib)['multiply'].digest()\n",
    'all modules are asked for': """
import sys

def step(x):
    found = sys.modules['another_library'].multiply.digest()
""",
    'it is in a branch that runs': """
def step(x):
    if isinstance(x, lib.ndarray):
        return x
    elif isinstance(x, cp.ndarray):
        found = lib.multiply.digest()
""",
    'an object of a class has it': """
class Other:
    multiply = lib.multiply

def step(x):
    found = Other().multiply.digest()
""",
    'an object that was there has it by its class': """
class Other:
    multiply = lib.multiply

others = [Other()]

def step(x):
    for other in others:
        found = other.multiply.digest()
""",
    'the user has an isinstance of his own': """
def isinstance(x, one):
    return one.digest()

def step(x):
    found = isinstance(x, lib.multiply)
""",
    'it is behind an exception': """
def step(x):
    try:
        cp.no_such_name
    except AttributeError:
        found = lib.multiply.digest()
""",
}


def made(source: str, cp: Any, lib: Any) -> Callable[[Any], Any]:
    values: dict[str, Any] = {'cp': cp, 'lib': lib, '__name__': 'a_module_of_the_user'}
    exec(compile(source, 'a_file_of_the_user.py', 'exec'), values)
    found: Callable[[Any], Any] = values['step']
    return found


def results(cp: Any, fn: Callable[[Any], Any], lib: Any) -> list[float]:
    """What six calls give, with a digest that goes on between them."""
    lib.multiply = hashlib.sha256(b'one')
    found = []
    for number in range(6):
        if number > 2:
            lib.multiply.update(b'more')
        found.append(float(fn(cp.ones(2)).get()[0]))
    return found


@told
@pytest.mark.parametrize('name', UNREAD)
def test_what_no_line_leads_to_does_not_count(cp: Any, lib: Any, name: str) -> None:
    fn = ck.graphed(made(UNREAD[name], cp, lib))
    assert results(cp, fn, lib) == [2.0] * 6
    assert sum(variant.launches for variant in fn.variants) >= 4


@pytest.mark.parametrize('name', CHAINS)
def test_a_module_is_asked_for_a_class_alone(cp: Any, lib: Any, name: str) -> None:
    fn = ck.graphed(made(CHAINS[name], cp, lib))
    assert results(cp, fn, lib) == [2.0] * 6
    assert sum(variant.launches for variant in fn.variants) >= 4


@pytest.mark.parametrize('name', READ)
def test_what_the_run_can_have_got_counts(cp: Any, lib: Any, name: str) -> None:
    source = READ[name] + ('' if 'return step' in READ[name] else _ENDING)
    fn = made(source, cp, lib)
    graphed = ck.graphed(fn)
    assert results(cp, graphed, lib) == results(cp, fn, lib)
    assert sum(variant.launches for variant in graphed.variants) == 0


@told
def test_a_branch_that_comes_later_is_followed(cp: Any, lib: Any) -> None:
    source = 'on = [False]\n\ndef step(x):\n    if on[0]:\n        found = lib.multiply.digest()\n' + (
        '        return cp.multiply(x, len(found) + found[0])\n    return cp.multiply(x, 2)\n'
    )
    fn = made(source, cp, lib)
    graphed = ck.graphed(fn)
    assert results(cp, graphed, lib) == [2.0] * 6
    assert sum(variant.launches for variant in graphed.variants) >= 4
    fn.__globals__['on'][0] = True
    assert results(cp, graphed, lib) == results(cp, fn, lib)


COUNTED = """
import threading

class Amount:
    def __radd__(self, other):
        return other + 1

class Count:
    number = 0

class Guarded:
    lock = threading.Lock()

count = Count()

def step(x):
    if isinstance(x, Amount):
        return Guarded.lock
    count.number += {amount}
    return x * 2
"""


def counts(cp: Any, amount: str, fn_of: Callable[[Any], Any]) -> tuple[list[float], int, int]:
    fn = fn_of(made(COUNTED.format(amount=amount), cp, None))
    values = [float(fn(cp.ones(2))[0]) for _ in range(6)]
    variants = getattr(fn, 'variants', ())
    return values, getattr(fn, '__wrapped__', fn).__globals__['count'].number, sum(one.launches for one in variants)


@told
def test_a_counter_is_carried_beside_a_class_and_a_lock_unread(cp: Any) -> None:
    values, number, launches = counts(cp, '1', ck.graphed)
    assert (values, number) == ([2.0] * 6, 6)
    assert launches >= 4


def test_an_amount_of_the_users_class_is_not_counted_with(cp: Any) -> None:
    assert counts(cp, 'Amount()', ck.graphed)[:2] == counts(cp, 'Amount()', lambda fn: fn)[:2]


@pytest.mark.parametrize('package', ['rmm', 'torch', 'jax', 'numba', 'warp'])
def test_state_of_libraries_beside_cupy_is_followed(
    cp: Any, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / package
    folder.mkdir()
    (folder / '__init__.py').write_text('factor = [2]\n\n\ndef scaled(x):\n    return x * factor[0]\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, package, raising=False)
    module = importlib.import_module(package)
    try:
        fn = ck.graphed(lambda x: module.scaled(x) + 1)
        found = []
        for number in (2, 2, 2, 5, 5, 5):
            module.factor[0] = number
            found.append(float(fn(cp.ones(2))[0]))
        assert found == [3, 3, 3, 6, 6, 6]
        assert sum(variant.launches for variant in fn.variants) >= 2
    finally:
        sys.modules.pop(package, None)


def test_wrapped_functions_keep_their_attributes_in_view(cp: Any, lib: Any) -> None:
    source = """
import functools

def plain(x):
    return x * 2

def step(x):
    @functools.wraps(plain)
    def inner(x):
        return plain(x) * getattr(inner, 'scale', 1)
    return inner(x)
"""
    fn = made(source, cp, lib)
    graphed = ck.graphed(fn)
    for number in range(10):
        if number == 4:
            fn.__globals__['plain'].scale = 3
        if number == 7:
            fn.__globals__['plain'].scale = 5
        assert graphed(cp.ones(2)).get().tolist() == fn(cp.ones(2)).get().tolist()
    assert sum(variant.launches for variant in graphed.variants) >= 3

"""What a function read of objects, classes and modules, and what counts as written."""

from __future__ import annotations

import copy
import dataclasses
import math
import os
import types
from collections.abc import Iterator
from typing import Any

import pytest

from tests.functions.environments import Array, Config, Filter, clean, watch

HERE = os.path.basename(__file__)
pytestmark = pytest.mark.usefixtures('no_collection')


value: Any = None
other: Any = None


@pytest.fixture(autouse=True)
def globals_of_this_file() -> Iterator[None]:
    before = dict(globals())
    yield
    globals().clear()
    globals().update(before)


@pytest.mark.parametrize(
    'change, text',
    [
        (lambda f: setattr(f, 'W', Array()), 'attribute W of a Filter object is not the Array that it was'),
        (lambda f: setattr(f, 'n', 4), 'attribute n of a Filter object is 4 and was 3'),
        (lambda f: setattr(f, 'gain', 3.0), 'attribute gain of a Filter object is 3.0 and was not there'),
        (lambda f: setattr(f.sub, 'rate', 0.2), 'attribute rate of a Part object is 0.2 and was 0.1'),
        (lambda f: setattr(f, 'sub', 1), 'attribute sub of a Filter object is 1 and was a Part object'),
        (lambda f: delattr(f, 'n'), 'attribute n of a Filter object is gone and was 3'),
        (lambda f: setattr(f, '__dict__', {**f.__dict__, 'n': 9}), 'attribute n of a Filter object is 9 and was 3'),
        (lambda f: setattr(f, 'step', int), 'attribute step of a Filter object is class int and was not there'),
    ],
)
def test_attributes(change: Any, text: str) -> None:
    one = Filter()
    for found in (clean(one.step), clean(lambda: one.step()), clean(Filter.step, one)):
        assert [id(array) for array in found.arrays()] == [id(one.W)]
    found = clean(lambda: one.step())
    one.unread = 7
    one.sub.unread = 7
    assert found.changed() is None
    one.__dict__ = dict(one.__dict__)
    assert found.changed() is None
    change(one)
    assert found.changed() == text + ' when recorded'


def test_attributes_of_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Derived(Filter):
        pass

    one = Derived()
    found = clean(one.step)
    monkeypatch.setattr(Filter, 'gain', 3.0)
    assert found.changed() == 'attribute gain of class Filter is 3.0 and was 2.0 when recorded'
    found = clean(one.step)
    Derived.gain = 3.0
    assert found.changed() == 'attribute gain of class Derived is 3.0 and was not there when recorded'
    found = clean(Derived.of_class)
    Derived.gain = 4.0
    assert 'attribute gain of class Derived' in str(found.changed())
    found = clean(one.step)
    monkeypatch.setattr(Filter, 'step', lambda self: None)
    assert 'attribute step of class Filter' in str(found.changed())
    found = clean(Derived().half.__class__)
    one.__class__ = Filter
    assert found.changed() is None


def test_another_class() -> None:
    class Derived(Filter):
        pass

    one = Filter()
    found = clean(one.step)
    one.__class__ = Derived
    assert found.changed() == 'an object that was a Filter object is a Derived object'

    def becomes() -> None:
        one.__class__ = Filter

    assert watch(becomes).written() == 'the function changes the class of a Derived object'


def test_properties_are_followed_and_not_evaluated() -> None:
    one = Filter()
    found = clean(lambda: one.half)
    one.n = 5
    assert 'attribute n' in str(found.changed())


def test_attributes_read_by_name() -> None:
    one = Filter()
    found = clean(one.peeks)
    one.maybe = 1  # type: ignore[attr-defined]
    assert found.changed() == 'attribute maybe of a Filter object is 1 and was not there when recorded'
    one = Filter()
    found = clean(lambda: vars(one).items())
    one.unread = 7
    assert 'attribute unread' in str(found.changed())


def test_readers_of_whole_objects() -> None:
    global value
    value = Config()
    found = clean(lambda: dataclasses.replace(value))
    value.unnamed = 2
    assert 'attribute unnamed' in str(found.changed())
    found = clean(lambda: copy.copy(value))
    value.unnamed = 3
    assert 'attribute unnamed' in str(found.changed())


class Slotted:
    __slots__ = ('rate', 'unset')

    def __init__(self) -> None:
        self.rate = 0.1

    def read(self) -> Any:
        return self.rate, hasattr(self, 'unset')

    def write(self) -> None:
        self.rate = 1.0

    def create(self) -> None:
        self.unset = 1


def test_slots() -> None:
    one = Slotted()
    found = clean(one.read)
    one.rate = 0.2
    assert found.changed() == 'attribute rate of a Slotted object is 0.2 and was 0.1 when recorded'
    one.rate = 0.1
    assert found.changed() is None
    one.unset = 1
    assert found.changed() == 'attribute unset of a Slotted object is 1 and was not there when recorded'
    assert watch(Slotted().write).written() == 'the function rebinds attribute rate of a Slotted object'
    assert watch(Slotted().create).written() == 'the function creates attribute unset of a Slotted object'


def test_writing_attributes() -> None:
    assert watch(Filter().count).written() == 'the function rebinds attribute t of a Filter object'
    assert watch(Filter().cached).written() == 'the function creates attribute _cache of a Filter object'
    one = Filter()
    assert 'creates attribute lazy' in str(watch(lambda: one.lazy).written())

    def deletes() -> None:
        del one.n

    assert watch(deletes).written() == 'the function deletes attribute n of a Filter object'
    gain = Filter.gain
    assert watch(Filter().class_counts).written() == 'the function rebinds attribute gain of class Filter'
    Filter.gain = gain
    assert watch(Filter().class_creates).written() == 'the function creates attribute made of class Filter'
    del Filter.made  # type: ignore[attr-defined]


def test_an_environment_of_a_run_that_wrote_is_changed() -> None:
    assert watch(Filter().count).changed() == 'attribute t of a Filter object is 1 and was 0 when recorded'


def test_writing_globals_and_variables() -> None:
    def rebinds() -> None:
        global value
        value = 7

    def creates() -> None:
        global brand_new
        brand_new = 7  # type: ignore[name-defined]

    count = 0

    def counts() -> None:
        nonlocal count
        count += 1

    assert watch(rebinds).written() == f'the function rebinds global value of {HERE}'
    assert watch(rebinds).written() is None
    assert watch(creates).written() == f'the function creates global brand_new of {HERE}'
    assert watch(counts).written() == 'the function rebinds variable count of the closure of counts'


def test_attributes_of_functions() -> None:
    def step() -> int:
        step.calls += 1  # type: ignore[attr-defined]
        return 0

    step.calls = 0  # type: ignore[attr-defined]
    assert watch(step).written() == 'the function rebinds attribute calls of function step'


def test_modules_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    global value
    settings = types.ModuleType('settings')
    settings.rate, settings.unread = 0.1, 1  # type: ignore[attr-defined]
    value = settings
    found = clean(lambda: (value.rate, math.pi))
    settings.unread = 2  # type: ignore[attr-defined]
    assert found.changed() is None
    with monkeypatch.context() as patched:
        patched.setattr(math, 'pi', 3)
        assert 'attribute pi of module math is 3' in str(found.changed())
    assert found.changed() is None
    settings.rate = 0.2  # type: ignore[attr-defined]
    assert found.changed() == 'attribute rate of module settings is 0.2 and was 0.1 when recorded'


def test_objects_in_containers() -> None:
    layers = [Filter(), Filter()]
    found = clean(lambda: [layer.n for layer in layers])
    layers[1].n = 9
    assert 'attribute n of a Filter object' in str(found.changed())

    def counts() -> None:
        for layer in layers:
            layer.t += 1

    assert 'attribute t' in str(watch(counts).written())
    assert 'attribute t' in str(watch(lambda these: [each.count() for each in these], layers).written())


def test_a_first_attribute_of_a_function_is_told() -> None:
    """Nearly all functions have no attributes: those that have none are compared together."""

    def plain() -> None: ...

    def marked() -> None: ...

    marked.kind = 'marked'  # type: ignore[attr-defined]
    found = clean(lambda: [*vars(plain), *vars(marked)])
    plain.kind = 'new'  # type: ignore[attr-defined]
    assert 'kind' in (found.changed() or '')
    del plain.kind  # type: ignore[attr-defined]
    assert found.changed() is None
    plain.__dict__ = {'kind': 'new'}
    assert 'kind' in (found.changed() or '')
    plain.__dict__ = {}
    assert found.changed() is None
    marked.level = 2  # type: ignore[attr-defined]
    assert 'level' in (found.changed() or '')


def test_a_name_of_pythons_own_in_a_module_is_told() -> None:
    module = types.ModuleType('asked')
    module.rate = 1.0  # type: ignore[attr-defined]
    found = clean(lambda: (getattr(module, 'x' + 'y', None), vars(module)))
    module.__getattr__ = lambda name: 2.0  # type: ignore[method-assign]
    assert found.changed() is not None

"""What a function depends on without naming it: each change between calls is seen, as in the plain function."""

from __future__ import annotations

import abc
import codecs
import contextlib
import copy
import copyreg
import dataclasses
import enum
import math
import operator
import sys
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import capturekit as ck

#: A function of an array, and the change after its fourth call.
Made = tuple[Callable[[Any], Any], Callable[[], Any]]


@pytest.fixture
def cp(sim: Any) -> Any:
    return sim


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        yield
    codecs.register_error('namereplace', codecs.namereplace_errors)


def followed(make: Callable[[], Made], cp: Any) -> int:
    """Compare graphed and plain calls before and after the change; return how many calls were launched."""
    function, change = make()
    fn = ck.graphed(function)
    x = cp.arange(1.0, 4.0)
    for number in range(8):
        if number == 4:
            change()
        assert fn(x).get().tolist() == function(x).get().tolist(), number
    return sum(variant.launches for variant in fn.variants)


class Box:
    """An object with an attribute."""

    def __init__(self, value: Any) -> None:
        self.value = value


# -- changes that a recorded function sees


def nan_gets_a_sign() -> Made:
    box = Box(math.nan)
    return lambda x: x * math.copysign(1.0, box.value), lambda: setattr(box, 'value', -math.nan)


def nan_of_numpy_gets_a_sign() -> Made:
    box = Box(np.float32('nan'))
    return lambda x: x * (2 if np.signbit(box.value) else 1), lambda: setattr(box, 'value', -np.float32('nan'))


def nan_in_a_complex_number() -> Made:
    box = Box(complex(1, math.nan))
    return lambda x: x * math.copysign(1.0, box.value.imag), lambda: setattr(box, 'value', complex(1, -math.nan))


def an_equal_dtype_of_another_letter() -> Made:
    letters = [letter for letter in 'ilq' if np.dtype(letter).itemsize == 8]
    box = Box(np.dtype(letters[0]))
    return lambda x: x * ord(box.value.char), lambda: setattr(box, 'value', np.dtype(letters[-1]))


def a_list_in_a_methodcaller() -> Made:
    shape = [3, 1]
    ask = operator.methodcaller('reshape', shape)
    return lambda x: ask(x), lambda: shape.reverse()


def a_name_of_an_argument_in_a_methodcaller() -> Made:
    box = Box(operator.methodcaller('round', decimals=1))
    return lambda x: box.value(x * 0.77), lambda: setattr(box, 'value', operator.methodcaller('round', decimals=0))


def a_list_in_an_itemgetter() -> Made:
    rows = [0, 1]
    get = operator.itemgetter(rows)
    return lambda x: get(x), lambda: rows.reverse()


def a_view_of_other_memory() -> Made:
    box = Box(memoryview(bytearray(b'ab')))
    return lambda x: x * len(box.value.obj), lambda: setattr(box, 'value', memoryview(bytearray(b'abc'))[:2])


def a_docstring() -> Made:
    def helper() -> None:
        """2"""

    return lambda x: x * float(helper.__doc__ or 0), lambda: setattr(helper, '__doc__', '5')


def the_name_of_a_function() -> Made:
    def helper() -> None: ...

    return lambda x: x * len(helper.__name__), lambda: setattr(helper, '__name__', 'h')


def the_name_of_a_class() -> Made:
    class Named: ...

    return lambda x: x * len(Named.__name__), lambda: setattr(Named, '__name__', 'N')


def the_qualified_name_of_a_class() -> Made:
    class Named: ...

    one = Named()
    return lambda x: x * len(type(one).__qualname__), lambda: setattr(Named, '__qualname__', 'N')


def an_item_of_a_class() -> Made:
    class Table:
        __class_getitem__ = classmethod(lambda cls, key: 2)

    def change() -> None:
        Table.__class_getitem__ = classmethod(lambda cls, key: 5)  # type: ignore[assignment, misc]

    return lambda x: x * Table[int], change  # type: ignore[misc, operator]


def an_abstract_class() -> Made:
    class Plan(abc.ABC):  # noqa: B024
        def rate(self) -> int:
            return 2

    def of(x: Any) -> Any:
        try:
            return x * Plan().rate()
        except TypeError:
            return x * 7

    return of, lambda: setattr(Plan, '__abstractmethods__', frozenset({'rate'}))


def members_of_an_enumeration() -> Made:
    class Mode(enum.Enum):
        FAST = 1

    return lambda x: x * len(Mode), lambda: Mode._member_names_.append('FAST')


def warnings_as_errors() -> Made:
    def of(x: Any) -> Any:
        try:
            warnings.warn('slow', stacklevel=1)
        except UserWarning:
            return x * 5
        return x * 2

    return of, lambda: warnings.simplefilter('error')


def warnings_of_numpy_as_errors() -> Made:
    zero = np.float64(0)

    def of(x: Any) -> Any:
        try:
            return x * (1 if 1.0 / zero > 0 else 2)
        except RuntimeWarning:
            return x * 7

    return of, lambda: warnings.simplefilter('error')


def a_class_with_another_copy() -> Made:
    class Rate:
        value = 2

    rate = Rate()
    other = Box(5)
    return lambda x: x * copy.copy(rate).value, lambda: copyreg.pickle(Rate, lambda _: (copy.copy, (other,)))


def a_function_of_numpy_from_python() -> Made:
    box = Box(2.0)
    scale = np.frompyfunc(lambda value: value * box.value, 1, 1)
    return lambda x: x * float(scale(3.0)), lambda: setattr(box, 'value', 5.0)


def a_read_only_array() -> Made:
    host = np.zeros(3)
    return lambda x: x * (2 if host.flags.writeable else 3), lambda: setattr(host.flags, 'writeable', False)


def a_coroutine() -> Made:
    box = Box(2)

    async def later(x: Any) -> Any:
        return x * box.value

    def of(x: Any) -> Any:
        begun = later(x)
        try:
            begun.send(None)
        except StopIteration as ended:
            return ended.value

    return of, lambda: setattr(box, 'value', 5)


def a_generator_behind_contextmanager() -> Made:
    box = Box(2)

    @contextlib.contextmanager
    def rate() -> Iterator[Any]:
        yield box.value

    def of(x: Any) -> Any:
        with rate() as found:
            return x * found

    return of, lambda: setattr(box, 'value', 5)


RECORDED = [
    nan_gets_a_sign, nan_of_numpy_gets_a_sign, nan_in_a_complex_number, an_equal_dtype_of_another_letter,
    a_list_in_a_methodcaller, a_name_of_an_argument_in_a_methodcaller, a_list_in_an_itemgetter,
    a_view_of_other_memory, a_docstring, the_name_of_a_function, the_name_of_a_class,
    the_qualified_name_of_a_class, an_item_of_a_class, an_abstract_class,
    members_of_an_enumeration, warnings_as_errors, warnings_of_numpy_as_errors, a_class_with_another_copy,
    a_function_of_numpy_from_python, a_read_only_array, a_coroutine, a_generator_behind_contextmanager,
]  # fmt: skip


@pytest.mark.parametrize('make', RECORDED, ids=lambda make: make.__name__)
def test_a_change_is_seen_and_recorded_anew(cp: Any, make: Callable[[], Made]) -> None:
    assert followed(make, cp) >= 5


# -- what can not be compared


def a_handler_of_encodings() -> Made:
    codecs.register_error('capturekit_hidden', lambda error: ('2', error.end))
    return (
        lambda x: x * float('é'.encode('ascii', 'capturekit_hidden')),
        lambda: codecs.register_error('capturekit_hidden', lambda error: ('7', error.end)),
    )


def metadata_of_a_dtype() -> Made:
    rates = [2]
    kind = np.dtype('f8', metadata={'rates': rates})
    return lambda x: x * kind.metadata['rates'][0], lambda: rates.__setitem__(0, 5)  # type: ignore[index]


def metadata_of_an_arrays_dtype() -> Made:
    rates = [2]
    host = np.zeros(2, np.dtype('f8', metadata={'rates': rates}))
    return lambda x: x * host.dtype.metadata['rates'][0], lambda: rates.__setitem__(0, 5)  # type: ignore[index]


def the_size_of_a_list() -> Made:
    items = [1] * 4

    def change() -> None:
        items.extend([1] * 100)
        del items[4:]

    return lambda x: x * sys.getsizeof(items), change


@pytest.mark.parametrize(
    'make', [a_handler_of_encodings, metadata_of_a_dtype, metadata_of_an_arrays_dtype, the_size_of_a_list]
)
def test_what_can_not_be_compared_runs_eagerly(cp: Any, make: Callable[[], Made]) -> None:
    assert followed(make, cp) == 0


def test_pythons_own_handler_of_encodings_is_compared(cp: Any) -> None:
    def make() -> Made:
        return (
            lambda x: x * len('ж'.encode('ascii', 'namereplace')),
            lambda: codecs.register_error('namereplace', lambda error: ('?', error.end)),
        )

    assert followed(make, cp) >= 3


# -- the exception that the caller handles


def of_exc_info(x: Any) -> Any:
    return x * (2 if sys.exc_info()[0] else 1)


def of_the_context(x: Any) -> Any:
    try:
        raise KeyError(1)
    except KeyError as error:
        return x * (2 if error.__context__ else 1)


def of_a_bare_raise(x: Any) -> Any:
    try:
        raise
    except RuntimeError:
        return x
    except ValueError:
        return x * 2


def of_a_traceback(x: Any) -> Any:
    try:
        raise KeyError(1)
    except KeyError:
        return x * (1 + traceback.format_exc().count('During'))


@pytest.mark.parametrize('function', [of_exc_info, of_the_context, of_a_bare_raise, of_a_traceback])
def test_the_callers_exception(cp: Any, function: Callable[[Any], Any]) -> None:
    fn = ck.graphed(function)
    x = cp.ones(2)
    found = [float(fn(x)[0]) for _ in range(4)]
    try:
        raise ValueError
    except ValueError:
        found += [float(fn(x)[0]) for _ in range(2)]
    found += [float(fn(x)[0]) for _ in range(2)]
    assert found == [1.0] * 4 + [2.0] * 2 + [1.0] * 2
    assert function is of_a_traceback or sum(variant.launches for variant in fn.variants) >= 4


def test_an_eager_run_after_a_failed_check_sees_no_exception(cp: Any) -> None:
    def function(x: Any) -> Any:
        if float(x.sum()) > 10:
            return x * (5 if sys.exc_info()[0] else 1)
        return x * 2

    fn = ck.graphed(function)
    values = [1.0, 1.0, 1.0, 9.0, 9.0]
    assert [float(fn(cp.full(3, value))[0]) for value in values] == [2.0, 2.0, 2.0, 9.0, 9.0]


def test_an_exception_after_a_failed_check_has_no_context(cp: Any) -> None:
    def function(x: Any) -> Any:
        if float(x.sum()) > 10:
            raise ValueError('large')
        return x * 2

    fn = ck.graphed(function)
    for _ in range(3):
        fn(cp.ones(3))
    with pytest.raises(ValueError, match='large') as caught:
        fn(cp.full(3, 9.0))
    assert caught.value.__context__ is None


# -- arguments


def test_nan_with_a_sign_is_another_argument(cp: Any) -> None:
    fn = ck.graphed(lambda x, value: x * math.copysign(1.0, value))
    given = [math.nan] * 3 + [-math.nan] * 3
    assert [float(fn(cp.ones(1), value)[0]) for value in given] == [1.0] * 3 + [-1.0] * 3


def test_an_array_with_another_letter_is_of_another_kind(cp: Any) -> None:
    letters = [letter for letter in 'ilq' if np.dtype(letter).itemsize == 8]
    fn = ck.graphed(lambda x: x * ord(x.dtype.char))
    for letter in letters[:1] * 3 + letters[-1:] * 3:
        assert int(fn(cp.ones(1, letter))[0]) == ord(letter)


def test_a_read_only_argument_is_of_another_kind(cp: Any) -> None:
    fn = ck.graphed(lambda x, host: x * (2 if host.flags.writeable else 3))
    for writeable in (True, True, True, False, False, False):
        host = np.zeros(2)
        host.flags.writeable = writeable
        assert float(fn(cp.ones(1), host)[0]) == (2 if writeable else 3)


@pytest.mark.parametrize(
    'function',
    [lambda x: x * (2 if x.flags['OWNDATA'] else 3), lambda x: x * str(x.flags).count('True')],
    ids=['by its name in a text', 'all of them'],
)
def test_whether_an_array_owns_its_memory(cp: Any, function: Callable[[Any], Any]) -> None:
    fn, whole = ck.graphed(function), cp.ones(4)
    for x in [cp.ones(2)] * 3 + [whole[:2]] * 3:
        assert fn(x).get().tolist() == function(x).get().tolist()


def test_one_flag_of_an_array_is_recorded(cp: Any) -> None:
    fn = ck.graphed(lambda x: x * (2 if x.flags['C_CONTIGUOUS'] and x.flags.c_contiguous else 3))
    for _ in range(4):
        fn(cp.ones(2))
    assert fn.variants[0].launches == 3


# -- arrays of derived classes


def test_an_attribute_of_a_derived_class_of_arrays(cp: Any) -> None:
    class Scaled(cp.ndarray):  # type: ignore[misc, name-defined]
        scale = 2

    fn = ck.graphed(lambda x: (x * x.scale).view(cp.ndarray))
    found = []
    for number in range(6):
        Scaled.scale = 2 if number < 3 else 5
        found.append(float(fn(cp.ones(1).view(Scaled))[0]))
    assert found == [2.0] * 3 + [5.0] * 3


def test_an_attribute_of_one_derived_array(cp: Any) -> None:
    class Scaled(cp.ndarray): ...  # type: ignore[misc, name-defined]

    fn = ck.graphed(lambda x: (x * getattr(x, 'scale', 1)).view(cp.ndarray))
    found = []
    for number in range(6):
        x = cp.ones(1).view(Scaled)
        x.scale = 2 if number < 3 else 5
        found.append(float(fn(x)[0]))
    assert found == [2.0] * 3 + [5.0] * 3


def test_a_result_of_a_derived_class_keeps_it(cp: Any) -> None:
    class Tagged(cp.ndarray): ...  # type: ignore[misc, name-defined]

    def function(x: Any) -> Any:
        found = (x * 2).view(Tagged)
        found.tag = 'doubled'
        return found

    fn = ck.graphed(function)
    for _ in range(4):
        found = fn(cp.ones(1))
        assert type(found) is Tagged and found.tag == 'doubled'


def test_an_attribute_of_a_derived_array_in_a_closure(cp: Any) -> None:
    class Scaled(cp.ndarray): ...  # type: ignore[misc, name-defined]

    weights = cp.ones(1).view(Scaled)
    weights.scale = 2
    fn = ck.graphed(lambda x: (x * weights * weights.scale).view(cp.ndarray))
    found = []
    for number in range(6):
        weights.scale = 2 if number < 3 else 5
        found.append(float(fn(cp.ones(1))[0]))
    assert found == [2.0] * 3 + [5.0] * 3


# -- what a copy or a number tells


def test_state_whose_dtype_gets_another_letter(cp: Any) -> None:
    letters = [letter for letter in 'ilq' if np.dtype(letter).itemsize == 8]
    box = Box(cp.zeros(2, letters[0]))

    def function(x: Any) -> Any:
        letter = ord(box.value.dtype.char)
        box.value = box.value + x
        return x * letter

    fn = ck.graphed(function)
    for number in range(6):
        if number == 3:
            box.value = cp.zeros(2, letters[-1])
        assert int(fn(cp.ones(2, letters[0]))[0]) == ord(letters[0] if number < 3 else letters[-1])


def test_the_text_of_numpys_numbers(cp: Any) -> None:
    fn = ck.graphed(lambda x: x * len(repr(np.float64(1.5))))
    before = np.get_printoptions()
    try:
        found = []
        for number in range(6):
            np.set_printoptions(legacy='1.25' if number >= 3 else False)
            found.append(int(fn(cp.ones(1))[0]))
    finally:
        np.set_printoptions(**before)  # type: ignore[arg-type]
    assert found == [len('np.float64(1.5)')] * 3 + [len('1.5')] * 3
    assert sum(variant.launches for variant in fn.variants) == 4


def test_arguments_of_numpy_that_share_memory(cp: Any) -> None:
    whole = np.zeros(8)
    fn = ck.graphed(lambda x, a, b: x * (2 if np.may_share_memory(a, b) else 3))
    given = [(whole[:4], np.zeros(4))] * 3 + [(whole[:4], whole[2:6])] * 3
    assert [int(fn(cp.ones(1), *pair)[0]) for pair in given] == [3] * 3 + [2] * 3


def test_no_copy_of_an_object_that_notes_its_end(cp: Any) -> None:
    ended = []

    @dataclasses.dataclass
    class Noted:
        factor: int

        def __del__(self) -> None:
            ended.append(self.factor)

    noted = Noted(2)
    fn = ck.graphed(lambda x, one: x * one.factor)
    assert [int(fn(cp.ones(1), noted)[0]) for _ in range(4)] == [2] * 4
    assert ended == []


def test_a_generator_that_runs(cp: Any) -> None:
    def steps() -> Iterator[Any]:
        yield fn(cp.ones(1))

    begun = steps()
    fn = ck.graphed(lambda x: x * (2 if begun.gi_running else 1))  # type: ignore[attr-defined]
    assert [int(fn(cp.ones(1))[0]) for _ in range(4)] == [1] * 4
    assert int(next(begun)[0]) == 2


def test_a_weak_reference_is_not_kept_alive(cp: Any) -> None:
    class Rate:
        def of(self, x: Any) -> Any:
            return x * 2

    box = [Rate()]
    found = weakref.WeakMethod(box[0].of)

    def function(x: Any) -> Any:
        method = found()
        return x if method is None else method(x)

    fn = ck.graphed(function)
    assert [int(fn(cp.ones(1))[0]) for _ in range(3)] == [2] * 3
    box.clear()
    assert [int(fn(cp.ones(1))[0]) for _ in range(2)] == [1] * 2


def what_a_manager_holds() -> Made:
    held = contextlib.nullcontext(2)

    def function(x: Any) -> Any:
        with held as factor:
            return x * factor

    return function, lambda: setattr(held, 'enter_result', 5)


def test_what_a_manager_of_contextlib_holds(cp: Any) -> None:
    assert followed(what_a_manager_holds, cp) >= 5


def a_class_that_names_cupy() -> Made:
    """So does ``__array_namespace_info__`` of array-api-compat."""

    class Info:
        __module__ = 'cupy'

        def rate(self) -> float:
            return self.factor * 2.0

        factor = 1.5

    return lambda x: x * Info().rate(), lambda: setattr(Info, 'factor', 2.5)


def test_a_class_that_names_a_library_as_its_module(cp: Any) -> None:
    assert followed(a_class_that_names_cupy, cp) >= 5

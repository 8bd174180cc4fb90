"""What stands for a number while a function is recorded, and the numbers that a recorded graph reads.

Code can not read its value, and only operators and functions that are known take it: on the host, where each launch
computes anew, and on the device, where kernels read it from the memory of the graph.

``abs``, ``max``, ``min`` and ``pow`` of Python ask the methods of a number. ``float`` and functions of ``math`` ask a
number for its value, which a :class:`Number` shows to nobody. So while code is recorded that gives them such numbers,
it finds another object in their place, which does the same with all others. If that gets an array which the code
reads in this way (``float(a)``, ``math.sqrt(a)``), it reads it as ``a.item()`` does. All code has to call at once what
it finds there: it never sees what is there.
"""

from __future__ import annotations

import math
import operator
import struct
import sys
import threading
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from capturekit.graphed.call_turns import is_alone
from capturekit.graphed.code_reads import nested
from capturekit.graphed.collector import functions_of
from capturekit.graphed.number_arguments import COMPUTED, TYPES, Unfit
from capturekit.graphed.outcomes import FunctionPlace
from capturekit.graphed.stack_steps import call_of
from capturekit.model import errors
from capturekit.model.class_layout import dictionary_of_class
from capturekit.model.code_steps import Does, steps_of
from capturekit.model.skipped_exits import Lock, contextmanager
from capturekit.model.source_line import Place, here, is_ours

if TYPE_CHECKING:
    from numpy.typing import NDArray


def computing_frame() -> FrameType | None:
    """The frame of the code that computes with a number at present."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and (is_ours(frame.f_code.co_filename) or hands_on(frame.f_code)):
        frame = frame.f_back
    return frame


def hands_on(code: CodeType) -> bool:
    """Whether this is the code of a function of CuPy that only hands its arguments on to a kernel."""
    cupy = sys.modules.get('cupy')
    return any(getattr(getattr(cupy, name, None), '__code__', None) is code for name in _HANDING_ON)


def unfollowed(how: str, at: Place | None = None) -> BaseException:
    """The refusal of a number that the function uses in a way that launches can't repeat, at the line that runs now
    where no other is known.
    """
    error = errors.UnsupportedCallError(
        f'A number among the arguments can not be followed: {how}',
        location=at or here(),
        rule='It changes from call to call, and only arithmetic with arrays and other numbers can follow it.',
        remedy='Pass it as an array, cp.asarray(value); or leave it, if such calls may run eagerly.',
    )
    return errors.as_raised(error)


def _asks(what: str) -> Callable[..., Any]:
    def refuse(_self: Number, *_args: Any, **_kwargs: Any) -> Any:
        raise unfollowed(f'its value decides something ({what})')

    return refuse


def _reckoned(of: Any, plain: Callable[..., Any], operands: Iterable[Any], asks: bool) -> Any:
    """What comes out of numbers, some of them plain ones: a number, or where the code ``asks`` a truth value."""
    numbers = tuple([one if type(one) is Number else of.constant(one) for one in operands])
    return of.compared(plain, numbers) if asks else of.computed(plain, numbers)


def _operator(
    plain: Callable[..., Any], ufunc: str, swapped: bool = False, asks: bool = False
) -> Callable[[Number, Any], Any]:
    """An operator. With an array it is CuPy's; with a number it is Python's, and is computed again at each call.

    ``asks``: it compares, and what comes out is no number.
    """

    def operate(self: Number, other: Any) -> Any:
        of = self._of
        of.standing()
        if type(other) is of.cupy.ndarray:
            return getattr(of.cupy, ufunc)(*((other, self) if swapped else (self, other)))
        if type(other) is not Number and type(other) not in COMPUTED:
            name = type(other).__name__
            raise unfollowed(f'it is compared with a {name}' if asks else f'it meets a {name} ({plain.__name__})')
        return _reckoned(of, plain, (other, self) if swapped else (self, other), asks)

    return operate


def _both(plain: Callable[..., Any], ufunc: str) -> tuple[Callable[[Number, Any], Any], Callable[[Number, Any], Any]]:
    """An operator, and the one for a number on its right."""
    return _operator(plain, ufunc), _operator(plain, ufunc, swapped=True)


def _unary(plain: Callable[..., Any]) -> Callable[[Number], Any]:
    """An operator of one number."""
    return lambda self: self._of.computed(plain, (self,))


#: What NumPy's functions ask of a number.
_ASKED: dict[Any, Callable[[float], bool]] = {
    np.isnan: math.isnan, np.isinf: math.isinf, np.isfinite: math.isfinite,
}  # fmt: skip
_COMPARING = frozenset({np.less, np.less_equal, np.greater, np.greater_equal, np.equal, np.not_equal})
#: The functions of NumPy that are the operators of its numbers.
OF_NUMPY: dict[str, np.ufunc] = {
    name: getattr(np, name)
    for name in 'absolute add subtract multiply divide floor_divide remainder power negative'.split()
}
_UFUNCS = frozenset(
    'add subtract multiply true_divide divide floor_divide remainder power equal not_equal less less_equal greater '
    'greater_equal maximum minimum fmax fmin hypot arctan2 where clip'.split()
)
_ALONE = 'abs absolute cos exp expm1 log log10 log1p log2 sin sqrt square tan tanh'.split()
#: Functions of CuPy that make an array of one number, or of numbers beside an array, each with how many arguments it
#: gets. Both names of one that has two are here.
OF_CUPY = {**dict.fromkeys(_ALONE, 1), **dict.fromkeys(_UFUNCS, 2), 'mod': 2, 'where': 3, 'clip': 3}
#: Those that are written in Python, and only hand their arguments on to a kernel of their name.
_HANDING_ON = ('where', 'clip')


def _like(number: Any) -> Any:
    """A plain number of the same type."""
    return (type(number._now) if type(number) is Number else type(number))(0)


#: What NumPy asks an object for before it calls ``__array__``.
_BY_NUMPY = ('__array_struct__', '__array_interface__')


class _OfOperators:
    """What CuPy's operators find in a number, None, makes them leave the operation to its methods. NumPy finds a
    method in its class, which refuses: else NumPy raised an error of its own, which code may catch."""

    def __get__(self, number: Any, _of: type) -> Any:
        return None if number is not None else _given_to_numpy


def _given_to_numpy(_self: Any, ufunc: Any, method: str, *inputs: Any, **named: Any) -> Any:
    """Compute as NumPy does, or answer whether a number is one of NaN or infinity; refuse everything else."""
    if ufunc in _COMPARING:  # an operator of a number of NumPy's has made an array of it
        inputs = tuple([one[()] if type(one) is np.ndarray and not one.shape else one for one in inputs])
    plain = method == '__call__' and not named and all(type(one) in (Number, *COMPUTED) for one in inputs)
    known = ufunc in _ASKED or ufunc in _COMPARING or OF_NUMPY.get(ufunc.__name__) is ufunc
    if not plain or not known:
        raise unfollowed(f'it is given to {ufunc.__name__} of NumPy')
    of = next(one._of for one in inputs if type(one) is Number)
    of.standing()
    if ufunc in _ASKED:
        return np.bool_(of.compared(_ASKED[ufunc], inputs))
    return _reckoned(of, ufunc, inputs, ufunc in _COMPARING)


class Number:
    """A number whose value can't be read: only operators use it, on the host and on the device."""

    __slots__ = ('_index', '_now', '_of')
    __array_ufunc__ = _OfOperators()

    def __init__(self, of: Any, index: int, now: Any) -> None:
        self._of = of
        self._index = index
        self._now = now

    def __getattr__(self, name: str) -> Any:
        if name in _BY_NUMPY and self._of.go_into_arrays():
            raise AttributeError(name)
        raise unfollowed(f'its attribute {name} is read')

    def __cupy_override_elementwise_kernel__(self, kernel: Any, *args: Any, **kwargs: Any) -> Any:
        """CuPy calls this hook when a Python operator leads to a kernel with this number as an argument."""
        cupy = self._of.cupy
        self._of.standing()
        name = getattr(kernel, 'name', '').removeprefix('cupy_')
        known: Any = getattr(cupy, name, None)
        if len(args) == 1 and name in _ALONE and kernel is known and not kwargs:
            return kernel(self._alone())
        in_place = len(args) == 3 and args[2] is args[0]
        fits = len(args) == OF_CUPY.get(name) or (in_place and name not in _HANDING_ON)
        if type(kernel) is not cupy.ufunc or name not in _UFUNCS or not fits or any(kwargs.values()):
            raise unfollowed(f'it is given to {name or kernel}')
        return kernel(*self._beside(args[name == 'where' :], name, args[: name == 'where']))

    def _beside(self, args: Sequence[Any], name: str, before: Sequence[Any]) -> list[Any]:
        """The arguments of a kernel, with arrays in the place of numbers: of the dtype that a plain number takes on
        beside the others. ``before``: those whose dtype does not count."""
        ndarray = self._of.cupy.ndarray
        dtypes = {one.dtype for one in args if type(one) is ndarray}
        for one in (*before, *args):
            is_bound = isinstance(one, np.generic) and name == 'clip' and one.dtype in dtypes  # of CuPy's, for None
            if type(one) not in (ndarray, Number, *TYPES) and not is_bound:
                raise unfollowed(f'{name} with a {type(one).__name__}')
        dtype = np.result_type(*dtypes, *[_like(one) for one in args if type(one) in (Number, *TYPES)])
        if dtype.kind == 'c':
            dtype = np.dtype('f4' if dtype.itemsize == 8 else 'f8')
        return [*before, *[self._of.array(one, dtype) if type(one) is Number else one for one in args]]

    def _alone(self) -> Any:
        """The array that a function of CuPy gets instead of the number alone."""
        if not isinstance(self._now, float):
            raise unfollowed('a function of CuPy gets an integer')
        return self._of.array(self, np.dtype('f8'))

    __add__, __radd__ = _both(operator.add, 'add')
    __sub__, __rsub__ = _both(operator.sub, 'subtract')
    __mul__, __rmul__ = _both(operator.mul, 'multiply')
    __truediv__, __rtruediv__ = _both(operator.truediv, 'true_divide')
    __floordiv__, __rfloordiv__ = _both(operator.floordiv, 'floor_divide')
    __mod__, __rmod__ = _both(operator.mod, 'remainder')
    __pow__, __rpow__ = _both(operator.pow, 'power')
    __neg__, __abs__ = _unary(operator.neg), _unary(abs)
    __eq__, __ne__ = _operator(operator.eq, 'equal', asks=True), _operator(operator.ne, 'not_equal', asks=True)
    __lt__, __le__ = _operator(operator.lt, 'less', asks=True), _operator(operator.le, 'less_equal', asks=True)
    __gt__, __ge__ = _operator(operator.gt, 'greater', asks=True), _operator(operator.ge, 'greater_equal', asks=True)

    __bool__, __int__, __index__ = _asks('bool'), _asks('int'), _asks('an index or a count')
    __float__, __complex__, __hash__ = _asks('float'), _asks('complex'), _asks('hash')
    __str__, __repr__, __format__ = _asks('as text'), _asks('as text'), _asks('as text')

    def __array__(self, *_args: Any, **_named: Any) -> Any:
        """What NumPy puts into an array. From then on nothing gets the number: an item would be one of NumPy's."""
        if not self._of.go_into_arrays():
            raise unfollowed('its value decides something (as an array)')
        del self._of, self._index, self._now
        made = np.empty((), object)
        made[()] = self
        return made


#: Larger integers would be rounded twice on their way to a shorter float, which CuPy does once.
_EXACT = 1 << 53
#: How a number of a dtype is packed, eight bytes each. Half precision is left out: packing may round it twice.
_CODES = {
    '?': '?7x', 'b': 'b7x', 'B': 'B7x', 'h': 'h6x', 'H': 'H6x', 'i': 'i4x', 'I': 'I4x', 'l': 'q', 'L': 'Q', 'q': 'q',
    'Q': 'Q', 'f': 'f4x', 'd': 'd',
}  # fmt: skip


def computed_now(plain: Callable[..., Any], operands: tuple[Number, ...]) -> Any:
    """What an operator makes of numbers while they are recorded. Raises UnsupportedCallError."""
    try:
        with numpys_warnings_raised():
            now = plain(*[one._now for one in operands])
    except Exception as error:
        raise unfollowed(f'computing with it raises {type(error).__name__}') from None
    if type(now) not in COMPUTED:
        raise unfollowed(f'a {type(now).__name__} is computed from it')
    return now


def numpys_warnings_raised() -> AbstractContextManager[Any]:
    """A block in which numbers of NumPy raise where they would warn, or would give what the user's settings say."""
    return np.errstate(over='raise', divide='raise', invalid='raise', under='raise')


@contextmanager
def operators_watched(takes: Callable[[FrameType], bool]) -> Iterator[None]:
    """For the block, note as a refusal that another class's operator method takes a number.

    ``takes``: whether an operator that takes numbers runs in a frame.
    """
    if sys.getprofile() is not None:
        raise unfollowed('a profiler is on')

    def entered(frame: FrameType, event: str, _argument: Any) -> None:
        below = frame.f_back
        others = event == 'call' and not is_ours(frame.f_code.co_filename) and not hands_on(frame.f_code)
        if others and below is not None and takes(below):
            unfollowed('an operator of another class takes it')  # counted; raised when the function has returned

    sys.setprofile(entered)
    try:
        yield
    finally:
        sys.setprofile(None)


def must_fit(slots: int, dtype: Any, room: int) -> None:
    """Raise UnsupportedCallError if there are too many numbers, or none of this kind can be packed."""
    if slots == room or dtype.char not in _CODES:
        raise unfollowed(f'more than {room} meet arrays' if slots == room else f'it meets an array as {dtype}')


def in_bytes(numbers: Sequence[tuple[Any, Any]]) -> NDArray[Any]:
    """Numbers, each with its dtype, as they lie on the device. Raises Unfit."""
    for value, dtype in numbers:
        if type(value) is int and dtype.kind == 'f' and not -_EXACT < value < _EXACT:
            raise Unfit('an integer is rounded twice')
    try:
        packed = struct.pack('<' + ''.join(_CODES[dtype.char] for _, dtype in numbers), *[one for one, _ in numbers])
    except (OverflowError, struct.error) as error:
        raise Unfit(str(error)) from error
    return np.frombuffer(packed, 'u1')


#: Python's own, each with the numbers of arguments that it may have.
BUILT_IN: dict[str, tuple[Any, range]] = {
    'abs': (abs, range(1, 2)), 'pow': (pow, range(2, 3)), 'max': (max, range(2, 256)), 'min': (min, range(2, 256)),
}  # fmt: skip
_NAMES = (
    'acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh degrees erf erfc exp exp2 expm1 fabs floor '
    'fmod gamma hypot lgamma log log10 log1p log2 pow radians remainder sin sinh sqrt tan tanh trunc'
)
#: What comes out of these is a truth value, which has to come out at each launch as it did.
ASKING = (math.isfinite, math.isinf, math.isnan)
#: Those of ``math``, by name: some came with a later Python.
OF_MATH: dict[str, Callable[..., Any]] = {
    name: getattr(math, name) for name in (*_NAMES.split(), *(one.__name__ for one in ASKING)) if hasattr(math, name)
}
#: The types that make a number of an array, or of another number. Code finds them among the builtins.
OF_TYPES = (float, int)
#: The functions in the place of which another object is put, by id.
REPLACED: dict[int, Any] = {id(function): function for function in (*OF_TYPES, *OF_MATH.values())}
_MATH = ModuleType(math.__name__)


class _OfNumbers:
    """What stands in the place of a function while numbers are recorded.

    It is no function of Python: a frame that calls one does not tell which of its steps does.
    """

    def __init__(self, function: Any) -> None:
        self._function = function
        self._asks = any(function is one for one in ASKING)

    def __call__(self, *args: Any, **named: Any) -> Any:
        if len(args) == 1 and not named:
            args = (_read(args[0]),)
        of = next((one._of for one in args if type(one) is Number), None)
        if of is None:
            return self._function(*args, **named)
        of.standing()
        if named or not all(type(one) is Number or type(one) in COMPUTED for one in args):
            raise unfollowed(f'{self._function.__name__} gets it beside something else than numbers')
        return _reckoned(of, self._function, args, self._asks)


def _read(value: Any) -> Any:
    """What an array holds that the code under way reads, if launches reckon with that; any other value itself."""
    numbers: Any = getattr(_recorded, 'numbers', None)
    if numbers is None or type(value) is not numbers.cupy.ndarray or value.shape or not numbers.reads_here():
        return value
    return value.item()


_functions = {key: _OfNumbers(function) for key, function in REPLACED.items()}
_standing: dict[int, Any] = {**_functions, id(math): _MATH}
#: The numbers that this thread records.
_recorded = threading.local()
_lock = Lock()
#: How many recordings that are under way need each place.
_needed: Counter[tuple[int, str]] = Counter()


@contextmanager
def taking_numbers(numbers: Any, places: Iterable[FunctionPlace]) -> Iterator[None]:
    """For the block, let functions that are found in these places take numbers of a recording, which ``numbers`` are
    (:class:`capturekit.graphed.read_numbers.ReadNumbers`)."""
    taken: list[FunctionPlace] = []
    others = not is_alone()
    try:
        with _lock:
            for place in [place for place in places if place.of_all or not others]:
                _needed[_key(place)] += 1
                taken.append(place)
                _put(place, _standing[id(place.found)])
        _recorded.numbers = numbers
        yield
    finally:
        _recorded.numbers = None
        with _lock:
            for place in taken:
                _needed[_key(place)] -= 1
                if not _needed[_key(place)]:
                    _take_back(place, _standing[id(place.found)])


def _key(place: FunctionPlace) -> tuple[int, str]:
    return id(place.namespace), place.name


def _put(place: FunctionPlace, standing: Any) -> None:
    """Put something in the place of a function, unless somebody else has done so."""
    if standing is _MATH:
        vars(_MATH).update({name: _functions.get(id(value), value) for name, value in list(vars(math).items())})
    if place.found in OF_TYPES:
        place.namespace.setdefault(place.name, standing)
    elif place.namespace.get(place.name) is place.found:
        place.namespace[place.name] = standing


def _take_back(place: FunctionPlace, standing: Any) -> None:
    if place.namespace.get(place.name) is standing:
        if place.found in OF_TYPES:
            del place.namespace[place.name]  # the builtin is found again
        else:
            place.namespace[place.name] = place.found


def is_called_by(codes: Iterable[CodeType], name: str, of_module: Container[str] = ()) -> bool:
    """Whether code calls at once what it loads under the name of a global, with plain arguments.

    ``of_module``: functions of the module that is there. Code takes attributes of that alone, and calls these at once.
    """
    inner = {id(one): one for code in codes for one in nested(code)}
    return all(_only_calls(code, name, of_module) for code in inner.values() if name in code.co_names)


def is_only_called(namespace: dict[str, Any], name: str, of_module: Container[str] = ()) -> bool:
    """Whether all functions with these globals do so."""
    functions = {id(one): one for found in functions_of(namespace).values() for one in found}
    if _may_run_meanwhile(namespace) or not all(id(one) in functions for one in _by_name(namespace)):
        return False
    return is_called_by([function.__code__ for function in functions.values()], name, of_module)


def _by_name(namespace: dict[str, Any]) -> Iterator[FunctionType]:
    """The functions that the module and its classes have by a name. If one of these is not listed among all of the
    module's, ``gc.freeze`` has taken it out of the collector's lists, and others with it."""
    for value in list(namespace.values()):
        members = list(dictionary_of_class(value).values()) if issubclass(type(value), type) else [value]
        yield from (one for one in members if type(one) is FunctionType and one.__globals__ is namespace)


def _may_run_meanwhile(namespace: dict[str, Any]) -> bool:
    """Whether code of the module itself, which no function has, may run in another thread."""
    main: Any = sys.modules.get('__main__')
    if namespace is getattr(main, '__dict__', None):
        return threading.current_thread() is not threading.main_thread()
    return bool(getattr(namespace.get('__spec__'), '_initializing', False))


_OF_GLOBALS = Does.READS_GLOBAL | Does.CHANGES_GLOBAL | {Does.IMPORTS}


def _only_calls(code: CodeType, name: str, of_module: Container[str]) -> bool:
    steps = steps_of(code)
    for number, step in enumerate(steps):
        if step.operand != name or step.does not in _OF_GLOBALS:
            continue
        loads = number if step.does in Does.READS_GLOBAL else None
        if of_module and loads is not None:
            loads = number + 1 if steps[number + 1].does in Does.ANY_ATTRIBUTE else None
            if loads is not None and steps[loads].operand not in of_module:
                continue
        call = None if loads is None else call_of(steps, loads)
        if call is None or steps[call].does != Does.CALLS or steps[call].names:
            return False
    return True

"""Number arguments that change at nearly each call: the graph reads them from the device's memory.

Normally a number is a part of the kind of a call, as an axis or a count has to be. If one argument has made several new
kinds, the function is recorded with a :class:`Number` in its place, provided that its code does nothing with it but
arithmetic (:mod:`capturekit.functions.number_uses`). What Python computes from it is computed again for each call; a
kernel that combines it with an array reads it from the graph's memory. Code can't read the value of a :class:`Number`.
"""

from __future__ import annotations

import math
import operator
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from capturekit.functions.number_uses import NotArithmetic, NumberUses
from capturekit.model import errors
from capturekit.model.source_line import here, is_ours

#: The exact types that such an argument may have. NumPy's numbers are left out: they depend on NumPy's settings.
TYPES = (float, int)
#: New values of an argument, each a new kind of call, after which it is taken for a number that changes.
FEW = 3
#: How many numbers may meet arrays in one function (each takes eight bytes), and how many may be computed from others.
ROOM, STEPS = 32, 256
WIDTH = 8
#: Larger integers would be rounded twice on their way to a shorter float, which CuPy does once.
_EXACT = 1 << 53
#: How a number of a dtype is packed, eight bytes each. Half precision is left out: packing may round it twice.
_CODES = {
    '?': '?7x', 'b': 'b7x', 'B': 'B7x', 'h': 'h6x', 'H': 'H6x', 'i': 'i4x', 'I': 'I4x', 'l': 'q', 'L': 'Q', 'q': 'q',
    'Q': 'Q', 'f': 'f4x', 'd': 'd',
}  # fmt: skip
_Values = Sequence[Any]
Position = int | str


class Unfit(Exception):
    """The recorded graph can't read a call's numbers: the call runs eagerly."""


class NumberArguments:
    """Which arguments of a function are numbers that change from call to call, by position or name."""

    def __init__(self) -> None:
        self.positions: tuple[Position, ...] = ()
        #: Why numbers stay parts of the kind; '' if nothing has shown that they must.
        self.reason = ''
        self._last: dict[Position, Any] = {}
        self._changes: Counter[Position] = Counter()
        self._refused: set[Position] = set()

    def seen(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note the arguments of a call that made a new kind."""
        given: list[tuple[Position, Any]] = [*enumerate(args), *kwargs.items()]
        for position, value in given:
            if type(value) not in TYPES:
                continue
            last = self._last.get(position, value)
            self._changes[position] += type(last) is type(value) and last != value
            self._last[position] = value
        found = {position for position, count in self._changes.items() if count >= FEW} - self._refused
        self.positions = tuple(sorted(found, key=str))

    def apart(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallNumbers | None:
        """The numbers of a call that are not part of its kind; None if there are none."""
        found: list[tuple[Position, Any]] = []
        for position in self.positions:
            if isinstance(position, int):
                value = args[position] if position < len(args) else None
            else:
                value = kwargs.get(position)
            if type(value) in TYPES:
                found.append((position, value))
        return CallNumbers(self, *zip(*found)) if found else None

    def refuse(self, positions: Sequence[Position], reason: str) -> None:
        """Make these arguments parts of the kind again, for good."""
        self._refused.update(positions)
        self.positions = tuple(one for one in self.positions if one not in self._refused)
        self.reason = self.reason or reason


class Mark:
    """The placeholder for a number in the form of a call."""

    def __init__(self, kind: type) -> None:
        self.kind = kind

    def __repr__(self) -> str:
        return f'<any {self.kind.__name__}>'


_MARKS = {kind: Mark(kind) for kind in TYPES}


class CallNumbers(NamedTuple):
    """The numbers of one call: whose they are, their positions, and their values."""

    of: NumberArguments
    positions: tuple[Position, ...]
    values: tuple[Any, ...]

    def marked(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments, without the values of the numbers."""
        return self.replaced(args, kwargs, [_MARKS[type(value)] for value in self.values])

    def replaced(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], by: Sequence[Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments, with other objects in the place of the numbers."""
        new, named = list(args), dict(kwargs)
        for position, thing in zip(self.positions, by):
            if isinstance(position, int):
                new[position] = thing
            else:
                named[position] = thing
        return tuple(new), named


def room(cupy: Any) -> Any:
    """The array in which the numbers of one call go to the device."""
    return cupy.ndarray((ROOM * WIDTH,), 'u1')


class NumberSlots:
    """The numbers that a recorded graph reads, in order, and where it reads them.

    ``place`` is the graph's copy of what :func:`room` makes; ``values`` are the numbers of the call that is recorded,
    and ``names`` the parameters of ``fn`` that have them. Raises UnsupportedCallError if the code of ``fn`` does
    anything with them but arithmetic.
    """

    def __init__(self, cupy: Any, place: Any, fn: Any, names: Sequence[str], values: _Values) -> None:
        self.cupy = cupy
        self._place = place
        self._uses = uses_of(fn, names)
        self._code: CodeType = fn.__code__
        #: How each number is computed: an operator and the indices of its operands. The first entries are arguments.
        self._program: list[tuple[Callable[..., Any], tuple[int, ...]]] = []
        self._kinds: list[type] = [type(value) for value in values]
        self._numbers: dict[Any, Number] = {}
        self._slots: list[tuple[int, Any]] = []
        self._arrays: dict[tuple[int, str], Any] = {}
        self.numbers = [Number(self, index, value) for index, value in enumerate(values)]

    def constant(self, value: Any) -> Number:
        """A number that is not an argument: every call computes with the same value."""
        return self._add(_same, (), value, (type(value), value if type(value) is int else struct.pack('d', value)))

    def computed(self, plain: Callable[..., Any], operands: tuple[Number, ...]) -> Number:
        """A number that is computed again at each call."""
        indices = tuple(one._index for one in operands)
        now = computed_now(plain, operands)
        found = self._add(plain, indices, now, (plain, indices))
        try:
            self._uses.result(self.standing())
        except NotArithmetic as error:
            raise unfollowed(str(error)) from None
        return found

    def compared(self, _plain: Callable[..., bool], _operands: tuple[Number, ...]) -> bool:
        """What comes out of a comparison of numbers."""
        raise unfollowed('it is compared with another number')

    def goes_into_arrays(self) -> bool:
        """Whether the code at present makes an array of numbers: none that is followed does."""
        return False

    def _add(self, plain: Callable[..., Any], indices: tuple[int, ...], now: Any, key: Any) -> Number:
        found = self._numbers.get(key)
        if found is None:
            if len(self._kinds) == STEPS:
                raise unfollowed(f'more than {STEPS} others are computed from it')
            found = self._numbers[key] = Number(self, len(self._kinds), now)
            self._program.append((plain, indices) if indices else (lambda: now, ()))
            self._kinds.append(type(now))
        return found

    def standing(self) -> int:
        """The instruction of the function that computes at present. Raises if other code computes."""
        frame = computing_frame()
        if frame is None or frame.f_code is not self._code or frame.f_lasti not in self._uses.operators:
            raise unfollowed('code outside of the function computes with it')
        return int(frame.f_lasti)

    def watched(self) -> AbstractContextManager[None]:
        """For the block, note as a refusal that another class's operator method takes a number."""
        return operators_watched(lambda frame: frame.f_code is self._code and frame.f_lasti in self._uses.operators)

    def array(self, number: Number, dtype: Any) -> Any:
        """The array without axes that kernels read a number from, as ``dtype``."""
        made = self._arrays.get((number._index, dtype.char))
        if made is None:
            at = len(self._slots)
            must_fit(at, dtype)
            self._slots.append((number._index, dtype))
            made = self.cupy.ndarray((), dtype, self._place.data + at * WIDTH)
            self._arrays[number._index, dtype.char] = made
        return made

    def fill(self, target: Any, values: _Values) -> None:
        """Bring the numbers of a call to the device, on CuPy's current stream. Raises Unfit."""
        found = list(values)
        try:
            for plain, indices in self._program:
                found.append(plain(*[found[index] for index in indices]))
        except ArithmeticError as error:
            raise Unfit(str(error)) from error
        if not all(type(value) is kind for value, kind in zip(found, self._kinds)):
            raise Unfit('a number is of another type than while recording')
        if not self._slots:
            return
        host = in_bytes([(found[index], dtype) for index, dtype in self._slots])
        target.data.copy_from_host_async(host.ctypes.data, host.nbytes, self.cupy.cuda.get_current_stream())

    def ended(self) -> None:
        """Note that the recording has ended: its numbers refuse to compute from now on."""
        self.numbers.clear()
        self._numbers.clear()
        self._arrays.clear()


def computed_now(plain: Callable[..., Any], operands: tuple[Number, ...]) -> Any:
    """What an operator makes of numbers while they are recorded. Raises UnsupportedCallError."""
    try:
        now = plain(*[one._now for one in operands])
    except Exception as error:
        raise unfollowed(f'computing with it raises {type(error).__name__}') from None
    if type(now) not in TYPES:
        raise unfollowed(f'a {type(now).__name__} is computed from it')
    return now


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


def must_fit(slots: int, dtype: Any, room: int = ROOM) -> None:
    """Raise UnsupportedCallError if there are too many numbers, or none of this kind can be packed."""
    if slots == room or dtype.char not in _CODES:
        raise unfollowed(f'more than {room} meet arrays' if slots == room else f'it meets an array as {dtype}')


def in_bytes(numbers: Sequence[tuple[Any, Any]]) -> NDArray[Any]:
    """Numbers, each with its dtype, as they lie on the device. Raises Unfit."""
    for value, dtype in numbers:
        if type(value) is int and dtype.kind == 'f' and _is_beyond(value):
            raise Unfit('an integer is rounded twice')
    try:
        packed = struct.pack('<' + ''.join(_CODES[dtype.char] for _, dtype in numbers), *[one for one, _ in numbers])
    except (OverflowError, struct.error) as error:
        raise Unfit(str(error)) from error
    return np.frombuffer(packed, 'u1')


def uses_of(fn: Any, names: Sequence[str]) -> NumberUses:
    """The uses of parameters in the code of a function. Raises UnsupportedCallError."""
    try:
        if type(fn) is not FunctionType:
            raise NotArithmetic('what it is passed to is not a plain function')
        code = fn.__code__
        known = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if not set(names) <= set(known):
            raise NotArithmetic('it is passed in *args or **kwargs')
        return NumberUses(fn, tuple(names))
    except NotArithmetic as error:
        raise unfollowed(str(error)) from None


def names_of_positions(fn: Any, positions: Sequence[Position]) -> list[str]:
    """The parameters that positional and named arguments are bound to; '' if there is none."""
    code = getattr(fn, '__code__', None)
    if code is None:
        return ['' for _ in positions]
    placed = code.co_varnames[: code.co_argcount]
    named = code.co_varnames[code.co_posonlyargcount : code.co_argcount + code.co_kwonlyargcount]
    return [
        (one if one in named else '') if isinstance(one, str) else placed[one] if one < len(placed) else ''
        for one in positions
    ]


def _same(value: Any) -> Any:
    return value


def _is_beyond(value: int) -> bool:
    return not -_EXACT < value < _EXACT


def unfollowed(how: str) -> errors.UnsupportedCallError:
    """The refusal of a number that the function uses in a way that launches can't repeat."""
    return errors.UnsupportedCallError(
        f'A number among the arguments can not be followed: {how}',
        location=here(),
        rule='It changes from call to call, and only arithmetic with arrays and other numbers can follow it.',
        remedy='Pass it as an array, cp.asarray(value); or leave it, if such calls may run eagerly.',
    )


def _asks(what: str) -> Callable[..., Any]:
    def refuse(_self: Number, *_args: Any, **_kwargs: Any) -> Any:
        raise unfollowed(f'its value decides something ({what})')

    return refuse


def _binary(name: str, ufunc: str, swapped: bool = False) -> Callable[[Number, Any], Any]:
    """An operator. With an array it is CuPy's; with a number it is Python's, and is computed again at each call."""
    plain: Callable[[Any, Any], Any] = getattr(operator, name)

    def operate(self: Number, other: Any) -> Any:
        of = self._of
        of.standing()
        if type(other) is of.cupy.ndarray:
            return getattr(of.cupy, ufunc)(*((other, self) if swapped else (self, other)))
        if type(other) is not Number and type(other) not in TYPES:
            raise unfollowed(f'it meets a {type(other).__name__} ({name})')
        second = other if type(other) is Number else of.constant(other)
        return of.computed(plain, (second, self) if swapped else (self, second))

    return operate


def _compared(name: str, plain: Callable[[Any, Any], bool]) -> Callable[[Number, Any], Any]:
    def compare(self: Number, other: Any) -> Any:
        cupy = self._of.cupy
        self._of.standing()
        if type(other) is cupy.ndarray:
            return getattr(cupy, name)(self, other)
        if type(other) is not Number and type(other) not in TYPES:
            raise unfollowed(f'it is compared with a {type(other).__name__}')
        return self._of.compared(plain, (self, other if type(other) is Number else self._of.constant(other)))

    return compare


def _negated(self: Number) -> Number:
    made: Number = self._of.computed(operator.neg, (self,))
    return made


def _absolute(self: Number) -> Number:
    self._of.standing()
    made: Number = self._of.computed(abs, (self,))
    return made


#: What NumPy's functions ask of a number.
_ASKED: dict[Any, Callable[[float], bool]] = {
    np.isnan: math.isnan, np.isinf: math.isinf, np.isfinite: math.isfinite,
}  # fmt: skip
#: What NumPy asks an object for, before it calls ``__array__``.
_ASKED_BY_NUMPY = ('__array_struct__', '__array_interface__')
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


class _OfOperators:
    """What CuPy's operators find in a number, None, makes them leave the operation to its methods. NumPy finds a
    method in its class, which refuses: else NumPy raised an error of its own, which code may catch."""

    def __get__(self, number: Any, _of: type) -> Any:
        return None if number is not None else _given_to_numpy


def _given_to_numpy(_self: Any, ufunc: Any, method: str, *inputs: Any, **named: Any) -> Any:
    """Answer whether a number is one of NaN or infinity, as NumPy does; refuse everything else."""
    asks = _ASKED.get(ufunc)
    if asks is None or method != '__call__' or named or len(inputs) != 1:
        raise unfollowed(f'it is given to {ufunc.__name__} of NumPy')
    number: Number = inputs[0]
    number._of.standing()
    return np.bool_(number._of.compared(asks, (number,)))


class Number:
    """A number whose value can't be read: only operators use it, on the host and on the device."""

    __slots__ = ('_index', '_now', '_of')
    __array_ufunc__ = _OfOperators()

    def __init__(self, of: Any, index: int, now: Any) -> None:
        self._of = of
        self._index = index
        self._now = now

    def __getattr__(self, name: str) -> Any:
        if name in _ASKED_BY_NUMPY and self._of.goes_into_arrays():
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
        if type(self._now) is not float:
            raise unfollowed('a function of CuPy gets an integer')
        return self._of.array(self, np.dtype('f8'))

    __add__, __radd__ = _binary('add', 'add'), _binary('add', 'add', swapped=True)
    __sub__, __rsub__ = _binary('sub', 'subtract'), _binary('sub', 'subtract', swapped=True)
    __mul__, __rmul__ = _binary('mul', 'multiply'), _binary('mul', 'multiply', swapped=True)
    __truediv__, __rtruediv__ = _binary('truediv', 'true_divide'), _binary('truediv', 'true_divide', swapped=True)
    __floordiv__, __rfloordiv__ = _binary('floordiv', 'floor_divide'), _binary('floordiv', 'floor_divide', swapped=True)
    __mod__, __rmod__ = _binary('mod', 'remainder'), _binary('mod', 'remainder', swapped=True)
    __pow__, __rpow__ = _binary('pow', 'power'), _binary('pow', 'power', swapped=True)
    __neg__, __abs__ = _negated, _absolute
    __eq__, __ne__ = _compared('equal', operator.eq), _compared('not_equal', operator.ne)
    __lt__, __le__ = _compared('less', operator.lt), _compared('less_equal', operator.le)
    __gt__, __ge__ = _compared('greater', operator.gt), _compared('greater_equal', operator.ge)

    __bool__, __int__, __index__ = _asks('bool'), _asks('int'), _asks('an index or a count')
    __float__, __complex__, __hash__ = _asks('float'), _asks('complex'), _asks('hash')
    __str__, __repr__, __format__ = _asks('as text'), _asks('as text'), _asks('as text')

    def __array__(self, *_args: Any, **_named: Any) -> Any:
        """What NumPy puts into an array."""
        if not self._of.goes_into_arrays():
            raise unfollowed('its value decides something (as an array)')
        return self._of.in_array(self)

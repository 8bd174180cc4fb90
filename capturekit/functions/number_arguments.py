"""Numbers among the arguments that are others at nearly each call: their graph reads them from the device's memory.

A number is a part of the kind of a call, as an axis or a count has to be. Where one argument has made some new kinds,
the function is recorded with a :class:`Number` in its place. What is computed from it in Python is computed again for
each call; where it meets an array, the kernel reads it from a place of the graph's. It tells nobody its value: where
somebody asks for that (``if step > 0``, ``range(n)``, ``x[n]``, ``math.sqrt(dt)``), the recording fails, and the number
is a part of the kind again. So nothing but arithmetic can depend on it.
"""

from __future__ import annotations

import operator
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from capturekit.model import errors
from capturekit.model.source_line import here

#: Types of numbers that an argument may have, exactly.
TYPES = (float, int, np.float64, np.float32, np.int64)
#: New values of an argument, each a new kind of call, after which it is taken for a number that changes.
FEW = 3
#: So many numbers may meet arrays in one function; each has eight bytes of the place.
ROOM = 32
_WIDTH = 8
#: Integers beyond are rounded once more on their way to a shorter float than CuPy rounds them.
_EXACT = 1 << 53
#: How a number of a dtype is packed, eight bytes each. Half precision is left out: packing may round it twice.
_CODES = {
    '?': '?7x', 'b': 'b7x', 'B': 'B7x', 'h': 'h6x', 'H': 'H6x', 'i': 'i4x', 'I': 'I4x', 'l': 'q', 'L': 'Q', 'q': 'q',
    'Q': 'Q', 'f': 'f4x', 'd': 'd',
}  # fmt: skip
_Values = Sequence[Any]
Position = int | str


class Unfit(Exception):
    """A call's numbers are not such as the recorded graph can read: the call runs eagerly."""


class NumberArguments:
    """Which arguments of a function are numbers that change from call to call, by position or name."""

    def __init__(self) -> None:
        self.positions: tuple[Position, ...] = ()
        #: Why numbers are parts of the kind all the same; '' where nothing has shown that they must be.
        self.reason = ''
        self._last: dict[Position, Any] = {}
        self._changes: Counter[Position] = Counter()
        self._refused: set[Position] = set()

    def seen(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A call made a new kind."""
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
        """The numbers of a call that are no part of its kind; None where there are none."""
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
        """These are parts of the kind again, for good."""
        self._refused.update(positions)
        self.positions = tuple(one for one in self.positions if one not in self._refused)
        self.reason = self.reason or reason


class Mark:
    """Stands for a number in the form of a call."""

    def __init__(self, kind: type) -> None:
        self.kind = kind

    def __repr__(self) -> str:
        return f'<any {self.kind.__name__}>'


_MARKS = {kind: Mark(kind) for kind in TYPES}


class CallNumbers(NamedTuple):
    """The numbers of one call: whose they are, where they stand, and their values."""

    of: NumberArguments
    positions: tuple[Position, ...]
    values: tuple[Any, ...]

    def marked(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments, without the values of the numbers."""
        return self.replaced(args, kwargs, [_MARKS[type(value)] for value in self.values])

    def replaced(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], by: Sequence[Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments, with other things in the places of the numbers."""
        new, named = list(args), dict(kwargs)
        for position, thing in zip(self.positions, by):
            if isinstance(position, int):
                new[position] = thing
            else:
                named[position] = thing
        return tuple(new), named


def room(cupy: Any) -> Any:
    """The array that brings the numbers of one call to the device."""
    return cupy.ndarray((ROOM * _WIDTH,), 'u1')


class NumberSlots:
    """What of its numbers a recorded graph reads, in order, and from where.

    ``place`` is the graph's copy of what :func:`room` makes; ``values`` are the numbers of the call that is recorded.
    """

    def __init__(self, cupy: Any, place: Any, values: _Values) -> None:
        self.cupy = cupy
        self._place = place
        self._computed: list[Callable[[_Values], Any]] = []
        self._kinds: list[type] = []
        self._types: list[Any] = []
        self._arrays: dict[Any, Any] = {}
        self._struct = struct.Struct('<')
        self.numbers = [
            Number(self, operator.itemgetter(number), value, (number,)) for number, value in enumerate(values)
        ]

    def array(self, number: Number, dtype: Any) -> Any:
        """The array without axes that kernels read a number from, as ``dtype``."""
        made = self._arrays.get((number._key, dtype.char))
        if made is not None:
            return made
        at = len(self._computed)
        if at == ROOM or dtype.char not in _CODES:
            raise asked(f'as {dtype}' if at < ROOM else f'as the {ROOM + 1}st that meets an array')
        self._computed.append(number._computed)
        self._kinds.append(type(number._now))
        self._types.append(dtype)
        self._struct = struct.Struct('<' + ''.join(_CODES[one.char] for one in self._types))
        made = self._arrays[number._key, dtype.char] = self.cupy.ndarray((), dtype, self._place.data + at * _WIDTH)
        return made

    def fill(self, target: Any, values: _Values) -> None:
        """Bring the numbers of a call to the device, on CuPy's current stream. Raises Unfit."""
        if not self._computed:
            return
        try:
            found: list[Any] = [compute(values) for compute in self._computed]
            for value, kind, dtype in zip(found, self._kinds, self._types):
                if type(value) is not kind or (kind is int and dtype.kind == 'f' and _is_beyond(value)):
                    raise Unfit(f'{value!r} is not what was recorded')
            packed = self._struct.pack(*found)
        except (ArithmeticError, ValueError, TypeError, Warning, struct.error) as error:
            raise Unfit(str(error)) from error
        host = np.frombuffer(packed, 'u1')
        stream = self.cupy.cuda.get_current_stream()
        target.data.copy_from_host_async(host.ctypes.data, host.nbytes, stream)

    def ended(self) -> None:
        """The recording has ended: nobody computes with its numbers any more."""
        self.numbers.clear()
        self._arrays.clear()


def _is_beyond(value: Any) -> bool:
    return not -_EXACT < value < _EXACT


def asked(how: str) -> errors.UnsupportedCallError:
    """The refusal of a use that no launch could follow."""
    return errors.UnsupportedCallError(
        f'A number among the arguments, {how}',
        location=here(),
        rule='It changes from call to call, and only arithmetic with arrays and other numbers can follow it.',
        remedy='Nothing, if calls may run eagerly; or pass it as an array: cp.asarray(value).',
    )


def _asks(what: str) -> Callable[..., Any]:
    def refuse(_self: Number, *_args: Any, **_kwargs: Any) -> Any:
        raise asked(f'of which the value is asked ({what})')

    return refuse


def _binary(name: str, ufunc: str, swapped: bool = False) -> Callable[[Number, Any], Any]:
    """An operator: with an array it is CuPy's, with a number Python's own, once more at each call."""
    plain: Callable[[Any, Any], Any] = getattr(operator, name)

    def operate(self: Number, other: Any) -> Any:
        cupy = self._of.cupy
        if issubclass(type(other), cupy.ndarray):
            return getattr(cupy, ufunc)(*((other, self) if swapped else (self, other)))
        if type(other) not in TYPES and type(other) is not Number:
            return NotImplemented
        pair = self, other if type(other) is Number else _constant(self._of, other)
        first, second = reversed(pair) if swapped else pair
        a, b = first._computed, second._computed
        now, key = plain(first._now, second._now), (name, first._key, second._key)
        return Number(self._of, lambda values: plain(a(values), b(values)), now, key)

    return operate


def _constant(of: NumberSlots, value: Any) -> Number:
    """A number that is no argument: every call computes with the same."""
    return Number(of, lambda _values: value, value, (type(value), repr(value)))


def _compared(name: str) -> Callable[[Number, Any], Any]:
    def compare(self: Number, other: Any) -> Any:
        cupy = self._of.cupy
        if issubclass(type(other), cupy.ndarray):
            return getattr(cupy, name)(self, other)
        raise asked('which is compared')

    return compare


def _unary(name: str) -> Callable[[Number], Any]:
    plain: Callable[[Any], Any] = getattr(operator, name)

    def operate(self: Number) -> Any:
        mine = self._computed
        return Number(self._of, lambda values: plain(mine(values)), plain(self._now), (name, self._key))

    return operate


class Number:
    """A number whose value nobody is told. CuPy's universal functions, and Python's operators, go on with it."""

    __slots__ = ('_computed', '_key', '_now', '_of')
    #: NumPy, and CuPy's operators, leave the operation to the methods here.
    __array_ufunc__ = None

    def __init__(self, of: NumberSlots, computed: Callable[[_Values], Any], now: Any, key: Any) -> None:
        if type(now) not in TYPES:
            raise asked(f'from which {key[0]} makes a {type(now).__name__}')
        self._of = of
        self._computed = computed
        self._now = now
        self._key = key

    def __getattribute__(self, name: str) -> Any:
        if name == '__class__':  # isinstance answers as for the number
            return type(object.__getattribute__(self, '_now'))
        return object.__getattribute__(self, name)

    def __getattr__(self, name: str) -> Any:
        if hasattr(type(self._now), name):
            raise asked(f'of which an attribute is asked ({name})')
        raise AttributeError(f'{type(self._now).__name__!r} object has no attribute {name!r}')

    def __cupy_override_elementwise_kernel__(self, kernel: Any, *args: Any, **kwargs: Any) -> Any:
        """CuPy's hook: a kernel was called with this number."""
        cupy = self._of.cupy
        if type(kernel) is not cupy.ufunc:
            raise asked(f'given to the kernel {getattr(kernel, "name", kernel)}')
        return kernel(*[self._of_type(one, args) if type(one) is Number else one for one in args], **kwargs)

    def _of_type(self, number: Number, args: tuple[Any, ...]) -> Any:
        kind = type(number._now)
        if issubclass(kind, np.generic):
            dtype = np.dtype(kind)
        else:
            dtypes = [one.dtype for one in args if type(one) is not Number and hasattr(one, 'dtype')]
            dtype = np.result_type(*dtypes, kind(0))
            if dtype.kind == 'c':
                dtype = np.dtype('f4' if dtype.itemsize == 8 else 'f8')
        return self._of.array(number, dtype)

    __add__, __radd__ = _binary('add', 'add'), _binary('add', 'add', swapped=True)
    __sub__, __rsub__ = _binary('sub', 'subtract'), _binary('sub', 'subtract', swapped=True)
    __mul__, __rmul__ = _binary('mul', 'multiply'), _binary('mul', 'multiply', swapped=True)
    __truediv__, __rtruediv__ = _binary('truediv', 'true_divide'), _binary('truediv', 'true_divide', swapped=True)
    __floordiv__, __rfloordiv__ = _binary('floordiv', 'floor_divide'), _binary('floordiv', 'floor_divide', swapped=True)
    __mod__, __rmod__ = _binary('mod', 'remainder'), _binary('mod', 'remainder', swapped=True)
    __pow__, __rpow__ = _binary('pow', 'power'), _binary('pow', 'power', swapped=True)
    __neg__, __pos__, __abs__ = _unary('neg'), _unary('pos'), _unary('abs')
    __eq__, __ne__ = _compared('equal'), _compared('not_equal')
    __lt__, __le__ = _compared('less'), _compared('less_equal')
    __gt__, __ge__ = _compared('greater'), _compared('greater_equal')

    __bool__, __int__, __index__ = _asks('bool'), _asks('int'), _asks('an index or a count')
    __float__, __complex__ = _asks('float'), _asks('complex')
    __round__, __trunc__, __floor__, __ceil__ = _asks('round'), _asks('trunc'), _asks('floor'), _asks('ceil')
    __divmod__, __rdivmod__ = _asks('divmod'), _asks('divmod')
    __str__, __repr__, __format__ = _asks('as text'), _asks('as text'), _asks('as text')
    __hash__, __array__ = _asks('hash'), _asks('as an array')
    __copy__, __deepcopy__ = _asks('a copy'), _asks('a copy')
    __reduce__, __reduce_ex__ = _asks('a copy'), _asks('a copy')

"""What stands for a number while a function is recorded. Code can't read its value, and only operators and functions
that are known take it: on the host, where each launch computes anew, and on the device, where kernels read it.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Sequence
from types import CodeType, FrameType
from typing import Any

import numpy as np

from capturekit.functions.number_arguments import COMPUTED, TYPES
from capturekit.model import errors
from capturekit.model.source_line import Place, here, is_ours


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


def _binary(name: str, ufunc: str, swapped: bool = False) -> Callable[[Number, Any], Any]:
    """An operator. With an array it is CuPy's; with a number it is Python's, and is computed again at each call."""
    plain: Callable[[Any, Any], Any] = getattr(operator, name)

    def operate(self: Number, other: Any) -> Any:
        of = self._of
        of.standing()
        if type(other) is of.cupy.ndarray:
            return getattr(of.cupy, ufunc)(*((other, self) if swapped else (self, other)))
        if type(other) is not Number and type(other) not in COMPUTED:
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
        if type(other) is not Number and type(other) not in COMPUTED:
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
    numbers = tuple([one if type(one) is Number else of.constant(one) for one in inputs])
    return (of.compared if ufunc in _COMPARING else of.computed)(ufunc, numbers)


class Number:
    """A number whose value can't be read: only operators use it, on the host and on the device."""

    __slots__ = ('_index', '_now', '_of')
    __array_ufunc__ = _OfOperators()

    def __init__(self, of: Any, index: int, now: Any) -> None:
        self._of = of
        self._index = index
        self._now = now

    def __getattr__(self, name: str) -> Any:
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

    __array__ = _asks('as an array')

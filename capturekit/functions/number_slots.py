"""The numbers that a recorded graph reads from the device's memory: where they lie, and how each is computed."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import CodeType, FrameType, FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np

from capturekit.functions.number_arguments import COMPUTED, ROOM, STEPS, WIDTH, NotArithmetic, NumberUses, Unfit
from capturekit.functions.recorded_number import Number, computing_frame, hands_on, unfollowed
from capturekit.model.source_line import Place, is_ours

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Larger integers would be rounded twice on their way to a shorter float, which CuPy does once.
_EXACT = 1 << 53
#: How a number of a dtype is packed, eight bytes each. Half precision is left out: packing may round it twice.
_CODES = {
    '?': '?7x', 'b': 'b7x', 'B': 'B7x', 'h': 'h6x', 'H': 'H6x', 'i': 'i4x', 'I': 'I4x', 'l': 'q', 'L': 'Q', 'q': 'q',
    'Q': 'Q', 'f': 'f4x', 'd': 'd',
}  # fmt: skip
_Values = Sequence[Any]


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
            raise unfollowed(str(error), error.at) from None
        return found

    def compared(self, _plain: Callable[..., bool], _operands: tuple[Number, ...]) -> bool:
        """What comes out of a comparison of numbers."""
        raise unfollowed('it is compared with another number')

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
            with numpys_warnings_raised() if np.float64 in self._kinds else nullcontext():
                found += self._computed(found)
        except ArithmeticError as error:
            raise Unfit(str(error)) from error
        if not all(type(value) is kind for value, kind in zip(found, self._kinds)):
            raise Unfit('a number is of another type than while recording')
        if not self._slots:
            return
        host = in_bytes([(found[index], dtype) for index, dtype in self._slots])
        target.data.copy_from_host_async(host.ctypes.data, host.nbytes, self.cupy.cuda.get_current_stream())

    def _computed(self, values: _Values) -> list[Any]:
        """What is computed of the numbers of a call."""
        found = list(values)
        for plain, indices in self._program:
            found.append(plain(*[found[index] for index in indices]))
        return found[len(values) :]

    def ended(self) -> None:
        """Note that the recording has ended: its numbers refuse to compute from now on."""
        self.numbers.clear()
        self._numbers.clear()
        self._arrays.clear()


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
        own = getattr(fn, '__code__', None)
        head = None if own is None else Place(own.co_filename, own.co_firstlineno, own.co_name)
        raise unfollowed(str(error), error.at or head) from None


def _same(value: Any) -> Any:
    return value


def _is_beyond(value: int) -> bool:
    return not -_EXACT < value < _EXACT

"""A kernel's arguments: the size and contents of each, and the bytes of a Python value in its place.

CuPy passes a scalar as it is, and an array as a structure that begins with its address: the address, the number of
elements, the shape, the strides. A kernel of the user's own that takes a pointer takes the address alone.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from capturekit.model.counted import counted

#: CuPy's dtypes for Python's numbers if a kernel's name does not show them: class, size in bytes.
_PLAIN = ((bool, 1, np.bool_), (int, 8, np.int64), (float, 8, np.float64), (complex, 16, np.complex128))
_WORD = 8


@dataclass(frozen=True)
class Argument:
    """One argument of a kernel's node.

    ``data`` is its bytes, as the node has them. ``dtype`` is a scalar's, or an array's, by name where it is known, and
    else ''. ``array`` is None where it is not known whether the argument is an array. ``reach``: how many bytes an
    array is used from its address on, if its bytes do not tell that.
    """

    data: bytes
    dtype: str = ''
    array: bool | None = None
    reach: int = 0


def encode(argument: Argument, value: Any, is_array: Callable[[Any], bool]) -> bytes:
    """The bytes of ``value`` in the place of an argument: an array, a NumPy scalar, or a number of Python's.

    Raises:
        TypeError: the value is none of these, or an array where a scalar is, or the other way round.
        ValueError: its dtype, its size or the way its elements lie does not fit.
    """
    if is_array(value):
        return _array(argument, value)
    if argument.array:
        raise TypeError(f'the argument is an array, and the value is {type(value).__name__}')
    if not isinstance(value, (bool, int, float, complex, np.generic)):
        raise TypeError(f'expected an array or a number, got {type(value).__name__}')
    return _scalar(argument, value)


def _scalar(argument: Argument, value: Any) -> bytes:
    size = len(argument.data)
    if isinstance(value, np.generic):
        if argument.dtype and value.dtype != argument.dtype:
            raise ValueError(f'the argument is {argument.dtype}, and the value is {value.dtype}')
        data = value.tobytes()
    elif argument.dtype:
        dtype = np.dtype(argument.dtype)
        if not np.can_cast(np.min_scalar_type(value), dtype, 'same_kind'):
            raise ValueError(f'{value!r} is not a valid {argument.dtype}')
        data = np.array(value).astype(dtype).tobytes()
    else:
        dtype = next(np.dtype(t) for kind, _size, t in _PLAIN if isinstance(value, kind))
        data = dtype.type(value).tobytes()
    if len(data) != size:
        raise ValueError(
            f'the argument has {counted(size, "byte")}, and {value!r} has {len(data)}: '
            'give a NumPy scalar of its dtype, such as numpy.float32(2)'
        )
    return data


def _array(argument: Argument, value: Any) -> bytes:
    size = len(argument.data)
    if argument.array is False or size < _WORD:
        raise TypeError('the argument is a scalar, and the value is an array')
    if argument.dtype and value.dtype != argument.dtype:
        raise ValueError(f'the argument is an array of {argument.dtype}, and the value one of {value.dtype}')
    pointer = struct.pack('Q', int(value.data.ptr))
    if size == _WORD:
        return pointer
    words = struct.unpack(f'{size // _WORD}Q', argument.data[: size // _WORD * _WORD])
    ndim, odd = divmod(size - 2 * _WORD, 2 * _WORD)
    if odd or ndim < 0:
        raise ValueError(f'the argument has {counted(size, "byte")}, so it is not an array')
    if words[1] != value.size:
        raise ValueError(f'the argument is an array of {words[1]} elements, and the value has {value.size}')
    step, expected = int(value.itemsize), []
    for length in reversed(words[2 : 2 + ndim]):
        expected.append(step)
        step *= max(length, 1)
    if not value.flags.c_contiguous or (value.size > 1 and list(words[2 + ndim :]) != expected[::-1]):
        raise ValueError('the elements of the argument or of the value do not lie one after the other: record again')
    return pointer + argument.data[_WORD:]

"""Values of kernel arguments as bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from capturekit.driver.kernel_args import Argument, encode


def is_array(value: Any) -> bool:
    return isinstance(value, Fake)


class Fake:
    """What an array is to :func:`encode`."""

    class data:
        ptr = 0x7F00

    def __init__(self, shape: tuple[int, ...], dtype: str = 'f8', contiguous: bool = True) -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.size, self.itemsize = int(np.prod(shape)), self.dtype.itemsize
        self.flags = type('Flags', (), {'c_contiguous': contiguous})


def words(*values: int) -> bytes:
    return np.array(values, 'u8').tobytes()


@pytest.mark.parametrize(
    ('argument', 'value', 'result'),
    [
        (Argument(bytes(8), 'float64', False), 2, np.float64(2).tobytes()),
        (Argument(bytes(4), 'float32', False), 2.5, np.float32(2.5).tobytes()),
        (Argument(bytes(4), 'int32', False), -1, np.int32(-1).tobytes()),
        (Argument(bytes(16), 'complex128', False), 1, np.complex128(1).tobytes()),
        (Argument(bytes(1), 'bool', False), True, b'\x01'),
        (Argument(bytes(8)), 2, np.int64(2).tobytes()),
        (Argument(bytes(8)), 2.0, np.float64(2).tobytes()),
        (Argument(bytes(2)), np.float16(2), np.float16(2).tobytes()),
        (Argument(bytes(8)), Fake((3,)), words(0x7F00)),
        (Argument(words(1, 6, 2, 3, 24, 8), 'float64', True), Fake((6,)), words(0x7F00, 6, 2, 3, 24, 8)),
        (Argument(words(1, 1)), Fake(()), words(0x7F00, 1)),
        (Argument(words(1, 1, 1, 99)), Fake((1,)), words(0x7F00, 1, 1, 99)),
    ],
)
def test_values_in_the_place_of_arguments(argument: Argument, value: Any, result: bytes) -> None:
    assert encode(argument, value, is_array) == result


@pytest.mark.parametrize(
    ('argument', 'value', 'error', 'said'),
    [
        (Argument(bytes(4)), 2.0, ValueError, 'has 4 bytes'),
        (Argument(bytes(4), 'int32', False), 2.5, ValueError, '2.5 is not a valid int32'),
        (Argument(bytes(4), 'int32', False), np.int64(2), ValueError, 'int32, and the value is int64'),
        (Argument(bytes(4), 'int32', False), Fake((1,)), TypeError, 'scalar'),
        (Argument(bytes(4)), Fake((1,)), TypeError, 'scalar'),
        (Argument(words(1, 6, 6, 8), 'float64', True), 2.0, TypeError, 'is an array'),
        (Argument(words(1, 6, 6, 8), 'float64', True), Fake((6,), 'f4'), ValueError, 'float64, and the value one of'),
        (Argument(words(1, 6, 6, 8)), Fake((5,)), ValueError, '6 elements, and the value has 5'),
        (Argument(words(1, 6, 6, 8)), Fake((6,), contiguous=False), ValueError, 'one after the other'),
        (Argument(words(1, 6, 6, 16)), Fake((6,)), ValueError, 'one after the other'),
        (Argument(words(1, 6, 6)), Fake((6,)), ValueError, 'not an array'),
        (Argument(b''), 2.0, ValueError, 'has 0 bytes'),
        (Argument(bytes(8)), [1], TypeError, 'got list'),
    ],
)
def test_values_that_do_not_fit(argument: Argument, value: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        encode(argument, value, is_array)

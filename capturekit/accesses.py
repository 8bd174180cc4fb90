"""What nodes touch: the bytes that a kernel's arrays, a copy's ends and a memset lie in, and which are written.

Two strided arrays may lie in one another and share no byte. Whether they do is asked of NumPy, which solves the
equation exactly (``numpy.shares_memory``) and never looks at what is there.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capturekit.arguments import Argument
from capturekit.errors import CudaCallError
from capturekit.kernels import Forms, Parameter
from capturekit.nodes import NodeInfo, _Memcpy, _Memset
from capturekit.rules import Code

#: Values below are sizes and numbers, not addresses of memory: CUDA's unified addresses lie higher.
_LOWEST = 1 << 32
_WORD = 8
#: How long NumPy may look for a shared byte (its ``max_work``).
_WORK = 100_000
#: CuPy's kernels that find what they read in a table of addresses.
_TABLES = frozenset({'cupy_concatenate', 'cupy_concatenate_same_size', 'cupy_get_memory_ptrs'})
#: No element of CuPy's is larger than a complex number of double precision.
_LARGEST = 16


@dataclass(frozen=True)
class Access:
    """Memory that a node touches: elements of ``itemsize`` bytes at ``address``, in ``shape`` and ``strides`` (bytes).

    Attributes:
        writes: None where it is not known.
        itemsize: 0 where it is only known that the node has the address, and not how far it goes from there.
        exact: False where fewer bytes may be touched than these.
        argument: the number of the kernel's argument; -1 elsewhere.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int
    writes: bool | None
    exact: bool = True
    argument: int = -1

    @property
    def extent(self) -> tuple[int, int]:
        """The first byte and the one after the last."""
        low = high = self.address
        for length, stride in zip(self.shape, self.strides):
            low += min(0, (length - 1) * stride)
            high += max(0, (length - 1) * stride)
        return low, high + max(self.itemsize, 1)

    @property
    def dense(self) -> bool:
        """True if every byte of the extent is touched."""
        low, high = self.extent
        step = self.itemsize
        for stride, length in sorted((abs(s), n) for s, n in zip(self.strides, self.shape) if n > 1):
            if stride > step:
                return False
            step = max(step, stride * (length - 1) + step)
        return step == high - low


@dataclass(frozen=True)
class Touched:
    """What a node touches. ``complete`` is False where it touches more, and nobody knows what."""

    accesses: tuple[Access, ...] = ()
    complete: bool = True


def together(several: Iterable[Touched]) -> Touched:
    """What several nodes touch."""
    several = list(several)
    return Touched(tuple(access for one in several for access in one.accesses), all(one.complete for one in several))


def linear(address: int, nbytes: int, writes: bool | None, exact: bool = True, argument: int = -1) -> Access:
    """Bytes that lie one after the other."""
    return Access(address, (nbytes,), (1,), 1, writes, exact, argument)


def covers(a: Access, b: Access) -> bool:
    """True if ``a`` surely touches every byte of ``b``."""
    if not a.exact:
        return False
    if (a.address, a.shape, a.strides, a.itemsize) == (b.address, b.shape, b.strides, b.itemsize):
        return True
    (low, high), (start, end) = a.extent, b.extent
    return low <= start and end <= high and a.dense


def overlap(a: Access, b: Access) -> bool | None:
    """Whether two accesses share a byte; None where they may."""
    (low, high), (start, end) = a.extent, b.extent
    if low >= end or start >= high:
        return False
    found = True if a.dense and b.dense else _shares(a, b)
    if not found or (a.exact and b.exact):
        return found
    return True if _shares(_least(a), _least(b)) else None


def _least(access: Access) -> Access:
    """What is touched at least, of what may be."""
    if access.exact:
        return access
    if access.itemsize == 1 and len(access.shape) == 1:  # an address, and whatever lies behind it
        return linear(access.address, 1, access.writes)
    return Access(access.address, access.shape, access.strides, 1, access.writes)


def _shares(a: Access, b: Access) -> bool | None:
    try:
        return bool(np.shares_memory(_Fake.of(a), _Fake.of(b), max_work=_WORK))
    except np.exceptions.TooHardError:
        return None


class _Fake:
    """An array of NumPy's over memory that nobody reads."""

    def __init__(self, access: Access) -> None:
        self.__array_interface__ = {
            'version': 3,
            'data': (access.address, True),
            'shape': access.shape,
            'strides': access.strides,
            'typestr': f'|V{access.itemsize}',
        }

    @classmethod
    def of(cls, access: Access) -> NDArray[Any]:
        return np.asarray(cls(access))


# -- what the driver's nodes touch ------------------------------------------------------------------------------


class Accessing:
    """The verb of :class:`capturekit.cuda.CudaDevice` that tells what nodes touch. It needs the driver's library."""

    reader: Any
    _writer: Callable[[], Any]

    def graph_accesses(self, g: int) -> dict[int, Touched]:
        """What each node of a definition touches, by its handle.

        A child graph's node touches what its nodes do; a conditional node, here, nothing. Nobody knows what a host
        function touches.
        """
        if self.reader is None:
            raise CudaCallError(Code.cudaErrorNotSupported, "reading a graph: the driver's library can't be reached")
        return _Walk(self.reader, self._writer()).graph(g)


class _Walk:
    def __init__(self, reader: Any, writer: Any) -> None:
        self.reader = reader
        self.writer = writer
        self.forms = Forms()

    def graph(self, g: int) -> dict[int, Touched]:
        return {info.handle: self._node(info) for info in self.reader.infos(g)}

    def _node(self, info: NodeInfo) -> Touched:
        if info.kind == 'kernel':
            return self._kernel(info)
        if info.kind == 'memcpy':
            return self._memcpy(info.handle)
        if info.kind == 'memset':
            return self._memset(info.handle)
        if info.kind == 'graph':
            return together(self.graph(info.inner).values())
        return Touched((), info.kind != 'host')

    def _kernel(self, info: NodeInfo) -> Touched:
        try:
            arguments = self.writer.arguments(info.handle)
        except CudaCallError:
            return Touched((), False)
        form = self.forms.of(info.name, tuple(_ndim(one.data) for one in arguments))
        return Touched(tuple(kernel_accesses(arguments, form)), info.name not in _TABLES)

    def _memcpy(self, handle: int) -> Touched:
        copy = self.writer.read('cuGraphMemcpyNodeGetParams', handle, _Memcpy())
        width, height, depth = copy.WidthInBytes, max(copy.Height, 1), max(copy.Depth, 1)
        found = []
        for side, writes in (('dst', True), ('src', False)):
            pitch = getattr(copy, side + 'Pitch') or width
            plane = pitch * (getattr(copy, side + 'Height') or height)
            at = int(getattr(copy, side + 'Host') or getattr(copy, side + 'Device') or 0)
            if at:  # not where it is a CUDA array
                found.append(Access(at, (depth, height, width), (plane, pitch, 1), 1, writes))
        return Touched(tuple(found), len(found) == 2)

    def _memset(self, handle: int) -> Touched:
        asked = self.writer.read('cuGraphMemsetNodeGetParams', handle, _Memset())
        width, height = asked.width * asked.elementSize, max(asked.height, 1)
        return Touched((Access(int(asked.dst), (height, width), (asked.pitch or width, 1), 1, True),))


def _ndim(data: bytes) -> int:
    """How many axes an argument of CuPy's has, if it is an array: address, size, shape, strides."""
    ndim, odd = divmod(len(data) - 2 * _WORD, 2 * _WORD)
    return -1 if odd or ndim < 0 else ndim


def kernel_accesses(arguments: Iterable[Argument], form: tuple[Parameter, ...]) -> list[Access]:
    """What a kernel touches that was given these. ``form`` is what is known of its parameters: () for nothing."""
    found: list[Access] = []
    for number, argument in enumerate(arguments):
        parameter = form[number] if form else None
        if argument.array is False or len(argument.data) < _WORD or (parameter is not None and not parameter.memory):
            continue
        writes = None if parameter is None else not parameter.reads_only
        array = _array(argument.data, parameter, writes, number, argument.dtype) if form else None
        if array is not None:
            found.append(array)
            continue
        # CuPy's structures begin with the address; those of libraries have it anywhere
        words = struct.unpack_from(f'{1 if form else len(argument.data) // _WORD}Q', argument.data)
        found += [Access(word, (), (), 0, writes, False, number) for word in words if word >= _LOWEST]
    return found


def _array(data: bytes, parameter: Parameter | None, writes: bool | None, number: int, dtype: str) -> Access | None:
    """An array of CuPy's, from the structure that its kernels take; None if it is none."""
    ndim = _ndim(data)
    if ndim < 0 or parameter is None:
        return None
    words = struct.unpack(f'{len(data) // _WORD}q', data)
    address, size, shape, strides = words[0], words[1], words[2 : 2 + ndim], words[2 + ndim :]
    if address < _LOWEST or size != int(np.prod(shape, dtype=np.int64)) or size < 1:
        return None
    itemsize = parameter.itemsize or (np.dtype(dtype).itemsize if dtype else 0)
    steps = [abs(s) for s, n in zip(strides, shape) if n > 1 and s]
    guess = min([_LARGEST, *steps])
    return Access(address, shape, strides, itemsize or guess, writes, bool(itemsize), number)

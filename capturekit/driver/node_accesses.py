"""The memory that nodes touch: the bytes of a kernel's arrays, of a copy's ends and of a memset, and which are written.

Two strided arrays may overlap in memory and still share no byte. NumPy decides this exactly, by solving an equation
(``numpy.shares_memory``), without reading the memory.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from capturekit.driver.cupy_kernels import Forms, KernelParameter, axes
from capturekit.driver.kernel_args import Argument
from capturekit.driver.node_reader import Described, _Memcpy, _Memset
from capturekit.model.errors import CudaCallError

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Values below are sizes and numbers, not addresses of memory: CUDA's unified addresses lie higher.
LOWEST = 1 << 32
_WORD = 8
#: How much work NumPy may do to find a shared byte (its ``max_work``).
_WORK = 100_000
#: CuPy's kernels that read through a table of addresses.
_TABLES = frozenset({'cupy_concatenate', 'cupy_concatenate_same_size', 'cupy_get_memory_ptrs'})
#: Kinds of nodes that touch no memory.
_IDLE = frozenset(
    {'empty', 'wait event', 'event record', 'semaphore signal', 'semaphore wait', 'mem alloc', 'mem free'}
)
#: ``CU_MEMORYTYPE_HOST``, ``CU_MEMORYTYPE_ARRAY``.
_HOST, _ARRAY = 1, 3
#: No element of CuPy's is larger than a complex number of double precision.
_LARGEST = 16


@dataclass(frozen=True)
class Access:
    """Memory that a node touches: elements of ``itemsize`` bytes at ``address``, in ``shape`` and ``strides`` (bytes).

    Attributes:
        writes: None where it is not known.
        itemsize: 0 where it is only known that the node has the address, and not how far it goes from there.
        exact: False where fewer bytes may be touched than these.
        argument: the number of the kernel's argument; -1 for other nodes. offset: the place of the address in it, in
            bytes.
        sure: memory that is touched at least, where this is not exact; None if none is known.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int
    writes: bool | None
    exact: bool = True
    argument: int = -1
    offset: int = 0
    sure: Access | None = None

    @cached_property
    def extent(self) -> tuple[int, int]:
        """The first byte and the one after the last."""
        low = high = self.address
        for length, stride in zip(self.shape, self.strides):
            low += min(0, (length - 1) * stride)
            high += max(0, (length - 1) * stride)
        return low, high + max(self.itemsize, 1)

    @cached_property
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
    """The accesses of a node. ``complete`` is False where it touches more that is not known."""

    accesses: tuple[Access, ...] = ()
    complete: bool = True

    def stays_in(self, low: int, high: int) -> bool:
        """Whether all that meets [low, high) surely lies within it."""
        if not self.complete:
            return False
        ends = [(one.itemsize, *one.extent) for one in self.accesses]
        return all(size and low <= a and b <= high for size, a, b in ends if a < high and b > low)


def together(several: Iterable[Touched]) -> Touched:
    """The accesses of several nodes together."""
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
    found = _shares(a, b)
    if not found or (a.exact and b.exact):
        return found
    one, other = (access if access.exact else access.sure for access in (a, b))
    return True if one is not None and other is not None and _shares(one, other) else None


def _shares(a: Access, b: Access) -> bool | None:
    (low, high), (start, end) = a.extent, b.extent
    if low >= end or start >= high:
        return False
    if (a.dense and (b.dense or (low <= start and end <= high))) or (b.dense and start <= low and high <= end):
        return True
    try:
        return bool(np.shares_memory(_never_read(a), _never_read(b), max_work=_WORK))
    except np.exceptions.TooHardError:
        return None


def _never_read(access: Access) -> NDArray[Any]:
    """A NumPy array over the memory of an access."""
    where = {'data': (access.address, True), 'shape': access.shape, 'strides': access.strides}
    told = SimpleNamespace(__array_interface__={'version': 3, 'typestr': f'|V{access.itemsize}', **where})
    return np.asarray(told)


# -- what the driver's nodes touch ------------------------------------------------------------------------------


def accesses_of(reader: Any, g: int, only: Collection[int] | None) -> dict[int, Touched]:
    """The accesses of these nodes of a definition, or of all, by handle, found by the driver's library."""
    return _Walk(reader).graph(g, only)


class _Walk:
    def __init__(self, reader: Any) -> None:
        self.reader = reader
        self.forms = Forms()
        self.known: Described = {}

    def graph(self, g: int, only: Collection[int] | None = None) -> dict[int, Touched]:
        return {node: self._node(node) for node in self.reader.handles(g) if only is None or node in only}

    def _node(self, node: int) -> Touched:
        kind = self.reader.kind(node)
        look = {'kernel': self._kernel, 'memcpy': self._memcpy, 'memset': self._memset}.get(kind)
        if look is not None:
            try:
                return look(node)
            except CudaCallError:  # arguments in one buffer, or a copy that this driver does not describe
                return Touched((), False)
        if kind == 'graph':
            return together(self.graph(self.reader.child(node)).values())
        return Touched((), kind in _IDLE)

    def _kernel(self, node: int) -> Touched:
        name, function, arguments = self.reader.kernel(node, self.known)
        sizes = tuple(len(one.data) for one in arguments)
        form = self.forms.of(name, sizes, function)
        known = name not in _TABLES and not any(one.texture for one in form)
        return Touched(tuple(kernel_accesses(arguments, form)), known)

    def _memcpy(self, node: int) -> Touched:
        copy = self.reader.read('cuGraphMemcpyNodeGetParams', node, _Memcpy())
        found = tuple(end for end in (copied(copy, 'dst'), copied(copy, 'src')) if end is not None)
        return Touched(found, len(found) == 2)

    def _memset(self, node: int) -> Touched:
        asked = self.reader.read('cuGraphMemsetNodeGetParams', node, _Memset())
        width, height = asked.width * asked.elementSize, max(asked.height, 1)
        return Touched((Access(int(asked.dst), (height, width), (asked.pitch or width, 1), 1, True),))


def copied(copy: _Memcpy, side: str) -> Access | None:
    """The access of a copy at its end 'dst' or 'src'; None for a CUDA array, whose memory is not known."""
    where, width, height, depth = getattr(copy, side + 'MemoryType'), copy.WidthInBytes, copy.Height, copy.Depth
    at = getattr(copy, side + ('Host' if where == _HOST else 'Device'))
    if where == _ARRAY or not at:
        return None
    pitch = getattr(copy, side + 'Pitch') or width
    plane = pitch * (getattr(copy, side + 'Height') or max(height, 1))
    x, y, z = (getattr(copy, side + name) for name in ('XInBytes', 'Y', 'Z'))
    return Access(
        int(at) + z * plane + y * pitch + x, (max(depth, 1), max(height, 1), width), (plane, pitch, 1), 1, side == 'dst'
    )


def kernel_accesses(arguments: Iterable[Argument], form: tuple[KernelParameter, ...]) -> list[Access]:
    """The accesses of a kernel with these arguments. ``form`` describes its parameters; () if they are not known."""
    found: list[Access] = []
    for number, argument in enumerate(arguments):
        parameter = form[number] if form else None
        if argument.array is False or len(argument.data) < _WORD or (parameter is not None and not parameter.memory):
            continue
        if parameter is None:  # the structures of libraries have addresses anywhere
            words = struct.unpack_from(f'{len(argument.data) // _WORD}Q', argument.data)
            found += [
                Access(word, (), (), 0, None, False, number, _WORD * n)
                for n, word in enumerate(words)
                if word >= LOWEST
            ]
            continue
        array = _array(argument.data, parameter, number, argument.dtype)
        (address,) = struct.unpack_from('Q', argument.data)
        if array is not None:
            found.append(array)
        elif address >= LOWEST and not parameter.number:  # as CUB's kernels take one
            sure = linear(address, 1, _writes(parameter)) if parameter.whole else None
            found.append(Access(address, (), (), 0, _writes(parameter), False, number, sure=sure))
    return found


def _writes(parameter: KernelParameter) -> bool | None:
    return None if parameter.reads_only is None else not parameter.reads_only


def _array(data: bytes, parameter: KernelParameter, number: int, dtype: str) -> Access | None:
    """An array of CuPy's, from the structure that its kernels take; None if it is not one."""
    ndim = axes(len(data))
    if ndim < 0:
        return None
    words = struct.unpack(f'{len(data) // _WORD}q', data)
    address, size, shape, strides = words[0], words[1], words[2 : 2 + ndim], words[2 + ndim :]
    if address < LOWEST or size != math.prod(shape) or size < 1:
        return None
    itemsize, writes = parameter.itemsize or (np.dtype(dtype).itemsize if dtype else 0), _writes(parameter)
    if itemsize and parameter.whole:
        return Access(address, shape, strides, itemsize, writes, True, number)
    steps = [abs(s) for s, n in zip(strides, shape) if n > 1 and s]
    sure = Access(address, shape, strides, itemsize or 1, writes) if parameter.whole else None
    return Access(address, shape, strides, itemsize or min([_LARGEST, *steps]), writes, False, number, sure=sure)

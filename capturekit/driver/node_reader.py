"""The parameters of a graph's nodes: kernel names, arguments, the device addresses among them.

The driver hands out a kernel node's arguments as bytes, and for each kernel where each argument lies. CuPy passes an
array as a structure that begins with its address, a scalar as it is, and names the kernels of its ufuncs after the
types (``cupy_multiply__float32_float_float32``; a scalar's without its size), so that scalars can be read back.
CUDA Driver API, "Graph Management": ``cuGraphKernelNodeGetParams``, ``cuFuncGetParamInfo``.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from capturekit.driver.kernel_args import Argument
from capturekit.driver.vendor_libraries import loaded
from capturekit.model.errors import CudaCallError
from capturekit.model.rules import Code

if TYPE_CHECKING:
    from numpy.typing import NDArray


#: ``CU_STREAM_CAPTURE_STATUS_ACTIVE``.
_ACTIVE = 1


class _Params(ctypes.Structure):
    """``CUDA_KERNEL_NODE_PARAMS_v2``."""

    _fields_ = [
        ('func', ctypes.c_void_p),
        ('grid', ctypes.c_uint * 3),
        ('block', ctypes.c_uint * 3),
        ('shared', ctypes.c_uint),
        ('args', ctypes.POINTER(ctypes.c_void_p)),
        ('extra', ctypes.c_void_p),
        ('kern', ctypes.c_void_p),
        ('ctx', ctypes.c_void_p),
    ]


#: The dtype of a scalar, by its name in a kernel's name and its size. Names of arrays have digits; an array of bools is
#: larger.
_SCALARS = {(str(t).rstrip('0123456789'), t.itemsize): t for t in map(np.dtype, '?bhilBHILefdFD')}


class _Memcpy(ctypes.Structure):
    """``CUDA_MEMCPY3D_v2``."""

    _fields_ = [
        (side + name, kind)
        for side in ('src', 'dst')
        for name, kind in (
            ('XInBytes', ctypes.c_size_t), ('Y', ctypes.c_size_t), ('Z', ctypes.c_size_t), ('LOD', ctypes.c_size_t),
            ('MemoryType', ctypes.c_int), ('Host', ctypes.c_void_p), ('Device', ctypes.c_ulonglong),
            ('Array', ctypes.c_void_p), ('reserved', ctypes.c_void_p), ('Pitch', ctypes.c_size_t),
            ('Height', ctypes.c_size_t),
        )
    ] + [('WidthInBytes', ctypes.c_size_t), ('Height', ctypes.c_size_t), ('Depth', ctypes.c_size_t)]  # fmt: skip


def copy_end(copy: _Memcpy, side: str) -> int:
    """The address of 'dst' or 'src'."""
    host = getattr(copy, side + 'MemoryType') == _HOST
    return int(getattr(copy, side + ('Host' if host else 'Device')) or 0)


class _Memset(ctypes.Structure):
    """``CUDA_MEMSET_NODE_PARAMS_v1``."""

    _fields_ = [
        ('dst', ctypes.c_ulonglong),
        ('pitch', ctypes.c_size_t),
        ('value', ctypes.c_uint),
        ('elementSize', ctypes.c_uint),
        ('width', ctypes.c_size_t),
        ('height', ctypes.c_size_t),
    ]


#: ``CUgraphNodeType``; the runtime's ``cudaGraphNodeType`` has the same numbers.
KINDS = {
    0: 'kernel',
    1: 'memcpy',
    2: 'memset',
    3: 'host',
    4: 'graph',
    5: 'empty',
    6: 'wait event',
    7: 'event record',
    8: 'semaphore signal',
    9: 'semaphore wait',
    10: 'mem alloc',
    11: 'mem free',
    13: 'conditional',
}
#: ``CU_MEMORYTYPE_HOST``.
_HOST = 1


@dataclass(frozen=True)
class NodeInfo:
    """The driver's description of one node.

    ``detail`` has, by name: grid, block, shared (bytes) of kernels; dst, src, bytes of copies; dst, value, bytes of
    memsets. ``words`` may be addresses: those of a kernel's arguments, of a copy's ends. ``inner`` is a child graph.
    """

    handle: int
    kind: str
    name: str = ''
    detail: dict[str, Any] = field(default_factory=dict)
    words: tuple[int, ...] = ()
    inner: int = 0


def _types(name: str, layout: list[tuple[int, int]]) -> dict[int, tuple[str, bool]]:
    """What the name of a CuPy kernel says about its arguments: by number, the dtype and whether it is an array."""
    known = name.startswith('cupy_') and '__' in name
    found: dict[int, tuple[str, bool]] = {}
    for number, word in enumerate(name.rpartition('__')[2].split('_') if known else ()):
        size = layout[number][1] if number < len(layout) else 0
        scalar = _SCALARS.get((word, size))
        if scalar is not None:
            found[number] = (str(scalar), False)
        elif size >= 2 * ctypes.sizeof(ctypes.c_void_p):
            found[number] = (word, True)
    return found


@dataclass
class Kernel:
    """One kernel of a graph: its name, the layout of its arguments, and their bytes in each node."""

    name: str
    layout: list[tuple[int, int]]
    nodes: list[bytes] = field(default_factory=list)
    in_one_piece: bool = False

    def words(self) -> NDArray[np.uint64]:
        """All aligned 8-byte words in all nodes' arguments, each once; not all of them are addresses."""
        size = len(self.nodes[0]) // 8 * 8
        flat = b''.join([node[:size] for node in self.nodes])
        first = self.layout[0][0]
        starts = [(-(-(offset - first) // 8) * 8, offset - first + length) for offset, length in self.layout]
        columns = [at // 8 for start, end in starts for at in range(start, end - 7, 8)]
        return np.unique(np.frombuffer(flat, np.uint64).reshape(len(self.nodes), size // 8)[:, columns])

    def firsts(self) -> set[int]:
        """The first words of all arguments: addresses, where they are arrays of CuPy's.

        The structure in which CuPy passes an index has room for what the kernel computes, and that is never written.
        """
        places = [offset - self.layout[0][0] for offset, size in self.layout if size >= 8]
        return {int.from_bytes(node[at : at + 8], sys.byteorder) for node in self.nodes for at in places}

    def scalars(self) -> Iterable[tuple[int, str, Any]]:
        """Scalars of CuPy's own kernels: (argument's number, dtype, value), once each."""
        first = self.layout[0][0] if self.layout else 0
        for number, (dtype, is_array) in _types(self.name, self.layout).items():
            offset, size = self.layout[number]
            values = () if is_array else {node[offset - first : offset - first + size] for node in self.nodes}
            for value in sorted(values):
                yield number, dtype, np.frombuffer(value, dtype)[0].item()


class _Reading(NamedTuple):
    """What reads the arguments of a kernel's nodes at addresses: where they are, and all bytes from the first one on.

    ``last``: the last argument's number; ``distance``: bytes from the first one to that.
    """

    kernel: Kernel
    addresses_at: Callable[[int], Any]
    bytes_at: Callable[[int], Any]
    last: int
    distance: int

    @classmethod
    def of(cls, kernel: Kernel) -> _Reading:
        layout = kernel.layout or [(0, 0)]
        distance, count = layout[-1][0] - layout[0][0], len(layout)
        whole = ctypes.c_char * (distance + layout[-1][1])
        return cls(kernel, (ctypes.c_size_t * count).from_address, whole.from_address, count - 1, distance)


def _in_one_piece(kernel: Kernel, addresses: Any) -> bool:
    """Whether the arguments of a node lie as far from each other as in the kernel's layout."""
    first = kernel.layout[0][0]
    return all(address - addresses[0] == offset - first for address, (offset, _size) in zip(addresses, kernel.layout))


def _scattered(kernel: Kernel, addresses: Any) -> bytes:
    """The arguments of a node, wherever they lie, as in the kernel's layout."""
    first, (last, size) = kernel.layout[0][0], kernel.layout[-1]
    data = bytearray(last + size - first)
    for address, (offset, size) in zip(addresses, kernel.layout):
        data[offset - first : offset - first + size] = ctypes.string_at(address, size)
    return bytes(data)


#: Names and layouts of kernels.
Described = dict[tuple[int, int], tuple[str, list[tuple[int, int]]]]


def checked(code: int, name: str) -> None:
    """Raise CudaCallError if a call of CUDA's has answered with an error."""
    if code:
        raise CudaCallError(Code(code) if code in set(Code) else code, name)


class Reader:
    """Reads graphs of the driver's. Raises LookupError where the driver's library is not loaded."""

    def __init__(self) -> None:
        #: The driver's library.
        self.library: Any = ctypes.CDLL(loaded('libcuda.so'))
        self._get = self.library.cuGraphKernelNodeGetParams_v2
        self._get.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        #: Whether this driver can be asked by :meth:`last_nodes`.
        self.knows_last = hasattr(self.library, 'cuStreamGetCaptureInfo_v2')

    def call(self, name: str, *args: Any) -> None:
        """Call a function of the driver's. Raises CudaCallError where it answers with an error."""
        checked(int(getattr(self.library, name)(*args)), name)

    def described(self, key: tuple[int, int], known: Described | None = None) -> tuple[str, list[tuple[int, int]]]:
        """Name and layout (offset and size of each argument) of a kernel, by its function and its kernel.

        ``known``: what was asked before in the same look at nodes. It is kept no longer: once a module is unloaded, the
        driver may give another function the handle of one of its functions.
        """
        known = {} if known is None else known
        if key not in known:
            func, kern = key
            handle = ctypes.c_void_p(func or kern)
            prefix = 'cuFunc' if func else 'cuKernel'
            name = ctypes.c_char_p()
            getattr(self.library, f'{prefix}GetName')(ctypes.byref(name), handle)
            layout: list[tuple[int, int]] = []
            offset, size = ctypes.c_size_t(), ctypes.c_size_t()
            ask = getattr(self.library, f'{prefix}GetParamInfo')
            while not ask(handle, ctypes.c_size_t(len(layout)), ctypes.byref(offset), ctypes.byref(size)):
                layout.append((offset.value, size.value))
            known[key] = ((name.value or b'').decode(), layout)
        return known[key]

    def kernels(self, graph: int, first: int = 0) -> tuple[list[Kernel], list[int]]:
        """The kernels of a graph, and the handles of its other nodes, from node number ``first`` on."""
        found: dict[tuple[int, int], _Reading] = {}
        others: list[int] = []
        params, node = _Params(), ctypes.c_void_p()
        reference, get = ctypes.byref(params), self.library['cuGraphKernelNodeGetParams_v2']
        words = memoryview(params).cast('B').cast('Q')  # its fields take half the time so
        func, args, kern = _Params.func.offset // 8, _Params.args.offset // 8, _Params.kern.offset // 8
        for handle in self.handles(graph)[first:]:
            node.value = handle
            if get(node, reference):
                others.append(handle)
                continue
            key = words[func], words[kern]
            reading = found.get(key)
            if reading is None:
                reading = found[key] = _Reading.of(Kernel(*self.described(key)))
            kernel, addresses_at, bytes_at, last, distance = reading
            if kernel.layout and words[args]:
                addresses = addresses_at(words[args])
                if not kernel.nodes:  # the driver keeps a node's arguments in one piece: looked at once
                    kernel.in_one_piece = _in_one_piece(kernel, addresses)
                start = addresses[0]
                if kernel.in_one_piece and addresses[last] - start == distance:
                    kernel.nodes.append(bytes_at(start).raw)
                else:
                    kernel.nodes.append(_scattered(kernel, addresses))
        kernels = [reading.kernel for reading in found.values()]
        return [kernel for kernel in kernels if kernel.nodes], others

    def infos(self, graph: int) -> list[NodeInfo]:
        """The nodes of a graph, in the order in which they were made."""
        known = Described()
        return [self.info(handle, known) for handle in self.handles(graph)]

    def info(self, handle: int, known: Described | None = None) -> NodeInfo:
        """One node. ``known``: as in :meth:`described`."""
        params = _Params()
        if not self._get(handle, ctypes.byref(params)):
            return self._kernel_info(handle, params, known)
        name = self.kind(handle)
        look = {'memcpy': self._memcpy_info, 'memset': self._memset_info}.get(name)
        return look(handle) if look else NodeInfo(handle, name, inner=self.child(handle) if name == 'graph' else 0)

    def child(self, node: int) -> int:
        """The graph in a child graph's node."""
        return self.read('cuGraphChildGraphNodeGetGraph', node, ctypes.c_void_p()).value or 0

    def handles(self, graph: int) -> list[int]:
        """The nodes of a graph, in the order in which they were made."""
        count = ctypes.c_size_t()
        self.library.cuGraphGetNodes(ctypes.c_void_p(graph), None, ctypes.byref(count))
        handles = (ctypes.c_void_p * count.value)()
        self.library.cuGraphGetNodes(ctypes.c_void_p(graph), handles, ctypes.byref(count))
        return [handle or 0 for handle in handles]

    def kind(self, node: int) -> str:
        """``cuGraphNodeGetType``."""
        kind = ctypes.c_int()
        self.call('cuGraphNodeGetType', ctypes.c_void_p(node), ctypes.byref(kind))
        return KINDS.get(kind.value, str(kind.value))

    def read(self, call: str, node: int, into: ctypes.Structure | ctypes.c_void_p) -> Any:
        """A node's parameters, as one of the driver's functions gives them."""
        self.call(call, ctypes.c_void_p(node), ctypes.byref(into))
        return into

    def params(self, node: int, known: Described | None = None) -> tuple[_Params, str, list[tuple[int, int]]]:
        """The parameters of a kernel's node, the kernel's name and its layout."""
        params = self.read('cuGraphKernelNodeGetParams_v2', node, _Params())
        name, layout = self.described((params.func or 0, params.kern or 0), known)
        if layout and not params.args:
            raise CudaCallError(Code.cudaErrorNotSupported, 'cuGraphKernelNodeGetParams: arguments in one buffer')
        return params, name, layout

    def kernel(self, node: int, known: Described | None = None) -> tuple[str, int, list[Argument]]:
        """A kernel's name; the driver's handle of its function, 0 if the node has a library's kernel; its arguments.

        Of CuPy's own kernels what each is, too. ``known``: as in :meth:`described`.
        """
        params, name, layout = self.params(node, known)
        types, sizes = _types(name, layout), enumerate(size for _offset, size in layout)
        found = [Argument(ctypes.string_at(params.args[n], size), *types.get(n, ('', None))) for n, size in sizes]
        return demangled(name), int(params.func or 0), found

    def _kernel_info(self, handle: int, params: _Params, known: Described | None) -> NodeInfo:
        name, layout = self.described((params.func or 0, params.kern or 0), known)
        words: list[int] = []
        for number, (_offset, size) in enumerate(layout if params.args else ()):
            if size >= 8:
                words += struct.unpack(f'{size // 8}Q', ctypes.string_at(params.args[number], size // 8 * 8))
        detail = {'grid': tuple(params.grid), 'block': tuple(params.block), 'shared': params.shared}
        return NodeInfo(handle, 'kernel', demangled(name), detail, tuple(words))

    def _memcpy_info(self, handle: int) -> NodeInfo:
        copy = _Memcpy()
        self.library.cuGraphMemcpyNodeGetParams(ctypes.c_void_p(handle), ctypes.byref(copy))
        ends = {side: copy_end(copy, side) for side in ('dst', 'src')}
        nbytes = copy.WidthInBytes * max(copy.Height, 1) * max(copy.Depth, 1)
        return NodeInfo(handle, 'memcpy', '', {**ends, 'bytes': nbytes}, tuple(ends.values()))

    def _memset_info(self, handle: int) -> NodeInfo:
        asked = _Memset()
        self.library.cuGraphMemsetNodeGetParams(ctypes.c_void_p(handle), ctypes.byref(asked))
        nbytes = asked.elementSize * asked.width * max(asked.height, 1)
        detail = {'dst': int(asked.dst), 'value': int(asked.value), 'bytes': nbytes}
        return NodeInfo(handle, 'memset', '', detail, (int(asked.dst),))

    def last_nodes(self) -> Callable[[int], int]:
        """A function that returns a stream's last node: 0 if there is none; -1 in a lost capture, -2 in none.

        If new work would come after several nodes, as after a join, it returns one of them.
        """
        info, asked, stream, status, last, count = self._asking()

        def now(s: int) -> int:
            stream.value = s
            if info(*asked):
                return -1
            if status.value == _ACTIVE:
                return (last[0] or 0) if count.value else 0
            return -1 if status.value else -2

        return now

    def next_after(self) -> Callable[[int], tuple[int, ...]]:
        """A function that returns the nodes before a stream's next work: (-1,) in a lost capture, (-2,) in none.

        Any thread may call it.
        """
        places: dict[int, tuple[Any, ...]] = {}
        thread = threading.get_ident

        def now(s: int) -> tuple[int, ...]:
            mine = places.get(thread())  # another thread's question would be answered into the same places
            if mine is None:
                mine = places[thread()] = self._asking()
            info, asked, stream, status, last, count = mine
            stream.value = s
            if info(*asked):
                return (-1,)
            if status.value == _ACTIVE:
                found = count.value
                if found == 1:  # as nearly always; a slice takes three times as long
                    return (last[0],)
                return tuple(last[:found]) if found else ()
            return (-1,) if status.value else (-2,)

        return now

    def _asking(self) -> tuple[Any, ...]:
        """The driver's function for a stream's capture state, its arguments, the stream in them, and its results."""
        status, number, graph, count = ctypes.c_int(), ctypes.c_ulonglong(), ctypes.c_void_p(), ctypes.c_size_t()
        last, stream = ctypes.POINTER(ctypes.c_void_p)(), ctypes.c_void_p()
        brought = (status, number, graph, last, count)
        asked = (stream, *(ctypes.byref(one) for one in brought))
        return self.library.cuStreamGetCaptureInfo_v2, asked, stream, status, last, count

    def is_device_memory(self, address: int) -> bool:
        """True for an address inside a live allocation on a device."""
        base, size = ctypes.c_void_p(), ctypes.c_size_t()
        ask = self.library.cuMemGetAddressRange_v2
        return not ask(ctypes.byref(base), ctypes.byref(size), ctypes.c_void_p(address))


@functools.lru_cache(maxsize=4096)
def shortened(name: str) -> str:
    """A C++ kernel's name without its result, templates, arguments and inner namespaces; other names as they are."""
    if not {'<', '('} & set(name):
        return name
    plain, depth = '', 0
    for letter in name.replace('(anonymous namespace)::', ''):
        if letter == '(' and not depth:
            break
        depth += (letter == '<') - (letter == '>')
        plain += letter if not depth and letter != '>' else ''
    parts = plain.split(' ')[-1].split('::')
    return '::'.join(parts if len(parts) < 3 else (parts[0], parts[-1])) or name


@functools.lru_cache(maxsize=4096)
def demangled(name: str) -> str:
    """A C++ kernel's name as in its source code; other names unchanged. (Itanium C++ ABI, ``__cxa_demangle``.)"""
    if not name.startswith('_Z'):
        return name
    try:
        library = ctypes.CDLL('libstdc++.so.6')
    except OSError:
        return name
    demangle, free = library.__cxa_demangle, ctypes.CDLL(None).free
    demangle.restype, demangle.argtypes = ctypes.c_void_p, [ctypes.c_char_p, *[ctypes.c_void_p] * 3]
    free.argtypes = [ctypes.c_void_p]
    found = demangle(name.encode(), None, None, None)
    if not found:
        return name
    try:
        return ctypes.string_at(found).decode()
    finally:
        free(found)

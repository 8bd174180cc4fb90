"""Arrays from outside that a graph reads or writes: kept as long as it lives.

A recorded node holds an address; the array may be dropped at any time, even in the block itself (``x = x * 2``), and
its memory may be handed out again. So the arrays that the user's frames hold when the block is entered are held until
its end; then the addresses among the nodes' arguments are looked up, and the arrays there are kept for the graph. If
the array behind an address in one of CuPy's own kernels is gone, this is reported.
"""

from __future__ import annotations

import ctypes
import os
import sys
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from types import BuiltinFunctionType, CellType, FrameType, ModuleType
from typing import Any

from capturekit.driver.cuda import Platform
from capturekit.driver.node_accesses import LOWEST
from capturekit.driver.node_reader import Reader
from capturekit.launch.graph_memory import GraphMemory
from capturekit.model.cleanup import instances
from capturekit.model.source_line import is_foreign

_WORD = ctypes.sizeof(ctypes.c_void_p)
_get_var = getattr(ctypes.pythonapi, 'PyFrame_GetVar', None)
if _get_var is not None:
    _get_var.restype, _get_var.argtypes = ctypes.py_object, [ctypes.py_object, ctypes.py_object]
#: Types whose objects hold nothing else. Most variables are of these.
_SINGLE = frozenset({int, float, complex, bool, str, bytes, type(None), BuiltinFunctionType})
#: The folders of installed packages; and whether modules are in one, by their files.
_FOLDERS = ('site-packages', 'dist-packages')
_installed: dict[str, bool] = {}
#: Whether a function's variables can be read as ``f_locals``. Before Python 3.13 that keeps all of them alive until the
#: function returns, and writes them into what it may have got from ``locals()``.
_PLAIN = sys.version_info >= (3, 13)
#: A flag of code: a function's, whose variables are not kept in a dictionary.
_OPTIMIZED = 1


def held_by(frame: FrameType | None, array: type) -> list[Any]:
    """The arrays that the variables of a frame and of its callers hold, at most one container deep.

    All arrays of the process where Python can't read frames.
    """
    found: dict[int, Any] = {}
    modules: set[int] = set()
    while frame is not None:
        if not _readable(frame):
            return instances(array)
        values = [*variables_of(frame).values()]
        if id(frame.f_globals) not in modules:
            modules.add(id(frame.f_globals))
            values += list(frame.f_globals.values())
        for value in values:
            if type(value) not in _SINGLE and not (type(value) is ModuleType and is_installed(value)):
                for one in _inside(value, array):
                    found[id(one)] = one
        frame = frame.f_back
    return list(found.values())


def is_installed(module: ModuleType) -> bool:
    """Whether a module is a library's: hundreds of names, of which hardly one is an array that a block drops."""
    file = module.__dict__.get('__file__')
    text = file if type(file) is str else ''
    answer = _installed.get(text)
    if answer is None:
        answer = not text or is_foreign(text) or any(f'{os.sep}{one}{os.sep}' in text for one in _FOLDERS)
        _installed[text] = answer
    return answer


def names_of(frame: FrameType | None, array: type) -> dict[str, Any]:
    """The variables of a frame that are arrays."""
    values = {} if frame is None else variables_of(frame)
    return {name: value for name, value in values.items() if isinstance(value, array)}


def variables_of(frame: FrameType) -> dict[str, Any]:
    """The variables of a frame, read without a trace; none where reading them would keep them alive."""
    if _PLAIN or not frame.f_code.co_flags & _OPTIMIZED:
        return dict(frame.f_locals)
    return dict(_assigned(frame)) if _readable(frame) else {}


def _readable(frame: FrameType) -> bool:
    """Whether a frame's variables can be read without a trace."""
    return _PLAIN or _get_var is not None or not frame.f_code.co_flags & _OPTIMIZED or _slots(frame) is not None


def _assigned(frame: FrameType) -> Iterator[tuple[str, Any]]:
    """The variables of a function that have a value, before Python 3.13."""
    code = frame.f_code
    names = dict.fromkeys((*code.co_varnames, *code.co_cellvars, *code.co_freevars))
    if _get_var is None:
        yield from _in_slots(frame, names)
        return
    for name in names:
        try:
            value = _get_var(frame, name)
        except NameError:  # not assigned yet
            continue
        yield name, value


def _slots(frame: FrameType) -> int | None:
    """Where a frame of Python 3.11 keeps its function's variables; None where it does not look as expected.

    They begin after nine words of the frame's inner frame.
    """
    if sys.version_info >= (3, 12) or sys.implementation.name != 'cpython':
        return None
    words = (ctypes.c_size_t * (FrameType.__basicsize__ // _WORD)).from_address(id(frame))
    code, values = id(frame.f_code), id(frame.f_globals)
    inner = (ctypes.c_size_t * 9).from_address(words[3])
    return words[3] + 9 * _WORD if (inner[4], inner[1], inner[5]) == (code, values, id(frame)) else None


def _in_slots(frame: FrameType, names: Collection[str]) -> Iterator[tuple[str, Any]]:
    """The variables of a frame of Python 3.11, read where they lie."""
    code, start = frame.f_code, _slots(frame)
    assert start is not None
    boxed = {*code.co_cellvars, *code.co_freevars}
    slots = (ctypes.c_size_t * len(names)).from_address(start)
    for name, address in zip(names, slots):
        if not address:
            continue
        value = ctypes.cast(address, ctypes.py_object).value
        if name in boxed and type(value) is CellType:
            with suppress(ValueError):  # not assigned yet
                yield name, value.cell_contents
        else:
            yield name, value


def _inside(value: Any, array: type) -> Iterable[Any]:
    if isinstance(value, array):
        return (value,)
    if type(value) in (list, tuple):
        return [one for one in value if isinstance(one, array)] if len(value) < 1000 else ()
    try:
        inner = value if type(value) is dict else getattr(value, '__dict__', None)
    except Exception:  # a property of the user's, which may raise anything: entering a block must not
        return ()
    if type(inner) is dict and not isinstance(value, type) and len(inner) < 1000:
        return [one for one in list(inner.values()) if isinstance(one, array)]
    return ()


class ArrayBlocks:
    """Memory blocks of arrays, found by any address in them."""

    def __init__(self, arrays: Iterable[Any], memory: GraphMemory | None = None) -> None:
        """``memory``: whose arrays are left out. So is an array that another thread is making: it has no data yet."""
        blocks = {}
        for one in arrays:
            data = one.data
            if data is not None and one.size and not (memory is not None and memory.owns(data.mem)):
                blocks[int(data.mem.ptr)] = data
        self._starts = sorted(blocks)
        self._data = [blocks[start] for start in self._starts]

    def at(self, address: int) -> Any:
        """The memory pointer of an array around an address, or None."""
        found = bisect_right(self._starts, address) - 1
        if found < 0:
            return None
        data = self._data[found]
        return data if address < self._starts[found] + data.mem.size else None


def keep(
    reader: Reader, graphs: Iterable[int], memory: GraphMemory, held: list[Any], array: type, first: int = 0
) -> list[tuple[str, int]]:
    """Keep the arrays from outside that the graph's kernels use; return (kernel, address) of arrays that are gone.

    Only nodes from number ``first`` on count: earlier nodes belong to the graph that was recorded into.
    """
    blocks = ArrayBlocks(held, memory)
    kept: dict[int, Any] = {}
    open_ = {}
    for kernel in [kernel for graph in graphs for kernel in reader.kernels(graph, first)[0]]:
        words = kernel.words()
        for address in words[words > LOWEST].tolist():
            if memory.keeps(address):
                continue
            data = blocks.at(address)
            if data is not None:
                kept[id(data)] = data
            else:
                open_[address] = kernel
    lost = []
    real = {address: kernel for address, kernel in open_.items() if reader.is_device_memory(address)}
    if real:
        everything = ArrayBlocks(instances(array), memory)
        for address, kernel in real.items():
            data = everything.at(address)
            if data is not None:
                kept[id(data)] = data
            elif kernel.name.startswith('cupy_') and address in kernel.firsts():
                lost.append((kernel.name, address))
    for data in kept.values():
        memory.keep(data)
    return lost


def nodes_of(device: Any, graphs: Iterable[int]) -> Iterator[Any]:
    """What is known of the nodes of graphs, and of the graphs in them."""
    todo = list(graphs)
    while todo:
        for info in device.node_infos(todo.pop()):
            yield info
            todo += [info.inner] if info.inner else []


def words_of(device: Any, graphs: Iterable[int]) -> set[int]:
    """All words among the arguments of these nodes."""
    return {word for info in nodes_of(device, graphs) for word in info.words}


def arrays_at(addresses: Iterable[int], memory: GraphMemory, array: type) -> list[Any]:
    """The memory of arrays, outside of the graph's, that any of these words may be an address in."""
    outside = {address for address in addresses if address > LOWEST and not memory.keeps(address)}
    if not outside:
        return []
    blocks = ArrayBlocks(instances(array), memory)
    return list({id(found): found for found in map(blocks.at, outside) if found is not None}.values())


def keep_touched(device: Any, graphs: Iterable[int], memory: GraphMemory, held: list[Any], array: type) -> None:
    """Keep the arrays that nodes of graphs touch: those held, and any other of the process.

    For the simulated device, whose nodes have no arguments.
    """
    touched = [node for graph in graphs for node in device.graph_accesses(graph).values()]
    addresses = {access.address for node in touched for access in node.accesses}
    outside = [address for address in addresses if not memory.holds(address)]

    def around(arrays: Iterable[Any]) -> list[Any]:
        others = (one for one in arrays if one.data is not None and not memory.holds(int(one.data.ptr)))
        return [*map(ArrayBlocks(others).at, outside)]

    found = around(held)
    if None in found:
        found += around(instances(array))
    for data in {int(one.mem.ptr): one for one in found if one is not None}.values():
        memory.keep(data)


def keep_named(addresses: Iterable[int], memory: GraphMemory, array: type) -> None:
    """Keep for the graph the arrays at addresses that a library was given, whose nodes may not show them."""
    for data in arrays_at(addresses, memory, array):
        memory.keep(data)


# -- memory outside of a graph that its parts may change when they run while recording: it is restored afterwards -----


class OutsideMemory:
    """Copies of the memory outside of a graph that its parts may change, made before they run.

    ``besides``: arrays whose memory is not copied.
    """

    def __init__(self, platform: Platform, memory: GraphMemory, besides: Iterable[Any] = ()) -> None:
        self._platform = platform
        self._memory = memory
        self._besides = {int(array.data.mem.ptr) for array in besides}
        #: By address: all of an allocation, in bytes, and its copy.
        self._kept: dict[int, tuple[Any, Any]] = {}

    def keep(self, graphs: Iterable[int]) -> None:
        """Copy, on CuPy's current stream, the memory whose addresses these graphs have, if it is not copied already."""
        words = words_of(self._platform.device, graphs)
        self._keep(arrays_at(words, self._memory, self._platform.cupy.ndarray))

    def keep_arrays(self, arrays: Iterable[Any]) -> None:
        """The same for the memory of arrays."""
        self._keep([array.data for array in arrays if array.size and not self._memory.owns(array.data.mem)])

    def _keep(self, pointers: Iterable[Any]) -> None:
        for data in pointers:
            start = int(data.mem.ptr)
            if start not in self._kept and start not in self._besides:
                block = whole_block(self._platform.cupy, data)
                self._kept[start] = block, block.copy()

    def put_back(self) -> None:
        """Restore the memory. Whoever calls waits for that."""
        kept, self._kept = self._kept, {}
        for block, copy in kept.values():
            block[...] = copy


def whole_block(cupy: Any, data: Any) -> Any:
    """All bytes of the allocation that a pointer lies in, as an array."""
    return cupy.ndarray((int(data.mem.size),), 'u1', data + (int(data.mem.ptr) - int(data.ptr)))

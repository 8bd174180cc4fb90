"""How a NumPy function becomes work on a stream.

On a stream that runs, the function is called at once and its results are put into device memory; on a late device it is
called at once for shapes and dtypes alone, and again when its turn comes. On a stream that is being captured only
shapes and dtypes are found out, by calling it on whatever the operands hold now; the results' memory is filled with
poison, and the recorded work calls the function again at each launch, on what the operands hold then. So code that
looks at a result too early, or a graph that misses an edge, shows wrong numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capturekit.simulated.device.graph_nodes import Given

from . import memory, peers, runtime, runtime_calls
from .current import get_current_stream_ptr
from .layout import Layout, Shape, Slot
from .poison import is_recording

#: The modules that programs see, by name.
public: dict[str, Any] = {}
_SCALARS = (bool, int, float, complex, np.generic)


def from_cuda_array_interface(owner: Any) -> Any:
    """Return an array over another library's device memory; waits for the stream that it names, as CuPy does."""
    description = owner.__cuda_array_interface__
    if description.get('mask') is not None:
        raise ValueError('CuPy currently does not support masked arrays.')
    dtype = np.dtype(description['typestr'])
    shape, strides, ptr = description['shape'], description.get('strides'), description['data'][0]
    if strides is None:
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    else:
        nbytes = max((abs(n * s) for n, s in zip(shape, strides)), default=0)
    # Looked up where programs find them: what is replaced there is honoured, as in CuPy.
    mem = public['cupy.cuda.memory'].UnownedMemory(ptr, nbytes, owner, runtime.getDevice() if nbytes == 0 else -1)
    if description.get('stream') is not None and public['cupy._util'].CUDA_ARRAY_INTERFACE_SYNC:
        runtime.streamSynchronize(description['stream'])
    return Layout.array_class(shape, dtype, memory.MemoryPointer(mem, 0), strides)


def as_array(value: Any) -> Any:
    """Return ``value`` as an array if it is one, or offers device memory; otherwise None."""
    if isinstance(value, Layout):
        return value
    if hasattr(value, '__cuda_array_interface__'):
        return from_cuda_array_interface(value)
    if hasattr(value, '__cupy_get_ndarray__'):
        return value.__cupy_get_ndarray__()
    return None


def lower(value: Any) -> Any:
    """Return ``value`` with every array in it replaced by its :class:`Slot`; host arrays are refused."""
    if type(value) is tuple:
        return tuple([lower(v) for v in value])
    if isinstance(value, np.ndarray):
        raise TypeError(f'Unsupported type {type(value)}')
    if isinstance(value, _SCALARS) or value is None or isinstance(value, (str, slice, type)):
        return value
    array = as_array(value)
    if array is not None:
        peers.check_access(array.data.device_id)
        return array._slot()
    if isinstance(value, (list, tuple)):
        return type(value)(lower(v) for v in value)
    if isinstance(value, dict):
        return {k: lower(v) for k, v in value.items()}
    return value


def lift(value: Any, of: Callable[[Slot], Any] = Slot.view) -> Any:
    """Return ``value`` with every :class:`Slot` replaced by NumPy's view of its elements."""
    if isinstance(value, Slot):
        return of(value)
    if isinstance(value, (list, tuple)):
        return type(value)(lift(v, of) for v in value)
    if isinstance(value, dict):
        return {k: lift(v, of) for k, v in value.items()}
    return value


def _quietly(fn: Callable[..., Any], recipe: Any, of: Callable[[Slot], Any] = Slot.view) -> Any:
    args, kwargs = lift(recipe, of)
    # A GPU raises no floating point warnings.
    with np.errstate(all='ignore'):
        return fn(*args, **kwargs)


def _try(fn: Callable[..., Any], recipe: Any) -> Any:
    try:
        return _quietly(fn, recipe)
    except Exception:
        # Poison as an operand may be refused (an index, say) where the value at launch will not be.
        if not is_recording() and not runtime_calls.is_late():
            raise
    return _quietly(fn, recipe, lambda slot: np.ones(slot.shape, slot.dtype))


def _leaves(result: Any) -> Iterator[NDArray[Any]]:
    if isinstance(result, (list, tuple)):
        for r in result:
            yield from _leaves(r)
    elif result is not None:
        yield np.asarray(result)


def _rebuild(result: Any, arrays: Iterator[Any]) -> Any:
    if isinstance(result, list):
        return [_rebuild(r, arrays) for r in result]
    if isinstance(result, tuple):
        return tuple(_rebuild(r, arrays) for r in result)
    return None if result is None else next(arrays)


def _store(view: NDArray[Any], value: NDArray[Any]) -> None:
    if view.shape != value.shape:
        # A result whose length depends on values: the memory was laid out for the length of that time.
        common = tuple(slice(min(a, b)) for a, b in zip(view.shape, value.shape))
        view, value = view[common], value[common]
    view[...] = value


def _store_all(slots: Iterable[Slot], values: Iterable[NDArray[Any]]) -> None:
    for slot, value in zip(slots, values):
        if 0 not in slot.shape:
            _store(slot.view(), value)


#: Does to each element, or to all of them, what a kernel does: takes values in the place of its arguments.
Each = Callable[[Sequence[Any]], None] | None


def _given(
    args: tuple[Any, ...],
    make: Callable[..., Callable[[], None]],
    writes: Iterable[int] | None,
    beside: Any = (),
    each: Each = None,
    whole: Each = None,
) -> Given:
    """The arguments of a kernel of CuPy's, which decides about its grid itself."""
    values = {'args': args, 'grid': None, 'block': None, 'shared': 0}
    return Given(
        values, make, writes=None if writes is None else frozenset(writes), beside=beside, each=each, whole=whole
    )


def _into(
    recipe: Any,
    slots: Sequence[Slot],
    make: Callable[..., Callable[[], None]],
    whole: Each,
    elementwise: bool,
    opaque: bool = False,
) -> Given:
    """The same, of inputs followed by outputs; ``opaque``: nobody knows which are outputs."""
    count = len(recipe[0])
    writes = None if opaque else range(count, count + len(slots))
    return _given((*recipe[0], *slots), make, writes, recipe[1], whole if elementwise else None, whole)


def _each(fn: Callable[..., Any], recipe: Any, several: bool | None = None) -> Each:
    """How a function works on values; ``several``: whether ``out`` was a tuple, None: there was none."""
    count, kwargs = len(recipe[0]), recipe[1]

    def each(values: Sequence[Any]) -> None:
        outputs = values[count:]
        if several is None:
            found = list(_leaves(_quietly(fn, (values[:count], kwargs))))
        else:
            found = [np.array(one) for one in outputs]
            into = tuple(found) if several else found[0]
            _quietly(lambda *a, **k: fn(*a, **k, out=into), (values[:count], kwargs))
        for output, value in zip(outputs, found):
            output[...] = value

    return each


def launch(
    name: str,
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    out: Any = None,
    shapes: Sequence[Shape] | None = None,
    kind: str = 'kernel',
    elementwise: bool = False,
    opaque: bool = False,
) -> Any:
    """Call the pure function ``fn`` on the device and return its results as arrays.

    ``out`` is passed to ``fn`` as a scratch array and then stored. ``shapes`` fixes the results' shapes, for results
    whose length depends on values. ``elementwise``: each element of the results depends on one of each array.
    ``opaque``: nobody knows which of its arguments the kernel writes, as of kernels of libraries; with ``out``.
    """
    recipe = (lower(tuple(args)), lower(dict(kwargs or {})))
    if out is not None:
        return _launch_into(name, fn, recipe, out, kind, elementwise, opaque)
    result = _try(fn, recipe)
    values = list(_leaves(result))
    derived = [a for a in args if isinstance(a, Layout) and type(a) is not Layout.array_class] if elementwise else []
    arrays = [
        Layout.for_result(v.shape if shapes is None else shapes[i], v.dtype, *derived[:1]) for i, v in enumerate(values)
    ]
    fresh: list[NDArray[Any]] | None = None if runtime_calls.is_late() else values
    slots = [a._slot() for a in arrays]

    def work() -> None:
        nonlocal fresh
        found, fresh = fresh, None
        _store_all(slots, _leaves(_quietly(fn, recipe)) if found is None else found)

    def make(args: tuple[Any, ...], **_shape: Any) -> Callable[[], None]:
        count = len(recipe[0])
        return lambda: _store_all(args[count:], _leaves(_quietly(fn, (args[:count], recipe[1]))))

    del values
    if all(0 in slot.shape for slot in slots):
        return _rebuild(result, iter(arrays))
    given = _into(recipe, slots, make, _each(fn, recipe), elementwise)
    if runtime_calls.submit(get_current_stream_ptr(), work, name, kind, given):
        fresh = None
    return _rebuild(result, iter(arrays))


def _reachable(array: Any) -> Slot:
    peers.check_access(array.data.device_id)
    slot: Slot = array._slot()
    return slot


def _launch_into(
    name: str, fn: Callable[..., Any], recipe: Any, out: Any, kind: str, elementwise: bool, opaque: bool
) -> Any:
    several = isinstance(out, tuple)  # what is submitted must not hold the arrays: a kernel does not
    targets = out if several else (out,)
    if not all(isinstance(target, Layout) for target in targets):
        raise TypeError('Output arguments type must be cupy.ndarray')
    slots = [_reachable(target) for target in targets]

    def compute(*args: Any, **kwargs: Any) -> list[NDArray[Any]]:
        scratch = [np.array(slot.view()) for slot in slots]
        fn(*args, **kwargs, out=tuple(scratch) if several else scratch[0])
        return scratch

    fresh: list[NDArray[Any]] | None = _try(compute, recipe)
    if runtime_calls.is_late():
        fresh = None

    def work() -> None:
        nonlocal fresh
        found, fresh = fresh, None
        for slot, value in zip(slots, _quietly(compute, recipe) if found is None else found):
            slot.view()[...] = value

    def make(args: tuple[Any, ...], **_shape: Any) -> Callable[[], None]:
        inputs, outputs = args[: len(recipe[0])], args[len(recipe[0]) :]

        def again() -> None:
            scratch = [np.array(slot.view()) for slot in outputs]
            into = tuple(scratch) if several else scratch[0]
            _quietly(lambda *a, **k: fn(*a, **k, out=into), (inputs, recipe[1]))
            for slot, value in zip(outputs, scratch):
                slot.view()[...] = value

        return again

    given = _into(recipe, slots, make, _each(fn, recipe, several), elementwise, opaque)
    if runtime_calls.submit(get_current_stream_ptr(), work, name, kind, given):
        fresh = None
    return out


def mutate(
    name: str,
    fn: Callable[..., Any],
    target: Any,
    args: Sequence[Any] = (),
    *,
    rehearse: bool = True,
    kind: str = 'kernel',
    elementwise: bool = False,
) -> None:
    """Run ``fn(view of target, *args)``, which writes into its first argument.

    ``rehearse``: first on a copy, so that wrong shapes raise here and not at the launch. ``elementwise``: it writes
    each element, from one element of each array.
    """
    if target.size == 0:
        return
    peers.check_access(target.data.device_id)
    slot = target._slot()
    recipe: tuple[Any, dict[str, Any]] = (lower(tuple(args)), {})
    fresh: NDArray[Any] | None = None
    if rehearse:
        scratch = np.array(slot.view())
        _try(lambda *a: fn(scratch, *a), recipe)
        fresh = None if runtime_calls.is_late() else scratch

    def work() -> None:
        nonlocal fresh
        if fresh is not None:
            slot.view()[...] = fresh
            fresh = None
        else:
            _quietly(lambda *a: fn(slot.view(), *a), recipe)

    def make(args: tuple[Any, ...], **_shape: Any) -> Callable[[], None]:
        return lambda: _quietly(lambda *a: fn(args[0].view(), *a), (args[1:], {}))

    def each(values: Sequence[Any]) -> None:
        _quietly(lambda *a: fn(values[0], *a), (tuple(values[1:]), {}))

    given = _given((slot, *recipe[0]), make, [0], each=each if elementwise else None)
    if runtime_calls.submit(get_current_stream_ptr(), work, name, kind, given):
        fresh = None


def run(
    name: str,
    fn: Callable[..., Any],
    args: Sequence[Any],
    kind: str = 'kernel',
    grid: tuple[int, ...] = (),
    block: tuple[int, ...] = (),
    shared: int = 0,
) -> None:
    """Run ``fn(grid, block, args)`` on NumPy views of the arrays in ``args``; it writes into whichever it likes."""

    def make(args: tuple[Any, ...], grid: tuple[int, ...], block: tuple[int, ...], shared: int) -> Callable[[], None]:
        return lambda: _quietly(lambda *a: fn(grid, block, a), (args, {}))

    given = Given({'args': lower(tuple(args)), 'grid': grid, 'block': block, 'shared': shared}, make)
    runtime_calls.submit(get_current_stream_ptr(), given.work(), name, kind, given)


def view(fn: Callable[..., Any], array: Any, *args: Any, **kwargs: Any) -> Any:
    """Return ``fn(array, ...)`` for a function that returns views; where NumPy would copy, a copy is launched."""
    slot = array._slot()
    now = slot.view()
    result = fn(now, *args, **kwargs)
    found = [_same_bytes(array, now, v) for v in _leaves(result)]
    if any(v is None for v in found):
        return launch(f'cupy_{fn.__name__}', fn, (array, *args), kwargs)
    return _rebuild(result, iter(found))


def _same_bytes(array: Any, now: NDArray[Any], seen: NDArray[Any]) -> Any:
    """Return the array whose elements are those of ``seen``, a NumPy view taken from ``now``; None if it is a copy."""
    subtype = type(array)
    if now.size == 0 or seen.size == 0:
        return array._view(subtype, array.data.ptr, seen.shape, seen.strides, seen.dtype)
    if not np.may_share_memory(now, seen):
        return None
    ptr = array.data.ptr + (_host_address(seen) - _host_address(now))
    return array._view(subtype, ptr, seen.shape, seen.strides, seen.dtype)


def _host_address(a: NDArray[Any]) -> int:
    address: int = a.__array_interface__['data'][0]
    return address

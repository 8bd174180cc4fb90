"""Random programs of elementwise work: chains over views, dtypes and shapes, with memory that is used again.

A program is drawn as plain data, by a function that chooses one of several things, and is then run as often as
needed: eagerly, recorded, and recorded and fused. It returns what it keeps, and changes some of its inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Choose = Callable[[Sequence[Any]], Any]

ROWS, COLUMNS = 6, 8
UNARY = ('negative', 'absolute', 'sqrt', 'square', 'sign', 'floor', 'isnan', 'logical_not')
BINARY = ('add', 'subtract', 'multiply', 'true_divide', 'maximum', 'minimum', 'less', 'greater_equal', 'not_equal')
#: Functions whose last bits depend on how NumPy goes through memory: for a GPU only.
MORE = ('exp', 'log', 'tanh', 'sin', 'log1p', 'arctan', 'cbrt', 'exp2', 'rint', 'reciprocal', 'expm1')
INTEGERS = ('left_shift', 'right_shift', 'floor_divide', 'remainder', 'bitwise_and', 'bitwise_xor')
#: What random numbers hardly ever are. NaN comes only out of operations: with NaN among the inputs, one byte of the
#: memory of one graph in 2,260 differed on the simulated device; perhaps NumPy keeps the sign of either operand.
SPECIAL = (np.inf, -np.inf, -0.0, 0.0, 1e-310, -1e-40, 3e-8, 6e4, 1e39)
MORE_BINARY = ('power', 'arctan2', 'logaddexp', 'floor_divide', 'remainder', 'copysign', 'fmax')
DTYPES = ('f4', 'f8', 'f2', 'i4', '?', 'i8', 'u1')
NUMBERS = (2, 0.5, -1, 3.25, True, np.float32(1.5), np.float64(0.1), np.int32(3))
VIEWS = ('same', 'rows', 'columns', 'step', 'reverse', 'transposed', 'flat')
REDUCTIONS = ('sum', 'sum', 'mean', 'max', 'min', 'var', 'std', 'prod', 'all')
KINDS = (
    'unary', 'binary', 'binary', 'binary', 'number', 'number', 'where', 'clip', 'cast', 'in place', 'in place', 'out',
    'assign', 'shifted', 'roll', 'roll', 'view', 'drop', 'drop', 'drop', 'copy', 'fill', 'reduce', 'reduce',
    'again', 'integers', 'overlap',
)  # fmt: skip
#: The same with work on single elements, which are parts of other arrays or values of their own, and copies of bytes.
OF_ONE = (
    *KINDS,
    *(('element', 'of elements', 'of elements', 'set element', 'bytes', 'binary', 'binary', 'in place', 'drop') * 3),
)


def draw(
    choose: Choose, more: bool = False, dtypes: Sequence[str] = DTYPES, kinds: Sequence[str] = KINDS
) -> list[tuple[Any, ...]]:
    """A program: steps, each a kind and what it takes, with numbers that count from the last array back."""
    unary, binary = (*UNARY, *(MORE if more else ())), (*BINARY, *(MORE_BINARY if more else ()))
    back = range(1, 8)
    steps: list[tuple[Any, ...]] = []
    for _ in range(choose(range(3, 22))):
        kind = choose(kinds)
        a, b, c = choose(back), choose(back), choose(back)
        extra: dict[str, Callable[[], Any]] = {
            'unary': lambda: choose(unary),
            'binary': lambda: choose(binary),
            'number': lambda: (choose(binary[:5]), choose(NUMBERS)),
            'cast': lambda: choose(dtypes),
            'in place': lambda: choose(('add', 'multiply', 'subtract')),
            'out': lambda: choose(('add', 'multiply', 'maximum')),
            'view': lambda: choose(VIEWS),
            'fill': lambda: choose((1, 0, 2.5)),
            'integers': lambda: choose(INTEGERS),
            'overlap': lambda: choose(('add', 'subtract')),
            'roll': lambda: (choose((0, 1)), choose((1, 2, -1))),
            'element': lambda: choose(('first', 'last')),
            'of elements': lambda: (choose(binary[:5]), choose(('first', 'last')), choose((2, 0.5, 'other', 'other'))),
            'set element': lambda: (choose(('first', 'last')), choose(('set', 'set', 'add'))),
            'bytes': lambda: choose(('new', 'into')),
            'reduce': lambda: (choose(REDUCTIONS), choose((0, 0, 0, 1, -1, None)), choose((True, False))),
        }
        steps.append((kind, a, b, c, extra[kind]() if kind in extra else None))
    steps.append(('keep', choose(range(1, 4)), choose(back), 0, None))
    return steps


def inputs(
    xp: Any, seed: int, dtypes: Sequence[str] = ('f4', 'f8', 'f2', 'i4', '?'), special: bool = False
) -> list[Any]:
    """Arrays of several dtypes, of shapes that broadcast to one, among them views; ``special``: with odd numbers."""
    values = np.random.default_rng(seed)

    def made(shape: tuple[int, ...], dtype: str) -> Any:
        found = values.uniform(-3, 3, shape) + (1j * values.uniform(-3, 3, shape) if np.dtype(dtype).kind == 'c' else 0)
        if special and np.dtype(dtype).kind == 'f':
            at = values.random(shape) < 0.3
            with np.errstate(over='ignore'):
                return xp.asarray(np.where(at, values.choice(SPECIAL, shape), found).astype(dtype))
        return xp.asarray((found > 0) if dtype == '?' else found.astype(dtype))

    full = [made((ROWS, COLUMNS), dtype) for dtype in dtypes]
    wide, tall = made((ROWS, 2 * COLUMNS), dtypes[0]), made((COLUMNS, ROWS), dtypes[0])
    return [*full, made((COLUMNS,), dtypes[0]), made((ROWS, 1), dtypes[0]), wide[:, ::2], tall.T, made((1,), dtypes[0])]


def run(xp: Any, steps: Sequence[tuple[Any, ...]], given: Sequence[Any]) -> list[Any]:
    """Run a program on its inputs, and return what it keeps."""
    arrays = list(given)
    done: tuple[Any, ...] = ()
    for kind, a, b, c, extra in steps:
        one, other, third = (arrays[-1 - (n - 1) % len(arrays)] for n in (a, b, c))
        if kind == 'keep':
            return [*arrays[-a:], other]
        if kind == 'drop':
            if len(arrays) > len(given):
                del arrays[len(given) + (a - 1) % (len(arrays) - len(given))]
            continue
        if kind != 'again':
            done = (kind, one, other, third, extra)
        found = _step(xp, *done) if done else None
        if found is not None:
            arrays.append(found)
    raise AssertionError('a program ends by keeping something')


def _step(xp: Any, kind: str, one: Any, other: Any, third: Any, extra: Any) -> Any:
    if kind == 'unary':
        return getattr(xp, extra)(one if extra in ('isnan', 'logical_not') or one.dtype.kind != 'b' else one + 1)
    if kind == 'binary':
        return _binary(xp, extra, one, other)
    if kind == 'number':
        return _binary(xp, extra[0], one, extra[1])
    if kind == 'where':
        return xp.where(one != 0, other, third) if _fit(one, other, third) else None
    if kind == 'clip':
        return xp.clip(one, 0, 2) if one.dtype.kind not in 'bc' else None
    if kind == 'cast':
        return one.astype(extra) if one.dtype.kind != 'c' or np.dtype(extra).kind == 'c' else None
    if kind == 'copy':
        return one.copy()
    if kind == 'roll':
        return _roll(xp, one, *extra)
    if kind == 'view':
        return _view(one, extra)
    if kind == 'reduce':
        return _reduced(one, *extra)
    if kind == 'integers':
        whole = _fit(one, other) and one.dtype == other.dtype and one.dtype.kind in 'iu'
        return getattr(xp, extra)(one, other) if whole else None
    if kind == 'element':
        return _element(one, extra)
    if kind == 'of elements':
        name, where, by = extra
        return _binary(xp, name, _element(one, where), _element(other, 'first') if by == 'other' else by)
    if kind == 'bytes':
        return _moved(xp, one, other, extra)
    return _change(xp, kind, one, other, third, extra)


def _element(one: Any, where: str) -> Any:
    """A view of the first element or of the last one, with one axis."""
    return one[(slice(0, 1) if where == 'first' else slice(-1, None),) * one.ndim].reshape(-1)[:1]


def _moved(xp: Any, one: Any, other: Any, where: str) -> Any:
    """The bytes of an array that lies in one piece, copied by a node of their own: into a new array or another one."""
    if not one.flags.c_contiguous:
        return None
    if where == 'new':
        found = xp.empty(one.shape, one.dtype)
        found.data.copy_from_device_async(one.data, one.nbytes)
        return found
    apart = one.data.ptr + one.nbytes <= other.data.ptr or other.data.ptr + other.nbytes <= one.data.ptr
    if other.flags.c_contiguous and apart and (one.dtype, one.size) == (other.dtype, other.size):
        other.data.copy_from_device_async(one.data, one.nbytes)
    return None


def _reduced(one: Any, name: str, axis: Any, keepdims: bool) -> Any:
    """A reduction along an axis, or of all elements."""
    if one.dtype.kind == 'c' or one.ndim <= max(axis or 0, 0):
        return None
    return getattr(one, name)(axis=axis, keepdims=keepdims)


def _roll(xp: Any, one: Any, axis: int, shift: int) -> Any:
    """A new array that two copies fill, as ``cupy.roll`` does it."""
    if one.ndim != 2 or one.shape[axis] < 4:
        return None
    found = xp.empty(one.shape, one.dtype)
    to, source = (found, one) if axis == 0 else (found.T, one.T)
    to[shift:], to[:shift] = source[:-shift], source[-shift:]
    return found


def _change(xp: Any, kind: str, one: Any, other: Any, third: Any, extra: Any) -> None:
    """Steps that change an array where it lies."""
    if kind == 'fill':
        one.fill(extra)
    elif kind == 'set element':
        to, of = _element(one, extra[0]), _element(other, 'first')
        if extra[1] == 'set' and not (one.dtype.kind != 'c' and other.dtype.kind == 'c'):
            to[...] = of if of.dtype == to.dtype else of.astype(to.dtype)
        elif extra[1] == 'add' and _takes(to, of):
            xp.add(to, of, to)
    elif kind == 'shifted':
        if one.ndim and one.shape[0] > 1:
            one[1:] = one[:-1].copy()
    elif kind == 'overlap':
        if one.ndim and one.shape[0] > 2 and one.dtype.kind in 'iuf':
            one[1:] = getattr(xp, extra)(one[:-1], one[1:])
    elif kind == 'assign':
        if _shape(one, other) == one.shape and not (one.dtype.kind != 'c' and other.dtype.kind == 'c'):
            one[...] = other.astype(one.dtype) if other.dtype != one.dtype else other
    elif kind == 'in place' and _takes(one, other):
        getattr(xp, extra)(one, other, one)
    elif kind == 'out' and _takes(one, other, third):
        _binary(xp, extra, other, third, one)


def _takes(one: Any, *several: Any) -> bool:
    """Whether an array takes what is computed of others."""
    fits = _shape(one, *several) == one.shape and one.dtype.kind != 'b'
    return fits and np.can_cast(np.result_type(*(x.dtype for x in several)), one.dtype, 'same_kind')


def _binary(xp: Any, name: str, one: Any, other: Any, *out: Any) -> Any:
    kinds = {np.asarray(x).dtype.kind if not hasattr(x, 'dtype') else x.dtype.kind for x in (one, other)}
    if not _fit(one, other) or (kinds == {'b'} and name in ('add', 'multiply', 'true_divide', *MORE_BINARY)):
        return None
    if 'c' in kinds and name not in ('add', 'subtract', 'multiply', 'true_divide', 'not_equal'):
        return None
    if name in ('floor_divide', 'remainder') and not kinds <= {'f'}:
        return None
    if name == 'subtract' and 'b' in kinds:
        return None
    if name == 'power' and kinds != {'f'}:
        return None
    return getattr(xp, name)(one, other, *out)


def _shape(*several: Any) -> tuple[int, ...] | None:
    try:
        return np.broadcast_shapes(*(getattr(one, 'shape', ()) for one in several))
    except ValueError:
        return None


def _fit(*several: Any) -> bool:
    return _shape(*several) is not None


def _view(one: Any, how: str) -> Any:
    if how == 'rows':
        return one[1:] if one.ndim and one.shape[0] > 1 else None
    if how == 'columns':
        return one[..., :-1] if one.ndim and one.shape[-1] > 1 else None
    if how == 'step':
        return one[::2] if one.ndim else None
    if how == 'reverse':
        return one[::-1] if one.ndim else None
    if how == 'transposed':
        return one.T
    if how == 'flat':
        return one.reshape(-1) if one.flags.c_contiguous else None
    return one[...]


def bits(xp: Any, arrays: Sequence[Any]) -> list[bytes]:
    """All bytes of arrays, with their shapes."""
    found = []
    for one in arrays:
        host = np.ascontiguousarray(one.get() if hasattr(one, 'get') else one)
        found.append(repr((host.shape, host.dtype)).encode() + host.tobytes())
    return found


def compared(ck: Any, xp: Any, steps: Sequence[tuple[Any, ...]], seed: int, **kinds: Any) -> tuple[list[bytes], ...]:
    """The bits of a program run eagerly, recorded, and recorded and fused (twice: the first launch is compared).

    Each runs on its inputs and then on others: what a kernel should have written is not there from a run before.
    """
    found = []
    given = inputs(xp, seed, **kinds)
    whole = _whole(given)
    others = [one.copy() for one in _whole(inputs(xp, seed + 1000, **kinds))]
    before = [one.copy() for one in whole]

    def each(work: Callable[[], Any], kept: Sequence[Any] = ()) -> list[bytes]:
        seen = []
        for values in (before, others):
            for one, value in zip(whole, values):
                one[...] = value
            seen += bits(xp, [*(work() or kept), *whole])
        return seen

    found.append(each(lambda: run(xp, steps, given)))
    for fuse in (False, True):
        with ck.capture(fuse=fuse) as cap:
            kept = run(xp, steps, given)
        found.append(each(cap.graph.launch, kept))
        if fuse:
            found.append(each(cap.graph.launch, kept))
            report = cap.fused
        del kept
        cap.graph.close()
    return (*found, report)


def _whole(given: Sequence[Any]) -> list[Any]:
    """The arrays that own the memory of these."""
    return [one if one.base is None else one.base for one in given]

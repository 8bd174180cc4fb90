"""Values of the host that CuPy's compiled code uploads: constants of the graph, whatever the memory was before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import capturekit as ck
from tests.captured import launched, values

#: Calls whose values compiled code uploads.
CALLS = [
    'x.take([2, 0, 0, 1])', 'x.put([0, 2], [5.0, 6.0])', 'x * array([2.0, 0.5, 1.0])',
    'x.take([2, 1]) - x.take([0, 1])', 'x + array([np.ones(3), np.arange(3.0)])',
    "x + array(np.arange(6.0).reshape(2, 3).T[:, :1].T, order='F')",
]  # fmt: skip


@pytest.mark.parametrize('text', CALLS)
def test_what_compiled_code_uploads_is_a_constant(cp: Any, text: str) -> None:
    call = eval(compile(f'lambda x: {text}', __file__, 'eval'), {'np': np, 'array': cp._core.core.array})
    x = cp.arange(3.0) + 1
    with ck.capture() as cap:
        scratch = x * 7  # what comes next lies in memory that an earlier node writes at each launch
        del scratch
        y = call(x)
        z = x * 2
    for n in range(3):
        x[...] = cp.arange(3.0) + n
        like = cp.arange(3.0) + n
        wanted = call(like)
        cap.graph.launch()
        assert cp.asnumpy(z).tolist() == (cp.asnumpy(like) * 2).tolist()
        assert wanted is None or cp.asnumpy(y).tolist() == cp.asnumpy(wanted).tolist()
    steps = [step for step in cap.recording.steps if step.kind == 'constant']
    assert steps and all(
        'of the host uploaded' in step.text and 'test_compiled_uploads.py' in step.at[0] for step in steps
    )


@pytest.mark.parametrize('made', [
    'cp._core.core.array([1.0, 2.0, 3.0])', 'cp.array([1.0, 2.0, 3.0])', 'cp.asarray(np.arange(1.0, 4.0))',
    'cp.asarray([[1.0, 2.0, 3.0]])[0]',
])  # fmt: skip
def test_a_constant_that_is_changed_in_the_block_begins_anew(cp: Any, made: str) -> None:
    x = cp.ones(3)
    with ck.capture() as cap:
        factors = eval(made, {'cp': cp, 'np': np})
        factors += x
        y = factors * 1
    for _ in range(3):
        assert launched(cap, y) == [[2.0, 3.0, 4.0]]


def test_the_callers_own_copy_is_refused_as_ever(cp: Any) -> None:
    host = np.ones(3)
    x = cp.arange(3.0)
    with ck.capture() as cap:
        new = cp.empty(3)
        with pytest.raises(ck.UnsupportedCallError, match='copy_from_host_async'):
            new.data.copy_from_host_async(host.ctypes.data, host.nbytes)
        with pytest.raises(ck.UnsupportedCallError, match='copy_from_host_async'):
            new.data.copy_from_host_async(host.ctypes.data, host.nbytes, cap.stream)
        y = x + 1
    assert launched(cap, y) == [[1.0, 2.0, 3.0]]


def test_events_of_the_users_are_their_own(cp: Any) -> None:
    """A recorded event right behind an upload, in the same line, stands for nodes of the capture."""
    x = cp.arange(3.0)
    side = cp.cuda.Stream(non_blocking=True)
    with ck.capture() as cap:
        a, event = x.take([2, 0]), cap.stream.record()
        side.wait_event(event)
        with side:
            b = a * 2
        cap.stream.wait_event(side.record())
        y = b + 1
    assert len(cap.recording.lanes) == 2
    assert launched(cap, y) == [[5.0, 1.0]]


def test_a_table_of_addresses_is_refused(cp: Any) -> None:
    """A graph would read arrays through it that nobody keeps for it."""
    arrays = [cp.full(3, float(n)) for n in range(12)]
    table = np.array([one.data.ptr for one in arrays], np.int64)
    with ck.capture() as cap:
        with pytest.raises((ck.CaptureError, RuntimeError)):
            cp._core.core.array(table)
        y = arrays[0] + 1
    assert launched(cap, y) == [[1.0, 1.0, 1.0]]


def test_pointers_are_plain_ones_after_the_capture(cp: Any) -> None:
    x = cp.arange(3.0)
    with ck.capture() as cap:
        y = x + 1
    cap.graph.launch()
    y.set(np.full(3, 9.0))
    host = np.full(3, 4.0)
    y.data.copy_from_host(host.ctypes.data, host.nbytes)
    assert y.get().tolist() == [4.0, 4.0, 4.0]
    assert isinstance(y.data, cp.cuda.MemoryPointer) and type(y.data + 8) is cp.cuda.MemoryPointer


@pytest.mark.parametrize('elements', [3, 5000])
@pytest.mark.parametrize('name', ['any', 'all', 'argmax', 'argmin', 'mean', 'sum', 'max', 'prod', 'var'])
def test_reductions_of_whole_arrays(cp: Any, name: str, elements: int) -> None:
    """CUB's, in two passes: the memory between them is a kernel's argument."""
    x = cp.arange(float(elements)) % 7
    wanted = getattr(x, name)()
    out = cp.empty_like(wanted)
    with ck.capture() as cap:
        y = getattr(x, name)()
        getattr(x, name)(out=out)
        z = getattr(x.take([2, 0]), name)()
    cap.graph.launch()
    assert y.get() == wanted.get() == out.get()
    assert z.get() == getattr(x[cp.array([2, 0])], name)().get()


def test_cupys_compiled_code_asks_a_subclass_of_its_pointers() -> None:
    """What all of this rests on; it needs CuPy, and no GPU."""
    cupy = pytest.importorskip('cupy')
    asked: list[Any] = []

    class Pointer(cupy.cuda.MemoryPointer):  # type: ignore[misc,name-defined]
        __slots__ = ()

        def copy_from_host_async(self, *args: Any) -> None:
            asked.append(args)

    memory = cupy.cuda.UnownedMemory(4096, 64, None, 0)
    Pointer(memory, 0).copy_from_async(512, 8, None)
    assert asked == [(512, 8, None)]


#: Many small arrays joined: CuPy's kernel for them reads a table of addresses that it uploads.
JOINED = [
    'cp.concatenate(xs)', 'cp.concatenate(xs, out=cp.empty(3 * len(xs)))', 'cp.stack(xs, axis=1)', 'cp.vstack(xs)',
    'cp.hstack(xs)', 'cp.array([x[1] for x in xs])', 'cp.array([[x, x + 1] for x in xs])',
    "cp.array(xs, dtype='c16', ndmin=4)",
]  # fmt: skip
#: CuPy copies these one by one.
COPIED = "cp.concatenate(xs, dtype='f4', casting='same_kind')"


@pytest.mark.parametrize(('how', 'count'), [*((how, 9) for how in (*JOINED, COPIED)), (JOINED[0], 16), (JOINED[6], 70)])
def test_many_small_arrays_are_joined(cp: Any, how: str, count: int) -> None:
    join, xs = eval(f'lambda xs: {how}', {'cp': cp}), [cp.arange(3.0) + n for n in range(count)]
    with ck.capture() as cap:
        y = join([x * 2 for x in xs])
    for n in range(2):
        xs[count - 1] += n
        wanted = join([x * 2 for x in xs])
        assert launched(cap, y) == [values(wanted)]
        assert (y.dtype, y.flags.f_contiguous, y.shape) == (wanted.dtype, wanted.flags.f_contiguous, wanted.shape)
    assert any('joined 8 at a time' in step.text for step in cap.recording.steps) == (how != COPIED)


def test_arrays_that_do_not_fit_are_refused_by_cupy(cp: Any) -> None:
    with ck.capture() as cap:
        y = cp.ones(3) * 2
        with pytest.raises((ValueError, TypeError, ck.CaptureError)):
            cp.array([[cp.ones(2)] * 9, [cp.ones(2)] * 8])
        with pytest.raises(ValueError):
            cp.concatenate([cp.ones((1, n + 1)) for n in range(9)])
    assert launched(cap, y) == [[2.0] * 3]

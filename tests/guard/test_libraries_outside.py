"""Libraries on a stream that nobody has forked: the error is that work has escaped, and names the user's line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.driver.vendor_libraries import NAMES
from capturekit.guard import watch

HANDLES = {'cublas': 'cublas_handle', 'cusolver': 'cusolver_handle', 'cusparse': 'cusparse_handle'}


class Scene:
    def __init__(self, cp: Any) -> None:
        self.cp, self.a, self.v = cp, cp.eye(4) * 2, cp.ones(4)
        self.out, self.scalar = cp.zeros((4, 4)), cp.empty(())
        self.side = cp.cuda.Stream(non_blocking=True)


#: By library; some with an array for the result, so that no allocation tells first.
CALLS: dict[str, Callable[[Scene], Any]] = {
    'matmul': lambda s: s.cp.matmul(s.a, s.a),
    'matmul out': lambda s: s.cp.matmul(s.a, s.a, out=s.out),
    'operator': lambda s: s.a @ s.a,
    'tensordot': lambda s: s.cp.tensordot(s.a, s.a, 1),
    'dot': lambda s: s.a.dot(s.v),
    'dot out': lambda s: s.cp.dot(s.v, s.v, out=s.scalar),
    'einsum': lambda s: s.cp.einsum('ij,jk->ik', s.a, s.a),
    'norm': lambda s: s.cp.linalg.norm(s.v),
    'solve': lambda s: s.cp.linalg.solve(s.a, s.v),
    'cholesky': lambda s: s.cp.linalg.cholesky(s.a),
    'inv': lambda s: s.cp.linalg.inv(s.a),
    'fft': lambda s: s.cp.fft.fft(s.v),
    'random': lambda s: s.cp.random.random_sample(4),
    'sparse': lambda s: s.sparse @ s.v,  # type: ignore[attr-defined]
    'in place': lambda s: s.cp.add(s.out, 1, out=s.out),
}


def scene(cp: Any) -> Scene:
    from cupyx.scipy.sparse import csr_matrix

    found = Scene(cp)
    found.sparse = csr_matrix(found.a)  # type: ignore[attr-defined]
    for call in CALLS.values():
        call(found)
    found.out.fill(5)
    return found


@contextmanager
def refused(match: str = 'not in the capture') -> Iterator[None]:
    """The block raises EscapedWorkError at a line of this file; what it raised first is not of a library."""
    with pytest.raises(ck.EscapedWorkError, match=match) as found:
        yield
    assert found.value.location is not None and found.value.location.file == __file__
    assert 'unsupported' not in str(found.value)


@pytest.mark.parametrize('name', CALLS)
def test_work_of_a_library_on_a_stream_outside(cp: Any, name: str) -> None:
    s = scene(cp)
    with ck.capture() as cap:
        with refused(f'{s.side.ptr:#x}, which is not in the capture'):
            with s.side:
                CALLS[name](s)
        y = s.a @ s.a
        s.side.wait_event(cap.stream.record())
        with s.side:
            z = s.a @ s.v
        cap.join(s.side)
    cap.graph.launch()
    assert np.array_equal(y.get(), np.eye(4) * 4) and np.array_equal(z.get(), np.full(4, 2.0))
    assert np.array_equal(s.out.get(), np.full((4, 4), 5.0))
    with s.side:
        assert np.allclose(cp.linalg.solve(s.a, s.v).get(), 0.5)


@pytest.mark.parametrize('name', sorted(HANDLES))
def test_a_handle_that_is_given_a_stream_outside(cp: Any, name: str) -> None:
    """Nothing tells that it is captured: no work has escaped yet."""
    s = scene(cp)
    library = sys.modules[f'cupy_backends.cuda.libs.{name}']
    handle = getattr(cp.cuda.Device(), HANDLES[name])
    with ck.capture() as cap:
        with s.side:
            library.setStream(handle, s.side.ptr)
        y = s.a @ s.a
    cap.graph.launch()
    assert np.array_equal(y.get(), np.eye(4) * 4)
    library.setStream(handle, cp.cuda.get_current_stream().ptr)
    assert set(HANDLES) < set(NAMES)


@pytest.mark.parametrize('name', ['matmul out', 'dot out', 'solve'])
def test_in_a_capture_begun_by_hand(cp: Any, name: str) -> None:
    s, stream = scene(cp), cp.cuda.Stream(non_blocking=True)
    x = cp.ones(4)
    with watch(), stream:
        stream.begin_capture()
        with refused():
            with s.side:
                CALLS[name](s)
        with pytest.raises(NotImplementedError, match='unsupported'):  # the captured stream itself: as CuPy has it
            cp.matmul(s.a, s.a, out=s.out)
        x += 1
        graph = stream.end_capture()
        graph.launch()
        stream.synchronize()
    assert x.get().tolist() == [2.0] * 4
    assert np.array_equal(s.out.get(), np.full((4, 4), 5.0))

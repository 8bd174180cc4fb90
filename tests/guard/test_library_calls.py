"""Libraries in a capture: what their nodes touch, where they allocate, and what happens on a stream from outside."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import capturekit as ck
from capturekit.driver import library_accesses
from capturekit.driver.vendor_libraries import NAMES
from tests.captured import flag, launched
from tests.examples import examples
from tests.guard.manual import by_hand
from tests.lanes.test_relane import SAME, quiet

ROOM = 1 << 30


def values(array: Any) -> Any:
    return array.get()


def matrices(cp: Any, count: int, side: int = 8) -> list[Any]:
    return [(cp.arange(float(side * side)) % 5 + n).reshape(side, side) for n in range(count)]


def test_products_are_ordered_by_their_matrices(cp: Any) -> None:
    a, b, c = matrices(cp, 3)
    with ck.capture(lanes='auto', memory_limit=ROOM) as cap:
        first, second = a @ b, a @ c
        both = first @ second
    cap.graph.launch()
    report = cap.relaned
    assert report and report.compared == SAME and not report.fixed and not report.declared
    assert len(report.called) >= 3
    assert report.graphs[0].at_once[1] > 1
    assert "their library's call shows" in str(report)
    want = (values(a) @ values(b)) @ (values(a) @ values(c))
    np.testing.assert_allclose(values(both), want)


def test_what_reads_and_writes_say_is_added(sim: Any) -> None:
    a, b, c = matrices(sim, 3)
    with ck.capture(lanes='auto') as cap:
        with ck.reads(c), ck.writes():
            first = a @ b
        c += 1
        second = a @ b
    assert set(cap.graph.edges) == {(0, 1)}, 'the first product is said to read c as well'
    cap.graph.launch()
    assert values(first).tobytes() == values(second).tobytes()


def test_lanes_by_hand_and_bodies(cp: Any) -> None:
    a, b, c = matrices(cp, 3)
    out = [cp.zeros_like(a) for _ in range(2)]
    with ck.capture() as cap:
        with cap.fork(2) as (left, right):
            with left:
                left_of = a @ b
            with right:
                right_of = a @ c
        with cap.if_(flag(cp)):
            out[0] += left_of
            out[1] += right_of
    assert not cap.graph.races()
    cap.graph.relane()
    cap.graph.launch()
    np.testing.assert_allclose(values(out[0]), values(a) @ values(b))
    np.testing.assert_allclose(values(out[1]), values(a) @ values(c))


@settings(quiet, max_examples=examples(40))
@given(steps=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=9))
def test_random_products_give_equal_bits(cp: Any, steps: list[tuple[int, int, int]]) -> None:
    start = [one % 3 for one in matrices(cp, 4)]
    found = []
    for options in ({}, {'lanes': 'auto', 'memory_limit': ROOM}):
        arrays = [one.copy() for one in start]
        with ck.capture(**options) as cap:
            for to, a, b in steps:
                arrays[to][...] = (arrays[a].T @ arrays[b]) % 7
        for _ in range(2):
            cap.graph.launch()
        found.append([one.get().tobytes() for one in arrays])
        cap.graph.close()
    assert found[0] == found[1]


def test_views_with_other_strides(cp: Any) -> None:
    """A block of a larger matrix: its leading dimension is the larger one's."""
    large = (cp.arange(256.0) % 7).reshape(16, 16)
    with ck.capture(lanes='auto', memory_limit=ROOM) as cap:
        one = large[:8, :8] @ large[8:, 8:]
        large[8:, :8] = 0
        other = large[:8, 8:] @ one
    want = values(large)
    cap.graph.launch()
    whole = want
    np.testing.assert_array_equal(values(other), whole[:8, 8:] @ (whole[:8, :8] @ whole[8:, 8:]))


def test_memory_that_the_call_does_not_show_keeps_the_order(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel of cuBLAS that has an address of other device memory may use what belongs to the library's handle."""
    a, b, c = matrices(sim, 3)
    monkeypatch.setattr(
        'capturekit.guard.libraries.of_cublas',
        lambda name, args: [one for one in library_accesses.of_cublas(name, args) or () if one.address != b.data.ptr],
    )
    with ck.capture(lanes='auto') as cap:
        first, second = a @ b, a @ c
    report = cap.relaned
    assert [node.number for node in report.fixed] == [0] and [node.number for node in report.called] == [1]
    assert not report
    cap.graph.launch()
    np.testing.assert_allclose(values(first), values(a) @ values(b))
    np.testing.assert_allclose(values(second), values(a) @ values(c))


# -- libraries that allocate memory on their stream ----------------------------------------------------------------

CALLS = ['solve', 'inv', 'qr', 'cholesky', 'slogdet', 'tensorsolve']


def matrix(cp: Any) -> Any:
    return cp.asarray(np.eye(3) * 2 + 1)


def called(cp: Any, name: str, a: Any, b: Any) -> Any:
    found = getattr(cp.linalg, name)(a, b) if name.endswith('solve') else getattr(cp.linalg, name)(a)
    return found if isinstance(found, cp.ndarray) else found[1]


def test_nothing_of_the_call_runs_if_the_check_fails(cp: Any) -> None:
    a, b = matrix(cp), cp.ones(3)
    out = cp.zeros(3)

    def work() -> None:
        if float(b[0]) < 2:
            out[...] = cp.linalg.solve(a, b)

    with ck.capture(rehearsal=ck.rehearse(work)) as cap:
        work()
    cap.graph.launch()
    assert np.allclose(out.get(), np.linalg.solve(a.get(), np.ones(3)))
    out.fill(7)
    b.fill(5)
    with pytest.raises(ck.AssumptionError, match=r'test_library_calls\.py'):
        cap.graph.launch()
    assert out.get().tolist() == [7.0] * 3


@pytest.mark.parametrize('name', CALLS)
def test_a_graphed_function(cp: Any, name: str) -> None:
    def work(a: Any, b: Any) -> Any:
        return called(cp, name, a, b) * 2 if float(b[0]) < 2 else b * 7

    fn = ck.graphed(work)
    kept = []
    for first in (1.0, 1.0, 1.0, 5.0, 1.0, 5.0, 5.0):
        b = cp.full(3, first)
        kept.append(fn(matrix(cp), b))
        assert np.allclose(kept[-1].get(), work(matrix(cp), b).get())
    if hasattr(cp, '__capturekit_simulated__'):  # a GPU's kernels may hold words that only look like addresses
        assert sum(variant.launches for variant in fn.variants) >= 2


def test_in_a_branch_of_the_device_it_is_refused(cp: Any) -> None:
    a, b, out, yes = matrix(cp), cp.ones(3), cp.zeros(3), cp.ones((), bool)
    with ck.capture() as cap, cap.if_(yes):
        with pytest.raises(ck.UnsupportedCallError, match='allocate') as raised:
            out[...] = cp.linalg.solve(a, b)
        out += 5
    assert raised.value.location is not None and raised.value.location.function == raised.traceback[0].name
    assert launched(cap, out) == [[5.0] * 3]


def test_with_open_lanes_it_is_refused(cp: Any) -> None:
    a, b = matrix(cp), cp.ones(3)

    def work() -> Any:
        return b * 2 if float(b[0]) < 2 else b

    rehearsal = ck.rehearse(work)
    with ck.capture(rehearsal=rehearsal) as cap:
        y = work()
        with cap.fork(2) as (one, two):
            with one:
                y += 1
            with two, pytest.raises(ck.UnjoinedError, match='allocates memory itself while lanes are open'):
                cp.linalg.solve(a, b)
    assert launched(cap, y) == [[3.0] * 3]


def test_memory_that_is_freed_behind_a_checked_read_is_refused(cp: Any) -> None:
    b = cp.ones(3)
    runtime = cp.cuda.runtime
    pointers: list[int] = []

    def work() -> Any:
        return b * 2 if float(b[0]) < 2 else b

    rehearsal = ck.rehearse(work)
    with pytest.raises(ck.UnsupportedCallError, match=r'mem ?[Ff]ree node behind a host read'):
        with ck.capture(rehearsal=rehearsal):
            stream = cp.cuda.get_current_stream()
            pointers.append(runtime.mallocAsync(64, stream.ptr))
            work()
            runtime.freeAsync(pointers[0], stream.ptr)
    with ck.capture() as cap:
        y = b * 4
    assert launched(cap, y) == [[4.0] * 3]


# -- libraries on a stream that nobody has forked ------------------------------------------------------------------

HANDLES = {'cublas': 'cublas_handle', 'cusolver': 'cusolver_handle', 'cusparse': 'cusparse_handle'}


class Scene:
    def __init__(self, cp: Any) -> None:
        self.cp, self.a, self.v = cp, cp.eye(4) * 2, cp.ones(4)
        self.out, self.scalar = cp.zeros((4, 4)), cp.empty(())
        self.side, self.sparse = cp.cuda.Stream(non_blocking=True), None


#: By library; some with an array for the result, so that no allocation tells first.
OUTSIDE = [
    's.cp.matmul(s.a, s.a)', 's.cp.matmul(s.a, s.a, out=s.out)', 's.a @ s.a', 's.cp.tensordot(s.a, s.a, 1)',
    's.a.dot(s.v)', 's.cp.dot(s.v, s.v, out=s.scalar)', "s.cp.einsum('ij,jk->ik', s.a, s.a)", 's.cp.linalg.norm(s.v)',
    's.cp.linalg.solve(s.a, s.v)', 's.cp.linalg.cholesky(s.a)', 's.cp.linalg.inv(s.a)', 's.cp.fft.fft(s.v)',
    's.cp.random.random_sample(4)', 's.sparse @ s.v', 's.cp.add(s.out, 1, out=s.out)',
]  # fmt: skip


def here(call: str, s: Scene) -> None:
    """Make a call at a line of this file."""
    eval(compile(call, __file__, 'eval'), {'s': s})


def scene(cp: Any) -> Scene:
    from cupyx.scipy.sparse import csr_matrix

    found = Scene(cp)
    found.sparse = csr_matrix(found.a)
    for call in OUTSIDE:
        here(call, found)
    found.out.fill(5)
    return found


@contextmanager
def refused(match: str = 'not in the capture') -> Iterator[None]:
    """The block raises EscapedWorkError at a line of this file; what it raised first is not of a library."""
    with pytest.raises(ck.EscapedWorkError, match=match) as found:
        yield
    assert found.value.location is not None and found.value.location.file == __file__
    assert 'unsupported' not in str(found.value)


@pytest.mark.parametrize('call', OUTSIDE)
def test_work_of_a_library_on_a_stream_outside(cp: Any, call: str) -> None:
    s = scene(cp)
    with ck.capture() as cap:
        with refused(f'{s.side.ptr:#x}, which is not in the capture'):
            with s.side:
                here(call, s)
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


@pytest.mark.parametrize('call', [OUTSIDE[1], OUTSIDE[5], OUTSIDE[8]])
def test_in_a_capture_begun_by_hand(cp: Any, call: str) -> None:
    s, x = scene(cp), cp.ones(4)
    with by_hand(cp) as made:
        with refused():
            with s.side:
                here(call, s)
        with pytest.raises(NotImplementedError, match='unsupported'):  # the captured stream itself: as CuPy has it
            cp.matmul(s.a, s.a, out=s.out)
        x += 1
    made.launch()
    assert x.get().tolist() == [2.0] * 4
    assert np.array_equal(s.out.get(), np.full((4, 4), 5.0))

"""Graphs aimed at other arrays."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import capturekit as ck
from tests.captured import flag, launched, simulated, values
from tests.examples import examples


def test_an_input_and_an_output(cp: Any) -> None:
    x, out = cp.arange(8.0), cp.zeros(8)
    with ck.capture() as cap:
        y = x * 2
        cp.add(y, x, out=out)
    new_x, new_out = cp.arange(8.0) + 10, cp.zeros(8)
    assert launched(cap, out) == [[3.0 * i for i in range(8)]]
    assert cap.graph.rebind((x, new_x), (out, new_out)) == 2
    out.fill(-1)
    assert launched(cap, new_out, out) == [[3.0 * (i + 10) for i in range(8)], [-1.0] * 8]
    assert cap.graph.rebind((new_x, x)) == 2
    assert launched(cap, new_out) == [[3.0 * i for i in range(8)]]


def test_new_arrays_are_kept_and_the_last_ones_dropped(cp: Any) -> None:
    x, out = cp.ones(1 << 14), cp.zeros(1 << 14)
    with ck.capture() as cap:
        cp.multiply(x, 3, out=out)
    held = len(cap.graph._state.memory.held())
    used = cp.get_default_memory_pool().used_bytes
    x = cp.full(1 << 14, 1.0), x
    before = used()
    x = x[1]
    gc.collect()
    for number in range(5):
        new = cp.full(1 << 14, float(number))
        cap.graph.rebind((x, new))
        x = new
        del new
        gc.collect()
        junk = cp.full(1 << 14, 99.0)
        assert launched(cap, out[:1]) == [[3.0 * number]]
        assert values(junk[:1]) == [99.0]
        del junk
        gc.collect()
        assert used() <= before
    del x
    gc.collect()
    assert len(cap.graph._state.memory.held()) == held + 1
    assert launched(cap, out[:1]) == [[12.0]]
    now = used()
    cap.graph.close()
    gc.collect()
    assert used() <= now - 8 * (1 << 14)


def test_what_does_not_fit_is_refused_and_nothing_is_changed(cp: Any) -> None:
    x, y, out = cp.ones(8), cp.full(8, 2.0), cp.zeros(8)
    with ck.capture() as cap:
        cp.add(x, y, out=out)
    big = cp.zeros(16)
    bad: list[tuple[tuple[Any, ...], type[Exception], str]] = [
        (((x, cp.ones(8, 'f4')),), ValueError, 'dtype'),
        (((x, cp.ones(9)),), ValueError, 'shape'),
        (((x, big[::2]),), ValueError, 'strides'),
        (((x, y),), ValueError, 'uses the memory of a new array already'),
        (((cp.zeros(3), cp.zeros(3)),), ValueError, 'no node uses the first array of pair 0'),
        (((x, big[:8]), (cp.zeros(3), cp.zeros(3))), ValueError, 'no node uses the first array of pair 1'),
        (((x, big[:8]), (y, big[4:12])), ValueError, 'two of the new arrays overlap'),
        (((x, big[:8]), (x[2:], big[8:14])), ValueError, 'two of the old arrays overlap'),
        (((x, np.ones(8)),), TypeError, 'pairs of CuPy arrays'),
        ((x, big[:8]), TypeError, 'pairs of CuPy arrays'),
        (((x,),), TypeError, 'pairs of CuPy arrays'),
    ]
    for pairs, error, words in bad:
        with pytest.raises(error, match=words):
            cap.graph.rebind(*pairs)
        assert launched(cap, out) == [[3.0] * 8]
    assert cap.graph.rebind() == 0
    assert launched(cap, out) == [[3.0] * 8]
    cap.graph.close()
    with pytest.raises(ck.ClosedError):
        cap.graph.rebind((x, big[:8]))


def test_a_part_of_an_array_that_is_used_as_a_whole(cp: Any) -> None:
    if cp.cuda.runtime.is_hip or 'simulated' in cp.__version__:
        pytest.skip('only the driver tells how far an argument reaches')
    x, out = cp.arange(8.0), cp.zeros(8)
    with ck.capture() as cap:
        cp.multiply(x, 2, out=out)
    with pytest.raises(ck.UpdateError, match='reaches beyond the end of the old array'):
        cap.graph.rebind((x[:4], cp.zeros(4)))
    with pytest.raises(ck.UpdateError, match='uses the old array and memory before it'):
        cap.graph.rebind((x[4:], cp.zeros(4)))
    assert launched(cap, out) == [[2.0 * i for i in range(8)]]


def test_inside_of_child_graphs_and_bodies_nothing_is_changed(cp: Any) -> None:
    x, out, other = cp.ones(4), cp.zeros(4), cp.ones(4)
    with ck.capture() as child:
        cp.multiply(x, 2, out=out)
    with ck.capture() as cap:
        cap.embed(child.graph)
        other += 1
    with ck.capture() as deciding, deciding.if_(flag(cp)):
        cp.multiply(x, 2, out=out)
    for one in (cap, deciding):
        with pytest.raises(
            ck.UpdateError, match='A child graph, or the body of a conditional node, uses the old array'
        ):
            one.graph.rebind((x, cp.zeros(4)))
    assert cap.graph.rebind((other, cp.full(4, 5.0))) == 1
    assert launched(cap, out, other) == [[2.0] * 4, [1.0] * 4]


def test_another_child_graph_has_other_addresses(cp: Any) -> None:
    x, z, out = cp.ones(4), cp.ones(4), cp.zeros(4)
    children = []
    for source in (x, z):
        with ck.capture() as child:
            cp.multiply(source, 2, out=out)
        children.append(child.graph)
    with ck.capture() as cap:
        cap.embed(children[0])
    with pytest.raises(ck.UpdateError, match='A child graph'):
        cap.graph.rebind((x, cp.zeros(4)))
    cap.graph.set_child(0, children[1])
    with pytest.raises(ValueError, match='no node uses'):
        cap.graph.rebind((x, cp.zeros(4)))
    with pytest.raises(ck.UpdateError, match='A child graph'):
        cap.graph.rebind((z, cp.zeros(4)))
    assert launched(cap, out) == [[2.0] * 4]


@pytest.mark.gpu
def test_kernels_of_ones_own_and_libraries() -> None:
    cp = pytest.importorskip('cupy')
    kernel = cp.RawKernel(
        'extern "C" __global__ void twice(const double* a, double* b, long long n) '
        '{ int i = threadIdx.x; if (i < n) b[i] = 2 * a[i]; }', 'twice',
    )  # fmt: skip
    x, out = cp.arange(8.0), cp.zeros(8)
    with ck.capture() as cap:
        kernel((1,), (32,), (x, out, 8))
    new = cp.arange(8.0) + 1
    cap.graph.rebind((x, new))
    assert launched(cap, out) == [[2.0 * (i + 1) for i in range(8)]]
    a, b = cp.random.random_sample((256, 256), 'f4'), cp.random.random_sample((256, 256), 'f4')
    c = cp.zeros((256, 256), 'f4')
    with ck.capture() as cap:
        cp.matmul(a, b, out=c)
    other = cp.random.random_sample((256, 256), 'f4')
    try:
        cap.graph.rebind((a, other))
    except ck.UpdateError as error:
        assert 'hide addresses' in str(error)
        other = a
    cap.graph.launch()
    assert bool(cp.allclose(c, other @ b, rtol=1e-3))


# -- any program ----------------------------------------------------------------------------------------------------

SLOTS = 4
_slices = st.tuples(st.integers(0, 3), st.integers(1, 3))
_programs = st.lists(
    st.tuples(st.sampled_from(['add', 'copy', 'fill', 'view']), st.integers(0, 3), st.integers(0, 3), _slices),
    min_size=1,
    max_size=6,
)
_moves = st.lists(st.permutations(range(SLOTS + 2)), min_size=1, max_size=4)


def run(cp: Any, program: Any, arrays: list[Any]) -> None:
    for kind, to, of, (start, step) in program:
        if kind == 'add':
            cp.add(arrays[of], 1, out=arrays[to])
        elif kind == 'copy':
            arrays[to][...] = arrays[of]
        elif kind == 'fill':
            arrays[to].fill(start)
        else:
            arrays[to][start::step] = arrays[of][start::step] * 2


@settings(max_examples=examples(60), deadline=None)
@given(program=_programs, moves=_moves)
def test_any_rebinding_equals_a_fresh_recording(program: Any, moves: Any) -> None:
    with simulated() as cp:
        check(cp, program, moves)


@pytest.mark.gpu
@settings(max_examples=examples(40), deadline=None)
@given(program=_programs, moves=_moves)
def test_any_rebinding_equals_a_fresh_recording_on_a_gpu(program: Any, moves: Any) -> None:
    check(pytest.importorskip('cupy'), program, moves)


def check(cp: Any, program: Any, moves: Any) -> None:
    """Slots are aimed at other arrays of a larger set, again and again; the last recording is always a fresh one's."""
    arrays = [cp.arange(12.0) * (n + 1) for n in range(SLOTS + 2)]
    moving = [(kind, to, of) for kind, to, of, _ in program if kind != 'copy' or to != of]  # else CuPy does nothing
    used = {to for _, to, _ in moving} | {of for kind, _, of in moving if kind != 'fill'}
    now = list(range(SLOTS))
    with ck.capture() as cap:
        run(cp, program, [arrays[n] for n in now])
    for permutation in moves:
        to = list(permutation[:SLOTS])
        cap.graph.rebind(*((arrays[now[slot]], arrays[to[slot]]) for slot in sorted(used)))
        now = to
        host = [array.get() for array in arrays]
        run(np, program, [host[n] for n in now])
        cap.graph.launch()
        assert [values(array) for array in arrays] == [array.tolist() for array in host]
    cap.graph.close()

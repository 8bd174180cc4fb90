"""Which bytes accesses share, against sets of bytes; and what the arguments of CuPy's kernels tell."""

from __future__ import annotations

import itertools
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capturekit.accesses import Access, covers, kernel_accesses, linear, overlap
from capturekit.arguments import Argument
from capturekit.kernels import Forms, Parameter

BASE = 0x7F0000000000


@st.composite
def accesses(draw: st.DrawFn, exact: bool = True) -> Access:
    axes = draw(st.integers(0, 3))
    shape = tuple(draw(st.integers(1, 4)) for _ in range(axes))
    strides = tuple(draw(st.integers(-24, 24)) for _ in range(axes))
    itemsize = draw(st.sampled_from([1, 2, 4, 8, 16]))
    at = BASE + draw(st.integers(0, 160))
    return Access(at, shape, strides, itemsize, draw(st.sampled_from([True, False, None])), exact)


def touched(access: Access) -> set[int]:
    """Every byte."""
    found = set()
    for index in itertools.product(*(range(n) for n in access.shape)):
        at = access.address + sum(i * s for i, s in zip(index, access.strides))
        found.update(range(at, at + access.itemsize))
    return found


@given(accesses(), accesses())
def test_overlap_is_a_shared_byte(a, b):
    assert overlap(a, b) is bool(touched(a) & touched(b))
    assert overlap(a, b) is overlap(b, a)


@given(accesses())
def test_the_extent_is_from_the_first_byte_to_the_last(access):
    assert access.extent == (min(touched(access)), max(touched(access)) + 1)


@given(accesses())
def test_dense_means_that_no_byte_is_left_out(access):
    low, high = access.extent
    if access.dense:
        assert touched(access) == set(range(low, high))
    elif all(s >= access.itemsize for s in access.strides) and len(access.shape) == 1:
        assert touched(access) != set(range(low, high))


@given(accesses(), accesses())
def test_what_covers_has_every_byte(a, b):
    if covers(a, b):
        assert touched(b) <= touched(a)


@given(accesses())
def test_each_covers_itself_and_its_whole_extent_covers_it(access):
    low, high = access.extent
    assert covers(access, access)
    assert covers(linear(low, high - low, True), access)
    assert not covers(linear(low, high - low, True, exact=False), access)


def test_every_second_element_is_disjoint_from_the_others():
    even, odd = (Access(BASE + 4 * n, (1000,), (8,), 4, True) for n in (0, 1))
    assert overlap(even, odd) is False
    assert overlap(even, linear(BASE, 8000, True)) is True


@pytest.mark.parametrize(('n', 'found'), [(0, True), (4, None), (8, None)])
def test_of_an_address_alone_it_is_known_that_it_is_used(n, found):
    assert overlap(linear(BASE, 64, None, exact=False), linear(BASE + n, 4, True)) is found


def test_elements_of_a_size_that_is_not_known_share_their_first_bytes_at_least():
    unknown = Access(BASE, (10,), (8,), 8, True, exact=False)
    assert overlap(unknown, Access(BASE, (10,), (8,), 4, True)) is True
    assert overlap(unknown, Access(BASE + 4, (10,), (8,), 4, True)) is None


# -- arguments ------------------------------------------------------------------------------------------------


def array(address: int, *shape: int, strides: tuple[int, ...] | None = None, itemsize: int = 4) -> Argument:
    """An array as CuPy's kernels take it."""
    steps = strides or tuple(np.empty(shape, f'V{itemsize}').strides)
    size = int(np.prod(shape, dtype=int))
    return Argument(struct.pack(f'{2 + 2 * len(shape)}q', address, size, *shape, *steps))


def test_arrays_of_cupys_kernels_have_shapes_and_strides():
    form = (Parameter(True, 4), Parameter(False, 4), Parameter(True, memory=False))
    found = kernel_accesses([array(BASE, 3, 4), array(BASE + 512, 3, 4), Argument(bytes(24))], form)
    assert found == [
        Access(BASE, (3, 4), (16, 4), 4, False, True, 0),
        Access(BASE + 512, (3, 4), (16, 4), 4, True, True, 1),
    ]


def test_an_element_of_unknown_size_is_no_larger_than_the_step_to_the_next():
    (found,) = kernel_accesses([array(BASE, 5, itemsize=2)], (Parameter(True),))
    assert (found.itemsize, found.exact) == (2, False)


def test_a_complex_scalar_is_no_array():
    scalar = Argument(struct.pack('dd', 1.5, 2.5))
    found = kernel_accesses([scalar, array(BASE)], (Parameter(True, 16), Parameter(False, 16)))
    assert [(one.address, one.itemsize) for one in found if one.shape == () and one.itemsize] == [(BASE, 16)]


def test_of_other_kernels_every_word_that_may_be_an_address_is_one():
    words = Argument(struct.pack('4Q', 7, BASE, 1 << 31, BASE + 512))
    found = kernel_accesses([words, Argument(struct.pack('i', 5))], ())
    assert [(one.address, one.itemsize, one.writes, one.argument) for one in found] == [
        (BASE, 0, None, 0), (BASE + 512, 0, None, 0),
    ]  # fmt: skip


# -- CuPy's kernels -------------------------------------------------------------------------------------------


@pytest.fixture(scope='module')
def forms() -> Forms:
    pytest.importorskip('cupy', reason='CuPy is not installed')
    return Forms()


@pytest.mark.parametrize(
    ('name', 'ndims', 'reads', 'sizes'),
    [
        ('cupy_add__float32_float32_float32', (1, 1, 1, -1), (1, 1, 0), (4, 4, 4)),
        ('cupy_multiply__float64_float_float64', (2, -1, 2, -1), (1, 1, 0), (8, 0, 8)),
        ('cupy_copy__complex128_complex64', (1, 1, -1), (1, 0), (16, 8)),
        ('cupy_where__bool_int64_int64_int64', (1, 1, 1, 1, -1), (1, 1, 1, 0), (1, 8, 8, 8)),
        ('cupy_add_where__int32_int32_bool_int32', (1, 1, 1, 1, -1), (1, 1, 1, 0), (4, 4, 1, 4)),
        ('cupy_divmod__int64_int64_int64_int64', (1, 1, 1, 1, -1), (1, 1, 0, 0), (8, 8, 8, 8)),
        ('cupy_sum', (1, 0, -1, -1, -1), (1, 0), (0, 0)),
        ('cupy_cub_sum', (-1, -1, -1, -1), (1, 0), (0, 0)),
        ('cupy_cub_sum_pass1', (-1, -1, -1, -1), (1, 0), (0, 0)),
    ],
)
def test_what_cupys_kernels_only_read(forms, name, ndims, reads, sizes):
    form = forms.of(name, ndims)
    assert len(form) == len(ndims)
    assert tuple(one.reads_only for one in form[: len(reads)]) == tuple(map(bool, reads))
    assert tuple(one.itemsize for one in form[: len(sizes)]) == sizes
    assert not any(one.memory and not one.reads_only for one in form[len(reads) :])


def test_indexers_hold_no_address(forms):
    assert [one.memory for one in forms.of('cupy_add__int8_int8_int8', (1, 1, 1, -1))] == [True, True, True, False]


def test_a_kernel_of_the_users_is_known_while_it_lives():
    cupy = pytest.importorskip('cupy', reason='CuPy is not installed')
    kernel = cupy.ElementwiseKernel('T x, raw float32 w', 'T y', 'y = x * w[0]', 'of_mine')
    form = Forms().of('of_mine', (1, 1, 1, -1))
    assert [(one.reads_only, one.itemsize, one.memory) for one in form] == [
        (True, 0, True), (True, 4, True), (False, 0, True), (True, 0, False),
    ]  # fmt: skip
    assert kernel.name == 'of_mine'


def test_two_kernels_of_one_name_that_differ_are_not_trusted():
    cupy = pytest.importorskip('cupy', reason='CuPy is not installed')
    one = cupy.ElementwiseKernel('T x, T w', 'T y', 'y = x + w', 'twice_there')
    other = cupy.ElementwiseKernel('T x', 'T w, T y', 'y = x; w = x', 'twice_there')
    assert [p.reads_only for p in Forms().of('twice_there', (1, 1, 1, -1))] == [True, False, False, True]
    assert (one.nin, other.nin) == (2, 1)


def test_other_names_and_other_counts_are_not_known(forms):
    assert forms.of('ampere_sgemm_64x64', (-1,)) == ()
    assert forms.of('cupy_add__float32_float32_float32', (1, 1)) == ()

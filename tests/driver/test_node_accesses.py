"""Which bytes accesses share, against sets of bytes; and what the arguments of CuPy's kernels tell."""

from __future__ import annotations

import gc
import itertools
import struct
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capturekit.driver import cupy_kernels
from capturekit.driver.cupy_kernels import Forms, KernelParameter
from capturekit.driver.kernel_args import Argument
from capturekit.driver.node_accesses import Access, copied, covers, kernel_accesses, linear, overlap
from capturekit.driver.node_reader import _Memcpy
from tests.frozen import frozen, thawed

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


@pytest.mark.parametrize(('n', 'found'), [(0, None), (8, True), (12, None), (64, False)])
def test_accesses_of_unknown_extent_share_only_what_is_sure(n, found):
    somewhere = Access(BASE, (64,), (1,), 1, None, exact=False, sure=linear(BASE + 8, 1, True))
    assert overlap(somewhere, linear(BASE + n, 4, True)) is found
    assert overlap(linear(BASE, 64, None, exact=False), linear(BASE + n, 4, True)) is (False if n == 64 else None)


def test_a_node_of_which_nothing_is_known_overlaps_with_all():
    everything = linear(0, 1 << 62, True)
    assert overlap(everything, Access(BASE, (1000,), (8,), 4, True)) is True
    assert overlap(Access(BASE, (3, 5), (-64, 8), 4, True), everything) is True


# -- arguments ------------------------------------------------------------------------------------------------


def array(address: int, *shape: int, strides: tuple[int, ...] | None = None, itemsize: int = 4) -> Argument:
    """An array as CuPy's kernels take it."""
    steps = strides or tuple(np.empty(shape, f'V{itemsize}').strides)
    size = int(np.prod(shape, dtype=int))
    return Argument(struct.pack(f'{2 + 2 * len(shape)}q', address, size, *shape, *steps))


def test_arrays_of_cupys_kernels_have_shapes_and_strides():
    form = (KernelParameter(True, 4), KernelParameter(False, 4), KernelParameter(True, memory=False))
    found = kernel_accesses([array(BASE, 3, 4), array(BASE + 512, 3, 4), Argument(bytes(24))], form)
    assert found == [
        Access(BASE, (3, 4), (16, 4), 4, False, True, 0),
        Access(BASE + 512, (3, 4), (16, 4), 4, True, True, 1),
    ]


def test_an_element_of_unknown_size_is_at_most_its_stride():
    (found,) = kernel_accesses([array(BASE, 5, itemsize=2)], (KernelParameter(True),))
    assert (found.itemsize, found.exact, found.sure) == (2, False, Access(BASE, (5,), (2,), 1, False))


def test_every_word_of_an_unknown_kernel_may_be_an_address():
    words = Argument(struct.pack('4Q', 7, BASE, 1 << 31, BASE + 512))
    found = kernel_accesses([words, Argument(struct.pack('i', 5))], ())
    assert [(one.address, one.itemsize, one.writes, one.argument, one.offset) for one in found] == [
        (BASE, 0, None, 0, 8), (BASE + 512, 0, None, 0, 24),
    ]  # fmt: skip
    assert all(one.sure is None for one in found)  # it may begin anywhere behind the address


def test_of_cubs_kernels_the_first_byte_is_sure():
    form = (
        KernelParameter(True),
        KernelParameter(False),
        KernelParameter(True, memory=False),
        KernelParameter(True, memory=False),
    )
    addresses = [Argument(struct.pack('Q', at)) for at in (BASE, BASE + 512)]
    found = kernel_accesses([*addresses, Argument(bytes(4)), Argument(bytes(4))], form)
    assert [(one.writes, one.sure) for one in found] == [
        (False, linear(BASE, 1, False)), (True, linear(BASE + 512, 1, True)),
    ]  # fmt: skip


def test_of_a_raw_argument_nothing_is_sure():
    form = (KernelParameter(False, 4, whole=False),)
    (found,) = kernel_accesses([array(BASE, 8)], form)
    assert (found.exact, found.sure, found.writes, found.extent) == (False, None, True, (BASE, BASE + 32))
    assert overlap(found, linear(BASE, 4, True)) is None


def test_copies_of_rectangles_begin_at_their_corner():
    copy = _Memcpy(
        srcMemoryType=2, srcDevice=BASE, srcXInBytes=16, srcY=2, srcZ=1, srcPitch=64, srcHeight=10,
        dstMemoryType=1, dstHost=BASE + 8192, dstPitch=32, WidthInBytes=8, Height=3, Depth=2,
    )  # fmt: skip
    assert copied(copy, 'src') == Access(BASE + 640 + 128 + 16, (2, 3, 8), (640, 64, 1), 1, False)
    assert copied(copy, 'dst') == Access(BASE + 8192, (2, 3, 8), (96, 32, 1), 1, True)
    copy.srcMemoryType = 3  # a CUDA array; what else the structure holds means nothing
    assert copied(copy, 'src') is None


# -- CuPy's kernels -------------------------------------------------------------------------------------------


#: Sizes of arguments: arrays and indices of no, one and two axes.
A0, A1, A2 = 16, 32, 48
I0, I1, I2 = 8, 24, 40


@pytest.fixture(scope='module')
def cupy() -> Any:
    return pytest.importorskip('cupy', reason='CuPy is not installed')


@pytest.fixture(scope='module')
def forms(cupy) -> Forms:
    with thawed():  # CuPy's kernels are found among the collector's objects
        found = Forms()
        assert found.of('cupy_sum', (A1, A0, I1, I0, 4))
    return found


@pytest.mark.parametrize(
    ('name', 'given', 'reads', 'sizes'),
    [
        ('cupy_add__float32_float32_float32', (A1, A1, A1, I1), (1, 1, 0), (4, 4, 4)),
        ('cupy_multiply__float64_float_float64', (A2, 8, A2, I2), (1, 1, 0), (8, 0, 8)),
        ('cupy_copy__complex128_complex64', (A1, A1, I1), (1, 0), (16, 8)),
        ('cupy_where__bool_int64_int64_int64', (A1, A1, A1, A1, I1), (1, 1, 1, 0), (1, 8, 8, 8)),
        ('cupy_add_where__int32_int32_bool_int32', (A1, A1, A1, A1, I1), (1, 1, 1, 0), (4, 4, 1, 4)),
        ('cupy_divmod__int64_int64_int64_int64', (A1, A1, A1, A1, I1), (1, 1, 0, 0), (8, 8, 8, 8)),
        ('cupy_sum', (A1, A0, I1, I0, 4), (1, 0), (0, 0)),
        ('cupy_cub_sum', (8, 8, 4, 4), (1, 0), (0, 0)),
        ('cupy_cub_sum_pass1', (8, 8, 4, 4), (1, 0), (0, 0)),
    ],
)
def test_what_cupys_kernels_only_read(forms, name, given, reads, sizes):
    form = forms.of(name, given)
    assert len(form) == len(given)
    assert tuple(one.reads_only for one in form[: len(reads)]) == tuple(map(bool, reads))
    assert tuple(one.itemsize for one in form[: len(sizes)]) == sizes
    assert not any(one.memory and not one.reads_only for one in form[len(reads) :])


def test_kernels_that_modules_have_are_found_after_a_freeze(forms):
    del forms
    cases = {
        'cupy_add__float32_float32_float32': (A1, A1, A1, I1),
        'cupy_copy__complex128_complex64': (A1, A1, I1),
        'cupy_where__bool_int64_int64_int64': (A1, A1, A1, A1, I1),
        'cupy_sum': (A1, A0, I1, I0, 4),
    }
    with frozen():
        assert [name for name, given in cases.items() if not Forms().of(name, given)] == []


def test_kernels_are_looked_for_once_for_each_function(cupy, monkeypatch):
    monkeypatch.setattr(cupy_kernels, '_FOUND', {})
    monkeypatch.setattr(Forms, '_remembered', 0)
    looks, look = [], cupy_kernels._objects
    monkeypatch.setattr(cupy_kernels, '_objects', lambda: looks.append(1) or look())
    kernel = cupy.ElementwiseKernel('T x', 'T y', 'y = x', 'another')
    with monkeypatch.context() as there:
        compile_as(there, kernel, 91, np.float32, np.float32)
        for times in (1, 1):
            assert Forms().of('cupy_sum', (A1, A0, I1, I0, 4), 90) and len(looks) == times
        assert Forms().of('cupy_sum', (A1, A0, I1, I0, 4), 92) and len(looks) == 2
    assert Forms().of('cupy_sum', (A1, A0, I1, I0, 4), 90) and len(looks) == 3  # functions are gone


def test_a_kernel_of_the_users_is_known_while_it_lives(cupy):
    kernel = cupy.ElementwiseKernel('T x, raw float32 w', 'T y', 'y = x * w[0]', 'of_mine')
    form = Forms().of('of_mine', (A1, A1, A1, I1))
    assert [(one.reads_only, one.itemsize, one.memory) for one in form] == [
        (True, 0, True), (True, 4, True), (False, 0, True), (True, 0, False),
    ]  # fmt: skip
    assert kernel.name == 'of_mine'


def test_numbers_and_textures_are_told_apart(cupy, monkeypatch):
    for number, dtype in enumerate((np.float64, np.int64, None)):
        kernel = cupy.ElementwiseKernel('T x, U a', 'T y', 'y = x + a', f'takes_{number}')
        compile_as(monkeypatch, kernel, 80 + number, np.float32, dtype, np.float32)
    forms = Forms()
    found = [forms.of(f'takes_{n}', (A1, 8, A1, I1), 80 + n)[1] for n in range(3)]
    assert [(one.number, one.texture) for one in found] == [(True, False), (False, False), (False, True)]


class _Info:
    """As CuPy's own about an argument."""

    def __init__(self, dtype):
        self.dtype = dtype
        self.ndim = 1


def compile_as(patch: pytest.MonkeyPatch, kernel: Any, function: int, *dtypes: Any) -> None:
    """Let CuPy remember a function for a kernel, as it does when it has compiled one."""
    made = sys.modules['cupy._core._kernel']._get_elementwise_kernel
    (scope,) = [one for one in gc.get_referents(made) if type(one).__module__ == 'cupy._util']
    (memo,) = [one for one in gc.get_referents(scope) if type(one) is dict]
    infos = tuple(_Info(dtype) for dtype in (*dtypes, None))
    key = (0, (infos, None, kernel.params, kernel.operation, kernel.name, ''))
    patch.setitem(memo, key, SimpleNamespace(ptr=function))


def test_a_dropped_kernel_is_known_by_its_function(cupy, monkeypatch):
    kernel = cupy.ElementwiseKernel('raw T x', 'T y', 'y += x[0]', 'nobodys')
    compile_as(monkeypatch, kernel, 77, np.float32, np.float32)
    del kernel
    forms = Forms()
    assert forms.of('nobodys', (A1, A1, I1)) == ()
    found = forms.of('nobodys', (A1, A1, I1), 77)
    assert [(one.reads_only, one.itemsize, one.whole) for one in found] == [
        (True, 4, False),
        (False, 4, True),
        (True, 0, True),
    ]


def test_two_kernels_of_one_name_that_differ_are_not_trusted(cupy):
    one = cupy.ElementwiseKernel('T x, T w', 'T y', 'y = x + w', 'twice_there')
    other = cupy.ElementwiseKernel('T x', 'T w, T y', 'y = x; w = x', 'twice_there')
    assert [p.reads_only for p in Forms().of('twice_there', (A1, A1, A1, I1))] == [True, None, False, True]
    assert (one.nin, other.nin) == (2, 1)


def test_other_names_and_other_counts_are_not_known(forms):
    assert forms.of('ampere_sgemm_64x64', (-1,)) == ()
    assert forms.of('cupy_add__float32_float32_float32', (A1, A1)) == ()


def test_a_kernel_named_like_one_of_cupys_is_not_taken_for_it(cupy):
    kernel = cupy.ElementwiseKernel('T x', 'T y', 'y = x', 'named_alike')
    forms = Forms()
    assert len(forms.of('named_alike', (A2, A2, I2))) == 3
    assert len(forms.of('named_alike', (16, A1, I1))) == 3  # a complex number
    assert forms.of('named_alike', (8, 8, 4)) == ()  # a RawKernel: two addresses and an int
    assert forms.of('named_alike', (8, 8, 8)) == ()
    assert forms.of('named_alike', (A1, A1, 8)) == ()  # cupyx.jit: two arrays and a long
    assert forms.of('named_alike', (A1, A1, I2)) == ()
    assert kernel.name == 'named_alike'


@pytest.mark.parametrize(
    ('params', 'code', 'whole'),
    [
        ('T x|T y', 'y = x', (1, 1)),
        ('T x|T y', 'y += x * 2', (1, 1)),
        ('T x, T w|T y, T z', 'T a = x; y = a > 0 ? w : a; z = y', (1, 1, 1, 1)),
        ('raw T x|T y', 'y = x[i]', (0, 1)),
        ('T x|raw T y', 'y[i] = x', (1, 0)),
        ('bool m, T x|T y', 'if (m) y = x', (0, 0, 0)),
        ('T x|T y', 'mine(x, y)', (1, 0)),
        ('T x|T y', 'y == x', (1, 0)),
    ],
)
def test_which_kernels_touch_every_element(cupy, params, code, whole):
    kernel = cupy.ElementwiseKernel(*params.split('|'), code, 'touches_some')
    form = Forms().of('touches_some', (*[A1] * len(whole), I1))
    assert tuple(one.whole for one in form[:-1]) == tuple(map(bool, whole))
    assert kernel.operation == code

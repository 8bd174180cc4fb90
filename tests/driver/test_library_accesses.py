"""What calls of libraries are said to touch: all that they do touch, and of matrices no byte more."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capturekit.driver.library_accesses import FUNCTIONS, of_cub, of_cublas, of_cufft
from capturekit.driver.node_accesses import Access
from tests.examples import examples

A, B, C, FACTOR = 1 << 40, 1 << 41, 1 << 42, 1 << 43
sizes = st.integers(1, 5)


def touched(accesses: Iterable[Access], writes: bool) -> set[int]:
    """The bytes that accesses name, without the factors."""
    found: set[int] = set()
    for one in accesses:
        if one.writes is not writes or one.address >= FACTOR:
            continue
        places = [one.address]
        for length, stride in zip(one.shape, one.strides):
            places = [place + n * stride for place in places for n in range(length)]
        found |= {place + n for place in places for n in range(one.itemsize)}
    return found


def elements(start: int, ld: int, rows: int, columns: int, size: int) -> set[int]:
    """The bytes of a matrix that lies column by column."""
    return {
        start + (column * ld + row) * size + n for column in range(columns) for row in range(rows) for n in range(size)
    }


@settings(deadline=None, max_examples=examples(100))
@given(
    m=sizes, n=sizes, k=sizes, ta=st.integers(0, 2), tb=st.integers(0, 2), more=st.integers(0, 3),
    batch=st.integers(1, 3), letter=st.sampled_from('sdcz'),
)  # fmt: skip
def test_products_touch_what_their_definition_says(
    m: int, n: int, k: int, ta: int, tb: int, more: int, batch: int, letter: str
) -> None:
    size = {'s': 4, 'd': 8, 'c': 8, 'z': 16}[letter]
    (ra, ca), (rb, cb) = ((k, m) if ta else (m, k)), ((n, k) if tb else (k, n))
    lda, ldb, ldc = ra + more, rb + more, m + more
    once = of_cublas(f'{letter}gemm', (7, ta, tb, m, n, k, FACTOR, A, lda, B, ldb, FACTOR, C, ldc))
    assert once is not None
    assert touched(once, False) == elements(A, lda, ra, ca, size) | elements(B, ldb, rb, cb, size)
    assert touched(once, True) == elements(C, ldc, m, n, size)
    step = (lda * ca + 1, 0, ldc * n)
    several = of_cublas(
        f'{letter}gemmStridedBatched',
        (7, ta, tb, m, n, k, FACTOR, A, lda, step[0], B, ldb, step[1], FACTOR, C, ldc, step[2], batch),
    )
    assert several is not None
    read = elements(B, ldb, rb, cb, size)
    written: set[int] = set()
    for number in range(batch):
        read |= elements(A + number * step[0] * size, lda, ra, ca, size)
        written |= elements(C + number * step[2] * size, ldc, m, n, size)
    assert touched(several, False) == read and touched(several, True) == written


@pytest.mark.parametrize(('code', 'size'), [(0, 4), (1, 8), (2, 2), (4, 8), (5, 16), (14, 2)])
def test_products_of_any_dtype(code: int, size: int) -> None:
    found = of_cublas('gemmEx', (7, 0, 1, 3, 4, 2, FACTOR, A, code, 3, B, code, 4, FACTOR, C, code, 5, 68, 99))
    assert found is not None
    assert touched(found, False) == elements(A, 3, 3, 2, size) | elements(B, 4, 4, 2, size)
    assert touched(found, True) == elements(C, 5, 3, 4, size)
    batched = (7, 0, 0, 2, 2, 2, FACTOR, A, code, 2, 4, B, code, 2, 4, FACTOR, C, code, 2, 4, 3, 68, 99)
    found = of_cublas('gemmStridedBatchedEx', batched)
    assert found is not None and touched(found, True) == elements(C, 2, 2, 6, size)


def test_other_functions() -> None:
    def both(name: str, *args: int) -> tuple[set[int], set[int]]:
        found = of_cublas(name, (7, *args))
        assert found is not None
        return touched(found, False), touched(found, True)

    square = elements(A, 4, 3, 3, 4)
    assert both('sgemv', 0, 3, 2, FACTOR, A, 4, B, 2, FACTOR, C, 1) == (
        elements(A, 4, 3, 2, 4) | elements(B, 2, 1, 2, 4),
        elements(C, 3, 3, 1, 4),
    )
    assert both('sgemv', 1, 3, 2, FACTOR, A, 4, B, 1, FACTOR, C, -2)[1] == elements(C, 2, 1, 2, 4)
    assert both('sger', 3, 3, FACTOR, B, 1, C, 1, A, 4) == (elements(B, 3, 3, 1, 4) | elements(C, 3, 3, 1, 4), square)
    assert both('sgeam', 0, 1, 3, 2, FACTOR, A, 4, FACTOR, B, 2, C, 3)[0] == elements(A, 4, 3, 2, 4) | elements(
        B, 2, 2, 3, 4
    )
    assert both('sdgmm', 1, 3, 2, A, 4, B, 1, C, 3) == (
        elements(A, 4, 3, 2, 4) | elements(B, 2, 2, 1, 4),
        elements(C, 3, 3, 2, 4),
    )
    assert both('ssyrk', 0, 0, 3, 2, FACTOR, B, 5, FACTOR, A, 4) == (elements(B, 5, 3, 2, 4), square)
    assert both('strsm', 0, 0, 0, 0, 3, 2, FACTOR, A, 4, B, 3) == (square, elements(B, 3, 3, 2, 4))
    assert both('saxpy', 3, FACTOR, A, 1, B, 2) == (elements(A, 3, 3, 1, 4), elements(B, 2, 1, 3, 4))
    assert both('sscal', 3, FACTOR, A, 1) == (set(), elements(A, 3, 3, 1, 4))
    assert both('zdotu', 2, A, 1, B, 1, C)[1] == elements(C, 1, 1, 1, 16)


def test_factors_may_lie_on_the_device() -> None:
    found = of_cublas('saxpy', (7, 3, FACTOR, A, 1, B, 1))
    assert found is not None and [(one.address, one.writes) for one in found][-1] == (FACTOR, False)


@pytest.mark.parametrize(
    ('name', 'args'),
    [
        ('sgemmBatched', (0, 0, 2, 2, 2, FACTOR, A, 2, B, 2, FACTOR, C, 2, 3)),
        ('sgemm', (0, 0, 2, 2, 2, FACTOR, A, 2, B, 2, FACTOR, C)),
        ('sgemm', (0, 0, 2, 2, 0, FACTOR, A, 2, B, 2, FACTOR, C, 2)),
        ('sgemm', (0, 0, 4, 2, 2, FACTOR, A, 2, B, 2, FACTOR, C, 4)),
        ('gemmEx', (0, 0, 2, 2, 2, FACTOR, A, 77, 2, B, 0, 2, FACTOR, C, 0, 2, 68, 99)),
        ('sscal', (3, FACTOR, A, 0)),
        ('getrfBatched', (1, 2)),
    ],
)
def test_what_is_not_understood_has_no_answer(name: str, args: tuple[int, ...]) -> None:
    assert of_cublas(name, (7, *args)) is None


def test_names_are_those_that_cupy_has() -> None:
    assert {'gemmEx', 'sgemmEx', 'gemmStridedBatchedEx', 'dgemm', 'cgerc', 'zdotu', 'sgemv'} <= set(FUNCTIONS)
    assert not any('{' in name for name in FUNCTIONS)


def array(start: int, shape: tuple[int, ...], block: tuple[int, int]) -> Any:
    mem = SimpleNamespace(ptr=block[0], size=block[1])
    strides = [8]
    for length in shape[:0:-1]:
        strides.insert(0, strides[0] * length)
    size = 1
    for length in shape:
        size *= length
    return SimpleNamespace(
        data=SimpleNamespace(ptr=start, mem=mem), shape=shape, strides=tuple(strides), itemsize=8, size=size
    )


def test_transforms_go_to_the_end_of_the_block() -> None:
    a, out = array(A + 64, (4,), (A, 512)), array(B, (4,), (B, 1024))
    found = of_cufft(SimpleNamespace(fft_type=0x29, gpus=None), a, out, (C, 256))
    assert found is not None
    assert [(one.extent, one.writes) for one in found] == [
        ((A + 64, A + 512), False),
        ((B, B + 1024), True),
        ((C, C + 256), True),
    ]
    back = of_cufft(SimpleNamespace(fft_type=0x2C, gpus=None), a, out, None)
    assert back is not None and [one.writes for one in back] == [True, True]
    assert of_cufft(SimpleNamespace(fft_type=0x29, gpus=[0, 1]), a, out, None) is None
    assert of_cufft(SimpleNamespace(), a, out, None) is None
    assert of_cufft(SimpleNamespace(fft_type=0x29), a, lambda: out, None) is None


def test_reductions_touch_their_arrays() -> None:
    x, y, nothing = array(A, (2, 3), (A, 512)), array(B, (2,), (B, 512)), array(B, (0,), (B, 512))
    assert [(one.address, one.shape, one.writes) for one in of_cub('cub_reduction', x, y)] == [
        (A, (2, 3), False),
        (B, (2,), True),
    ]
    assert [one.writes for one in of_cub('cub_scan', x, x)] == [True, True]
    assert of_cub('cub_reduction', nothing, nothing) == []

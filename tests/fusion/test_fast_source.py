"""Kernels that may round otherwise: their source, and which reductions of CUB's CuPy's own template does instead."""

from __future__ import annotations

import struct
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from capturekit.driver.kernel_args import Argument
from capturekit.driver.library_accesses import Rows, rows_of
from capturekit.driver.node_accesses import Access, Touched
from capturekit.fusion.elementwise import ARRAY, ElementOperation, Rounded, checked, of_node
from capturekit.fusion.fused_reduction import parts
from capturekit.fusion.reduction import Reduction, ReductionCode, block_codes, code_of, of_block_node, of_calls
from capturekit.fusion.source import source
from tests.fusion.test_reduction_source import fused, made
from tests.fusion.test_source import product_and_sum, ufunc

BASE = 1 << 40


def test_products_and_sums_are_as_cupy_writes_them() -> None:
    exact, fast = (source(replace(product_and_sum(), fast=one)) for one in (False, True))
    assert 'out0 = in0 * in1' in fast.functions and '__fmul_rn(in' not in fast.functions
    assert '__fmul_rn(in' in exact.functions and fast.text != exact.text
    assert fast.arguments() == exact.arguments()


def test_nothing_is_sealed() -> None:
    kernel = fused()
    front, behind = (replace(half, fast=True) for half in (kernel.front, kernel.behind))
    exact, fast = parts(kernel), parts(replace(kernel, front=front, behind=behind))
    assert 'ck_seal(' in exact.steps + exact.after and 'ck_seal(' not in fast.steps + fast.after
    assert '__fmul_rn(in' in exact.functions and '__fmul_rn(in' not in fast.functions


def test_what_may_add_products_tells_what_it_does() -> None:
    product = ufunc('out0 = in0 * in1', 'c8 c8 c8')
    found = checked(product)
    assert isinstance(found, Rounded) and found.does is product and 'two products' in found
    node = of_node('f', found, [Argument(b'')])
    assert type(node) is str and 'other arguments' in node
    macro = ElementOperation('y = x * x + x * x', '#define A 1', product.parameters, product.types, False)
    assert type(checked(macro)) is str
    code = code_of(made(combine='a * b', dtype='complex64'))
    assert isinstance(code, Rounded) and code.does.output.name == 'out0'


# -- rows ---------------------------------------------------------------------------------------------------------


class Array(np.ndarray):
    """An array with an address as CuPy's have it."""

    @property
    def data(self) -> Any:  # type: ignore[override]
        return SimpleNamespace(ptr=self.ctypes.data)


def array(shape: tuple[int, ...], dtype: str = 'f4') -> Any:
    return np.zeros(shape, dtype).view(Array)


def operation(name: str) -> Any:
    return SimpleNamespace(name=f'CUPY_CUB_{name}')


def touching(*addresses: int) -> Touched:
    """Pointers to what is read and written, then words that look like addresses."""
    return Touched(tuple(Access(one, (), (), 0, None, argument=n) for n, one in enumerate(addresses)))


def reduction(name: str = 'SUM', dtype: str = 'f4', shape: tuple[int, int] = (6, 200)) -> Reduction:
    x, y = array(shape, dtype), array(shape[:1], dtype)
    rows = rows_of(x, operation(name), y)
    assert rows is not None
    found, halves = of_calls([7], {7: rows}, {7: touching(rows.source, rows.output)}, {7: 1})
    assert not halves
    return found[7]


def test_rows_are_gone_through_in_their_order() -> None:
    found = reduction()
    assert (found.inner, found.inputs[0].strides) == ((200, 6), (4, 800))
    assert (found.output.shape, found.output.strides, found.blocks, found.stride) == ((6,), (4,), 6, 1)
    assert found.code.block == 64 and found.in_turn == 0 and found.name == 'cupy_sum'


@pytest.mark.parametrize(
    ('length', 'block', 'stride', 'blocks'), [(3, 512, 128, 1), (63, 512, 8, 13), (64, 32, 1, 100), (9999, 512, 1, 100)]
)
def test_threads_are_laid_over_rows(length: int, block: int, stride: int, blocks: int) -> None:
    found = reduction(shape=(100, length))
    assert (found.code.block, found.stride, found.blocks) == (block, stride, blocks)


@pytest.mark.parametrize(
    ('name', 'dtype', 'identity'),
    [
        ('SUM', 'f4', '0'),
        ('PROD', 'i8', '1'),
        ('MAX', 'f4', '__int_as_float(0xff800000)'),
        ('MIN', 'f4', '__int_as_float(0x7f800000)'),
        ('MAX', 'f8', '__longlong_as_double(0xfff0000000000000ull)'),
        ('MAX', 'i4', '(-2147483647 - 1)'),
        ('MAX', 'u8', '0'),
        ('MIN', 'u8', '18446744073709551615ull'),
        ('MIN', 'i8', '9223372036854775807ll'),
    ],
)
def test_each_operation_begins_with_a_value_that_changes_nothing(name: str, dtype: str, identity: str) -> None:
    code = reduction(name, dtype).code
    assert code.made.identity == identity and code == reduction(name, dtype).code
    assert code != reduction('SUM' if name != 'SUM' else 'PROD', dtype).code


def test_what_is_not_understood_stays_the_librarys() -> None:
    x, y = array((6, 200)), array((6,))
    assert rows_of(x, operation('ARGMAX'), y) is None
    assert rows_of(x.astype('f2'), operation('SUM'), y.astype('f2')) is None
    assert rows_of(x, operation('SUM'), array((7,))) is None
    assert rows_of(x, operation('SUM'), array((12,))[::2]) is None
    rows = rows_of(x, operation('SUM'), y)
    assert isinstance(rows, Rows)
    both, blocks = touching(rows.source, rows.output), {7: 1, 8: 1}
    assert of_calls([9], {7: rows}, {7: both}, blocks) == ({}, [])
    assert of_calls([7], {7: rows}, {7: touching(rows.source, 99)}, blocks) == ({}, [])  # it has worked on a copy
    assert of_calls([7, 8], {7: rows, 8: rows}, {7: both, 8: both}, blocks) == ({}, [])  # of two kernels


def halves(count: int, blocks: int) -> Any:
    x, y = array((count,)), array((1,))
    rows = rows_of(x, operation('SUM'), y)
    assert rows is not None
    between = rows.output + 4096
    touched = {8: touching(between, rows.output), 7: touching(rows.source, between, 99)}
    found, pairs = of_calls([8, 7], {7: rows, 8: rows}, touched, {7: blocks, 8: 1})
    assert not found
    return pairs


def test_two_kernels_that_reduce_together() -> None:
    (one,) = halves(1_000_000, 660)
    assert one.nodes == (7, 8)
    first, second = one.does
    assert (first.inner, first.output.shape) == ((1600, 625), (625,)) and first.blocks == 625
    assert (second.inner, second.output.shape) == ((625, 1), (1,)) and second.blocks == 1
    assert second.inputs[0].address == first.output.address
    (source, into), (of, _out) = one.memory
    assert source.extent[1] - source.extent[0] == 4_000_000 and not source.writes
    assert into.extent[1] - into.extent[0] == 2640 and into.writes and of.extent == into.extent and not of.writes


@pytest.mark.parametrize('given', [(1_000_003, 660), (1_000_000, 20), (6400, 660)])
def test_halves_that_are_not_understood(given: tuple[int, int]) -> None:
    """A prime number of elements, too few blocks, too few elements."""
    assert halves(*given) == []


# -- kernels that CuPy makes around CUB's blocks -------------------------------------------------------------------

FUNCTION = SimpleNamespace(ptr=77)


def codes(monkeypatch: pytest.MonkeyPatch, **given: Any) -> dict[int, ReductionCode]:
    """What is known after CuPy has made one such kernel."""
    params = [SimpleNamespace(name=name, ctype='T', is_const=name != 'out0', raw=False) for name in ('in0', 'out0')]
    sizes = [SimpleNamespace(name=name, ctype='int', is_const=True, raw=False) for name in ('_segment_size', '_array')]
    infos = [SimpleNamespace(arg_kind=ARRAY, dtype=np.dtype('f4')) for _ in params]
    types = SimpleNamespace(_pairs=(('type_in0_raw', 'f4'), ('type_out0_raw', 'f4'), ('sizeT', 'i4')))
    made = {
        'each': 'in0', 'combine': 'a + b', 'result': 'out0 = a / _type_reduce(_segment_size / 1.0)', 'kind': 'float',
        'params': (*params, *sizes), 'infos': (*infos, *sizes), 'types': types, 'name': 'cupy_cub_mean', 'block': 128,
        'identity': '0', 'preamble': '', 'options': (), 'items': 4, **given,
    }  # fmt: skip
    memo = [((0, tuple(made.values())), FUNCTION), ((0, (1, 2)), FUNCTION)]
    monkeypatch.setattr('capturekit.fusion.reduction._memo', lambda _function: memo)
    return block_codes()


def node(blocks: int, *sizes: bytes) -> Any:
    info = SimpleNamespace(name='cupy_cub_mean', detail={'grid': (blocks, 1, 1)})
    given = [struct.pack('Q', BASE), struct.pack('Q', BASE + (1 << 20)), *sizes]
    return info, [Argument(one) for one in given]


INT = struct.Struct('i').pack


def test_each_block_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    code = codes(monkeypatch)[FUNCTION.ptr]
    assert code.library and code.made.result == 'out0 = a / _type_reduce((_in_ind.size() / _out_ind.size()) / 1.0)'
    info, given = node(40, INT(500), INT(0))
    found = of_block_node(info, code, given)
    assert found is not None and found.name == 'cupy_cub_mean' and found.in_turn == 0
    assert (found.inner, found.inputs[0].strides) == ((500, 40), (4, 2000))
    assert (found.output.address, found.output.shape, found.output.strides) == (BASE + (1 << 20), (40,), (4,))
    assert (found.code.block, found.code.made.block, found.blocks, found.stride) == (128, 128, 40, 1)
    wide = [*given[:2], *(Argument(struct.pack('q', n)) for n in (500, 0))]
    assert of_block_node(info, code, wide) == found


def test_nodes_that_are_not_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    code = codes(monkeypatch)[FUNCTION.ptr]
    info, given = node(40, INT(500), INT(0))
    assert of_block_node(info, None, given) is None
    assert of_block_node(info, code, given[:3]) is None
    assert of_block_node(*node(40, INT(500), INT(20000))[:1], code, node(40, INT(500), INT(20000))[1]) is None
    assert of_block_node(info, code, [Argument(INT(1)), *given[1:]]) is None


@pytest.mark.parametrize(
    'given',
    [
        {'options': ('-DFIRST_PASS=1',)},
        {'preamble': '#define X 1'},
        {'each': 'in0 + threadIdx.x'},
        {'result': 'out0 = a / _array_size; break'},
    ],
)
def test_kernels_that_stay_cubs(monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]) -> None:
    assert codes(monkeypatch, **given) == {}

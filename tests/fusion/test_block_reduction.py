"""Kernels that CuPy makes around CUB's blocks: which of them CuPy's own template can do, and how they are read."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from capturekit.driver.kernel_args import Argument
from capturekit.fusion.elementwise import ARRAY
from capturekit.fusion.reduction import ReductionCode, block_codes, of_block_node

BASE = 1 << 40
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

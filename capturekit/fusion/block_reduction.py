"""CuPy's reductions by CUB's blocks of threads, as reductions of CuPy's own template: the same code in another tree.

Where an array lies in one piece along the axes that go, CuPy makes a kernel around CUB's ``BlockReduce`` of the same
expressions that its own template takes (``cupy/_core/_cub_reduction.pyx``), with one block for each row. CuPy remembers
what it made a function of. Kernels of two passes are left to CUB. Tested with CuPy 14.2.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from capturekit.driver.cupy_kernels import _memo
from capturekit.driver.kernel_args import Argument
from capturekit.fusion.cub_reduction import threads
from capturekit.fusion.elementwise import ElementOperand, Rounded
from capturekit.fusion.reduction import _OWN, Made, Reduction, ReductionCode, code_of

#: How many arguments CuPy makes such a kernel of.
_GIVEN = 13
#: How the length of a row is called in CUB's kernels, and what it is in CuPy's.
_ROW, _LENGTH = '_segment_size', '(_in_ind.size() / _out_ind.size())'


def block_codes() -> dict[int, ReductionCode]:
    """The codes of kernels of one pass that CuPy has compiled, by function."""
    module = sys.modules.get('cupy._core._cub_reduction')
    found: dict[int, ReductionCode] = {}
    for key, function in _memo(getattr(module, '_SimpleCubReductionKernel_get_cached_function', None)):
        if len(key[1]) != _GIVEN or not hasattr(function, 'ptr'):
            continue
        each, combine, result, kind, params, infos, types, name, block, identity, preamble, options, _items = key[1]
        own = (None,) * _OWN  # what CuPy's template has behind the arrays, where these have two sizes
        more = (identity, each, combine, result.replace(_ROW, _LENGTH), types, preamble, options)
        code = code_of(Made(name, block, kind, (*params[:2], *own), (*infos[:2], *own), *more))
        code = code.does if isinstance(code, Rounded) else code
        if isinstance(code, ReductionCode):
            found[int(function.ptr)] = replace(code, library=True)
    return found


def of_block_node(info: Any, code: ReductionCode | None, arguments: Sequence[Argument]) -> Reduction | None:
    """What a node with these arguments reduces: each block a row. ``info`` is its description."""
    sizes = [len(one.data) for one in arguments]
    if code is None or sizes[:2] != [8, 8] or len(sizes) != 4 or not {*sizes[2:]} <= {4, 8}:
        return None
    source, output = (struct.unpack('Q', one.data)[0] for one in arguments[:2])
    length, more = (int.from_bytes(one.data, sys.byteorder) for one in arguments[2:])
    results = int(info.detail['grid'][0])
    if more or not length or not results:
        return None
    (given,), made = code.inputs, code.output
    item, size = (np.dtype(one.dtype).itemsize for one in (given, made))
    block, stride = threads(length)
    code = replace(code, block=block, made=replace(code.made, block=block), text=(str(block), *code.text))
    return Reduction(
        info.name,
        code,
        (ElementOperand(given.dtype, source, (length, results), (item, item * length)),),
        ElementOperand(made.dtype, output, (results,), (size,), None, False, True, True),
        -(-results // stride),
        stride,
    )

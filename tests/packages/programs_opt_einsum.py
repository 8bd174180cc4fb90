"""Contractions by opt_einsum."""

from __future__ import annotations

from typing import Any

from tests.packages.registry import Case, Draw, calls, program


@calls(program('opt_einsum'), lambda draw: (draw.normal(20, 30), draw.normal(30, 10), draw.normal(10, 25)))
def contract_three(cp: Any, opt_einsum: Any, a: Any, b: Any, c: Any) -> Any:
    """Three matrices are contracted in the order that is found at each call."""
    return opt_einsum.contract('ij,jk,kl->il', a, b, c)


@calls(program('opt_einsum'), lambda draw: (draw.normal(4, 6, 5, 5, dtype='f4'), draw.normal(4, 6, 7, dtype='f4')))
def contract_in_single_precision(cp: Any, opt_einsum: Any, a: Any, b: Any) -> Any:
    """Tensors of float32 are contracted with a trace and a batch index."""
    return opt_einsum.contract('bijj,bik->bk', a, b)


@program('opt_einsum')
def expression(cp: Any, draw: Draw, opt_einsum: Any) -> Case:
    """An expression that was made beforehand is called with its arrays."""
    made = opt_einsum.contract_expression('abc,cd,bde->ae', (6, 7, 8), (8, 9), (7, 9, 10))
    return Case(made, lambda draw: (draw.normal(6, 7, 8), draw.normal(8, 9), draw.normal(7, 9, 10)))


@program('opt_einsum')
def expression_with_constants(cp: Any, draw: Draw, opt_einsum: Any) -> Case:
    """An expression holds two constant arrays, whose product it makes once and keeps."""
    constants = draw.normal(12, 9), draw.normal(9, 8)
    made = opt_einsum.contract_expression('ij,jk,kl->il', *constants, (8, 5), constants=[0, 1])
    return Case(lambda x: made(x, backend=cp.__name__), lambda draw: (draw.normal(8, 5),))


@calls(program('opt_einsum'), lambda draw: (draw.normal(9, 8), draw.normal(8, 7), draw.normal(7, 6)))
def shared_intermediates(cp: Any, opt_einsum: Any, a: Any, b: Any, c: Any) -> Any:
    """Two contractions share what they have in common within one call."""
    with opt_einsum.shared_intermediates():
        return opt_einsum.contract('ij,jk,kl->i', a, b, c), opt_einsum.contract('ij,jk,kl->l', a, b, c)


@calls(program('opt_einsum'), lambda draw: (draw.complexes(9, 8), draw.complexes(8, 7), draw.complexes(7)))
def interleaved(cp: Any, opt_einsum: Any, a: Any, b: Any, c: Any) -> Any:
    """Indices are given as objects between the arrays, and the path as an option."""
    return opt_einsum.contract(a, ('x', 'y'), b, ('y', 'z'), c, ('z',), ('x',), optimize='dp')

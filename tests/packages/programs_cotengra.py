"""Contractions by cotengra: by an equation, by a tree that is kept, and in slices."""

from __future__ import annotations

from typing import Any

from tests.packages.registry import Case, Draw, calls, program

INPUTS = [('a', 'b'), ('b', 'c', 'd'), ('c', 'e'), ('d', 'e', 'f')]
SIZES = {'a': 6, 'b': 7, 'c': 5, 'd': 4, 'e': 8, 'f': 9}


def arrays(draw: Draw) -> tuple[Any, ...]:
    return ([draw.normal(*(SIZES[index] for index in indices)) for indices in INPUTS],)


@calls(program('cotengra'), lambda draw: (draw.normal(20, 30), draw.normal(30, 10), draw.normal(10, 25)))
def einsum(cp: Any, cotengra: Any, a: Any, b: Any, c: Any) -> Any:
    """An equation is contracted in the order that is found at each call or remembered."""
    return cotengra.einsum('ij,jk,kl->il', a, b, c, optimize='greedy')


@calls(program('cotengra'), arrays)
def array_contract(cp: Any, cotengra: Any, some: Any) -> Any:
    """A network given by lists of indices is contracted."""
    return cotengra.array_contract(some, INPUTS, ('a', 'f'), optimize='optimal')


@program('cotengra')
def expression(cp: Any, draw: Draw, cotengra: Any) -> Case:
    """An expression is made beforehand, and called with arrays."""
    made = cotengra.array_contract_expression(INPUTS, ('f', 'a'), size_dict=SIZES, optimize='greedy')
    return Case(lambda some: made(*some), arrays)


@program('cotengra')
def tree(cp: Any, draw: Draw, cotengra: Any) -> Case:
    """A contraction tree that is made beforehand contracts the arrays."""
    made = cotengra.array_contract_tree(INPUTS, ('a', 'f'), size_dict=SIZES, optimize='greedy')
    return Case(lambda some: made.contract(some), arrays)


@program('cotengra')
def sliced_tree(cp: Any, draw: Draw, cotengra: Any) -> Case:
    """A tree with a removed index contracts slice by slice, and the slices are added."""
    made = cotengra.array_contract_tree(INPUTS, ('a', 'f'), size_dict=SIZES, optimize='greedy').remove_ind('d')
    return Case(lambda some: made.contract(some), arrays)


@program('cotengra')
def scaled_exponent(cp: Any, draw: Draw, cotengra: Any) -> Case:
    """A tree keeps its intermediates near 1 and tells the exponent that it has taken out."""
    made = cotengra.array_contract_tree(INPUTS, ('a', 'f'), size_dict=SIZES, optimize='greedy')
    return Case(lambda some: made.contract(some, strip_exponent=True), arrays)

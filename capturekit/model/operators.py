"""CuPy's linear operators that are made of matrices: the arrays in them, and the same operator with other arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from capturekit.model.sparse import is_sparse

#: The classes of operators whose products run no code but CuPy's, with the attribute that holds what they are made of.
_MADE_OF = {
    'MatrixLinearOperator': 'A', '_AdjointMatrixOperator': 'A', '_ProductLinearOperator': 'args',
    '_SumLinearOperator': 'args',
}  # fmt: skip
_MODULE = 'cupyx.scipy.sparse.linalg._interface'
#: Ends of the names of attributes in which an operator keeps its adjoint, and that its matrix.
_ADJOINTS = ('__adj', '__adjoint')


def operands(operator: Any, array: type) -> list[Any] | None:
    """The arrays and sparse matrices that an operator is made of; None if it is made of something else.

    An array or a sparse matrix is such an operator itself. ``array``: the class of arrays.
    """
    if isinstance(operator, array) or is_sparse(operator):
        return [operator]
    cls = type(operator)
    if cls.__module__ != _MODULE or cls.__name__ not in _MADE_OF:
        return None
    inside = getattr(operator, _MADE_OF[cls.__name__])
    found: list[Any] = []
    for part in inside if type(inside) is tuple else (inside,):
        one = operands(part, array)
        if one is None:
            return None
        found += one
    return found


def with_operands(operator: Any, given: Iterator[Any]) -> Any:
    """The operator with other arrays and matrices, in the order of :func:`operands`."""
    cls = type(operator)
    if cls.__module__ != _MODULE:
        return next(given)
    made = object.__new__(cls)
    made.__dict__.update({name: None if name.endswith(_ADJOINTS) else one for name, one in vars(operator).items()})
    attribute = _MADE_OF[cls.__name__]
    inside = getattr(operator, attribute)
    now = tuple(with_operands(part, given) for part in (inside if type(inside) is tuple else (inside,)))
    setattr(made, attribute, now if type(inside) is tuple else now[0])
    return made

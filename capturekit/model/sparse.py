"""CuPy's sparse matrices among arguments and results: taken apart into pieces that can be compared, and made again.

A matrix consists of its class, its arrays and a few plain values. It also has a cuSPARSE descriptor, a handle that its
owner destroys: this is left out of the comparison, and each matrix that is made gets a new one.
"""

from __future__ import annotations

import operator
from typing import Any, NamedTuple


class Packed(NamedTuple):
    """A sparse matrix taken apart: names and values of its attributes, arrays among them."""

    kind: type
    described: type | None
    names: tuple[str, ...]
    values: tuple[Any, ...]


def is_sparse(value: Any) -> bool:
    """True for a sparse matrix or array of CuPy's."""
    return type(value).__module__.startswith('cupyx.scipy.sparse') and hasattr(value, 'data')


def packed(value: Any) -> Any:
    """The value with all sparse matrices, also in its tuples, lists and dicts, in pieces; the value itself if there are
    none. A value that holds itself is returned as it is: no form of it can be made."""
    try:
        return _packed(value)
    except RecursionError:
        return value


def _packed(value: Any) -> Any:
    cls = type(value)
    if cls is tuple or cls is list:
        parts = [_packed(part) for part in value]
        return value if all(map(operator.is_, parts, value)) else cls(parts)
    if cls is dict:
        parts = [_packed(part) for part in value.values()]
        return value if all(map(operator.is_, parts, value.values())) else dict(zip(value, parts))
    if not is_sparse(value):
        return value
    inside = vars(value)
    names = tuple(sorted(name for name in inside if name != '_descr'))
    described = type(inside['_descr']) if inside.get('_descr') is not None else None
    return Packed(cls, described, names, tuple(inside[name] for name in names))


def matrices(value: Any) -> list[Any]:
    """The sparse matrices in the value, and in its tuples, lists and dicts."""
    if type(value) in (tuple, list):
        return [found for part in value for found in matrices(part)]
    if type(value) is dict:
        return [found for part in value.values() for found in matrices(part)]
    return [value] if is_sparse(value) else []


def unpacked(value: Any) -> Any:
    """The value with its sparse matrices made again."""
    cls = type(value)
    if cls is tuple or cls is list:
        return cls(unpacked(part) for part in value)
    if cls is dict:
        return {key: unpacked(part) for key, part in value.items()}
    if cls is not Packed:
        return value
    made = object.__new__(value.kind)
    made.__dict__.update(zip(value.names, value.values))
    if value.described is not None:
        made.__dict__['_descr'] = value.described.create()
    return made

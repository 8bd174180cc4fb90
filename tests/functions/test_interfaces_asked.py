"""Code may ask by ``hasattr`` whether an object is an array, which gives it nothing of the array."""

from __future__ import annotations

from types import CodeType
from typing import Any

import pytest

from capturekit.functions.code_reads import names_of

INTERFACE = '__cuda_array_interface__'


def nothing(_world: dict[str, Any]) -> None: ...


def strings_in(text: str) -> bool:
    """Whether code may read the attribute by a text."""
    code: CodeType = compile(text, 'here', 'exec')
    return INTERFACE in names_of(code).strings


@pytest.mark.parametrize(
    ('text', 'read'),
    [
        ("hasattr(x, '__cuda_array_interface__')", False),
        ("hasattr(x.y[0], '__cuda_array_interface__') and hasattr(y, '__cuda_array_interface__')", False),
        ("hasattr(x, '__cuda_array_interface__') and getattr(x, '__cuda_array_interface__')", True),
        ("name = '__cuda_array_interface__'; hasattr(x, name)", True),
        ("hasattr('__cuda_array_interface__', x)", True),
        ("hasattr(x, f('__cuda_array_interface__'))", True),
        ("any(hasattr(x, name) for name in ('__cuda_array_interface__',))", False),
    ],
)
def test_only_what_hasattr_gets_is_not_read(text: str, read: bool) -> None:
    assert strings_in(text) is read

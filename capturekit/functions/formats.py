"""The attributes that ``str.format`` reads: those that the text names, as ``{0.rate}`` does."""

from __future__ import annotations

import importlib
import string
from typing import Any

_SPLIT: Any = importlib.import_module('_string').formatter_field_name_split


def attributes_in(text: str) -> set[str] | None:
    """The attributes that a text names in its fields, and in formats within fields; None if the text is no format."""
    parser: Any = string.Formatter()
    found: set[str] = set()
    try:
        for _, field, inner, _ in parser.parse(text):
            if field is not None:
                found |= _of_field(field)
                found |= attributes_in(inner) or set()
    except ValueError:
        return None
    return found


def _of_field(field: str) -> set[str]:
    _, rest = _SPLIT(field)
    return {name for is_attribute, name in rest if is_attribute}

"""The texts of values in messages."""

from __future__ import annotations

from typing import Any

import pytest

from capturekit.model.plain_values import show


@pytest.mark.parametrize(
    ('value', 'text'),
    [
        (3, '3'),
        (-(1 << 4095), str(-(1 << 4095))[:57] + '...'),
        (1 << 30_000, 'a whole number of 30001 bits'),
        ((1 << 30_000, 2), '(a whole number of 30001 bits, 2)'),
        ('a' * 80, "'" + 'a' * 56 + '...'),
    ],
    ids=['short', 'long', 'longer than Python writes', 'in a tuple', 'a text'],
)
def test_a_value_is_shown_in_short(value: Any, text: str) -> None:
    assert show(value) == text

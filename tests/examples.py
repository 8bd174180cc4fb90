"""How many examples Hypothesis tries: 25 of a hundred, and 400 where the profile ``search`` is loaded."""

from __future__ import annotations

from hypothesis import settings

#: Of a hundred.
QUICK = 25


def examples(number: int) -> int:
    """Return how many of so many are tried here."""
    return max(number * settings().max_examples // 100, 1)

"""Draws that make a random program, from Hypothesis, from a seed, or from a list of numbers that is being shortened."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar('T')


class Choices:
    """Draws numbers, and keeps them. The number 0 always stands for the simplest choice."""

    def __init__(self, draw: Callable[[int], int]) -> None:
        self._draw = draw
        #: What has been drawn.
        self.drawn: list[int] = []
        self._names = 0
        #: Whether this program may do what is known to run eagerly.
        self.odd = False

    def below(self, end: int) -> int:
        """Draw a number from 0 up to but not including ``end``."""
        number = self._draw(end)
        self.drawn.append(number)
        return number

    def pick(self, group: Sequence[T]) -> T:
        """Draw one of a group."""
        return group[self.below(len(group))]

    def once_in(self, times: int) -> bool:
        """Draw True once in so many times."""
        return self.below(times) == times - 1

    def name(self, stem: str) -> str:
        """Make a name that the program has not yet; nothing is drawn for it."""
        self._names += 1
        return f'{stem}{self._names}'


def seeded(seed: str) -> Choices:
    """Return the draws of a generator of random numbers."""
    return Choices(random.Random(seed).randrange)


def replayed(numbers: Sequence[int]) -> Choices:
    """Return these draws once more; what is too large is cut, and where none are left the simplest is drawn."""
    left = iter(numbers)
    return Choices(lambda end: min(next(left, 0), end - 1))


def shortest(numbers: Sequence[int], fails: Callable[[Sequence[int]], bool], tries: int = 400) -> list[int]:
    """Return a shorter list of draws that fails as well, found by leaving out pieces and by putting 0 in their place.

    A shorter list need not make a shorter program, but most of them do.
    """
    best = list(numbers)
    length = max(len(best) // 2, 1)
    while length and tries > 0:
        at = 0
        while at < len(best) and tries > 0:
            piece = best[at : at + length]
            for instead in ([], [0] * len(piece)):
                shorter = best[:at] + list(instead) + best[at + length :]
                if shorter == best:
                    continue
                tries -= 1
                if fails(shorter):
                    best = shorter
                    break
            else:
                at += length
        length //= 2
    return best

"""Numbers that a fused kernel's source refers to by name, so that equal sources serve other sizes: 32-bit arguments."""

from __future__ import annotations

_WORD = 1 << 32


class SourceNumbers:
    """The numbers in the order in which the source asks for them. ``narrow``: distances fit into one word."""

    def __init__(self, narrow: bool) -> None:
        self._narrow = narrow
        self._words: list[int] = []

    def word(self, number: int) -> str:
        """The name of a number between 0 and 2^32."""
        self._words.append(number)
        return f'ck_g{len(self._words) - 1}'

    def distance(self, number: int) -> str:
        """An expression of the type ``ck_int`` that has this number, which may be negative."""
        if self._narrow:
            return f'static_cast<ck_int>({self.word(number % _WORD)})'
        low, high = self.word(number % _WORD), self.word((number >> 32) % _WORD)
        return f'static_cast<ck_int>(static_cast<ck_uint>({high}) << 32 | {low})'

    def named(self) -> list[tuple[str, int]]:
        """All names with their numbers."""
        return [(f'ck_g{n}', number) for n, number in enumerate(self._words)]

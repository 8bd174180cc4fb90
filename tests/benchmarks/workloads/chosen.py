"""Which rows of a table are measured, and in which ways: all, where nothing is chosen."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Chosen:
    """``rows``: texts, one of which a row's title must have in it. ``ways``: names of ways, besides ``eager``."""

    rows: tuple[str, ...] = ()
    ways: tuple[str, ...] = ()

    def row(self, title: str) -> bool:
        """Whether a row is measured."""
        return not self.rows or any(text in title for text in self.rows)

    def way(self, name: str) -> bool:
        """Whether a way is measured; ``eager`` always is, since all are compared with it."""
        return not self.ways or name == 'eager' or name in self.ways


ALL = Chosen()

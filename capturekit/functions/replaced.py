"""Containers that may get attributes, and equal ones that have come into their places since.

An equal one counts as the same while neither has attributes. So the new one has to be asked for them from then on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from capturekit.model.class_layout import among, own_layout
from capturekit.model.kept_values import Kept, contents_of
from capturekit.model.plain_values import BUILT_IN

_Row = TypeVar('_Row', bound='tuple[Any, ...]')


class Replaced:
    """The containers in watched values that are others now."""

    def __init__(self) -> None:
        self._others: dict[int, dict[int, Any]] = {}
        self._seen: set[tuple[int, int]] = set()

    def look(self, kept: Kept, value: Any) -> None:
        """Look at what is in the place of a value that was kept, and holds the same."""
        if not kept.parts and value is kept.value:
            return
        pair = id(kept), id(value)
        if pair in self._seen or kept.kind in ('plain', 'same', 'method', 'carried'):
            return
        self._seen.add(pair)
        if not among(type(value), BUILT_IN) and own_layout(type(value))[0]:
            self._others.setdefault(id(kept.value), {})[id(value)] = value
        contents = contents_of(value)
        for part, item in zip(kept.parts, [] if contents is None else contents[2]):
            self.look(part, item)

    def moved(self, rows: Iterable[_Row], position: int) -> Iterator[_Row]:
        """Rows about objects, each at this position in its row, with those that are there now."""
        for row in rows:
            others = self._others.get(id(row[position]))
            for value in [row[position]] if others is None else others.values():
                made: Any = (*row[:position], value, *row[position + 1 :])
                yield made

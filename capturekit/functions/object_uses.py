"""What code does with objects that depends on which objects they are: it compares them by identity, or makes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import CodeType
from typing import Any

from capturekit.functions.address_hashes import hashed_by_address
from capturekit.functions.out_of_sight import OutOfSight
from capturekit.functions.readable_state import is_itself, named_in
from capturekit.model.class_layout import MISSING, found_in_class, name_of
from capturekit.model.kept_values import IsArray


class ObjectUses(OutOfSight):
    """The comparisons by identity in a run, and the classes of which it has made objects."""

    def __init__(self, is_array: IsArray, skip: Callable[[str], bool]) -> None:
        super().__init__(is_array, skip)
        #: Which code compares identities; '' if none does.
        self._identities = ''
        #: By the id of code: its parameters that it compares by identity, and its name and file.
        self._compared: dict[int, tuple[frozenset[str], str]] = {}
        #: Whether a number or a text is an argument, in whose place another call may have an equal one.
        self._plain = False
        #: The classes of objects that are hashed by their address, of which the run has made some.
        self._by_address: set[str] = set()
        #: The classes of such objects that the run may have made without an event, by id.
        self._perhaps_made: dict[int, type] = {}
        #: By the id of a class with a method ``__del__``: it, and how many of its objects the run has made, less those
        #: for which that method has run.
        self._finalized: dict[int, list[Any]] = {}

    def _identity(self, chains: Iterable[tuple[str, ...] | None], start: Any, own: Any, where: str) -> None:
        for chain in chains:
            value = MISSING if chain is None else start.get(chain[0], own.get(chain[0], MISSING))
            for name in () if chain is None else chain[1:]:
                value = named_in(value, name)
            if value is MISSING or self._is_array(value) or not is_itself(value):
                self._identities = self._identities or where

    def _compare_parameters(self, code: CodeType, variables: Any) -> None:
        """Note whether code asks by identity for something in whose place a recording may get an equal object."""
        names, where = self._compared.get(id(code), ((), ''))
        if not all(self._is_array(variables.get(name)) or is_itself(variables.get(name)) for name in names):
            self._identities = self._identities or where

    def _makes(self, cls: type, perhaps: bool = False) -> None:
        """Note a class of which the run makes objects. ``perhaps``: where it calls the class, which is no event."""
        if hashed_by_address(cls) and perhaps:
            self._perhaps_made[id(cls)] = cls
        elif hashed_by_address(cls):
            self._by_address.add(name_of(cls))
        if found_in_class(cls, '__del__') is not MISSING:
            self._finalized.setdefault(id(cls), [cls, 0])[1] += 1

"""The names of attributes that the code of a run asks objects for."""

from __future__ import annotations

from typing import Any


class NamesUsed:
    """The names in code, and the names that code has as texts; :class:`Holders` adds to them."""

    def __init__(self) -> None:
        self.attributes: set[str] = set()
        self.strings: set[str] = set()
        #: Whether code may ask any object for any attribute.
        self.everything = False
        #: The objects and classes of the user all of whose attributes count, by id.
        self.full: dict[int, Any] = {}
        #: What may be asked of arrays, and can't be compared.
        self.of_cupy: set[str] = set()
        #: Whether the ``__getattr__`` of a module reads attributes of an object by names.
        self.finds = False
        #: Whether code may do anything with ``sys.modules``, and not only ask for modules by constant names.
        self.opens_modules = False
        #: The attributes that objects, and their classes, had when code asked them for computed names, and whether code
        #: took the ``__dict__`` of an object that the run has made.
        self.asked_for: set[str] = set()
        self.takes_new = False

    def of_arrays(self) -> str | None:
        """What the code may have asked an array for that gives its address or says who owns its memory; or None."""
        return min(self.of_cupy, default=None)

"""What code asks of the user's objects and classes that is not the user's: libraries' code, and code written in C.

No code of the user's names that. A library's function may read any of the names in it of any object that it is given,
so all of them are watched on all objects and classes of the user's that the run comes to.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

from capturekit.functions.attributes import Attributes
from capturekit.functions.follow_time import FollowTime
from capturekit.functions.ownership import Ownership
from capturekit.functions.understood import ASKED_IN_C, OF_PYTHON
from capturekit.functions.watched_value import Holder
from capturekit.model.class_layout import bases_of, dictionary_of_class, name_of


class OutOfSight:
    """The names that code out of sight has, and where they were sought."""

    def __init__(self, attributes: Attributes, ownership: Ownership, time: FollowTime) -> None:
        self._attributes, self._ownership, self._time = attributes, ownership, time
        #: The names in libraries' code that ran, and those that code written in C asks for.
        self._names_out_of_sight: set[str] = set(ASKED_IN_C)
        #: By class, which of them were sought.
        self._sought_names: dict[int, tuple[type, set[str]]] = {}

    def held(self, holder: Holder) -> None:
        """Watch, of an object that the run came to, what code out of sight has named so far."""
        self._watch_out_of_sight(holder, self._names_out_of_sight)

    def name(self, names: Iterable[str], holders: Iterable[Holder]) -> None:
        """Watch, of the user's objects and classes, what code of a library names: it may ask them for that."""
        new = set(names) - self._names_out_of_sight - OF_PYTHON
        self._names_out_of_sight |= new
        for holder in list(holders) if new else ():
            self._time.check_limit()
            self._watch_out_of_sight(holder, new)

    def _watch_out_of_sight(self, holder: Holder, names: Set[str]) -> None:
        if not holder.owned or holder.kind == 'module':
            return
        if holder.kind == 'class':
            self._search_names(holder.value, names)
            return
        for name in sorted(names & (holder.start.keys() | holder.slots.keys())):
            self._attributes.attribute_of(holder, name)
        if holder.kind == 'object':
            if holder.layout.dictionary is not None:
                holder.missing.update(names - holder.start.keys())
            self._search_names(holder.cls, names)

    def _search_names(self, cls: type, names: Set[str]) -> None:
        """Watch what a class of the user's and its bases hold under many names, and that they lack the others."""
        known = self._sought_names.setdefault(id(cls), (cls, set()))[1]
        new = names - known
        known |= new
        for base in bases_of(cls) if new else ():
            members = dictionary_of_class(base)
            for name in sorted(new & members.keys()):
                self._attributes.search_class(cls, name)
            new = new - members.keys()
            if new and not self._ownership.is_foreign_class(base):
                what = f'attribute {{}} of class {name_of(base)}'
                self._attributes.absent.setdefault(id(base), (members, set(), what))[1].update(new)

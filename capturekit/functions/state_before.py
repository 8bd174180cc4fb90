"""Python state as it was before a function is recorded: it is put back if the recording fails.

What a run changes for good is carried (:mod:`capturekit.functions.carried_state`), and put back by that. Other values
change only in the middle of a run, as in ``d['k'] = 0; d['k'] = new``. A recording that ends in that middle, or goes
another way, would leave what it has put there, which may be an array of the graph's, for the eager run that follows.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Any

from capturekit.functions.carried_state import CarriedPlace
from capturekit.functions.watched_value import WatchedValue
from capturekit.model.class_layout import MISSING
from capturekit.model.value_changes import containers

#: The kinds of watched values that are places where code puts values.
_PLACES = frozenset({'global', 'variable', 'attribute', 'slot'})
#: The types of containers whose contents are put back; theirs count, whatever a class derived from them says.
_KINDS: tuple[Any, ...] = (OrderedDict, dict, list, set, deque)


class StateBefore:
    """The values in the places that a run can have reached, and what their containers and objects hold.

    ``dictionaries``: those of the objects whose attributes the run has used.
    """

    def __init__(self, entries: list[WatchedValue], dictionaries: list[dict[str, Any]]) -> None:
        places = [entry for entry in entries if entry.kind in _PLACES]
        self._places = [(entry, entry.read()) for entry in places]
        reached = [now for _, now in containers((entry.kept, value) for entry, value in self._places)]
        kinds = [
            (one, next((kind for kind in _KINDS if isinstance(one, kind)), None)) for one in (*reached, *dictionaries)
        ]
        self._contents = [(one, kind, kind(one)) for one, kind in kinds if kind is not None]

    def put_back(self) -> None:
        """Put all of it back that is another one now."""
        for container, kind, before in self._contents:
            if isinstance(container, dict):
                _put_items_back(container, kind, before)
            elif [*map(id, kind(container))] != [*map(id, before)]:
                kind.clear(container)
                (set.update if kind is set else kind.extend)(container, before)
        for entry, value in self._places:
            if entry.read() is not value:
                put_there(entry, value)


def _put_items_back(container: dict[Any, Any], kind: Any, before: dict[Any, Any]) -> None:
    """Put the items of a dict back. One that was taken out and comes back would stand at the end."""
    for key in [key for key in kind.keys(container) if key not in before]:
        kind.pop(container, key)
    if len(container) < len(before):
        kind.clear(container)
    for key, value in before.items():
        if dict.get(container, key, MISSING) is not value:
            kind.__setitem__(container, key, value)


def put_there(entry: WatchedValue, value: Any) -> None:
    """Put a value into the place of a watched one, or nothing where there was nothing."""
    if value is not MISSING:
        CarriedPlace(entry, ()).put(value)
    elif entry.kind == 'variable':
        del entry.holder.cell_contents
    else:
        dict.pop(entry.mapping, entry.key)

"""The values that a run is given, at any depth, and what of them the caller does not compare."""

from __future__ import annotations

import enum
import functools
import gc
import sys
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from capturekit.functions.collector import Before
from capturekit.functions.doubts import Doubts
from capturekit.functions.follow_time import FollowTime
from capturekit.functions.holders import Holders
from capturekit.functions.object_uses import ObjectUses
from capturekit.functions.readable_state import in_package, is_one_of_a_kind
from capturekit.functions.watched_value import itself
from capturekit.functions.watched_values import WatchedValues
from capturekit.model.class_layout import among, attributes_of, is_dataclass
from capturekit.model.kept_values import contents_of
from capturekit.model.plain_values import WITH_CODE, plain_key

#: From so many elements on, those are left out first that hold no others.
_SEARCHED = 1_000
#: The references to the owner of a view's memory that nobody else has: the view's, and two while it is asked for them.
_ALONE = 3
_PLAIN = (list, tuple, dict, set, frozenset, np.ndarray, slice)
#: Classes whose objects hold no others, and are compared by value.
_NUMBERS = frozenset({int, float, complex, bool, str, bytes, type(None)})


def shares_memory(array: Any) -> bool:
    """Whether an array is a view of memory that is not its own alone, or may overlap itself."""
    base = np.ndarray.base.__get__(array)
    if base is None:
        return False
    return type(base) is not np.ndarray or sys.getrefcount(base) > _ALONE


class GivenValues:
    """The arguments of the function that is watched, and those of the functions that it calls.

    ``given``: what the function is called with. ``ignore`` returns True for objects that the caller compares.
    """

    def __init__(
        self,
        values: WatchedValues,
        holders: Holders,
        uses: ObjectUses,
        doubts: Doubts,
        before: Before,
        time: FollowTime,
        given: Any = (),
        ignore: Callable[[Any], bool] | None = None,
    ) -> None:
        self._values, self._holders, self._uses, self._doubts = values, holders, uses, doubts
        self._before, self._time, self._given, self.ignore = before, time, given, ignore
        #: Containers among the arguments that are compared by value, by id.
        self.own: dict[int, Any] = {}
        #: The arrays among the arguments, with their shapes and strides.
        self.forms: list[tuple[Any, Any]] = []
        #: The classes of arguments whose attributes count when code names them.
        self.of_class: list[type] = []

    def keep_arguments(self) -> None:
        """Watch the values in the arguments, at any depth, that are not compared by value."""
        todo = [(self._given, 'an argument')]
        while todo:
            value, name = todo.pop()
            cls = type(value)
            if self._values.is_array(value) and hasattr(cls, 'strides'):
                self.forms.append((value, (value.shape, value.strides)))
                if not in_package(cls):  # of a class derived from ndarray
                    self._holders.hold_class(cls)
                    self.of_class.append(cls)
            if id(value) in self.own or self._values.is_array(value):
                continue
            if issubclass(cls, np.ndarray):
                self._values.keeper.has_numbers = True
                if shares_memory(value):
                    what = f'{name} is or holds a NumPy array whose memory another object has, too'
                    self._doubts.unwatchable.append(f'{what}: what the function changes there is not seen')
            if plain_key(value) is not None:
                self._uses.plain = self._uses.plain or not is_one_of_a_kind(value)
                if issubclass(type(cls), enum.EnumMeta) or issubclass(cls, WITH_CODE):
                    self._values.meet(value)
                continue
            if self.ignore is None or not self._by_value(value):
                self._values.at = name
                self._values.watch('argument', value, '', value, (name, ''), None, functools.partial(itself, value))
                if not self._values.is_array(value):
                    self._values.meet(value)
                continue
            self.own[id(value)] = value
            if is_dataclass(cls) or (issubclass(cls, tuple) and cls is not tuple):
                self._holders.hold_class(cls)
                self.of_class.append(cls)
            contents = contents_of(value)
            parts = [*contents[1], *contents[2]] if contents is not None else []
            if is_dataclass(cls) or not among(cls, _PLAIN):
                parts += attributes_of(value).values()
            if len(parts) >= _SEARCHED:
                parts = [part for part in parts if type(part) not in _NUMBERS]
                self._time.check_limit()
            todo += [(part, name) for part in parts]

    def _by_value(self, value: Any) -> bool:
        """True for values that the caller compares by value: containers, dataclass instances, NumPy arrays."""
        assert self.ignore is not None
        cls = type(value)
        if among(cls, _PLAIN):
            return True
        return self.ignore(value)

    def argument(self, value: Any) -> None:
        """Watch an argument that is an object, or the objects in a container."""
        cls = type(value)
        if among(cls, (list, tuple, dict)):
            items = value.values() if cls is dict else value
            for item in items if len(value) < _SEARCHED else [one for one in items if type(one) not in _NUMBERS]:
                if not (self.ignore is not None and self.ignore(item)):
                    self._instance(item)
        else:
            self._instance(value)

    def _instance(self, value: Any) -> None:
        cls = type(value)
        if issubclass(cls, (FunctionType, ModuleType)):
            self._values.meetings.roots.add(id(value))
        if issubclass(cls, (FunctionType, ModuleType, np.ndarray, np.generic)) or self._values.is_array(value):
            return
        if gc.is_tracked(value) and self._before.had(value) and id(value) not in self.own:
            self._values.meet(value)

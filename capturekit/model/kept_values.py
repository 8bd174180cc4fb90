"""Values that are kept for a later comparison, with the contents of containers."""

from __future__ import annotations

import array
import contextlib
import enum
import functools
import gc
import operator
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from capturekit.model.class_layout import among, attributes_of, dictionary_of_class
from capturekit.model.plain_values import (
    BUILT_IN,
    BY_EQUALITY,
    BY_IDENTITY,
    WITH_CODE,
    Held,
    by_identity,
    exact,
    member_key,
    plain_key,
)

IsArray = Callable[[Any], bool]

#: More values than this inside one value are not kept: comparing them would cost more than a launch saves.
LIMIT = 10_000

DEFAULT_FACTORY: Any = defaultdict.__dict__['default_factory']
_MAXLEN: Any = vars(deque)['maxlen'].__get__


class Kept(NamedTuple):
    """A value as it was: ``value`` itself, and by ``kind`` what it held.

    ``kind``: 'plain' (``data``: its key), 'same' (by identity), 'method', 'items' (``parts``), 'dict' and 'object'
    (``labels``, ``parts``), 'set' (``data``: keys), 'big' (length), 'carried' (not compared: launches change it).
    """

    kind: str
    value: Any
    data: Any = None
    labels: list[Any] = []  # noqa: RUF012
    parts: list[Any] = []  # noqa: RUF012


class TooMany(Exception):
    """A value holds more than :data:`LIMIT` others."""


class Keeper:
    """Keeps values as they are now.

    Arguments:
        is_array: returns True for arrays, which are kept by identity.
        whole: returns True for objects whose attributes are kept with them; None: there are none.
        met: is called with every value that is kept by identity.
    """

    def __init__(
        self,
        is_array: IsArray,
        whole: Callable[[Any], bool] | None = None,
        met: Callable[[Any], None] | None = None,
    ) -> None:
        self.is_array = is_array
        self.whole = whole
        self.met = met
        self.arrays: dict[int, Any] = {}
        #: Their shapes and strides, by id.
        self.forms: dict[int, tuple[Any, Any]] = {}
        self.memory: dict[int, Kept] = {}
        #: Whether an array of NumPy was kept, with which code may compute.
        self.has_numbers = False
        self._new: list[int] = []
        self.count = 0

    def arrays_and_forms(self) -> list[tuple[Any, Any]]:
        """The arrays met, each with the shape and the strides that it had."""
        return [(self.arrays[key], form) for key, form in self.forms.items()]

    def keep(self, value: Any) -> Kept:
        """Keep one value, with what it holds. For a value that holds too much ('big') only identity and length are
        kept."""
        self.count = 0
        self._new = []
        try:
            return self._keep(value)
        except (TooMany, RecursionError):
            for key in self._new:
                self.memory.pop(key, None)
            contents = contents_of(value)
            return Kept('big', value, -1 if contents is None else len(contents[2]))

    def _keep(self, value: Any) -> Kept:
        self.count += 1
        if self.count > LIMIT:
            raise TooMany
        cls = type(value)
        if type(cls) is type and cls in BY_EQUALITY:  # nearly everything: the state of one generator is 625 numbers
            return Kept('plain', value, (cls, value))
        key = plain_key(value)
        if key is not None:
            if issubclass(type(type(value)), enum.EnumMeta) or issubclass(type(value), WITH_CODE):
                self._meet(value)
            return Kept('plain', value, key)
        if self.is_array(value):
            self.arrays[id(value)] = value
            if hasattr(type(value), 'strides'):
                self.forms.setdefault(id(value), (value.shape, value.strides))
            self._meet(value)
            return Kept('same', value)
        known = self.memory.get(id(value))
        if known is not None:
            return known
        if cls is types.MethodType:
            kept = Kept('method', value)
            self._remember(kept)
            self._meet(value)
            return kept
        contents = contents_of(value)
        if contents is not None:
            self.has_numbers = self.has_numbers or issubclass(cls, np.ndarray)
            return self._keep_contents(value, contents)
        if self.whole is not None and not issubclass(cls, BY_IDENTITY) and self.whole(value):
            attributes = attributes_of(value)
            kept = self._remember(Kept('object', value, None, [], []))
            for name, part in attributes.items():
                kept.labels.append(name)
                kept.parts.append(self._keep(part))
            return kept
        kept = self._remember(Kept('same', value))
        self._meet(value)
        return kept

    def _keep_contents(self, value: Any, contents: tuple[str, list[Any], list[Any], Any]) -> Kept:
        kind, labels, items, data = contents
        if len(items) > LIMIT:
            raise TooMany
        if kind == 'set':
            self.count += len(items)
            kept = self._remember(Kept(kind, value, tuple([self._keep_member(item) for item in items])))
        else:
            kept = self._remember(Kept(kind, value, data, [], []))
            for label in labels:
                kept.labels.append(self._keep_member(label))
            for item in items:
                kept.parts.append(self._keep(item))
        if not among(type(value), BUILT_IN):
            self._meet(value)
        return kept

    def _keep_member(self, member: Any) -> Held:
        if plain_key(member) is None and not among(type(member), (tuple, frozenset)):
            self._meet(member)
        return member_key(member)

    def _meet(self, value: Any) -> None:
        if self.met is not None:
            self.met(value)

    def _remember(self, kept: Kept) -> Kept:
        self.memory[id(kept.value)] = kept
        self._new.append(id(kept.value))
        return kept


def contents_of(value: Any) -> tuple[str, list[Any], list[Any], Any] | None:
    """Kind (as in :class:`Kept`), labels, items and data of a container; None for other values."""
    cls = type(value)
    if issubclass(cls, (list, tuple, deque)):
        base: Any = list if issubclass(cls, list) else tuple if issubclass(cls, tuple) else deque
        has_fields = base is tuple and 'n_sequence_fields' in dictionary_of_class(cls)
        # some fields of a tuple with names, as ``time.struct_time``, are none of its items
        held = filter(lambda one: one is not cls, gc.get_referents(value)) if has_fields else base.__iter__(value)
        return 'items', [], list(held), _MAXLEN(value) if base is deque else None
    if issubclass(cls, dict):
        pairs = items_of_dict(value) + _factory_of(value)
        return 'dict', [key for key, _ in pairs], [item for _, item in pairs], None
    if issubclass(cls, (set, frozenset)):
        kind: Any = set if issubclass(cls, set) else frozenset
        return 'set', [], list(kind.__iter__(value)), None
    if issubclass(cls, np.ndarray):
        whole = np.asarray(value) if cls is np.ndarray else np.ndarray.view(value, np.ndarray)
        attributes = {} if cls is np.ndarray else attributes_of(value)
        kind = exact(whole.dtype)
        more = [*attributes.values()] if kind is not None else [*attributes.values(), whole.dtype]
        items, raw = (whole.ravel().tolist(), b'') if whole.dtype.hasobject else ([], whole.tobytes())
        form = whole.dtype, whole.shape, raw, whole.strides, (whole.flags.writeable, whole.flags.aligned), kind
        return 'items', [], [*items, *more], form
    if cls is bytearray:
        return 'items', [], [], bytes(value)
    if cls is array.array:
        return 'items', [], [], (value.typecode, value.tobytes())
    if cls is types.MethodWrapperType or (
        cls is types.BuiltinMethodType and not issubclass(type(value.__self__), (types.ModuleType, type, type(None)))
    ):
        return 'items', [], [value.__self__], value.__name__
    if cls is functools.partial:
        return 'items', [], [value.func, value.args, value.keywords], None
    if cls is slice:
        return 'items', [], [value.start, value.stop, value.step], None
    return _contents_behind(value)


#: Views of a mapping, which hold nothing else.
VIEWS: tuple[type, ...] = (
    types.MappingProxyType, type({}.keys()), type({}.values()), type({}.items()),
    type(OrderedDict().keys()), type(OrderedDict().values()), type(OrderedDict().items()),
)  # fmt: skip


#: Classes whose objects always hold what they held. Which of two equal ones somebody has makes no difference to him.
UNCHANGING: tuple[type, ...] = (
    tuple, frozenset, slice, functools.partial, operator.itemgetter, operator.methodcaller, types.BuiltinMethodType,
    types.MethodWrapperType, *VIEWS,
)  # fmt: skip


def _contents_behind(value: Any) -> tuple[str, list[Any], list[Any], Any] | None:
    """The same for views, proxies and caches, which show or keep the contents of other objects."""
    cls = type(value)
    if cls is functools._lru_cache_wrapper:
        return 'items', [], answers_of(value), None
    if cls is operator.methodcaller:
        return _given_to_caller(value)
    if cls is operator.itemgetter:
        return 'items', [], list(value.__reduce__()), None  # it holds what it was given, which may be a list
    if among(cls, VIEWS):
        return 'items', [], gc.get_referents(value)[:1], None
    if cls is np.void and not value.dtype.hasobject:
        kind = exact(value.dtype)
        return 'items', [], [] if kind is not None else [value.dtype], (value.dtype, value.tobytes(), kind)
    if cls is np.ufunc and gc.is_tracked(value):  # np.frompyfunc makes such ones: they hold a function of Python
        return 'items', [], gc.get_referents(value)[:1], by_identity(value)
    if cls is memoryview:
        with contextlib.suppress(ValueError, NotImplementedError):  # it is released
            kind = value.format, value.shape, value.strides, value.readonly
            return 'items', [], [value.obj], (*kind, value.tobytes())
    return None


def _given_to_caller(caller: operator.methodcaller) -> tuple[str, list[Any], list[Any], Any]:
    """The name and the arguments in a ``methodcaller``. With names of arguments it shows another partial each time."""
    shown: Any = caller.__reduce__()
    made, args = shown
    if type(made) is not functools.partial:
        return 'items', [], [*args], ()
    return 'items', [], [*made.args, *args, *made.keywords.values()], tuple(made.keywords)


def _factory_of(value: Any) -> list[tuple[Any, Any]]:
    """What makes the missing values of a dict, under a name that no other key is likely to have."""
    factory = DEFAULT_FACTORY.__get__(value) if issubclass(type(value), defaultdict) else None
    return [] if factory is None else [(NotImplemented, factory)]


def answers_of(cached: Any) -> list[Any]:
    """What a function with a cache (``functools.lru_cache``) has kept: keys and answers, the least recently used first.

    The garbage collector visits them: the class; where answers are dropped at some size, for each of them its key, the
    answer and the class of the link that holds both; the cache, of key and answer (or link); the function behind it.
    """
    found = gc.get_referents(cached)[1:]
    count = type(cached).cache_info(cached).currsize
    if type(found[0]) is dict:
        kept = [*found[0].keys(), *found[0].values()] if count else []
        return [found[1], *kept]
    links = found[: 3 * count]
    return [found[len(links) + 1], *links[0::3], *links[1::3]]


def items_of_dict(value: Any) -> list[tuple[Any, Any]]:
    """Keys and values of a dict or of an instance of a derived class."""
    if issubclass(type(value), OrderedDict):
        return [(key, dict.__getitem__(value, key)) for key in OrderedDict.__iter__(value)]
    return list(dict.items(value))

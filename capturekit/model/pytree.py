"""Takes arrays out of nested containers, and puts arrays back.

A form is made of nested tuples, so that hashing and comparing it is Python's own work: an ``int`` is the number of a
leaf, a tuple starts with the type that it describes, and :class:`Held` stands for a value that is kept. No user code is
called: types are found with ``type``, attributes are read through Python's own descriptors.
"""

from __future__ import annotations

import functools
import math
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import numpy as np

from capturekit.model.class_layout import (
    MISSING,
    among,
    attributes_of,
    bases_of,
    dictionary_of_class,
    layout_of,
    name_of,
    solid_base,
)
from capturekit.model.kept_values import DEFAULT_FACTORY, IsArray, items_of_dict
from capturekit.model.plain_values import (
    BY_EQUALITY,
    BY_IDENTITY,
    CONTAINERS,
    WITH_ATTRIBUTES,
    Held,
    HeldArray,
    HeldSet,
    attribute_text,
    by_identity,
    index_text,
    is_nan,
    plain_key,
    with_article,
)

Form = Hashable

#: What an instance of a derived class is, by the classes of numbers and texts from which others may be derived.
_PAYLOAD: dict[type, Callable[[Any], object]] = {
    str: str.__str__, bytes: lambda value: bytes.__getitem__(value, slice(None)),
    int: int.__pos__, float: float.__pos__, complex: complex.__pos__,
}  # fmt: skip
PAYLOADS = tuple(_PAYLOAD)
#: Members of numbers that are not slots of a user's class.
_C_MEMBERS = frozenset({'real', 'imag'})
BOUND = (types.MethodType, types.BuiltinMethodType, types.MethodWrapperType)
_OBJECT, _DERIVED, _ARRAY, _PARTIAL = 'object', 'derived', 'objects in an array', 'partial'


class _Indescribable(Exception):
    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what
        self.path: list[str] = []


def take_apart(
    value: object,
    is_array: IsArray,
    opaque: Callable[[Any], bool] | None = None,
    *,
    name: str = 'args',
    met: set[int] | None = None,
    nans: bool = False,
) -> tuple[list[Any], Form]:
    """Return the arrays in ``value``, in order and each once, and its form: all other contents.

    Arguments:
        is_array: returns True for arrays.
        opaque: returns True for objects that are described by identity instead of by class and attributes.
        name: the name of ``value`` in messages.
        met: gets the ids of the containers in ``value``.
        nans: whether numbers that are not equal to themselves are told apart by identity.

    Raises:
        TypeError: something in ``value`` can't be described, holds itself or is there twice; the text says where.
    """
    taking = _Taking(is_array, opaque, set() if met is None else met, nans)
    try:
        return taking.leaves, taking.node(value)
    except _Indescribable as error:
        raise TypeError(f'{name}{"".join(reversed(error.path))} {error.what}') from None
    except RecursionError:
        raise TypeError(f'{name} is nested too deeply') from None


class _Taking:
    """Takes one value apart."""

    def __init__(self, is_array: IsArray, opaque: Callable[[Any], bool] | None, met: set[int], nans: bool) -> None:
        self.is_array = is_array
        self.nans = nans
        self.opaque = opaque
        self.met = met
        self.leaves: list[Any] = []
        self.known: dict[int, int] = {}
        self.open: set[int] = set()

    def node(self, value: Any) -> Any:
        cls = type(value)
        ordinary = type(cls) is type
        if ordinary and cls in BY_EQUALITY:
            return (cls, value)
        if cls is float:
            known = self.nans or value is math.nan or value is np.nan
            return plain_key(value) if value == value or not known else Held((cls, id(value)), value)
        if self.is_array(value):
            number = self.known.setdefault(id(value), len(self.known))
            if number == len(self.leaves):
                self.leaves.append(value)
            return number
        contains = ordinary and cls in CONTAINERS and not (cls in WITH_ATTRIBUTES and attributes_of(value))
        if not contains:
            key = plain_key(value)
            if key is not None:
                return Held((key, id(value)) if self.nans and is_nan(value) else key, value)
        if id(value) in self.open:
            raise _Indescribable(f'holds itself: {with_article(name_of(cls))} in a cycle')
        self.open.add(id(value))
        again = id(value) in self.met
        self.met.add(id(value))
        try:
            node = self._container(value, cls) if contains else self._compound(value, cls)
        finally:
            self.open.discard(id(value))
        if type(node) is Held:
            self.met.discard(id(value))
        elif again and cls is not tuple and cls is not frozenset:
            raise _Indescribable(f'is {with_article(name_of(cls))} that is there twice')
        return node

    def _compound(self, value: Any, cls: type) -> Any:
        if cls is np.ndarray:
            return self._numpy(value)
        if among(cls, BOUND) and type(value.__self__) is not types.ModuleType:
            function = id(value.__func__) if cls is types.MethodType else value.__name__
            return Held((cls, id(value.__self__), function), value)
        if issubclass(cls, BY_IDENTITY):
            return by_identity(value)
        if self.opaque is not None and self.opaque(value):
            return by_identity(value)
        if cls is functools.partial and not value.__dict__:
            parts = (('func', value.func), ('args', value.args), ('keywords', value.keywords))
            return (_PARTIAL, *self._nodes(attribute_text, parts))
        if cls is slice:
            parts = (('start', value.start), ('stop', value.stop), ('step', value.step))
            return (slice, *self._nodes(attribute_text, parts))
        if cls is object:
            return by_identity(value)
        return self._instance(value, cls)

    def _nodes(self, write: Callable[[Any], str], parts: Iterable[tuple[Any, Any]]) -> list[Any]:
        """Nodes of labelled parts. ``write`` makes the text of a label for an error message."""
        nodes = []
        pair: Any = None
        try:
            for pair in parts:
                nodes.append(self.node(pair[1]))
        except _Indescribable as error:
            error.path.append(write(pair[0]))
            raise
        return nodes

    def _container(self, value: Any, base: Any) -> Any:
        if base is set or base is frozenset:
            members = tuple([self._key(member, 'a set') for member in base.__iter__(value)])
            return (base, members, HeldSet(len(members), _set_in_order(base, value)))
        if base is dict and set(map(type, value)) <= {str}:
            return (dict, tuple(dict.keys(value)), *self._nodes(index_text, dict.items(value)))
        if issubclass(base, dict):
            pairs = items_of_dict(value)
            keys = tuple([key if type(key) is str else self._key(key, 'a key of a dict') for key, _ in pairs])
            factory = (by_identity(DEFAULT_FACTORY.__get__(value)),) if base is defaultdict else ()
            return (base, *factory, keys, *self._nodes(index_text, pairs))
        extra = (value.maxlen,) if base is deque else ()
        items = base.__iter__(value)
        return (base, *extra, *self._nodes('[{}]'.format, enumerate(items)))

    def _key(self, key: Any, where: str) -> Any:
        if self.is_array(key):
            raise _Indescribable(f'has an array in {where}')
        if among(type(key), (tuple, frozenset)):
            parts = tuple([self._key(part, where) for part in key])
            return (tuple, *parts) if type(key) is tuple else (frozenset, parts, HeldSet(len(parts), key))
        plain = plain_key(key)
        if plain is None:
            return by_identity(key)
        return plain if among(type(key), BY_EQUALITY) or type(key) is float else Held(plain, key)

    def _numpy(self, value: Any) -> Any:
        objects, kind, flags = value.dtype.hasobject, plain_key(value.dtype), value.flags
        if objects and value.dtype != object:
            raise _Indescribable('is a structured numpy array with objects in it')
        if kind is None:
            raise _Indescribable('is a numpy array whose dtype has metadata')
        if not flags.aligned:
            raise _Indescribable('is a numpy array that is not aligned')
        copy = np.empty(value.shape, object) if objects else value.copy(order='K')
        if copy.strides != value.strides or (objects and not flags.writeable):
            raise _Indescribable(f'is a numpy array of strides {value.strides}, which a copy has not')
        if objects:
            return (_ARRAY, value.shape, *self._nodes('.flat[{}]'.format, enumerate(value.ravel().tolist())))
        copy.flags.writeable = flags.writeable
        return HeldArray((kind, value.shape, value.strides, flags.writeable, value.tobytes()), copy)

    def _instance(self, value: Any, cls: type) -> Any:
        solid = solid_base(cls)
        layout = layout_of(cls)
        attributes = layout.dictionary(value) if layout.dictionary is not None else {}
        if solid is object or solid is types.SimpleNamespace:
            head: tuple[Any, ...] = (_OBJECT, by_identity(cls))
        elif among(solid, CONTAINERS):
            head = (_DERIVED, by_identity(cls), self._container(value, solid))
        elif among(solid, PAYLOADS) and not attributes and not layout.slots.keys() - _C_MEMBERS:
            return Held((id(cls), plain_key(_PAYLOAD[solid](value))), value)
        else:
            raise _Indescribable(f'is {with_article(name_of(cls))}')
        if _has_finalizer(cls):
            raise _Indescribable(
                f'is {with_article(name_of(cls))} with a method __del__, which would run for copies, too'
            )
        slots = [(name, layout.read_slot(value, name)) for name in layout.slots if solid is object]
        slots = [(name, item) for name, item in slots if item is not MISSING]
        names = tuple(attributes), tuple([name for name, _ in slots])
        return (*head, *names, *self._nodes(attribute_text, [*attributes.items(), *slots]))


def held_in(form: Form) -> list[Any]:
    """The values in a form that are kept by identity, and methods bound to such values."""
    found: list[Any] = []
    if isinstance(form, (tuple, frozenset)):
        for node in form:
            found += held_in(node)
    elif type(form) is Held and (type(form.key) is int or among(type(form.value), BOUND)):
        found.append(form.value)
    return found


def put_together(form: Form, leaves: Sequence[Any]) -> Any:
    """Make the value of that form again, with ``leaves`` in the places of its arrays. Containers are new ones."""
    node: Any = form
    cls = type(node)
    if cls is int:
        return leaves[node]
    if cls is Held:
        return node.value
    if cls is HeldArray:
        copy = node.value.copy(order='K')
        copy.flags.writeable = node.value.flags.writeable
        return copy
    head = node[0]
    if head in BY_EQUALITY:
        return node[1]
    if head is float:
        return float(node[1])
    if head is tuple:
        return tuple([put_together(part, leaves) for part in node[1:]])
    if head is list:
        return [put_together(part, leaves) for part in node[1:]]
    if head is slice:
        return slice(*[put_together(part, leaves) for part in node[1:]])
    if head is _PARTIAL:
        function, args, keywords = [put_together(part, leaves) for part in node[1:]]
        return functools.partial(function, *args, **keywords)
    if head is _ARRAY:
        made = np.empty(len(node) - 2, object)
        for number, part in enumerate(node[2:]):
            made[number] = put_together(part, leaves)
        return made.reshape(node[1])
    if head is _OBJECT:
        kind = node[1].value
        make = types.SimpleNamespace if issubclass(kind, types.SimpleNamespace) else object
        return _fill(make.__new__(kind), node[2], node[3], node[4:], leaves)
    if head is _DERIVED:
        value = _container(node[2], leaves, node[1].value)
        return _fill(value, node[3], node[4], node[5:], leaves)
    return _container(node, leaves, head)


def _set_in_order(cls: Any, value: Any) -> Any:
    """A set of class ``cls`` whose members come in the order of ``value``.

    Members whose hashes collide come in an order that depends on how the set grew: a copy, a set that gets them one by
    one and one that gets them from the last to the first are tried.
    """
    base: Any = set if issubclass(cls, set) else frozenset
    if cls is frozenset and type(value) is frozenset:
        return value
    members = list(base.__iter__(value))
    for source in (value, members, members[::-1]):
        made: Any = base.__new__(cls, source)
        if base is set:
            set.update(made, source)
        if all(a is b for a, b in zip(base.__iter__(made), members)):
            return made
    raise _Indescribable('is a set whose members come in another order in a copy')


def _container(node: Any, leaves: Sequence[Any], cls: Any) -> Any:
    """Make a container of class ``cls``, which is ``node[0]`` or derived from it."""
    base = node[0]
    if issubclass(base, dict):
        made = base.__new__(cls)
        parts = node[1:]
        if base is defaultdict:
            DEFAULT_FACTORY.__set__(made, parts[0].value)
            parts = parts[1:]
        put = OrderedDict.__setitem__ if base is OrderedDict else dict.__setitem__
        for key, part in zip(parts[0], parts[1:]):
            put(made, key if type(key) is str else _member(key), put_together(part, leaves))
        return made
    if base in (set, frozenset):
        held = node[2].value
        return held if cls is frozenset else _set_in_order(cls, held)
    if base is deque:
        made = deque.__new__(cls)
        deque.__init__(made, [put_together(part, leaves) for part in node[2:]], node[1])
        return made
    items = [put_together(part, leaves) for part in node[1:]]
    if base is tuple:
        return tuple.__new__(cls, items)
    made = list.__new__(cls)
    list.extend(made, items)
    return made


def _member(node: Any) -> Any:
    if type(node) is tuple and node[0] is tuple:
        return tuple([_member(part) for part in node[1:]])
    if type(node) is tuple and node[0] is frozenset:
        return node[2].value
    return put_together(node, ())


def _fill(made: Any, names: Any, slots: Any, parts: Any, leaves: Sequence[Any]) -> Any:
    layout = layout_of(type(made))
    if names and layout.dictionary is not None:
        layout.dictionary(made).update(zip(names, [put_together(part, leaves) for part in parts]))
    for name, part in zip(slots, parts[len(names) :]):
        layout.slots[name].__set__(made, put_together(part, leaves))
    return made


def _has_finalizer(cls: type) -> bool:
    return any('__del__' in dictionary_of_class(base) for base in bases_of(cls))

"""Arrays inside nested containers: taken out, put back, and what a run changed in the containers around them.

A form is made of nested tuples, so that hashing and comparing it is Python's own work: an ``int`` is the number of a
leaf, a tuple starts with what it describes, and :class:`_Held` stands for a value that is kept. No code of the user's
is called: types are asked with ``type``, attributes are read through descriptors of Python's own.
"""

from __future__ import annotations

import array
import datetime
import decimal
import enum
import fractions
import functools
import gc
import pathlib
import re
import struct
import types
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from capturekit.model.counted import counted

IsArray = Callable[[Any], bool]
Form = Hashable

#: More values than this inside one value are not kept: comparing them would cost more than a launch saves.
LIMIT = 10_000

_BY_EQUALITY = frozenset({type(None), bool, int, str, bytes, type(...), type(NotImplemented)})
#: Immutable, and their text says all of them.
_BY_TEXT = frozenset({
    complex, datetime.date, datetime.timedelta, decimal.Decimal, fractions.Fraction, uuid.UUID,
    pathlib.PurePosixPath, pathlib.PureWindowsPath, type(pathlib.Path()),
})  # fmt: skip
_BY_IDENTITY = (
    types.FunctionType, types.BuiltinFunctionType, types.WrapperDescriptorType,
    types.MethodDescriptorType, types.ClassMethodDescriptorType, types.GetSetDescriptorType,
    types.MemberDescriptorType, types.ModuleType, type, np.ufunc, re.Pattern, types.GenericAlias, types.UnionType,
    type(np.dot),
)  # fmt: skip
_PAYLOADS = (str, bytes, int, float, complex)
_DICTS = (OrderedDict, defaultdict, dict)
CONTAINERS = frozenset({list, tuple, OrderedDict, defaultdict, Counter, dict, set, frozenset, deque})

_OBJECT, _DERIVED, _ARRAY, _PARTIAL = 'object', 'derived', 'objects in an array', 'partial'
_ATTRIBUTE = '.{}'.format
_WORD = struct.calcsize('P')
_HEAP, _NO_INSTANCES = 1 << 9, 1 << 7


class _Missing:
    __slots__ = ()

    def __repr__(self) -> str:
        return 'MISSING'


MISSING = _Missing()


def dictionary_of_class(cls: type) -> Any:
    """``cls.__dict__``, whatever its metaclass says."""
    return _CLASS_DICT(cls)


_FACTORY: Any = defaultdict.__dict__['default_factory']
_MAXLEN: Any = vars(deque)['maxlen'].__get__
_CLASS_DICT = type.__dict__['__dict__'].__get__
_CLASS_MRO = type.__dict__['__mro__'].__get__
_CLASS_NAME = type.__dict__['__name__'].__get__
_CLASS_FLAGS, _CLASS_SIZE, _DICT_AT, _WEAK_AT = (
    type.__dict__[name].__get__ for name in ('__flags__', '__basicsize__', '__dictoffset__', '__weakrefoffset__')
)


def bases_of(cls: type) -> tuple[type, ...]:
    """``cls.__mro__``, whatever its metaclass says."""
    mro: tuple[type, ...] = _CLASS_MRO(cls)
    return mro


def name_of(cls: type) -> str:
    """``cls.__name__``, whatever its metaclass says."""
    name: str = _CLASS_NAME(cls)
    return name


def made_by_class_statement(cls: type) -> bool:
    """True for classes made at run time; a few of those are written in C."""
    return bool(_CLASS_FLAGS(cls) & _HEAP)


def among(cls: type, group: Iterable[type]) -> bool:
    """``cls in group`` by identity: a metaclass may have an ``__eq__`` or ``__hash__`` of its own."""
    return any(cls is one for one in group)


class Layout(NamedTuple):
    """Where instances of a class keep their attributes: a getter of the ``__dict__`` or None, and the slots."""

    dictionary: Callable[[Any], dict[str, Any]] | None
    slots: dict[str, Any]

    def read_slot(self, value: object, name: str) -> object:
        try:
            return self.slots[name].__get__(value)
        except AttributeError:
            return MISSING


#: Members that say where something lies in the instances, and tell nothing of them.
_NO_SLOTS = frozenset({'__dict__', '__vectorcalloffset__', '__dictoffset__', '__weaklistoffset__'})


def layout_of(cls: type) -> Layout:
    """Find the ``__dict__`` and the slots of a class's instances without asking the instances."""
    dictionary = None
    slots: dict[str, Any] = {}
    decided = False
    for base in bases_of(cls):
        members = dictionary_of_class(base)
        if not decided and '__dict__' in members:
            decided = True
            found = members['__dict__']
            if among(type(found), (types.GetSetDescriptorType, types.MemberDescriptorType)):
                dictionary = found.__get__
        for name, member in members.items():
            if type(member) is types.MemberDescriptorType and name not in _NO_SLOTS:
                slots.setdefault(name, member)
    return Layout(dictionary, slots)


def solid_base(cls: type) -> type:
    """The innermost base whose instances ``object.__new__`` does not make as Python does, or object."""
    bases = bases_of(cls)
    for base in bases:
        new = dictionary_of_class(base).get('__new__')
        made_in_c = type(new) is types.BuiltinFunctionType and new.__self__ is base
        if not made_by_class_statement(base) or _CLASS_FLAGS(base) & _NO_INSTANCES or made_in_c:
            if base is not object:
                return base
            break
    members = sum(type(member) is types.MemberDescriptorType for base in bases for member in _members(base))
    words = members + (_DICT_AT(cls) > 0) + (_WEAK_AT(cls) > 0)
    return object if _CLASS_SIZE(cls) <= object.__basicsize__ + words * _WORD else cls


def _members(cls: type) -> list[Any]:
    return list(dictionary_of_class(cls).values())


def plain_key(value: object) -> Hashable | None:
    """What stands for an immutable value by value and type; None if it isn't one.

    Equal for nan and nan; different for 1, 1.0 and True, and for 0.0 and -0.0.
    """
    cls = type(value)
    if type(cls) is not type:
        if issubclass(cls, np.dtype):
            return (np.dtype, value)
        return (enum.Enum, id(value)) if issubclass(type(cls), enum.EnumMeta) else None
    if cls in _BY_EQUALITY:
        return (cls, value)
    if cls is float:
        return (float, value) if value and value == value else (float, repr(value))
    if cls in _BY_TEXT or cls is range:
        return (cls, repr(value))
    if cls is slice:
        parts: Any = value
        keys = (plain_key(parts.start), plain_key(parts.stop), plain_key(parts.step))
        return None if None in keys else (slice, *keys)
    return _scalar_key(value) if issubclass(cls, np.generic) and cls is not np.void else None


def _scalar_key(value: Any) -> Hashable | None:
    cls = type(value)
    if cls.__module__ != 'numpy' or value.dtype.hasobject:
        return None
    if issubclass(cls, (np.longdouble, np.clongdouble)):
        return (cls, repr(value))  # its bytes have gaps
    text: bytes = value.tobytes()
    if issubclass(cls, (np.floating, np.complexfloating)) and value != value:
        text = str(value).encode()  # there are many nans
    return (cls, value.dtype, text)


class _Held:
    """A value that is kept as it is; equal by its key. A key made of an id is good while the value is held."""

    __slots__ = ('key', 'value')

    def __init__(self, key: Hashable, value: object) -> None:
        self.key = key
        self.value = value

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f'<{show(self.value)}>'


class _HeldArray(_Held):
    """A numpy array, of which ``value`` is a copy."""

    __slots__ = ()


def _by_identity(value: object) -> _Held:
    return _Held(id(value), value)


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
) -> tuple[list[Any], Form]:
    """Return the arrays in ``value``, in order and each once, and its form: all that is not the arrays.

    Arguments:
        is_array: tells arrays.
        opaque: tells objects that are described by identity instead of by class and attributes.
        name: what messages call ``value``.
        met: gets the ids of the containers in ``value``.

    Raises:
        TypeError: something in ``value`` can't be described, holds itself or is there twice; the text says where.
    """
    if type(value) is tuple:
        known: dict[int, int] = {}
        leaves: list[Any] = []
        nodes: list[Any] = [tuple]
        for item in value:
            cls = type(item)
            if type(cls) is type and cls in _BY_EQUALITY:
                nodes.append((cls, item))
            elif cls is float:
                nodes.append((float, item) if item and item == item else (float, repr(item)))
            elif is_array(item):
                number = known.setdefault(id(item), len(known))
                if number == len(leaves):
                    leaves.append(item)
                nodes.append(number)
            else:
                break
        else:
            return leaves, tuple(nodes)
    taking = _Taking(is_array, opaque, set() if met is None else met)
    try:
        return taking.leaves, taking.node(value)
    except _Indescribable as error:
        raise TypeError(f'{name}{"".join(reversed(error.path))} {error.what}') from None
    except RecursionError:
        raise TypeError(f'{name} is nested too deeply') from None


class _Taking:
    """One value being taken apart."""

    def __init__(self, is_array: IsArray, opaque: Callable[[Any], bool] | None, met: set[int]) -> None:
        self.is_array = is_array
        self.opaque = opaque
        self.met = met
        self.leaves: list[Any] = []
        self.known: dict[int, int] = {}
        self.open: set[int] = set()

    def node(self, value: Any) -> Any:
        cls = type(value)
        ordinary = type(cls) is type
        if ordinary and cls in _BY_EQUALITY:
            return (cls, value)
        if cls is float:
            return plain_key(value)
        if self.is_array(value):
            number = self.known.setdefault(id(value), len(self.known))
            if number == len(self.leaves):
                self.leaves.append(value)
            return number
        contains = ordinary and cls in CONTAINERS
        if not contains:
            key = plain_key(value)
            if key is not None:
                return _Held(key, value)
        if id(value) in self.open:
            raise _Indescribable(f'holds itself: {_article(name_of(cls))} in a cycle')
        self.open.add(id(value))
        again = id(value) in self.met
        self.met.add(id(value))
        try:
            node = self._container(value, cls) if contains else self._compound(value, cls)
        finally:
            self.open.discard(id(value))
        if type(node) is _Held:
            self.met.discard(id(value))
        elif again and cls is not tuple and cls is not frozenset:
            raise _Indescribable(f'is {_article(name_of(cls))} that is there twice')
        return node

    def _compound(self, value: Any, cls: type) -> Any:
        if cls is np.ndarray:
            return self._numpy(value)
        if among(cls, _BOUND) and type(value.__self__) is not types.ModuleType:
            function = id(value.__func__) if cls is types.MethodType else value.__name__
            return _Held((cls, id(value.__self__), function), value)
        if issubclass(cls, _BY_IDENTITY):
            return _by_identity(value)
        if self.opaque is not None and self.opaque(value):
            return _by_identity(value)
        if cls is functools.partial and not value.__dict__:
            parts = (('func', value.func), ('args', value.args), ('keywords', value.keywords))
            return (_PARTIAL, *self._nodes(_ATTRIBUTE, parts))
        if cls is slice:
            parts = (('start', value.start), ('stop', value.stop), ('step', value.step))
            return (slice, *self._nodes(_ATTRIBUTE, parts))
        if cls is object:
            return _by_identity(value)
        return self._instance(value, cls)

    def _nodes(self, write: Callable[[Any], str], parts: Iterable[tuple[Any, Any]]) -> list[Any]:
        """Nodes of parts with labels, which ``write`` makes text of where that is wanted."""
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
            return (base, tuple([self._key(member, 'a set') for member in base.__iter__(value)]))
        if base is dict and set(map(type, value)) <= {str}:
            return (dict, tuple(dict.keys(value)), *self._nodes(_index, dict.items(value)))
        if issubclass(base, dict):
            pairs = items_of_dict(value)
            keys = tuple([key if type(key) is str else self._key(key, 'a key of a dict') for key, _ in pairs])
            factory = (_by_identity(_FACTORY.__get__(value)),) if base is defaultdict else ()
            return (base, *factory, keys, *self._nodes(_index, pairs))
        extra = (value.maxlen,) if base is deque else ()
        items = base.__iter__(value)
        return (base, *extra, *self._nodes('[{}]'.format, enumerate(items)))

    def _key(self, key: Any, where: str) -> Any:
        if self.is_array(key):
            raise _Indescribable(f'has an array in {where}')
        if among(type(key), (tuple, frozenset)):
            return (type(key), *[self._key(part, where) for part in key]) if type(key) is tuple else (
                frozenset, frozenset([self._key(part, where) for part in key]))  # fmt: skip
        plain = plain_key(key)
        if plain is None:
            return _by_identity(key)
        return plain if among(type(key), _BY_EQUALITY) or type(key) is float else _Held(plain, key)

    def _numpy(self, value: Any) -> Any:
        if value.dtype.hasobject:
            if value.dtype != object:
                raise _Indescribable('is a structured numpy array with objects in it')
            return (_ARRAY, value.shape, *self._nodes('.flat[{}]'.format, enumerate(value.ravel().tolist())))
        return _HeldArray((value.dtype, value.shape, value.strides, value.tobytes()), value.copy(order='K'))

    def _instance(self, value: Any, cls: type) -> Any:
        solid = solid_base(cls)
        layout = layout_of(cls)
        attributes = layout.dictionary(value) if layout.dictionary is not None else {}
        if solid is object or solid is types.SimpleNamespace:
            head: tuple[Any, ...] = (_OBJECT, _by_identity(cls))
        elif among(solid, CONTAINERS):
            head = (_DERIVED, _by_identity(cls), self._container(value, solid))
        elif among(solid, _PAYLOADS) and not attributes and not layout.slots.keys() - _C_MEMBERS:
            return _Held((id(cls), plain_key(_payload(value, solid))), value)
        else:
            raise _Indescribable(f'is {_article(name_of(cls))}')
        slots = [(name, layout.read_slot(value, name)) for name in layout.slots if solid is object]
        slots = [(name, item) for name, item in slots if item is not MISSING]
        names = tuple(attributes), tuple([name for name, _ in slots])
        return (*head, *names, *self._nodes(_ATTRIBUTE, [*attributes.items(), *slots]))


#: Members of the bodies of numbers, which are no slots of a class of the user's.
_C_MEMBERS = frozenset({'real', 'imag'})


def _payload(value: Any, base: Any) -> object:
    """The number or text that an instance of a class derived from ``base`` is."""
    if base is str:
        return str.__str__(value)
    if base is bytes:
        return bytes.__getitem__(value, slice(None))
    if base is complex:
        return complex.__pos__(value)
    return base.__pos__(value)


def held_in(form: Form) -> list[Any]:
    """The values in a form that are kept by identity, or are bound to what is."""
    found: list[Any] = []
    if isinstance(form, (tuple, frozenset)):
        for node in form:
            found += held_in(node)
    elif type(form) is _Held and (type(form.key) is int or among(type(form.value), _BOUND)):
        found.append(form.value)
    return found


_BOUND = (types.MethodType, types.BuiltinMethodType, types.MethodWrapperType)


def items_of_dict(value: Any) -> list[tuple[Any, Any]]:
    """Keys and values of a dict or of an instance of a derived class."""
    if issubclass(type(value), OrderedDict):
        return [(key, dict.__getitem__(value, key)) for key in OrderedDict.__iter__(value)]
    return list(dict.items(value))


def _index(key: object) -> str:
    if type(key) is str:
        return '["' + key + '"]'
    return f'[{show(key)}]'


def _article(noun: str) -> str:
    return f'{"an" if noun[:1].lower() in "aeiou" else "a"} {noun}'


def put_together(form: Form, leaves: Sequence[Any]) -> Any:
    """Make the value of that form again, with ``leaves`` in the places of its arrays. Containers are new ones."""
    node: Any = form
    cls = type(node)
    if cls is int:
        return leaves[node]
    if cls is _Held:
        return node.value
    if cls is _HeldArray:
        return node.value.copy(order='K')
    head = node[0]
    if head in _BY_EQUALITY:
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


def _container(node: Any, leaves: Sequence[Any], cls: Any) -> Any:
    """Make a container of class ``cls``, which is ``node[0]`` or derived from it."""
    base = node[0]
    if issubclass(base, dict):
        made = base.__new__(cls)
        parts = node[1:]
        if base is defaultdict:
            _FACTORY.__set__(made, parts[0].value)
            parts = parts[1:]
        put = OrderedDict.__setitem__ if base is OrderedDict else dict.__setitem__
        for key, part in zip(parts[0], parts[1:]):
            put(made, key if type(key) is str else _member(key), put_together(part, leaves))
        return made
    if base in (set, frozenset):
        members = [_member(part) for part in node[1]]
        if base is frozenset:
            return frozenset.__new__(cls, members)
        made = set.__new__(cls)
        set.update(made, members)
        if not all(a is b for a, b in zip(set.__iter__(made), members)):
            raise TypeError('the members of a set come in another order when it is made again')
        return made
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
        return frozenset([_member(part) for part in node[1]])
    return put_together(node, ())


def _fill(made: Any, names: Any, slots: Any, parts: Any, leaves: Sequence[Any]) -> Any:
    layout = layout_of(type(made))
    if names and layout.dictionary is not None:
        layout.dictionary(made).update(zip(names, [put_together(part, leaves) for part in parts]))
    for name, part in zip(slots, parts[len(names) :]):
        layout.slots[name].__set__(made, put_together(part, leaves))
    return made


class Kept(NamedTuple):
    """A value as it was: ``value`` itself, and by ``kind`` what it held.

    ``kind``: 'plain' (``data``: its key), 'same' (by identity), 'method', 'items' (``parts``), 'dict' and 'object'
    (``labels``, ``parts``), 'set' (``data``: keys), 'numbers' (``data``: bytes and what they are), 'big' (length).
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
        is_array: tells arrays, which are kept by identity.
        whole: tells objects whose attributes are kept with them; None: no object's are.
        met: is called with every value that is kept by identity and is no array.
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
        self._new: list[int] = []
        self.count = 0

    def arrays_and_forms(self) -> list[tuple[Any, Any]]:
        """The arrays met, each with the shape and the strides that it had."""
        return [(self.arrays[key], form) for key, form in self.forms.items()]

    def keep(self, value: Any) -> Kept:
        """Keep one value, with what it holds. One that holds too much is 'big': of it, identity and length."""
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
        key = plain_key(value)
        if key is not None:
            if issubclass(type(type(value)), enum.EnumMeta) or issubclass(type(value), (decimal.Decimal, np.generic)):
                self._meet(value)
            return Kept('plain', value, key)
        if self.is_array(value):
            self.arrays[id(value)] = value
            if hasattr(type(value), 'strides'):
                self.forms.setdefault(id(value), (value.shape, value.strides))
            return Kept('same', value)
        known = self.memory.get(id(value))
        if known is not None:
            return known
        cls = type(value)
        if cls is types.MethodType:
            kept = Kept('method', value)
            self._remember(kept)
            self._meet(value)
            return kept
        contents = contents_of(value)
        if contents is not None:
            return self._keep_contents(value, contents)
        if self.whole is not None and not issubclass(cls, _BY_IDENTITY) and self.whole(value):
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
        if not among(type(value), _EXACT):
            self._meet(value)
        return kept

    def _keep_member(self, member: Any) -> _Held:
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


def member_key(member: Any) -> _Held:
    """A key of a dict, or a member of a set, by value where it is simple and by identity where not."""
    if among(type(member), (tuple, frozenset)):
        return _Held((type(member), type(member)([member_key(part) for part in member])), member)
    key = plain_key(member)
    return _Held(key, member) if key is not None else _by_identity(member)


def contents_of(value: Any) -> tuple[str, list[Any], list[Any], Any] | None:
    """Kind (as in :class:`Kept`), labels, items and data of a container; None for what is none."""
    cls = type(value)
    if issubclass(cls, (list, tuple, deque)):
        base: Any = list if issubclass(cls, list) else tuple if issubclass(cls, tuple) else deque
        return 'items', [], list(base.__iter__(value)), _MAXLEN(value) if base is deque else None
    if issubclass(cls, dict):
        pairs = items_of_dict(value)
        factory = _by_identity(_FACTORY.__get__(value)) if issubclass(cls, defaultdict) else None
        return 'dict', [key for key, _ in pairs], [item for _, item in pairs], factory
    if issubclass(cls, (set, frozenset)):
        kind: Any = set if issubclass(cls, set) else frozenset
        return 'set', [], list(kind.__iter__(value)), None
    if issubclass(cls, np.ndarray):
        whole = np.asarray(value) if cls is np.ndarray else np.ndarray.view(value, np.ndarray)
        attributes = {} if cls is np.ndarray else attributes_of(value)
        if whole.dtype.hasobject:
            items = whole.ravel().tolist()
            return 'items', [], [*items, *attributes.values()], (whole.dtype, whole.shape)
        return 'items', [], list(attributes.values()), (whole.dtype, whole.shape, whole.tobytes())
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
    if cls is functools._lru_cache_wrapper:
        return _answers_of(value)
    if among(cls, VIEWS):
        return 'items', [], gc.get_referents(value)[:1], None
    if cls is memoryview:
        return _bytes_of(value)
    if cls is np.void and not value.dtype.hasobject:
        return 'items', [], [], (value.dtype, value.tobytes())
    return None


#: Views of a mapping, which hold nothing else.
VIEWS: tuple[type, ...] = (
    types.MappingProxyType, type({}.keys()), type({}.values()), type({}.items()),
    type(OrderedDict().keys()), type(OrderedDict().values()), type(OrderedDict().items()),
)  # fmt: skip


def _answers_of(cached: Any) -> tuple[str, list[Any], list[Any], Any]:
    """What a function with a cache (``functools.lru_cache``) has kept: keys and answers, the least recently used first.

    The garbage collector visits them: the class; where answers are dropped at some size, for each of them its key, the
    answer and the class of the link that holds both; the cache, of key and answer (or link); the function behind it.
    """
    found = gc.get_referents(cached)[1:]
    count = type(cached).cache_info(cached).currsize
    if type(found[0]) is dict:
        kept = [*found[0].keys(), *found[0].values()] if count else []
        return 'items', [], [found[1], *kept], None
    links = found[: 3 * count]
    return 'items', [], [found[len(links) + 1], *links[0::3], *links[1::3]], None


def _bytes_of(view: memoryview) -> tuple[str, list[Any], list[Any], Any] | None:
    try:
        return 'items', [], [], (view.format, view.shape, view.tobytes())
    except (ValueError, NotImplementedError):  # it is released
        return None


def attributes_of(value: object) -> dict[str, Any]:
    """A copy of an object's attributes: those in its ``__dict__`` and its slots."""
    layout = layout_of(type(value))
    found = dict(layout.dictionary(value)) if layout.dictionary is not None else {}
    for name in layout.slots:
        item = layout.read_slot(value, name)
        if item is not MISSING:
            found[name] = item
    return found


#: Containers that hold nothing but their contents.
_EXACT = frozenset({list, tuple, deque, *_DICTS, Counter, set, frozenset, np.ndarray, bytearray, array.array, slice})


class ValueDifference(NamedTuple):
    """Where (``'["lr"]'``) and how (``'is 0.05 and was 0.1'``) a value differs from what was kept."""

    path: str
    text: str


def difference(kept: Kept, value: Any, seen: set[tuple[int, int]] | None = None) -> ValueDifference | None:
    """Compare a value with one that was kept; None if they are the same."""
    if kept.kind == 'same':
        return None if value is kept.value else _other(value, kept)
    if kept.kind == 'plain':
        return None if value is kept.value or plain_key(value) == kept.data else _other(value, kept)
    if value is MISSING or type(value) is not type(kept.value):
        return _other(value, kept)
    if kept.kind == 'method':
        same = value.__self__ is kept.value.__self__ and value.__func__ is kept.value.__func__
        return None if same else _other(value, kept)
    if seen is None:
        seen = set()
    pair = (id(kept.value), id(value))
    if pair in seen:
        return None
    seen.add(pair)
    if kept.kind == 'object':
        if value is not kept.value:
            return _other(value, kept)
        attributes = attributes_of(value)
        return _entries(kept, list(attributes), list(attributes.values()), seen, _ATTRIBUTE, str)
    contents = contents_of(value)
    if kept.kind == 'big':
        if value is not kept.value:
            return _other(value, kept)
        return _length(-1 if contents is None else len(contents[2]), kept.data)
    assert contents is not None
    _, labels, items, data = contents
    if kept.kind == 'set':
        keys = tuple([member_key(item) for item in items])
        if keys == kept.data:
            return None
        if frozenset(keys) == frozenset(kept.data):
            return ValueDifference('', 'does not have its members in the order that they were in')
        return _length(len(items), len(kept.data)) or ValueDifference('', 'does not have the members that it had')
    if data != kept.data:
        if issubclass(type(value), np.ndarray) and data[:2] != kept.data[:2]:
            return ValueDifference(
                '', f'is of {data[0]}, shape {data[1]} and was of {kept.data[0]}, shape {kept.data[1]}'
            )
        return ValueDifference('', 'does not hold the values that it held')
    if kept.kind == 'dict':
        return _entries(kept, labels, items, seen, _index, member_key)
    if len(items) != len(kept.parts):
        return _length(len(items), len(kept.parts))
    for number, (part, item) in enumerate(zip(kept.parts, items)):
        found = difference(part, item, seen)
        if found is not None:
            return ValueDifference(f'[{number}]{found.path}', found.text)
    return None


def _entries(
    kept: Kept,
    labels: list[Any],
    items: list[Any],
    seen: set[tuple[int, int]],
    write: Callable[[Any], str],
    key: Callable[[Any], Any],
) -> ValueDifference | None:
    """Compare the entries of a dict, or the attributes of an object, of which the order counts for a dict only."""
    is_dict = kept.kind == 'dict'
    now = {key(label): item for label, item in zip(labels, items)}
    before = set(kept.labels)
    for label in kept.labels:
        if label not in now:
            return ValueDifference(write(label.value if is_dict else label), 'is gone and was there')
    for label in labels:
        if key(label) not in before:
            return ValueDifference(write(label), 'is there and was not')
    if is_dict and list(now) != kept.labels:
        return ValueDifference('', 'does not have its keys in the order that they were in')
    for label, part in zip(kept.labels, kept.parts):
        found = difference(part, now[label], seen)
        if found is not None:
            return ValueDifference(write(label.value if is_dict else label) + found.path, found.text)
    return None


def _length(now: int, before: int) -> ValueDifference | None:
    if now == before:
        return None
    return ValueDifference('', f'has {counted(now, "item")} and had {before}')


def _other(value: Any, kept: Kept) -> ValueDifference:
    if value is MISSING:
        return ValueDifference('', f'is gone and was {show(kept.value)}')
    if kept.value is MISSING:
        return ValueDifference('', f'is {show(value)} and was not there')
    now, before = show(value), show(kept.value)
    if now == before:
        return ValueDifference('', f'is not the {name_of(type(value))} that it was')
    return ValueDifference('', f'is {now} and was {before}')


def show(value: Any) -> str:
    """A value in a message, without asking it."""
    cls = type(value)
    if issubclass(type(cls), enum.EnumMeta):
        name = attributes_of(value).get('_name_')
        return f'{name_of(cls)}.{name}'
    if (cls is tuple or cls is frozenset) and all(plain_key(part) is not None for part in value):
        inner = ', '.join(show(part) for part in value)
        inner += ',' if cls is tuple and len(value) == 1 else ''
        text = f'({inner})' if cls is tuple else f'frozenset({{{inner}}})'
    elif plain_key(value) is not None:
        text = repr(value)
    elif issubclass(cls, types.FunctionType):
        return f'function {value.__name__}'
    elif issubclass(cls, type):
        return f'class {name_of(value)}'
    elif among(cls, _EXACT):
        return _article(name_of(cls))
    else:
        return _article(f'{name_of(cls)} object')
    return text if len(text) <= 60 else text[:57] + '...'


class Snapshot(NamedTuple):
    """What :func:`snapshot` kept."""

    kept: Kept
    opaque: Callable[[Any], bool] | None


def snapshot(value: object, is_array: IsArray, opaque: Callable[[Any], bool] | None = None) -> Snapshot:
    """Keep a value's containers as they are before a run, for :func:`shape_of_change`.

    Of objects that ``opaque`` tells, nothing but identity is kept.
    """

    def whole(found: Any) -> bool:
        cls = type(found)
        layout = layout_of(cls)
        can = solid_base(cls) in (object, types.SimpleNamespace) and bool(layout.dictionary or layout.slots)
        return can and not (opaque is not None and opaque(found))

    return Snapshot(Keeper(is_array, whole).keep(value), opaque)


def shape_of_change(before: Snapshot, value: object, is_array: IsArray, *, name: str = 'args') -> str | None:
    """Say what changed in the containers since ``snapshot``, in words; None if nothing did.

    ``args[0] has 3 items and had 2 before``. Arrays are compared by identity.
    """
    found = difference(before.kept, value)
    return None if found is None else f'{name}{found.path} {found.text} before'

"""Puts wrappers in the places that :mod:`capturekit.guard.entry_points` names, and restores them exactly.

The first :func:`Installation.install` puts all wrappers in place, or, if one fails, none; the last
:func:`Installation.uninstall` puts back what was there: the same objects, and nothing where an attribute was inherited.

CuPy's extension types refuse ``setattr``. Their methods are looked up in a dictionary like any type's, which
``gc.get_referents`` reaches; writing there and telling the interpreter that the type was modified replaces a method for
Python callers (CuPy's own C-level calls don't go through it)."""

from __future__ import annotations

import ctypes
import functools
import gc
import importlib
import inspect
import itertools
import re
import sys
import threading
import types
from collections.abc import Callable
from operator import attrgetter
from typing import Any, cast

from capturekit.guard.entry_points import ENTRIES, NCCL, RUNTIME, Entry
from capturekit.model.class_layout import MISSING
from capturekit.model.counters import refused
from capturekit.model.errors import CaptureError, as_raised
from capturekit.model.skipped_exits import Lock
from capturekit.model.versions import lacking

# -- keyword arguments are put in the positions of their parameters, which the verbs of several functions share -------


@functools.lru_cache(1024)
def places_of(function: Any) -> tuple[str, ...]:
    """The names of the parameters that can be passed by position; extension modules have them in the docstring."""
    try:
        parameters = inspect.signature(function).parameters.values()
        return tuple(one.name for one in parameters if one.kind <= inspect.Parameter.POSITIONAL_OR_KEYWORD)
    except (TypeError, ValueError):
        pass
    first = str(getattr(function, '__doc__', None) or '').strip().partition('\n')[0]
    match = re.fullmatch(r'[\w.]+\((.*)\)(?: -> .*)?', first)
    if match is None or not match[1] or ('[' in match[1] and '=' not in match[1]):
        return ()
    parts = re.split(r',(?![^()]*\))', match[1])  # at the commas outside of brackets
    names = [part.partition('=')[0].split()[-1].lstrip('\\') for part in parts]
    return tuple(name for name in itertools.takewhile(lambda name: name[0] != '*', names) if name != '/')


@functools.lru_cache(1024)
def _takes_any_name(verb: Any) -> bool:
    return any(one.kind is inspect.Parameter.VAR_KEYWORD for one in inspect.signature(verb).parameters.values())


def in_order(
    verb: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Put keyword arguments in their positions, for verbs that do not have CuPy's names."""
    if _takes_any_name(verb):
        return args, kwargs
    rest, given = dict(kwargs), list(args)
    for name in places_of(function)[len(args) :]:
        if name not in rest:
            break
        given.append(rest.pop(name))
    return tuple(given), rest


def resolve(dotted: str) -> Any:
    """Return the module or class of a dotted name; AttributeError or ImportError names what is missing."""
    return _way(dotted)[-1]


def _way(dotted: str) -> tuple[str, Any, str, Any]:
    """Import the module that a dotted name begins with; return its name, it, the attributes that follow, the holder."""
    parts = dotted.split('.')
    for length in range(len(parts), 0, -1):
        name, attributes = '.'.join(parts[:length]), '.'.join(parts[length:])
        try:
            module = sys.modules.get(name) or _imported(name)
        except ModuleNotFoundError:
            continue
        return name, module, attributes, attrgetter(attributes)(module) if attributes else module
    raise ImportError(f'no part of {dotted} is a module')


def _imported(name: str) -> Any:
    """Import a module without replacing the attribute of that name in its package, as importing normally does."""
    package, _dot, attribute = name.rpartition('.')
    parent = (sys.modules.get(package) or _imported(package)) if package else None
    before = getattr(parent, attribute, MISSING)
    module = importlib.import_module(name)
    if before is not MISSING:
        setattr(parent, attribute, before)
    return module


def _namespace(holder: Any) -> dict[str, Any]:
    """The dictionary of an extension type's attributes."""
    found = gc.get_referents(holder.__dict__)[0]
    if not isinstance(found, dict):
        raise TypeError(f'the attributes of {holder!r} can not be reached')
    return found


class _Slot:
    """One attribute of one holder: what was found there, what takes its place, and whether that has been written."""

    def __init__(self, entry: Entry, holder: Any) -> None:
        self.entry, self.holder, self.name = entry, holder, entry.name
        self.written = False
        self.wrapper: Any = None
        self.plain = not isinstance(holder, type) or not holder.__flags__ & _IMMUTABLE
        #: Where the attribute is looked up to see whether it has changed, and what was there.
        self.place = holder.__dict__
        self.found = self.before = self.original = self.place.get(entry.name, MISSING)
        if self.before is MISSING:
            self.original = None if entry.kind == 'attribute' else getattr(holder, entry.name)

    def takes(self, wrapper: Any) -> None:
        self.wrapper = wrapper

    def restore(self) -> None:
        """Put back what was there."""
        if not self.plain:
            space = _namespace(self.holder)
            if self.before is MISSING:
                space.pop(self.name, None)
            else:
                space[self.name] = self.before
            _modified(self.holder)
        elif self.before is not MISSING:
            setattr(self.holder, self.name, self.before)
        elif self.name in self.place:  # an interrupt may have come before it was written
            delattr(self.holder, self.name)
        self.written = False


#: ``Py_TPFLAGS_IMMUTABLETYPE``; all static types have it.
_IMMUTABLE = 1 << 8


def _modified(holder: type) -> None:
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(holder))


def _wrapper(
    entry: Entry, original: Any, verb: Callable[..., Any], inside: Inside, has_refused: Callable[..., object]
) -> Any:
    """Make the wrapper of an entry. ``inside.active()`` is true in threads where the guard itself is calling."""
    if entry.kind == 'attribute':
        return _Attribute(entry.name, verb, inside)
    if entry.kind == 'maker':
        return _maker(original, verb, inside)
    if entry.kind == 'always':
        return functools.partial(verb, original)
    if isinstance(original, bool):
        return _Asked(original, verb, inside)
    function: Any = original.__get__ if entry.kind == 'property' else original

    def call(*args: Any, **kwargs: Any) -> Any:
        if inside.active():
            return function(*args, **kwargs)
        if kwargs:
            args, kwargs = in_order(verb, function, args, kwargs)
        if inside.policy is not None:
            return inside.policy.instead_of(verb)(function, *args, **kwargs)
        try:
            return verb(function, *args, **kwargs)
        except CaptureError as error:
            refused(error)
            has_refused(error, entry)
            raise as_raised(error)  # noqa: B904

    if entry.kind == 'property':
        return property(call, doc=getattr(original, '__doc__', None))
    if isinstance(original, type):
        return _stands_for(original, call)
    try:
        functools.update_wrapper(call, original)
    except TypeError:
        call.__name__ = entry.name
    return call


def _maker(original: Any, verb: Callable[..., Any], inside: Any) -> staticmethod[..., Any]:
    """Make the wrapper of an array class's ``__new__``. Results and views, which CuPy's own code makes with
    ``_no_init``, several for each operation, skip the verb."""
    new: Any = getattr(original, '__func__', original)

    def __new__(cls: Any, *args: Any, _no_init: bool = False, **kwargs: Any) -> Any:
        if _no_init or inside.active() or inside.eager:
            return new(cls, *args, _no_init=_no_init, **kwargs)
        return verb(new, cls, *args, **kwargs)

    return staticmethod(__new__)


class _Asked:
    """Replaces a boolean setting of CuPy: the verb is called whenever CuPy reads it."""

    def __init__(self, original: bool, verb: Callable[..., Any], inside: Any) -> None:
        self._original, self._verb, self._inside = original, verb, inside

    def __bool__(self) -> bool:
        if self._inside.active() or self._inside.eager:
            return self._original
        return bool(self._verb(self._original))

    def __repr__(self) -> str:
        return repr(self._original)


def _stands_for(original: type, call: Callable[..., Any]) -> type:
    """Return a class that replaces another: making an instance calls the wrapper, all else is the class's."""
    members: dict[str, Any] = {
        '__call__': lambda _cls, *args, **kwargs: call(*args, **kwargs),
        '__instancecheck__': lambda _cls, one: isinstance(one, original),
        '__subclasscheck__': lambda _cls, one: issubclass(one, original),
        '__getattr__': lambda _cls, name: getattr(original, name),
    }
    names = {name: getattr(original, name) for name in ('__module__', '__qualname__', '__doc__')}
    made: type = type('Guarded', (type,), members)(original.__name__, (), names)
    return made


class _CodeSlot(_Slot):
    """The code of a Python function, which is replaced and restored. So all references to the function are wrapped."""

    def __init__(self, entry: Entry, holder: Any) -> None:
        super().__init__(entry, holder)
        function = self.original
        self.holder, self.name, self.before, self.plain = function, '__code__', function.__code__, True
        self.original = types.FunctionType(
            function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
        )
        self.original.__kwdefaults__ = function.__kwdefaults__

    def takes(self, wrapper: Any) -> None:
        _CODE[str(self.entry)] = wrapper
        constants = tuple(str(self.entry) if c == 'NAME' else c for c in _trampoline.__code__.co_consts)
        code = _trampoline.__code__.replace(co_consts=constants, co_name=self.before.co_name)
        # a function takes code with as many variables of closures as it has
        self.wrapper = code.replace(co_freevars=self.before.co_freevars)


#: The wrappers that replaced code calls, by the entry's name.
_CODE: dict[str, Callable[..., Any]] = {}


def _trampoline(*args: Any, **kwargs: Any) -> Any:
    """The replacement code, which runs with the globals of the function whose code it replaces."""
    from capturekit.guard.patching import _CODE as behind

    return behind['NAME'](*args, **kwargs)


class _Attribute:
    """A descriptor for an attribute of instances that calls the verb at each reading. The instance keeps the value."""

    def __init__(self, name: str, verb: Callable[..., Any], inside: Any) -> None:
        self._name, self._verb, self._inside = name, verb, inside

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            raise AttributeError(self._name)
        try:
            value = instance.__dict__[self._name]
        except KeyError:
            raise AttributeError(self._name) from None
        # capturekit's own code reads it too often to call the verb each time
        reader = sys._getframe(1).f_globals.get('__name__', '')
        if not (self._inside.active() or reader.startswith('capturekit.')):
            verb = self._verb if self._inside.policy is None else self._inside.policy.instead_of(self._verb)
            instead = verb(instance, value)
            return instead if isinstance(instead, int) else value
        return value

    def __set__(self, instance: Any, value: Any) -> None:
        instance.__dict__[self._name] = value


class Inside(threading.local):
    """Whether this thread is in the guard's own calls; and the policy that is installed for it, or None.

    A lock that only this thread uses counts the blocks ``with inside:``: no signal interrupts its methods half way.
    """

    policy: Any = None
    __enter__: Any = property(attrgetter('_lock.__enter__'))
    __exit__: Any = property(attrgetter('_lock.__exit__'))

    def __init__(self) -> None:
        self._lock = lock = cast(Any, Lock())
        self.active: Callable[[], bool] = lock._is_owned

    def __call__(self) -> Inside:
        """This object, for code that is given a function which makes its blocks."""
        return self

    @property
    def eager(self) -> bool:
        """Whether nothing is recorded, so that arrays that are made, and CuPy's switches, are not asked about."""
        return self.policy is not None and not self.policy.records


class Installation:
    """The installed wrappers of one guard. Installations are counted."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._count = 0
        self._known: list[_Slot] = []
        #: Where each holder was found, by its dotted name: the module and the attributes that lead to it.
        self._ways: dict[str, tuple[str, Any, str, Any]] = {}
        self._copy: Any = None
        self.originals: dict[str, Any] = {}
        #: What each wrapper replaces, by the wrapper's id.
        self._replaced: dict[int, Any] = {}
        self.inside = Inside()

    @property
    def installed(self) -> bool:
        return self._count > 0

    def original_of(self, value: Any) -> Any:
        """What an installed wrapper replaced, or MISSING if nothing was there; any other value is returned as it is."""
        return self._replaced.get(id(value), value) if self._count else value

    def install(self, guard: Any) -> None:
        """Count an installation; the first one puts the wrappers in place."""
        with self._lock:
            if self._count == 0:
                self._restore_all()  # what an interrupt has left
                self._write_all(guard)
            self._count += 1

    def _write_all(self, guard: Any) -> None:
        if self._stale():
            self._find_all(guard)
        try:
            for slot in self._known:  # entering a capture comes here: no calls for each slot
                slot.written = True
                if slot.plain:
                    setattr(slot.holder, slot.name, slot.wrapper)
                else:
                    _namespace(slot.holder)[slot.name] = slot.wrapper
                    _modified(slot.holder)
        except BaseException:
            self._restore_all()
            raise

    def _find_all(self, guard: Any) -> None:
        """Find the slots of the imported CuPy, and make their wrappers: once, and again if something has changed."""
        slots, has_refused = [], getattr(guard, 'has_refused', lambda error, entry: None)
        self._known, self._ways = [], {}  # nothing is known until all is
        for entry in ENTRIES:
            for slot in self._find(entry):
                verb = attrgetter(entry.verb)(guard)
                if 'entry' in verb.__code__.co_varnames[:2]:
                    verb = functools.partial(verb, entry)
                slot.takes(_wrapper(entry, slot.original, verb, self.inside, has_refused))
                slots.append(slot)
        self._known = slots
        self._replaced = {id(slot.wrapper): slot.before for slot in slots if not isinstance(slot, _CodeSlot)}
        self._copy = _come_and_go()
        self.originals = {str(slot.entry): slot.original for slot in slots}

    def _stale(self) -> bool:
        """True if nothing was found yet, or a holder or its attribute is another object by now."""
        if not self._known or self._copy != _come_and_go():
            return True
        for name, module, attributes, holder in self._ways.values():
            if sys.modules.get(name) is not module:
                return True
            try:
                if attributes and attrgetter(attributes)(module) is not holder:
                    return True
            except AttributeError:
                return True
        for slot in self._known:
            found = slot.place.get(slot.entry.name, MISSING)
            if found is not slot.found or (slot.name == '__code__' and slot.holder.__code__ is not slot.before):
                return True
        return False

    def _find(self, entry: Entry) -> list[_Slot]:
        if entry.loaded and entry.loaded not in sys.modules:
            return []
        try:
            holder = self._holder(entry.also or entry.holder)
            if entry.kind == 'code' and isinstance(getattr(holder, entry.name), types.FunctionType):
                return [_CodeSlot(entry, holder)]
            slots = [_Slot(entry, holder)]
            if entry.also and entry.holder in sys.modules:
                slots.append(_Slot(entry, self._holder(entry.holder)))
        except RuntimeError:
            if threading.main_thread().is_alive():
                raise
            return []  # Python is ending: nobody can import concurrent.futures.thread any more
        except (AttributeError, ImportError) as error:
            if entry.optional or entry.holder == RUNTIME:
                return []  # CUDA's runtime functions come and go with versions of CuPy
            raise ImportError(lacking(str(entry))) from error
        return slots[:1] if slots[0].holder is slots[-1].holder else slots

    def _holder(self, dotted: str) -> Any:
        if dotted not in self._ways:
            self._ways[dotted] = _way(dotted)
        return self._ways[dotted][-1]

    def uninstall(self) -> None:
        """Undo one installation; the last one restores what was there."""
        with self._lock:
            if self._count == 0:
                raise RuntimeError('uninstall without install')
            self._count -= 1
            if self._count == 0:
                self._restore_all()

    def _restore_all(self) -> None:
        """Restore in reverse; every slot is tried, the first failure is raised at the end."""
        failure: BaseException | None = None
        for slot in reversed(self._known):
            try:
                if slot.written:
                    slot.restore()
            except BaseException as error:
                failure = failure or error
        if failure is not None:
            raise failure


def _come_and_go() -> tuple[int, ...]:
    """Return the identities of the optional modules, which the guard does not import itself."""
    return tuple(map(id, map(sys.modules.get, (RUNTIME, NCCL, 'cupy.cuda.nccl'))))

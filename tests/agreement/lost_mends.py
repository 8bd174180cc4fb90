"""The mends of causes of wrong answers, each taken out on its own, to see that the programs find the cause again."""

from __future__ import annotations

import types
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

from capturekit.graphed import (
    answering,
    binding,
    calls_followed,
    code_watch,
    hidden_state,
    recordable,
    run_end,
    settings,
    stream_order,
    variant,
    variant_recorder,
    watch,
    watched_objects,
)
from capturekit.graphed.environment import Environment
from capturekit.graphed.running import Result
from capturekit.graphed.watched_objects import GivenValues
from capturekit.graphed.watched_values import Doubts, NamesUsed, WatchedValues
from capturekit.guard import GUARD
from capturekit.guard.allocators import Allocators
from capturekit.guard.arrays import Arrays
from capturekit.guard.caller_streams import CallerStreams
from capturekit.guard.effects import Effects
from capturekit.guard.random_draws import RandomDraws
from capturekit.model import pytree
from capturekit.model.errors import CaptureError
from capturekit.model.kept_values import Keeper

Patch = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class LostMend:
    """One mend. ``about``: what programs that can find it hold; ``beside``: taken out as well, and alone does nothing.

    The search for a program that finds the cause begins at the program ``first``, which was one when this was written.
    """

    cause: str
    first: int
    about: str
    patches: tuple[Patch, ...]
    beside: tuple[Patch, ...] = ()

    def out(self) -> ExitStack:
        """Take the mend out, until the block ends."""
        return _entered((*self.beside, *self.patches))

    def with_what_is_beside(self) -> ExitStack:
        """Take out only what is beside it."""
        return _entered(self.beside)


def _entered(patches: tuple[Patch, ...]) -> ExitStack:
    stack = ExitStack()
    stack.callback(_wrap_anew)
    for patch in patches:
        stack.enter_context(patch())
    _wrap_anew()
    return stack


def _wrap_anew() -> None:
    """Let the next capture make its wrappers anew: those that the guard keeps call its methods as they were."""
    GUARD.installation._known = []


def _gives(owner: Any, name: str, answer: Any = None) -> Patch:
    """A function or method that only gives this answer."""
    return lambda: mock.patch.object(owner, name, _of_the_package(lambda *args, **kwargs: answer))


def _replaced(owner: Any, name: str, made: Callable[[Any], Any]) -> Patch:
    """What is made of the original stands in its place."""
    return lambda: mock.patch.object(owner, name, _of_the_package(made(getattr(owner, name))))


def _of_the_package(made: Any) -> Any:
    """Let a function be the package's own, as the one in whose place it stands: it is no code that is followed."""
    if type(made) is types.FunctionType:
        made.__code__ = made.__code__.replace(co_filename=run_end.__file__)
    return made


def _always() -> bool:
    return True


def _without(part: str) -> Patch:
    """An environment is made without one of its parts."""

    def made(original: Any) -> Any:
        return lambda self, run: original(self, replace(run, **{part: ()}))

    return _replaced(Environment, '__init__', made)


def _visible(*classes: str) -> Patch:
    """Objects of these classes count as seen, whole."""

    def made(original: Any) -> Any:
        return lambda value: type(value).__name__ in classes or original(value)

    return _replaced(watched_objects, 'is_visible', made)


def _no_contents(original: Any) -> Any:
    def only_met(self: Any, kind: str, holder: Any, key: str, value: Any, *rest: Any) -> Any:
        if kind == 'argument':
            self.meet(value)
            return None
        return original(self, kind, holder, key, value, *rest)

    return only_met


def _as_before(original: Any) -> Any:
    def allocator_set(self: Any, set_: Any, allocator: Any) -> Any:
        mine = self.state.mine()
        caller = None if mine is None else mine.caller
        try:
            if mine is not None:
                mine.caller = None
            return original(self, set_, allocator)
        finally:
            if mine is not None:
                mine.caller = caller

    return allocator_set


def _through(position: int) -> Callable[[Any], Any]:
    """The guard's method does what it guards, and no more; the original is at ``position`` among the arguments."""

    def made(_original: Any) -> Any:
        def through(self: Any, *args: Any, **kwargs: Any) -> Any:
            return args[position](*args[position + 1 :], **kwargs)

        return through

    return made


def _only_constant_names(original: Any) -> Any:
    def names_of(code: Any) -> Any:
        found = original(code)
        found.unknown = ''
        return found

    return names_of


def _only_arguments(original: Any) -> Any:
    return lambda function: 'arguments' if original(function) == 'names' else original(function)


def _at_home(original: Any) -> Any:
    def implied(self: Any, live: Any, lane: Any) -> Any:
        return [one for one in original(self, live, lane) if one.device == lane.device == live.origin_device]

    return implied


def _of_one_device(original: Any) -> Any:
    def init(self: Any, platform: Any, caller: Any) -> None:
        home = platform.cupy.cuda.runtime.getDevice()
        caller.outside = {where: stream for where, stream in caller.outside.items() if where[0] == home}
        original(self, platform, caller)

    return init


def _kept_where_it_lies(original: Any) -> Any:
    def source(self: Any, array: Any, known: Any, memory: Any) -> Any:
        try:
            return original(self, array, known, memory)
        except CaptureError:
            return Result('kept', array=array)

    return source


def _ranges_by_equality(original: Any) -> Any:
    return lambda value: (range, value) if type(value) is range else original(value)


def _any_mask(_original: Any) -> Any:
    return lambda self, array, key: key if isinstance(key, type(array)) and key.dtype.kind == 'b' else None


def _always_bound(_original: Any) -> Any:
    return lambda self, instance, owner=None: self if instance is None else types.MethodType(self, instance)


def _forgetting(original: Any) -> Any:
    def close(self: Any) -> None:
        self.unsettled.clear()
        original(self)

    return close


def _without_attributes(original: Any) -> Any:
    def meet(self: Any, value: Any) -> None:
        if type(value).__name__ not in ('Counter', 'OrderedDict'):
            original(self, value)

    return meet


def _all_arrays(cupy: Any) -> Any:
    return lambda value: isinstance(value, cupy.ndarray)


def _without_underscores(original: Any) -> Any:
    return lambda names: [name for name in original(names) if not name.startswith('__')]


_SHAPES = (_without('forms'), _gives(Keeper, 'arrays_and_forms', ()))

LOST: tuple[LostMend, ...] = (
    LostMend('1 blocking streams', 143, r'S1 = ', (_gives(CallerStreams, 'in_order'),)),
    LostMend('2 objects in arguments', 19521, r'A_a\d+ = (\[|\{|\(|Data|Pair).*(Plain|Slots|Held|Child|Described)\(', (_gives(GivenValues, 'keep_arguments'),)),
    LostMend('3 opaque arguments', 1164, r'A_a\d+ = (Row|Table|Grown|bytearray|array|dict)', (_replaced(WatchedValues, 'watch', _no_contents),)),
    LostMend('4 computed names', 287, r'getattr|vars|fields', (_replaced(calls_followed, 'reads', _only_arguments),
             _replaced(code_watch, 'names_of', _only_constant_names))),
    LostMend('5 a refusal that is caught', 59, r'except BaseException', (_gives(recordable, 'must_not_refuse'),)),
    LostMend('6 an allocator of its own', 1004, r'POOL', (_replaced(Allocators, 'pool_malloc', _through(1)),
             _replaced(Allocators, 'allocator_set', _as_before),
             _replaced(variant_recorder.VariantRecorder, '_source', _kept_where_it_lies))),
    LostMend('7 changed twice', 4240, r'VOICE = ValueError\(B\)', (_gives(recordable, 'must_reach_known_arrays'),), (_visible('ValueError'),)),
    LostMend('8 imports in the function', 318, r'    (from|import) settings', (_gives(code_watch.CodeWatch, '_imported'),)),
    LostMend('9 threads', 1498, r'threading\.Thread', (_replaced(Effects, 'thread_fed', _through(1)), _gives(Doubts, 'add'))),
    LostMend('10 cached helpers', 19841, r'lru_cache', (_visible('_lru_cache_wrapper'), _gives(Doubts, 'add'))),
    LostMend('11 classes of the library', 466, r'UserDict|ContextVar|ChainMap|VOICE', (_visible('ContextVar', 'ValueError'),
             _gives(watched_objects, 'is_whole', False))),
    LostMend('12 the outside world', 12, r'environ|decimal|printoptions', (_gives(Doubts, 'add'), _visible('local'))),
    LostMend('13 names that come later', 430, r'LATER|LOOKED', (_without('missing'),)),
    LostMend('14 checks that come later', 8071, r'settled\(True', (_replaced(variant.Variant, 'close', _forgetting),)),
    LostMend('15 another state to draw from', 3228, r'set_random_state', (_gives(RandomDraws, '_default_state', None),)),
    LostMend('16 order with streams outside', 762, r'S2 = ', (_gives(stream_order.StreamOrder, 'needed', False),)),
    LostMend('17 identities', 4111, r'OPTIONS', (_gives(answering, 'given_back'), _gives(run_end, '_aliases'))),
    LostMend('18 two devices', 207, r'Device\(1\)', (_replaced(CallerStreams, 'implied', _at_home),
             _replaced(stream_order.StreamOrder, '__init__', _of_one_device))),
    LostMend('19 shapes that change', 1924, r'\.shape = ', _SHAPES),
    LostMend('20 bases of arrays', 10880, r'\.base is|owndata', (_gives(NamesUsed, 'of_arrays'),)),
    LostMend('21 masks that do not fit', 137, r'y\[y\.ravel|ones\(5, bool\)', (_replaced(Arrays, '_whole_mask', _any_mask),)),
    LostMend('22 keys that collide', 101555, r'A_a\d+ = range', (_replaced(pytree, 'plain_key', _ranges_by_equality),)),
    LostMend('23 special methods', 27, r'Held\(|Grown\(', (lambda: mock.patch.object(watched_objects, 'SPECIAL', frozenset()),
             _replaced(run_end, '_not_pythons', _without_underscores))),
    LostMend('24 memory of the host', 11848, r'out=HOST', (_gives(Arrays, '_fills'), _gives(run_end, '_written'))),
    LostMend('25 events that are returned', 1989, r'return y, (e|cp)', (
        lambda: mock.patch.object(answering, 'only_arrays', _all_arrays),
        lambda: mock.patch.object(variant_recorder, 'only_arrays', _all_arrays), _gives(recordable, 'must_leave_nothing')),
        (_gives(pytree, '_has_finalizer', False),)),
    LostMend('26 bases of classes', 39074, r'__bases__', (_without('bases'),)),
    LostMend('27 static methods', 42, r'staticmethod', (_replaced(binding.AsFunction, '__get__', _always_bound),)),
    LostMend('29 standard files', 1271, r'class Tee', (_gives(settings, 'output_now', (_always, True)), _gives(hidden_state, 'is_as_it_was', _always))),
    LostMend('30 errors of numbers', 185, r'def on_error', (_gives(settings, '_errors', settings.Setting(_always, True)),)),
    LostMend('31 loggers', 77, r'class Collects', (_gives(hidden_state, 'is_logger_as', True),)),
    LostMend('32 attributes of dicts', 652, r'class Filled', (_replaced(Keeper, '_meet', _without_attributes),)),
    LostMend('33 the collector that is asked', 25, r'from gc import', (
        lambda: mock.patch.object(watch, 'OF_COLLECTOR', frozenset()), lambda: mock.patch.object(watched_objects, 'OF_COLLECTOR', frozenset()))),
)  # fmt: skip

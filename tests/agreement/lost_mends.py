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
    ownership,
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
from capturekit.graphed.variant_recorder import Result
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


def put(owner: Any, name: str, value: Any) -> Patch:
    """This value in the place of another one."""
    return lambda: mock.patch.object(owner, name, value)


def replaced(owner: Any, name: str, stand_in: Callable[..., Any]) -> Patch:
    """A function that is given the original and its arguments in the place of a function or method.

    Both are the package's own by their code, as the one in whose place they stand: they are no code that is followed.
    """

    def patch() -> AbstractContextManager[Any]:
        original = getattr(owner, name)

        def called(*args: Any, **kwargs: Any) -> Any:
            return stand_in(original, *args, **kwargs)

        for made in (called, stand_in):
            made.__code__ = made.__code__.replace(co_filename=run_end.__file__)
        return mock.patch.object(owner, name, called)

    return patch


def gives(owner: Any, name: str, answer: Any = None) -> Patch:
    """A function or method that only gives this answer."""
    return replaced(owner, name, lambda _original, *args, **kwargs: answer)


def _without(name: str) -> Patch:
    """An environment is made without one part of what a run has read."""
    return replaced(Environment, '__init__', lambda original, self, run: original(self, replace(run, **{name: ()})))


def _visible(*classes: str) -> Patch:
    """Objects of these classes count as seen, whole."""
    return replaced(ownership, 'is_visible', lambda original, value: type(value).__name__ in classes or original(value))


def _unguarded(_original: Any, _self: Any, _patched: Any, call: Any, *args: Any, **kwargs: Any) -> Any:
    """What a method of the guard's guards, and no more."""
    return call(*args, **kwargs)


def _no_contents(original: Any, self: Any, kind: str, holder: Any, key: str, value: Any, *rest: Any) -> Any:
    if kind != 'argument':
        return original(self, kind, holder, key, value, *rest)
    return self.meet(value)


def _as_before(original: Any, self: Any, set_: Any, allocator: Any) -> Any:
    mine = self.state.mine()
    if mine is None:
        return original(self, set_, allocator)
    caller, mine.caller = mine.caller, None
    try:
        return original(self, set_, allocator)
    finally:
        mine.caller = caller


def _only_constant_names(original: Any, code: Any) -> Any:
    found = original(code)
    found.unknown = ''
    return found


def _only_arguments(original: Any, function: Any) -> Any:
    found = original(function)
    return 'arguments' if found == 'names' else found


def _at_home(original: Any, self: Any, live: Any, lane: Any) -> Any:
    return [one for one in original(self, live, lane) if one.device == lane.device == live.origin_device]


def _of_one_device(original: Any, self: Any, platform: Any, caller: Any) -> None:
    home = platform.cupy.cuda.runtime.getDevice()
    caller.outside = {where: stream for where, stream in caller.outside.items() if where[0] == home}
    original(self, platform, caller)


def _kept_where_it_lies(original: Any, self: Any, array: Any, known: Any, memory: Any) -> Any:
    try:
        return original(self, array, known, memory)
    except CaptureError:
        return Result('kept', array=array)


def _ranges_by_equality(original: Any, value: Any) -> Any:
    return (range, value) if type(value) is range else original(value)


def _any_mask(_original: Any, _self: Any, array: Any, key: Any) -> Any:
    return key if isinstance(key, type(array)) and key.dtype.kind == 'b' else None


def _always_bound(_original: Any, self: Any, instance: Any, owner: Any = None) -> Any:
    return self if instance is None else types.MethodType(self, instance)


def _forgetting(original: Any, self: Any) -> None:
    self.unsettled.clear()
    original(self)


def _without_attributes(original: Any, self: Any, value: Any) -> None:
    if type(value).__name__ not in ('Counter', 'OrderedDict'):
        original(self, value)


def _all_arrays(cupy: Any) -> Any:
    return lambda value: isinstance(value, cupy.ndarray)


def _without_underscores(original: Any, names: Any) -> Any:
    return [name for name in original(names) if not name.startswith('__')]


def _always() -> bool:
    return True


_SHAPES = (_without('forms'), gives(Keeper, 'arrays_and_forms', ()))

LOST: tuple[LostMend, ...] = (
    LostMend('1 blocking streams', 143, r'S1 = ', (gives(CallerStreams, 'in_order'),)),
    LostMend('2 objects in arguments', 19521, r'A_a\d+ = (\[|\{|\(|Data|Pair).*(Plain|Slots|Held|Child|Described)\(', (gives(GivenValues, 'keep_arguments'),)),
    LostMend('3 opaque arguments', 1164, r'A_a\d+ = (Row|Table|Grown|bytearray|array|dict)', (replaced(WatchedValues, 'watch', _no_contents),)),
    LostMend('4 computed names', 287, r'getattr|vars|fields', (replaced(calls_followed, 'reads', _only_arguments),
             replaced(code_watch, 'names_of', _only_constant_names))),
    LostMend('5 a refusal that is caught', 59, r'except BaseException', (gives(recordable, 'must_not_refuse'),)),
    LostMend('6 an allocator of its own', 1004, r'POOL', (replaced(Allocators, 'pool_malloc', _unguarded),
             replaced(Allocators, 'allocator_set', _as_before),
             replaced(variant_recorder.VariantRecorder, '_source', _kept_where_it_lies))),
    LostMend('7 changed twice', 4240, r'VOICE = ValueError\(B\)', (gives(recordable, 'must_reach_known_arrays'),), (_visible('ValueError'),)),
    LostMend('8 imports in the function', 318, r'    (from|import) settings', (gives(code_watch.CodeWatch, '_imported'),)),
    LostMend('9 threads', 1498, r'threading\.Thread', (replaced(Effects, 'thread_fed', _unguarded), gives(Doubts, 'add'))),
    LostMend('10 cached helpers', 19841, r'lru_cache', (_visible('_lru_cache_wrapper'), gives(Doubts, 'add'))),
    LostMend('11 classes of the library', 466, r'UserDict|ContextVar|ChainMap|VOICE', (_visible('ContextVar', 'ValueError'),
             gives(ownership, 'is_whole', False))),
    LostMend('12 the outside world', 12, r'environ|decimal|printoptions', (gives(Doubts, 'add'), _visible('local'))),
    LostMend('13 names that come later', 430, r'LATER|LOOKED', (_without('missing'),)),
    LostMend('14 checks that come later', 8071, r'settled\(True', (replaced(variant.Variant, 'close', _forgetting),)),
    LostMend('15 another state to draw from', 3228, r'set_random_state', (gives(RandomDraws, '_default_state', None),)),
    LostMend('16 order with streams outside', 762, r'S2 = ', (gives(stream_order.StreamOrder, 'needed', False),)),
    LostMend('17 identities', 4111, r'OPTIONS', (gives(answering, 'given_back'), gives(run_end, '_aliases'))),
    LostMend('18 two devices', 207, r'Device\(1\)', (replaced(CallerStreams, 'implied', _at_home),
             replaced(stream_order.StreamOrder, '__init__', _of_one_device))),
    LostMend('19 shapes that change', 1924, r'\.shape = ', _SHAPES),
    LostMend('20 bases of arrays', 10880, r'\.base is|owndata', (gives(NamesUsed, 'of_arrays'),)),
    LostMend('21 masks that do not fit', 137, r'y\[y\.ravel|ones\(5, bool\)', (replaced(Arrays, '_whole_mask', _any_mask),)),
    LostMend('22 keys that collide', 101555, r'A_a\d+ = range', (replaced(pytree, 'plain_key', _ranges_by_equality),)),
    LostMend('23 special methods', 27, r'Held\(|Grown\(', (put(watched_objects, 'SPECIAL', frozenset()),
             replaced(run_end, '_not_pythons', _without_underscores))),
    LostMend('24 memory of the host', 11848, r'out=HOST', (gives(Arrays, '_fills'), gives(run_end, '_written'))),
    LostMend('25 events that are returned', 1989, r'return y, (e|cp)', (
        put(answering, 'only_arrays', _all_arrays),
        put(variant_recorder, 'only_arrays', _all_arrays), gives(recordable, 'must_leave_nothing')),
        (gives(pytree, '_has_finalizer', False),)),
    LostMend('26 bases of classes', 39074, r'__bases__', (_without('bases'),)),
    LostMend('27 static methods', 42, r'staticmethod', (replaced(binding.AsFunction, '__get__', _always_bound),)),
    LostMend('29 standard files', 1271, r'class Tee', (gives(settings, 'output_now', (_always, True)), gives(hidden_state, 'is_as_it_was', _always))),
    LostMend('30 errors of numbers', 185, r'def on_error', (gives(settings, '_errors', settings.Setting(_always, True)),)),
    LostMend('31 loggers', 77, r'class Collects', (gives(hidden_state, 'is_logger_as', True),)),
    LostMend('32 attributes of dicts', 652, r'class Filled', (replaced(Keeper, '_meet', _without_attributes),)),
    LostMend('33 the collector that is asked', 25, r'from gc import', (
        put(watch, 'OF_COLLECTOR', frozenset()), put(watched_objects, 'OF_COLLECTOR', frozenset()))),
)  # fmt: skip

"""Kinds of calls, which differ in shapes, dtypes, values and shared memory; one call; and which variant fits it."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any

from capturekit.driver.cuda import Platform
from capturekit.graphed.array_blocks import are_whole, overlapping
from capturekit.graphed.carried_state import CarriedState
from capturekit.graphed.faster_way import First, TimedWays
from capturekit.graphed.number_arguments import CallNumbers, Unfit
from capturekit.graphed.options import Options
from capturekit.graphed.outcomes import ArgumentNumber, GivenNumbers, OtherOutcome, all_of
from capturekit.graphed.reasons import NONE, Reason, Why
from capturekit.graphed.usual_call import UsualCall
from capturekit.graphed.variant import Variant
from capturekit.graphed.watched_values import OtherNumbers, WatchedValue
from capturekit.launch.array_extent import extent
from capturekit.model import errors
from capturekit.model.counters import LOG
from capturekit.model.host_reads import Read, Rehearsal
from capturekit.model.pytree import put_together
from capturekit.model.skipped_exits import Lock, contextmanager
from capturekit.model.sparse import unpacked


class Kind:
    """Calls of one kind: they agree in shapes, dtypes, strides, and the values of arguments that are not arrays.

    ``reach``: for each array, how many bytes it extends below and above the address of its first element.
    ``lock``: what lets one call after the other be answered; None: a lock of its own.
    """

    #: How many runs were watched, and the seconds that following them has taken.
    watched, seconds = 0, 0.0
    #: Why the last launch was stopped.
    why_missed = NONE

    def __init__(self, leaves: list[Any], shared: tuple[Any, ...] = (), lock: Any = None) -> None:
        self.reach = [(low - leaf.data.ptr, high - leaf.data.ptr) for leaf in leaves for low, high in (extent(leaf),)]
        #: Those that were made, the last used first. Each change makes another tuple.
        self.variants: tuple[Variant, ...] = ()
        #: A quick look whether a call is of this kind; None where each call needs a closer one.
        self.usual: UsualCall | None = None
        #: What answers its calls, as long as they need a launch and nothing else.
        self.fast: Callable[..., Any] | None = None
        #: What is asked before all that: the comparison of both ways, or what runs eagerly since that is faster.
        self.first: First | None = None
        self.contest: TimedWays | None = None
        #: The launches of variants that were dropped.
        self._earlier = 0
        #: How the arguments share memory; () if they do not.
        self.shared = shared
        #: How many calls in a row no launch could answer, and how many of them had the last one's reason.
        self.unanswered = self.repeated = 0
        self.reason = ''
        #: Whether launches may reckon with values that they read on the host, and with numbers of attributes.
        self.reckons = self.reckons_with_state = True
        #: Whether the host reckons with numbers among the arguments, which graphs can't do alone.
        self.reckons_with_arguments = False
        #: The variants whose launches have found that the call under way goes another way.
        self.other_ways: list[Variant] = []
        #: Why calls ran eagerly although a variant fits them.
        self.why_eager = NONE
        self.lock = Lock() if lock is None else lock
        #: Whether a call of it is being answered. Who has the lock and finds this is the same thread once more: a
        #: destructor or a handler of signals calls the function in the middle of a call, where no launch can begin.
        self.under_way = False

    def reason_now(self) -> Reason:
        """Why the last call ran eagerly, though nothing was to be seen of it."""
        first = self.variants[0] if self.variants else None
        return first.reason if first is not None and first.state == 'eager' else self.why_eager

    def repeats(self, reason: str) -> int:
        """Return how many runs in a row could not be recorded for this reason. Numbers in it are not compared."""
        alike = re.sub(r'\d+', '#', reason)
        self.repeated = self.repeated + 1 if alike == self.reason and self.unanswered > 1 else 1
        self.reason = alike
        return self.repeated if reason else 0

    def cost_more(self) -> None:
        """Note a call that is recorded or watched."""
        if self.contest is not None:
            self.contest.cost_more()

    @contextmanager
    def call(self) -> Iterator[bool]:
        """Hold the lock for a call, and keep what was made; yield whether no other one is under way."""
        with self.lock:
            again, self.under_way = self.under_way, True
            try:
                yield not again
            finally:
                self.under_way = again

    def close(self) -> int:
        """Close all variants and forget them; return how many launches they have answered.

        In the middle of a call they stay until nobody holds this kind any more.
        """
        with self.lock:
            self.fast = self.first = None
            if not self.under_way:
                self.keep()
            return self.launches()

    def keep(self, *kept: Variant) -> None:
        """Close all other variants."""
        for other in self.variants:
            if other not in kept:
                self._earlier += other.launches
                other.close()
        self.variants = kept

    def launches(self) -> int:
        """How many calls were launched."""
        return self._earlier + sum(variant.launches for variant in self.variants)


def other_numbers(kind: Kind) -> OtherNumbers | None:
    """What tells how many other numbers earlier runs have found in a place, and whether one has found the same.

    None: launches are not to reckon with such numbers, since this run is the first one, or they have failed to.
    """
    if not kind.reckons_with_state or not (kind.unanswered > 1 or kind.other_ways):
        return None
    environments = [variant.environment for variant in kind.variants if variant.environment is not None]

    def others(place: WatchedValue, now: Any) -> int | None:
        entries = (entry for environment in environments for entry in environment.entries if entry.key == place.key)
        found = [entry.kept.value for entry in entries if entry.holder is place.holder]
        alike = [value for value in found if type(value) is type(now)]
        return None if now in alike else len(set(alike))

    return others


def stop_reckoning(kind: Kind) -> None:
    """Drop the variants that reckon with numbers of attributes: these are compared again."""
    kind.reckons_with_state = False
    kind.keep(*[variant for variant in kind.variants if not variant.reckons_with_state])


def assume_more(kind: Kind, variant: Variant) -> bool:
    """Assume values of host reads that launches were to make anew. False if all are assumed."""
    if variant.reckoned:
        kind.reckons = False
        variant.reckon(frozenset())
    elif variant.kept:
        variant.assume(variant.rehearsal, {})
    else:
        return False
    return True


def to_front(kind: Kind, variant: Variant) -> None:
    """Make a variant the first of its kind, also a new one."""
    kind.variants = (variant, *[other for other in kind.variants if other is not variant])


def fitting(kind: Kind, tried: list[Variant], error: errors.AssumptionError, stream: int) -> Variant | None:
    """Another variant for calls on this stream, which goes the way that the failed launch found."""
    found = tried[-1].drawn()
    if found or tried[-1].plan is None:
        return None
    if error.index is None or error.actual is None:
        others = _usable(kind, tried, stream) if isinstance(error, OtherOutcome) else ()
        return next((variant for variant in others if variant.reckons), None)  # which tells by itself whether it fits
    checks = tried[-1].plan.checks
    assert checks is not None
    values = [check.value for check in checks.made[: error.index]] + [error.actual]
    for variant in _usable(kind, tried, stream):
        mine = variant.plan.checks if variant.plan is not None else None
        assumed = [c.value for c in mine.made] if mine is not None else [r.value for r in variant.assumptions]
        if len(assumed) >= len(values) and all(_same(a, b) for a, b in zip(assumed, values)):
            return variant
    return None


def _usable(kind: Kind, tried: list[Variant], stream: int) -> Iterator[Variant]:
    """The variants that were not tried, and for which what they have read is as it was."""
    for variant in kind.variants:
        usable = variant.run is not None or variant.state == 'rehearsed'
        if variant in tried or not usable or (variant.environment and variant.environment.changed() is not None):
            continue
        if fits_here(kind, variant, stream):
            yield variant


def same_way(variant: Variant, rehearsal: Rehearsal) -> bool:
    """Whether a fitting variant was made from a run that read the same values at the same lines."""
    before = variant.rehearsal.reads
    if variant.state not in ('rehearsed', 'recorded', 'pieces') or len(before) != len(rehearsal.reads):
        return False
    pairs = enumerate(zip(before, rehearsal.reads))
    return all(a.signature == b.signature and _comes_out_alike(variant, n, a, b) for n, (a, b) in pairs)


def _comes_out_alike(variant: Variant, number: int, before: Read, now: Read) -> bool:
    """Whether two reads are alike for a variant: of what it makes anew, only what comes out counts."""
    outcomes = variant.kept.get(number)
    if outcomes is None:
        return _same(before.value, now.value)
    if not outcomes:
        return True
    there, here = (all_of(outcomes, one.value.item(), before.parameters).tolist() for one in (before, now))
    return bool(there == here)


def fitting_now(kind: Kind, stream: int) -> Iterator[Variant]:
    """The variants that could answer a call on this stream now.

    One that read what is still the same comes first. That is a quick look; the comparison of another one, which does
    not fit, takes a hundred times as long.
    """
    here = [variant for variant in kind.variants if fits_here(kind, variant, stream)]
    same = next((variant for variant in here if variant.environment is None or variant.environment.same()), None)
    if same is not None:
        yield same
    for variant in here:
        if variant is not same and variant.changed() is None:
            yield variant


def fits_here(kind: Kind, variant: Variant, stream: int) -> bool:
    """Whether a variant is for calls on the stream that is current."""
    if variant.stream_order is not None:
        return variant.stream_order.fits()
    fenced = any(other.stream_order is not None for other in kind.variants)
    return not (fenced and variant.state == 'rehearsed' and variant.rehearsed_on != stream)


def _same(a: Any, b: Any) -> bool:
    return bool(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())


def shared(pointers: list[int], reach: list[tuple[int, int]]) -> tuple[Any, ...]:
    """How arrays share memory: for each that does, its number, the first array that it shares with, and the distance.

    Two calls with the same answer are alike; () if no array shares memory.
    """
    groups = overlapping([(p + low, p + high) for p, (low, high) in zip(pointers, reach)])
    return tuple((n, group[0], pointers[n] - pointers[group[0]]) for group in groups for n in group[1:])


def clear_of(spans: Sequence[tuple[int, int]], outside: Sequence[tuple[int, int]]) -> bool:
    """Whether no extent of an array overlaps one of those ``outside``, which are sorted."""
    return not outside or all(
        outside[found - 1][1] <= low if (found := bisect_left(outside, (high,))) else True for low, high in spans
    )


@dataclass
class Given:
    """One call: its arguments, the arrays in them, all other values in them, and its kind."""

    platform: Platform
    kind: Kind
    args: Any
    kwargs: Any
    leaves: list[Any]
    form: Any
    numbers: CallNumbers | None = None
    #: The Python state that the function changes; its arrays come after the ``own`` arrays of the arguments.
    state: CarriedState | None = None
    own: int = 0

    def beginning_with(self, state: CarriedState | None) -> Given:
        """The same call, with the arrays that the state holds now added after those of the arguments."""
        if state is None and self.state is None:
            return self
        rooms = 0 if self.numbers is None else 1
        own = self.own if self.state is not None else len(self.leaves) - rooms
        held = [] if state is None else state.arrays()
        leaves = [*self.leaves[:own], *held, *self.leaves[len(self.leaves) - rooms :]]
        return replace(self, leaves=leaves, state=state, own=own)

    @property
    def held(self) -> list[Any]:
        """The arrays that the state holds."""
        return [] if self.state is None else self.leaves[self.own : len(self.leaves) - (self.numbers is not None)]

    def call(self, fn: Callable[..., Any], args: Any, kwargs: Any, leaves: Sequence[Any]) -> Any:
        """Call a function while its state holds these ``leaves``; return its result, and the state after it."""
        if self.state is None:
            return fn(*args, **kwargs)
        with self.state.holding(leaves[self.own : len(leaves) - (self.numbers is not None)]):
            return fn(*args, **kwargs), self.state.after()

    def arguments(self, leaves: Sequence[Any], numbers: Sequence[Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """The arguments of the call with other arrays, and with other objects in the place of its numbers."""
        if self.state is not None:
            leaves = leaves[: self.own]
        elif self.numbers is not None:
            leaves = leaves[:-1]
        args, kwargs = unpacked(put_together(self.form, leaves))
        if self.numbers is None:
            return args, kwargs
        return self.numbers.replaced(args, kwargs, self.numbers.values if numbers is None else numbers)

    def is_array(self, value: object) -> bool:
        """True for arrays."""
        return issubclass(type(value), self.platform.cupy.ndarray)  # asks no code of the value's class


def shared_by(given: Given, variant: Variant, state: Sequence[Any]) -> Reason:
    """Say which arrays of a call share memory in a way that a recording can't follow."""
    empty = [one for one in variant.reached if not one.size]
    if any(leaf is one for leaf in given.leaves for one in empty):
        return Reason('an argument without elements is reached in another way, too')
    spans = [(leaf.data.ptr + low, leaf.data.ptr + high) for leaf, (low, high) in zip(given.leaves, given.kind.reach)]
    if not clear_of([one for one in spans if one[0] != one[1]], variant.outside):
        return Reason('an argument lies on an array that the function also reaches otherwise', Why.LIES_ON)
    if variant.far and (variant.state != 'eager' or variant.shares) and not are_whole(given.leaves):
        text = 'an argument is a part of another array, and the function may work beyond that part'
        return Reason(text, Why.IS_PART)
    if state and (
        share_memory(state, [*given.leaves, *empty], variant.outside) or (variant.far and not are_whole(state))
    ):
        return Reason('an array that the function replaces shares its memory with another one')
    return NONE


def share_memory(arrays: Sequence[Any], others: Sequence[Any], outside: Sequence[tuple[int, int]]) -> bool:
    """Whether one of ``arrays`` overlaps another one, one of ``others`` or one of the extents ``outside``."""
    met = [*map(id, arrays), *map(id, others)]
    if len({*met}) < len({*met[len(arrays) :]}) + len(arrays):
        return True  # without elements, too
    groups = overlapping([*map(extent, arrays), *map(extent, others), *outside])
    return any(number < len(arrays) for group in groups for number in group)


def given_numbers(fn: Any, given: Given) -> GivenNumbers | None:
    """The parameters of a function that get such numbers in a call."""
    if given.numbers is None or type(fn) is not FunctionType:
        return None
    return GivenNumbers(fn.__code__, tuple(given.numbers.names(fn)))


def fill(given: Given, variant: Variant, name: str) -> Exception | None:
    """Let the next launch of a variant have the numbers of a call. Returns why they do not fit the recording."""
    if given.numbers is None:
        return None
    for argument, value in zip(variant.arguments, given.numbers.values):
        argument.value = value
    try:
        if variant.slots is not None:
            variant.slots.fill(given.leaves[-1], given.numbers.values)
        return None
    except Unfit as error:
        LOG.info('%s: %s; this call runs eagerly', name, error)
        return error.with_traceback(None)


def reckon_with_arguments(fn: Any, given: Given, variant: Variant, options: Options) -> bool:
    """Let the host reckon with the numbers of a call, where the graph can't do that alone. False if it can't, either.

    The variant is recorded with those of its first run, as all else that it assumes is of that run.
    """
    numbers = given.numbers
    if numbers is None or variant.arguments or variant.environment is None or options.later:
        return False
    if not set(numbers.names(fn)) <= variant.reckonable.parameters:
        return False
    given.kind.reckons_with_arguments = True
    variant.arguments = [ArgumentNumber(value) for value in variant.numbers]
    return True

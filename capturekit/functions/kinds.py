"""Kinds of calls: told by shapes, dtypes, values and how arguments share memory; and which variant fits a call."""

from __future__ import annotations

import re
import threading
from bisect import bisect_left
from typing import Any

from capturekit.functions.variant import Variant
from capturekit.launch.graph_memory import extent
from capturekit.model import errors
from capturekit.model.host_reads import Rehearsal


class Kind:
    """Calls of one kind: same shapes, dtypes, strides, and values of what is no array.

    ``reach``: for each array the bytes from its first element down to its lowest and up to its end.
    """

    def __init__(self, leaves: list[Any], shared: tuple[Any, ...] = ()) -> None:
        self.reach = [(low - leaf.data.ptr, high - leaf.data.ptr) for leaf in leaves for low, high in (extent(leaf),)]
        self.variants: list[Variant] = []
        #: How the arguments share memory; () where they do not.
        self.shared = shared
        #: Calls of this kind, while many others have come and gone.
        self.calls = 0
        #: Calls in a row that no launch answered: because a check failed, because nothing fitted.
        self.misses = self.strange = 0
        #: Seconds for which runs were followed since the last launch; the last one's reason, and how often it came.
        self.followed = 0.0
        self.reason = ''
        self.repeated = 0
        #: Whether the last run that was watched changed something; and how many such runs were not held against it.
        self.sure = False
        self.forgiven = 0
        #: Why calls that a variant fits ran eagerly all the same; '' where none did.
        self.aside = ''
        self.lock = threading.RLock()

    def repeats(self, reason: str) -> int:
        """How many runs in a row could not be recorded for this reason; one with other numbers is the same."""
        alike = re.sub(r'\d+', '#', reason)
        self.repeated = self.repeated + 1 if alike == self.reason else 1
        self.reason = alike
        return self.repeated if reason else 0

    def keep_only(self, variant: Variant) -> None:
        """Close all other variants."""
        for other in self.variants:
            if other is not variant:
                other.close()
        self.variants[:] = [variant]

    def drop_beyond(self, limit: int) -> None:
        """Close the variants beyond so many, the least recently used ones."""
        for old in self.variants[limit:]:
            old.close()
        del self.variants[limit:]


def all_are(array: type, args: tuple[Any, ...]) -> bool:
    """Whether all arguments are arrays, and no two the same object."""
    for one in args:
        if type(one) is not array:
            return False
    count = len(args)
    return count < 2 or (args[0] is not args[1] if count == 2 else len({*map(id, args)}) == count)


def to_front(kind: Kind, variant: Variant) -> None:
    kind.variants.remove(variant)
    kind.variants.insert(0, variant)


def fitting(kind: Kind, tried: list[Variant], error: errors.AssumptionError) -> Variant | None:
    """Another variant that assumes what the failed launch found, and all that held before."""
    found = tried[-1].drawn()
    if error.index is None or error.actual is None or found or tried[-1].plan is None:
        return None
    checks = tried[-1].plan.checks
    assert checks is not None
    values = [check.value for check in checks.made[: error.index]] + [error.actual]
    for variant in kind.variants:
        usable = variant.run is not None or variant.state == 'rehearsed'
        if variant in tried or not usable or (variant.environment and variant.environment.changed() is not None):
            continue
        mine = variant.plan.checks if variant.plan is not None else None
        assumed = [c.value for c in mine.made] if mine is not None else [r.value for r in variant.assumptions]
        if len(assumed) >= len(values) and all(_same(a, b) for a, b in zip(assumed, values)):
            return variant
    return None


def same_way(variant: Variant, rehearsal: Rehearsal) -> bool:
    """Whether a variant that fits was made from a run that read the same values in the same places."""
    if variant.state not in ('rehearsed', 'recorded', 'pieces') or len(variant.assumptions) != len(rehearsal.reads):
        return False
    pairs = zip(variant.assumptions, rehearsal.reads)
    return all(a.signature == b.signature and _same(a.value, b.value) for a, b in pairs)


def fitting_now(kind: Kind, stream: int) -> list[Variant]:
    """The variants that a call on this stream could be answered by, as everything is now."""
    return [
        variant
        for variant in kind.variants
        if fits_here(kind, variant, stream) and (variant.environment is None or variant.environment.changed() is None)
    ]


def fits_here(kind: Kind, variant: Variant, stream: int) -> bool:
    """Whether a variant is for calls on the stream that is current."""
    if variant.fences is not None:
        return variant.fences.fits()
    told = any(other.fences is not None for other in kind.variants)
    return not (told and variant.state == 'rehearsed' and variant.rehearsed_on != stream)


def _same(a: Any, b: Any) -> bool:
    return bool(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())


def apart(pointers: list[int], reach: list[tuple[int, int]], outside: list[tuple[int, int]]) -> bool:
    """False while arguments share memory, or lie on arrays that the function reaches otherwise (their extents, sorted).

    Which do is not part of a call's kind, so that such calls run eagerly.
    """
    if not outside:
        if len(pointers) < 2:
            return True
        if len(pointers) == 2:
            (p, q), ((a, b), (c, d)) = pointers, reach
            return p + b <= q + c or q + d <= p + a or a == b or c == d
    spans = sorted([(p + low, p + high) for p, (low, high) in zip(pointers, reach) if low != high])
    if not all(spans[n][1] <= spans[n + 1][0] for n in range(len(spans) - 1)):
        return False
    return not outside or all(
        outside[found - 1][1] <= low if (found := bisect_left(outside, (high,))) else True for low, high in spans
    )


def shared(pointers: list[int], reach: list[tuple[int, int]]) -> tuple[Any, ...]:
    """How arrays share memory: for each that does, its number, that of the first it meets, and how far it lies from it.

    Two calls with the same answer are alike; () where no array shares any.
    """
    spans = sorted((p + low, p + high, n) for n, (p, (low, high)) in enumerate(zip(pointers, reach)) if low != high)
    found: list[tuple[int, int, int]] = []
    end = first = -1
    for low, high, number in spans:
        if low >= end:
            first = number
        else:
            found.append((number, first, pointers[number] - pointers[first]))
        end = max(end, high)
    return tuple(found)


def clear_of(pointers: list[int], reach: list[tuple[int, int]], outside: list[tuple[int, int]]) -> bool:
    """Whether no array lies on one of these extents, which are sorted."""
    spans = [(p + low, p + high) for p, (low, high) in zip(pointers, reach) if low != high]
    return all(
        outside[found - 1][1] <= low if (found := bisect_left(outside, (high,))) else True for low, high in spans
    )

"""Answers calls of a kind that need a launch and nothing else, with all bound that was decided when it was recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from capturekit.driver.cuda import Platform
from capturekit.functions.array_blocks import are_whole
from capturekit.functions.comparison import GONE
from capturekit.functions.kinds import Given, Kind, apart, still_fits
from capturekit.functions.usual_call import NOT_ANSWERED, UsualCall
from capturekit.functions.variant import Variant

if TYPE_CHECKING:
    from capturekit.functions.answering import Answering

_REMEMBERED = 256
Direct = Callable[[Any, Any], Any]


def direct_call(kind: Kind, answering: Answering, platform: Platform) -> Direct | None:
    """The function that answers a call as long as the first variant of its kind is the same and fits; None where each
    call needs a closer look.

    It returns NOT_ANSWERED for other calls. Raises UpdateError if nodes can't be aimed at the call's arrays: then
    nothing has been launched.
    """
    variant, usual = kind.variants[0] if kind.variants else None, kind.usual
    if usual is None or variant is None or variant.state != 'recorded' or variant.slots is not None:
        return None
    quick = variant.quick or _checked(kind, variant, usual, answering, platform)
    return None if quick is None else _fitting(kind, variant, usual.leaves, quick)


def _fitting(kind: Kind, variant: Variant, leaves_of: Any, quick: Callable[..., Any]) -> Direct:
    """The comparisons before the launch."""
    watched, graph, run = variant.environment, variant.graph, variant.run
    variants, reach, acquire, release = kind.variants, kind.reach, kind.lock.acquire, kind.lock.release
    outside, far = variant.outside, variant.far
    one, alone, is_apart = len(reach) == 1, len(reach) == 1 and not outside, _remembering(reach, outside)
    fits = None if variant.stream_order is None else variant.stream_order.fits
    assert graph is not None
    plain, state = quick is variant.quick, graph._state

    def direct(args: Any, kwargs: Any) -> Any:
        leaves = leaves_of(args, kwargs)
        if leaves is None:
            return NOT_ANSWERED
        pointers = [leaves[0].data.ptr] if one else [leaf.data.ptr for leaf in leaves]
        acquire()  # `with lock` takes three times as long
        again = kind.under_way
        try:
            if again or kind.variants is not variants or variant.run is not run or state.made is None:
                return NOT_ANSWERED
            kind.under_way = True
            try:
                same = watched is None or watched.as_before()
            except GONE:
                same = False
            if not same and not still_fits(kind, variant):
                return NOT_ANSWERED
            if (fits is not None and not fits()) or (not alone and not is_apart(pointers)):
                return NOT_ANSWERED
            if far and not are_whole(leaves):
                return NOT_ANSWERED
            variant.calls += 1
            if not plain:
                return quick(leaves, args, kwargs)
            kind.misses = kind.strange = 0
            return quick(leaves, pointers)
        finally:
            kind.under_way = again
            release()

    return direct


def _remembering(reach: list[tuple[int, int]], outside: list[tuple[int, int]]) -> Callable[[list[int]], bool]:
    """What says of addresses whether arrays there lie apart. It remembers some that do: most come again."""
    known: set[tuple[int, ...]] = set()

    def is_apart(pointers: list[int]) -> bool:
        key = (*pointers,)
        if key in known:
            return True
        if not apart(pointers, reach, outside):
            return False
        if len(known) >= _REMEMBERED:
            known.clear()
        known.add(key)
        return True

    return is_apart


def _checked(
    kind: Kind, variant: Variant, usual: UsualCall, answering: Answering, platform: Platform
) -> Callable[..., Any] | None:
    """The launch of a variant whose host reads are checked; None where more is to be done than to launch and wait."""
    run = variant.run
    simple = variant.plan is not None and variant.state == 'recorded' and variant.carried is None
    orders = [one.stream_order for one in kind.variants if one.stream_order is not None]
    ordered = not all(order.only_compares for order in orders)
    if run is None or not simple or ordered or not all(low < high for low, high in kind.reach):
        return None
    form = usual.form

    def checked(leaves: list[Any], args: Any, kwargs: Any) -> Any:
        try:
            result = run(leaves, True)
        except Exception as error:  # the function must not run in here: it would see an exception being handled
            failed = error.with_traceback(None)
        except BaseException:
            variant.restore()
            raise
        else:
            kind.misses = kind.strange = kind.repeated = 0
            kind.cost.launched()
            return result
        return answering.stopped(Given(platform, kind, args, kwargs, leaves, form), variant, failed)

    return checked

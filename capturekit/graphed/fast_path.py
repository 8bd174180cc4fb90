"""The one list of checks before a launch, with all bound that was decided when its variant was recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from capturekit.driver.cuda import Platform
from capturekit.graphed.array_blocks import are_whole
from capturekit.graphed.kinds import Given, Kind, clear_of, shared
from capturekit.graphed.number_arguments import CallNumbers, Unfit
from capturekit.graphed.options import Options
from capturekit.graphed.usual_call import NOT_ANSWERED
from capturekit.graphed.variant import Variant, of_what_ran
from capturekit.model.errors import UpdateError

if TYPE_CHECKING:
    from capturekit.graphed.answering import Answering

_REMEMBERED = 256


def fast_path(kind: Kind, answering: Answering, platform: Platform, options: Options) -> Callable[..., Any] | None:
    """The function ``fast(args, kwargs, leaves, numbers)`` that answers a call of a kind, as long as its first variant
    is the same and fits. None where more is to be done than to launch.

    Without ``leaves``, the call's arrays, they are found by the quick look of its kind. The function returns
    NOT_ANSWERED for other calls; nothing has been launched then.
    """
    if options.check:
        return None
    with kind.call() as is_first:  # else the variant may be dropped meanwhile
        variant = kind.variants[0] if kind.variants and is_first else None
        if variant is None or variant.graph is None or (variant.slots is not None and variant.untried):
            return None
        quick = variant.quick or _checked(kind, variant, answering, platform, options)
        return None if quick is None else _fitting(kind, variant, quick, answering, options)


def _fitting(
    kind: Kind, variant: Variant, quick: Callable[..., Any], answering: Answering, options: Options
) -> Callable[..., Any]:
    """The comparisons before the launch."""
    usual, earlier = kind.usual, answering.earlier if options.later else None
    watched, graph, run, slots = variant.environment, variant.graph, variant.run, variant.slots
    variants, reach, lock = kind.variants, kind.reach, kind.lock
    outside, far = variant.outside, variant.far
    one, alone, is_apart = len(reach) == 1, len(reach) == 1 and not outside, _remembering(reach, outside)
    fits = None if variant.stream_order is None else variant.stream_order.fits
    leaves_of: Any = None if usual is None else usual.leaves
    assert graph is not None
    plain, state = quick is variant.quick, graph._state

    def fast(args: Any, kwargs: Any, leaves: list[Any] | None = None, numbers: CallNumbers | None = None) -> Any:
        if leaves is None:
            leaves = leaves_of(args, kwargs)
            if leaves is None:
                return NOT_ANSWERED
        pointers = [leaves[0].data.ptr] if one else [leaf.data.ptr for leaf in leaves]
        with lock:
            again = kind.under_way
            try:
                if again or kind.variants is not variants or variant.run is not run or state.made is None:
                    return NOT_ANSWERED
                if earlier is not None and earlier.call is not None:
                    return NOT_ANSWERED
                kind.under_way = True
                if watched is not None and not watched.same():
                    return NOT_ANSWERED
                if (fits is not None and not fits()) or (not alone and not is_apart(pointers)):
                    return NOT_ANSWERED
                if far and not are_whole(leaves):
                    return NOT_ANSWERED
                if slots is not None or numbers is not None:
                    if slots is None or numbers is None:
                        return NOT_ANSWERED
                    slots.fill(leaves[-1], numbers.values)
                variant.calls += 1
                if not plain:
                    return quick(leaves, args, kwargs)
                kind.unanswered = 0
                if earlier is not None:
                    earlier.last.call = None
                return quick(leaves, pointers)
            except (UpdateError, Unfit):  # nodes can't be aimed at this call's arrays, or a number fits no graph
                return NOT_ANSWERED
            finally:
                kind.under_way = again

    return fast


def _remembering(reach: list[tuple[int, int]], outside: list[tuple[int, int]]) -> Callable[[list[int]], bool]:
    """What says of addresses whether arguments there lie apart, also from ``outside``: the sorted extents of arrays
    that the function reaches otherwise. It remembers some that do: most come again."""
    known: set[tuple[int, ...]] = set()

    def is_apart(pointers: list[int]) -> bool:
        key = (*pointers,)
        if key in known:
            return True
        spans = [(p + low, p + high) for p, (low, high) in zip(pointers, reach) if low != high]
        if shared(pointers, reach) or not clear_of(spans, outside):  # which is no part of a call's kind
            return False
        if len(known) >= _REMEMBERED:
            known.clear()
        known.add(key)
        return True

    return is_apart


def _checked(
    kind: Kind, variant: Variant, answering: Answering, platform: Platform, options: Options
) -> Callable[..., Any] | None:
    """The launch of a variant whose host reads are checked; None where more is to be done than to launch and wait."""
    run, usual = variant.run, kind.usual
    simple = variant.plan is not None and variant.state == 'recorded' and variant.carried is None
    orders = [one.stream_order for one in kind.variants if one.stream_order is not None]
    if run is None or usual is None or not simple or variant.slots is not None or options.later:
        return None
    if not all(order.only_compares for order in orders) or not all(low < high for low, high in kind.reach):
        return None
    form = usual.form

    def checked(leaves: list[Any], args: Any, kwargs: Any) -> Any:
        try:
            result = run(leaves, True)
        except BaseException as error:  # the function must not run in here: it would see an exception being handled
            failed = of_what_ran(error, variant.restore).with_traceback(None)
        else:
            kind.unanswered = 0
            return result
        return answering.stopped(Given(platform, kind, args, kwargs, leaves, form), variant, failed)

    return checked

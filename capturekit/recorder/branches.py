"""``parallel()``: branches, plain callables, assigned to lanes; in a capture or eagerly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from capturekit.model.counted import counted
from capturekit.recorder.forks import Fork, Priority, priorities

#: How branches are assigned to lanes, by name: number of branches, number of lanes -> each branch's lane.
ASSIGNMENTS: dict[str, Callable[[int, int], tuple[int, ...]]] = {
    'round robin': lambda branches, lanes: tuple(branch % lanes for branch in range(branches)),
    'blocks': lambda branches, lanes: tuple(branch * lanes // branches for branch in range(branches)),
}

Assignment = Literal['round robin', 'blocks'] | Sequence[int]


def assigned(branches: int, lanes: int | None, assign: Assignment) -> tuple[int, ...]:
    """Each branch's lane. A name gives ``min(branches, lanes)`` lanes, numbered from 0, and each at least one branch.

    Raises:
        TypeError, ValueError: ``lanes`` is not a positive whole number; ``assign`` is neither a known name nor a
            sequence of one number below ``lanes`` for each branch.
    """
    if lanes is not None:
        check_lanes(lanes)
    if isinstance(assign, str):
        if assign not in ASSIGNMENTS:
            names = ', '.join(map(repr, ASSIGNMENTS))
            raise ValueError(f'assign must be {names}, or one lane number for each branch, got {assign!r}')
        return ASSIGNMENTS[assign](branches, min(branches, lanes or branches))
    check_numbers(assign)
    if len(assign) != branches:
        raise ValueError(
            f'assign must have one lane number for each of {counted(branches, "branch")}, got {len(assign)}'
        )
    if lanes is not None and any(lane >= lanes for lane in assign):
        raise ValueError(f'assign must have lane numbers below {lanes}, got {max(assign)}')
    return tuple(assign)


def check_lanes(lanes: Any) -> None:
    """Raise TypeError or ValueError if this is not a number of lanes."""
    if isinstance(lanes, bool) or not isinstance(lanes, int):
        raise TypeError(f'lanes must be a whole number, got {lanes!r}')
    if lanes < 1:
        raise ValueError(f'lanes must be 1 or more, got {lanes}')


def numbers_of_lanes(lanes: Any) -> Any:
    """``lanes``, a number or a sequence of them, as a sequence; anything else as it is."""
    return (lanes,) if isinstance(lanes, int) and not isinstance(lanes, bool) else lanes


def _one_number(lanes: int | Sequence[int] | None) -> int | None:
    """The number of lanes of one run, which may be given as a sequence of one."""
    if lanes is None or isinstance(lanes, (int, str, bytes)) or not isinstance(lanes, Sequence):
        return lanes  # type: ignore[return-value]  # assigned() refuses other types
    if len(lanes) != 1:
        raise ValueError(
            f'lanes must be one number of lanes, got {lanes!r}: ck.experiment() tries several, and assign= says which '
            'branch goes to which lane'
        )
    return lanes[0]


def check_numbers(assign: Any) -> None:
    """Raise TypeError or ValueError if this is not a sequence of lane numbers."""
    if not isinstance(assign, Sequence) or isinstance(assign, (bytes, bytearray)):
        raise TypeError(f'assign must be a name or a sequence of lane numbers, got {type(assign).__name__}')
    for lane in assign:
        if isinstance(lane, bool) or not isinstance(lane, int):
            raise TypeError(f'a lane number must be a whole number, got {lane!r}')
        if lane < 0:
            raise ValueError(f'a lane number must be 0 or more, got {lane}')


def on_lanes(
    branches: Sequence[Callable[[], Any]],
    lanes: int | Sequence[int] | None,
    priority: Priority,
    assign: Assignment,
    check: Callable[[str], None] | None = None,
) -> list[Any]:
    """Do the work of :func:`parallel`; ``check`` is called before the fork."""
    for branch in branches:
        if not callable(branch):
            raise TypeError(f'parallel takes callables without arguments, got {type(branch).__name__}')
    most = _one_number(lanes)
    numbers = assigned(len(branches), most, assign)
    count = most or max(numbers, default=0) + 1
    each = priorities(priority, count)
    used = sorted(set(numbers))
    # one lane is the current stream; with a priority it has to be a lane, since a stream can't change its priority
    if len(used) < 2 and all(each[lane] is None for lane in used):
        return [branch() for branch in branches]
    with Fork(len(used), [each[lane] for lane in used], check) as forked:
        by_number = dict(zip(used, forked))
        results = []
        for branch, number in zip(branches, numbers):
            with by_number[number]:
                results.append(branch())
    return results


def parallel(
    *branches: Callable[[], Any],
    lanes: int | Sequence[int] | None = None,
    priority: Priority = None,
    assign: Assignment = 'round robin',
) -> list[Any]:
    """Run branches (callables without arguments) on lanes, join the lanes, and return the results in order.

    ``a, b = ck.parallel(lambda: f(x), lambda: g(x))``. In a capture it is recorded, outside of one it runs eagerly, as
    with :func:`fork`. Branches are called in this call, in the order in which they are given, each with its lane
    current. The work of branches on one lane runs in order, that of different lanes may run at once. The results can be
    used on the current stream when this returns: it has joined all lanes, and the host has not waited.

    Args:
        branches: the callables. A branch must not use what a branch on another lane makes, and must not drop the last
            reference to an array that a branch on another lane reads.
        lanes: how many lanes at most: a number, or a list of one. None: one for each branch. If all branches are on
            one lane, they run on the current stream, and nothing is forked, unless that lane is to have a priority.
        priority: the lanes' priority, as in :func:`fork`: one number, or a sequence of one for each of ``lanes``.
        assign: which branch goes to which lane: 'round robin', 'blocks' (neighbours share a lane), or a sequence of
            one lane number for each branch, counted from 0; lanes without a branch are not forked.

    Raises:
        TypeError, ValueError: an argument is not as described; nothing has been called.
        Whatever a branch raises: those after it are not called, and the lanes are joined.
    """
    return on_lanes(branches, lanes, priority, assign)

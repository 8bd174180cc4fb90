"""The ways in which an experiment runs its program: lanes, assignment, priorities, with and without a capture."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from capturekit.model.counted import counted
from capturekit.recorder.branches import ASSIGNMENTS, Assignment, check_lanes, check_numbers, on_lanes
from capturekit.recorder.forks import Priority, priorities

#: The function ``parallel`` that a program is given: it runs branches and returns their results.
Parallel = Callable[..., list[Any]]
Program = Callable[[Parallel], Any]


@dataclass(frozen=True)
class Way:
    """One way to run a program."""

    captured: bool = False
    lanes: int = 1
    assign: Assignment = 'round robin'
    priorities: tuple[int | None, ...] = ()
    asked: str = ''

    @property
    def name(self) -> str:
        return self.assign if isinstance(self.assign, str) else ' '.join(map(str, self.assign))

    def run(self, program: Program, counts: list[int] | None = None) -> Any:
        """Call the program; ``counts`` gets the number of branches of each call of ``parallel``."""

        def parallel(*branches: Callable[[], Any]) -> list[Any]:
            if counts is not None:
                counts.append(len(branches))
            return on_lanes(branches, self.lanes, self.priorities or None, self.assign)

        return program(parallel)


ONE_LANE = Way()


def _all_ways(
    lanes: Sequence[int], assignments: Sequence[Assignment], given: Sequence[Priority], capture: Sequence[bool]
) -> Iterator[Way]:
    for captured in capture:
        for count in lanes:
            for assign in assignments:
                if isinstance(assign, str):
                    yield from (Way(captured, count, assign, *_of_lanes(one, count)) for one in given)
        for assign in assignments:
            if not isinstance(assign, str):
                count = max(assign) + 1
                yield from (Way(captured, count, tuple(assign), *_of_lanes(one, count)) for one in given)


def _of_lanes(priority: Priority, lanes: int) -> tuple[tuple[int | None, ...], str]:
    """The priorities of so many lanes, also in words. A sequence that is too short is filled with the default."""
    if priority is None or lanes == 1:
        return (), ''
    if isinstance(priority, int):
        return (priority,) * lanes, f'all {priority}'
    each = (*priority[:lanes], *(None,) * (lanes - len(priority)))
    if all(one is None for one in each):
        return (), ''
    return each, ' '.join('-' if one is None else str(one) for one in priority)


def program_of(program: Any) -> Program:
    """The program itself, or one that runs the branches that were given. Raises TypeError and ValueError."""
    if callable(program):
        return program  # type: ignore[no-any-return]
    if not isinstance(program, Sequence) or isinstance(program, (str, bytes)):
        raise TypeError(f'experiment takes branches, or a function of `parallel`, got {type(program).__name__}')
    branches = tuple(program)
    for branch in branches:
        if not callable(branch):
            raise TypeError(f'branches must be callables without arguments, got {type(branch).__name__}')
    if not branches:
        raise ValueError('experiment takes at least one branch')
    return lambda parallel: parallel(*branches)


def ways_of(lanes: Any, assignments: Sequence[Assignment], given: Any, capture: Any) -> list[Way]:
    """All ways that the arguments ask for, one eager lane first. Raises TypeError and ValueError."""
    for name, values in (('lanes', lanes), ('assignments', assignments), ('priorities', given), ('capture', capture)):
        if not isinstance(values, Sequence) or isinstance(values, (str, bytes)):
            raise TypeError(f'{name} must be a sequence, got {type(values).__name__}')
        if not values:
            raise ValueError(f'{name} must not be empty')
    for count in lanes:
        check_lanes(count)
    for assign in assignments:
        if not isinstance(assign, str):
            check_numbers(assign)
            if not assign:
                raise ValueError('an assignment must have one lane number for each branch, and this one has none')
        elif assign not in ASSIGNMENTS:
            raise ValueError(f'an assignment must be {", ".join(map(repr, ASSIGNMENTS))} or lane numbers: {assign!r}')
    for priority in given:
        priorities(priority, len(priority) if isinstance(priority, Sequence) else 1)
    for captured in capture:
        if not isinstance(captured, bool):
            raise TypeError(f'capture must hold True and False, got {captured!r}')
    one_lane = [Way(assign=assign) for assign in assignments if isinstance(assign, str)] or [ONE_LANE]
    return [*one_lane, *_all_ways(lanes, assignments, given, capture)]


def check_numbers_fit(assignments: Sequence[Assignment], branches: int | None) -> None:
    """Raise ValueError for lane numbers that are not as many as the branches."""
    for assign in assignments:
        if branches is not None and not isinstance(assign, str) and len(assign) != branches:
            raise ValueError(
                f'an assignment must have one lane number for each of {counted(branches, "branch")}: {assign!r}'
            )

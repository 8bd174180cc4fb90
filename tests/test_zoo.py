"""The zoo on the simulated device: each broken program is told what is wrong, each repaired one is right."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.zoo.cases import INSTEAD, Case, all_cases, named
from tests.zoo.trial import check_broken, check_goes_on, check_repaired, run_broken

CASES = all_cases()

#: What somebody who has never met the fault takes from the message alone.
ESSENTIAL = {
    'lane_synchronize': ('Stream.synchronize()', 'forked at', 'cap.join(side)'),
    'stream_done': ('Stream.done', 'CuPy would swallow the error', 'cap.graph.launch(s)', 's.done'),
    'if_array': ('the host reads', 'cp.where', 'instead of `if`'),
    'until_converged': ('float()', 'on the device', 'after `cap.graph.launch()`'),
    'joined_then_worked': ('worked on again', 'after its last work', 'cap.join(stream)'),
    'event_from_outside': ('recorded in the same capture', 's.wait_event(event); cap.graph.launch(s)'),
    'synchronous_copy': ('copy_from_device()', 'missing from the graph', '`copy_from_device_async`'),
    'another_stream': (
        'not in the capture',
        'run at once',
        'stream.wait_event(cap.stream.record())',
        'cap.join(stream)',
    ),
    'add_callback': ('add_callback()', 'can not be recorded', 'stream.launch_host_func(fn, arg)'),
    'suspended_generator': ('suspended', 'before `yield`', 'contextlib.contextmanager'),
}


def why_not(case: Case) -> str:
    """Why a case can't be shown here; '' where it can."""
    return f'on a GPU only: {case.needs}' if case.needs else ''


def lines_run(program: Any) -> set[int | None]:
    """The lines of a program that have code, in functions inside it too."""
    codes = [program.__code__]
    for code in codes:
        codes += [constant for constant in code.co_consts if isinstance(constant, type(code))]
    return {line for code in codes for _start, _end, line in code.co_lines()}


def params(cases: list[Case]) -> list[Any]:
    reasons = {case: why_not(case) for case in cases}
    skipped = {case: [pytest.mark.skip(reason=reason)] if reason else [] for case, reason in reasons.items()}
    return [pytest.param(case, id=str(case), marks=skipped[case]) for case in cases]


@pytest.mark.parametrize('case', params(CASES))
def test_the_broken_program_is_told_what_and_where(sim: Any, case: Case) -> None:
    check_broken(case, sim)


@pytest.mark.parametrize('case', params([case for case in CASES if case.goes_on and isinstance(case.says, type)]))
def test_what_was_refused_has_harmed_nothing(sim: Any, case: Case) -> None:
    check_goes_on(case, sim)


@pytest.mark.parametrize('case', params(CASES))
def test_the_repaired_program_is_right(sim: Any, case: Case) -> None:
    check_repaired(case, sim)


@pytest.mark.parametrize('name', ESSENTIAL)
def test_the_message_alone_says_what_to_change(sim: Any, name: str) -> None:
    case = named(name)
    message = run_broken(case, sim).message
    assert [words for words in ESSENTIAL[name] if words.lower() not in message.lower()] == [], message
    assert len(message.splitlines()) == 3


def test_every_case_is_whole() -> None:
    """A line that is wrong, lines that are right, a thread of its own kind, words of the remedy."""
    assert len(CASES) >= 40
    assert max(Counter(case.name for case in CASES).values()) == 1
    assert len({case.family for case in CASES}) == 11
    for case in CASES:
        assert case.does and case.thread.startswith('https://github.com/'), case
        assert case.marked('+', INSTEAD), case
        assert case.line in lines_run(case.broken), case
        assert lines_run(case.broken).isdisjoint(case.marked('+', INSTEAD)), case
        assert bool(case.words) == bool(case.says), case

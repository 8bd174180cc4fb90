"""Putting a case to the test: what is said, and about which line; that nothing was harmed; that the repair is right."""

from __future__ import annotations

import ast
import gc
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import capturekit as ck
from capturekit.guard import LISTENERS, verdicts
from capturekit.model.recording import Recording, Step
from tests.zoo.cases import Case, Program, named

#: Wraps a statement so that the program goes on behind it when it is refused.
_TRY = 'try:\n    pass\nexcept ck.CaptureError as refusal:\n    refused.append(refusal)'


@dataclass
class Outcome:
    """What became of a broken program."""

    case: Case
    x: Any
    error: BaseException | None = None
    result: Any = None
    recordings: list[Recording] = field(default_factory=list)

    @property
    def steps(self) -> list[Step]:
        """The steps in its recordings of the kind that the case tells of."""
        return [step for recording in self.recordings for step in recording.steps if step.kind == self.case.says]

    @property
    def message(self) -> str:
        """All that a reader gets."""
        if self.error is not None:
            return '\n'.join([str(self.error), *getattr(self.error, '__notes__', ())])
        return '\n'.join(step.text for step in self.steps)


def run_broken(case: Case, cp: Any, program: Program | None = None) -> Outcome:
    """Run a broken program to its end, whatever that is; what a destructor raised counts, too."""
    outcome = Outcome(case, fresh_input(cp))
    with heard(outcome.recordings), unraisable() as found, impatient():
        try:
            outcome.result = (program or case.broken)(cp, outcome.x)
        except Exception as error:
            outcome.error = error
    if found and outcome.error is None:
        outcome.error = found[0]
    return outcome


def check_broken(case: Case, cp: Any) -> Outcome:
    """The right thing is said about the right line; afterwards its stream captures again."""
    outcome = run_broken(case, cp)
    if isinstance(case.says, type):
        assert raised(case, outcome.error), repr(outcome.error)
        assert error_place(case, outcome.error) == (case.file, case.line), outcome.message
        remedy = getattr(outcome.error, 'remedy', outcome.message)
        assert remedy and case.words in ' '.join([remedy, *getattr(outcome.error, '__notes__', ())]), outcome.message
    else:
        assert outcome.error is None, repr(outcome.error)
        check_said(case, outcome)
    check_streams(outcome, cp)
    return outcome


def raised(case: Case, error: BaseException | None) -> bool:
    """Whether it is the case's exception; a refusal may be CuPy's error as well."""
    assert isinstance(case.says, type)
    return isinstance(error, case.says)


def error_place(case: Case, error: Any) -> tuple[str, int]:
    """The line that an error names; of one that is not capturekit's, its note, or the innermost of the case's own."""
    if isinstance(error, ck.CaptureError):
        assert error.location is not None
        return error.location.file, error.location.line
    named = re.findall(r'Invalidated after programs\.diff:(\d+)', ' '.join(getattr(error, '__notes__', ())))
    if named:
        return case.file, int(named[0])
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == case.file]
    return frames[-1].filename, frames[-1].lineno or 0


def check_said(case: Case, outcome: Outcome) -> None:
    """What is told without an exception; and where the numbers are wrong although nothing was refused."""
    cap, _made = outcome.result
    if case.says == 'scalar':
        at = {node.name: node.at for node in cap.graph.nodes}
        scalars = [known for known in cap.graph.constants() if known['kind'] == 'scalar']
        (kernel,) = {known['kernel'] for known in scalars if str(known['value']) == case.words}
        assert (at[kernel].file, at[kernel].line) == (case.file, case.line)
    elif case.says:
        (step,) = outcome.steps
        assert step.at is not None and step.at[:2] == [case.file, case.line], step
        assert case.words in step.text, step.text
    assert not all(launches(outcome, case.want)), 'this program is not broken'


def check_streams(outcome: Outcome, cp: Any) -> None:
    """Every stream that was in a capture of the program's captures once more, and what it makes is right."""
    handles = {lane.stream for recording in outcome.recordings for lane in recording.lanes[:1]}
    for handle in handles:
        x = fresh_input(cp)
        with ck.capture(cp.cuda.Stream.from_external(Handle(handle))) as cap:
            y = x * 3
        cap.graph.launch()
        assert np.array_equal(y.get(), x.get() * 3)
        cap.graph.close()


def check_goes_on(case: Case, cp: Any) -> None:
    """With the offending statement in a ``try``, the refused program goes on, and its capture makes a good graph."""
    refused: list[ck.CaptureError] = []
    outcome = run_broken(case, cp, forgiving(case, refused))
    assert outcome.error is None, repr(outcome.error)
    assert len(refused) == 1 and raised(case, refused[0]), refused
    assert outcome.recordings[-1].outcome == 'good'
    assert all(launches(outcome, case.rest or case.want))


def forgiving(case: Case, refused: list[Any]) -> Program:
    """The broken program, line by line, with its offending statement in a ``try``."""
    tree = case.tree('-')
    wrap(tree, case.line)
    return case.compiled(tree, refused=refused)


def wrap(tree: ast.AST, line: int) -> None:
    """Put the statement that begins on a line into a ``try``."""
    for parent in ast.walk(tree):
        body = getattr(parent, 'body', None)
        for number, statement in enumerate(body if isinstance(body, list) else []):
            if statement.lineno == line:
                (guarded,) = ast.parse(_TRY).body
                assert isinstance(guarded, ast.Try) and isinstance(body, list)
                guarded.body = [statement]
                body[number] = ast.copy_location(guarded, statement)
                return
    raise AssertionError(f'no statement begins on line {line}')


def check_repaired(case: Case, cp: Any) -> None:
    """The repaired program captures; its launches, with new values in the input each time, are right."""
    outcome = Outcome(case, fresh_input(cp))
    with unraisable() as found:
        outcome.result = case.repair(cp, outcome.x)
    assert not found, found
    assert all(launches(outcome, case.want))


def launches(outcome: Outcome, want: Any) -> Iterator[bool]:
    """Launch twice, with new values in the input before each: were the numbers right?"""
    made, y = outcome.result
    graph = made.graph
    for shift in (1, 10):
        outcome.x += shift
        x = outcome.x.get()  # which waits: a graph of the program's may run on another stream
        graph.launch()
        yield bool(np.allclose(y.get(), want(x)))


def fresh_input(cp: Any) -> Any:
    return cp.arange(8.0)


@contextmanager
def heard(recordings: list[Recording]) -> Iterator[None]:
    """Listen for every capture that ends, also one that fails."""

    def hear(recording: Recording, _graph: Any) -> None:
        recordings.append(recording)

    LISTENERS.append(hear)
    try:
        yield
    finally:
        LISTENERS.remove(hear)


@contextmanager
def unraisable() -> Iterator[list[BaseException]]:
    """What destructors and callbacks raise, which Python only prints.

    What is made in the block stays with the youngest objects: to find its garbage, no others need be looked through.
    """
    found: list[BaseException] = []
    before, threshold = sys.unraisablehook, gc.get_threshold()
    sys.unraisablehook = lambda told: found.append(told.exc_value) if told.exc_value is not None else None
    gc.set_threshold(1_000_000_000)
    try:
        yield found
        gc.collect(0)
    finally:
        gc.set_threshold(*threshold)
        sys.unraisablehook = before


@contextmanager
def impatient() -> Iterator[None]:
    """Nobody waits long for another thread's capture."""
    before, verdicts.WAIT_SECONDS = verdicts.WAIT_SECONDS, 0.05
    try:
        yield
    finally:
        verdicts.WAIT_SECONDS = before


class Handle:
    """A bare handle, in the form of the stream protocol."""

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.ptr)


def whole(name: str) -> str:
    """A case from end to end, with the CuPy that is there; its last word is 'whole'."""
    import cupy as cp

    case = named(name)
    check_broken(case, cp)
    if case.goes_on and isinstance(case.says, type):
        check_goes_on(case, cp)
    check_repaired(case, cp)
    return 'whole'

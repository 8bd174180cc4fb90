"""Follows one eager run: the code that ran, the functions written in C that it called, and what it can have read.

:class:`Watch` keeps all values that the code can have read, as they were when the run began. It calls no code of the
user: neither ``__eq__`` nor ``__getattr__`` nor properties.

Objects that existed before the run are distinguished from those that it made by the garbage collector's list when the
run began. They are held until the run ends, so that no new object can get the address of an old one."""

from __future__ import annotations

import functools
import os
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType, FunctionType
from typing import Any

from capturekit.graphed.calls_followed import COUNTS_ANYWHERE, CallsInC, PythonCalls, RunRecord
from capturekit.graphed.code_watch import LinesRun
from capturekit.graphed.collector import OF_COLLECTOR, Before
from capturekit.graphed.compiling import compiler_code, profile_again
from capturekit.graphed.environment import Environment, RunSummary
from capturekit.graphed.follow_time import FollowTime, TooLong
from capturekit.graphed.outcomes import NOTHING, GivenNumbers, Reckoned
from capturekit.graphed.ownership import default_skip
from capturekit.graphed.reasons import Reason, Why
from capturekit.graphed.run_end import finish
from capturekit.graphed.settings import forget_ours, routines_now, settings_now, shown_before
from capturekit.graphed.variant import of_what_ran
from capturekit.graphed.watched_values import OtherNumbers
from capturekit.model.class_layout import among
from capturekit.model.cleanup import Uncollected, undoing
from capturekit.model.counters import LOG
from capturekit.model.host_reads import Read, Rehearsal
from capturekit.model.kept_values import IsArray

#: What is logged where following a run fails; the call runs eagerly, and gives its result.
FAULT = 'a fault of capturekit: what a function reads can not be followed'


class Watch:
    """Follow one run of ``fn`` in this thread: ``Watch(fn, is_array=...).run((x,), {})``.

    Arguments:
        is_array: returns True for arrays, which are compared by identity.
        skip: returns True for files whose code is not followed.
        ignore: returns True for objects that the caller compares: as arguments, their attributes are not watched.
        arguments: what ``fn`` is called with. Values in it that the caller does not compare are watched.
        array: the class of arrays, whose methods the user may replace.
        not_repeated: returns, at the end of the run, why launches repeat no changes of Python state.
        reads: the host reads, a list that the run fills.
        reckons: tells whether launches are to reckon with a number that an attribute gets; None: with none.
        uncollected: the block without garbage collection, which ends before code can ask whether the collector is on.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        is_array: IsArray,
        skip: Callable[[str], bool] = default_skip,
        ignore: Callable[[Any], bool] | None = None,
        arguments: Any = (),
        array: type | None = None,
        not_repeated: Callable[[], Reason] = lambda: Reason('nothing repeats them'),
        reads: Sequence[Read] = (),
        reckons: OtherNumbers | None = None,
        numbers: GivenNumbers | None = None,
        uncollected: Uncollected | None = None,
    ) -> None:
        self._fn, self._not_repeated, self._reads, self._reckons = fn, not_repeated, reads, reckons
        self._numbers = numbers
        self._uncollected = uncollected or Uncollected()
        self._environment: Environment | None = None
        self._failure: BaseException | None = None
        self._previous: Any = None
        self._callback: Any = None
        self._time = FollowTime()
        self._before = Before(self._time)
        self._lines = LinesRun(
            lambda *line: self._in_turn(run.code_watch.came_to, *line),
            lambda *call: self._in_turn(run.code_watch.look_at_call, *call),
        )
        self._run = run = RunRecord(
            is_array, skip, self._before, self._time, self._lines, self._uncollected, array, arguments, ignore
        )
        self._libraries, self._done_with = run.libraries, run.libraries.done_with
        self._calls_in_c = CallsInC(run)
        self._python_calls = PythonCalls(run, Watch.run.__code__)

    @property
    def environment(self) -> Environment:
        """All that was read.

        Raises:
            RuntimeError: the block has not ended, or ended with an exception.
        """
        if self._environment is None:
            raise RuntimeError('the run that is watched did not come to its end')
        return self._environment

    @property
    def seconds(self) -> float:
        """How long following the run has taken, apart from the run itself."""
        return self._time.spent

    def run(self, args: Any, kwargs: Any) -> Any:
        """Call the function and follow it."""
        with undoing() as undo:
            undo.push(self._end)
            self._follow()
            sys.setprofile(self._callback)
            result = self._fn(*args, **kwargs)
            self._profile_no_more()  # before anything else is called here
            self._lines.end()
            self._environment = self._environment_of_run()
            return result

    def _follow(self) -> None:
        self._before.__enter__()
        self._lines.begin()
        try:
            self._begin()
        except TooLong as error:
            self._failure = error
        self._previous = sys.getprofile()
        self._callback = self._chained if callable(self._previous) else self._profile

    def _begin(self) -> None:
        """Watch what the function holds before it runs."""
        run = self._run
        self._time.begin()
        forget_ours()
        run.values.settings, self._libraries.compiler = settings_now(), compiler_code()
        for name, setting in ({} if run.array is None else routines_now()).items():
            run.values.watch('state', setting.get, '', setting.value, (name, ''), None, setting.get)
        run.hidden.begin()
        run.given.keep_arguments()
        function: Any = self._fn
        while type(function) is not FunctionType:
            if among(type(function), (types.MethodType, functools.partial)):
                run.values.keep_also(function)
                function = function.__func__ if type(function) is types.MethodType else function.func
            else:
                if not run.values.is_array(function) and not isinstance(function, type):
                    run.values.keep_also(function)
                break
        if type(function) is FunctionType:
            run.met.reached.add(id(function))
            run.functions.watch(function)
            run.functions.outermost = function, Watch.run.__code__
        run.holders.settle()

    def _profile_no_more(self) -> None:
        if self._callback is not None and sys.getprofile() is self._callback:
            profile_again(self._previous)
        elif self._callback is not None and self._failure is None:
            self._run.doubts.say('the function set a profile function: what it ran afterwards is not known')
        self._callback = None  # it holds this object, and so all that it has met

    def _end(self) -> None:
        """End all that has begun."""
        self._profile_no_more()
        self._lines.end()
        self._before.__exit__()
        self._run.values.end()

    def _environment_of_run(self) -> Environment:
        """What the run read. A fault of capturekit's own must not cost the user the result of a run that is over."""
        try:
            self._in_turn(self._run.asked.answer_all)
            self._note_warnings()
            why = self._not_repeated() or self._libraries.waits
            _log_fault(self._failure)
            return finish(self._run, self._failure, why, self._reads, self._reckons, self._numbers)
        except Exception as error:
            _log_fault(of_what_ran(error))
            reason = Reason(f'what the function reads could not be followed: {error!r}')
            return Environment(RunSummary(reason, too_much=True))

    def _note_warnings(self) -> None:
        """Note which lines that ran have shown warnings, in this run or before it."""
        for values, codes in self._run.code.ran_in.values():
            shown = shown_before(values, codes, self._lines.of)
            if shown is not None:
                at = f'{os.path.basename(shown[0].co_filename)}:{shown[1]}'
                self._run.doubts.say(f'the function warns at {at}, which a launch would not do', Why.WARNS)

    def _chained(self, frame: FrameType, event: str, argument: Any) -> None:
        self._profile(frame, event, argument)
        self._previous(frame, event, argument)

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        try:
            if id(argument) in OF_COLLECTOR:
                self._uncollected.let_go()
            if self._failure is not None:
                return
            if self._python_calls.importing is not None:
                self._python_calls.while_importing(self._python_calls.importing, frame, event)
            elif self._libraries.compiling is not None and self._libraries.while_compiling(frame, event):
                return
            elif event == 'call':
                if id(frame.f_code) not in self._done_with:
                    self._time.begin()
                    self._python_calls.called(frame)
                    self._time.end()
            elif event == 'c_call' and (id(frame.f_code) not in self._done_with or id(argument) in COUNTS_ANYWHERE):
                self._calls_in_c.called(frame, argument)
        except Exception as error:
            self._failure = of_what_ran(error)

    def _in_turn(self, note: Callable[..., None], *call: Any) -> None:
        """Take note of a call, as a step of following the run."""
        if self._failure is not None:
            return
        try:
            self._time.begin()
            note(*call)
            self._time.end()
        except Exception as error:
            self._failure = of_what_ran(error)


def _log_fault(failure: BaseException | None) -> None:
    """Log why following has failed, if that is no limit that the function or its caller has come to."""
    if failure is not None and not isinstance(failure, (TooLong, RecursionError, MemoryError)):
        LOG.error(FAULT, exc_info=failure)


@dataclass
class WatchedRun:
    """A watched eager run: what it read, why it can't be recorded, and its result."""

    environment: Environment | None
    rehearsal: Rehearsal
    reason: Reason
    result: Any
    #: What launches may reckon with.
    reckoned: Reckoned = NOTHING

    @property
    def whole(self) -> Any:
        """The result, and the changes of Python state that launches repeat."""
        carried = None if self.environment is None else self.environment.run.carried
        return self.result if carried is None else (self.result, carried.after())

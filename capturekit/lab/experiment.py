"""``experiment()``: one program run in several ways, by lanes, assignment, priority, with and without a capture.

Each round times every way once, in changing order, so that a drift (of clocks, heat or other work) affects all ways
alike. The results of each way are compared with those of one lane.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from capturekit.analysis.verify import _named, check_tolerance, difference
from capturekit.driver.cuda import Platform, current
from capturekit.graph.executable import Graph
from capturekit.guard import GUARD
from capturekit.lab.experiment_report import Experiment, ExperimentRow
from capturekit.model import errors
from capturekit.model.cleanup import Uncollected
from capturekit.model.counted import counted
from capturekit.model.counters import LOG
from capturekit.model.progress import each
from capturekit.model.source_line import here
from capturekit.recorder.capture import capture as open_capture
from capturekit.recorder.forks import (
    ASSIGNMENTS,
    Assignment,
    Priority,
    assigned,
    check_lanes,
    check_numbers,
    numbers_of_lanes,
    on_lanes,
    priorities,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray


# -- the ways in which an experiment runs its program: lanes, assignment, priorities, with and without a capture ------


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


def _of_lanes(priority: Priority, lanes: int) -> tuple[tuple[int | None, ...], str]:
    """The priorities of so many lanes, also in words. A sequence that is too short is filled with the default."""
    if priority is None or lanes == 1:
        return (), ''
    if isinstance(priority, int):
        return (priority,) * lanes, f'all {priority}'
    given = (*priority[:lanes], *(None,) * (lanes - len(priority)))
    if all(one is None for one in given):
        return (), ''
    return given, ' '.join('-' if one is None else str(one) for one in priority)


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


def ways_of(lanes: Any, assignments: Sequence[Assignment], given: Any, capture: Any, branches: int | None) -> list[Way]:
    """All ways that the arguments ask for, one eager lane first. Raises TypeError and ValueError."""
    for name, values in (('lanes', lanes), ('assignments', assignments), ('priorities', given), ('capture', capture)):
        if not isinstance(values, Sequence) or isinstance(values, (str, bytes)):
            raise TypeError(f'{name} must be a sequence, got {type(values).__name__}')
        if not values:
            raise ValueError(f'{name} must not be empty')
    for count in lanes:
        check_lanes(count)
    for assign in assignments:
        _check_assignment(assign, branches)
    for priority in given:
        priorities(priority, len(priority) if isinstance(priority, Sequence) else 1)
    for captured in capture:
        if not isinstance(captured, bool):
            raise TypeError(f'capture must hold True and False, got {captured!r}')
    names = [assign for assign in assignments if isinstance(assign, str)]
    laid: list[tuple[int, Assignment]] = [(count, name) for count in lanes for name in names]
    laid += [(max(assign) + 1, tuple(assign)) for assign in assignments if not isinstance(assign, str)]
    ways = [Way(captured, *lay, *_of_lanes(one, lay[0])) for captured in capture for lay in laid for one in given]
    return [*([Way(assign=name) for name in names] or [ONE_LANE]), *ways]


def _check_assignment(assign: Assignment, branches: int | None) -> None:
    if isinstance(assign, str):
        if assign not in ASSIGNMENTS:
            raise ValueError(f'an assignment must be {", ".join(map(repr, ASSIGNMENTS))} or lane numbers: {assign!r}')
        return
    check_numbers(assign)
    if not assign:
        raise ValueError('an assignment must have one lane number for each branch, and this one has none')
    if branches is not None and len(assign) != branches:
        many = counted(branches, 'branch')
        raise ValueError(f'an assignment must have one lane number for each of {many}: {assign!r}')


#: Device time that one batch of runs should take, in microseconds, where ``launches`` is left out.
_BATCH = 20_000
_MOST_LAUNCHES = 200

_NOT_MODELLED = 'the model ignores priorities: rows that differ only in them take equally long'
_NOT_EAGER = 'eager rows are left out: the simulated device runs eager work at once, whatever its stream'


# -- running ----------------------------------------------------------------------------------------------------


@dataclass
class _Trial:
    """One way of the program under way. ``results`` are those of the last run."""

    way: Way
    row: ExperimentRow
    program: Program
    graph: Graph | None = None
    results: Any = None
    host: list[float] = field(default_factory=list)

    def record(self) -> None:
        start = time.perf_counter()
        with open_capture(check_races=False) as cap:  # the report has them
            self.results = self.way.run(self.program)
        self.row.recording_us = (time.perf_counter() - start) * 1e6
        self.graph = cap.graph
        self.row.nodes = cap.recording.node_count

    def once(self) -> None:
        if self.graph is None:
            self.results = self.way.run(self.program)
        else:
            self.graph.launch()

    def batch(self, cupy: Any, runs: int) -> tuple[float, float]:
        """Device time and host time of one run of several in a row, in microseconds."""
        stream = cupy.cuda.get_current_stream()
        start, stop = cupy.cuda.Event(), cupy.cuda.Event()
        stream.synchronize()
        start.record(stream)
        began = time.perf_counter()
        for _ in range(runs):
            self.once()
        issued = time.perf_counter() - began
        stop.record(stream)
        stop.synchronize()
        return float(cupy.cuda.get_elapsed_time(start, stop)) * 1e3 / runs, issued * 1e6 / runs

    def close(self) -> None:
        self.results = None
        if self.graph is not None:
            self.graph.close()


class _Wanted:
    """The results of the eager run on one lane, with which those of the other ways are compared."""

    def __init__(self, cupy: Any, rtol: float | None, atol: float | None) -> None:
        self._cupy = cupy
        self._tolerance = (rtol, atol)
        self.arrays: list[NDArray[Any]] = []

    def of(self, results: Any) -> list[NDArray[Any]]:
        """The arrays in a program's results, on the host. Waits for the current stream."""
        found = _named(results, 'result', self._cupy.ndarray)
        return [np.array(self._cupy.asnumpy(one)) for _name, one in found]

    def apart(self, results: Any) -> float | None:
        """The largest difference; None if all are within the tolerance; inf if the arrays do not correspond."""
        got = self.of(results)
        if [(one.shape, one.dtype) for one in got] != [(one.shape, one.dtype) for one in self.arrays]:
            return float('inf')
        found = [difference(one, want, *self._tolerance) for one, want in zip(got, self.arrays)]
        return max((one for one in found if one is not None), default=None)

    def __str__(self) -> str:
        count = counted(len(self.arrays), 'array')
        if all(one.dtype.kind not in 'fc' for one in self.arrays):
            return f'{count}, equal to the last bit'
        rtol, atol = self._tolerance
        relative = "the root of the dtype's precision" if rtol is None else f'{rtol:g}'
        absolute = 'that times the largest element' if atol is None else f'{atol:g}'
        return f'{count}, rtol {relative}, atol {absolute}'


class _Trying:
    """One experiment. ``progress``: what is told of its steps; None: the log, and a bar where one can be shown."""

    def __init__(
        self, program: Program, rounds: int, wanted: _Wanted | None, progress: Callable[[str], None] | None
    ) -> None:
        platform = current()
        self.cupy = platform.cupy
        self.program = program
        self.wanted = wanted
        self.searched = wanted is not None
        self.tell = progress or (lambda text: LOG.info('experiment: %s', text))
        self.each: Callable[[str, Sequence[Any]], Iterable[Any]] = each if progress is None else lambda _, items: items
        #: Whether times are those of a model, and only graphs have them.
        self.modelled = _models(platform)
        self.report = Experiment(device=_device(platform), rounds=rounds)

    def run(self, ways: list[Way], launches: int | None) -> Experiment:
        report = self.report
        self._look()
        trials = [_Trial(way, row, self.program) for way, row in self._kept(ways)]
        report.rows = [trial.row for trial in trials]
        report.launches = launches or (1 if self.modelled else self._launches())
        with ExitStack() as stack:
            for trial in trials:
                stack.callback(trial.close)
            self._prepare(trials)
            if self.modelled:
                self._model(trials)
            else:
                self._time(trials)
        base = report.rows[0].median_us if report.rows else None
        for row in report.rows:
            median = row.median_us
            row.ratio = median / base if base and median is not None else None
        return report

    def _look(self) -> None:
        """Run the program on one lane: this gives the number of branches and the expected results."""
        results = ONE_LANE.run(self.program, self.report.branches)
        if not any(self.report.branches):
            raise ValueError(
                'the program ran no branches: it must call the function that it is given, with its branches'
            )
        if self.wanted is not None:
            self.wanted.arrays = self.wanted.of(results)
            why = ''
            if not self.wanted.arrays:
                why = 'the program returns no arrays, so nothing was compared: return those that it writes'
            elif self.wanted.apart(ONE_LANE.run(self.program)) is not None:
                why = 'the program gave something else when it ran again, so results were not compared'
            if why:
                self.report.notes.append(why)
                self.wanted = None
            self.report.compared = str(self.wanted or '')
        del results
        self.cupy.cuda.get_current_stream().synchronize()

    def _kept(self, ways: list[Way]) -> Iterator[tuple[Way, ExperimentRow]]:
        """The ways that are worth running, each once: ways that amount to the same are one row."""
        counts, notes = self.report.branches, self.report.notes
        rows: dict[Any, tuple[Way, ExperimentRow]] = {}
        most = max(counts)
        idle: set[int] = set()
        reasons: set[str] = set()
        for way in ways:
            if isinstance(way.assign, str) and way.lanes > most:
                idle.add(way.lanes)
            elif self.modelled and not way.captured:
                reasons.add(_NOT_EAGER)
            else:
                if self.modelled and way.priorities:
                    reasons.add(_NOT_MODELLED)
                lanes = tuple(assigned(count, way.lanes, way.assign) for count in counts)
                row = ExperimentRow(way.captured, way.lanes, [], way.asked, list(way.priorities))
                kept = rows.setdefault((way.captured, way.priorities, lanes), (way, row))[1]
                kept.assignments += [way.name] if way.name not in kept.assignments else []
        if idle:
            numbers = ', '.join(map(str, sorted(idle)))
            there = f'there {"is" if most == 1 else "are"} {counted(most, "branch")} at most'
            notes.append(f'{numbers} lanes are left out: {there}')
        notes += sorted(reasons)
        yield from rows.values()

    def _launches(self) -> int:
        """The number of runs in a row that takes long enough to be timed, and not longer."""
        runs = 3
        us, _host = _Trial(ONE_LANE, ExperimentRow(False, 1, []), self.program).batch(self.cupy, runs)
        return int(min(max(_BATCH / max(us, 1.0), 1), _MOST_LAUNCHES))

    def _prepare(self, trials: list[_Trial]) -> None:
        """Run each way once, so that CuPy compiles its kernels; record the graphs; compare the first results."""
        captured = [trial for trial in trials if trial.way.captured]
        if captured and not self.modelled:
            first = _Trial(captured[0].way, ExperimentRow(True, 1, []), self.program)
            first.record()  # so that no row's recording time includes what is made once
            first.close()
        for trial in self.each('preparing ways', trials):
            if trial.way.captured:
                trial.record()
                self._search(trial)
            trial.once()
            self._compare(trial)
            self.tell(f'prepared: {trial.row}')

    def _search(self, trial: _Trial) -> None:
        """Search a graph for races, which show in results only now and then."""
        assert trial.graph is not None
        found = trial.graph.races().certain if self.searched else []
        if found and not any(row.races for row in self.report.rows):
            self.report.notes.append(f'{trial.row}: {found[0]}')
        trial.row.races = len(found)

    def _compare(self, trial: _Trial) -> None:
        """Compare the results of the last run. Those of an eager run are then dropped."""
        apart = None if self.wanted is None else self.wanted.apart(trial.results)
        if apart is not None:
            trial.row.largest = max(apart, trial.row.largest or 0.0)
        if trial.graph is None:
            trial.results = None

    def _time(self, trials: list[_Trial]) -> None:
        order = list(trials)
        with Uncollected():
            for number in self.each('timing rounds', range(1 + self.report.rounds)):  # the first doesn't count
                order.append(order.pop(0))
                for trial in order:
                    us, host = trial.batch(self.cupy, self.report.launches)
                    if number:
                        trial.row.times_us.append(us)
                        trial.host.append(host)
                    self._compare(trial)
                self.tell(f'round {number} of {self.report.rounds}')
        for trial in trials:
            trial.row.source = 'measured'
            trial.row.host_us = float(np.median(trial.host))

    def _model(self, trials: list[_Trial]) -> None:
        """Record the graphs anew, into memory that does not hold the right results yet, and compare. Each launch runs
        the nodes in another order that the graph allows. Nothing is timed."""
        for number in self.each('comparing rounds', range(1, 1 + self.report.rounds)):
            for trial in trials if self.wanted is not None else ():
                trial.close()
                trial.record()
                trial.once()
                self._compare(trial)
            self.tell(f'round {number} of {self.report.rounds}')
        for trial in trials:
            assert trial.graph is not None
            trial.row.recording_us = None  # the simulated device's time means nothing
            try:
                took = trial.graph.measure(launches=1, warmup=0).span_us
                trial.row.times_us, trial.row.source = [float(took)], 'modelled'
            except errors.UpdateError as error:
                self.report.notes.append(f'there are no times of {trial.row}: {error.rule}')


def _models(platform: Platform) -> bool:
    return platform.simulated


def _device(platform: Platform) -> str:
    if platform.simulated:
        return 'the simulated device'
    properties = platform.cupy.cuda.runtime.getDeviceProperties(platform.cupy.cuda.Device().id)
    return str(properties['name'].decode())


# -- the public function, and its arguments ---------------------------------------------------------------------


def experiment(
    program: Program | Sequence[Callable[[], Any]],
    *,
    lanes: int | Sequence[int] = (1, 2, 4, 8),
    assignments: Sequence[Assignment] = ('round robin', 'blocks'),
    priorities: Sequence[Priority] = (None,),
    capture: Sequence[bool] = (False, True),
    launches: int | None = None,
    rounds: int = 7,
    check: bool = True,
    rtol: float | None = None,
    atol: float | None = None,
    progress: Callable[[str], None] | None = None,
) -> Experiment:
    """Run a program on several numbers of lanes, eagerly and as a graph; compare times and results.

    ``report = ck.experiment([f, g, h])``, then ``print(report)``, ``report.best``, ``report.svg()``. Each way (a number
    of lanes, an assignment, priorities, eager or a graph) is run once, and recorded once if it is a graph; then each
    round times all ways, by CUDA events around some runs in a row. Ratios are to the first row, one lane run eagerly.
    The results of each way are compared with those of this row, after the first run and after each round: ways that
    differ have branches that race. Equal results prove nothing, least of all if branches write into arrays that hold
    the right values from the run before.

    On the simulated device each graph is recorded anew in each round, and runs its nodes in a random order that it
    allows; times come from a model of a GPU, and eager rows are left out.

    Args:
        program: a list of branches (callables without arguments); or a function of one argument, ``parallel``. It calls
            ``parallel`` with branches as often as it likes, and gets their results; its other work is on the current
            stream. The program runs many times, so it should not change its inputs. Its results are the arrays that it
            returns, also in lists, tuples and dictionaries.
        lanes: a number of lanes, or several; those above the number of branches are left out. One lane, eager, is
            always included.
        assignments: as ``assign`` of :func:`parallel`: 'round robin', 'blocks', or sequences of one lane number for
            each branch. Assignments that amount to the same are run once.
        priorities: the priorities to try. Each is None, a number for all lanes, or a sequence, the first lane's first;
            lanes after its end have the default. They count eagerly and in graphs (see :func:`fork`), but the model of
            the simulated device ignores them.
        capture: which ways to run: False: eagerly, on streams; True: as a graph.
        launches: how many runs are timed together. None: as many as take about 20 ms on one lane, 200 at most.
        rounds: how often each way is timed, after one round that does not count.
        check: whether results are compared, which copies them to the host after each round, and graphs are searched for
            races (:meth:`Graph.races`), which change results only now and then.
        rtol, atol: what counts as equal, as in :meth:`Graph.verify`. Whole numbers and booleans must be the same.
        progress: a function that is called with a text for each step. None: steps go to the logger ``capturekit``, at
            level INFO; a terminal or a notebook shows a bar if tqdm is installed.

    Raises:
        TypeError, ValueError: an argument is not as described, or the program runs no branches.
        UnmatchedError: this thread has a capture or a rehearsal open.
        Whatever the program raises; and in its captures, what a capture refuses.

    It works on CuPy's current stream and waits for it. The memory of all graphs is held until the end. Threads: no
    other thread should use the device during the call, because its work would be in the times.
    """
    body = program_of(program)
    branches = len(program) if isinstance(program, Sequence) else None
    ways = ways_of(numbers_of_lanes(lanes), assignments, priorities, capture, branches)
    for name, value in (('launches', 1 if launches is None else launches), ('rounds', rounds)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f'{name} must be a whole number, got {value!r}')
        if value < 1:
            raise ValueError(f'{name} must be 1 or more, got {value}')
    if not isinstance(check, bool):
        raise TypeError(f'check must be True or False, got {check!r}')
    if progress is not None and not callable(progress):
        raise TypeError(f'progress must be callable or None, got {type(progress).__name__}')
    check_tolerance('rtol', rtol)
    check_tolerance('atol', atol)
    if GUARD.occupied():
        raise errors.UnmatchedError(
            'ck.experiment()',
            location=here(),
            rule='It runs the program eagerly and in new captures, but this thread has a capture or a rehearsal open.',
            remedy='Experiment outside of it.',
        )
    wanted = _Wanted(current().cupy, rtol, atol) if check else None
    return _Trying(body, rounds, wanted, progress).run(ways, launches)

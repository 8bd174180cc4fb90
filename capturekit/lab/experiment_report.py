"""The report of an experiment: the ways that one program was run, as plain data, a table and a picture."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from capturekit.model.counted import counted, plural
from capturekit.model.shown import Shown
from capturekit.render.experiment import Point, Series, to_svg

VERSION = 1
_RACE = (
    'differs, races: these rows computed, or may compute, something else than one lane did. Their branches race: one '
    'reads or writes what another one writes, on another lane, and nothing orders the two.'
)


@dataclass
class ExperimentRow:
    """One way of running the program.

    Attributes:
        captured: True: recorded into a graph, and launched. False: run eagerly, on streams.
        lanes: the number of lanes; 1 is the current stream, with no fork.
        assignments: how branches were assigned to lanes; several names where they amount to the same.
        priority: the lanes' priorities, as they were asked for, in words: 'all -1', or '-1 -' for one of a sequence.
        priorities: the lanes' priorities in the order of the lanes; empty, as ``priority``, where all are the default.
        times_us: device time of one run, in microseconds, once for each round. Empty if nothing was timed.
        host_us: the median host time for issuing one run, in microseconds. None if nothing was timed.
        recording_us: host time of the capture, in microseconds, instantiating included. None for eager rows.
        nodes: how many nodes the graph has. None for eager rows.
        largest: the largest absolute difference from the results of one lane, eager; None if there was none.
        races: how many certain races the graph has, as pairs of lines (:meth:`Graph.races`). Eager rows are not
            searched.
        source: 'measured' by CUDA events, 'modelled' on the simulated device, '' where there are no times.
        ratio: its median divided by that of the report's first row. None if one of them has no times.
    """

    captured: bool
    lanes: int
    assignments: list[str]
    priority: str = ''
    priorities: list[int | None] = field(default_factory=list)
    times_us: list[float] = field(default_factory=list)
    host_us: float | None = None
    recording_us: float | None = None
    nodes: int | None = None
    largest: float | None = None
    source: str = ''
    ratio: float | None = None
    races: int = 0

    @property
    def median_us(self) -> float | None:
        """The median of ``times_us``; None if there are none."""
        return _spread(self.times_us)[0] if self.times_us else None

    @property
    def quartiles_us(self) -> tuple[float, float] | None:
        """The first and the third quartile of ``times_us``; None if there are none."""
        return _spread(self.times_us)[1:] if self.times_us else None

    @property
    def right(self) -> bool:
        """True if no difference was seen, and no race."""
        return self.largest is None and not self.races

    @property
    def way(self) -> str:
        """'graph' or 'eager'."""
        return 'graph' if self.captured else 'eager'

    @property
    def assignment(self) -> str:
        """The assignment in words: '-' on one lane."""
        return '-' if self.lanes == 1 else ' = '.join(self.assignments)

    def to_json(self) -> dict[str, Any]:
        """The row as a dictionary, median and quartiles included."""
        return {**asdict(self), 'median_us': self.median_us, 'quartiles_us': self.quartiles_us}

    def __str__(self) -> str:
        lanes = f'{counted(self.lanes, "lane")}'
        words = [self.way, lanes] + ([] if self.lanes == 1 else [self.assignment])
        return ', '.join(words + ([f'priority {self.priority}'] if self.priority else []))


@dataclass(repr=False)
class Experiment(Shown):
    """What :func:`capturekit.experiment` found; ``print`` shows a table, notebooks show a picture as well.

    Attributes:
        rows: one for each way. Ratios are to the first one: on a GPU one lane, eager.
        device: the name of the device. branches: how many branches each call of ``parallel`` had.
        launches: how many runs were timed together. rounds: how often each row was timed.
        compared: which results were compared, and how closely, in words; '' if none were.
        notes: what was left out, and why.
    """

    rows: list[ExperimentRow] = field(default_factory=list)
    device: str = ''
    branches: list[int] = field(default_factory=list)
    launches: int = 0
    rounds: int = 0
    compared: str = ''
    notes: list[str] = field(default_factory=list)

    @property
    def best(self) -> ExperimentRow | None:
        """The row with the least median among those whose results are right; None if no times were taken."""
        timed = [row for row in self.rows if row.times_us and row.right]
        return min(timed, key=lambda row: _spread(row.times_us)[0], default=None)

    @property
    def ok(self) -> bool:
        """True if the results of no row differ from those of the first, and no graph has a race."""
        return all(row.right for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """The report as dictionaries and lists."""
        return {'version': VERSION, **asdict(self), 'rows': [row.to_json() for row in self.rows], 'ok': self.ok}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report to a JSON file."""
        with open(os.fspath(path), 'w', encoding='utf-8') as f:  # a number would be an open file's
            json.dump(self.to_json(), f, indent=1)
            f.write('\n')

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Experiment:
        """Read a report from a JSON file.

        Raises:
            ValueError: it is not a report, or its version is unknown to this capturekit.
        """
        with open(os.fspath(path), encoding='utf-8') as f:
            data = json.load(f)
        if not isinstance(data, dict) or data.get('version') != VERSION or 'rows' not in data:
            raise ValueError(f'this is not a report of an experiment of version {VERSION}')
        known = {name: value for name, value in data.items() if name in cls.__dataclass_fields__}
        known['rows'] = [
            ExperimentRow(**{k: v for k, v in r.items() if k in ExperimentRow.__dataclass_fields__})
            for r in data['rows']
        ]
        return cls(**known)

    def svg(self) -> str:
        """The medians with their quartiles over the number of lanes, as an SVG document."""
        return to_svg(self._head(), self._subtitle(), list(self._series()))

    def plot(self, axes: Any = None) -> Any:
        """Draw the same with matplotlib, into ``axes`` or a new figure; return the axes.

        Raises:
            ImportError: matplotlib is not installed; :meth:`svg` does not need it.
        """
        try:
            axes = axes or importlib.import_module('matplotlib.pyplot').subplots()[1]
        except ImportError as error:
            raise ImportError(
                'plot() draws with matplotlib, which is not installed here: pip install matplotlib; svg() does without'
            ) from error
        for series in self._series():
            lanes = [point.lanes for point in series.points]
            medians = [point.median for point in series.points]
            spread = [
                [point.median - point.low for point in series.points],
                [point.high - point.median for point in series.points],
            ]
            style = '--' if series.dashed else '-'
            axes.errorbar(lanes, medians, yerr=spread, linestyle=style, marker='o', capsize=3, label=series.name)
        axes.set(title=self._head(), xlabel='lanes', ylabel='us')
        if any(row.times_us for row in self.rows):
            axes.legend()
        return axes

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {'text/plain': str(self), 'image/svg+xml': self.svg()}

    def _repr_html_(self) -> str:
        return f'{self.svg()}{super()._repr_html_()}'

    def _series(self) -> Iterator[Series]:
        """A line for each assignment, with and without capture; one lane belongs to all of them."""
        timed = [row for row in self.rows if row.times_us]
        kinds = [(row.captured, name, row.priority) for row in timed for name in row.assignments]
        for captured, name, priority in dict.fromkeys(kinds):
            points = tuple(
                Point(row.lanes, *_spread(row.times_us), wrong=not row.right)
                for row in sorted(timed, key=lambda row: row.lanes)
                if (row.captured, row.priority) == (captured, priority) and name in row.assignments
            )
            words = f', priority {priority}' if priority else ''
            yield Series(f'{"graph" if captured else "eager"}, {name}{words}', points, dashed=not captured)

    def _head(self) -> str:
        counts = sorted(set(self.branches))
        branches = f'{counts[0]} to {counts[-1]}' if len(counts) > 1 else f'{counts[0] if counts else 0}'
        calls = f' in {counted(len(self.branches), "call")}' if len(self.branches) > 1 else ''
        noun = plural('branch', counts[0] if len(counts) == 1 else 2)
        return f'{branches} {noun}{calls}, on {self.device}'

    def _subtitle(self) -> str:
        sources = {row.source for row in self.rows if row.times_us}
        if sources == {'measured'}:
            taken = f'{self.rounds} times {counted(self.launches, "run")}'
            return f'device time of one run: median of {taken}, with the quartiles'
        if sources == {'modelled'}:
            return 'modelled times of the simulated device: for comparing, not for what a GPU would take'
        return 'no times'

    def __str__(self) -> str:
        return '\n'.join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f'{self._head()}; {self._subtitle()}'
        if self.rows:
            yield from _table([_HEAD, *map(_cells, self.rows)])
        if self.best is not None:
            yield f'best: {self.best}'
        if self.compared:
            yield f'results compared with one lane, eager: {self.compared}' + (
                ': all the same' if all(row.largest is None for row in self.rows) else ''
            )
        if not self.ok:
            yield _RACE
        yield from (f'note: {note}' for note in self.notes)


_HEAD = 'way,lanes,assignment,priority,median us,quartiles,ratio,host us,nodes,recording us'.split(',')
_WORDS = 4  # so many columns hold words, the others numbers


def _cells(row: ExperimentRow) -> list[str]:
    spread = row.quartiles_us
    return [
        row.way,
        str(row.lanes),
        row.assignment,
        row.priority,
        _time(row.median_us),
        '' if spread is None or len(row.times_us) < 2 else f'{spread[0]:,.1f} to {spread[1]:,.1f}',
        '' if row.ratio is None else f'{row.ratio:.3f}',
        _time(row.host_us),
        '' if row.nodes is None else f'{row.nodes:,}',
        _time(row.recording_us),
        *([] if row.largest is None else [f'differs by up to {row.largest:.3g}']),
        *([counted(row.races, 'race')] if row.races else []),
    ]


def _time(us: float | None) -> str:
    return '' if us is None else f'{us:,.1f}'


def _table(lines: list[list[str]]) -> Iterator[str]:
    """Align cells in columns; columns that are empty in every row are left out."""
    shown = [n for n in range(len(_HEAD)) if any(line[n] for line in lines[1:])]
    widths = [max(len(line[n]) for line in lines) for n in shown]
    for line in lines:
        cells = [line[n].ljust(w) if n < _WORDS else line[n].rjust(w) for n, w in zip(shown, widths)]
        yield '  '.join([' ', *cells, *line[len(_HEAD) :]]).rstrip()


def _spread(times: list[float]) -> tuple[float, float, float]:
    """The median, the first and the third quartile."""
    median, first, third = np.quantile(times, (0.5, 0.25, 0.75)).tolist()
    return median, first, third

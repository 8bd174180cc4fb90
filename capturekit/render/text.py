"""A recording as text for the terminal: time runs down, each lane has a column, and forks and joins are drawn.

Consecutive nodes of one name and line on one lane share one line. If there is a timeline, its table follows.
"""

from __future__ import annotations

from collections.abc import Iterator

from capturekit.model.recording import Recording
from capturekit.render.layout import Box, Picture, clean, fit, lay_out, width_of
from capturekit.render.timeline import table

_UP, _DOWN, _LEFT, _RIGHT = 1, 2, 4, 8
#: The box-drawing characters by their arms.
_ARMS = ' ╵╷│╴┘┐┤╶└┌├─┴┬┼'
#: What is the same for boxes that share a line.
_ALIKE = ('row', 'name', 'kind', 'place')


def to_text(recording: Recording) -> str:
    """Draw a recording as text."""
    picture = lay_out(recording)
    lines = [picture.summary, picture.made, '']
    width = max((len(row.title) for row in picture.rows), default=0)
    lines += [f'{row.title:{width}}  {row.story}' for row in picture.rows]
    if picture.boxes:
        lines += ['', *_drawn(picture)]
    if picture.marks:
        lines += ['', 'marks:', *(f'  [{number}] {mark.line}' for number, mark in enumerate(picture.marks, 1))]
    if picture.timeline is not None:
        lines += ['', *table(picture, picture.timeline)]
    return '\n'.join(line.rstrip() for line in lines) + '\n'


def _drawn(picture: Picture) -> Iterator[str]:
    runs = _runs(picture)
    ends = _ends(picture)
    titles = ['?' if row.lane is None else str(row.lane) for row in picture.rows]
    step = max(map(len, titles)) + 1
    rails = step * len(titles)
    digits = len(str(len(picture.boxes) - 1))
    ranged = 2 * digits + 1 if any(len(run) > 1 for run in runs) else digits
    kinds = max(width_of(fit(box.kind, 14)) for box in picture.boxes)
    names = max(width_of(_name(run, picture)) for run in runs)
    yield ''.join(f'{title:<{step}}' for title in titles)
    alive: set[int] = set()
    for run in runs:
        box = picture.boxes[run[0]]
        tails = {picture.boxes[tail].row for tail in box.after} - {box.row}
        going = {row for row in alive if ends[row] > run[0]}
        if tails:
            yield _crossing(len(titles), step, going, alive, tails, box.row)
        alive = going | {box.row}
        marks = ['●' if row == box.row else '│' if row in alive else ' ' for row in range(len(titles))]
        told = _line_of(run, box, picture, (ranged, names, kinds))
        yield ''.join(f'{mark:<{step}}' for mark in marks).ljust(rails) + ' ' + told


def _name(run: range, picture: Picture) -> str:
    box = picture.boxes[run[0]]
    if picture.of == 'steps':
        return fit(box.name, 44)
    return fit(box.short, 32) if len(run) == 1 else f'{fit(box.short, 24)} x {len(run)}'


def _padded(text: str, width: int) -> str:
    return text + ' ' * (width - width_of(text))


def _line_of(run: range, box: Box, picture: Picture, widths: tuple[int, int, int]) -> str:
    number = f'{run[0]}' if len(run) == 1 else f'{run[0]}-{run[-1]}'
    line = (
        f'{number:>{widths[0]}}  {_padded(_name(run, picture), widths[1])}  {_padded(fit(box.kind, 14), widths[2])}  '
    )
    if picture.of != 'spans':
        line += '' if box.place is None else fit(box.where, 40)
    elif box.place is not None and box.place.function != '<module>':
        line += fit(clean(f'in {box.place.function}'), 40)
    others = [tail for tail in box.after if picture.boxes[tail].row != box.row or tail > box.number]
    line += '  after ' + ', '.join(map(str, others)) if others else ''
    return line + ''.join(f'  [{mark + 1}]' for n in run for mark in picture.boxes[n].marks)


def _crossing(rows: int, step: int, going: set[int], alive: set[int], tails: set[int], head: int) -> str:
    """The line in which arrows go from the tails' columns to the head's."""
    ends = {*tails, head}
    low, high = min(ends), max(ends)
    line = ''
    for row in range(rows):
        arms = (_UP if row in alive or row in tails else 0) | (_DOWN if row in going or row == head else 0)
        if row in ends:
            arms |= (_LEFT if row > low else 0) | (_RIGHT if row < high else 0)
        elif low < row < high and not arms:
            arms = _LEFT | _RIGHT
        line += _ARMS[arms] + ('─' if low <= row < high else ' ') * (step - 1)
    return line


def _ends(picture: Picture) -> list[int]:
    """For each row the number of the last box that is on it, or that an arrow leads to from it."""
    ends = [-1] * len(picture.rows)
    for box in picture.boxes:
        for row in (box.row, *(picture.boxes[tail].row for tail in box.after)):
            ends[row] = max(ends[row], box.number)
    return ends


def _runs(picture: Picture) -> list[range]:
    """The numbers of the boxes of each line."""
    boxes = picture.boxes
    leaves = {tail for box in boxes for tail in box.after if tail != box.number - 1 or boxes[tail].row != box.row}
    runs: list[range] = []
    for box in boxes:
        before = boxes[box.number - 1] if box.number else None
        alike = before is not None and all(getattr(before, name) == getattr(box, name) for name in _ALIKE)
        simple = all(tail == box.number - 1 for tail in box.after) and box.number - 1 not in leaves
        if picture.of == 'nodes' and alike and simple:
            runs[-1] = range(runs[-1][0], box.number + 1)
        else:
            runs.append(range(box.number, box.number + 1))
    return runs

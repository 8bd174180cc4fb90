"""A recording as a trace for ui.perfetto.dev and chrome://tracing: a track for each lane, flows for arrows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from capturekit.model.counted import counted
from capturekit.model.recording import Recording
from capturekit.render.layout import Box, Picture, lay_out

_ORDER = 'no times are known: ts is the order, one microsecond a column, and nodes of one ts may run together'


def to_trace(recording: Recording, times: Sequence[tuple[float, float]] | None = None) -> str:
    """Write a recording as trace events.

    ``times`` holds the start and the end of each box (a node, where the recording has nodes), in microseconds. None:
    those of the recording's timeline; where it has none, the order.
    """
    picture = lay_out(recording)
    if times is not None and len(times) != len(picture.boxes):
        raise ValueError(f'{counted(len(times), "time")} for {len(picture.boxes)} {picture.of}')
    spans: list[tuple[float, float]] = [(box.column, box.column + 0.8) for box in picture.boxes]
    known = _ORDER
    if times is not None:
        spans, known = list(times), 'measured'
    elif picture.timeline is not None:
        spans = [box.time for box in picture.boxes]
        known = f'{picture.timeline.source}, medians of {counted(picture.timeline.launches, "launch")}'
    events = _tracks(picture)
    events += [_event(box, *span) for box, span in zip(picture.boxes, spans)]
    for number, arrow in enumerate(picture.arrows):
        tail, head = picture.boxes[arrow.tail], picture.boxes[arrow.head]
        flow = {'cat': 'arrow', 'name': 'then', 'id': number, 'pid': 1}
        # inside of the slices, so that both ends of the flow belong to them
        at, to = spans[arrow.tail], spans[arrow.head]
        events.append({**flow, 'ph': 's', 'tid': tail.row, 'ts': at[0] + 0.9 * (at[1] - at[0])})
        events.append({**flow, 'ph': 'f', 'bp': 'e', 'tid': head.row, 'ts': to[0] + 0.1 * (to[1] - to[0])})
    for mark in picture.marks:
        row = 0 if mark.box is None else picture.boxes[mark.box].row
        ts = 0 if mark.box is None else spans[mark.box][0]
        scope = 'p' if mark.box is None else 't'
        instant = {'ph': 'i', 'cat': 'mark', 'name': mark.kind, 'pid': 1, 'tid': row, 'ts': ts, 's': scope}
        events.append({**instant, 'args': {'text': mark.line}})
    about = {'summary': picture.summary, 'made by': picture.made, 'slices': picture.of, 'times': known}
    return json.dumps({'traceEvents': events, 'otherData': about, 'metadata': about}, separators=(',', ':')) + '\n'


def _tracks(picture: Picture) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = [{'ph': 'M', 'name': 'process_name', 'pid': 1, 'args': {'name': picture.summary}}]
    for number, row in enumerate(picture.rows):
        name = {'name': f'{row.title}: {row.story}'}
        events.append({'ph': 'M', 'name': 'thread_name', 'pid': 1, 'tid': number, 'args': name})
        order = {'sort_index': number}
        events.append({'ph': 'M', 'name': 'thread_sort_index', 'pid': 1, 'tid': number, 'args': order})
    return events


def _event(box: Box, start: float, end: float) -> dict[str, Any]:
    args = {'number': box.number, 'name': box.name, 'line': box.where, **dict(box.detail)}
    event = {'ph': 'X', 'name': box.short, 'cat': box.kind, 'pid': 1, 'tid': box.row}
    return {**event, 'ts': start, 'dur': round(end - start, 6), 'args': args}

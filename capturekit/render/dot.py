"""A recording in DOT, for Graphviz: a cluster for each lane, an edge for each arrow."""

from __future__ import annotations

from capturekit.model.recording import Recording
from capturekit.render.layout import Box, Picture, clean, fit, lay_out

#: Shapes of kinds of nodes; all others are boxes.
_SHAPES = {'memcpy': 'cds', 'memset': 'cds', 'host': 'house', 'graph': 'box3d', 'conditional': 'diamond'}


def to_dot(recording: Recording) -> str:
    """Write a recording in DOT."""
    picture = lay_out(recording)
    lines = [
        'digraph recording {',
        '  rankdir=LR; compound=true; newrank=true; labelloc=t; labeljust=l; fontname="sans-serif";',
        f'  label={_quoted(picture.summary, picture.made)};',
        '  node [shape=box, style="rounded", fontname="monospace", fontsize=10];',
        '  edge [arrowsize=0.7];',
    ]
    for number in range(len(picture.rows)):
        lines += _cluster(picture, number)
    for arrow in picture.arrows:
        way = '' if arrow.way == 'along' else ' [constraint=false]' if arrow.way == 'back' else ' [penwidth=1.6]'
        lines.append(f'  n{arrow.tail} -> n{arrow.head}{way};')
    for number, mark in enumerate(picture.marks, 1):
        lines.append(f'  m{number} [shape=note, style="", fontsize=9, label={_quoted(mark.line)}];')
        if mark.box is not None:
            lines.append(f'  m{number} -> n{mark.box} [style=dotted, arrowhead=none];')
    return '\n'.join([*lines, '}', ''])


def _cluster(picture: Picture, number: int) -> list[str]:
    row = picture.rows[number]
    boxes = [f'    {_node(box)}' for box in picture.boxes if box.row == number]
    boxes = boxes or [f'    l{number} [shape=point, tooltip="nothing is on this lane"];']
    head = f'  subgraph cluster_{number} {{'
    return [head, f'    label={_quoted(row.title)}; tooltip={_quoted(row.story)}; style=rounded;', *boxes, '  }']


def _node(box: Box) -> str:
    label = _quoted(fit(box.short, 32), *([' '.join(box.below)] if box.below else []))
    extra = f', shape={_SHAPES[box.kind]}' if box.kind in _SHAPES else ''
    return f'n{box.number} [label={label}, tooltip={_quoted(*box.details.splitlines())}{extra}];'


def _quoted(*lines: str) -> str:
    """Quote a string for DOT, which interprets backslashes and HTML entities in labels, so that both are escaped."""
    safe = (clean(line).replace('&', '&amp;').replace('\\', '\\\\').replace('"', '\\"') for line in lines)
    return '"' + '\\n'.join(safe) + '"'

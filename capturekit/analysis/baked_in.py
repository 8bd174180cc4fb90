"""Values that came from the host: the lines that likely baked a value into a graph."""

from __future__ import annotations

import ast
import linecache
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any

import numpy as np

from capturekit.analysis.node_view import Node
from capturekit.launch.array_extent import extent
from capturekit.model.source_line import Place

#: The most lines that are named.
MOST_LINES = 8


@dataclass
class Suspect:
    """Something that came from the host. ``at``: file, line and function, or None.

    ``kind``: 'upload' (an array uploaded while recording), 'scalar' (a kernel's argument), 'value' (a number of the
    host's that a recorded line names), 'read' (a host read that a rehearsal answered), 'drawn' (random numbers).
    """

    kind: str
    text: str
    at: list[Any] | None = None

    def __str__(self) -> str:
        place = Place.from_json(self.at)
        if place is None:
            return self.text
        source = linecache.getline(place.file, place.line).strip()
        return f'{place}: {self.text}' + (f': `{source}`' if source else '')


def suspects(graph: Any, fn: Callable[..., Any], frame: FrameType | None, array: Any, values: bool) -> list[Suspect]:
    """Values that came from the host on the way to an array of a graph, the likeliest first; else its last lines.

    ``values``: whether a value that is the same at every launch can be the cause. ``fn`` and ``frame`` know names.
    """
    recording = graph.recording
    nodes = _before(graph, array)
    lines = list(dict.fromkeys(node.at for node in nodes if node.at is not None))
    found = []
    spaces = _spaces(fn, frame)
    if values:
        found += [Suspect('upload', step.text, step.at) for step in recording.constants]
        found += list(_scalars(graph, nodes))
        found += [suspect for at in lines for suspect in _names(at, spaces)]
        found += [Suspect('read', step.text, step.at) for step in recording.steps if step.kind == 'assumed']
    found += [Suspect('drawn', step.text, step.at) for step in recording.steps if step.kind == 'drawn']
    if not found:
        found = [Suspect('line', 'the work behind it', at.to_json()) for at in reversed(lines)]
    unique = {(suspect.kind, suspect.text, str(suspect.at)): suspect for suspect in found}
    return list(unique.values())[:MOST_LINES]


def _before(graph: Any, array: Any) -> list[Node]:
    """The nodes that touch an array, and all before them; all nodes where that is not known."""
    nodes: list[Node] = graph.nodes
    low, high = extent(array)
    wanted = {node.number for node in nodes if any(low <= word.address < high for word in node.pointers)}
    if not wanted:
        return nodes
    behind: dict[int, list[int]] = {}
    for tail, head in graph.edges:
        behind.setdefault(head, []).append(tail)
    waiting = list(wanted)
    while waiting:
        for tail in behind.get(waiting.pop(), ()):
            if tail not in wanted:
                wanted.add(tail)
                waiting.append(tail)
    return [node for node in nodes if node.number in wanted]


def _scalars(graph: Any, nodes: list[Node]) -> Iterator[Suspect]:
    """Scalar arguments of the kernels, except those that the line itself spells out."""
    lines: dict[str, list[Place]] = {}
    for node in nodes:
        if node.at is not None:
            lines.setdefault(node.name, []).append(node.at)
    for known in graph.constants():
        if known['kind'] == 'scalar':
            for at in dict.fromkeys(lines.get(known['kernel'], [])):
                if not spelled_out(known['value'], linecache.getline(at.file, at.line)):
                    text = f'argument {known["argument"]} of {known["kernel"]} is {known["value"]}'
                    yield Suspect('scalar', text, at.to_json())


def _spaces(fn: Callable[..., Any], frame: FrameType | None) -> list[Mapping[str, Any]]:
    """The places where names are looked up: the frame, then the function's closure and globals."""
    spaces: list[Mapping[str, Any]] = [] if frame is None else [frame.f_locals, frame.f_globals]
    fn = getattr(fn, '__wrapped__', fn)
    free = getattr(getattr(fn, '__code__', None), 'co_freevars', ())
    with suppress(ValueError):  # a cell that is empty
        spaces.append({name: cell.cell_contents for name, cell in zip(free, getattr(fn, '__closure__', None) or ())})
    return [*spaces, getattr(fn, '__globals__', {})]


def _names(at: Place, spaces: list[Mapping[str, Any]]) -> Iterator[Suspect]:
    """Numbers of the host's that a line names."""
    for name in names_in(linecache.getline(at.file, at.line)):
        value = next((space[name] for space in spaces if name in space), None)
        if isinstance(value, (bool, int, float, complex, np.generic)):
            yield Suspect('value', f'{name} was {value!r} on the host', at.to_json())
        elif isinstance(value, np.ndarray):
            yield Suspect('value', f'{name} was an array on the host', at.to_json())


def names_in(source: str) -> list[str]:
    """The names that a line reads."""
    try:
        tree = ast.parse(source.strip())
    except SyntaxError:  # a part of a statement
        return list(dict.fromkeys(re.findall(r'(?<![\w.])[A-Za-z_]\w*', source)))
    loads = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    loads.sort(key=lambda node: (node.lineno, node.col_offset))
    return list(dict.fromkeys(node.id for node in loads))


def spelled_out(value: Any, source: str) -> bool:
    """Whether a line holds a number as it stands."""
    numbers = re.findall(r'(?<![\w.])(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?', source)
    try:
        return any(math.isclose(abs(float(value)), float(number), rel_tol=1e-6) for number in numbers)
    except (TypeError, ValueError, OverflowError):  # no real number
        return False

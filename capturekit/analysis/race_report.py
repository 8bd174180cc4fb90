"""``graph.races()``: the search, and where launching is allowed, what launches show in addition."""

from __future__ import annotations

from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Any

from capturekit.analysis.node_memory import Definitions
from capturekit.analysis.node_view import Look
from capturekit.analysis.observed_writes import Observation, why_not
from capturekit.analysis.races import DOES, MemoryBlocks, Observed, Race, Races, Search
from capturekit.driver.cuda import Platform, current
from capturekit.guard import GUARD, OpenCapture
from capturekit.launch.declared import by_node
from capturekit.launch.outside_arrays import names_of
from capturekit.launch.plan import Part
from capturekit.model import errors
from capturekit.model.source_line import here

if TYPE_CHECKING:
    from capturekit.analysis.examined import Examined

#: The number of calling functions that are searched for the names of arrays.
_FRAMES = 8


def _names(frame: FrameType | None, array: type) -> dict[str, Any]:
    """The variables of a frame and its callers that are arrays; the inner ones first."""
    found: dict[str, Any] = {}
    for _ in range(_FRAMES):
        if frame is None:
            break
        for name, value in names_of(frame, array).items():
            found.setdefault(name, value)
        frame = frame.f_back
    return found


def check(observe: bool, frame: FrameType | None) -> None:
    """Refuse an observation that is not possible now, before anything has started."""
    if not isinstance(observe, bool):
        raise TypeError(f'observe is True or False, got {observe!r}')
    if observe and GUARD.occupied():
        raise errors.UnmatchedError(
            'Graph.races(observe=True)',
            location=here(frame),
            rule='It launches the nodes one by one, and this thread has a capture or a rehearsal open.',
            remedy='Ask outside of it, or without observe=True.',
        )


def races_of(graph: Examined, observe: bool, frame: FrameType | None) -> Races:
    """Make the report for :meth:`Graph.races`, which holds the graph's lock; ``frame`` is its caller's."""
    platform, parts, look = current(), graph.parts(), graph.look()
    names = _names(frame, platform.cupy.ndarray)
    blocks = MemoryBlocks(graph.memory, platform.cupy.ndarray, names)
    devices, off = graph.recording.devices, graph.off
    why = '' if not observe else 'launched in several parts' if len(parts) > 1 else why_not(look, devices)
    told = Definitions(platform.device, graph.declared).told(blocks)
    observed, report = Observed(), Search(platform.device, parts, look, blocks, off=off, accesses=told).report
    if observe and not why:
        possible = {node.number for race in report.races if not race.certain for node in (race.first, race.second)}
        observed = Observation(platform, parts[0].graph, look, blocks.end, off, possible).run(graph.inside)
        report = Search(platform.device, parts, look, blocks, observed, off, accesses=told).report
        report.notes += observed.notes()
    if why:
        report.notes.append(f'nothing was run: {why}')
    elif observe and platform.simulated:
        report.races = [_tried(platform, parts[0].graph, look, blocks, race) for race in report.races]
    return report


def refusal(live: OpenCapture, made: Any, frame: FrameType | None) -> errors.RaceError | None:
    """The error for a capture that has ended well and whose graph has races; possible races become notes."""
    platform, spans = live.platform, [] if live.trace is None else live.trace.spans
    # parts and bodies are separate captures
    if live.memory is None or all(len(one.lanes) < 2 for one in (live.capture, *live.parts.past)):
        return None
    parts = [Part(int(made.graph))] if live.parts.plan is None else live.parts.plan.parts
    names = _names(frame, platform.cupy.ndarray)
    blocks = MemoryBlocks(live.memory, platform.cupy.ndarray, names)
    with GUARD.inside:
        look = Look(platform.device, parts, spans, live.memory)
        told = Definitions(platform.device, by_node(platform.device, live.recorder.said, live.recorder.called)).told(
            blocks
        )
        report = Search(platform.device, parts, look, blocks, accesses=told).report
    for race in report.races:
        if not race.certain:
            live.note('note', None, str(race).replace('\n', ''), race.second.at)
    if not report.certain:
        return None
    race = report.certain[0]
    more = f' There are {len(report.certain) - 1} more: see error.races.' if report.certain[1:] else ''
    error = errors.RaceError(
        f'{race.memory} is accessed in no fixed order',
        lane=race.second.lane,
        location=race.second.at or live.at,
        rule=f'{DOES[race.writes[0]]}: node {race.first}; {DOES[race.writes[1]]}: node {race.second}. Nothing orders '
        f'the two, so a launch may run them in either order, or at once.{more}',
        remedy=race.remedy,
    )
    error.races = report
    return error


def _tried(platform: Platform, g: int, look: Look, blocks: MemoryBlocks, race: Race) -> Race:
    """The race with the order that gives a different result, if there is one."""
    from capturekit.simulated.device.node_orders import differing  # not where there is a GPU

    handles = {number: handle for handle, number in look.numbers.items()}
    memory = platform.device.address_spaces[0]  # the device's; the other is the host's
    found = differing(platform.device, memory, g, *(handles[node.number] for node in (race.first, race.second)))
    if found is None:
        return race
    order, places = found
    parts = dict.fromkeys(f'{blocks.words(address, count)} differs' for address, count in places)
    return replace(race, order=tuple(look.numbers[handle] for handle in order), outcome='; '.join(parts))

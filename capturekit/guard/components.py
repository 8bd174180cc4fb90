"""The guard's components, and how they are put together.

A component is made from the components above it that it calls, and from nothing else, so that each can be made and
tested alone. Calls in the other direction are connected at the end of :func:`assemble`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import Any, TypeVar, get_type_hints

from capturekit.guard.allocators import Allocators
from capturekit.guard.arrays import Arrays
from capturekit.guard.caller_streams import CallerStreams
from capturekit.guard.captures import Captures
from capturekit.guard.collectives import Collectives
from capturekit.guard.conditional_bodies import Bodies
from capturekit.guard.device_switches import DeviceSwitches
from capturekit.guard.effects import Effects, Warned, WithheldOutput
from capturekit.guard.events import Events, PastEvents
from capturekit.guard.exchange import Exchange
from capturekit.guard.fork_scopes import ForkScopes
from capturekit.guard.graph_inputs import GraphInputs
from capturekit.guard.host_calls import HostCalls, Iterations
from capturekit.guard.host_waits import HostWaits
from capturekit.guard.lanes import Joins, Lanes
from capturekit.guard.left_arrays import LeftArrays
from capturekit.guard.library_calls import LibraryAccess, LibraryCalls
from capturekit.guard.library_plans import LibraryPlans
from capturekit.guard.manual_captures import ByHand, ManualCaptures
from capturekit.guard.outside_streams import OutsideStreams, Placeholders
from capturekit.guard.parts import Parts
from capturekit.guard.random_draws import RandomDraws
from capturekit.guard.refusals import SwallowedRefusals
from capturekit.guard.state import State
from capturekit.guard.stream_switches import StreamProperties, StreamSwitches
from capturekit.guard.stream_work import Copies, GraphLaunches, StreamWork
from capturekit.guard.uploads import CompiledUploads, Uploads
from capturekit.guard.verdicts import Verdicts


@dataclass(eq=False)
class Components:
    """The components by their names: each verb in the table of entry points is a method of one of them.

    Each is made from those above it.
    """

    state: State
    #: Decides on calls: refuses them, makes them wait, or makes them.
    verdicts: Verdicts
    #: Captures begin and end.
    captures: Captures
    #: Streams become lanes.
    lanes: Lanes
    #: Uploads of values of the host.
    uploads: Uploads
    #: The same, where compiled code uploads them.
    compiled: CompiledUploads
    #: Each thread's allocator.
    allocators: Allocators
    #: Streams of a graphed function's caller.
    callers: CallerStreams
    #: Lanes that are not joined at the end.
    joins: Joins
    #: A capture that is cut in parts.
    parts: Parts
    #: Arrays that were made in bodies which have ended.
    left: LeftArrays
    #: Bodies of conditional nodes.
    bodies: Bodies
    #: Streams that are current but not in the capture.
    outside: OutsideStreams
    #: The guard's streams in the place of legacy streams.
    placeholders: Placeholders
    #: Streams become current.
    streams: StreamSwitches
    #: Devices become current.
    devices: DeviceSwitches
    #: The current stream during a capture that was begun by hand.
    by_hand: ByHand
    #: Work on a stream that the call names.
    work: StreamWork
    #: Properties of streams that code reads.
    properties: StreamProperties
    #: Copies and memsets.
    copies: Copies
    #: Arrays that graphs of captures begun by hand use.
    inputs: GraphInputs
    #: Launches and uploads of graphs.
    launches: GraphLaunches
    #: Collectives of NCCL.
    collectives: Collectives
    #: Events recorded and waited for.
    events: Events
    #: Events of blocks that are over.
    past_events: PastEvents
    #: Forks and joins of scopes.
    scopes: ForkScopes
    #: The host waits for streams, events, devices.
    waits: HostWaits
    #: Arrays of other libraries.
    exchange: Exchange
    #: Values between host and device.
    arrays: Arrays
    #: Random numbers drawn by the host.
    draws: RandomDraws
    #: CuPy's vendor libraries.
    libraries: LibraryAccess
    #: Calls that no capture can hold.
    host_calls: HostCalls
    #: Functions that iterate until a number is small enough.
    iterations: Iterations
    #: Calls of libraries that show what they touch.
    known: LibraryCalls
    #: Plans of cuFFT.
    plans: LibraryPlans
    #: What a graphed function does besides CuPy's work.
    effects: Effects
    #: Warnings, at the lines of those who called the guard.
    warned: Warned
    #: Refusals that handlers of logging swallow.
    swallowed: SwallowedRefusals
    #: What recordings of graphed functions write to files.
    output: WithheldOutput
    #: Captures begun and ended by hand.
    manual: ManualCaptures


#: How each component is made, and from which others: those that its class takes, which stand above it.
MADE_OF: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    name: (kind, tuple(signature(kind).parameters))
    for name, kind in get_type_hints(Components).items()
    if kind is not State
}

_Table = TypeVar('_Table', bound=Components)


def assemble(
    table: Callable[..., _Table], state: State, instead: dict[str, Callable[..., Any]] | None = None
) -> _Table:
    """Make all components and put them into ``table``. ``instead`` has other functions to make some of them."""
    made: dict[str, Any] = {'state': state}
    for name, (kind, others) in MADE_OF.items():
        made[name] = (instead or {}).get(name, kind)(*(made[other] for other in others))
    components = table(**made)
    # calls of components below
    components.verdicts.meet, components.verdicts.settle = components.lanes.met, components.streams.settle
    components.allocators.settle = components.streams.settle
    components.captures.before_end.append(components.by_hand.let_go)
    components.captures.before_end.append(components.past_events.ended)
    components.captures.after_end.append(components.by_hand.keep_out_again)
    return components

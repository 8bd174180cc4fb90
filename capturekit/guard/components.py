"""The guard's components, and how they are put together.

A component is made from those that it calls, and from nothing else, so that each can be made and tested alone. Calls in
the other direction are connected at the end.
"""

from __future__ import annotations

from capturekit.guard.allocators import Allocators
from capturekit.guard.arrays import Arrays, Exchange
from capturekit.guard.caller_streams import CallerStreams
from capturekit.guard.captures import Captures
from capturekit.guard.collectives import Collectives
from capturekit.guard.conditional_bodies import Bodies
from capturekit.guard.device_switches import DeviceSwitches
from capturekit.guard.effects import Effects, Warned, WithheldOutput
from capturekit.guard.events import Events, PastEvents
from capturekit.guard.fork_scopes import ForkScopes
from capturekit.guard.graph_inputs import GraphInputs
from capturekit.guard.host_calls import HostCalls
from capturekit.guard.host_waits import HostWaits
from capturekit.guard.lanes import Joins, Lanes
from capturekit.guard.left_arrays import LeftArrays
from capturekit.guard.library_calls import LibraryAccess, LibraryCalls
from capturekit.guard.library_plans import LibraryPlans
from capturekit.guard.manual_captures import ByHand, ManualCaptures
from capturekit.guard.outside_streams import OutsideStreams
from capturekit.guard.parts import Parts
from capturekit.guard.random_draws import RandomDraws
from capturekit.guard.refusals import SwallowedRefusals
from capturekit.guard.state import State
from capturekit.guard.stream_switches import StreamSwitches
from capturekit.guard.stream_work import GraphLaunches, StreamWork
from capturekit.guard.uploads import CompiledUploads, Uploads
from capturekit.guard.verdicts import Verdicts


class Components:
    """The components by their names: each verb in the table of entry points is a method of one of them."""

    # what is of another kind where no capture is open in the driver
    kind_of_lanes: type[Lanes] = Lanes
    kind_of_outside: type[OutsideStreams] = OutsideStreams
    kind_of_streams: type[StreamSwitches] = StreamSwitches
    kind_of_events: type[Events] = Events
    kind_of_exchange: type[Exchange] = Exchange
    kind_of_arrays: type[Arrays] = Arrays
    kind_of_draws: type[RandomDraws] = RandomDraws
    kind_of_manual: type[ManualCaptures] = ManualCaptures

    def __init__(self, state: State) -> None:
        self.state = state
        #: Decides on calls: refuses them, makes them wait, or makes them.
        self.verdicts = verdicts = Verdicts(state)
        #: Captures begin and end.
        self.captures = Captures(state)
        #: Streams become lanes.
        self.lanes = lanes = self.kind_of_lanes(state)
        #: Uploads of values of the host; and the same, where compiled code uploads them.
        self.uploads = uploads = Uploads(state)
        self.compiled = compiled = CompiledUploads(state, lanes, uploads)
        #: Each thread's allocator.
        self.allocators = allocators = Allocators(state, verdicts, compiled)
        #: Streams of a graphed function's caller.
        self.callers = callers = CallerStreams(state, verdicts, lanes)
        #: Lanes that are not joined at the end.
        self.joins = Joins(state, lanes)
        #: A capture that is cut in parts.
        self.parts = parts = Parts(state, verdicts, allocators, lanes, self.joins, uploads)
        #: Arrays that were made in bodies which have ended; and the bodies of conditional nodes.
        self.left = LeftArrays(state)
        self.bodies = Bodies(state, lanes, parts, self.left)
        #: Streams that are current but not in the capture, and the guard's own in the place of legacy streams.
        self.outside = outside = self.kind_of_outside(state, verdicts, allocators, lanes, parts)
        #: Streams become current, and devices; and what code reads of a stream.
        self.streams = self.kind_of_streams(state, verdicts, allocators, lanes, callers, outside)
        self.devices = DeviceSwitches(state, allocators, lanes, callers, outside)
        self._judge_calls()
        # calls of components below
        verdicts.meet, verdicts.settle = lanes.met, self.streams.settle
        allocators.settle = self.streams.settle
        self.captures.before_end = [self.by_hand.let_go, self.past_events.ended]
        self.captures.after_end = [self.by_hand.keep_out_again]

    def _judge_calls(self) -> None:
        """Make the components for calls, from those for streams and captures."""
        state, verdicts, allocators, lanes = self.state, self.verdicts, self.allocators, self.lanes
        callers, uploads, compiled = self.callers, self.uploads, self.compiled
        parts, bodies, outside = self.parts, self.bodies, self.outside
        #: Work on a stream that the call names, or on the legacy one.
        self.work = work = StreamWork(state, verdicts, allocators, lanes, callers, parts, bodies, outside)
        #: Arrays that graphs of captures begun by hand use; launches and uploads of graphs.
        self.inputs = inputs = GraphInputs(state)
        self.launches = GraphLaunches(state, work, inputs)
        #: Collectives of NCCL.
        self.collectives = Collectives(state, verdicts, allocators, work)
        #: Events recorded and waited for; those of blocks that are over; forks and joins of scopes.
        self.events = self.kind_of_events(state, verdicts, allocators, lanes, callers, parts, outside, work, compiled)
        self.past_events = PastEvents(state, verdicts)
        self.scopes = ForkScopes(state, verdicts, allocators, lanes)
        #: The host waits for streams, events, devices.
        self.waits = waits = HostWaits(state, verdicts, allocators, lanes, callers, parts, outside, compiled)
        #: Arrays of other libraries; values between host and device.
        self.exchange = exchange = self.kind_of_exchange(state, verdicts, lanes, outside)
        self.arrays = self.kind_of_arrays(
            state, verdicts, lanes, callers, uploads, parts, bodies, outside, exchange, inputs
        )
        #: Random numbers drawn by the host.
        self.draws = self.kind_of_draws(state, verdicts, lanes, parts, bodies)
        #: CuPy's vendor libraries; those of their calls that show what they touch, and plans of cuFFT.
        self.libraries = LibraryAccess(state)
        self.known = known = LibraryCalls(state)
        self.plans = LibraryPlans(state, verdicts, allocators, parts, bodies, waits, known)
        #: Calls that no capture can hold.
        self.host_calls = HostCalls(state, verdicts, allocators, parts, bodies, self.libraries)
        #: What a graphed function does besides CuPy's work; warnings; refusals that handlers of logging swallow; files.
        self.effects = Effects(state, callers)
        self.warned = Warned()
        self.swallowed = SwallowedRefusals(state)
        self.output = WithheldOutput()
        #: Captures begun and ended by hand, and the current stream during them.
        self.by_hand = ByHand(state, verdicts, outside)
        self.manual = self.kind_of_manual(
            state, verdicts, self.captures, lanes, self.joins, outside, self.by_hand, inputs
        )

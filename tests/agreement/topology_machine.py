"""Tells programs to the topology, in the form of the other machines."""

from __future__ import annotations

from typing import Any

from capturekit.model.ledger import LEGACY_HANDLES, Lane, Ledger
from capturekit.model.rules import CaptureStatus, Effect, Operation
from tests.agreement.programs import LEGACY, OPS, Program, Step
from tests.agreement.simulated_machine import MODE


class TopologyMachine:
    """The ledger; stream n has handle 100 + n, event n handle 200 + n."""

    def __init__(self, blocking: list[bool], events: int) -> None:
        self.topology = Ledger()
        self.blocking = blocking
        #: node number -> (capture, lane number, segment), for comparing orders
        self.nodes: dict[int, list[tuple[int, int]]] = {}
        self.ids: dict[int, int] = {}

    def do(self, step: Step) -> str:
        """Judge the call, note what happened, return the name of the answer."""
        s = None if step.s is None else (LEGACY_HANDLES[0] if step.s == LEGACY else 100 + step.s)
        e = None if step.e is None else 200 + step.e
        e2 = None if step.e2 is None else 200 + step.e2
        operation = OPS[step.op][4]
        t = self.topology
        verdict = t.judge(operation, thread=step.t, stream=s, event=e, event2=e2)
        for capture in verdict.lost:
            capture.status = CaptureStatus.INVALIDATED
        if step.op == 'is_capturing' and not verdict.answer.refused:
            lane = t.lane(s or 0)
            return f'cudaSuccess:{"None" if lane is None else lane.capture.status.name.title()}'
        if verdict.answer.effect is Effect.ENDS and s is not None:
            lane = t.lane(s)
            assert lane is not None
            t.end(lane.capture)
        if not verdict.answer.refused:
            self._note(step, operation, s, e)
        return verdict.answer.code.name

    def _note(self, step: Step, operation: Operation, s: int | None, e: int | None) -> None:
        t = self.topology
        if operation is Operation.BEGIN_CAPTURE and s is not None:
            t.begin(s, MODE[step.mode or 'relaxed'], step.t, blocking=self.blocking[s - 100])
        elif operation is Operation.EVENT_RECORD and s is not None and e is not None:
            t.record(e, s)
        elif operation is Operation.WAIT_EVENT and s is not None and s not in LEGACY_HANDLES and e is not None:
            t.wait(s, e, blocking=self.blocking[s - 100])
        elif operation in (
            Operation.WORK,
            Operation.LAUNCH_HOST_FUNC,
            Operation.EVENT_RECORD_EXTERNAL,
            Operation.WAIT_EVENT_EXTERNAL,
        ):
            lane = t.lane(s or 0)
            if lane is not None:
                t.work(lane.stream)
                self.nodes.setdefault(lane.capture.number, []).append((lane.number, lane.segment))

    def state(self) -> list[Any]:
        """Per stream: None, or [status, capture, numbers of the nodes that lie before its next work]."""
        answer: list[Any] = []
        for n in range(len(self.blocking)):
            lane = self.topology.lane(100 + n)
            if lane is None:
                answer.append(None)
            elif lane.capture.status is CaptureStatus.INVALIDATED:
                answer.append(['Invalidated', None, None])
            else:
                number = self.ids.setdefault(lane.capture.number, len(self.ids))
                answer.append(['Active', number, self._before(lane)])
        return answer

    def _before(self, lane: Lane) -> list[int]:
        nodes = self.nodes.get(lane.capture.number, [])
        return [i for i, (n, seg) in enumerate(nodes) if n == lane.number or lane.clock.get(n, 0) >= seg]


def run(program: Program) -> list[tuple[str, list[Any]]]:
    """Run a program; return for each step the answer and the state after it."""
    machine = TopologyMachine(program.blocking, program.events)
    return [(machine.do(step), machine.state()) for step in program.steps]

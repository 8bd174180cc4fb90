"""Random capture programs, told alike to the topology, the simulated device and the driver.

A program is a list of :class:`Step`. Streams 0.. are the program's own (``blocking`` says how each was
made), ``LEGACY`` is the legacy default stream. Steps carry small integers only, so that a program prints,
shrinks and saves as JSON.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, field
from typing import Any

from capturekit.model.rules import Operation

LEGACY = -1
MODES = ('global', 'thread_local', 'relaxed')


@dataclass(frozen=True)
class Step:
    """One call: ``op`` on stream ``s`` and/or event ``e`` (and ``e2``), from thread ``t``."""

    op: str
    s: int | None = None
    e: int | None = None
    e2: int | None = None
    mode: str | None = None
    t: int = 0

    def __str__(self) -> str:
        given = {key: value for key, value in asdict(self).items() if value is not None and (key, value) != ('t', 0)}
        return f'{given.pop("op")}({", ".join(f"{key}={value}" for key, value in given.items())})'


@dataclass
class Program:
    """Streams, events and the steps on them."""

    blocking: list[bool]
    events: int
    steps: list[Step] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {
            'blocking': self.blocking,
            'events': self.events,
            'steps': [{k: v for k, v in asdict(s).items() if v is not None} for s in self.steps],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Program:
        return cls(data['blocking'], data['events'], [Step(**s) for s in data['steps']])


#: op -> (takes a stream, takes an event, may go to the legacy stream, relative weight, what the rules call it)
OPS: dict[str, tuple[bool, bool, bool, float, Operation]] = {
    'begin': (True, False, False, 2.0, Operation.BEGIN_CAPTURE),
    'end': (True, False, False, 1.5, Operation.END_CAPTURE),
    'work': (True, False, True, 6.0, Operation.WORK),
    'record': (True, True, True, 5.0, Operation.EVENT_RECORD),
    'wait': (True, True, True, 6.0, Operation.WAIT_EVENT),
    'record_external': (True, True, False, 0.15, Operation.EVENT_RECORD_EXTERNAL),
    'wait_external': (True, True, False, 0.15, Operation.WAIT_EVENT_EXTERNAL),
    'sync': (True, False, True, 0.35, Operation.STREAM_SYNCHRONIZE),
    'query': (True, False, True, 0.35, Operation.STREAM_QUERY),
    'event_sync': (False, True, False, 0.35, Operation.EVENT_SYNCHRONIZE),
    'event_query': (False, True, False, 0.35, Operation.EVENT_QUERY),
    'elapsed': (False, True, False, 0.25, Operation.EVENT_ELAPSED_TIME),
    'device_sync': (False, False, False, 0.12, Operation.DEVICE_SYNCHRONIZE),
    'is_capturing': (True, False, True, 0.5, Operation.STREAM_IS_CAPTURING),
    'get_flags': (True, False, False, 0.2, Operation.STREAM_GET_FLAGS),
    'get_priority': (True, False, False, 0.2, Operation.STREAM_GET_PRIORITY),
    'add_callback': (True, False, True, 0.12, Operation.STREAM_ADD_CALLBACK),
    'host_func': (True, False, False, 0.3, Operation.LAUNCH_HOST_FUNC),
    'graph_launch': (True, False, True, 0.15, Operation.GRAPH_LAUNCH),
    'malloc': (False, False, False, 0.3, Operation.UNSAFE),
    'memset_sync': (False, False, False, 0.15, Operation.LEGACY_WORK),
    'copy_pinned': (True, False, False, 0.3, Operation.WORK),
}


def random_program(seed: int, *, length: int = 30, illegal: float = 1.0) -> Program:
    """Return a program; ``illegal`` scales how often calls are made that can lose a capture."""
    rng = random.Random(seed)
    streams = rng.randint(2, 5)
    program = Program([rng.random() < 0.35 for _ in range(streams)], rng.randint(2, 6))
    names = list(OPS)
    common = {'begin', 'end', 'work', 'record', 'wait', 'is_capturing', 'get_priority', 'host_func', 'copy_pinned'}
    weights = [OPS[n][3] * (1.0 if n in common else illegal) for n in names]
    modes = rng.choice([('relaxed',), ('global',), ('thread_local',), MODES])
    threads = rng.choice([0, 0, 0.15])
    legacy = rng.choice([0, 0.05]) * illegal
    program.steps.append(Step('begin', s=rng.randrange(streams), mode=rng.choice(modes)))
    for _ in range(rng.randint(length // 3, length)):
        op = rng.choices(names, weights)[0]
        takes_stream, takes_event, may_legacy, _weight, _operation = OPS[op]
        s = e = e2 = mode = None
        if takes_stream:
            s = LEGACY if may_legacy and rng.random() < legacy else rng.randrange(streams)
        if takes_event:
            e = rng.randrange(program.events)
        if op == 'elapsed':
            e2 = rng.randrange(program.events)
        if op == 'begin':
            mode = rng.choice(modes)
        t = 1 if rng.random() < threads else 0
        program.steps.append(Step(op, s, e, e2, mode, t))
    return program

"""Random capture programs, told alike to the topology, the simulated device and the driver.

A program is a list of :class:`Step`. Streams 0.. are the program's own (``blocking`` says how each was
made), ``LEGACY`` is the legacy default stream. Steps carry small integers only, so that a program prints,
shrinks and saves as JSON.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, field
from typing import Any

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
        parts = [f'{k}={v}' for k, v in asdict(self).items() if k != 'op' and v not in (None, 0)]
        if self.s == 0:
            parts.insert(0, 's=0')
        if self.e == 0:
            parts.append('e=0')
        return f'{self.op}({", ".join(parts)})'


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
            'steps': [{k: v for k, v in asdict(s).items() if v not in (None,)} for s in self.steps],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Program:
        return cls(data['blocking'], data['events'], [Step(**s) for s in data['steps']])


#: op -> (takes a stream, takes an event, may go to the legacy stream, relative weight)
OPS: dict[str, tuple[bool, bool, bool, float]] = {
    'begin': (True, False, False, 2.0),
    'end': (True, False, False, 1.5),
    'work': (True, False, True, 6.0),
    'record': (True, True, True, 5.0),
    'wait': (True, True, True, 6.0),
    'record_external': (True, True, False, 0.15),
    'wait_external': (True, True, False, 0.15),
    'sync': (True, False, True, 0.35),
    'query': (True, False, True, 0.35),
    'event_sync': (False, True, False, 0.35),
    'event_query': (False, True, False, 0.35),
    'elapsed': (False, True, False, 0.25),
    'device_sync': (False, False, False, 0.12),
    'is_capturing': (True, False, True, 0.5),
    'get_flags': (True, False, False, 0.2),
    'get_priority': (True, False, False, 0.2),
    'add_callback': (True, False, True, 0.12),
    'host_func': (True, False, False, 0.3),
    'graph_launch': (True, False, True, 0.15),
    'malloc': (False, False, False, 0.3),
    'memset_sync': (False, False, False, 0.15),
    'copy_pinned': (True, False, False, 0.3),
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
        takes_stream, takes_event, may_legacy, _w = OPS[op]
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

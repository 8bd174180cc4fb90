"""Rows: events."""

from __future__ import annotations

from tests.gpu.guarded.scene import EVENT as E
from tests.gpu.guarded.scene import Installed, cp, equal, row, sync
from tests.gpu.world import in_thread

row(f'{E}.__init__', 'new event', lambda s: cp.cuda.Event())
row(f'{E}.__init__', 'new event, used to join', lambda s: s.origin.wait_event(s.side.record(cp.cuda.Event())))
row(f'{E}.__init__', 'without timing', lambda s: s.side.record(cp.cuda.Event(disable_timing=True)))
row(f'{E}.record', 'current stream', lambda s: cp.cuda.Event().record())
row(f'{E}.record', 'lane', lambda s: cp.cuda.Event().record(s.side))
row(f'{E}.record', 'outside', lambda s: cp.cuda.Event().record(s.outside))
row(f'{E}.synchronize', 'captured', lambda s: s.e.synchronize(), sync)
row(f'{E}.synchronize', 'captured, from another thread', lambda s: in_thread(s.e.synchronize), sync)
row(f'{E}.synchronize', 'recorded outside', lambda s: s.before.synchronize())
row(f'{E}.synchronize', 'never recorded', lambda s: s.never.synchronize())
row(f'{E}.done', 'captured', lambda s: s.e.done, sync)
row(f'{E}.done', 'recorded outside', lambda s: equal(s.before.done, True))
for holder in ('cupy.cuda', 'cupy.cuda.stream'):
    timed = Installed(holder)
    elapsed = f'{holder}.get_elapsed_time'
    row(elapsed, 'both captured', lambda s, of=timed: of.get_elapsed_time(s.e, s.e), sync)
    row(elapsed, 'one captured', lambda s, of=timed: of.get_elapsed_time(s.before, s.e), sync)
    row(elapsed, 'both outside', lambda s, of=timed: of.get_elapsed_time(s.before, s.before2))

"""Rows: calls that are answered otherwise where a call of a graphed function is recorded, and as ever in a block."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.gpu.guarded.scene import STREAM as S
from tests.gpu.guarded.scene import Installed, Scene, cp, equal, keep, kept_equals, row

row(f'{S}.__eq__', 'lane and outside', lambda s: equal(s.side == s.outside, False))
row(f'{S}.__eq__', 'origin and itself', lambda s: equal(s.origin == s.origin, True))
row(f'{S}.__hash__', 'lane', lambda s: equal(len({s.side, s.side, s.outside}), 2))
for holder in ('cupy.cuda', 'cupy.cuda.stream'):
    asked = Installed(holder)
    row(
        f'{holder}.get_current_stream', 'in the block',
        lambda s, of=asked: equal(of.get_current_stream().ptr, s.origin.ptr),
    )  # fmt: skip
row('cupy.cuda.stream.Stream.__init__', 'new stream', lambda s: keep(s, cp.cuda.Stream(non_blocking=True)))
# CuPy itself refuses to change the allocator of all threads where this thread has one of its own, as in a capture
row(
    'cupy.cuda.set_allocator', 'of a pool of its own', lambda s: cp.cuda.set_allocator(cp.cuda.MemoryPool().malloc),
    ValueError,
)  # fmt: skip


def pool_of_its_own(s: Scene) -> None:
    pool = cp.cuda.MemoryPool()
    with cp.cuda.using_allocator(pool.malloc):
        s.kept.append(s.a[:2] * 10)


row('cupy.cuda.memory.MemoryPool.malloc', 'pool of its own', pool_of_its_own, check=kept_equals(10, 20))


def started(s: Scene) -> None:
    thread = threading.Thread(target=s.seen.append, args=(1,))
    thread.start()
    thread.join(30)
    equal(s.seen, [1])


def notified(s: Scene) -> None:
    condition = threading.Condition()
    with condition:
        condition.notify()


def submitted(s: Scene) -> Any:
    with ThreadPoolExecutor(1) as pool:
        equal(pool.submit(sum, (1, 2)).result(30), 3)


row('threading.Thread.start', 'a thread without work', started)
row('threading.Condition.notify', 'nobody waits', notified)
row('queue.SimpleQueue.put', 'a number', lambda s: queue.SimpleQueue[int]().put(1))
row('concurrent.futures.thread.ThreadPoolExecutor.submit', 'work for the host', submitted)


def checked_linalg(s: Scene) -> None:
    import cupyx

    with cupyx.errstate(linalg='ignore'):
        s.kept.append(cp.linalg.inv(s.matrix) @ s.matrix)


row(
    'cupyx._ufunc_config.get_config_linalg', 'inv() that checks nothing', checked_linalg,
    check=lambda s: bool((abs(s.kept[0] - cp.eye(4)).max() < 1e-9).get()),
)  # fmt: skip

"""Threads that capture and launch at once, each its own programs, each result checked."""

from __future__ import annotations

import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

import capturekit as ck
from tests.soak.ground import left_open

N = 512


def _one(cp: Any, rng: np.random.Generator, stream: Any) -> int:
    """A random program: recorded, launched a few times, compared with NumPy. Return its nodes."""
    start, factor, lanes = float(rng.integers(9)), float(rng.integers(1, 5)), int(rng.integers(1, 5))
    steps = int(rng.integers(1, 6))
    x = cp.full(N, start)
    with ck.capture(strict=bool(rng.integers(2))) as cap:
        parts = []
        with cap.fork(lanes) as scopes:
            for k, lane in enumerate(scopes):
                with lane:
                    y = x + k
                    for _ in range(steps):
                        y = y * factor + 1
                    parts.append(y)
        total = parts[0]
        for part in parts[1:]:
            total = total + part
    wanted = 0.0
    for k in range(lanes):
        value = start + k
        for _ in range(steps):
            value = value * factor + 1
        wanted += value
    for _ in range(int(rng.integers(1, 4))):
        cap.graph.launch(stream)
    stream.synchronize()
    assert np.array_equal(cp.asnumpy(total), np.full(N, wanted)), (start, factor, lanes, steps)
    cap.graph.close()
    return int(cap.recording.node_count)


def run(cp: Any, seconds: float, threads: int = 8, say: Callable[[str], None] = print) -> dict[str, Any]:
    """``threads`` threads for so many seconds; the first exception of any ends all."""
    until = time.monotonic() + seconds
    done: Counter[str] = Counter()
    wrong: list[str] = []
    lock = threading.Lock()

    def work(number: int) -> None:
        rng = np.random.default_rng(number)
        stream = cp.cuda.Stream(non_blocking=True)
        try:
            while time.monotonic() < until and not wrong:
                nodes = _one(cp, rng, stream)
                with lock:
                    done['captures'] += 1
                    done['nodes'] += nodes
        except BaseException:
            wrong.append(f'thread {number}: {traceback.format_exc()}')

    running = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(seconds + 120)
    hung = sum(thread.is_alive() for thread in running)
    assert not wrong and not hung, f'{hung} threads hang\n' + '\n'.join(wrong)
    assert not left_open(), left_open()
    say(f'threads: {done["captures"]:,} captures in {seconds:.0f} s')
    return {'threads': threads, 'seconds': seconds, **done}

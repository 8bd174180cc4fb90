"""What CuPy's operations take before and after the import of capturekit in one and the same process, as JSON.

``python -m tests.benchmarks.worker``: two processes differ by more than what is looked for, so that
:func:`tests.benchmarks.costs.beside` compares these.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import time
from typing import Any


def issue(x: Any, stream: Any, times: int = 25, count: int = 500) -> float:
    """Seconds that one operation takes to issue: the median of some bursts."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        for _ in range(count):
            x + 1
        taken.append((time.perf_counter() - start) / count)
        stream.synchronize()
    return statistics.median(taken)


def main() -> None:
    import cupy as cp

    x = cp.arange(1024, dtype='f4')
    stream = cp.cuda.Stream(non_blocking=True)
    stream.use()
    issue(x, stream, 4)
    gc.collect()
    gc.disable()
    assert 'capturekit' not in sys.modules
    found = {'first': issue(x, stream), 'without, a second time': issue(x, stream)}
    import capturekit as ck

    found['capturekit imported'] = issue(x, stream)
    for state, count in (('after a capture was opened and closed', 1), ('after 1,000 captures', 999)):
        for _ in range(count):
            with ck.capture() as cap:
                x + 1
            cap.graph.launch()
            stream.synchronize()
            cap.graph.close()
        found[state] = issue(x, stream)
    print(json.dumps(found))


if __name__ == '__main__':
    main()

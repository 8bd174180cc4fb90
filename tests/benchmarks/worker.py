"""A process that issues CuPy operations when it is told to: ``python -m tests.benchmarks.worker``.

Each line on its standard input is a command: a number of operations, answered with the seconds that one took to issue
on average; ``import``, which imports capturekit; ``capture``, which opens a capture and closes it again.
"""

from __future__ import annotations

import gc
import sys
import time
from typing import Any


def capture(x: Any, stream: Any) -> None:
    import capturekit as ck

    with ck.capture() as cap:
        x + 1
    cap.graph.launch()
    stream.synchronize()
    cap.graph.close()


def main() -> None:
    import cupy as cp

    x = cp.arange(1024, dtype='f4')
    stream = cp.cuda.Stream(non_blocking=True)
    stream.use()
    for _ in range(2000):
        x + 1
    stream.synchronize()
    gc.collect()
    gc.disable()
    assert 'capturekit' not in sys.modules
    print('ready', flush=True)
    for line in sys.stdin:
        command = line.strip()
        if command == 'import':
            import capturekit  # noqa: F401

            print('done', flush=True)
        elif command == 'capture':
            capture(x, stream)
            print('done', flush=True)
        else:
            count = int(command)
            start = time.perf_counter()
            for _ in range(count):
                x + 1
            taken = time.perf_counter() - start
            stream.synchronize()
            print(taken / count, flush=True)


if __name__ == '__main__':
    main()

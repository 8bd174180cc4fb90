"""A process that issues CuPy operations when it is told to: ``python -m tests.benchmarks.worker bare|imported|after``.

Each line on its standard input is a number of operations; the answer is the seconds that one took to issue, on average.
``bare`` never imports capturekit; ``imported`` does; ``after`` has opened and closed a capture as well.
"""

from __future__ import annotations

import gc
import sys
import time


def main(kind: str) -> None:
    import cupy as cp

    x = cp.arange(1024, dtype='f4')
    stream = cp.cuda.Stream(non_blocking=True)
    stream.use()
    if kind != 'bare':
        import capturekit as ck

        if kind == 'after':
            with ck.capture() as cap:
                x + 1
            cap.graph.launch()
            stream.synchronize()
            cap.graph.close()
    assert ('capturekit' in sys.modules) == (kind != 'bare')
    for _ in range(2000):
        x + 1
    stream.synchronize()
    gc.collect()
    gc.disable()
    print('ready', flush=True)
    for line in sys.stdin:
        count = int(line)
        start = time.perf_counter()
        for _ in range(count):
            x + 1
        taken = time.perf_counter() - start
        stream.synchronize()
        print(taken / count, flush=True)


if __name__ == '__main__':
    main(sys.argv[1])

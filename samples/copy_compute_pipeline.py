"""Chunks of host memory brought to the device, worked on, and brought back: on several lanes copies overlap work.

While one chunk is computed the next one is on its way in, and the last one on its way out: a GPU has engines for each.
For that the host's memory must be pinned, and each chunk has buffers of its own, so that none waits for another's. In
a capture CuPy lets no array be set or read; `memcpyAsync` is recorded as it is, and each launch copies what lies in the
host's memory by then.

python samples/copy_compute_pipeline.py [--mb SIZE] [--out FILE]                       on a GPU
python -m capturekit run samples/copy_compute_pipeline.py [--mb SIZE] [--out FILE]     anywhere
"""

import argparse
import os
import tempfile

import cupy as cp
import cupyx
import numpy as np

import capturekit as ck

SIMULATED = 'simulated' in cp.cuda.runtime.getDeviceProperties(0)['name'].decode()
CHUNKS = 12
UP, DOWN = cp.cuda.runtime.memcpyHostToDevice, cp.cuda.runtime.memcpyDeviceToHost


def copy(dst, src, nbytes, kind):
    cp.cuda.runtime.memcpyAsync(dst, src, nbytes, kind, cp.cuda.get_current_stream().ptr)


def work(x, y, steps):
    """Change x in place; y is as large, for what is in between."""
    for _ in range(steps):
        cp.sin(x, out=y)
        y *= 1.5
        x *= 0.25
        x += y
    return x


class Pipeline:
    """The chunks: ``given`` and ``taken`` in pinned memory, and arrays on the device between the two."""

    def __init__(self, chunk, steps):
        self.given = cupyx.empty_pinned((CHUNKS, chunk), 'f4')
        self.taken = cupyx.zeros_pinned((CHUNKS, chunk), 'f4')
        self.given[...] = np.linspace(0, 1, CHUNKS * chunk, dtype='f4').reshape(CHUNKS, chunk)
        self.device = cp.empty((CHUNKS, chunk), 'f4')
        self.between = cp.empty((CHUNKS, chunk), 'f4')
        self.steps = steps

    def one(self, n):
        """Bring chunk n in, work on it, bring it back: on whatever lane is current."""
        x = self.device[n]
        copy(x.data.ptr, self.given[n].ctypes.data, x.nbytes, UP)
        work(x, self.between[n], self.steps)
        copy(self.taken[n].ctypes.data, x.data.ptr, x.nbytes, DOWN)
        return x

    def program(self, parallel):
        return parallel(*[lambda n=n: self.one(n) for n in range(CHUNKS)])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--mb', type=float, default=0.004 if SIMULATED else 2.0, help='size of a chunk in MB')
    picture = os.path.join(tempfile.gettempdir(), 'copy_compute_pipeline.svg')
    parser.add_argument('--out', default=picture, help='where the picture goes (default: %(default)s)')
    given = parser.parse_args()
    pipeline = Pipeline(int(given.mb * 1e6 / 4), 2 if SIMULATED else 20)

    with ck.capture() as cap:
        cap.parallel(*[lambda n=n: pipeline.one(n) for n in range(CHUNKS)], lanes=3)
    recording = cap.recording
    print(f'{CHUNKS} chunks on {recording.device}: {recording.node_count} nodes, {len(recording.lanes)} lanes')
    error = 0.0
    for shift in (0.0, 0.5):
        pipeline.given += np.float32(shift)  # new data where the old lay
        cap.graph.launch()
        cp.cuda.get_current_stream().synchronize()
        wanted = cp.asnumpy(work(cp.array(pipeline.given), cp.empty_like(pipeline.device), pipeline.steps))
        error = max(error, float(abs(pipeline.taken - wanted).max()))
    print(f'max error against one piece: {error:.1g}')

    report = ck.experiment(pipeline.program, lanes=(1, 2, 3, 4), rounds=2 if SIMULATED else 5)
    print(report)
    with open(given.out, 'w', encoding='utf-8') as f:
        f.write(report.svg())
    print(f'picture: {given.out}')
    if error > 1e-3 or not report.ok:
        raise SystemExit('the launches differ from the eager run')


if __name__ == '__main__':
    main()

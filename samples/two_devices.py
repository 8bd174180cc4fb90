"""Gradient descent on every GPU of the machine, each with its part of the data: one launch is a step on all of them.

A lane on each device computes the gradient of its part; the gradients are summed, by NCCL where CuPy has it and there
are several devices, else by copies from device to device; each lane takes the same step. Two steps are one graph.

python samples/two_devices.py [--out FILE]                                  on all GPUs; one is enough
python -m capturekit run --simulate --devices 2 samples/two_devices.py      anywhere
"""

import argparse
import os
import tempfile
import warnings

import cupy as cp
import numpy as np

import capturekit as ck

RATE = 0.5


class Part:
    """One device's part of the data, and its copy of the weights."""

    def __init__(self, device, data, target, total):
        self.device, self.total = device, total
        with cp.cuda.Device(device):
            self.data, self.target = cp.asarray(data), cp.asarray(target)
            self.weights = cp.zeros(data.shape[1])
            self.gradient = cp.zeros_like(self.weights)
            self.received = cp.zeros_like(self.weights)
            cp.cuda.Device().synchronize()  # lanes of this device don't come after what its null stream does

    def differentiate(self):
        off = (self.data * self.weights).sum(axis=1) - self.target
        self.gradient[...] = (self.data * off[:, None]).sum(axis=0) / self.total

    def update(self):
        self.weights -= RATE * self.gradient


class BySums:
    """All-reduce by copies: the first device adds up, the others copy the sum."""

    name = 'copies'

    def __call__(self, lanes, parts):
        first, *others = zip(lanes, parts)
        for lane, part in others:
            after(first[0], lane)
            with first[0]:
                cp.copyto(first[1].received, part.gradient)  # from one device to the other
                first[1].gradient += first[1].received
        for lane, part in others:
            after(lane, first[0])
            with lane:
                cp.copyto(part.gradient, first[1].gradient)


class ByNccl:
    """All-reduce by NCCL: every device gets the sum."""

    name = 'NCCL'

    def __init__(self, nccl, devices):
        self.nccl, self.comms = nccl, nccl.NcclCommunicator.initAll(devices)

    def __call__(self, lanes, parts):
        self.nccl.groupStart()
        for comm, lane, part in zip(self.comms, lanes, parts):
            at, count = part.gradient.data.ptr, part.gradient.size
            comm.allReduce(at, at, count, self.nccl.NCCL_FLOAT64, self.nccl.NCCL_SUM, lane.ptr)
        self.nccl.groupEnd()


def after(later, earlier):
    """Let one lane wait for another. An event belongs to the device that it is made on."""
    with earlier:
        event = earlier.stream.record()
    later.stream.wait_event(event)


def all_reduce(devices):
    """The best way to sum that there is."""
    if len(devices) > 1:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')  # CuPy's words about a library that is not here
            from cupy.cuda import nccl
        if nccl.available:
            return ByNccl(nccl, devices)
    return BySums()


def step(fork, parts, add_up):
    with fork(devices=[part.device for part in parts]) as lanes:
        for lane, part in zip(lanes, parts):
            with lane:
                part.differentiate()
        add_up(lanes, parts)
        for lane, part in zip(lanes, parts):
            with lane:
                part.update()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    picture = os.path.join(tempfile.gettempdir(), 'two_devices.svg')
    parser.add_argument('--out', default=picture, help='where the picture goes (default: %(default)s)')
    given = parser.parse_args()
    devices = list(range(cp.cuda.runtime.getDeviceCount()))
    rng = np.random.default_rng(3)
    data, truth = rng.standard_normal((240, 5)), np.arange(1.0, 6.0)
    target, weights = data @ truth, np.zeros(5)
    shares = zip(devices, np.array_split(data, len(devices)), np.array_split(target, len(devices)))
    parts = [Part(device, *share, len(data)) for device, *share in shares]

    add_up = all_reduce(devices)
    step(ck.fork, parts, add_up)  # eagerly: the same code, lanes and all
    with ck.capture() as cap:
        for _ in range(2):
            step(cap.fork, parts, add_up)
    for _ in range(10):
        cap.graph.launch()
    cp.cuda.get_current_stream().synchronize()  # what is read below is read on streams of other devices

    for _ in range(21):
        weights -= RATE * data.T @ (data @ weights - target) / len(data)
    error = max(float(abs(cp.asnumpy(part.weights) - weights).max()) for part in parts)
    count = f'{len(devices)} device{"s" if len(devices) > 1 else ""}'
    print(f'{count}, summed by {add_up.name}: {cap.recording.node_count} nodes, two steps a launch')
    print(f'after 21 steps: max error against NumPy {error:.1g}, off the truth by {abs(weights - truth).max():.1g}')
    with open(given.out, 'w', encoding='utf-8') as f:
        f.write(ck.render.to_svg(cap.graph.describe()))
    print(f'picture: {given.out}')
    cap.graph.close()  # NCCL's communicators can't end before the graphs that hold them
    if error > 1e-9:
        raise SystemExit('the launches differ from NumPy')


if __name__ == '__main__':
    main()

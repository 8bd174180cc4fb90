"""Data-parallel training: a process and a GPU for each part of the data, and one launch for a step of all of them.

A step computes the gradients of a small net on this process's batch, sums them over all processes by NCCL, and changes
the weights. torchrun starts the processes and tells each its rank; without it, it is one process. torch is not used.

torchrun --nproc-per-node 4 samples/torchrun_training.py [--batch N] [--steps N]               a GPU for each process
python -m capturekit run --simulate samples/torchrun_training.py                anywhere, as one process
"""

import argparse
import os
import time
from multiprocessing.connection import Client, Listener

import cupy as cp
import numpy as np
from cupy.cuda import nccl

import capturekit as ck

SIMULATED = 'simulated' in cp.cuda.runtime.getDeviceProperties(0)['name'].decode()
RATE = 0.05
#: torchrun listens at MASTER_PORT itself.
BEHIND = 17


class World:
    """This process among the others, as torchrun's variables tell it, and a communicator of NCCL's for all of them."""

    def __init__(self):
        self.rank, self.size = (
            int(os.environ.get(name, default)) for name, default in (('RANK', 0), ('WORLD_SIZE', 1))
        )
        cp.cuda.Device(int(os.environ.get('LOCAL_RANK', 0)) % cp.cuda.runtime.getDeviceCount()).use()
        self.nccl = nccl.NcclCommunicator(self.size, self.id(), self.rank)

    def id(self):
        """NCCL's id, which rank 0 makes and gives to all others."""
        place = os.environ.get('MASTER_ADDR', 'localhost'), int(os.environ.get('MASTER_PORT', 29500)) + BEHIND
        if self.rank == 0:
            given = nccl.get_unique_id()
            if self.size > 1:
                with Listener(place) as door:
                    for _ in range(self.size - 1):
                        with door.accept() as other:
                            other.send_bytes(given)
            return given
        for _ in range(600):
            try:
                with Client(place) as first:
                    return first.recv_bytes()
            except ConnectionRefusedError:  # rank 0 is not there yet
                time.sleep(0.1)
        raise SystemExit('rank 0 does not answer')


class Net:
    """Two layers, whose weights and gradients lie in one array each: one collective sums them all."""

    def __init__(self, world, x, y, width):
        self.world, self.x, self.y = world, cp.asarray(x), cp.asarray(y)
        inputs, outputs = x.shape[1], y.shape[1]
        shapes = ((inputs, width), (width, outputs))
        rng = np.random.default_rng(1)  # all processes begin with the same weights
        first = [rng.standard_normal(shape) / shape[0] ** 0.5 for shape in shapes]
        self.weights = cp.asarray(np.concatenate([one.ravel() for one in first]))
        self.gradients = cp.zeros_like(self.weights)
        ends = inputs * width
        self.w = [self.weights[:ends].reshape(shapes[0]), self.weights[ends:].reshape(shapes[1])]
        self.g = [self.gradients[:ends].reshape(shapes[0]), self.gradients[ends:].reshape(shapes[1])]
        self.loss = cp.zeros(())

    def step(self):
        hidden = cp.tanh(self.x @ self.w[0])
        off = hidden @ self.w[1] - self.y
        self.loss[...] = (off * off).mean()
        back = off * (2 / (off.size * self.world.size))
        self.g[1][...] = hidden.T @ back
        self.g[0][...] = self.x.T @ ((back @ self.w[1].T) * (1 - hidden * hidden))
        at, stream = self.gradients.data.ptr, cp.cuda.get_current_stream().ptr
        self.world.nccl.allReduce(at, at, self.gradients.size, nccl.NCCL_FLOAT64, nccl.NCCL_SUM, stream)
        self.weights -= RATE * self.gradients


def part(world, batch, inputs):
    """This process's part of the data: rows of one table that all could make."""
    rng = np.random.default_rng(2)
    x = rng.standard_normal((batch * world.size, inputs))
    y = np.sin(x[:, :1] + x[:, 1:2])
    mine = slice(world.rank * batch, (world.rank + 1) * batch)
    return x[mine], y[mine]


def timed(call, count):
    cp.cuda.Device().synchronize()
    start = time.perf_counter()
    for _ in range(count):
        call()
    cp.cuda.get_current_stream().synchronize()
    return (time.perf_counter() - start) / count * 1e3


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--batch', type=int, default=16 if SIMULATED else 1024, help='rows of each process')
    parser.add_argument('--steps', type=int, default=10 if SIMULATED else 500)
    given = parser.parse_args()
    if given.steps < 2:
        parser.error('--steps takes 2 or more: the first one is not timed')
    world, width = World(), 8 if SIMULATED else 512
    x, y = part(world, given.batch, 4 if SIMULATED else 64)
    eager, recorded = Net(world, x, y, width), Net(world, x, y, width)
    with cp.cuda.Stream(non_blocking=True) as stream:
        stream.synchronize()
        eager.step()  # the first time, kernels are compiled, and NCCL connects the GPUs
        with ck.capture() as cap:
            recorded.step()
        cap.graph.launch()
        by_step = timed(eager.step, given.steps - 1)
        by_launch = timed(cap.graph.launch, given.steps - 1)
    apart = float(abs(eager.weights - recorded.weights).max())
    first, last = float((y**2).mean()), float(recorded.loss)
    cap.graph.close()  # NCCL's communicators wait for ever for graphs that hold them
    world.nccl.destroy()
    if world.rank == 0:
        print(f'{world.size} ranks on {cap.recording.device}: {cap.recording.node_count} nodes')
        print(f'loss {first:.3f} before, {last:.3f} after {given.steps} steps; weights {apart:.0e} from the eager ones')
        print(f'{by_step:.3f} ms a step, eagerly; {by_launch:.3f} in one launch')
    if apart > 1e-9 or last > first:
        raise SystemExit('the launches differ from the eager steps')


if __name__ == '__main__':
    main()

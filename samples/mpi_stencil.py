"""The heat equation on one plate, cut in strips: a process and a GPU for each strip, and one launch for two steps.

The rows at the edges go to the neighbours by NCCL, on a lane of their own, while the inside of the strip is computed.
MPI only starts the processes and tells them NCCL's id; without mpi4py it is one process.

mpirun -n 4 python samples/mpi_stencil.py [--rows N] [--columns N] [--steps N]                  a GPU for each process
python -m capturekit run --simulate samples/mpi_stencil.py                      anywhere, as one process
"""

import argparse
import time

import cupy as cp
import numpy as np
from cupy.cuda import nccl

import capturekit as ck

try:
    from mpi4py import MPI
except ImportError:
    MPI = None

SIMULATED = 'simulated' in cp.cuda.runtime.getDeviceProperties(0)['name'].decode()
RATE = 0.2


class World:
    """This process among the others, and a communicator of NCCL's for all of them."""

    def __init__(self):
        comm = MPI.COMM_WORLD if MPI else None
        self.rank, self.size = (comm.Get_rank(), comm.Get_size()) if comm else (0, 1)
        local = comm.Split_type(MPI.COMM_TYPE_SHARED).Get_rank() if comm else 0
        cp.cuda.Device(local % cp.cuda.runtime.getDeviceCount()).use()
        given = nccl.get_unique_id() if self.rank == 0 else None
        self.nccl = nccl.NcclCommunicator(self.size, comm.bcast(given) if comm else given, self.rank)
        self.gather = comm.gather if comm else lambda value: [value]


def exchange(world, u, stream):
    """Send the first and the last row of the strip, and receive the neighbours' into the rows around it."""
    columns = u.shape[1]
    nccl.groupStart()
    for peer, mine, theirs in ((world.rank - 1, u[1], u[0]), (world.rank + 1, u[-2], u[-1])):
        if 0 <= peer < world.size:
            world.nccl.send(mine.data.ptr, columns, nccl.NCCL_FLOAT64, peer, stream)
            world.nccl.recv(theirs.data.ptr, columns, nccl.NCCL_FLOAT64, peer, stream)
    nccl.groupEnd()


def conduct(u, v, first, last):
    """Compute the rows from first to last - 1 of v, from u."""
    near = u[first - 1 : last - 1, 1:-1] + u[first + 1 : last + 1, 1:-1] + u[first:last, :-2] + u[first:last, 2:]
    v[first:last, 1:-1] = u[first:last, 1:-1] + RATE * (near - 4 * u[first:last, 1:-1])


def step(world, u, v, fork):
    """One step from u to v: the rows at the edges wait for the neighbours, all others do not."""
    with fork(2) as (edges, inside):
        with edges:
            if world.size > 1:
                exchange(world, u, edges.ptr)
            conduct(u, v, 1, 2)
            conduct(u, v, len(u) - 2, len(u) - 1)
        with inside:
            conduct(u, v, 2, len(u) - 2)


def strip(world, plate):
    """This process's rows of the plate, with a row around them on each side, as two arrays."""
    rows = (len(plate) - 2) // world.size
    mine = plate[world.rank * rows : (world.rank + 1) * rows + 2]
    return cp.asarray(mine), cp.asarray(mine)


def timed(call, count):
    cp.cuda.Device().synchronize()
    start = time.perf_counter()
    for _ in range(count):
        call()
    cp.cuda.get_current_stream().synchronize()
    return (time.perf_counter() - start) / count * 500  # ms for each of two steps


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--rows', type=int, default=24 if SIMULATED else 4096, help='rows of the plate')
    parser.add_argument('--columns', type=int, help='columns of the plate (default: as many as rows)')
    parser.add_argument('--steps', type=int, default=8 if SIMULATED else 400, help='steps, an even number from 4 on')
    given = parser.parse_args()
    if given.steps < 4:
        parser.error('--steps takes 4 or more: the first two are not timed')
    world = World()
    rows = given.rows // world.size * world.size
    plate = np.random.default_rng(5).uniform(0, 1, (rows + 2, (given.columns or given.rows) + 2))
    plate[[0, -1]] = plate[:, [0, -1]] = 0
    eager, recorded = strip(world, plate), strip(world, plate)

    def two_steps(arrays, fork):
        step(world, *arrays, fork)
        step(world, *arrays[::-1], fork)

    with ck.capture() as cap:
        two_steps(recorded, cap.fork)
    with cp.cuda.Stream(non_blocking=True):
        count = given.steps // 2 - 1
        two_steps(eager, ck.fork)  # the first time, NCCL connects the GPUs
        cap.graph.launch()
        by_step = timed(lambda: two_steps(eager, ck.fork), count)
        by_launch = timed(cap.graph.launch, count)
    same = bool((eager[0] == recorded[0]).all())
    told = world.gather((same, by_step, by_launch, cp.asnumpy(recorded[0][1:-1]).sum()))
    cap.graph.close()  # NCCL's communicators wait for ever for graphs that hold them
    world.nccl.destroy()
    if world.rank == 0:
        size = f'{rows} x {plate.shape[1] - 2} on {world.size} ranks'
        print(f'{size}, {cap.recording.device}: {cap.recording.node_count} nodes')
        print(f'after {2 * count + 2} steps: {sum(one[3] for one in told):.6f} in all, {check(plate, told, count)}')
        print(f'{max(one[1] for one in told):.3f} ms a step, eagerly; {max(one[2] for one in told):.3f} in one launch')
    if not same:
        raise SystemExit('the launches differ from the eager steps')


def check(plate, told, count):
    """What NumPy says of the whole plate."""
    u, v = plate.copy(), plate.copy()
    for _ in range(2 * count + 2 if SIMULATED else 0):
        conduct(u, v, 1, len(u) - 1)
        u, v = v, u
    if not SIMULATED:
        return 'the same as eagerly' if all(one[0] for one in told) else 'not the same as eagerly'
    return f'off by {abs(sum(one[3] for one in told) - u[1:-1].sum()):.0e}'


if __name__ == '__main__':
    main()

"""The 2-D wave equation on two lanes: each steps one half of the grid.

At its seam a half reads one row of the other (the halo), so both must have finished a step before either begins the
next: every step is a fork and a join. Two steps are recorded, after which the two grids have changed places and back.

python samples/wave_two_lanes.py [size] [steps]                       on a GPU
python -m capturekit run samples/wave_two_lanes.py [size] [steps]     anywhere
"""

import sys

import cupy as cp

import capturekit as ck

SPEED = 0.4  # (c dt / dx) squared; stable below 0.5


def drop(size):
    """Return two equal grids: a drop of water at rest, off the middle so that the halves differ."""
    y, x = cp.mgrid[0:size, 0:size] / size
    height = cp.exp(-300 * ((x - 0.3) ** 2 + (y - 0.45) ** 2))
    return height.copy(), height


def step_rows(old, now, top, bottom):
    """Turn rows [top, bottom) of ``old`` into the next state; reads one row of ``now`` above and one below them."""
    here = now[top:bottom, 1:-1]
    around = now[top - 1 : bottom - 1, 1:-1] + now[top + 1 : bottom + 1, 1:-1]
    around = around + now[top:bottom, :-2] + now[top:bottom, 2:]
    old[top:bottom, 1:-1] = 2 * here - old[top:bottom, 1:-1] + SPEED * (around - 4 * here)


def step_lanes(old, now, fork):
    size = len(now)
    half = size // 2
    with fork(2) as (upper, lower):
        with upper:
            step_rows(old, now, 1, half)
        with lower:
            step_rows(old, now, half, size - 1)


def main(size=128, steps=100):
    steps += steps % 2
    old, now = drop(size)
    eager_old, eager_now = drop(size)
    for _ in range(steps):
        step_rows(eager_old, eager_now, 1, size - 1)  # one stream, the whole grid
        eager_old, eager_now = eager_now, eager_old

    with ck.capture() as cap:
        step_lanes(old, now, cap.fork)
        step_lanes(now, old, cap.fork)
    for _ in range(steps // 2):
        cap.graph.launch()

    error = float(abs(now - eager_now).max())
    moved = float(abs(now - drop(size)[1]).max())
    print(f'{steps} steps of {size}x{size} on {cap.recording.device}, two a launch: {cap.recording.node_count} nodes')
    print(f'the water moved by {moved:.3f}; max error against eager {error:g}')
    if not (error < 1e-12 and moved > 0.1):
        raise SystemExit('the launches differ from the eager run')


if __name__ == '__main__':
    main(*map(int, sys.argv[1:3]))

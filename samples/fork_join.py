"""A step that forks into two lanes and joins them again, recorded into one graph.

python samples/fork_join.py [n]                       on a GPU
python -m capturekit run samples/fork_join.py [n]     anywhere
"""

import sys

import cupy as cp

import capturekit as ck


def step(x, fork):
    scaled = (x - x.mean()) / x.std()
    with fork(2) as (left, right):
        with left:
            waves = cp.sin(scaled) * cp.exp(-abs(scaled))
        with right:
            powers = scaled**3 - 2 * scaled
    return waves + powers  # the scope has joined both lanes


def main(n=1_000_000):
    x = cp.linspace(0, 10, n)
    eager = step(x, ck.fork)  # the same lanes, eagerly: runs at once

    with ck.capture() as cap:
        y = step(x, cap.fork)
    cap.graph.launch()

    error = float(abs(y - eager).max())
    recording = cap.recording
    print(f'on {recording.device}: {recording.node_count} nodes on {len(recording.lanes)} lanes')
    print(f'max error against eager: {error:g}')
    if not error < 1e-12:
        raise SystemExit('the launch differs from the eager run')


if __name__ == '__main__':
    main(*map(int, sys.argv[1:2]))

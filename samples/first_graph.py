"""The first graph: a few lines of CuPy, recorded once and launched for one input after the other.

python samples/first_graph.py [n]                       on a GPU
python -m capturekit run samples/first_graph.py [n]     anywhere
"""

import sys

import cupy as cp

import capturekit as ck


def step(x):
    return cp.tanh(x * 2) + x.mean()


def main(n=100_000):
    x = cp.linspace(-1, 1, n)
    with ck.capture() as cap:
        y = step(x)  # recorded, not run

    print(f'{cap.recording.node_count} nodes recorded on {cap.recording.device}')
    for shift in (0.0, 0.5, 1.0):
        x += shift  # the graph reads x where it lies: new values go in place
        cap.graph.launch()
        error = float(abs(y - step(x)).max())
        print(f'shifted by {shift}: max error against eager {error:g}')
        if not error < 1e-12:
            raise SystemExit('the launch differs from the eager run')


if __name__ == '__main__':
    main(*map(int, sys.argv[1:2]))

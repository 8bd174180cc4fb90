"""Many small systems of equations, each far too small for a GPU: how many lanes at a time are best?

Every system is solved by some steps of conjugate gradients, a branch each. Nothing is read on the host, so the branches
are recorded as they stand.

python samples/many_small_solves.py [--systems N] [--out FILE]                       on a GPU
python -m capturekit run samples/many_small_solves.py [--systems N] [--out FILE]     anywhere
"""

import argparse
import os
import tempfile

import cupy as cp

import capturekit as ck

SIMULATED = 'simulated' in cp.cuda.runtime.getDeviceProperties(0)['name'].decode()


def solve(a, b, steps):
    """Return x with a @ x near b, for a symmetric positive definite matrix."""
    x, r, p = cp.zeros_like(b), b.copy(), b.copy()
    rr = cp.sum(r * r)
    for _ in range(steps):
        q = a @ p
        alpha = rr / cp.sum(p * q)
        x += alpha * p
        r -= alpha * q
        last, rr = rr, cp.sum(r * r)
        p = r + rr / last * p
    return x


def systems(count, n):
    rng = cp.random.RandomState(3)
    for _ in range(count):
        m = rng.standard_normal((n, n))
        yield cp.eye(n) + m @ m.T / n, rng.standard_normal(n)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--systems', type=int, default=8 if SIMULATED else 32, help='how many (default: %(default)s)')
    picture = os.path.join(tempfile.gettempdir(), 'many_small_solves.svg')
    parser.add_argument('--out', default=picture, help='where the picture goes (default: %(default)s)')
    given = parser.parse_args()
    n, steps = (8, 4) if SIMULATED else (64, 8)
    problems = list(systems(given.systems, n))
    branches = [lambda a=a, b=b: solve(a, b, steps) for a, b in problems]

    with ck.capture() as cap:
        found = cap.parallel(*branches, lanes=8)
    cap.graph.launch()
    apart = max(float(abs(a @ x - b).max()) for (a, b), x in zip(problems, found))
    print(f'{len(branches)} systems of {n} on {cap.recording.device}: {cap.recording.node_count} nodes')
    print(f'largest residual after {steps} steps: {apart:.1g}')

    report = ck.experiment(branches, lanes=(1, 2, 4, 8, 16, 32, 64), rounds=1 if SIMULATED else 5)
    print(report)
    with open(given.out, 'w', encoding='utf-8') as f:
        f.write(report.svg())
    print(f'picture: {given.out}')
    if apart > 0.05 or not report.ok:
        raise SystemExit('the launch differs from the eager run')


if __name__ == '__main__':
    main()

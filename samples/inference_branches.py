"""A net whose blocks have four branches each, as Inception's have: which lanes do they go to, eagerly and as a graph?

A convolution is a matrix product here: of the windows around each pixel, laid side by side, with the weights.

python samples/inference_branches.py [--size PIXELS] [--out FILE]                       on a GPU
python -m capturekit run samples/inference_branches.py [--size PIXELS] [--out FILE]     anywhere
"""

import argparse
import os
import tempfile

import cupy as cp

import capturekit as ck

SIMULATED = 'simulated' in cp.cuda.runtime.getDeviceProperties(0)['name'].decode()


def conv(x, w):
    """Convolve x, (batch, height, width, channels), with w, (side, side, channels, filters); then max(0, .)."""
    side = w.shape[0]
    n, height, width, channels = x.shape
    around = cp.zeros((n, height + side - 1, width + side - 1, channels), x.dtype)
    half = side // 2
    around[:, half : half + height, half : half + width] = x
    # cp.concatenate of more than eight arrays copies their addresses from the host, which no capture can record
    windows = cp.empty((n, height, width, side, side, channels), x.dtype)
    for i in range(side):
        for j in range(side):
            windows[:, :, :, i, j] = around[:, i : i + height, j : j + width]
    flat = windows.reshape(n * height * width, -1)
    return cp.maximum(flat @ w.reshape(-1, w.shape[3]), 0).reshape(n, height, width, -1)


def pool(x):
    """The mean over 3 x 3 pixels; at the edge, of those that there are."""
    near = x.copy()
    near[:, 1:] += x[:, :-1]
    near[:, :-1] += x[:, 1:]
    both = near.copy()
    both[:, :, 1:] += near[:, :, :-1]
    both[:, :, :-1] += near[:, :, 1:]
    return both / 9


def block(x, w, parallel):
    branches = [
        lambda: conv(x, w['one']),
        lambda: conv(conv(x, w['before three']), w['three']),
        lambda: conv(conv(x, w['before five']), w['five']),
        lambda: conv(pool(x), w['behind pool']),
    ]
    return cp.concatenate(parallel(*branches), axis=3)


def weights(rng, channels, width):
    sides = {'one': 1, 'before three': 1, 'three': 3, 'before five': 1, 'five': 5, 'behind pool': 1}
    inner = {'three': width, 'five': width}
    shapes = {name: (side, side, inner.get(name, channels), width) for name, side in sides.items()}
    return {name: rng.standard_normal(shape) / (shape[0] ** 2 * shape[2]) ** 0.5 for name, shape in shapes.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--size', type=int, default=6 if SIMULATED else 28, help='height and width of the images')
    picture = os.path.join(tempfile.gettempdir(), 'inference_branches.svg')
    parser.add_argument('--out', default=picture, help='where the picture goes (default: %(default)s)')
    given = parser.parse_args()
    batch, width, depth = (2, 4, 2) if SIMULATED else (4, 64, 3)
    rng = cp.random.RandomState(7)
    x = rng.standard_normal((batch, given.size, given.size, 3)).astype('f4')
    layers = [
        {name: w.astype('f4') for name, w in weights(rng, 4 * width if n else 3, width).items()} for n in range(depth)
    ]

    def net(parallel):
        y = x
        for layer in layers:
            y = block(y, layer, parallel)
        return y.mean(axis=(1, 2))

    eager = net(ck.parallel)  # each branch on a lane of its own; it runs at once
    with ck.capture() as cap:
        y = net(cap.parallel)
    cap.graph.launch()
    error = float(abs(y - eager).max())
    recording = cap.recording
    print(f'{depth} blocks on {recording.device}: {recording.node_count} nodes, {len(recording.lanes)} lanes')
    print(f'max error against eager: {error:.1g}')

    report = ck.experiment(net, lanes=(1, 2, 4), rounds=2 if SIMULATED else 9)
    print(report)
    with open(given.out, 'w', encoding='utf-8') as f:
        f.write(report.svg())
    print(f'picture: {given.out}')
    if error > 1e-3 or not report.ok:
        raise SystemExit('the launch differs from the eager run')


if __name__ == '__main__':
    main()

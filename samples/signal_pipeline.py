"""A signal on two branches: one filters it, the other finds where it is loud; joined, the quiet parts are silenced.

Left: a low-pass FIR filter by FFT. Right: the energy in a sliding window, and a threshold from its mean. New samples
go into the same array before each launch.

python samples/signal_pipeline.py [samples]                       on a GPU
python -m capturekit run samples/signal_pipeline.py [samples]     anywhere
"""

import sys

import cupy as cp

import capturekit as ck

TAPS = 129
WINDOW = 256


def low_pass(n, cutoff=0.05):
    """Return the spectrum, for signals of length n, of a windowed-sinc filter; cutoff in cycles per sample."""
    at = cp.arange(TAPS) - TAPS // 2
    taps = cp.sinc(2 * cutoff * at) * cp.hanning(TAPS)
    return cp.fft.rfft(taps / taps.sum(), n)


def filtered(signal, spectrum):
    return cp.fft.irfft(cp.fft.rfft(signal) * spectrum, len(signal))


def loud(signal):
    """Return 1 where the energy of the last WINDOW samples is above its mean, else 0."""
    total = cp.cumsum(signal * signal)
    energy = total.copy()
    energy[WINDOW:] -= total[:-WINDOW]
    return (energy > energy.mean()).astype(signal.dtype)


def pipeline(signal, spectrum, fork):
    with fork(2) as (left, right):
        with left:
            smooth = filtered(signal, spectrum)
        with right:
            gate = loud(signal)
    return smooth * gate, gate.mean()


def bursts(n, block):
    """Return a tone that comes and goes, with a hiss on it; in each block less of it."""
    t = cp.arange(n)
    tone = cp.sin(0.05 * t) * (cp.sin(t * (2 + block) * 6.28 / n) > 0.3 * block)
    return tone + 0.2 * cp.sin(2.1 * t + cp.sin(0.7 * t) * 9)


def main(n=1 << 16):
    spectrum = low_pass(n)
    signal = bursts(n, 0)
    pipeline(signal, spectrum, ck.fork)  # once eagerly: cuFFT makes its plans

    with ck.capture() as cap:
        output, share = pipeline(signal, spectrum, cap.fork)

    recording = cap.recording
    print(f'{n} samples on {recording.device}: {recording.node_count} nodes on {len(recording.lanes)} lanes')
    for block in range(3):
        signal[...] = bursts(n, block)
        cap.graph.launch()
        eager, eager_share = pipeline(signal, spectrum, ck.fork)
        error = float(abs(output - eager).max())
        print(f'block {block}: {float(share):.0%} is loud; max error against eager {error:g}')
        if not (error < 1e-9 and abs(float(share - eager_share)) < 1e-9):
            raise SystemExit('the launch differs from the eager run')


if __name__ == '__main__':
    main(*map(int, sys.argv[1:2]))

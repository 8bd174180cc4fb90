"""A race, found, run both ways round, and repaired: two lanes that share an array, and a wait that was forgotten.

One lane smooths a signal in place, the other takes its spectrum. Each launch is right or wrong, as it happens.

python samples/race_and_repair.py [--out FILE]                       on a GPU
python -m capturekit run samples/race_and_repair.py [--out FILE]     anywhere
"""

import argparse
import os
import tempfile

import cupy as cp

import capturekit as ck


def step(signal, power, wait):
    """Smooth ``signal`` in place on one lane; on the other write the energy of its parts into ``power``."""
    with ck.fork(2) as (smoothing, energy):
        with smoothing:
            signal[1:-1] = (signal[:-2] + signal[1:-1] + signal[2:]) / 3
        if wait:
            energy.stream.wait_event(smoothing.stream.record())
        with energy:
            cp.multiply(signal, signal, out=power)


def record(signal, power, wait, **options):
    with ck.capture(**options) as cap:
        step(signal, power, wait)
    return cap.graph


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    picture = os.path.join(tempfile.gettempdir(), 'race_and_repair.svg')
    parser.add_argument('--out', default=picture, help='where the picture goes (default: %(default)s)')
    given = parser.parse_args()
    first = cp.sin(cp.arange(4096) * 0.01)
    signal, power = first.copy(), cp.empty_like(first)

    print('-- without the wait')
    print(record(signal, power, wait=False, check_races=False).races(observe=True))
    try:
        record(signal, power, wait=False)
    except ck.RaceError as error:
        print(f'at the end of the block: {type(error).__name__} at {error.location}')

    print('-- with it')
    graph = record(signal, power, wait=True)
    print(graph.races())
    signal[...] = first
    graph.launch()
    wanted = first.copy()
    wanted[1:-1] = (first[:-2] + first[1:-1] + first[2:]) / 3
    error = float(abs(power - wanted * wanted).max())
    print(f'max error: {error:.1g}')
    if error > 1e-12:
        raise SystemExit('the launch differs from the eager run')

    print(graph.concurrency())
    with open(given.out, 'w', encoding='utf-8') as f:
        f.write(ck.render.to_timeline_svg(graph.recording))
    print(f'picture: {given.out}')


if __name__ == '__main__':
    main()

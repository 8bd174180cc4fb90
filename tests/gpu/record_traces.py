"""``python -m tests.gpu.record_traces OUT.json.gz COUNT``: programs and the driver's answers to them."""

from __future__ import annotations

import gzip
import json
import sys

from tests.agreement.programs import random_program
from tests.gpu.driver_machine import run


def main() -> None:
    traces = []
    count = int(sys.argv[2])
    for seed in range(count):
        program = random_program(seed, length=40, illegal=(0.05, 0.2, 0.5, 1.0)[seed % 4])
        traces.append({'seed': seed, **program.to_json(), 'answers': run(program)})
        if seed % 500 == 0:
            print(seed, flush=True)
    with gzip.open(sys.argv[1], 'wt') as f:
        json.dump(traces, f, separators=(',', ':'))


if __name__ == '__main__':
    main()

"""Went wrong: work on a stream that never entered the capture. CUDA would run it at once and leave it out, unsaid."""

import cupy as cp

import capturekit as ck

x = cp.arange(8.0)
side = cp.cuda.Stream(non_blocking=True)

try:
    with ck.capture() as cap:
        y = x * 2
        with side:
            z = x * 5
except ck.EscapedWorkError as error:
    print(f'EscapedWorkError: {error}')
else:
    raise SystemExit('that should have been refused')

with ck.capture() as cap, cap.fork(1) as (lane,):
    y = x * 2
    with lane:
        z = x * 5
cap.graph.launch()
print(f'repaired: {y + z}')
if not cp.allclose(y + z, x * 7):
    raise SystemExit('the launch differs from the eager run')

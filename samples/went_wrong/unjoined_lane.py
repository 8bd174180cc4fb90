"""Went wrong: a lane is forked and never joined. CUDA says 904 at the end, and not which lane."""

import cupy as cp

import capturekit as ck

x = cp.arange(8.0)
side = cp.cuda.Stream(non_blocking=True)

try:
    with ck.capture() as cap:
        side.wait_event(cap.stream.record())
        with side:
            y = x - 4
        z = x + 4
except ck.UnjoinedError as error:
    print(f'UnjoinedError: {error}')
else:
    raise SystemExit('that should have been refused')

with ck.capture() as cap:
    side.wait_event(cap.stream.record())
    with side:
        y = x - 4
    z = x + 4
    cap.join(side)
cap.graph.launch()
print(f'repaired: {y + z}')
if not cp.allclose(y + z, 2 * x):
    raise SystemExit('the launch differs from the eager run')

"""Went wrong: a block insists on the default stream. Beside a capture its work would run at once, unrecorded."""

import cupy as cp

import capturekit as ck

x = cp.arange(8.0)

try:
    with ck.capture() as cap:
        y = x * 3
        with cp.cuda.Stream.null:
            y += 1
except ck.LegacyStreamError as error:
    print(f'LegacyStreamError: {error}')
else:
    raise SystemExit('that should have been refused')

with ck.capture() as cap:
    y = x * 3
    y += 1  # on the capture's own stream, which is current
cap.graph.launch()
print(f'repaired: {y}')
if not cp.allclose(y, x * 3 + 1):
    raise SystemExit('the launch differs from the eager run')

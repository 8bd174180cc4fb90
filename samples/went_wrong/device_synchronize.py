"""Went wrong: the whole device is synchronised inside the capture, by a line left over from timing."""

import cupy as cp

import capturekit as ck

x = cp.arange(8.0)

try:
    with ck.capture() as cap:
        y = cp.sqrt(x) * 2
        cp.cuda.Device().synchronize()
except ck.SynchronizationError as error:
    print(f'SynchronizationError: {error}')
else:
    raise SystemExit('that should have been refused')

with ck.capture() as cap:
    y = cp.sqrt(x) * 2
cap.graph.launch()
cp.cuda.Device().synchronize()  # after the block there is work to wait for
print(f'repaired: {y}')
if not cp.allclose(y, cp.sqrt(x) * 2):
    raise SystemExit('the launch differs from the eager run')

"""Went wrong: a value is read on the host to decide something. While recording it has not been computed yet."""

import cupy as cp

import capturekit as ck

x = cp.arange(8.0)

try:
    with ck.capture() as cap:
        y = x
        if float(x.max()) > 1:
            y = x / x.max()
except ck.HostReadError as error:
    print(f'HostReadError: {error}')
else:
    raise SystemExit('that should have been refused')

with ck.capture() as cap:
    top = x.max()
    y = cp.where(top > 1, x / top, x)  # decided on the device, anew at each launch
for factor in (1, 0.01):
    x[...] = cp.arange(8.0) * factor
    cap.graph.launch()
    print(f'repaired: {y}')
    if not cp.allclose(y, x / x.max() if factor == 1 else x):
        raise SystemExit('the launch differs from the eager run')

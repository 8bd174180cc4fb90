"""Went wrong: the host waits for a side stream inside the capture. Nothing runs there yet that could be waited for."""

import cupy as cp

import capturekit as ck

x = cp.arange(8.0)
side = cp.cuda.Stream(non_blocking=True)

try:
    with ck.capture() as cap:
        side.wait_event(cap.stream.record())
        with side:
            squares = x * x
        side.synchronize()  # "squares must be there before I add them"
        y = squares + 1
except ck.SynchronizationError as error:
    print(f'SynchronizationError: {error}')
else:
    raise SystemExit('that should have been refused')

with ck.capture() as cap:
    side.wait_event(cap.stream.record())
    with side:
        squares = x * x
    cap.join(side)  # the order, without the wait
    y = squares + 1
cap.graph.launch()
print(f'repaired: {y}')
if not cp.allclose(y, x * x + 1):
    raise SystemExit('the launch differs from the eager run')

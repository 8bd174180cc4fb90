"""Went wrong: a lane is joined, and then one more line of work is sent to it, which nobody waits for."""

import cupy as cp

import capturekit as ck

x = cp.arange(8.0)
side = cp.cuda.Stream(non_blocking=True)

try:
    with ck.capture() as cap:
        side.wait_event(cap.stream.record())
        with side:
            y = x * 2
        cap.join(side)
        with side:
            y += 1
except ck.UnjoinedError as error:
    print(f'UnjoinedError: {error}')
else:
    raise SystemExit('that should have been refused')

with ck.capture() as cap:
    side.wait_event(cap.stream.record())
    with side:
        y = x * 2
        y += 1
    cap.join(side)  # after the lane's last work
cap.graph.launch()
print(f'repaired: {y}')
if not cp.allclose(y, x * 2 + 1):
    raise SystemExit('the launch differs from the eager run')

"""Went wrong: a loop polls a side stream. On bare CuPy `stream.done` answers, and the capture is silently lost."""

import cupy as cp

import capturekit as ck

x = cp.arange(8.0)
side = cp.cuda.Stream(non_blocking=True)

try:
    with ck.capture() as cap:
        side.wait_event(cap.stream.record())
        with side:
            y = x + 0.5
        while not side.done:
            pass
        cap.join(side)
except ck.SynchronizationError as error:
    print(f'SynchronizationError: {error}')
else:
    raise SystemExit('that should have been refused')

with ck.capture() as cap:
    side.wait_event(cap.stream.record())
    with side:
        y = x + 0.5
    cap.join(side)
stream = cp.cuda.get_current_stream()
cap.graph.launch(stream)
while not stream.done:  # ask after the launch, and ask the stream of the launch
    pass
print(f'repaired: {y}')
if not cp.allclose(y, x + 0.5):
    raise SystemExit('the launch differs from the eager run')

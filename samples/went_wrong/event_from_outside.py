"""Went wrong: a captured stream is told to wait for an event that was recorded before the capture began."""

import cupy as cp

import capturekit as ck

loader = cp.cuda.Stream(non_blocking=True)
with loader:
    x = cp.arange(8.0)
loaded = loader.record()

try:
    with ck.capture() as cap:
        cap.stream.wait_event(loaded)
        y = x * 2
except ck.IsolationError as error:
    print(f'IsolationError: {error}')
else:
    raise SystemExit('that should have been refused')

with ck.capture() as cap:
    y = x * 2
cp.cuda.get_current_stream().wait_event(loaded)  # the stream that launches waits, not the one that was recorded
cap.graph.launch()
print(f'repaired: {y}')
if not cp.allclose(y, cp.arange(8.0) * 2):
    raise SystemExit('the launch differs from the eager run')

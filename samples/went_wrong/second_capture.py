"""Went wrong: code that records by itself is called inside a capture, and begins a second one on the same stream."""

import cupy as cp

import capturekit as ck

x = cp.arange(8.0)


def recorded_by_hand(stream):
    stream.begin_capture()
    y = x * x
    return y, stream.end_capture()


try:
    with ck.capture() as cap:
        y, graph = recorded_by_hand(cap.stream)
except ck.UnmatchedError as error:
    print(f'UnmatchedError: {error}')
else:
    raise SystemExit('that should have been refused')

with ck.capture() as cap:
    y = x * x  # one capture is enough: what is recorded inside it is in its graph
cap.graph.launch()
print(f'repaired: {y}')
if not cp.allclose(y, x * x):
    raise SystemExit('the launch differs from the eager run')

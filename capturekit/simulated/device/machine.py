"""A CUDA device without a GPU: streams, events, captures and graphs, with CUDA's answers.

It keeps the state that the driver keeps: for each stream the nodes that its next node will depend on. What a call
answers comes from the table in :mod:`capturekit.model.rules`, which was measured; how captures, dead events and several
captures at once behave was fitted to, and is held against, recorded driver traces
(``tests/data/driver_traces.json.gz``).

Work is a Python callable. On a stream that is not captured it runs at once, in the caller's thread; of a ``late``
device it waits until the host has to know (:mod:`capturekit.simulated.device.stream_queues`). On a captured stream it
becomes a node,
and a launch runs the nodes in a random order among those that the edges allow (from a seed), so that a missing edge
shows as a wrong number. A graph that heeds priorities runs kernels of a higher one before others more often than not,
and any order that the edges allow now and then. An IF node runs its body, in such an order of its own, if its condition
is not zero when its turn comes. Handles are ints; 0 and 1 are the legacy default stream, 2 the per-thread one. Refused
calls raise :class:`~capturekit.model.errors.CudaCallError` with ``code``. Safe to call from several threads (one lock).
"""

from __future__ import annotations

from capturekit.simulated.device.call_notices import NoticedCalls
from capturekit.simulated.device.device_graphs import Graphs
from capturekit.simulated.device.node_changes import Changes


class SimulatedDevice(Graphs, Changes):
    """A machine of one or more devices; see the module's text.

    ``seed`` decides the order in which launches run unordered nodes; ``driver``: whose codes it answers with, as
    ``cudaDriverGetVersion`` says it; the newest measured; ``devices`` is how many there are, each with streams, events
    and memory of its own. ``late``: work waits until the host has to know, and then runs in an order that the seed
    draws; None: where the environment variable ``CAPTUREKIT_LATE`` is 1.
    """

    def call_source(self) -> NoticedCalls:
        """Return who tells of the calls to this device."""
        return NoticedCalls(self)

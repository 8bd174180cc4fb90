"""The main job on real input: a signal pipeline on 2**22 samples, the heat equation on 2048 x 2048, recorded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import capturekit as ck
from tests.gpu import workloads

cp = pytest.importorskip('cupy')
pytest.importorskip('cuda.bindings')
pytestmark = pytest.mark.gpu

STEPS = 10


def kinds(graph: ck.Graph) -> dict[str, int]:
    """Numbers that a recording and its graph agree on."""
    recording = graph.recording
    return {'nodes': recording.node_count, 'edges': recording.edge_count, 'lanes': len(recording.lanes)}


def test_the_pipeline_recorded_equals_the_pipeline_run() -> None:
    x = workloads.signal(cp)
    assert x.size == 1 << 22
    alone, eager, recorded = (cp.zeros_like(x) for _ in range(3))
    workloads.pipeline(cp, x, alone, workloads.one_stream)
    workloads.pipeline(cp, x, eager, ck.fork)
    with ck.capture() as cap:
        workloads.pipeline(cp, x, recorded, cap.fork)
    assert not recorded.any()
    assert kinds(cap.graph)['lanes'] == 3
    cap.graph.launch()
    assert float(recorded.max()) > 0.5
    for other in (eager, recorded):
        assert np.array_equal(cp.asnumpy(other), cp.asnumpy(alone))
    again_on_new_input(cap.graph, x, alone, recorded)


def again_on_new_input(graph: ck.Graph, x: Any, alone: Any, recorded: Any) -> None:
    """The graph reads its input where it lies: new values, new results, also on another stream."""
    stream = cp.cuda.Stream(non_blocking=True)
    for factor in (2, 3):
        x *= np.float32(factor)
        x[: x.size // factor] = 0
        workloads.pipeline(cp, x, alone, workloads.one_stream)
        recorded.fill(0)
        cp.cuda.Device().synchronize()
        graph.launch(stream)
        stream.synchronize()
        assert np.array_equal(cp.asnumpy(recorded), cp.asnumpy(alone))


def test_the_pipeline_equals_numpy() -> None:
    x = workloads.signal(np, 1 << 16)
    want = np.zeros_like(x)
    workloads.pipeline(np, x, want, workloads.one_stream)
    on_gpu, got = cp.asarray(x), cp.zeros(x.size, 'f4')
    with ck.capture() as cap:
        workloads.pipeline(cp, on_gpu, got, cap.fork)
    cap.graph.launch()
    np.testing.assert_allclose(cp.asnumpy(got), want, rtol=1e-3, atol=1e-4)


def test_the_stencil_recorded_equals_the_stencil_run() -> None:
    plates = {name: workloads.plate(cp) for name in ('alone', 'eager', 'recorded')}
    room = {name: plate.copy() for name, plate in plates.items()}
    assert plates['alone'].shape == (2048, 2048)
    with ck.capture() as cap:
        workloads.heat(cp, plates['recorded'], room['recorded'], cap.fork, STEPS)
    for _ in range(3):
        workloads.heat(cp, plates['alone'], room['alone'], workloads.one_stream, STEPS)
        workloads.heat(cp, plates['eager'], room['eager'], ck.fork, STEPS)
        cap.graph.launch()
        want = cp.asnumpy(plates['alone'])
        assert np.array_equal(cp.asnumpy(plates['eager']), want)
        assert np.array_equal(cp.asnumpy(plates['recorded']), want)
    assert kinds(cap.graph)['lanes'] == 3  # each step's fork takes the two streams of the one before
    assert not np.array_equal(want, cp.asnumpy(workloads.plate(cp)))

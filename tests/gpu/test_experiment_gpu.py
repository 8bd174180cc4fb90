"""``parallel()`` and ``experiment()`` on a GPU: results, lanes' priorities, races. No time is asserted."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import capturekit as ck
from capturekit.recorder.forks import ASSIGNMENTS
from tests.gpu.world import SPIN

cp = pytest.importorskip('cupy')
pytest.importorskip('cuda.bindings')
pytestmark = [pytest.mark.gpu, pytest.mark.serial]

N = 1 << 16


@pytest.fixture(scope='module')
def wait() -> Callable[[], None]:
    """A kernel that keeps a lane busy for 12 milliseconds, so that what does not wait for it runs before."""
    kernel = cp.RawKernel(SPIN, 'spin')
    return lambda: kernel((1,), (1,), (np.uint64(12_000), np.uint64(0)))


def branches(x: Any, count: int) -> list[Callable[[], Any]]:
    def work(n: int) -> Any:
        y = x
        for _ in range(1 + n % 4):
            y = cp.sin(y + n) + cp.sqrt(abs(y))
        return y

    return [lambda n=n: work(n) for n in range(count)]  # type: ignore[misc]


def test_results_are_the_same_whatever_the_lanes() -> None:
    x = cp.linspace(0, 1, N)
    rng = random.Random(5)
    for _ in range(20):
        count = rng.randint(1, 24)
        lanes, assign = rng.randint(1, 12), rng.choice(sorted(ASSIGNMENTS))
        want = [cp.asnumpy(branch()) for branch in branches(x, count)]
        eager = ck.parallel(*branches(x, count), lanes=lanes, assign=assign)
        assert all(np.array_equal(cp.asnumpy(a), b) for a, b in zip(eager, want))
        with ck.capture() as cap:
            recorded = cap.parallel(*branches(x, count), lanes=lanes, assign=assign)
        cap.graph.launch()
        assert all(np.array_equal(cp.asnumpy(a), b) for a, b in zip(recorded, want))
        recorded.clear()
        cap.graph.close()


def test_each_lane_has_its_priority() -> None:
    from cuda.bindings import runtime

    code, least, greatest = runtime.cudaDeviceGetStreamPriorityRange()
    assert int(code) == 0
    with ck.fork(4, priority=(None, least, greatest, greatest - 100)) as lanes:
        assert [lane.stream.priority for lane in lanes] == [0, least, greatest, greatest]
    tell = lambda: cp.cuda.get_current_stream().priority  # noqa: E731
    assert ck.parallel(tell, tell, lanes=2, priority=(0, greatest)) == [0, greatest]


def test_an_eager_lane_array_outlives_its_readers(wait: Callable[[], None]) -> None:
    """Dropped by Python it goes back to the lane's free blocks, and the reader is on a stream that the lane joined."""
    first, second = (cp.cuda.Stream(non_blocking=True) for _ in range(2))
    x = cp.arange(N, dtype='f8')
    cp.cuda.Device().synchronize()
    with first:
        (made,) = ck.parallel(lambda: x + 1, priority=0)
        wait()
        read = made * 2
        del made
    with second:
        overwritten = ck.parallel(*[lambda: cp.full(N, -1.0)] * 2, priority=0)
    cp.cuda.Device().synchronize()
    assert np.array_equal(cp.asnumpy(read), (np.arange(N) + 1.0) * 2)
    assert len(overwritten) == 2


# -- experiments ------------------------------------------------------------------------------------------------


def test_a_report_has_a_time_for_each_way() -> None:
    x = cp.linspace(0, 1, N)
    report = ck.experiment(branches(x, 4), lanes=(1, 2, 4, 8), priorities=(None, (-1,)), rounds=4, launches=3)
    assert report.ok
    assert report.compared.startswith('4 arrays')
    assert (report.launches, report.rounds, report.branches) == (3, 4, [4])
    assert not report.rows[0].captured and report.rows[0].lanes == 1 and report.rows[0].ratio == 1
    assert [row.lanes for row in report.rows if not row.captured and row.priority] == [2, 2, 4]
    assert [row.lanes for row in report.rows if row.captured] == [1, 2, 2, 2, 2, 4, 4]
    assert [row.lanes for row in report.rows if row.captured and row.priority] == [2, 2, 4]
    for row in report.rows:
        assert len(row.times_us) == 4 and min(row.times_us) > 0
        assert row.source == 'measured' and row.host_us is not None and row.ratio is not None
        assert (row.recording_us is not None) == (row.nodes is not None) == row.captured
    assert report.best is not None
    assert len(ElementTree.fromstring(report.svg())) > 5
    assert str(report).count('\n') > len(report.rows)


def test_branches_that_depend_on_each_other_are_told(wait: Callable[[], None]) -> None:
    flag = cp.zeros(N)

    def program(parallel: Any) -> Any:
        flag.fill(0)

        def first() -> None:
            wait()
            flag.fill(1)

        return parallel(first, lambda: flag * 2)[1]

    report = ck.experiment(program, lanes=(1, 2), rounds=2, launches=1)
    assert not report.ok
    assert [row.largest for row in report.rows] == [None, 2.0, None, 2.0]
    assert report.best is not None and report.best.lanes == 1

"""``@ck.graphed``: the Python around a function, exceptions, and the options."""

from __future__ import annotations

import contextlib
import gc
import sys
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.driver.cuda import current
from capturekit.graphed import watch as watching
from capturekit.guard import GUARD


def test_an_exception_of_no_known_kind_while_recording(cp: Any) -> None:
    class Odd(Exception):
        pass

    def fn(x: Any) -> Any:
        x += 1
        if GUARD.mine() is not None:
            raise Odd('only while recording')
        return x * 2

    graphed = ck.graphed(fn)
    for v in range(4):
        x = cp.arange(4.0) + v
        assert np.array_equal(graphed(x).get(), (np.arange(4.0) + v + 1) * 2)
        assert np.array_equal(x.get(), np.arange(4.0) + v + 1)
    assert {variant.state for variant in graphed.variants} == {'eager'}


@pytest.mark.parametrize('seam', [True, False])
def test_a_keyboard_interrupt_while_recording(cp: Any, seam: bool) -> None:
    w = cp.zeros(4)
    calls = []

    def fn(x: Any) -> Any:
        w[...] = w + 1
        y = cp.linalg.svd(x.reshape(2, 2))[1] if seam else x
        if GUARD.mine() is not None and not calls:
            calls.append(1)
            raise KeyboardInterrupt
        return y * 2

    expected = lambda x: (np.linalg.svd(x.reshape(2, 2))[1] if seam else x) * 2  # noqa: E731
    graphed = ck.graphed(fn)
    host = np.arange(4.0)
    np.testing.assert_allclose(graphed(cp.asarray(host)).get(), expected(host), atol=1e-12)
    calls.clear()
    graphed_once = False
    for v in range(6):
        host = np.arange(4.0) + v
        try:
            np.testing.assert_allclose(graphed(cp.asarray(host)).get(), expected(host), atol=1e-12)
        except KeyboardInterrupt:
            graphed_once = True
            assert w.get().tolist() == [1.0 + v] * 4
            w[...] = w + 1
    assert graphed_once
    assert w.get().tolist() == [7.0] * 4
    GUARD.state.under_way.clear()  # the function reads GUARD, so what it held during the wait is put back as well


@pytest.mark.parametrize('where', ['launch', 'draw'])
def test_an_interrupt_between_the_parts_of_a_launch(cp: Any, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """A launch that the device never heard of must not shift the rows of those that follow."""
    device = current().device

    @ck.graphed
    def fn(x: Any) -> Any:
        y = cp.random.random_sample(4) * 0 if where == 'draw' else x * 0
        if float(x[0]) > 100:
            return x
        return x * 2 + y

    for v in range(3):
        fn(cp.arange(4.0) + v)
    real = device.graph_launch

    def broken(*_args: Any) -> Any:
        raise KeyboardInterrupt

    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(device, 'graph_launch', broken)
            with pytest.raises(KeyboardInterrupt):
                fn(cp.arange(4.0))
    assert device.graph_launch == real
    for v in range(70):
        assert fn(cp.arange(4.0) + v).get().tolist() == [2.0 * (i + v) for i in range(4)]


def test_strict_names_the_reason(cp: Any) -> None:
    @ck.graphed(strict=True)
    def fn(x: Any) -> Any:
        x.set(np.ones(4))
        return x * 2

    x = cp.arange(4.0)
    assert fn(x).get().tolist() == [2.0] * 4
    with pytest.raises(ck.UnsupportedCallError, match='can not be recorded'):
        fn(x)


@pytest.mark.serial
def test_clear_gives_everything_back(cp: Any) -> None:
    def free_bytes() -> Any:
        """What is free when the pools hold nothing; pinned memory counts on the simulated device."""
        gc.collect()
        cp.get_default_memory_pool().free_all_blocks()
        cp.get_default_pinned_memory_pool().free_all_blocks()
        return cp.cuda.runtime.memGetInfo()[0]

    @ck.graphed
    def fn(x: Any) -> Any:
        return x * 2 if float(x[0]) < 9 else x

    for v in range(4):
        fn(cp.arange(1 << 16, dtype='f8') + v)
    assert fn.variants and 'graphed' in repr(fn)
    fn.clear()
    free = free_bytes()
    for v in range(4):
        assert fn(cp.arange(1 << 16, dtype='f8') + v).get()[1] == 2.0 + 2 * v
    fn.clear()
    assert free_bytes() >= free and not fn.variants


@pytest.mark.parametrize('by', ['itself', 'others'])
def test_what_differs_at_every_call_stays_eager_in_the_end(cp: Any, by: str, caplog: pytest.LogCaptureFixture) -> None:
    class Counter:
        n = 0

        @ck.graphed(limit=2)
        def step(self, x: Any) -> Any:
            if by == 'itself':
                self.n += 1
            return x * self.n.numerator  # an attribute of a number is not followed

    counter = Counter()
    for i in range(1, 26):
        if by == 'others':
            counter.n += 1
        assert counter.step(cp.arange(3.0)).tolist() == [0, i, 2 * i]
    (variant,) = Counter.step.variants
    assert variant.state == 'eager' and variant.calls > 10 and variant.reason in caplog.text
    assert len(caplog.records) < 5


def test_inside_of_a_rehearsal_its_reads_are_the_rehearsals(cp: Any) -> None:
    inner = ck.graphed(lambda x: x * 2 if float(x.sum()) > 3 else x + 1)
    x = cp.arange(4.0)
    for _ in range(3):
        inner(x)
    rehearsal = ck.rehearse(lambda: inner(x) + 1)
    assert [read.value.item() for read in rehearsal.reads] == [6.0]
    with ck.capture(rehearsal=rehearsal) as cap:
        y = inner(x) + 1
    cap.graph.launch()
    assert y.get().tolist() == [1.0, 3.0, 5.0, 7.0]
    x *= 0
    with pytest.raises(ck.AssumptionError):
        cap.graph.launch()


@pytest.mark.parametrize('number', range(3))
def test_a_variant_that_somebody_closed_is_none(cp: Any, number: int) -> None:
    """Whichever it is, and whichever way leads to it: a check of another that failed, too."""
    fn = ck.graphed(lambda x: x * 2 if int(x[0]).numerator < 9 else x)
    for v in (0, 0, 0, 1, 1, 1, 2, 2, 2, 0, 1, 2):
        fn(cp.arange(4.0) + v)
    assert [variant.state for variant in fn.variants] == ['recorded'] * 3
    plan = fn.variants[number].plan
    fn.variants[number].graph.close()  # type: ignore[union-attr]
    with pytest.raises(ck.ClosedError):
        plan.run()  # type: ignore[union-attr]
    for v in (0, 1, 2, 0, 0, 1, 2, 0, 1, 2):  # some calls more than it takes: an address that is met again may cost one
        assert fn(cp.arange(4.0) + v).get().tolist() == [2.0 * (i + v) for i in range(4)]
    assert [variant.state for variant in fn.variants].count('recorded') == 3


@pytest.mark.parametrize('reads', [False, True])
def test_a_variants_graph_is_launched_by_calls_alone(cp: Any, reads: bool) -> None:
    fn = ck.graphed(lambda x: x * 2 if not reads or float(x[0]) < 9 else x)
    for _ in range(3):
        fn(cp.arange(4.0))
    graph = fn.variants[0].graph
    assert graph is not None and graph.nodes
    with pytest.raises(ck.UnsupportedCallError, match='Call the function'):
        graph.launch()
    with pytest.raises(ck.UnsupportedCallError):
        graph.launch(cp.cuda.Stream())
    for v in range(3):
        assert fn(cp.arange(4.0) + v).get().tolist() == [2.0 * (i + v) for i in range(4)]
    graph.close()  # somebody does: the function is recorded anew
    for v in range(3):
        assert fn(cp.arange(4.0) + v).get().tolist() == [2.0 * (i + v) for i in range(4)]
    assert 'recorded' in {variant.state for variant in fn.variants} and graph not in [
        variant.graph for variant in fn.variants
    ]


COLLECTIONS = 0


def test_a_callback_of_the_collector_is_no_part_of_a_function(cp: Any) -> None:
    def told(_phase: str, _info: dict[str, int]) -> None:
        global COLLECTIONS
        COLLECTIONS += 1

    @ck.graphed
    def doubled(x: Any) -> Any:
        for _ in range(100):
            loop: list[Any] = []
            loop.append(loop)
        return x * 2

    threshold, x = gc.get_threshold(), cp.arange(4.0)
    gc.callbacks.append(told)
    gc.set_threshold(10)
    try:
        for _ in range(4):
            assert doubled(x).get().tolist() == [0, 2, 4, 6]
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(told)
    assert COLLECTIONS > 0 and doubled.variants[0].state == 'recorded'
    assert gc.isenabled()


@pytest.mark.parametrize('count', [2, 6])
def test_many_calls_between_graphs_are_told_once(cp: Any, caplog: pytest.LogCaptureFixture, count: int) -> None:
    @ck.graphed
    def fn(x: Any) -> Any:
        for _ in range(count):
            x = x * cp.linalg.svd(x)[1]
        return x

    for _ in range(4):
        fn(cp.eye(3) * 0.5)
    (variant,) = fn.variants
    assert (variant.state, len(variant.seams)) == ('pieces', count)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == (count == 6)
    if told:
        assert '6 calls that no capture can hold' in told[0] and 'linalg.svd at test_decorator.py' in told[0]


@pytest.mark.parametrize(('seed', 'error'), [(1.5, TypeError), (-1, ValueError), (2**64, TypeError)])
def test_a_seed_that_cupy_refuses_is_refused_at_its_line(cp: Any, seed: Any, error: type[Exception]) -> None:
    for where in (contextlib.nullcontext, ck.capture):
        with where() as cap:
            with pytest.raises(error, match='Seed must be an integer'):
                cp.random.seed(seed)
            y = cp.zeros(3) + 1
    cap.graph.launch()
    assert y.get().tolist() == [1.0] * 3


@pytest.mark.skipif(not hasattr(sys, 'monitoring'), reason='Python tells of lines from 3.12 on')
def test_no_tool_of_monitoring_is_left(cp: Any) -> None:
    fn = ck.graphed(lambda x: sum([x * k for k in (1.0, 2.0)]))
    for _ in range(3):
        fn(cp.ones(2))
    monitoring: Any = sys.monitoring
    assert [monitoring.get_tool(number) for number in (5, 4, 3)] == [None] * 3


@pytest.mark.parametrize('step', ['finish', 'shown_before'])
def test_a_fault_at_the_end_of_a_run_leaves_it_eager(
    cp: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, faults: list[str], step: str
) -> None:
    """A fault of capturekit's own costs a launch, and neither the user's call nor its result."""

    def broken(*_args: Any) -> None:
        raise ZeroDivisionError('at the end')

    monkeypatch.setattr(watching, step, broken)
    ran: list[int] = []

    def work(x: Any) -> Any:
        ran.append(1)
        return x * 2

    fn = ck.graphed(work)
    assert [fn(cp.ones(2)).get().tolist() for _ in range(6)] == [[2.0, 2.0]] * 6
    assert len(ran) == 6 and {variant.state for variant in fn.variants} == {'eager'}
    assert "could not be followed: ZeroDivisionError('at the end')" in fn.variants[0].reason
    assert watching.FAULT in caplog.text and faults != []
    faults.clear()


def test_the_wrappers_of_a_capture_elsewhere_are_no_replacement(sim: Any) -> None:
    fn = ck.graphed(lambda x: sim.concatenate([x, x + sim.cuda.get_current_stream().ptr * 0]))
    plain = ck.graphed(lambda x: sim.exp(x.sum()) + sim.linalg.norm(x))
    x = sim.zeros(2)
    for _ in range(3):
        plain(x)
        fn(x)
    environment = plain.variants[0].environment
    assert environment is not None
    with ck.capture():
        assert environment.changed() is None
    assert environment.changed() is None and len(plain.variants) == 1

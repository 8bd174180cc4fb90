"""Graphs of ``lanes='auto'`` whose temporaries were packed: what launches give, what stays, and what undoes it."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.driver.cuda import current
from capturekit.lanes import contest, new_order
from capturekit.model.errors import CudaCallError
from capturekit.model.rules import Code
from tests.analysis.test_races import WRITES_FIRST
from tests.captured import values
from tests.lanes.test_relane import SAME

N = 1000


@pytest.fixture
def x(cp: Any) -> Any:
    return cp.linspace(1, 2, N)


def branches(cp: Any, x: Any, count: int = 4, **options: Any) -> tuple[Any, list[Any]]:
    """Work of one lane that could be on several: each result has two temporaries, of which the second is another's."""
    with ck.capture(**(options or {'lanes': 'auto'})) as cap:
        outs = [cp.sqrt(x * (n + 1)) * 2 + n for n in range(count)]
    return cap, outs


def about(nbytes: int) -> Any:
    """So many bytes, or two blocks more: capturekit takes one from each pool to know it by."""
    return pytest.approx(nbytes, abs=1024)


def right(cp: Any, x: Any, outs: list[Any]) -> bool:
    host = cp.asnumpy(x)
    return all(np.array_equal(cp.asnumpy(out), np.sqrt(host * (n + 1)) * 2 + n) for n, out in enumerate(outs))


def chained(cp: Any, x: Any, **options: Any) -> tuple[Any, Any]:
    with ck.capture(**options) as cap:
        y = x
        for _ in range(20):
            y = cp.sqrt(y) * 2 + x
    return cap, y


# -- what launches give -----------------------------------------------------------------------------------------


def test_a_branch_needs_two_temporaries_and_has_no_more(cp: Any, x: Any) -> None:
    cap, outs = branches(cp, x)
    report, before = cap.relaned, cap.graph.memory_bytes
    block = 8192
    assert (report.packed.before, report.packed.now, report.packed.settled) == (12 * block, 8 * block, False)
    edges = cap.graph.edges
    for launch in range(2):
        x += launch
        cap.graph.launch()
        assert right(cp, x, outs), launch
    assert report.compared == SAME and report.packed.settled
    assert f'temporaries: {12 * block:,} bytes as recorded, {8 * block:,} packed' in str(report)
    assert before == about((16 + 8) * block)
    assert cap.graph.memory_bytes == cap.recording.memory_bytes == about((4 + 8) * block)
    assert cap.graph.edges == edges and not cap.graph.races()


def test_a_graph_that_keeps_its_order_has_no_more_memory(cp: Any, x: Any) -> None:
    plain, wanted = chained(cp, x)
    cap, found = chained(cp, x, lanes='auto')
    assert not cap.relaned and cap.relaned.kept == 'its data needs the order that was recorded'
    for graph in (plain.graph, cap.graph, cap.graph):
        graph.launch()
    assert values(found) == values(wanted) and cap.relaned.compared == ''
    assert cap.relaned.packed.settled and cap.graph.memory_bytes <= plain.graph.memory_bytes
    assert cap.graph.edges == plain.graph.edges


# -- what stays where it is -------------------------------------------------------------------------------------


def stays(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The reasons for which temporaries stay where they are, in the captures that follow."""
    reasons: list[str] = []
    examined = new_order.examined

    def seen(*given: Any) -> Any:
        found = examined(*given)
        reasons.extend(one.stays for one in found if one.stays)
        return found

    monkeypatch.setattr(new_order, 'examined', seen)
    return reasons


def test_what_a_kernel_of_somebody_elses_may_know_stays(cp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, x, reasons = cp.RawKernel(WRITES_FIRST, 'writes_first'), cp.linspace(1, 2, N), stays(monkeypatch)
    with ck.capture(lanes='auto') as cap:
        early = cp.sqrt(x * 3) * 2 + 1  # its temporaries are gone when the kernel is called
        alive, given_ = x * 5, cp.zeros(N)
        kernel((1,), (N,), (given_, x))
        later = alive + given_
        del alive, given_
    assert len(reasons) == 2 and all('writes_first' in one for one in reasons)
    assert cap.relaned.packed.before == 3 * 8192
    for _ in range(2):
        cap.graph.launch()
    assert values(early) == values(cp.sqrt(x * 3) * 2 + 1)
    assert values(later) == values(x * 5 + (x + 1))


def test_what_is_read_before_it_is_written_stays(cp: Any, monkeypatch: pytest.MonkeyPatch, x: Any) -> None:
    reasons = stays(monkeypatch)
    with ck.capture(lanes='auto') as cap:
        part = cp.empty(N)
        part[:500] = x[:500]
        y = part * 2
        del part
        z = cp.sqrt(x * 3) + 1
    assert reasons == ['it is read before the launch has written it']
    cap.graph.launch()
    assert values(y)[:500] == values(x * 2)[:500]
    assert values(z) == values(cp.sqrt(x * 3) + 1)


def test_only_memory_of_its_own_is_packed(cp: Any, x: Any) -> None:
    for options in ({'lanes': None}, {'lanes': 'auto', 'pool': cp.cuda.MemoryPool()}):
        cap, outs = branches(cp, x, **options)
        assert cap.graph.relane().packed is None
        cap.graph.launch()
        assert right(cp, x, outs)
        cap.graph.close()


# -- what undoes it ---------------------------------------------------------------------------------------------


def test_an_address_that_was_missed_shows_at_the_first_launch(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    examined = new_order.examined

    def misses(*given: Any) -> Any:
        found = examined(*given)
        next(one for one in found if len(one.words) > 1).words.pop()
        return found

    monkeypatch.setattr(new_order, 'examined', misses)
    x = sim.linspace(1, 2, N)
    cap, outs = branches(sim, x)
    memory, edges = cap.graph.memory_bytes - cap.relaned.packed.now, cap.graph.edges
    cap.graph.launch()
    assert right(sim, x, outs)
    assert cap.relaned.unpacked.startswith('the first launch gave something else: ')
    assert 'temporaries are not packed: the first launch gave something else: ' in str(cap.relaned)
    assert cap.relaned and cap.relaned.packed is None and cap.relaned.compared == 'not yet'
    assert (cap.graph.memory_bytes, cap.graph.edges) == (memory, edges)
    for _ in range(2):
        x += 1
        cap.graph.launch()
        assert right(sim, x, outs)
    assert cap.relaned.compared == SAME


def test_a_write_that_was_missed_shows_at_the_first_launch(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node writes where nobody reads any more, so that all results are right."""
    examined = new_order.examined
    x = sim.linspace(1, 2, N)

    def misses(*given: Any) -> Any:
        found = examined(*given)
        for one in found:
            if len(one.words) == 1:
                one.words.clear()
        return found

    monkeypatch.setattr(new_order, 'examined', misses)
    with ck.capture(lanes='auto') as cap:
        out = sim.sqrt(x * 2) * 2 + 1
        sim.multiply(x, 3)  # nobody reads it
    cap.graph.launch()
    assert cap.relaned.unpacked.endswith('memory was written that no node should use any more')
    assert values(out) == (np.sqrt(np.linspace(1, 2, N) * 2) * 2 + 1).tolist()


@pytest.mark.parametrize('change', ['rebind', 'switch', 'clone'])
def test_changes_before_the_first_launch_do_without(cp: Any, change: str, x: Any) -> None:
    other = cp.linspace(3, 4, N)
    cap, outs = branches(cp, x)
    assert cap.relaned.packed is not None
    if change == 'rebind':
        cap.graph.rebind((x, other))
    elif change == 'switch':
        cap.graph.disable(3)
        cap.graph.enable(3)
    else:
        cap.graph.clone().close()
    assert cap.relaned.packed is None and cap.relaned.unpacked == 'the graph was changed before the first launch'
    for _ in range(2):
        cap.graph.launch()
    assert right(cp, other if change == 'rebind' else x, outs)
    assert not cap.graph.races()


def test_a_graph_in_a_graph_does_without(cp: Any, x: Any) -> None:
    inner, outs = branches(cp, x)
    with ck.capture() as cap:
        cap.embed(inner.graph)
    assert inner.relaned.packed is None
    for launch in range(2):
        x += launch
        cap.graph.launch()
        assert right(cp, x, outs)


def test_a_change_afterwards_keeps_the_packed_memory(cp: Any, x: Any) -> None:
    other = cp.linspace(3, 4, N)
    cap, outs = branches(cp, x)
    cap.graph.launch()
    memory, edges = cap.graph.memory_bytes, cap.graph.edges
    cap.graph.rebind((x, other))
    assert (cap.graph.memory_bytes, cap.graph.edges) == (memory, edges)
    cap.graph.launch()
    assert right(cp, other, outs)
    copy = cap.graph.clone()
    other += 1
    copy.launch()
    assert right(cp, other, outs)
    assert cap.graph.relane() and cap.graph.edges == edges


def test_where_cuda_refuses_all_stays(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = sim.linspace(1, 2, N)
    device = current().device
    kernel_aim = device.kernel_aim
    calls = itertools.count()

    def refuses(g: int, node: int) -> Any:
        aim = kernel_aim(g, node)
        define = aim.define

        def late() -> None:
            if next(calls) == 3:
                raise CudaCallError(Code.cudaErrorInvalidValue, 'graphKernelNodeSetParams')
            define()

        monkeypatch.setattr(aim, 'define', late)
        return aim

    monkeypatch.setattr(device, 'kernel_aim', refuses, raising=False)
    cap, outs = branches(sim, x)
    assert cap.relaned and cap.relaned.packed is None
    for _ in range(2):
        cap.graph.launch()
    assert right(sim, x, outs) and cap.relaned.compared == SAME


def test_a_graph_that_is_closed_at_once_leaves_nothing(sim: Any) -> None:
    x = sim.linspace(1, 2, N)
    branches(sim, x)[0].graph.close()
    before = sim.cuda.runtime.memGetInfo()[0]
    cap, outs = branches(sim, x)
    assert cap.relaned.packed is not None
    del outs
    cap.graph.close()
    assert sim.cuda.runtime.memGetInfo()[0] == before


# -- by times ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('best', [contest.NEEDED, contest.RECORDED, 2])
def test_the_fastest_order_is_packed(cp: Any, monkeypatch: pytest.MonkeyPatch, best: int) -> None:
    def timed(_device: Any, start: Any, executables: Any, rounds: int, _stream: int) -> Any:
        start()
        return {one: (5.0 if one == best else 10.0,) * rounds for one in executables}

    monkeypatch.setattr(contest, 'timed', timed)
    x = cp.linspace(1, 2, N)
    cap, outs = branches(cp, x)
    report = cap.graph.relane(rounds=3)
    assert report.times.best == best and bool(report) is (best != contest.RECORDED)
    for launch in range(2):
        x += launch
        cap.graph.launch()
        assert right(cp, x, outs), launch
    assert report.packed.settled and not cap.graph.races()
    assert cap.graph.memory_bytes == about(4 * 8192 + report.packed.now)


# -- relaned again before the first launch ------------------------------------------------------------------------


def test_packed_memory_is_kept_by_another_look(cp: Any, x: Any) -> None:
    cap, outs = branches(cp, x)
    edges = cap.graph.edges
    for report in (cap.graph.relane(report=True), cap.graph.relane(), cap.graph.relane()):
        assert report.edges == cap.relaned.edges and cap.graph.edges == edges
    assert report.packed is cap.relaned.packed and not report.packed.settled
    cap.graph.launch()
    assert right(cp, x, outs) and cap.relaned.packed.settled and cap.relaned.compared == SAME


def test_another_order_does_without_packed_memory(cp: Any, monkeypatch: pytest.MonkeyPatch, x: Any) -> None:
    """The order was packed for other edges: its memory is the recorded one again."""
    cap, outs = branches(cp, x)
    original = new_order.find_needed

    def more(levels: Any, sight: Any) -> Any:
        found = original(levels, sight)
        for level in levels:
            level.needed = sorted({*level.needed, (3, 4)})  # the second branch comes after the first
        return found

    monkeypatch.setattr(new_order, 'find_needed', more)
    report = cap.graph.relane()
    others = [cp.full(N, cp.nan) for _ in range(20)]
    assert report.packed is None and len(others) == 20
    for launch in range(2):
        x += launch
        cap.graph.launch()
        assert right(cp, x, outs)

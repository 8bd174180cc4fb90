"""``ck.capture(lanes='auto')``: one lane is recorded, temporaries are used again late, and the data makes the edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.launch import graph_memory
from capturekit.launch.graph_memory import Workspaces
from tests.captured import flag, values
from tests.lanes.test_relane import SAME

SIZE = 1 << 12


def branches(cp: Any, x: Any, count: int = 4, **options: Any) -> tuple[ck.Capture, list[Any]]:
    """Branches with two temporaries each, recorded one after the other."""
    outs = [cp.zeros(SIZE) for _ in range(count)]
    with ck.capture(**options) as cap:
        for number, out in enumerate(outs):
            cp.add(cp.sin(x) * 2, cp.cos(x) * number, out=out)
    return cap, outs


def wanted(count: int = 4) -> list[bytes]:
    x = np.arange(SIZE, dtype='f8')
    return [(np.sin(x) * 2 + np.cos(x) * number).tobytes() for number in range(count)]


def test_temporaries_are_not_in_the_way_where_there_is_room(sim: Any) -> None:
    x = sim.arange(SIZE, dtype='f8')
    cap, outs = branches(sim, x, lanes='auto', memory_limit=1 << 20)
    assert cap.relaned and cap.relaned.graphs[0].at_once[1] == 8, 'a sine and a cosine in each of four branches'
    cap.graph.launch()
    assert cap.relaned.compared == SAME
    assert [out.get().tobytes() for out in outs] == wanted()


def test_with_less_room_more_is_ordered(cp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What workspaces have taken is not there for temporaries."""
    x, found = cp.arange(SIZE, dtype='f8'), []
    for blocks, besides in ((4, 0), (8, 0), (32, 0), (32, 24)):
        monkeypatch.setattr(Workspaces, 'taken', besides * x.nbytes)
        cap, outs = branches(cp, x, lanes='auto', memory_limit=blocks * x.nbytes)
        cap.graph.launch()
        np.testing.assert_allclose([out.get() for out in outs], [np.frombuffer(one) for one in wanted()])
        found.append((cap.relaned.edges[1], cap.graph.memory_bytes))
        cap.graph.close()
    assert found[0][0] > found[1][0] > found[2][0] < found[3][0]
    assert found[0][1] < found[2][1]


def test_by_itself_memory_comes_to_twice_what_is_needed_at_once(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = sim.arange(SIZE, dtype='f8')
    renamed = branches(sim, x, 16, lanes='auto')[0]
    assert renamed.relaned.graphs[0].at_once[1] == 32, 'small temporaries are never used again'
    monkeypatch.setattr(graph_memory, 'LEAST', 0)
    once, late = (branches(sim, x, 16, lanes=lanes)[0] for lanes in (None, 'auto'))
    assert once.graph.memory_bytes < late.graph.memory_bytes <= 2 * once.graph.memory_bytes
    assert late.relaned
    late.graph.launch()
    assert late.relaned.compared == SAME


def test_a_loops_body_uses_its_memory_late_as_well(cp: Any) -> None:
    x, y, n, going = cp.ones(4), cp.ones(4), cp.zeros((), 'i8'), flag(cp)
    with ck.capture(lanes='auto') as cap:
        n.fill(0)
        x.fill(1)
        y.fill(1)
        cp.less(n, 5, out=going)
        with cap.while_(going):
            x[...] = (x + 1) * 2
            y[...] = (y + 2) * 3
            n += 1
            cp.less(n, 5, out=going)
    host = np.ones(2)
    for _ in range(5):
        host = np.array([(host[0] + 1) * 2, (host[1] + 2) * 3])
    for _ in range(2):
        cap.graph.launch()
        assert (values(x), values(y)) == ([host[0]] * 4, [host[1]] * 4)


def test_an_empty_block(cp: Any) -> None:
    with ck.capture(lanes='auto') as cap:
        pass
    assert not cap.relaned and cap.relaned.python == '' and cap.relaned.edges == (0, 0)
    cap.graph.launch()


@pytest.mark.parametrize('of', [ck.capture, lambda **options: ck.graphed(abs, **options)], ids=['capture', 'graphed'])
def test_wrong_arguments(cp: Any, of: Any) -> None:
    for error, options, text in (
        (ValueError, {'lanes': 4}, "lanes is 'auto' or None, got 4"),
        (TypeError, {'lanes': 'auto', 'memory_limit': 1.5}, 'memory_limit is a number of bytes, got 1.5'),
        (ValueError, {'lanes': 'auto', 'memory_limit': 0}, 'memory_limit must be 1 or more, got 0'),
        (ValueError, {'memory_limit': 512}, "memory_limit= goes with lanes='auto' only"),
    ):
        with pytest.raises(error, match=text):
            of(**options)


def test_a_graph_that_is_updated_gets_no_lanes(cp: Any) -> None:
    graph = branches(cp, cp.arange(SIZE, dtype='f8'))[0].graph
    with pytest.raises(ValueError, match="lanes='auto' goes neither with into= nor with update="):
        ck.capture(lanes='auto', update=graph)
    with pytest.raises(ck.ClosedError, match=r'Capture\.relaned'):
        _ = ck.capture(lanes='auto').relaned

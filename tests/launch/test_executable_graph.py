"""A definition and its executable graph are destroyed once, when nobody needs them any more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from capturekit.launch.executable_graph import ExecutableGraph
from capturekit.launch.plan import Part, Plan


class Device:
    """It tells what was destroyed, and numbers what is instantiated from 100 on."""

    def __init__(self) -> None:
        self.destroyed: list[int] = []
        self.made: list[tuple[int, bool]] = []
        self.graph_destroy = self.graph_exec_destroy = self.destroyed.append

    def graph_instantiate(self, graph: int, by_priority: bool) -> int:
        self.made.append((graph, by_priority))
        return 99 + len(self.made)


@pytest.fixture
def device() -> Device:
    return Device()


def test_an_executable_graph_goes_before_its_definition(device: Device) -> None:
    found = ExecutableGraph.of_definition(device, 7, None).instantiated(device, True)
    assert (found.graph, found.graphExec, found.by_cupy, device.made) == (7, 100, False, [(7, True)])
    assert device.destroyed == []
    del found
    assert device.destroyed == [100, 7]


def test_after_an_update_the_source_stays(device: Device) -> None:
    old = ExecutableGraph.of_definition(device, 7, None).instantiated(device, False)
    found = old.updated(ExecutableGraph.of_definition(device, 8, 'calls'))
    del old
    assert (found.graph, found.graphExec, found.source, found.host_funcargs) == (8, 100, 7, 'calls')
    assert device.destroyed == []
    again = found.instantiated(device, False)
    del found
    assert device.destroyed == [100, 7]
    assert (again.graph, again.graphExec, again.source) == (8, 101, 8)
    del again
    assert device.destroyed == [100, 7, 101, 8]


def test_what_cupy_has_made_is_cupys(device: Device) -> None:
    made = SimpleNamespace(graph=3, graphExec=4, host_funcargs=[])
    found = ExecutableGraph.of_cupy(made)
    assert (found.graph, found.graphExec, found.by_cupy) == (3, 4, True)
    assert found.definition is found.executable is made
    assert not found.instantiated(device, False).by_cupy
    assert device.destroyed == [100]


def test_the_parts_of_a_plan_go_once(device: Device) -> None:
    platform: Any = SimpleNamespace(device=device)
    for closed in (False, True):
        plan = Plan(platform)
        plan.steps += [Part(1, 2), Part(3, 4)]
        found = ExecutableGraph.of_plan(plan, None)
        assert (found.graph, found.graphExec, found.by_cupy) == (1, 2, False)
        if closed:
            plan.close()
        del found
        assert device.destroyed == [2, 1, 4, 3]
        device.destroyed.clear()

"""What is behind ``graph.launch``, by itself: a state with a device that notes its launches."""

from __future__ import annotations

import gc
import weakref
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

import capturekit as ck
from capturekit.graph.launching import aim, launch_of, launch_on, plain_launch, upload
from capturekit.graph.state import Alteration, GraphState
from capturekit.launch.gate import Gate
from capturekit.model.errors import ClosedError
from capturekit.model.lease import Lease
from capturekit.model.recording import Recording

CURRENT, OTHER = SimpleNamespace(ptr=16, device_id=0), SimpleNamespace(ptr=32, device_id=0)


def state_of(calls: list[Any]) -> GraphState:
    """As much of a graph as launches need."""
    device: Any = SimpleNamespace(
        graph_launch=lambda x, stream: calls.append(('launch', x, stream)),
        graph_upload=lambda x, stream: calls.append(('upload', x, stream)),
    )
    memory: Any = SimpleNamespace(
        turns=[], in_turn=lambda launch, _taken=None: launch, turn=lambda _stream: nullcontext()
    )
    topology: Any = SimpleNamespace(captures=[])
    made = SimpleNamespace(graph=1, graphExec=2)
    before = lambda uploads, stream: calls.append(('before', uploads, stream))  # noqa: E731
    gate = Gate(topology, before, nullcontext, lambda: False, nullcontext, None)
    return GraphState(device, 0, lambda: CURRENT, gate, made, memory, Lease(), Recording())


def function_of(state: GraphState) -> Any:
    """The function behind ``launch``, with an owner that destroys nothing."""
    owner: Any = SimpleNamespace(state=state)
    return launch_of(owner, plain_launch(state))


class Altered(Alteration):
    """An alteration that notes its launches."""

    call = 'altered()'

    def __init__(self, name: str, trial: Any, calls: list[Any]) -> None:
        self.name, self.trial, self.calls = name, trial, calls

    def launch(self, state: GraphState, stream: int) -> None:
        self.calls.append((self.name, state, stream))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the device was asked for. Handles are those of the streams, and there is no other thread."""
    monkeypatch.setattr('capturekit.graph.launching.stream_handle', lambda stream: stream.ptr)
    monkeypatch.setattr('_thread._count', lambda: 0)
    return []


def test_launches_are_counted_by_their_way(calls: list[Any]) -> None:
    state = state_of(calls)
    launch = function_of(state)
    launch()
    launch()
    launch(OTHER)
    assert calls == [('launch', 2, 16), ('launch', 2, 16), ('launch', 2, 32)]
    assert (state.quick(), state.by_name) == (2, 1)


def test_a_capture_is_told_of_a_launch_and_of_an_upload(calls: list[Any]) -> None:
    state = state_of(calls)
    launch = function_of(state)
    state.gate.ledger.captures.append(object())  # type: ignore[arg-type]
    launch()
    upload(state, OTHER)
    launch_on(state, None, lambda: calls.append('then'))
    assert calls == [
        ('before', False, 16), ('launch', 2, 16), ('before', True, 32), ('upload', 2, 32), ('before', False, 16),
        ('launch', 2, 16), 'then',
    ]  # fmt: skip
    assert (state.quick(), state.by_name) == (0, 2)


def test_another_executable_graph_is_launched_once_aimed_at(calls: list[Any]) -> None:
    state = state_of(calls)
    launch = function_of(state)
    state.made = SimpleNamespace(graph=1, graphExec=3)
    launch()
    aim(state)
    launch()
    assert [x for _verb, x, _stream in calls] == [2, 3]


@pytest.mark.parametrize('stream', [None, OTHER])
def test_what_is_to_be_compared_launches_in_its_place(calls: list[Any], stream: Any) -> None:
    """What was done first comes first: its comparison is one with the graph as recorded."""
    state = state_of(calls)
    launch = function_of(state)
    trial: Any = object()
    state.alterations = [Altered(name, trial, calls) for name in ('fused', 'edges')]
    ptr = 16 if stream is None else 32
    for expected in (('fused', state, ptr), ('edges', state, ptr), ('launch', 2, ptr)):
        aim(state)
        launch(stream)
        assert calls.pop() == expected
        state.alterations = state.alterations[1:]


def test_a_launch_is_refused_from_then_on(calls: list[Any]) -> None:
    state = state_of(calls)
    launch = function_of(state)
    state.bind()
    with pytest.raises(ClosedError, match=r'Graph\.launch\(\)'):
        launch()
    state.made = None
    with pytest.raises(ClosedError, match=r'Graph\.launch\(\)'):
        launch(OTHER)
    with pytest.raises(ClosedError, match=r'Graph\.upload\(\)'):
        upload(state, None)
    assert calls == []


def test_the_function_keeps_the_state_and_nothing_else_does(calls: list[Any]) -> None:
    state = state_of(calls)
    launch, kept = function_of(state), weakref.ref(state)
    gc.disable()
    try:
        del state
        launch(OTHER)
        assert calls == [('launch', 2, 32)] and kept() is not None
        del launch
        assert kept() is None
    finally:
        gc.enable()


def test_names_of_other_libraries_tell_ours(sim: Any) -> None:
    x = sim.arange(4)
    with ck.capture() as cap:
        x + 1
    with pytest.raises(AttributeError, match=r"a Graph has no attribute 'replay'; call launch\(\)"):
        cap.graph.replay()  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"a Graph has no attribute 'other'$"):
        _ = cap.graph.other  # type: ignore[attr-defined]
    assert not hasattr(cap.graph, 'other') and getattr(cap.graph, 'replay', 3) == 3

"""An event that a block has recorded says after the block why it can not be waited for."""

from __future__ import annotations

import gc
import linecache
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import capturekit as ck
from capturekit.guard import watch
from capturekit.model.source_line import Place

#: The line that records the event.
RECORDS = 'cap.stream.record(event)'
USES: dict[str, Callable[[Any], Any]] = {
    'synchronize': lambda event: event.synchronize(),
    'done': lambda event: event.done,
}


def recorded(cp: Any) -> tuple[Any, Any]:
    """A graph, and an event that its block has recorded."""
    event = cp.cuda.Event()
    with ck.capture() as cap:
        cp.zeros(4)
        cap.stream.record(event)
    return cap.graph, event


@pytest.mark.parametrize('use', USES)
def test_the_reason_is_said(cp: Any, use: str) -> None:
    graph, event = recorded(cp)
    with pytest.raises(ck.IsolationError, match='recorded in a capture that is over') as found:
        USES[use](event)
    at = found.value.location
    assert isinstance(at, Place)
    assert linecache.getline(__file__, at.line).strip().startswith(f"'{use}': lambda event")
    assert found.value.operation.startswith('Event.') and 'Record it again' in found.value.remedy
    assert isinstance(event, cp.cuda.Event)
    graph.launch()
    with pytest.raises(ck.IsolationError):
        USES[use](event)


@pytest.mark.parametrize('use', USES)
def test_recorded_again_it_is_a_usual_event(cp: Any, use: str) -> None:
    stream = cp.cuda.Stream(non_blocking=True)
    for record in (lambda event: stream.record(event), lambda event: event.record(stream)):
        _graph, event = recorded(cp)
        record(event)
        stream.synchronize()
        assert USES[use](event) in (None, True)
        assert type(event) is cp.cuda.Event


TAKING_HANDLES: dict[str, Callable[[Any, Any], Any]] = {
    'wait_event': lambda cp, event: cp.cuda.Stream(non_blocking=True).wait_event(event),
    'get_elapsed_time': lambda cp, event: cp.cuda.get_elapsed_time(event, event),
}


@pytest.mark.parametrize('use', TAKING_HANDLES)
def test_functions_that_take_the_handle(cp: Any, use: str) -> None:
    """They have the reason where wrappers are installed; without these the note of the recording has it."""
    graph, event = recorded(cp)
    with pytest.raises(cp.cuda.runtime.CUDARuntimeError, match='invalid argument'):
        TAKING_HANDLES[use](cp, event)
    with watch(), pytest.raises(ck.IsolationError, match='recorded in a capture that is over'):
        TAKING_HANDLES[use](cp, event)
    (note,) = (step for step in graph.recording.notes if 'nothing in the block waits for it' in step.text)
    assert note.at is not None and linecache.getline(__file__, note.at[1]).strip() == RECORDS
    graph.launch()


def test_an_event_that_is_waited_for_has_no_note(cp: Any) -> None:
    side = cp.cuda.Stream(non_blocking=True)
    for strict in (True, False):
        with ck.capture(strict=strict) as cap:
            x = cp.zeros(4)
            side.wait_event(cap.stream.record())
            with side:
                x += 1
            cap.join(side)
            with cap.fork(2) as lanes, lanes[1]:
                cp.zeros(4)
            if not strict:
                cp.cuda.Device().synchronize()
        assert not [step for step in cap.recording.notes if 'waits for it' in step.text]


def test_an_event_of_a_second_block_is_refused_there_first(cp: Any) -> None:
    """The class of the event asks CUDA only after the guard has let the call through."""
    _graph, event = recorded(cp)
    with ck.capture() as cap:
        cap.stream.record(event)
        for use in USES.values():
            with pytest.raises(ck.SynchronizationError):
                use(event)
    assert cap.graph.recording.outcome == 'good'
    with pytest.raises(ck.IsolationError):
        event.synchronize()


def test_the_event_dies_with_its_last_name(cp: Any) -> None:
    """Also one of a block that has failed."""
    graph, event = recorded(cp)
    with pytest.raises(LookupError), ck.capture() as cap:
        cap.stream.record(event)
        raise LookupError
    with pytest.raises(ck.IsolationError):
        event.synchronize()
    del cap
    gone = weakref.ref(event)
    del event
    gc.collect()
    assert gone() is None
    graph.launch()

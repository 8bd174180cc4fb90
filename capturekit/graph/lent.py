"""A graph that is embedded in another: the other one keeps what its nodes use."""

from __future__ import annotations

from typing import Any

from capturekit.graph.state import GraphState
from capturekit.launch.graph_memory import GraphMemory


class Lent:
    """Memory and host functions of a graph that is embedded in another; given back with the other graph's memory."""

    def __init__(self, memory: GraphMemory, made: Any) -> None:
        self._lease = memory.hold()
        self._made = made

    def __del__(self) -> None:
        self._lease.release()


def lend(state: GraphState, memory: GraphMemory) -> None:
    """Let ``memory``, another graph's, keep what this graph's nodes use: that graph holds a copy of this one."""
    with state.lock:
        state.must_be_open('Capture.embed()')
        memory.keep(Lent(state.memory, state.made))
        memory.join_turns(state.memory)
        memory.to_close |= state.memory.to_close

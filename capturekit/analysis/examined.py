"""What reports ask of a graph."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from capturekit.analysis.node_view import Look
from capturekit.launch.declared import Declared
from capturekit.launch.graph_memory import GraphMemory
from capturekit.launch.plan import Part, Plan
from capturekit.model.recording import Recording


class Examined(Protocol):
    """A graph that is examined, by one who holds its lock."""

    @property
    def memory(self) -> GraphMemory:
        """The memory that its nodes use."""

    @property
    def recording(self) -> Recording:
        """What the capture has noted."""

    @property
    def plan(self) -> Plan | None:
        """How it is launched step by step; None for one launch."""

    @property
    def declared(self) -> Mapping[int, Declared]:
        """What the user says that nodes touch, by their handles."""

    @property
    def off(self) -> set[int]:
        """The numbers of its disabled nodes."""

    def parts(self) -> list[Part]:
        """The graphs that are launched one after the other."""

    def look(self) -> Look:
        """Its nodes and edges."""

    def inside(self) -> AbstractContextManager[None]:
        """A block for capturekit's own calls."""

"""Hands fusion and lanes to the core, which imports neither. They are imported when they are first used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from capturekit.graph.extending import EXTENSIONS
from capturekit.graph.graph_facts import Ranges
from capturekit.graph.state import GraphState

if TYPE_CHECKING:
    from capturekit.fusion.report import Fused
    from capturekit.lanes.report import Relaned


def _relane(state: GraphState, launch: Callable[..., None], report: bool, rounds: int) -> Relaned:
    from capturekit.lanes.contest import relane

    return relane(state, launch, report, rounds)


def _relane_recorded(state: GraphState, written: Ranges) -> Relaned:
    from capturekit.lanes.new_order import relane_now

    with state.lock:
        return relane_now(state, True, written)


def _fuse(state: GraphState, launch: Callable[..., None], how: str, report: bool) -> Fused:
    from capturekit.fusion.fuse import fuse

    return fuse(state, launch, how, report)


def _fuse_recorded(
    state: GraphState, fast: bool, gathers: bool, also: tuple[Ranges, Sequence[Any]] | None = None
) -> Fused:
    from capturekit.fusion.fuse import fuse_now

    with state.lock:
        return fuse_now(state, True, fast, gathers, also)


def hand_in() -> None:
    """Let the core call the extensions."""
    EXTENSIONS.relane, EXTENSIONS.relane_recorded = _relane, _relane_recorded
    EXTENSIONS.fuse, EXTENSIONS.fuse_recorded = _fuse, _fuse_recorded

"""The arguments of ``capture()``, checked where it is called: TypeError and ValueError come before anything begins."""

from __future__ import annotations

from typing import Any

from capturekit.graph.executable import Graph
from capturekit.graph.update import check_update
from capturekit.launch.memory_group import MemoryGroup
from capturekit.model.host_reads import Rehearsal
from capturekit.model.ledger import LEGACY_HANDLES, PER_THREAD_HANDLE
from capturekit.model.rules import Mode
from capturekit.recorder.embed import EmbedTarget, target

_MODES = {mode.name.lower(): mode for mode in Mode}


def checked(
    stream: Any,
    strict: Any,
    mode: Any,
    pool: Any,
    rehearsal: Any,
    lines: Any,
    into: Any,
    after: Any,
    update: Any,
    check_races: Any,
    pieces: Any,
    lanes: Any,
    memory_limit: Any,
    fuse: Any,
    watch: Any,
    memory: Any,
) -> tuple[Mode, EmbedTarget | None, int | None]:
    """Check all arguments of ``capture()``. Returns its mode, the graph to record into, and :func:`check_lanes`'s."""
    _check_flag('strict', strict)
    found = _to_mode(mode)
    _check_stream(stream)
    _check_pool(pool)
    _check_rehearsal(rehearsal)
    _check_flag('lines', lines)
    if check_races is not None and not isinstance(check_races, bool):
        raise TypeError(f'check_races must be True, False or None, got {check_races!r}')
    to = None if into is None and after is None else target(into, after)
    _check_into(to, check_races, rehearsal)
    _check_update(update, to, rehearsal)
    _check_pieces(pieces, to, update)
    _check_flag('watch', watch)
    late = check_lanes(lanes, memory_limit, to, update)
    _check_fuse(fuse, to, update)
    _check_group(memory, {'pool': pool, 'into': to, 'update': update, 'pieces': pieces or None})
    return found, to, late


def _check_flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise TypeError(f'{name} must be True or False, got {value!r}')


def _to_mode(mode: Any) -> Mode:
    """Return a mode given by its name, or as it is."""
    found = _MODES.get(mode) if isinstance(mode, str) else mode
    if isinstance(found, Mode):
        return found
    raise (ValueError if isinstance(mode, str) else TypeError)(
        f"mode must be 'relaxed', 'thread_local' or 'global', got {mode!r}"
    )


def _check_stream(stream: Any) -> None:
    if stream is None:
        return
    if not (hasattr(stream, 'ptr') and hasattr(stream, 'wait_event')):
        raise TypeError(f'stream must be a CuPy stream or None, got {type(stream).__name__}')
    if stream.ptr in LEGACY_HANDLES:
        raise ValueError('the legacy default stream (Stream.null) can not be captured: leave `stream` out')
    if stream.ptr == PER_THREAD_HANDLE:
        raise ValueError('the per-thread default stream is another one in each thread: capture on a stream of your own')


def _check_pool(pool: Any) -> None:
    if pool is not None and not callable(getattr(pool, 'malloc', None)):
        raise TypeError(f'pool must be a cupy.cuda.MemoryPool or None, got {type(pool).__name__}')


def _check_rehearsal(rehearsal: Any) -> None:
    if rehearsal is not None and not isinstance(rehearsal, Rehearsal):
        raise TypeError(f'rehearsal must come from ck.rehearse(), got {type(rehearsal).__name__}')


def _check_into(into: EmbedTarget | None, check_races: bool | None, rehearsal: Rehearsal | None) -> None:
    """Refuse what into= can't do: capturekit neither sees the whole graph, for races, nor launches it, for checks."""
    if into is not None and check_races:
        raise ValueError('with into= capturekit does not see all of the graph: races are not looked for')
    if into is not None and rehearsal is not None:
        raise ValueError('a rehearsal is checked by launches of capturekit, and with into= your code launches')


def _check_pieces(pieces: Any, into: EmbedTarget | None, update: Any) -> None:
    """Refuse pieces= with into= or update=, which need one graph: pieces make several, with calls between them."""
    _check_flag('pieces', pieces)
    if pieces and (into is not None or update is not None):
        raise ValueError(
            'pieces=True makes several graphs with calls between them: it goes with neither into= nor update='
        )


def check_lanes(lanes: Any, memory_limit: Any, into: EmbedTarget | None, update: Any) -> int | None:
    """Return the bytes up to which memory is not used again: 0 for those that are found out; None without ``lanes``."""
    if lanes not in (None, 'auto'):
        raise ValueError(f"lanes is 'auto' or None, got {lanes!r}")
    if memory_limit is not None:
        if isinstance(memory_limit, bool) or not isinstance(memory_limit, int):
            raise TypeError(f'memory_limit is a number of bytes, got {memory_limit!r}')
        if memory_limit < 1:
            raise ValueError(f'memory_limit must be 1 or more, got {memory_limit}')
        if lanes is None:
            raise ValueError("memory_limit= goes with lanes='auto' only")
    if lanes is not None and (into is not None or update is not None):
        raise ValueError("lanes='auto' goes neither with into= nor with update=")
    return None if lanes is None else memory_limit or 0


def _check_fuse(fuse: Any, into: EmbedTarget | None, update: Any) -> None:
    """Refuse fuse= with into= or update=: the nodes of those graphs are others'."""
    if not isinstance(fuse, bool) and fuse != 'fast':
        raise TypeError(f"fuse must be True, False or 'fast', got {fuse!r}")
    if fuse and (into is not None or update is not None):
        raise ValueError('fuse= goes neither with into= nor with update=')


def _check_update(update: Any, into: EmbedTarget | None, rehearsal: Rehearsal | None) -> None:
    """Raise UpdateError or ClosedError, too: the graph is launched in several parts, or closed."""
    if update is None:
        return
    if not isinstance(update, Graph):
        raise TypeError(f'update must be a capturekit.Graph or None, got {type(update).__name__}')
    if into is not None or rehearsal is not None:
        raise ValueError('update= goes neither with into= nor with a rehearsal')
    check_update(update._state, 'ck.capture(update=...)')


def _check_group(memory: Any, others: dict[str, Any]) -> None:
    """Refuse a memory group beside what it can't be combined with: ``others`` are arguments, None if not given."""
    if memory is None:
        return
    if not isinstance(memory, MemoryGroup):
        raise TypeError(f'memory must be a capturekit.MemoryGroup or None, got {type(memory).__name__}')
    if found := [name for name, value in others.items() if value is not None]:
        raise TypeError(f'memory= can not be combined with {found[0]}=')

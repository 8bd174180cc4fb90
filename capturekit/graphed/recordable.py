"""Checks after a recording, for what no launch would repeat; and what has to be put back where one fails."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterable, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from capturekit.driver.cuda import Platform
from capturekit.guard import GUARD, OpenCapture
from capturekit.guard.arrays import root_of
from capturekit.launch.current_stream import current_for_now
from capturekit.launch.outside_arrays import arrays_at, nodes_of, words_of
from capturekit.launch.plan import Backup
from capturekit.model import errors
from capturekit.model.class_layout import attributes_of, bases_of, dictionary_of_class
from capturekit.model.cleanup import others_of
from capturekit.model.host_reads import Rehearsal
from capturekit.model.kept_values import contents_of
from capturekit.model.plain_values import a
from capturekit.model.pytree import take_apart
from capturekit.model.sparse import packed

_LEFT = 'The next call would find it as a launch leaves it, not as the eager call does'

#: How many levels deep arguments are searched for NumPy arrays.
_DEPTH = 9
_WITHOUT_ARRAYS = (str, bytes, int, float, type, ModuleType)


def only_arrays(cupy: Any) -> Any:
    """A function that recognises arrays in a result, and refuses streams and events with a TypeError."""
    array = cupy.ndarray
    handles = (cupy.cuda.stream._BaseStream, cupy.cuda.Event)  # which stand for objects of the driver

    def is_array(value: Any) -> bool:
        if issubclass(type(value), handles):
            raise TypeError(f'the result holds a {type(value).__name__}, which each call has to make or use anew')
        if type(value) is not array and issubclass(type(value), array):
            raise TypeError(f'the result holds {a(type(value))}, of a class that is derived from ndarray')
        return type(value) is array

    return is_array


def is_more(leaf: Any, array: type) -> bool:
    """Whether an array of a derived class has attributes, or is made by code of its class."""
    made_by = (dictionary_of_class(base).keys() for base in bases_of(type(leaf)) if base not in bases_of(array))
    return bool(attributes_of(leaf)) or any(not _MAKERS.isdisjoint(names) for names in made_by)


_MAKERS = frozenset({'__new__', '__init__', '__array_finalize__'})


def host_arrays(value: Any) -> list[Any]:
    """The NumPy arrays in arguments, also in containers and objects, but not in modules."""
    found: list[Any] = []
    seen: dict[int, Any] = {}
    level = [value]
    for _ in range(_DEPTH):
        below: list[Any] = []
        for one in level:
            if id(one) in seen or issubclass(type(one), _WITHOUT_ARRAYS):
                continue
            seen[id(one)] = one
            if issubclass(type(one), np.ndarray):
                found.append(root_of(one))
                continue
            contents = contents_of(one)
            below += attributes_of(one).values() if contents is None else contents[2]
        level = below
    return found


def values_of(result: Any, cupy: Any, known: Container[int]) -> Any:
    """The part of a result that is not arrays, in a form that can be compared; None if that can't be made.

    ``known``: the ids of objects whose attributes are compared in another way.
    """
    try:
        return take_apart(packed(result), only_arrays(cupy), lambda value: id(value) in known, name='the result')[1]
    except TypeError:
        return None


def found_again(then: Iterable[Any], now: Iterable[Any]) -> list[Any]:
    """The objects that are in the same place in both: those of two results that the function did not make itself."""
    found: list[Any] = []
    seen: set[tuple[int, int]] = set()
    todo = list(zip(then, now))
    while todo:
        one, other = todo.pop()
        if one is other:
            found.append(one)
        elif type(one) is type(other) and (id(one), id(other)) not in seen:
            seen.add((id(one), id(other)))
            todo += zip(_parts_of(one), _parts_of(other))
    return found


def _parts_of(value: Any) -> list[Any]:
    contents = contents_of(value)
    inside = [] if contents is None else [*contents[1], *contents[2]]
    return [*inside, *attributes_of(value).values()]


def must_be_same(then: Any, now: Any) -> None:
    """Raise if the values in a result that are not arrays differ from those in the eager run."""
    if then is not None and now != then:
        raise errors.UnsupportedCallError(
            'The result',
            rule='A value in it that is not an array differs from the eager run: an address, a time, an id.',
            remedy='Return what depends on the arguments alone.',
        )


def must_not_refuse(live: OpenCapture, made: int) -> None:
    """Raise if the function has caught a refusal, because it then did something else than it does eagerly."""
    if errors.MADE.count == made:
        return
    what = live.refused[-1] if live.refused else None
    at = f' ({what.at[0]}:{what.at[1]})' if what is not None and what.at else ''
    raise errors.UnsupportedCallError(
        'A function that catches the refusal of a call',
        rule=f'The call can not be recorded{at}, and the function catches an exception that eager runs do not raise.'
        + (f' It was {what.text}' if what is not None else ''),
        remedy='Do that outside of the function.',
    )


def must_lie_here(cupy: Any, devices: Iterable[int]) -> None:
    """Raise if arguments lie on another device than the current one."""
    here = int(cupy.cuda.get_device_id())
    for device in devices:
        if device not in (here, -1):  # -1: memory that CuPy knows of no device
            raise errors.UnsupportedCallError(
                f'An array of device {device} in a call on device {here}',
                rule='A launch brings arguments to the current device, and the function finds them there.',
                remedy='Make their device current before the call: `with x.device: ...`.',
            )


def must_reach_known_arrays(live: OpenCapture, known: Sequence[Any]) -> None:
    """Raise if a launch that a check may stop half way changes arrays that can't be put back then."""
    plan, memory, device = live.parts.plan, live.memory, live.platform.device
    if plan is None or memory is None or (plan.checks is None and not plan.seams):
        return
    with GUARD.inside:
        words = words_of(device, [graph for part in plan.parts for graph in part.graphs if graph])
    blocks = {int(array.data.mem.ptr) for array in known}
    if any(int(data.mem.ptr) not in blocks for data in arrays_at(words, memory, live.platform.cupy.ndarray)):
        raise errors.UnsupportedCallError(
            'Host reads in a function that reaches arrays in a way that is not followed',
            rule='A launch that a check stops has changed them already, and the eager run would change them again.',
            remedy='Pass these arrays as arguments; or read after the last change.',
        )


def must_draw_later(live: OpenCapture) -> None:
    """Raise if the host has drawn random numbers while a function was recorded: a launch that follows draws others."""
    if live.host_calls.launch is not None and live.drawn:
        raise errors.UnsupportedCallError(
            'Random numbers that the host draws, beside numbers that it reads and reckons with',
            rule='The function is recorded in pieces.',
        )


def must_leave_nothing(live: OpenCapture) -> None:
    """Raise if the function leaves another stream or device current, or keeps a stream or event that it made."""
    caller, cupy = live.caller, live.platform.cupy
    assert caller is not None
    now = cupy.cuda.get_current_stream
    left = any(now(device).ptr != stream.ptr for device, stream in caller.elsewhere.items())
    if left or now().ptr != live.origin.ptr or GUARD.state.current_device() != live.origin_device:
        raise errors.UnsupportedCallError(
            'The function makes another stream or device current, and leaves it so',
            rule=f'{_LEFT}.',
            remedy='Use `with stream:` and `with device:`.',
        )
    for reference in caller.made:
        held = [reference()]
        if held[0] is None:
            continue
        ours = [*live.events, *live.streams.values(), live.awaited_event]
        if others_of(held) > sum(one is held[0] for one in ours) * 2:
            raise errors.UnsupportedCallError(
                f'The function makes a {type(held[0]).__name__} and keeps it',
                rule=f'{_LEFT}.',
                remedy='Make it before, and pass it; or drop it before the function returns.',
            )


def wait_for_others(platform: Platform, rehearsal: Rehearsal) -> None:
    """Wait for the device if parts of the call run while it is recorded, so that they come after earlier work.

    Wait also if CuPy has copied from the host: before the next such copy CuPy asks the events of earlier ones, which a
    capture forbids. So all of them must have happened before.
    """
    cuda = platform.cupy.cuda
    if rehearsal.seams or rehearsal.records_events:
        GUARD.waits.for_devices(platform, [int(cuda.runtime.getDevice())])
    if rehearsal.records_events:
        cuda.alloc_pinned_memory(1)  # which drops the events that have happened


def take_back(live: OpenCapture, stream: Any) -> None:
    """Put back what parts of a failed recording wrote outside of the graph's memory while it was made."""
    cuda = live.platform.cupy.cuda
    assert live.parts.plan is not None
    with current_for_now(cuda, stream):
        live.parts.plan.put_back(live.host_calls.backups, None)
        if live.host_calls.outside is not None:
            live.host_calls.outside.put_back()
    here = int(cuda.runtime.getDevice())
    GUARD.waits.for_devices(live.platform, [here])  # other streams of the caller may read this next


def needed_backups(live: OpenCapture) -> list[Backup]:
    """The backups of a recording whose arrays its launches may write; all of them, where that can't be told."""
    backups, plan = live.host_calls.backups, live.parts.plan
    if plan is None or not backups:
        return backups
    copies = {one.node for one in backups}
    with GUARD.inside:
        graphs = [graph for part in plan.parts for graph in part.graphs if graph]
        nodes = [info for info in nodes_of(live.platform.device, graphs) if info.handle not in copies]
    if any(info.kind == 'kernel' and not info.words for info in nodes):
        return backups
    addresses = sorted({word for info in nodes for word in info.words} | live.host_calls.given)
    return [one for one in backups if _is_touched(one.array.data.mem, addresses)]


def _is_touched(block: Any, addresses: list[int]) -> bool:
    """Whether one of these addresses lies in a block of memory, or at its end."""
    at = bisect_left(addresses, int(block.ptr))
    return at < len(addresses) and addresses[at] <= int(block.ptr) + int(block.size)

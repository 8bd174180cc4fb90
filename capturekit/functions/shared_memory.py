"""Arrays of a call that share memory in a way that a recording can not follow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from capturekit.functions.array_blocks import are_whole
from capturekit.functions.given_call import Given
from capturekit.functions.kinds import clear_of
from capturekit.functions.variant import Variant
from capturekit.launch.array_extent import extent


def shared_by(given: Given, variant: Variant, state: Sequence[Any]) -> str:
    """Say which arrays of a call share memory in a way that a recording can't follow; '' if none do."""
    arrays = () if variant.environment is None else variant.environment.arrays()
    empty = [one for one in arrays if not one.size]
    if any(leaf is one for leaf in given.leaves for one in empty):
        return 'an argument without elements is reached in another way, too'
    if not clear_of([leaf.data.ptr for leaf in given.leaves], given.kind.reach, variant.outside):
        return 'an argument lies on an array that the function also reaches otherwise'
    if variant.far and (variant.state != 'eager' or variant.shares) and not are_whole(given.leaves):
        return 'an argument is a part of another array, and the function may work beyond that part'
    if state and (
        share_memory(state, [*given.leaves, *empty], variant.outside) or (variant.far and not are_whole(state))
    ):
        return 'an array that the function replaces shares its memory with another one'
    return ''


def share_memory(arrays: Sequence[Any], others: Sequence[Any], outside: Sequence[tuple[int, int]]) -> bool:
    """Whether one of ``arrays`` overlaps another one, one of ``others`` or one of the extents ``outside``."""
    met = [*map(id, arrays), *map(id, others)]
    if len({*met}) < len({*met[len(arrays) :]}) + len(arrays):
        return True  # without elements, too
    own = [extent(one) for one in arrays]
    spans = [*own, *[extent(one) for one in others], *outside]
    return any(
        low < end and start < high
        for number, (low, high) in enumerate(own)
        for start, end in (*spans[:number], *spans[number + 1 :])
    )

"""Workspaces of cuBLAS: how many there are, within which bytes, and whose turn it is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from capturekit.launch.workspaces import WORKSPACE_BYTES, Workspaces, count_of


@pytest.mark.parametrize(
    ('late', 'count'),
    [(None, 1), (0, 80), (1, 1), (4 * WORKSPACE_BYTES, 2), (16 * WORKSPACE_BYTES, 8), (1 << 40, 128)],
)
def test_half_of_a_limit_is_for_them(late: int | None, count: int) -> None:
    runtime = SimpleNamespace(memGetInfo=lambda: (0, 80 << 30))
    cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))
    assert count_of(cupy, late) == count
    assert count_of(cupy, late, stay=True) == min(count, 32)


def test_a_small_device_has_fewer() -> None:
    runtime = SimpleNamespace(memGetInfo=lambda: (0, 8 << 30))
    assert count_of(SimpleNamespace(cuda=SimpleNamespace(runtime=runtime)), 0) == 8


def test_they_take_turns_and_are_counted() -> None:
    taken: list[int] = []

    def grow(size: int) -> Any:
        taken.append(size)
        return SimpleNamespace(ptr=1000 * len(taken))

    made = Workspaces(grow, 2)
    assert [made.next(7)[0] for _ in range(5)] == [1000, 2000, 1000, 2000, 1000]
    assert made.next(8) == (3000, WORKSPACE_BYTES)
    assert made.taken == 3 * WORKSPACE_BYTES == sum(taken)
    made.clear()
    assert made.taken == 0

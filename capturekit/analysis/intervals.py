"""Intervals of time: joined, and how much of them lies at the same moments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Interval = tuple[float, float]


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """Intervals joined where they touch."""
    found: list[Interval] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def shared(one: Sequence[Interval], other: Sequence[Interval]) -> float:
    """How long both of two lists of merged intervals go on at once."""
    total, a, b = 0.0, 0, 0
    while a < len(one) and b < len(other):
        total += max(0.0, min(one[a][1], other[b][1]) - max(one[a][0], other[b][0]))
        if one[a][1] < other[b][1]:
            a += 1
        else:
            b += 1
    return total


def most_at_once(intervals: Iterable[Interval]) -> int:
    """The largest number of intervals that share a moment. An interval does not share its end with one that begins."""
    moments = sorted(moment for start, end in intervals for moment in ((start, 1), (end, -1)) if end > start)
    most = now = 0
    for _at, change in moments:
        now += change
        most = max(most, now)
    return most

"""Work that is recorded and fused, launched, and compared with an eager run to the bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import capturekit as ck

SAME = 'the same as without fused kernels'


def fused(work: Callable[[], Sequence[Any]], changed: Sequence[Any] = ()) -> ck.Capture:
    """The capture of work, after two launches have given the bits of an eager run.

    ``changed``: arrays that the work changes; each run finds in them what is there now.
    """
    before = [one.copy() for one in changed]

    def again() -> None:
        for one, value in zip(changed, before):
            one[...] = value

    expected = [one.get().tobytes() for one in (*work(), *changed)]
    again()
    with ck.capture(fuse=True) as cap:
        found = work()
    for _ in range(2):
        for one in found:
            one.fill(0)
        again()
        cap.graph.launch()
        assert [one.get().tobytes() for one in (*found, *changed)] == expected, cap.fused
    assert cap.fused.compared in ('', SAME), cap.fused
    return cap

"""The frames in which threads are."""

from __future__ import annotations

import threading

from capturekit.model.source_line import other_threads


def test_own_frames_are_not_among_those_of_other_threads() -> None:
    assert threading.get_ident() not in other_threads()

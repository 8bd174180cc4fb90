"""The frames of threads, which hold what their functions have."""

from __future__ import annotations

import gc
import threading
import weakref

from capturekit.model.source_line import other_threads


class _Thing:
    pass


def test_who_asks_for_other_threads_frames_keeps_none_of_its_own() -> None:
    leave, thing = threading.Event(), _Thing()
    thread = threading.Thread(target=leave.wait)
    thread.start()

    def ask(held: _Thing) -> int:
        frames = other_threads()
        return len([one for one in frames if one == thread.ident])

    gc.disable()
    try:
        alive = weakref.ref(thing)
        assert ask(thing) == 1
        del thing
        assert alive() is None
    finally:
        gc.enable()
        leave.set()
        thread.join()

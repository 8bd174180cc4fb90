"""What new arrays hold while a capture is open: nothing has been computed, and it must show."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import runtime
from .current import get_current_stream_ptr


def is_recording() -> bool:
    """Whether the current stream is being captured, as far as it will say."""
    try:
        return runtime.streamIsCapturing(get_current_stream_ptr())
    except RuntimeError:
        return False


def poison(view: NDArray[Any]) -> None:
    """Fill with a visible constant: NaN, the smallest signed int, the largest unsigned int, True."""
    kind = view.dtype.kind
    if kind == 'f':
        view[...] = np.nan
    elif kind == 'c':
        view[...] = complex(np.nan, np.nan)
    elif kind == 'i':
        view[...] = np.iinfo(view.dtype).min
    elif kind == 'u':
        view[...] = np.iinfo(view.dtype).max
    elif kind == 'b':
        view[...] = True
    else:
        view[...] = np.frombuffer(b'\xff' * view.dtype.itemsize, view.dtype)[0]

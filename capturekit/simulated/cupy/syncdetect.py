"""``cupy._core.syncdetect``: said before every device-to-host read and before ``Device.synchronize()``."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

from . import runtime_calls


class DeviceSynchronized(RuntimeError):
    """Raised when device synchronization is detected while disallowed."""


def _is_allowed() -> bool:
    return runtime_calls.state.thread.allowed


def _declare_synchronize() -> None:
    if not _is_allowed():
        raise DeviceSynchronized('Device synchronization was detected while disallowed.')


@contextlib.contextmanager
def allow_synchronize(allow: bool) -> Iterator[None]:
    warnings.warn(
        'cupyx.allow_synchronize will be removed in future releases as it '
        'is not possible to reliably detect synchronizations.',
        stacklevel=3,
    )
    old = _is_allowed()
    runtime_calls.state.thread.allowed = allow
    try:
        yield
    finally:
        runtime_calls.state.thread.allowed = old

"""The errors for calls on a graph that can not be done."""

from __future__ import annotations

from capturekit.model.errors import ClosedError, CudaCallError, UpdateError
from capturekit.model.source_line import here


def closed(call: str) -> ClosedError:
    """The error for a call on a graph that is closed, or that another graph has taken over."""
    rule = (
        'The graph is closed: its memory was given back by close() or by a change that ended halfway, '
        'or another graph took it over.'
    )
    return ClosedError(call, location=here(), rule=rule, remedy='Close it later, or record again.')


def refused(call: str, rule: str, remedy: str, error: CudaCallError | None = None) -> UpdateError:
    """The error for a change that can not be made, with CUDA's error if there is one."""
    name = '' if error is None else getattr(error.code, 'name', str(int(error.code)))
    return UpdateError(call, location=here(), rule=rule, remedy=remedy, cuda_error=name)

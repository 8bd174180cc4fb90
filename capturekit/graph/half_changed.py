"""A change that ends halfway closes the graph: half changed, it would launch what nobody has asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from capturekit.graph.refused import refused
from capturekit.graph.state import GraphState
from capturekit.model.errors import CudaCallError


class HalfChangedError(Exception):
    """What was tried could not be taken back, because of ``cause``. Whoever catches this closes the graph."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(cause)
        self.cause = cause


@contextmanager
def taking_back() -> Iterator[None]:
    """Raise a HalfChangedError where the block, which takes something back, fails: the graph is still in use."""
    try:
        yield
    except BaseException as error:
        raise HalfChangedError(error) from error


@contextmanager
def whole_or_closed(state: GraphState, call: str) -> Iterator[None]:
    """Close the graph if the block ends by an exception, which says so. The caller holds the graph's lock."""
    try:
        yield
    except BaseException as error:
        if state.made is None:
            raise
        _close(state, error)
        if isinstance(error, CudaCallError):
            rule = f'CUDA refuses halfway ({error}). The graph is closed: half changed, it would do something else.'
            raise refused(call, rule, 'Record again.', error) from error
        error.add_note(f'capturekit: {call} ended halfway, and the graph is closed: it would do something else.')
        raise


def _close(state: GraphState, error: BaseException) -> None:
    try:
        state.destroy()
    except Exception as fault:
        error.add_note(f'and then, closing the graph: {fault!r}')

"""Functions of CuPy that iterate until a number is small enough, which the host reads at each step.

With recorded decisions a launch could only repeat as many steps as the recording took, and wherever sums are made by
atomic additions the numbers are others at each run. So such a function is called by the host between two parts, where
there may be parts; elsewhere it is recorded with its reads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from capturekit.guard.host_calls import HostCalls
from capturekit.guard.state import State

NAME = 'cupyx.scipy.sparse.linalg.eigsh'
_DTYPES, _WHICH = 'fdFD', ('LM', 'LA', 'SA')


class _Problem(NamedTuple):
    """An eigenvalue problem: the operator, the arrays and matrices that it is made of, and the other arguments."""

    operator: Any
    given: list[Any]
    rest: dict[str, Any]


class Iterations:
    """Lets the host call functions that iterate, between two parts."""

    def __init__(self, state: State, host_calls: HostCalls) -> None:
        self.state = state
        self.host_calls = host_calls

    def eigsh(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Find eigenvalues between two parts. Its first vector is drawn like any other random numbers."""
        live, rehearsal = self.state.mine(), self.state.rehearsals.get(threading.get_ident())
        by_host = rehearsal is not None and rehearsal.pieces
        if live is not None:
            by_host = live.memory is not None and live.host_calls.stream is not None
        problem = self._problem(*args, **kwargs) if by_host else None
        if problem is None:
            return original(*args, **kwargs)
        from capturekit.model.operators import with_operands  # only these calls need it

        if problem.rest.get('v0') is None:
            operator = problem.operator
            drawn = self.state.platform.cupy.random.random((operator.shape[0],))
            problem.rest['v0'] = drawn.astype(operator.dtype)

        def found(given: list[Any], **rest: Any) -> Any:
            with self.state.inside:
                return original(with_operands(problem.operator, iter(given)), **rest)

        return self.host_calls.seam(NAME, found, problem.given, **problem.rest)

    def _problem(self, *args: Any, **kwargs: Any) -> _Problem | None:
        """The problem of a call; None if CuPy refuses it, or if code of somebody else would run in it."""
        from capturekit.model.operators import operands  # only these calls need it

        rest: dict[str, Any] = {**dict(zip(('a', 'k'), args)), **kwargs}
        operator, k, which = rest.pop('a', None), rest.get('k', 6), rest.get('which', 'LM')
        given = operands(operator, self.state.platform.cupy.ndarray)
        if len(args) > 2 or given is None or operator.dtype.char not in _DTYPES or which not in _WHICH:
            return None
        shape = tuple(operator.shape)
        square = len(shape) == 2 and shape[0] == shape[1]
        return _Problem(operator, given, rest) if square and type(k) is int and 0 < k < shape[0] else None

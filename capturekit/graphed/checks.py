"""Launches that are checked: beside an eager run (``check=``), and after the call has returned (``checks='later'``).

The call returns the result of the launch. What the eager run changes outside of its arguments is put back, and it gets
the random numbers that the launch drew. So a call that is checked does what any other call does, and takes longer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from capturekit.graphed.array_blocks import elsewhere, same_array, spans
from capturekit.graphed.variant import Variant, opaque
from capturekit.guard import GUARD
from capturekit.launch.current_stream import current_for_now
from capturekit.launch.outside_arrays import arrays_at, whole_block, words_of
from capturekit.model import errors
from capturekit.model.counted import counted
from capturekit.model.host_reads import Rehearsal
from capturekit.model.pytree import take_apart
from capturekit.model.skipped_exits import Lock
from capturekit.model.source_line import Place, here
from capturekit.model.sparse import packed

#: By the bytes of a real number: how far numbers may differ, relative to the largest. Sums may add in another order.
TOLERANCES = {2: 1e-2, 4: 1e-4, 8: 1e-9}

_BROKEN = 'The function depends on more than its arguments, or changes more: pass that too, or leave pure=True out.'
_FAULT = 'This is a fault of capturekit: please report it. Further calls of this kind run eagerly.'


class Comparison:
    """One launch and the eager run that it is compared with; made before the launch, it copies what both begin with."""

    def __init__(self, fn: Callable[..., Any], variant: Variant, given: Any) -> None:
        self._fn = fn
        self._variant = variant
        self._given = given
        self._exact = variant.untried > 0
        self._cupy = given.platform.cupy
        assert variant.graph is not None
        reached = [int(one.data.device_id) for one in variant.reached]
        self._devices = {*variant.graph._state.recording.devices, *reached}
        self._wait()
        self._memory = self._outside()
        self._outside_before = [block.copy() for block in self._memory]
        self._before = self._copies(given.leaves)

    def compare(self, result: Any) -> None:
        """Run eagerly and compare. If it raises CheckError, arguments and outside memory are as before the call."""
        self._wait()
        launched = self._found(result, self._given.leaves)
        outside = [block.copy() for block in self._memory]
        self._put(self._memory, self._outside_before)
        copies = self._copies(self._before)
        self._wait()
        difference = ''
        try:
            answer = self._eagerly(copies)
            self._wait()
            difference = difference_between(launched, self._found(answer, copies), self._exact) or self._of_outside(
                outside
            )
        except Exception as error:
            self._fail(f'The eager run that it was compared with raised {error!r}', error)
        finally:
            self._put(self._memory, outside)
            self._wait()
        if difference:
            self._fail(difference)

    def _eagerly(self, leaves: Sequence[Any]) -> Any:
        args, kwargs = self._given.arguments(leaves)
        with GUARD.rehearsing(self._given.platform, Rehearsal(), self._variant.drawn()):
            return self._given.call(self._fn, args, kwargs, leaves)

    def _fail(self, difference: str, cause: BaseException | None = None) -> None:
        self._put(self._memory, self._outside_before)
        self._put(self._given.leaves, self._before)
        self._wait()
        code = getattr(self._fn, '__code__', None)
        at = '' if code is None else f' ({Place(code.co_filename, code.co_firstlineno, "").short})'
        name = getattr(self._fn, '__qualname__', repr(self._fn))
        pure = self._variant.environment is None
        raise errors.CheckError(
            f'A launch of {name}{at} gave another result than the function',
            location=here(),
            rule=f'{difference}.',
            remedy=_BROKEN if pure else _FAULT,
        ) from cause

    # Memory

    def _wait(self) -> None:
        """Wait for the devices that the graph works on, and for those of the arrays that the function reaches: the
        function or its caller may have left work on any of them."""
        here = int(self._cupy.cuda.runtime.getDevice())
        GUARD.waits.for_devices(self._given.platform, self._devices | {here})

    def _outside(self) -> list[Any]:
        """The memory outside of the graph and the arguments that the launch may change, as arrays of bytes."""
        variant, graph = self._variant, self._variant.graph
        assert graph is not None
        plan = variant.plan
        graphs = [one for part in plan.parts for one in part.graphs if one] if plan else [graph._state.made.graph]
        with GUARD.inside:
            words = words_of(self._given.platform.device, graphs)
        found = arrays_at(words, graph._state.memory, self._cupy.ndarray)
        found += [array.data for array in variant.reached if array.size]
        blocks = {int(data.mem.ptr): data for data in found}
        return [whole_block(self._cupy, data) for data in blocks.values()]

    def _copies(self, leaves: Sequence[Any]) -> list[Any]:

        def copied(first: Any, low: int, high: int) -> Any:
            whole = self._cupy.ndarray((max(high - low, 1),), 'u1', first.data + (low - int(first.data.ptr)))
            return (whole.copy() if high > low else whole).data

        return elsewhere(leaves, copied)

    def _put(self, arrays: Sequence[Any], kept: Sequence[Any]) -> None:
        for array, before in zip(arrays, kept):
            same_array(array)[...] = before

    # What both have changed

    def _found(self, result: Any, leaves: Sequence[Any]) -> tuple[list[tuple[str, Any]], Any]:
        """The arrays of the result and then of the arguments, on the host, with names; and the rest of the result."""
        held = self._variant.held  # the same at each call; in the place of other objects each run makes its own
        known = lambda value: opaque(value) and any(value is one for one in held)  # noqa: E731
        arrays, form = take_apart(packed(result), self._given.is_array, known, name='the result')
        named = [(f'result array {number}' if number else 'the result', array) for number, array in enumerate(arrays)]
        named += [(f'array {number} of the arguments', array) for number, array in enumerate(leaves, 1)]
        return [(name, array.get()) for name, array in named], form

    def _of_outside(self, launched: list[Any]) -> str:
        for block, after in zip(self._memory, launched):
            differs = block.copy() != after  # a copy is here, wherever the block is
            for low, high, _ in spans(list(enumerate(self._given.leaves))):  # the eager run has changed copies of these
                start = int(block.data.ptr)
                differs[max(low - start, 0) : max(high - start, 0)] = False
            wrong = int(differs.sum())
            if wrong:
                return f'An array that the function does not get as an argument differs in {counted(wrong, "byte")}'
        return ''


def difference_between(launched: tuple[list[Any], Any], eager: tuple[list[Any], Any], exact: bool = False) -> str:
    """The first difference, in words; '' if there is none. ``exact``: also a difference of a single bit counts."""
    if launched[1] != eager[1]:
        return 'What the result holds besides arrays is something else in the eager run'
    for (name, mine), (_name, theirs) in zip(launched[0], eager[0]):
        if (mine.shape, mine.dtype) != (theirs.shape, theirs.dtype):
            return (
                f'{name} is of shape {mine.shape} and {mine.dtype}, and in the eager run of shape {theirs.shape} and '
                f'{theirs.dtype}'
            )
        wrong = _bits(mine) != _bits(theirs) if exact else ~_equal(mine, theirs)
        count = int(np.count_nonzero(wrong))
        if count:
            first = tuple(int(n) for n in np.argwhere(wrong)[0])
            return (
                f'{name} differs in {counted(count, "element")} of {mine.size}, {_largest(mine[wrong], theirs[wrong])}'
                f'at {list(first)} it is {mine[first]} and in the eager run {theirs[first]}'
            )
    return ''


def _bits(array: Any) -> Any:
    return np.ascontiguousarray(array).view(f'V{array.itemsize}').reshape(array.shape)


def _equal(mine: Any, theirs: Any) -> Any:
    if mine.dtype.kind not in 'fc':
        return np.asarray(mine == theirs)
    both = np.isnan(mine) & np.isnan(theirs)
    size = mine.dtype.itemsize // (2 if mine.dtype.kind == 'c' else 1)
    finite = np.abs(theirs[np.isfinite(theirs)])
    bound = TOLERANCES.get(size, 1e-9) * (float(finite.max()) if finite.size else 0.0)
    with np.errstate(invalid='ignore', over='ignore'):
        return both | (mine == theirs) | (np.abs(mine - theirs) <= bound)


def _largest(mine: Any, theirs: Any) -> str:
    if mine.dtype.kind not in 'fciu':
        return ''
    with np.errstate(invalid='ignore', over='ignore'):
        apart = np.abs(mine.astype('c16' if mine.dtype.kind == 'c' else 'f8') - theirs)
    finite = apart[np.isfinite(apart)]
    return f'by up to {float(finite.max()):.6g}; ' if finite.size else ''


class Call:
    """A call that returned before the checks of its launch were done (``checks='later'``)."""

    def __init__(self, variant: Variant, launch: int, stream: Any) -> None:
        self._variant = variant
        self._launch = launch
        self._stream = stream
        self._device = GUARD.state.current_device()
        self._error: errors.AssumptionError | None = None
        self._settled = False
        #: Of two threads that ask, the second one goes on when the call is undone: it may be about to launch.
        self._lock = Lock()
        variant.unsettled.add(self)

    def settle(self) -> None:
        """Wait for the checks of this call. Raises AssumptionError if one failed: its results are not valid."""
        with self._lock:
            if not self._settled:
                self._wait()
        if self._error is not None:
            raise self._error

    def _wait(self) -> None:
        plan = self._variant.plan
        if plan is not None and plan.checks is not None:
            made = len(plan.checks.made)
            self._error = plan.checks.wait(self._launch, made, self._stream.synchronize)
            if self._error is not None and plan.launches == self._launch:
                with GUARD.on(self._device), current_for_now(GUARD.state.platform.cupy.cuda, self._stream):
                    self._variant.restore(self._error)
        self._settled = True  # it stays in ``unsettled``, which another thread may be going through

    def holds(self) -> bool:
        """Wait for the checks; True if the results are right."""
        try:
            self.settle()
        except errors.AssumptionError:
            return False
        return True


class Earlier:
    """The call whose checks are not done (``checks='later'``): if one fails, it is undone before the next call."""

    def __init__(self, later: bool) -> None:
        self.call: Call | None = None
        #: Calls of all kinds wait for each other by this; None: those of one kind only.
        self.lock = Lock() if later else None
        #: The last call of each thread.
        self.last = Last()

    def alone(self) -> AbstractContextManager[Any]:
        """A block in which no other thread begins a call that has to wait for the earlier one."""
        return nullcontext() if self.lock is None else self.lock

    def finish(self) -> None:
        """Undo the call if its checks fail: the next one begins."""
        if self.lock is None:
            return
        with self.lock:
            call = self.call
            if call is not None:
                call.holds()
                if self.call is call:  # it stays if Ctrl-C comes first
                    self.call = None
        self.last.call = None


class Last(threading.local):
    """The last call of a thread that returned before its checks were done."""

    call: Call | None = None

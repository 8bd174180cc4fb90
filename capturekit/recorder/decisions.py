"""The methods of a capture with which the device decides, at every launch, which recorded work runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from capturekit.guard import OpenCapture
from capturekit.recorder.told import told

if TYPE_CHECKING:
    from capturekit.recorder.conditional import Branch, Branches, Loop

_State = TypeVar('_State')


class Decisions:
    """The part of :class:`capturekit.Capture` that decides on the device."""

    _live: OpenCapture | None
    _must_be_open: Callable[[str], None]

    @told
    def cond(
        self, condition: Any, then: Callable[..., _State], otherwise: Callable[..., _State], *operands: Any
    ) -> _State:
        """Record two functions of which the device runs one, and return the result of the one that it runs.

        ``answer = cap.cond(root > 1, lambda: root * 10, lambda: -root)``. Both are called once, while recording, with
        ``operands``. They return arrays, numbers, or tuples, lists, dicts and dataclasses of these, of the same form,
        shapes and dtypes. The result has arrays of its own, which every launch fills; numbers become arrays of shape
        (). ``condition`` and the exceptions are those of :meth:`while_`.

        Raises:
            TypeError: ``then`` or ``otherwise`` can't be called, or what they return differs; the text names where.
        """
        from capturekit.recorder.returned import conditional

        return conditional(self._deciding('cond()'), condition, then, otherwise, operands)  # type: ignore[no-any-return]

    @told
    def loop(
        self,
        condition: Callable[[_State], Any],
        body: Callable[[_State], _State],
        state: _State,
        *,
        limit: int | None = None,
    ) -> _State:
        """Record a function that the device runs again and again, and return the last state.

        ``x = cap.loop(lambda x: x < 1000, lambda x: x * 2, x, limit=100)``. The device runs ``state = body(state)`` as
        long as ``condition(state)`` is not 0, ``limit`` times at most. Both functions are called while recording: the
        body once, the condition twice. ``state`` is an array, a number, or tuples, lists, dicts and dataclasses of
        these, and ``body`` returns the same form, shapes and dtypes. Every launch begins with the values that
        ``state`` has then, and does not change it. Numbers become arrays of shape ().

        Raises:
            TypeError: ``condition`` or ``body`` can't be called; what they return is not as described. And all that
                :meth:`while_` raises.
        """
        from capturekit.recorder.returned import repeated

        return repeated(self._deciding('loop()'), condition, body, state, limit)  # type: ignore[no-any-return]

    def while_(self, condition: Any, *, limit: int | None = None) -> Loop:
        """Record a block that the device runs again and again, as long as ``condition`` is not 0.

        ``with cap.while_(going) as loop:``. ``condition`` is a CuPy array of one element, of a boolean or an integer
        dtype, that the graph computes. The device reads it before the first pass and after each pass. A pass hands
        values to the next one, the condition too, by writing them in place (or see :meth:`loop`). At most ``limit``
        passes are made; ``loop.passes`` counts them. The block may fork, join, and hold other decisions. All lanes must
        be joined before it and at its end. CUDA C++ Programming Guide, "Conditional Graph Nodes".

        An array that the block makes has a value only in it: other recorded work can't use it. What is refused at the
        end of the block is taken out of the graph, and the capture goes on.

        Raises:
            TypeError, ValueError: ``condition`` or ``limit`` is not as described.
            UnjoinedError: lanes are open. ClosedError: the capture is not open.
            UnsupportedCallError: the block has host functions, host reads, random numbers drawn by the host, or calls
                that run between two graphs; at its end a name, an attribute or an item that held another array, or a
                number, holds a new array (with ``strict=False`` a RuntimeWarning); nothing can change the condition;
                or the call stands without ``with``.
        """
        from capturekit.recorder.conditional import loop

        return loop(self._deciding('while_()'), condition, limit, sys._getframe(1))

    def if_(self, condition: Any) -> Branch:
        """Record a block that the device runs if ``condition`` is not 0: ``with cap.if_(condition):``.

        The condition, the rules of the block and the exceptions are those of :meth:`while_`."""
        from capturekit.recorder.conditional import branch

        return branch(self._deciding('if_()'), condition, sys._getframe(1))

    def if_else(self, condition: Any) -> Branches:
        """Record two blocks of which the device runs one: ``with cap.if_else(condition) as (then, otherwise):``, and
        in it ``with then:`` and ``with otherwise:``. Nothing may be recorded outside of them. Condition, rules and
        exceptions are those of :meth:`while_`."""
        from capturekit.recorder.conditional import branches

        return branches(self._deciding('if_else()'), condition, sys._getframe(1))

    def switch(self, index: Any, count: int) -> Branches:
        """Record ``count`` blocks, of which the device runs number ``index``, or none if there is no such block.

        ``with cap.switch(index, 3) as cases:``, and in it ``with cases[0]:`` and so on. ``index`` is a CuPy array like
        the condition of :meth:`while_`; rules and exceptions are the same.
        """
        from capturekit.recorder.conditional import cases

        return cases(self._deciding('switch()'), index, count, sys._getframe(1))

    @told
    def _deciding(self, call: str) -> OpenCapture:
        self._must_be_open(call)
        assert self._live is not None
        return self._live

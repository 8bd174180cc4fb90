"""One call of a graphed function: its arguments taken apart, and put together again with other arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from capturekit.driver.cuda import Platform
from capturekit.functions.carried_state import CarriedState
from capturekit.functions.kinds import Kind
from capturekit.functions.number_arguments import CallNumbers
from capturekit.model.pytree import put_together
from capturekit.model.sparse import unpacked


@dataclass
class Given:
    """One call: its arguments, the arrays in them, all other values in them, and its kind."""

    platform: Platform
    kind: Kind
    args: Any
    kwargs: Any
    leaves: list[Any]
    form: Any
    numbers: CallNumbers | None = None
    #: The Python state that the function changes; its arrays come after the ``own`` arrays of the arguments.
    state: CarriedState | None = None
    own: int = 0

    def beginning_with(self, state: CarriedState | None) -> Given:
        """The same call, with the arrays that the state holds now added after those of the arguments."""
        if state is None and self.state is None:
            return self
        rooms = 0 if self.numbers is None else 1
        own = self.own if self.state is not None else len(self.leaves) - rooms
        held = [] if state is None else state.arrays()
        leaves = [*self.leaves[:own], *held, *self.leaves[len(self.leaves) - rooms :]]
        return replace(self, leaves=leaves, state=state, own=own)

    @property
    def held(self) -> list[Any]:
        """The arrays that the state holds."""
        return [] if self.state is None else self.leaves[self.own : len(self.leaves) - (self.numbers is not None)]

    def call(self, fn: Callable[..., Any], args: Any, kwargs: Any, leaves: Sequence[Any]) -> Any:
        """Call a function while its state holds these ``leaves``; return its result, and the state after it."""
        if self.state is None:
            return fn(*args, **kwargs)
        with self.state.holding(leaves[self.own : len(leaves) - (self.numbers is not None)]):
            return fn(*args, **kwargs), self.state.after()

    def arguments(self, leaves: Sequence[Any], numbers: Sequence[Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """The arguments of the call with other arrays, and with other objects in the place of its numbers."""
        if self.state is not None:
            leaves = leaves[: self.own]
        elif self.numbers is not None:
            leaves = leaves[:-1]
        if isinstance(self.form, int):
            return tuple(leaves), {}
        args, kwargs = unpacked(put_together(self.form, leaves))
        if self.numbers is None:
            return args, kwargs
        return self.numbers.replaced(args, kwargs, self.numbers.values if numbers is None else numbers)

    def is_array(self, value: object) -> bool:
        """True for arrays."""
        return issubclass(type(value), self.platform.cupy.ndarray)  # asks no code of the value's class

"""Work that waits: what a stream was given runs when the host has to know, as late and in as odd an order as may be.

Each piece of work is an operation that comes after others: the one before it on its stream, what an event stands for,
and by the rules of the legacy default stream. (CUDA Runtime API, "Stream synchronization behavior".) Waiting for an
operation runs all that it comes after, and now and then some that nobody asked for, in a random order among those that
are allowed. Asking whether it is done makes a little progress, sometimes, so that polling ends.

Garbage collection calls in here from anywhere, in the middle of a line of this file even: then nothing is run, and what
was to follow is done at the next occasion. Two locks, never taken the other way round: the turn of who runs operations,
then the device's lock over what is known of them. While an operation runs its thread has the turn alone.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from typing import Any, TypeVar

from capturekit.model.skipped_exits import Lock

Thing = TypeVar('Thing')

#: Before one in so many nodes of a launch, something else runs that may; and so many things are begun at most.
_BETWEEN, _AT_ONCE = 4, 3
#: A stream is given no more than so many operations that wait: the host runs half of them first.
_LIMIT = 1024


@dataclass(eq=False)
class QueuedOperation:
    """A piece of work, and what it comes after."""

    line: Line
    number: int
    run: Callable[[], None] | None
    after: tuple[QueuedOperation, ...]

    @property
    def done(self) -> bool:
        return self.run is None


@dataclass(eq=False)
class Line:
    """What a stream is here: the last operation that it was given."""

    device: int = 0
    blocking: bool = True
    legacy: bool = False
    last: QueuedOperation | None = None
    #: Of a legacy stream: the last operation of each blocking stream of the device since its own last one.
    tips: dict[Line, QueuedOperation] = field(default_factory=dict)


class Queue:
    """The operations of a machine that wait. ``lock`` is the device's, over all that verbs know."""

    def __init__(self, seed: int, lock: Any, legacy: Callable[[int], Line]) -> None:
        self._random = random.Random(f'late {seed}')
        self._lock = lock
        self._turn = Lock()
        self._mine = threading.local()
        self._pending: dict[QueuedOperation, None] = {}
        #: What has begun to run and has not ended: launches, between whose nodes other work may run.
        self._begun: list[QueuedOperation] = []
        #: The legacy stream of a device.
        self.legacy = legacy
        self._given = 0
        self._later: deque[Callable[[], None]] = deque()
        #: The last launch of each executable graph: they take turns.
        self.launched: dict[int, QueuedOperation] = {}

    # -- giving -----------------------------------------------------------------------------------------------

    def put(self, line: Line, run: Callable[[], None], after: Iterable[QueuedOperation | None] = ()) -> QueuedOperation:
        """Give a stream an operation, which also comes after those of ``after``."""
        with self._lock:
            legacy = self.legacy(line.device)
            before = [*self.ends(line), *after]
            line.tips.clear()
            if line.blocking:
                before.append(legacy.last)
            self._given += 1
            made = QueuedOperation(
                line, self._given, run, tuple(one for one in before if one is not None and not one.done)
            )
            line.last = made
            if line.blocking and not line.legacy:
                legacy.tips[line] = made
            self._pending[made] = None
            return made

    def busy(self) -> bool:
        """Whether anything waits."""
        return bool(self._pending)

    def drop(self) -> None:
        """Forget all that waits: the end of the world."""
        with self._lock:
            for one in self._pending:
                one.run, one.after = None, ()
            self._pending.clear()

    def join(self, lines: Iterable[Line]) -> None:
        """What these streams are given from now on comes after all that each was given."""
        with self._lock:
            lines = list(lines)
            ends = [line.last for line in lines]
            for line in lines:
                self.put(line, nothing, ends)

    def relieve(self) -> None:
        """Do what was put off, and keep the queue short: not with the device's lock held."""
        if self._nested():
            return
        if len(self._pending) > _LIMIT:
            with self._lock:
                oldest = list(self._pending)[: _LIMIT // 2]
            self.wait(oldest)
        self._do_later()

    # -- waiting ----------------------------------------------------------------------------------------------

    def ends(self, line: Line) -> list[QueuedOperation | None]:
        """What synchronising a stream waits for: of the legacy one the blocking streams, too."""
        with self._lock:
            return [line.last, *line.tips.values()]

    def pending(self, device: int) -> list[QueuedOperation]:
        """All that a device has to do."""
        with self._lock:
            return [one for one in self._pending if one.line.device == device]

    def wait(self, targets: Iterable[QueuedOperation | None]) -> None:
        """Run these, and all that they come after. In a finalizer, or in an operation that is running: nothing."""
        if self._nested():
            return
        self._take_turn(lambda: self._chosen(targets))
        self._do_later()

    def _take_turn(self, choose: Callable[[], list[QueuedOperation]]) -> None:
        """Run what is chosen once nobody else runs anything."""
        with self._turn:
            self._mine.runs = True
            try:
                for one in choose():
                    self._do(one)
            finally:
                self._mine.runs = False

    def finish(self) -> None:
        """Run everything."""
        with self._lock:
            every = list(self._pending)
        self.wait(every)

    def ask(self, targets: Iterable[QueuedOperation | None]) -> bool:
        """Whether all of these are done."""
        asked = [one for one in targets if one is not None and not one.done]
        if asked and not self._nested() and self._random.random() < 0.5:
            self._take_turn(lambda: self._some_of(asked))
        return all(one.done for one in asked)

    def _some_of(self, asked: list[QueuedOperation]) -> list[QueuedOperation]:
        """The first of what these come after."""
        with self._lock:
            order = self._shuffled(with_all_before(asked))
            return order[: self._random.randint(1, max(len(order), 1))]

    def after_all(self, call: Callable[[], None]) -> None:
        """Run everything, then make the call: at once, or where that can't be, at the next occasion."""
        if self._nested():
            self._later.append(call)
            return
        try:
            self.finish()
        finally:
            call()

    def between(self) -> None:
        """Between two nodes of a launch: run, now and then, something that comes after nothing that is left to do."""
        if not getattr(self._mine, 'runs', False) or len(self._begun) >= _AT_ONCE or self._random.randrange(_BETWEEN):
            return
        with self._lock:
            ready = [one for one in self._pending if one not in self._begun and all(a.done for a in one.after)]
        if ready:
            self._do(self._random.choice(ready))

    def _do_later(self) -> None:
        while self._later:
            call = self._later.popleft()
            self.after_all(call)

    def _nested(self) -> bool:
        """Whether this thread is in the middle of something: of an operation, or of a verb of the device."""
        return getattr(self._mine, 'runs', False) or bool(self._lock._is_owned())

    def _do(self, one: QueuedOperation) -> None:
        run = one.run
        if run is None:  # by another thread
            return
        self._begun.append(one)
        try:
            run()
        finally:
            self._begun.remove(one)
            with self._lock:
                one.run, one.after = None, ()
                self._pending.pop(one, None)

    # -- order ------------------------------------------------------------------------------------------------

    def _chosen(self, targets: Iterable[QueuedOperation | None]) -> list[QueuedOperation]:
        """What to run, in order: none, some or all of the others beside what is needed."""
        with self._lock:
            needed = with_all_before(one for one in targets if one is not None and not one.done)
            if not needed:
                return []
            others: list[QueuedOperation] = []
            drawn = self._random.randrange(3)
            if drawn:
                others = [one for one in self._pending if drawn == 2 or self._random.random() < 0.5]
            return self._shuffled(with_all_before([*needed, *others]))

    def _shuffled(self, operations: dict[QueuedOperation, None]) -> list[QueuedOperation]:
        """An order of what is not done, in which each comes after what it comes after: by chance, or by streams."""
        left = sorted((one for one in operations if not one.done), key=lambda one: one.number)
        before = {one: [a for a in one.after if not a.done] for one in left}
        by_line = self._random.random() < 0.5
        weights: dict[Line, float] = {}

        def choose(ready: list[QueuedOperation]) -> int:
            at = self._random.randrange(len(ready))
            if by_line:
                at = min(range(len(ready)), key=lambda i: weights.setdefault(ready[i].line, self._random.random()))
            return at

        return any_order(before, choose)


def with_all_before(things: Iterable[Thing]) -> dict[Thing, None]:
    """These things and all that they come after, by ``after`` of each."""
    found: dict[Thing, None] = {}
    stack: list[Any] = list(things)
    while stack:
        one = stack.pop()
        if one not in found:
            found[one] = None
            stack.extend(one.after)
    return found


def any_order(before: Mapping[Thing, Collection[Thing]], choose: Callable[[list[Thing]], int]) -> list[Thing]:
    """An order in which each thing comes after those before it; ``choose`` says which of those that are ready."""
    sorter: TopologicalSorter[Thing] = TopologicalSorter(dict.fromkeys(before, ()))
    for thing, earlier in before.items():
        sorter.add(thing, *earlier)
    sorter.prepare()
    ready, order = list(sorter.get_ready()), []
    while ready:
        at = choose(ready)
        ready[at], ready[-1] = ready[-1], ready[at]
        order.append(ready.pop())
        sorter.done(order[-1])
        ready += sorter.get_ready()
    return order


def nothing() -> None:
    """What a stream does that only waits."""

"""What was captured, launched and refused so far: counted for :func:`statistics`, and logged to ``capturekit``.

Nothing here runs at a launch: each graph counts its own launches, and :func:`statistics` adds them up. A graph that
is dropped leaves its count in a queue, because it may be dropped at any time, also while the lock is held.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any
from weakref import WeakSet

from capturekit.model.counted import counted, plural
from capturekit.model.errors import CaptureError
from capturekit.model.recording import Recording, Step, place
from capturekit.model.shown import Shown
from capturekit.model.skipped_exits import Lock, contextmanager

#: Silent until the program sets up logging. INFO: captures, adaptations, refusals. WARNING: functions that stay
#: eager, and refusals that a capture's code has caught.
LOG = logging.getLogger('capturekit')
_SILENCE = logging.NullHandler()
LOG.addHandler(_SILENCE)

#: What :func:`count` counts, with words for the table.
COUNTED = {
    'captures': 'captures',
    'failed': 'captures that failed',
    'nodes': 'nodes recorded',
    'adaptations': 'adaptations',
    'refusals': 'refusals',
    'fallbacks': 'fallbacks to eager runs',
    'rerecordings': 're-recordings',
    'updates': 'updates',
    'reinstantiations': 're-instantiations',
    'fusions': 'fused kernels',
}


@contextmanager
def aloud() -> Iterator[None]:
    """In the block warnings go to standard error, as those of any unconfigured logger do."""
    LOG.removeHandler(_SILENCE)
    try:
        yield
    finally:
        LOG.addHandler(_SILENCE)


@dataclass(frozen=True, repr=False)
class Statistics(Shown):
    """What this process has captured and launched so far, or since the last reset.

    Attributes:
        captures: captures that made a graph. failed: those that made none.
        nodes: how many nodes the graphs got when they were recorded.
        adaptations: calls that were replaced by their equivalent in a graph (``strict=False`` and ``@graphed``).
        refusals: calls that were refused, whether the exception ended a block or was caught in it.
        fallbacks: calls of ``@graphed`` functions that ran eagerly because a launch was stopped, or because they could
            not be recorded.
        rerecordings: recordings of ``@graphed`` functions that had been recorded before, for other calls.
        updates: graphs updated in place. reinstantiations: graphs that had to be instantiated anew instead.
        fusions: kernels that were made in the place of several nodes; their time is mostly the compiler's.
        launches: launches of graphs, including those by ``@graphed`` functions.
        graphs: how many graphs are open now. memory_bytes: device memory that these hold now, in bytes.
        seconds: total host time, in seconds, by the names above: of captures (from entering the block to its end),
            re-recordings, updates, re-instantiations and fused kernels. Launches are counted but not timed, because
            timing would slow them.
    """

    captures: int = 0
    failed: int = 0
    nodes: int = 0
    adaptations: int = 0
    refusals: int = 0
    fallbacks: int = 0
    rerecordings: int = 0
    updates: int = 0
    reinstantiations: int = 0
    fusions: int = 0
    launches: int = 0
    graphs: int = 0
    memory_bytes: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The figures as a dictionary of numbers, ``seconds`` as one inside it."""
        return asdict(self)

    def _brief(self) -> str:
        sizes = [(self.captures, 'capture'), (self.launches, 'launch'), (self.refusals, 'refusal')]
        sizes += [(self.graphs, 'open graph'), (self.memory_bytes, 'byte')]
        return ', '.join(counted(*size) for size in sizes)

    def __str__(self) -> str:
        return '\n'.join(line.rstrip() for line in self._lines())

    def _lines(self) -> Iterator[str]:
        for name, words in COUNTED.items():
            number, seconds = getattr(self, name), self.seconds.get(name)
            each = (
                '' if not seconds or not number else f'{seconds * 1e3:>13,.2f} ms {seconds / number * 1e3:>11,.3f} each'
            )
            yield f'{words:<24}{number:>13,}{each}'
        yield f'{"launches":<24}{self.launches:>13,}'
        yield f'{"graphs open now":<24}{self.graphs:>13,}'
        yield f'{"memory of these":<24}{self.memory_bytes:>13,} {plural("byte", self.memory_bytes)}'


class Figures:
    """The counts of this process. Any thread may call; calls take turns; a graph may be dropped during a call."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts: dict[str, int] = dict.fromkeys(COUNTED, 0)
        self._seconds: dict[str, float] = {}
        self._launches = 0
        self._graphs: WeakSet[Any] = WeakSet()
        self.dropped: deque[int] = deque()

    def count(self, name: str, seconds: float = 0.0, number: int = 1) -> None:
        """Count an item of :data:`COUNTED`, and the time that it took. Raises KeyError for an unknown name."""
        with self._lock:
            self._counts[name] += number
            if seconds:
                self._seconds[name] = self._seconds.get(name, 0.0) + seconds

    def made(self, graph: Any) -> None:
        """Count a new graph."""
        with self._lock:
            self._gather()
            self._graphs.add(graph)

    def gone(self, graph: Any) -> None:
        """Note that a graph was dropped. Takes no lock: an object may be dropped at any moment in any thread."""
        self.dropped.append(graph.launches - graph.counted)

    def _gather(self) -> None:
        while self.dropped:
            self._launches += self.dropped.popleft()

    def statistics(self, reset: bool = False) -> Statistics:
        """The figures so far; with ``reset`` counting starts anew."""
        with self._lock:
            graphs = list(self._graphs)
            launched = [graph.launches for graph in graphs]
            self._gather()
            launches = self._launches + sum(n - graph.counted for n, graph in zip(launched, graphs))
            still = [graph for graph in graphs if not graph.closed]
            memories = {id(getattr(getattr(one, '_state', one), 'memory', one)): one for one in still}
            found = Statistics(
                **self._counts,
                launches=launches,
                graphs=len(still),
                memory_bytes=sum(map(_held, memories.values())),
                seconds=dict(self._seconds),
            )
            if reset:
                self._counts, self._seconds, self._launches = dict.fromkeys(COUNTED, 0), {}, 0
                for number, graph in zip(launched, graphs):
                    graph.counted = number
            return found


def _held(graph: Any) -> int:
    try:
        return int(graph.memory_bytes)
    except AttributeError:
        if graph.closed:  # meanwhile, by another thread
            return 0
        raise


FIGURES = Figures()
count = FIGURES.count


def ended(recording: Recording, at: object, seconds: float) -> None:
    """Count a capture that has ended, and log it. ``at`` is where it was begun, ``seconds`` how long it was open."""
    good = recording.outcome == 'good'
    adapted = recording.adaptations
    if good:
        count('captures', seconds)
        count('nodes', number=recording.node_count)
    else:
        count('failed', seconds)
    count('adaptations', number=len(adapted))
    if not LOG.isEnabledFor(logging.INFO):
        return
    where = f' at {at}' if at is not None else ''
    sizes = (recording.node_count, 'node'), (len(recording.lanes), 'lane'), (recording.memory_bytes, 'byte')
    figures_text = ', '.join(counted(*size) for size in sizes)
    LOG.info('%s%s in %.2f ms: %s', 'captured' if good else 'capture failed', where, seconds * 1e3, figures_text)
    for step in adapted:
        LOG.info('adapted: %s', step.text if step.at is None else f'{step.text}, at {place(step.at)}')


#: The refusals that :func:`caught` has told of.
_TOLD: set[str] = set()


def caught(refused_calls: list[Step]) -> None:
    """Warn of calls that a good capture has refused: the code caught that and went on, each line once."""
    for step in refused_calls:
        said = f'{place(step.at)}: {step.text}'
        if said not in _TOLD:
            _TOLD.add(said)
            LOG.warning('%s', said)


#: Functions that are called once for each refusal.
REFUSED: list[Callable[[CaptureError], None]] = []


def refused(error: BaseException) -> None:
    """Count a refused call, and log it, once for each exception."""
    if isinstance(error, CaptureError) and not error.__dict__.get('_counted'):
        error.__dict__['_counted'] = True
        count('refusals')
        LOG.info('refused: %s: %s', type(error).__name__, ' '.join(str(error).split()))
        for listener in list(REFUSED):
            listener(error)


def statistics(*, reset: bool = False) -> Statistics:
    """What this process has captured, launched and refused so far, as plain numbers; ``print`` shows a table.

    Args:
        reset: True: all counts and times are set to 0 after they were read. ``graphs`` and ``memory_bytes``, which
            describe the open graphs, stay.

    Raises:
        TypeError: ``reset`` is neither True nor False.

    Any thread may call it. It waits for no stream, and takes some microseconds plus one for each graph.
    """
    if not isinstance(reset, bool):
        raise TypeError(f'reset must be True or False, got {reset!r}')
    return FIGURES.statistics(reset)

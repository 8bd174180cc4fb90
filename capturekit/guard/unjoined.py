"""At the end of a capture, or of a part: which lanes are not joined, and joining them with ``strict=False``."""

from __future__ import annotations

from capturekit.guard.lanes import Lanes
from capturekit.guard.open_capture import OpenCapture
from capturekit.guard.state import State
from capturekit.model import errors
from capturekit.model.counted import counted
from capturekit.model.ledger import Lane, LedgerCapture, named
from capturekit.model.rules import RULES, Code
from capturekit.model.source_line import Place, here


class Joins:
    """Finds lanes that are not joined at the end of a capture or of a part of one, and joins them."""

    def __init__(self, state: State, lanes: Lanes) -> None:
        self.state = state
        self.lanes = lanes

    def find_work(self, live: OpenCapture) -> None:
        """Ask the driver which lanes have work that the origin does not come after, and note it in the ledger."""
        capture = live.capture
        if len(capture.lanes) == 1:
            return
        device = self.state.platform.device
        with self.state.inside:
            info = device.capture_info(capture.origin.stream)
            loose: list[tuple[Lane, set[int]]] = []
            for lane in capture.lanes[1:]:
                left = set(device.capture_info(lane.stream).dependencies) - set(info.dependencies)
                joined = capture.origin.clock.get(lane.number, 0) == lane.segment - 1
                if left and not (joined and left <= set(lane.nodes)):
                    loose.append((lane, left))
            if not loose:
                return
            before = _ancestors(info.dependencies, device.graph_edges(info.graph))
        for lane, left in loose:
            if not left <= before:
                idle = lane.segment > 1 and left <= set(lane.nodes)  # no work since its last event
                lane.worked = lane.segment - idle
                lane.used = True

    def idle(self, live: OpenCapture) -> None:
        """Note the lanes that were forked, given no work and never joined: CUDA ends such a capture without a word."""
        capture = live.capture
        for lane in capture.lanes[1:]:
            if lane.joined_at is None and not lane.worked and not capture.origin.clock.get(lane.number, 0):
                text = f'lane {lane.number} was forked and given no work, and it was never joined: it adds nothing'
                live.note('note', lane, text, _place(lane.forked_at))

    def unjoined(
        self, live: OpenCapture, call: str = 'The end of the capture', lanes: list[Lane] | None = None
    ) -> errors.UnjoinedError:
        """The error that names the given lanes, or all lanes that are not joined."""
        lanes = live.capture.unjoined() if lanes is None else lanes
        stories, last_ones = [], []
        for lane in lanes:
            parent = live.capture.lanes[lane.parent or 0]
            worked = None if live.trace is None else live.trace.last_work(lane.stream, lane.number)
            lane.last_use = worked or lane.last_use  # else the line that made it current
            last = f', last used at {lane.last_use}' if lane.last_use else ''
            again = lane.why_unjoined
            waiting = _waiting(live.capture, lane)
            if waiting is None:
                last_ones.append(lane)
            else:
                again = f'; lane {waiting.number} waits for all of its work'
            stories.append(
                {
                    'lane': lane.number,
                    'stream': lane.stream,
                    'forked_at': lane.forked_at,
                    'last_use': lane.last_use,
                    'joined_at': lane.joined_at,
                    'text': f'lane {lane.number} ({named(lane.stream)}) forked from lane {parent.number} '
                    f'at {lane.forked_at}{last}{again}',
                }
            )
        names = '; '.join(str(s['text']) for s in stories)
        error = errors.UnjoinedError(
            f'{counted(len(lanes), "lane")} left unjoined: {names}',
            stream=lanes[0].stream if lanes else None,
            lane=lanes[0].number if lanes else None,
            location=here() if len(last_ones) != 1 else _place(last_ones[0].last_use),
            rule=f'{RULES["unjoined"].says} ({Code.cudaErrorStreamCaptureUnjoined.name} would follow, '
            'and the graph would be lost).',
            remedy=RULES['unjoined'].remedy,
            cuda_error=Code.cudaErrorStreamCaptureUnjoined.name,
        )
        error.lanes = stories
        return error

    def join(self, live: OpenCapture, lane: Lane, at: Place | None) -> None:
        """Let the origin wait for a lane."""
        self.lanes.wait_on(live, live.capture.origin, self.lanes.record_on(live, lane, at), at)
        lane.joined_at = at

    def join_all(self, live: OpenCapture) -> None:
        """With ``strict=False``: join all open lanes to the origin."""
        at = here()
        for lane in live.capture.unjoined():
            self.join(live, lane, at)
            live.note('adapted', lane, f'lane {lane.number}, left unjoined, was joined to the origin', at)


def _ancestors(nodes: tuple[int, ...], edges: list[tuple[int, int]]) -> set[int]:
    parents: dict[int, list[int]] = {}
    for a, b in edges:
        parents.setdefault(b, []).append(a)
    seen: set[int] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack.extend(parents.get(node, ()))
    return seen


def _waiting(capture: LedgerCapture, lane: Lane) -> Lane | None:
    """A lane other than the origin that comes after all work of a lane."""
    others = [other for other in capture.lanes[1:] if other is not lane]
    return next((other for other in others if other.clock.get(lane.number, 0) >= lane.worked), None)


def _place(at: object) -> Place | None:
    return at if isinstance(at, Place) else here()

"""``run --watch``: every capture of the process is followed, and the end lists what has harmed them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from capturekit.cli.terminal import paint
from capturekit.driver.cuda import current
from capturekit.guard import GUARD
from capturekit.guard.remedies import error_of
from capturekit.model.counted import counted
from capturekit.model.followed_captures import CaptureFinding, FollowedCapture


@contextmanager
def watched() -> Iterator[None]:
    """Follow the captures of a block, and print at its end what has harmed them.

    Raises:
        Untraceable: CUPTI is not available, or another tool uses it.
    """
    report = WatchReport()
    hear, watch = report.hear, GUARD.state.call_watch
    watch.open(current(), hear, GUARD.ledger.table)
    try:
        yield
    finally:
        for one in watch.open_captures():
            hear(one)
        watch.close(hear)
        print(report.text(watch.failure), file=sys.stderr, flush=True)


@dataclass
class _Found:
    """Findings of one line and one function: the first, with its capture, and the numbers of calls and captures."""

    finding: CaptureFinding
    one: FollowedCapture
    calls: int = 0
    captures: int = 0


class WatchReport:
    """What has harmed captures, in the words of refusals. Of captures that are good it keeps the number."""

    def __init__(self) -> None:
        self._followed = self._lost = self._past = 0
        self._found: dict[tuple[object, ...], _Found] = {}

    def hear(self, one: FollowedCapture) -> None:
        """Take in a capture that has ended."""
        if one.own:
            return
        self._followed += 1
        self._lost += one.loss is not None
        self._past += bool(one.escaped)
        for finding in one.findings:
            key = finding.kind, finding.call.function, finding.at, finding.code, one.at
            alike = self._found.setdefault(key, _Found(finding, one))
            alike.calls += finding.count
            alike.captures += 1

    def text(self, failure: BaseException | None = None) -> str:
        """Return the report: first what has lost a capture, then what went past one."""
        said = f'{paint("capturekit:", "quiet", sys.stderr)} '
        found = sorted(self._found.values(), key=lambda alike: alike.finding.kind == 'escaped')
        lines = [f'{said}{self._counts()}', *map(_told, found)]
        if failure is not None:
            lines.append(f'{said}the watch itself has failed, and saw nothing after that: {failure!r}')
        return '\n'.join(lines)

    def _counts(self) -> str:
        """How many captures were followed, and how many of them came to harm."""
        one = self._followed == 1
        text = f'{counted(self._followed, "capture")} {"was" if one else "were"} followed'
        if not self._followed:
            return text
        if not self._found:
            return f'{text}, and nothing has harmed {"it" if one else "them"}'
        text += f'; {self._lost or "none"} {"were" if self._lost > 1 else "was"} lost'
        return f'{text}, and work went past {self._past}:' if self._past else f'{text}:'


def _told(alike: _Found) -> str:
    error = error_of(alike.finding, alike.one.at, alike.one.maker)
    calls, captures = alike.calls, counted(alike.captures, 'capture')
    often = '' if calls == 1 else f'\n  The call was made {calls} times, in {captures}.'
    return f'{paint(type(error).__name__, "error", sys.stderr)}: {error}{often}'

"""What becomes of each call of a graphed function: launched, in parts, or eager with its reason."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from capturekit.graphed import faster_way, policy
from capturekit.graphed.decorator import Graphed
from capturekit.graphed.kinds import Kind
from capturekit.graphed.tally import WATCHED
from capturekit.graphed.variant import Variant

LAUNCHED, PARTS, EAGER = 'launched', 'in parts', 'eager'
#: The outcome of a program that can not run here.
ABSENT = 'not there'
#: What differs between two runs of the same program, or moves when its file is edited, and what stands in its place.
_MOVES = (
    (r'(?:/[\w.+-]+)+/', ''),
    (r'\(?[\w<>.-]+\.py:\d+\)?', 'a line'),
    (r'0x[0-9a-fA-F]+', '#'),
    (r"(?:'[^']*'|\"[^\"]*\")", "'...'"),
    (r'(?<![\w#])-?\d[\w.+-]*', '#'),
    (r'hands on \w[\w.]*', 'hands on a function'),  # one of several, in the order of a set
)  # fmt: skip


def general(reason: str) -> str:
    """A reason without addresses, lines and values, so that it is the same in each run: its first two sentences."""
    text = ' '.join(reason.removeprefix('because ').split())
    for pattern, word in _MOVES:
        text = re.sub(pattern, word, text)
    return '. '.join(text.split('. ')[:2])


def absent(text: str) -> str:
    """The outcome of a program that can not run here, for this reason."""
    for pattern, word in _MOVES[:3]:
        text = re.sub(pattern, word, text)
    return f'{ABSENT}: {" ".join(text.split())[:120]}'


def decide_without_times() -> None:
    """Let no time decide in this process which runs are followed and which calls are launched."""
    policy.LONGEST = float('inf')
    faster_way.STOPWATCH = lambda _platform: None


@contextmanager
def noted() -> Iterator[list[str]]:
    """A list that gets what becomes of each call of a graphed function meanwhile, but for those within other calls.

    Within a call nothing of this is there, since it would be a part of what the function runs.
    """
    calls: list[str] = []
    plain: Any = Graphed.__call__

    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = {variant: variant.calls + variant.launches for variant in self.variants}
        eager = self._tally.eager.copy()
        _be_called_by(plain)
        try:
            return plain(self, *args, **kwargs)
        finally:
            _be_called_by(called)
            calls.append(_outcome(self._used, before, self._tally.eager - eager))

    _be_called_by(called)
    try:
        yield calls
    finally:
        _be_called_by(plain)


def _be_called_by(function: Any) -> None:
    Graphed.__call__ = function  # type: ignore[method-assign]


def _outcome(kind: Kind | None, before: dict[Variant, int], eager: Counter[str]) -> str:
    """The outcome of one call, of this kind, by what it has added to the counts of its function."""
    variants = () if kind is None else kind.variants
    for reason in eager:
        cause = _cause(variants, before) if reason == WATCHED else ''
        return f'{EAGER}: {general(reason + cause)}'
    for variant in variants:
        if variant.calls + variant.launches > before.get(variant, 0):
            return PARTS if variant.state == 'pieces' else LAUNCHED
    return f'{EAGER}: as a plain call'


def _cause(variants: Iterable[Variant], before: Collection[Variant]) -> str:
    """Why a call was watched though there were recordings ``before``: what has changed for those of its kind."""
    known = [variant for variant in variants if variant in before]
    if not known:
        return ', of a new kind' if before else ''
    return next((f': {changed}' for variant in known if (changed := variant.changed())), ', for another reason')

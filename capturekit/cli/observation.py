"""``run --observe``: nothing is refused, and the end of standard error lists what would have been."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from capturekit.cli.terminal import paint
from capturekit.guard import GUARD
from capturekit.guard.observer import LetThrough, Observer
from capturekit.model.counted import counted


@contextmanager
def observed() -> Iterator[None]:
    """Let every call of a block through to CUDA, and print at its end what would have been refused."""
    observer = Observer(GUARD)
    observer.open()
    try:
        yield
    finally:
        observer.close()
        print(text(observer.found), file=sys.stderr, flush=True)


def text(found: Sequence[LetThrough]) -> str:
    """The calls that were let through, in the words of their refusals, each with what came of it."""
    said = f'{paint("capturekit:", "quiet", sys.stderr)} '
    if not found:
        return f'{said}nothing would have been refused'
    calls = counted(sum(one.count for one in found), 'call')
    return '\n'.join([f'{said}{calls} would have been refused, and {_went(found)}', *map(_told, found)])


def _went(found: Sequence[LetThrough]) -> str:
    lost = sum(one.loses for one in found)
    return 'no capture was lost:' if not lost else 'what has lost a capture comes first:'


def _told(one: LetThrough) -> str:
    came = 'It was let through' if one.count == 1 else f'It was let through {one.count} times'
    came += ', and the capture was lost.' if one.loses else '.'
    answer = f'CuPy raised {one.answer}' if one.answer else 'CuPy raised nothing.'
    return f'{paint(one.name, "error", sys.stderr)}: {one.message}\n  {came} {answer}'

"""Progress of long work, shown on a terminal or in a notebook, but not in a pipe, and only with tqdm.

tqdm is an optional dependency (``pip install 'capturekit[progress]'``). Work that takes less than half a second shows
nothing, and a bar is removed when the work ends.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from capturekit.model.shown import in_notebook

T = TypeVar('T')

#: Seconds of work before anything is shown.
DELAY = 0.5


def _bars() -> Any:
    """tqdm's class for a terminal or a notebook; None where nothing is shown."""
    notebook = in_notebook()
    if not notebook and not (sys.stderr is not None and sys.stderr.isatty()):
        return None
    with suppress(ImportError):
        if notebook:
            importlib.import_module('ipywidgets')
            return importlib.import_module('tqdm.notebook').tqdm
    with suppress(ImportError):
        return importlib.import_module('tqdm').tqdm
    return None


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[], object]]:
    """Show in a block how much of ``total`` is done. The block gets a function that counts one more."""
    made = _bars()
    if made is None or total < 1:
        yield lambda: None
        return
    bars = type('Bars', (made,), {'monitor_interval': 0})  # a thread of tqdm's would disturb what is measured
    bar = bars(total=total, desc=f'capturekit: {what}', delay=DELAY, leave=False, dynamic_ncols=True)
    try:
        yield bar.update
    finally:
        bar.close()


def each(what: str, items: Sequence[T]) -> Iterator[T]:
    """Yield the items, and show how many are done."""
    with progress(what, len(items)) as step:
        for item in items:
            yield item
            step()


def say(text: str) -> None:
    """Print a line on standard error, above a bar that is shown there."""
    bars = sys.modules.get('tqdm')
    if bars is None:
        print(text, file=sys.stderr, flush=True)
    else:
        bars.tqdm.write(text, file=sys.stderr)

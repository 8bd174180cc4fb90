"""Jobs, each in a process of its own: what it answers, or how it died: it ended without an answer, or took too long."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection
from pathlib import Path
from typing import Any, NamedTuple

Row = dict[str, Any]


class Running(NamedTuple):
    """A child at work: its process, the file of what it says, and when it is too late."""

    job: Any
    process: Any
    said: Path
    deadline: float


def rows(
    jobs: Sequence[Any], work: Callable[[Any], Row], *, at_once: int = 1, timeout: float = 60.0, how: str = 'fork'
) -> Iterator[tuple[Any, Row]]:
    """Do the jobs, so many at a time, and yield each with its answer as it comes.

    ``how``: how processes begin, as :mod:`multiprocessing` calls it. After a ``fork`` CUDA can only be used if it was
    not before, and elsewhere ``work`` and jobs have to be such that they can be pickled.
    """
    context: Any = multiprocessing.get_context(how)
    waiting = list(reversed(jobs))
    running: dict[Any, Running] = {}
    with tempfile.TemporaryDirectory() as folder:
        while waiting or running:
            while waiting and len(running) < at_once:
                job, said = waiting.pop(), Path(folder, str(len(waiting)))
                answer, pipe = context.Pipe(duplex=False)
                process = context.Process(target=_work, args=(work, job, pipe, said))
                process.start()
                pipe.close()
                running[answer] = Running(job, process, said, time.monotonic() + timeout)
            for ready in connection.wait(list(running), timeout=0.5):
                child = running.pop(ready)
                yield child.job, _row(child, ready)
            for child in running.values():
                if time.monotonic() > child.deadline:
                    child.process.kill()


def _work(work: Callable[[Any], Row], job: Any, pipe: Any, said: Path) -> None:
    """What a child does."""
    with said.open('w') as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    faulthandler.enable(2)
    pipe.send(work(job))
    pipe.close()
    os._exit(0)  # what a job has left must not end the process in its own way


def _row(child: Running, answer: Any) -> Row:
    with answer:
        try:
            row: Row = answer.recv()
        except EOFError:
            child.process.join()
            words = ' '.join(child.said.read_text(errors='replace').split()) if child.said.exists() else ''
            text = words if len(words) < 800 else f'{words[:400]} ... {words[-400:]}'
            late = time.monotonic() > child.deadline
            end = 'it took too long and was killed' if late else f'exit status {child.process.exitcode}'
            return {'outcome': 'died', 'error': end, 'text': text}
    child.process.join()
    return row

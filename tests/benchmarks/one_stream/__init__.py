"""Programs written for one stream, with no thought of lanes, and one that lanes do nothing for.

Each is a function of ``parallel``, which calls several functions and returns what they return: one after the other, as
the program was written; or on lanes by hand, by ``cap.parallel``.
"""

from __future__ import annotations

import runpy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

Branch = Callable[[], Any]
Parallel = Callable[..., list[Any]]


@dataclass(frozen=True)
class Program:
    """``run(parallel)`` makes at most ``branches`` branches at a time, and returns arrays."""

    title: str
    branches: int
    run: Callable[[Parallel], list[Any]]


def one_after_the_other(*branches: Branch) -> list[Any]:
    """The program as it was written."""
    return [branch() for branch in branches]


def sample(name: str) -> Any:
    """The functions of a sample, with the CuPy that is imported now."""
    return SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[3] / 'samples' / f'{name}.py')))


def programs(cp: Any, small: bool) -> dict[str, Callable[[], Program]]:
    """The programs by name, each made when its turn comes; ``small``: sizes for the simulated device."""
    from tests.benchmarks.one_stream import fields, models, solvers

    makers = (
        models.net, models.ensemble, models.attention, models.folds, solvers.solves, solvers.spectra,
        solvers.summaries, fields.copies, fields.filters, fields.chains, fields.plates, fields.large,
    )  # fmt: skip
    return {maker.__name__: lambda maker=maker: maker(cp, small) for maker in makers}

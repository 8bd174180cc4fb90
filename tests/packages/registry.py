"""What a program is: a function that makes a :class:`Case`, registered with the package that it uses.

A program is made anew for each way of running it, so that neither way can reach the other's state. Packages are
imported by :func:`module` when a program is made, so that all of this can be imported where they are not installed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


def itself(value: Any) -> Any:
    return value


def nothing() -> None:
    return None


class Draw:
    """Arrays of the given CuPy with numbers that are drawn on the host: equal seeds give equal arrays."""

    def __init__(self, cp: Any, seed: int) -> None:
        self._cp = cp
        self._random = np.random.default_rng(seed)

    def normal(self, *shape: int, dtype: str = 'f8') -> Any:
        return self._cp.asarray(self._random.standard_normal(shape).astype(dtype))

    def uniform(self, *shape: int, dtype: str = 'f8', low: float = 0.0, high: float = 1.0) -> Any:
        return self._cp.asarray(self._random.uniform(low, high, shape).astype(dtype))

    def complexes(self, *shape: int, dtype: str = 'c16') -> Any:
        parts = self._random.standard_normal((2, *shape))
        return self._cp.asarray((parts[0] + 1j * parts[1]).astype(dtype))

    def integers(self, top: int, *shape: int) -> Any:
        return self._cp.asarray(self._random.integers(top, size=shape))

    def weights(self, size: int) -> Any:
        """Positive numbers whose sum is 1."""
        drawn = self._random.uniform(0.5, 1.5, size)
        return self._cp.asarray(drawn / drawn.sum())

    def definite(self, size: int) -> Any:
        """A symmetric matrix with eigenvalues of 1 and more, so that solvers do well."""
        drawn = self._random.standard_normal((size, size))
        return self._cp.asarray(drawn @ drawn.T / size + np.eye(size))


@dataclass(frozen=True)
class Case:
    """One making of a program.

    Attributes:
        call: the function that is run eagerly and graphed.
        arguments: what makes the arguments of one call.
        state: what tells the state that the calls change; it is compared after each call.
        tell: what takes a result apart that is an object of the package's.
    """

    call: Callable[..., Any]
    arguments: Callable[[Draw], tuple[Any, ...]]
    state: Callable[[], Any] = nothing
    tell: Callable[[Any], Any] = itself


Maker = Callable[[Any, Draw], Case]


@dataclass(frozen=True)
class Program:
    """A function that makes a case, with its package."""

    package: str
    make: Maker

    @property
    def name(self) -> str:
        return self.make.__name__

    @property
    def about(self) -> str:
        """The first line of the docstring."""
        return (self.make.__doc__ or '').strip().partition('\n')[0]


#: All programs, by package and name.
PROGRAMS: dict[tuple[str, str], Program] = {}


def program(package: str) -> Callable[[Maker], Maker]:
    """Register a program of a package."""

    def register(make: Maker) -> Maker:
        key = package, make.__name__
        if key in PROGRAMS:
            raise ValueError(f'there are two programs {package}.{make.__name__}')
        PROGRAMS[key] = Program(package, make)
        return make

    return register


def module(name: str) -> Any:
    """A module of a package, imported now."""
    return importlib.import_module(name)


def load() -> dict[str, list[Program]]:
    """The programs of all modules ``programs_*`` here, by package."""
    for path in sorted(Path(__file__).parent.glob('programs_*.py')):
        importlib.import_module(f'{__package__}.{path.stem}')
    found: dict[str, list[Program]] = {}
    for one in PROGRAMS.values():
        found.setdefault(one.package, []).append(one)
    return found

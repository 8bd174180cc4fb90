"""What a program is: a function that makes a :class:`Case`, registered with the package that it uses.

A program is made anew for each way of running it, so that neither way can reach the other's state. Packages are
imported when a program is made, so that all of this can be imported where they are not installed.
"""

from __future__ import annotations

import functools
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


@dataclass(frozen=True)
class Program:
    """A program of a package: its name, what it does in a sentence, and what makes a case of it."""

    package: str
    name: str
    about: str
    make: Callable[[Any, Draw], Case]


#: All programs, by package and name.
PROGRAMS: dict[tuple[str, str], Program] = {}


def add(package: str, name: str, about: str, make: Callable[..., Case], modules: tuple[str, ...]) -> None:
    """Register a program. Its modules are imported when a case is made, and given to what makes it."""
    if (package, name) in PROGRAMS:
        raise ValueError(f'there are two programs {package}.{name}')
    made = lambda cp, draw: make(cp, draw, *map(importlib.import_module, modules))  # noqa: E731
    PROGRAMS[package, name] = Program(package, name, about, made)


def program(package: str, *modules: str) -> Callable[[Callable[..., Case]], None]:
    """Register a function as a program. Its modules: if none are named, the one that is called as the package is."""

    def register(make: Callable[..., Case]) -> None:
        add(package, make.__name__, make.__doc__ or '', make, modules or (package.replace('-', '_'),))

    return register


def calls(
    register: Callable[[Callable[..., Case]], None],
    arguments: Callable[[Draw], tuple[Any, ...]],
    tell: Callable[[Any], Any] = itself,
) -> Callable[[Callable[..., Any]], None]:
    """Register a function of CuPy, the modules and the arguments of a call as a program that keeps nothing."""

    def registered(fn: Callable[..., Any]) -> None:
        @functools.wraps(fn)
        def made(cp: Any, _draw: Draw, *modules: Any) -> Case:
            return Case(lambda *given: fn(cp, *modules, *given), arguments, tell=tell)

        register(made)

    return registered


def operators(package: str, both_ways: Callable[[Any, Any], Case], table: dict[str, tuple[str, Any, Any]]) -> None:
    """Register a program for each operator of a table: its sentence, the size of what it takes, and what makes it of
    CuPy, numbers and the package."""

    def added(name: str, about: str, size: Any, operator: Callable[[Any, Draw, Any], Any]) -> None:
        add(package, name, about, lambda *made: both_ways(operator(*made), size), (package,))

    for name, row in table.items():
        added(name, *row)


def load() -> dict[str, list[Program]]:
    """The programs of all modules ``programs_*`` here, by package."""
    for path in sorted(Path(__file__).parent.glob('programs_*.py')):
        importlib.import_module(f'{__package__}.{path.stem}')
    found: dict[str, list[Program]] = {}
    for one in PROGRAMS.values():
        found.setdefault(one.package, []).append(one)
    return found

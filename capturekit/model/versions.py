"""Which versions of Python, CuPy and cuda-bindings capturekit works with, and the messages about others.

tests/versions.json has what was tried, and the results. A version that is too old is refused: Python where
capturekit is imported, the others where a capture first needs them. One that is newer than was tried is let through,
and ``capturekit doctor`` notes it; where it lacks something, the error says so.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Known:
    """The versions of one package that are known to work.

    ``least``: the first that works; ``tried``: the last that was tried, of each major version.
    """

    name: str
    least: tuple[int, ...]
    tried: tuple[tuple[int, int], ...]

    def __str__(self) -> str:
        """``'12.8 to 12.9, 13.0 to 13.5'``."""
        first = [self.least if major == self.least[0] else (major,) for major, _minor in self.tried]
        return ', '.join(f'{dotted((*least, 0)[:2])} to {dotted(last)}' for least, last in zip(first, self.tried))

    def too_old(self, version: str) -> bool:
        """Whether a version is refused."""
        return numbers(version) < self.least

    def newer(self, version: str) -> bool:
        """Whether a version is newer than all that were tried of its major version, or of a new one."""
        found = numbers(version)
        return found[0] > self.tried[-1][0] or any(found[0] == last[0] and found > last for last in self.tried)

    def refusal(self, version: str, command: str) -> str:
        """The message about a version that is too old."""
        needs = f'capturekit needs {self.name} {dotted(self.least)} or newer (tried: {self})'
        return f'{needs}, and this is {version}: {command}'


def numbers(version: str) -> tuple[int, ...]:
    """Major and minor: ``'14.2.0rc1'`` is (14, 2)."""
    return tuple(int(part) for part in re.findall(r'\d+', version)[:2]) or (0,)


def dotted(version: tuple[int, ...]) -> str:
    """``'14.2'``."""
    return '.'.join(map(str, version))


PYTHON = Known('Python', (3, 11), ((3, 14),))
CUPY = Known('CuPy', (14,), ((14, 2),))
BINDINGS = Known('cuda-bindings', (12, 8), ((12, 9), (13, 5)))

if sys.version_info < PYTHON.least:  # this file, and capturekit/__init__.py, must be such that an old Python reads them
    raise ImportError(
        PYTHON.refusal(
            dotted(tuple(sys.version_info[:3])),
            f"python{dotted(PYTHON.tried[-1])} -m venv .venv && .venv/bin/pip install 'capturekit[cuda13]'",
        )
    )


@dataclass(frozen=True)
class Feature:
    """A feature that needs a newer Python than the oldest supported: since which, and what holds before."""

    what: str
    since: tuple[int, int]
    before: str


FEATURES = (
    Feature(
        'Each node has its line, also while a debugger or a coverage tool runs.',
        (3, 12),
        'Beside a tool that uses `sys.settrace`, only calls that capturekit wraps have a line.',
    ),
)


def installed() -> dict[str, str]:
    """Versions of the distributions that bring CuPy, cuda-bindings and NumPy."""
    import importlib.metadata  # as slow as all of capturekit's other imports together, and seldom needed

    found = {}
    for one in importlib.metadata.distributions():
        name = str(one.metadata['Name'] or '').lower().replace('_', '-')
        if re.fullmatch(r'cupy|cupy-(cuda|rocm).*|cuda-bindings|cuda-python|numpy', name):
            found[name] = str(one.version)
    return dict(sorted(found.items()))


def command(found: Mapping[str, str] | None = None) -> str:
    """The command that installs a CuPy and cuda-bindings that work. Two CuPys overwrite each other."""
    cupys = [name for name in (installed() if found is None else found) if name.startswith('cupy')]
    if cupys == ['cupy']:  # built from source: its name does not say for which CUDA
        return f"pip install -U 'cupy>={dotted(CUPY.least)}' (and cuda-bindings of the CUDA that it is built for)"
    offered = [f'cupy-cuda{major}x' for major, _minor in BINDINGS.tried]
    fitting = [name for name in cupys if name in offered]
    strays = [name for name in cupys if name not in fitting]
    first = f'pip uninstall {" ".join(strays)}; ' if strays else ''
    if fitting:
        return f"{first}pip install 'capturekit[{fitting[-1].removeprefix('cupy-').removesuffix('x')}]'"
    return f"{first}pip install 'capturekit[cuda13]' (or [cuda12])"


def lacking(what: str) -> str:
    """The message for a CuPy that lacks an entry point that capturekit needs."""
    version = str(getattr(sys.modules.get('cupy'), '__version__', 'of no version'))
    name = next((name for name in installed() if name.startswith('cupy')), 'cupy')
    last = dotted(CUPY.tried[-1])
    why = f' and was not tried with this one, which is newer than {last}' if CUPY.newer(version) else ''
    text = f'CuPy {version} lacks {what}: capturekit works with CuPy {CUPY}{why}'
    return f"{text}: pip install '{name}=={last}.*'"

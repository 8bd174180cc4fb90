"""Which Pythons, CuPys and cuda-bindings capturekit works with: ``nox -f tests/noxfile.py``, on Linux, without a GPU.

versions.json has what was found. An environment of a Python that is not here is skipped.
"""

from __future__ import annotations

from pathlib import Path

import nox

ROOT = Path(__file__).parents[1]
nox.options.envdir = str(ROOT / 'build' / 'nox')

PYTHONS = ('3.11', '3.12', '3.13', '3.14')
#: Each Python, each CuPy for both CUDAs, the least and the newest of all. With 13.3.1 a GPU was used.
INSIDE = (
    ('3.11', ('cupy-cuda12x==14.0.0', 'cuda-bindings==12.8.0', 'numpy==2.0.*')),
    ('3.11', ('cupy-cuda13x==14.0.1', 'cuda-bindings==13.1.1')),
    ('3.12', ('cupy-cuda12x==14.1.1', 'cuda-bindings==12.9.0')),
    ('3.13', ('cupy-cuda13x==14.1.0', 'cuda-bindings==13.0.0')),
    ('3.11', ('cupy-cuda12x==14.2.*', 'cuda-bindings<13')),
    ('3.12', ('cupy-cuda13x==14.2.0', 'cuda-bindings==13.3.1')),
    ('3.12', ('cupy-cuda13x', 'cuda-bindings')),
    ('3.13', ('cupy-cuda12x', 'cuda-bindings<13')),
    ('3.14', ('cupy-cuda13x', 'cuda-bindings<14')),
)
#: What capturekit refuses, and what its message begins with.
OUTSIDE = (
    ('3.12', ('cupy-cuda12x==13.6.0', 'cuda-bindings==12.9.0'), 'capturekit needs CuPy 14 or newer'),
    ('3.12', ('cupy-cuda12x==14.2.0', 'cuda-bindings==11.8.7'), 'capturekit needs cuda-bindings 12.8 or newer'),
    ('3.12', ('cupy-cuda12x==14.2.0',), 'capturekit needs cuda-bindings beside CuPy'),
    ('3.9', ('numpy',), 'capturekit needs Python 3.11 or newer'),
)
#: The tests that rest on the versions: what is held against the installed CuPy, the simulated device's contract.
TESTS = (
    'guard/test_entry_points',
    'guard/test_cupys_inside', 'driver/test_vendor_libraries', 'driver/test_elf', 'simulated/test_signatures',
    'simulated/test_contract', 'test_import',
    'cli/test_doctor',
)  # fmt: skip
#: Says what entering a capture says.
ENTER = """
try:
    import capturekit as ck
    ck.capture().__enter__()
except Exception as error:
    print(type(error).__name__, error, sep=': ')
"""


@nox.session(python=PYTHONS)
def suite(session: nox.Session) -> None:
    """The whole suite, without CuPy."""
    session.chdir(ROOT)
    session.install('numpy', 'pytest', 'hypothesis', 'pytest-xdist')
    session.run('python', '-m', 'pytest', 'tests', '-q', '-n', 'auto', *session.posargs)


@nox.session
@nox.parametrize('python,packages', INSIDE)
def cupy(session: nox.Session, packages: tuple[str, ...]) -> None:
    """The tests that rest on the versions, with a CuPy and a cuda-bindings."""
    session.chdir(ROOT)
    session.install('pytest', 'hypothesis', *packages)
    session.run('python', '-m', 'pytest', '-q', '-m', '', *(f'tests/{name}.py' for name in TESTS))


@nox.session
@nox.parametrize('python,packages,words', OUTSIDE)
def refused(session: nox.Session, packages: tuple[str, ...], words: str) -> None:
    """What capturekit refuses."""
    session.chdir(ROOT)
    session.install(*packages)
    said = session.run('python', '-c', ENTER, silent=True)
    session.log(said)
    if words not in said:
        session.error(f'the message is not: {words}')

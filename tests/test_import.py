"""``import capturekit`` needs NumPy alone and costs little; what is missing is said when a capture first needs it."""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
#: How many modules importing capturekit may load beyond NumPy, of which 2.0 leaves it more of Python's own.
MODULES = 260 if metadata.version('numpy').startswith('2.0') else 250
#: What takes long to import, and what only commands, pages and the simulated device need.
HEAVY = frozenset(
    'argparse asyncio cProfile concurrent.futures.thread doctest email http importlib.metadata multiprocessing pdb '
    'sqlite3 subprocess tkinter unittest xml'.split()
)
LATER = (
    'capturekit.cli.main', 'capturekit.cli.lint', 'capturekit.simulated', 'capturekit.fusion', 'capturekit.lanes',
)  # fmt: skip

BLOCK = """
import importlib.abc, sys

class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in {blocked!r}:
            raise ModuleNotFoundError(f'No module named {{name!r}}', name=name)

sys.meta_path.insert(0, Block())
"""


def python(code: str, blocked: tuple[str, ...] = ()) -> str:
    """Run code in a process that can't import the blocked packages, and return what it prints."""
    code = BLOCK.format(blocked=blocked) + code
    ran = subprocess.run([sys.executable, '-c', code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def first_capture(cupy: str, blocked: tuple[str, ...]) -> str:
    """What entering a capture says, after ``cupy`` (code) has run."""
    return python(
        f'{cupy}\n'
        'import capturekit as ck\n'
        'try:\n'
        '    ck.capture().__enter__()\n'
        'except ImportError as error:\n'
        '    print(error)\n'
        'import gc\n'
        'from capturekit.guard import GUARD\n'
        'assert gc.isenabled() and not GUARD.installation.installed and not GUARD.lives\n',
        blocked,
    )


def test_import_needs_numpy_alone() -> None:
    loaded = python('import capturekit\nprint(*sorted(sys.modules), sep="\\n")', ('cupy', 'cupyx', 'cuda')).split()
    assert 'capturekit.recorder.capture' in loaded
    at_the_start = python('print(*sys.modules)').split()  # cuda-bindings 12.9 comes with a .pth file that imports some
    more = [name for name in loaded if name not in at_the_start]
    assert not [name for name in more if name.startswith(('capturekit.simulated', 'cupy', 'cuda'))]
    standard = {*sys.stdlib_module_names, *sys.builtin_module_names}
    packages = {name.partition('.')[0] for name in loaded} - standard
    ours = {name for name in packages if not name.startswith(('_', 'site'))} - {'sitecustomize', 'usercustomize'}
    in_numpy_alone = python('import numpy\nprint(*sorted(sys.modules), sep="\\n")').split()
    assert ours - {name.partition('.')[0] for name in in_numpy_alone} == {'capturekit'}


def test_import_loads_little_beyond_numpy() -> None:
    """What costs time at an import is how much is imported, which is the same on a busy machine."""
    code = 'import sys, numpy\nbefore = set(sys.modules)\nimport capturekit\nprint(*set(sys.modules) - before)\n'
    more = python(code).split()
    assert HEAVY.isdisjoint(more)
    assert not [name for name in more if name.startswith(LATER)]
    assert len(more) < MODULES, sorted(more)


def test_a_capture_needs_no_extension() -> None:
    code = """
import sys
from capturekit import simulated
simulated.install()
import capturekit as ck, cupy as cp
x = cp.arange(4.0)
with ck.capture() as cap:
    with cap.fork(2) as (left, right):
        with left: a = x + 1
        with right: b = x * 2
    y = a + b
cap.graph.launch()
cap.graph.disable(0)
other = cap.graph.clone()
print(y.get().tolist(), len(other.nodes), cap.graph.races().certain, *sys.modules)
"""
    result, _, modules = python(code).partition(']')
    assert result == '[1.0, 4.0, 7.0, 10.0'
    assert not [name for name in modules.split() if name.startswith(('capturekit.fusion', 'capturekit.lanes'))]


def test_without_cupy_the_extra_is_named() -> None:
    said = first_capture('', ('cupy', 'cuda'))
    assert "pip install 'capturekit[cuda13]'" in said
    assert '[cuda12]' in said
    assert 'run --simulate' in said


def test_without_cuda_bindings_the_extra_is_named() -> None:
    said = first_capture(
        'import types; sys.modules["cupy"] = m = types.ModuleType("cupy"); m.__version__ = "14.0.1"', ('cuda',)
    )
    assert 'cuda-bindings' in said
    assert re.search(r"pip install 'capturekit\[cuda1[23]\]'", said)


def test_simulated_exports_lazily() -> None:
    names = ['install', 'uninstall', 'SimulatedDevice', 'body']
    code = (
        'import capturekit.simulated as simulated\n'
        'print([n for n in sys.modules if n.startswith("capturekit.simulated.")])\n'
        f'print([getattr(simulated, name).__name__ for name in {names} if name in dir(simulated)])'
    )
    assert python(code) == f'[]\n{names}'


def test_simulated_has_no_other_names() -> None:
    import capturekit.simulated

    with pytest.raises(AttributeError, match='no_such_name'):
        capturekit.simulated.no_such_name  # noqa: B018


def test_files_that_are_no_code_are_installed() -> None:
    """``setup.cfg`` names each of them: without, they would be missing where capturekit was not run from its source."""
    named = configparser.ConfigParser()
    named.read(ROOT / 'setup.cfg')
    told = {
        ROOT.joinpath(*package.split('.'), name.strip())
        for package, names in named['options.package_data'].items()
        for name in names.split(',')
    }
    found = {
        path
        for path in (ROOT / 'capturekit').rglob('*')
        if path.is_file() and path.suffix not in ('.py', '.pyc', '.pyo')
    }
    assert told == found


def test_marked_as_typed() -> None:
    import capturekit

    assert Path(capturekit.__file__).with_name('py.typed').exists()


def test_dir_has_the_api_and_errors_print_its_names() -> None:
    code = 'import traceback, capturekit as ck\nprint(sorted(dir(ck)) == sorted([*ck.__all__, "__version__"]))\n'
    told = python(f'{code}print(traceback.format_exception_only(ck.HostReadError("a read"))[0])')
    assert told.splitlines()[:2] == ['True', 'capturekit.HostReadError: a read']

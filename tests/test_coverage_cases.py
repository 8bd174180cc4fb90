"""The cases of tests/gpu/coverage, as far as they can be judged without a GPU, and what came of them on one."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gpu.coverage import cases
from tests.gpu.coverage.run import without_folders

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / 'tests' / 'gpu' / 'coverage'
RESULTS = FOLDER / 'results.json'

#: Reads dotted names as JSON and prints CuPy's version and those that don't exist. Of a package that can't be imported
#: without the CUDA libraries it reads the names that its ``__init__.py`` imports or defines.
RESOLVE = r"""
import ast, importlib, json, pathlib, sys, warnings
warnings.simplefilter('ignore')
import cupy, cupyx

def exported(path):
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.names[0].name == '*':
            yield from exported(path.parent / f'{node.module.rpartition(".")[2]}.py')
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from ((name.asname or name.name).split('.')[0] for name in node.names)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name

missing = []
for module, names in json.load(sys.stdin):
    try:
        found = importlib.import_module(module)
    except ImportError:
        path = pathlib.Path(cupyx.__file__).parent.joinpath(*module.split('.')[1:], '__init__.py')
        if names[0] not in set(exported(path)):
            missing.append([module, *names])
        continue
    for name in names:
        if not hasattr(found, name):
            missing.append([module, *names])
            break
        found = getattr(found, name)
print(json.dumps([cupy.__version__, missing]))
"""


def chains(tree: ast.AST) -> Iterator[tuple[str, list[str]]]:
    """Names that begin with one of the modules: ``cp.linalg.svd`` is ``('cupy', ['linalg', 'svd'])``."""
    for node in ast.walk(tree):
        names: list[str] = []
        while isinstance(node, ast.Attribute):
            names.insert(0, node.attr)
            node = node.value
        if isinstance(node, ast.Name) and node.id in cases.MODULES and names:
            yield cases.MODULES[node.id], names


def test_every_function_of_a_case_exists_in_cupy() -> None:
    trees = [ast.parse(text, mode='eval') for text in (*cases.ALL.values(), *cases.ARRAYS.values())]
    helpers = ast.parse((FOLDER / 'functions.py').read_text())
    asked = sorted({(module, *names) for tree in [*trees, helpers] for module, names in chains(tree)})
    assert len(asked) > 300
    told = subprocess.run(
        [sys.executable, '-c', RESOLVE],
        input=json.dumps([[module, names] for module, *names in asked]),
        capture_output=True,
        text=True,
        timeout=120,
    )
    if 'No module named' in told.stderr and 'cupy' in told.stderr:
        pytest.skip('CuPy is not installed')
    assert told.returncode == 0, told.stderr
    version, missing = json.loads(told.stdout)
    if not version.startswith('14.'):
        pytest.skip(f'the cases are written for CuPy 14, this is {version}')
    assert missing == []


def test_committed_results_have_each_case() -> None:
    assert {row['label'] for row in json.loads(RESULTS.read_text())['rows']} >= cases.ALL.keys()


def test_results_name_no_folder_of_a_machine() -> None:
    assert re.search(r'/(?:home|root|usr|opt|tmp|work)/', RESULTS.read_text()) is None
    crash = json.dumps({'text': 'File "/home/me/tests/child.py", line 7 in run File "/home/me/tes ...'})
    assert json.loads(without_folders(crash))['text'] == 'File "child.py", line 7 in run File "tes ...'


#: Prints, as JSON, what a strict capture of each case comes to that the simulated CuPy can run eagerly.
SIMULATED = r"""
import importlib, json, sys, types, warnings
warnings.simplefilter('ignore')
from capturekit.simulated import install
install()
import capturekit as ck
import cupyx

cupyx.GeneralizedUFunc = lambda *args: None
for name in json.load(sys.stdin):  # modules that it has not, which some helpers name
    try:
        importlib.import_module(name)
    except ImportError:
        parent, _, last = name.rpartition('.')
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__, sys.modules[name].cdist = [], None
        setattr(sys.modules[parent], last, sys.modules[name])
from tests.gpu.coverage import cases

found = {}
for label, expression in cases.ALL.items():
    try:
        fn = eval('lambda: ' + expression, cases.namespace(expression))
        fn()
    except (AttributeError, ImportError, NotImplementedError, TypeError, ValueError):
        continue  # not there
    try:
        with ck.capture():
            fn()
        found[label] = 'equal'
    except ck.CaptureError:
        found[label] = 'refused'
print(json.dumps(found))
"""
MISSING = [
    f'cupyx.{name}' for name in ('linalg', 'signal', *(f'scipy.{part}' for part in (
        'fft', 'interpolate', 'linalg', 'ndimage', 'signal', 'signal.windows', 'sparse.linalg', 'spatial',
        'spatial.distance', 'special', 'stats',
    )))
]  # fmt: skip
#: Cases that come to something else on a GPU, and why.
ONLY_ON_A_GPU = {'own pool': 'the pool has gone when the graph is launched, which this does not try'}


def test_the_simulated_cupy_refuses_what_a_gpu_refused() -> None:
    ran = subprocess.run(
        [sys.executable, '-c', SIMULATED], cwd=ROOT, input=json.dumps(MISSING), capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    rows = json.loads(RESULTS.read_text())['rows']
    on_a_gpu = {
        row['label']: row['outcome'] for row in rows if (row['column'], row['temperature']) == ('strict', 'warm')
    }
    assert len(found) > 300
    differing = {label for label, came in found.items() if (came == 'equal') != (on_a_gpu[label] == 'equal')}
    assert differing == ONLY_ON_A_GPU.keys()

"""Packages and folders of tests keep budgets; functions are short and flat, common ways through the code short."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
#: The most lines that each package may have, and the lines that it is to come down to.
PACKAGES = {
    'model': (4870, 4000),
    'render': (1670, 1100),
    'driver': (3900, 4000),
    'simulated': (9030, 5500),
    'launch': (2520, 2000),
    'guard': (8600, 7500),
    'analysis': (2520, 2500),
    'graph': (2620, 2500),
    'recorder': (2770, 2000),
    'fusion': (4990, 4000),
    'lanes': (1720, 1800),
    'graphed': (14880, 10000),
    'lab': (1260, 1100),
    'cli': (2440, 2000),
}
#: The same for the folders of tests; '' are the files beside them.
TESTS = {
    '': (3360, 1900),
    'agreement': (3970, 1800),
    'analysis': (1390, 1300),
    'benchmarks': (2270, 1200),
    'cli': (1970, 1400),
    'corpus': (6400, 3500),
    'data': (80, 100),
    'driver': (2990, 2200),
    'graphed': (4740, 4900),
    'fusion': (3490, 3000),
    'gpu': (6600, 6000),
    'graph': (2560, 2200),
    'guard': (6130, 5500),
    'lab': (1000, 600),
    'lanes': (1860, 1500),
    'launch': (1770, 1800),
    'ledger': (540, 550),
    'model': (2290, 2350),
    'packages': (2050, 1200),
    'recorder': (4070, 3500),
    'remedies': (250, 240),
    'render': (1180, 700),
    'simulated': (3880, 2200),
    'soak': (590, 400),
    'zoo': (450, 500),
}
#: The most calls of capturekit's functions on three ways through the code, and how many they are to come down to. Those
#: of the simulated device, which stands for CUDA and CuPy, are not counted.
HOPS = {
    'enter a capture': (140, 150),
    'one fork of two lanes': (165, 100),
    'the first call of a graphed function': (1200, 1200),
}
LINES_OF_A_FUNCTION, DEPTH, LENGTH_OF_A_NAME = 60, 4, 60
_BLOCKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.Match)
OWN = ('self', 'cls')
#: Names that begin with an underscore and are documented all the same: Python's (also of ctypes) and IPython's.
PROTOCOLS = ('_exit', '_getframe', '_name', '_repr_html_', '_repr_mimebundle_', '_render_traceback_')
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

#: How often a test reads a private attribute of an object that is not its own.
PRIVATE_READS = 75


@pytest.fixture(scope='module', autouse=True)
def forgotten() -> Iterator[None]:
    """A million objects of syntax trees would make each later collection of the process take a second and a half."""
    yield
    for kept in (trees, functions_in, private_names):
        kept.cache_clear()


def sources(folder: str) -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / folder).rglob('*.py')):
        yield path.relative_to(ROOT).as_posix(), path.read_text()


@cache
def trees(folder: str) -> dict[str, ast.Module]:
    """The syntax tree of each file."""
    return {path: ast.parse(text) for path, text in sources(folder)}


def functions_of(tree: ast.AST, inside: str = '') -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in ast.iter_child_nodes(tree):
        name = inside
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            name = f'{inside}.{node.name}' if inside else node.name
        if isinstance(node, _FUNCTIONS):
            yield name, node
        yield from functions_of(node, name)


def depth_of(node: ast.AST, depth: int = 0) -> int:
    """How many blocks lie inside each other in a function. An ``elif`` is as deep as its ``if``."""
    deepest = depth
    for field, value in ast.iter_fields(node):
        for inner in value if isinstance(value, list) else ():
            if not isinstance(inner, (ast.stmt, ast.ExceptHandler, ast.match_case)):
                continue
            if isinstance(inner, (*_FUNCTIONS, ast.ClassDef)):
                continue
            is_elif = isinstance(node, ast.If) and field == 'orelse' and isinstance(inner, ast.If) and len(value) == 1
            deepest = max(deepest, depth_of(inner, depth + (isinstance(inner, _BLOCKS) and not is_elif)))
    return deepest


def lines_of(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def lines_of_function(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The lines of a function without its docstring, which for a public one says a lot."""
    has_text = ast.get_docstring(node, clean=False) is not None
    return lines_of(node) - (lines_of(node.body[0]) if has_text else 0)


def over(found: Iterator[tuple[str, int]], limit: int) -> list[str]:
    """What is over a limit."""
    return [f'{name} has {number}' for name, number in found if number > limit]


@cache
def functions_in(folder: str) -> tuple[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef], ...]:
    return tuple((f'{path}: {name}', node) for path, tree in trees(folder).items() for name, node in functions_of(tree))


def lines_by_folder(folder: str) -> Counter[str]:
    """The lines of the Python files in each folder of a folder; '' for the files beside them. The corpus has texts."""
    found: Counter[str] = Counter()
    for corpus in (ROOT / folder).glob('corpus/*.txt'):
        found['corpus'] += len(corpus.read_text().splitlines())
    for path, text in sources(folder):
        inner = path.split('/')[1:-1]
        found[inner[0] if inner else ''] += len(text.splitlines())
    return found


@pytest.mark.parametrize(('folder', 'budgets'), [('capturekit', PACKAGES), ('tests', TESTS)])
def test_folders_keep_their_budgets(folder: str, budgets: dict[str, tuple[int, int]]) -> None:
    lines = lines_by_folder(folder)
    beside = {'': lines.pop('')} if folder == 'capturekit' else {}
    assert sum(beside.values()) < 250
    assert lines.keys() == budgets.keys()
    assert {name: (has, budgets[name]) for name, has in lines.items() if has > budgets[name][0]} == {}


def test_budgets_are_lowered_with_what_they_are_for() -> None:
    loose = {}
    for folder, budgets in (('capturekit', PACKAGES), ('tests', TESTS)):
        lines = lines_by_folder(folder)
        loose |= {name: (lines[name], most) for name, (most, _aim) in budgets.items() if most > 1.3 * lines[name] + 100}
    assert loose == {}


WAYS = """
import sys
from capturekit import simulated
simulated.install()
import capturekit as ck, cupy as cp

HERE = ck.__file__.removesuffix('__init__.py')
calls = 0

def count(frame, event, argument):
    global calls
    name = frame.f_code.co_filename
    calls += event == 'call' and name.startswith(HERE) and not name.startswith(HERE + 'simulated')

def counted(way, function):
    global calls
    calls = 0
    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
    return way, calls

def fork():
    with cap.fork(2) as (left, right):
        with left: pass
        with right: pass

x = cp.arange(4.0)
for _ in range(2):  # the first time there is more to do
    cap = ck.capture()
    entered = counted('enter a capture', cap.__enter__)
    y = x + 1
    forked = counted('one fork of two lanes', fork)
    cap.__exit__(None, None, None)
    graphed = ck.graphed(lambda x: x * 2 + 1)
    called = counted('the first call of a graphed function', lambda: graphed(x))
print(*entered, *forked, *called, sep='\\n')
"""


def test_ways_through_the_code_are_short() -> None:
    ran = subprocess.run([sys.executable, '-c', WAYS], cwd=ROOT, capture_output=True, text=True, check=True)
    told = ran.stdout.splitlines()
    hops = dict(zip(told[::2], map(int, told[1::2])))
    assert hops.keys() == HOPS.keys()
    assert {way: (n, HOPS[way]) for way, n in hops.items() if n > HOPS[way][0]} == {}
    assert min(hops.values()) > 10


def test_functions_are_short() -> None:
    found = ((name, lines_of_function(node)) for name, node in functions_in('capturekit'))
    assert over(found, LINES_OF_A_FUNCTION) == []


def test_functions_are_flat() -> None:
    found = ((name, depth_of(node)) for name, node in functions_in('capturekit'))
    assert over(found, DEPTH) == []


def test_what_is_frozen_stays_so() -> None:
    """Else each later test of the process is slower: what was imported is frozen, and gone through again."""
    at = {path for path, text in sources('tests') if 'gc.' + 'unfreeze()' in text}
    assert at == {'tests/frozen.py', 'tests/agreement/program_runner.py'}


def test_names_of_tests_are_short() -> None:
    found = ((name, len(node.name)) for name, node in functions_in('tests') if node.name.startswith('test_'))
    assert over(found, LENGTH_OF_A_NAME) == []


@cache
def private_names() -> frozenset[str]:
    """Names with one underscore that capturekit defines. The stand-in's own are CuPy's, which programs do use."""
    found: set[str] = set()
    for path, tree in trees('capturekit').items():
        for node in ast.walk(tree) if not path.startswith('capturekit/simulated/cupy/') else ():
            if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
                found.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                found.add(node.attr)
    return frozenset(name for name in found - set(PROTOCOLS) if name.startswith('_') and not name.startswith('__'))


def private_reads(tree: ast.Module) -> Iterator[ast.Attribute]:
    """Reads of ``thing._name`` of things that are not the test's own, by names that capturekit defines."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or node.attr not in private_names():
            continue
        if not (isinstance(node.value, ast.Name) and node.value.id in OWN):
            yield node


def test_each_class_has_a_name_of_its_own() -> None:
    """The simulated device has the names of what it stands for, and what has an underscore is its file's alone."""
    homes: dict[str, list[str]] = {}
    for path, tree in trees('capturekit').items():
        for node in tree.body if not path.startswith('capturekit/simulated/') else ():
            if isinstance(node, ast.ClassDef) and not node.name.startswith('_'):
                homes.setdefault(node.name, []).append(path)
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


def test_tests_use_public_names() -> None:
    every = trees('tests').items()
    found = [f'{path}:{node.lineno} {node.attr}' for path, tree in every for node in private_reads(tree)]
    assert len(found) <= PRIVATE_READS, found

"""Functions and modules stay short and flat. What is longer stands in a list, with its number, and may only shrink."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
LINES_OF_A_FUNCTION, DEPTH, LINES_OF_A_MODULE, LINES_OF_A_TEST_FILE, LENGTH_OF_A_NAME = 60, 4, 500, 600, 60
#: A literal of so many lines at the top of a module is a table, and its lines do not count.
TABLE = 6
_BLOCKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.Match)
OWN = ('self', 'cls')
#: Names that begin with an underscore and are documented all the same: Python's (also of ctypes) and IPython's.
PROTOCOLS = ('_exit', '_getframe', '_name', '_repr_html_', '_repr_mimebundle_', '_render_traceback_')
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

#: The lines of functions that are still too long.
LONG_FUNCTIONS: dict[str, int] = {}
#: How deep blocks are still nested, where that is too deep.
DEEP_FUNCTIONS: dict[str, int] = {}
#: The lines of modules that are still too long, their tables not counted.
LONG_MODULES: dict[str, int] = {}
#: The lines of test files that are still too long, their tables not counted.
LONG_TEST_FILES: dict[str, int] = {
    'tests/gpu/coverage/names.py': 984,
}
#: The lengths of test names that are still too long.
LONG_TEST_NAMES: dict[str, int] = {}
#: How often a test reads a private attribute of an object that is not its own.
PRIVATE_READS = 75


@pytest.fixture(scope='module', autouse=True)
def forgotten() -> Iterator[None]:
    """A million objects of syntax trees would make each later collection of the process take a second and a half."""
    yield
    for kept in (sources, functions_in, private_names):
        kept.cache_clear()


@cache
def sources(folder: str) -> tuple[tuple[str, str], ...]:
    return tuple(
        (path.relative_to(ROOT).as_posix(), path.read_text()) for path in sorted((ROOT / folder).rglob('*.py'))
    )


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


def lines_of_module(text: str) -> int:
    """The lines of a module without its tables."""
    tables = [node for node in ast.parse(text).body if isinstance(node, (ast.Assign, ast.AnnAssign))]
    return len(text.splitlines()) - sum(lines for lines in map(lines_of, tables) if lines >= TABLE)


def off(found: Iterator[tuple[str, int]], limit: int, exceptions: dict[str, int]) -> list[str]:
    """What is over the limit and over its exception, and exceptions that nothing needs any more."""
    over = {name: number for name, number in found if number > limit}
    grown = [f'{name} has {number}' for name, number in over.items() if number > exceptions.get(name, limit)]
    return grown + [f'{name} needs no exception' for name in exceptions if name not in over]


@cache
def functions_in(folder: str) -> tuple[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef], ...]:
    found = ((path, functions_of(ast.parse(text))) for path, text in sources(folder))
    return tuple((f'{path}: {name}', node) for path, functions in found for name, node in functions)


def test_functions_are_short() -> None:
    found = ((name, lines_of_function(node)) for name, node in functions_in('capturekit'))
    assert off(found, LINES_OF_A_FUNCTION, LONG_FUNCTIONS) == []


def test_functions_are_flat() -> None:
    found = ((name, depth_of(node)) for name, node in functions_in('capturekit'))
    assert off(found, DEPTH, DEEP_FUNCTIONS) == []


def test_modules_are_short() -> None:
    found = ((path, lines_of_module(text)) for path, text in sources('capturekit'))
    assert off(found, LINES_OF_A_MODULE, LONG_MODULES) == []


def test_test_files_are_short() -> None:
    found = ((path, lines_of_module(text)) for path, text in sources('tests'))
    assert off(found, LINES_OF_A_TEST_FILE, LONG_TEST_FILES) == []


def test_what_is_frozen_stays_so() -> None:
    """Else each later test of the process is slower: what was imported is frozen, and gone through again."""
    at = {path for path, text in sources('tests') if 'gc.' + 'unfreeze()' in text}
    assert at == {'tests/frozen.py', 'tests/agreement/program_runner.py'}


def test_names_of_tests_are_short() -> None:
    found = ((name, len(node.name)) for name, node in functions_in('tests') if node.name.startswith('test_'))
    assert off(found, LENGTH_OF_A_NAME, LONG_TEST_NAMES) == []


@cache
def private_names() -> frozenset[str]:
    """Names with one underscore that capturekit defines. The stand-in's own are CuPy's, which programs do use."""
    found: set[str] = set()
    for path, text in sources('capturekit'):
        for node in ast.walk(ast.parse(text)) if not path.startswith('capturekit/simulated/cupy/') else ():
            if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
                found.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                found.add(node.attr)
    return frozenset(name for name in found - set(PROTOCOLS) if name.startswith('_') and not name.startswith('__'))


def private_reads(text: str) -> Iterator[ast.Attribute]:
    """Reads of ``thing._name`` of things that are not the test's own, by names that capturekit defines."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Attribute) or node.attr not in private_names():
            continue
        if not (isinstance(node.value, ast.Name) and node.value.id in OWN):
            yield node


def test_each_class_has_a_name_of_its_own() -> None:
    """The simulated device has the names of what it stands for, and what has an underscore is its file's alone."""
    homes: dict[str, list[str]] = {}
    for path, text in sources('capturekit'):
        for node in ast.parse(text).body if not path.startswith('capturekit/simulated/') else ():
            if isinstance(node, ast.ClassDef) and not node.name.startswith('_'):
                homes.setdefault(node.name, []).append(path)
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


def test_tests_use_public_names() -> None:
    found = [f'{path}:{node.lineno} {node.attr}' for path, text in sources('tests') for node in private_reads(text)]
    assert len(found) <= PRIVATE_READS, found


def test_the_measures_see_what_they_are_for() -> None:
    text = '''def f():
    """Text."""
    if 1:
        for _ in ():
            pass
    elif 2:
        pass
    else:
        x._lock
'''
    ((_, function),) = functions_of(ast.parse(text))
    assert (lines_of_function(function), depth_of(function), lines_of_module(text)) == (8, 2, 9)
    assert [node.attr for node in private_reads(text)] == ['_lock']
    assert off(iter([('f', 8), ('g', 9)]), 7, {'f': 8, 'h': 9}) == ['g has 9', 'h needs no exception']
    assert lines_of_module('a = 1\nTABLE = [\n' + '    1,\n' * 5 + ']\n') == 1

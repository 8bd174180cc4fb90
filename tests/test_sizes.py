"""Functions and modules stay short and flat. What is longer stands in a list, with its number, and may only shrink."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
LINES_OF_A_FUNCTION, DEPTH, LINES_OF_A_MODULE, LINES_OF_A_TEST_FILE, LENGTH_OF_A_NAME = 40, 4, 500, 600, 60
#: A literal of so many lines at the top of a module is a table, and its lines do not count.
TABLE = 6
_BLOCKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.Match)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

#: The lines of functions that are still too long. The docstring counts.
LONG_FUNCTIONS = {
}
#: How deep blocks are still nested, where that is too deep.
DEEP_FUNCTIONS = {
}
#: The lines of modules that are still too long, their tables not counted.
LONG_MODULES = {
}
#: The lines of test files that are still too long, their tables not counted.
LONG_TEST_FILES = {
}
#: How often a test reads a private attribute of an object that is not its own.
PRIVATE_READS = 0


def sources(folder: str) -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / folder).rglob('*.py')):
        yield path.relative_to(ROOT).as_posix(), path.read_text()


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


def lines_of_module(text: str) -> int:
    """The lines of a module without its tables."""
    tables = [node for node in ast.parse(text).body if isinstance(node, (ast.Assign, ast.AnnAssign))]
    return len(text.splitlines()) - sum(lines for lines in map(lines_of, tables) if lines >= TABLE)


def off(found: Iterator[tuple[str, int]], limit: int, exceptions: dict[str, int]) -> list[str]:
    """What is over the limit and over its exception, and exceptions that nothing needs any more."""
    over = {name: number for name, number in found if number > limit}
    grown = [f'{name} has {number}' for name, number in over.items() if number > exceptions.get(name, limit)]
    return grown + [f'{name} needs no exception' for name in exceptions if name not in over]


def functions_in(folder: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for path, text in sources(folder):
        for name, node in functions_of(ast.parse(text)):
            yield f'{path}: {name}', node


def test_functions_are_short() -> None:
    found = ((name, lines_of(node)) for name, node in functions_in('capturekit'))
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


def test_names_of_tests_are_short() -> None:
    found = ((name, len(node.name)) for name, node in functions_in('tests') if node.name.startswith('test_'))
    assert off(found, LENGTH_OF_A_NAME, {}) == []


def private_reads(text: str) -> Iterator[ast.Attribute]:
    """Reads of ``thing._name``, where ``thing`` is neither the test's own ``self`` or ``cls`` nor a double underscore."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and node.attr.startswith('_') and not node.attr.startswith('__'):
            if not (isinstance(node.value, ast.Name) and node.value.id in ('self', 'cls')):
                yield node


def test_tests_use_public_names() -> None:
    found = [f'{path}:{node.lineno} {node.attr}' for path, text in sources('tests') for node in private_reads(text)]
    assert len(found) <= PRIVATE_READS, found


def test_the_measures_see_what_they_are_for() -> None:
    text = 'def f():\n    if 1:\n        for _ in ():\n            pass\n    elif 2:\n        pass\n    else:\n        x._y\n'
    (_, function), = functions_of(ast.parse(text))
    assert (lines_of(function), depth_of(function), lines_of_module(text)) == (8, 2, 8)
    assert [node.attr for node in private_reads(text)] == ['_y']
    assert off(iter([('f', 8), ('g', 9)]), 7, {'f': 8, 'h': 9}) == ['g has 9', 'h needs no exception']
    assert lines_of_module('a = 1\nTABLE = [\n' + '    1,\n' * 5 + ']\n') == 1

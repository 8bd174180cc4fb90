"""The packages import only from those before them: seen in the code as text, wherever in a file an import stands.

The extensions come after the core, so that it imports none of them: ``extensions.py`` hands it what they do.
"""

from __future__ import annotations

import ast
import dis
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from capturekit.model.code_steps import UNDERSTOOD

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1] / 'capturekit'
#: From the ground up. A package imports from itself and from those before it.
LAYERS = (
    'model', 'render', 'driver', 'simulated', 'launch', 'guard', 'analysis', 'graph', 'recorder', 'fusion', 'lanes',
    'graphed', 'lab', 'cli',
)  # fmt: skip
#: May be deleted, and the rest still works; none imports another one.
EXTENSIONS = ('fusion', 'lanes', 'graphed')
#: The reports that an extension returns. Others name them for type checkers alone.
REPORTS = ('capturekit.fusion.report', 'capturekit.lanes.report')
#: Belong to no package: the version, below all others, and the three modules above all others.
BELOW, ABOVE = ('_version',), ('__init__', '__main__', 'extensions')
MODULES = {
    '.'.join(path.relative_to(ROOT.parent).with_suffix('').parts).removesuffix('.__init__'): path
    for path in sorted(ROOT.rglob('*.py'))
}


def imports_of(name: str, path: Path) -> Iterator[tuple[str, int]]:
    """What a file imports of capturekit, with the line: in functions, for type checkers, by a string as well."""
    inside = name if path.name == '__init__.py' else name.rpartition('.')[0]
    tree = ast.parse(path.read_text())
    checked = {node for one in ast.walk(tree) if for_type_checkers(one) for node in ast.walk(one)}
    for node in ast.walk(tree):
        if node in checked and isinstance(node, ast.ImportFrom) and node.module in REPORTS:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = inside.split('.')
            base = '.'.join([*above[: len(above) - node.level + 1], node.module or '']).rstrip('.')
            base = base if node.level else str(node.module)
            for alias in node.names:
                full = f'{base}.{alias.name}'
                yield (full if full in MODULES else base), node.lineno
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and '.' in node.value:
            yield node.value, node.lineno


def for_type_checkers(node: ast.AST) -> bool:
    """Whether it is a block that is never run."""
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == 'TYPE_CHECKING'


@cache
def found() -> dict[str, list[tuple[str, int]]]:
    return {
        name: [(other, line) for other, line in imports_of(name, path) if other in MODULES and other != name]
        for name, path in MODULES.items()
    }


def layer(name: str) -> int:
    """The number of a module's package; -1 below all, a high one above all."""
    part = name.split('.')[1] if '.' in name else '__init__'
    if part in BELOW:
        return -1
    return len(LAYERS) if part in ABOVE else LAYERS.index(part)


def test_every_file_lies_in_a_package() -> None:
    assert {p.stem for p in ROOT.glob('*.py')} == {*BELOW, *ABOVE}
    assert {p.name for p in ROOT.iterdir() if p.is_dir() and p.name != '__pycache__'} == set(LAYERS)


def imports(packages: Sequence[str], wrong: Callable[[str, str], bool]) -> list[str]:
    """What modules of some packages import that is wrong, of which they and what they import are asked."""
    return [
        f'{name}:{line} imports {other}'
        for name, others in found().items()
        if name.split('.')[1:2] and name.split('.')[1] in packages
        for other, line in others
        if wrong(name, other)
    ]


@pytest.mark.parametrize('package', LAYERS)
def test_imports_go_down_only(package: str) -> None:
    assert imports([package], lambda name, other: layer(other) > layer(name)) == []


def test_graphs_do_not_know_the_guard() -> None:
    """What they ask of it is handed in: ``launch/gate.py``."""
    packages = 'analysis', 'graph', 'fusion', 'lanes'
    assert imports(packages, lambda _name, other: f'{other}.'.startswith('capturekit.guard.')) == []


@pytest.mark.parametrize('extension', EXTENSIONS)
def test_extensions_import_no_other_extension(extension: str) -> None:
    others = set(EXTENSIONS) - {extension}
    assert imports([extension], lambda _name, other: other.split('.')[1] in others) == []


def test_no_file_imports_itself_by_way_of_others() -> None:
    try:
        TopologicalSorter({name: {other for other, _ in others} for name, others in found().items()}).prepare()
    except CycleError as error:
        pytest.fail(' -> '.join(error.args[1]))


def test_locks_are_given_back() -> None:
    """Plain ones are not: they stand where nothing that a signal could interrupt follows, or for code of CuPy's."""
    made = {path.stem for path in ROOT.rglob('*.py') if re.search(r'threading\.R?Lock\(\)', path.read_text())}
    assert made == {'cupti', 'faster_way', 'memory', 'watched_objects'}


def test_one_file_names_instructions() -> None:
    names = UNDERSTOOD | {*dis.opmap}
    files = {path: ast.walk(ast.parse(path.read_text())) for path in ROOT.rglob('*.py') if path.stem != 'code_steps'}
    texts = [(path, node.value) for path, nodes in files.items() for node in nodes if isinstance(node, ast.Constant)]
    assert [found for found in texts if str(found[1]).isupper() and {*found[1].split()} & names] == []

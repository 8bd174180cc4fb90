"""A graph is put together of parts: no class among them stands on a base that has a base of its own."""

from __future__ import annotations

import ast
from pathlib import Path

import capturekit
from capturekit.graph.executable import Graph

FOLDER = Path(capturekit.__file__).parent / 'graph'


def test_no_base_has_a_base_of_its_own() -> None:
    found: dict[str, list[str]] = {}
    for path in FOLDER.glob('*.py'):
        for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
            if isinstance(node, ast.ClassDef):
                found[node.name] = [base.id for base in node.bases if isinstance(base, ast.Name)]
    assert 'Graph' in found
    deep = {name: bases for name, bases in found.items() for base in bases if set(found.get(base, ())) & found.keys()}
    assert deep == {}


def test_a_graph_has_its_state_and_its_launch() -> None:
    assert [one.__name__ for one in Graph.__mro__] == ['Graph', 'object']
    assert set(Graph.__slots__) == {'__weakref__', '_state', 'counted', 'launch'}
    assert '__dict__' not in dir(Graph)

"""The remedies of messages, as the source has them, and the code that they tell people to write."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import capturekit
from capturekit.graphed.reasons import Why
from capturekit.guard.remedies import _INSTEAD
from capturekit.model.rules import RULES, VARIANTS

_PACKAGE = Path(capturekit.__file__).parent


def remedies() -> dict[str, str]:
    """Each remedy and the file that makes it; ``{}`` stands for what is filled in."""
    found: dict[str, str] = {}
    trees = {path: ast.parse(path.read_text()) for path in sorted(_PACKAGE.rglob('*.py')) if path.name != 'rules.py'}
    places = dict(place for tree in trees.values() for place in _places(tree))
    for path, tree in trees.items():
        known = dict(_known(tree))
        for node in ast.walk(tree):
            for value in _values(node, places):
                found.update((text, str(path.relative_to(_PACKAGE))) for text in _texts(value, known))
    for rules, file in (RULES, 'model/rules.py'), (VARIANTS, 'model/rules.py'):
        found.update((text, file) for rule in rules.values() for text in (rule.remedy, rule.waited) if text)
    found.update((text, 'guard/remedies.py') for text in _INSTEAD.values())
    found.update((why.remedy, 'graphed/reasons.py') for why in Why)
    return found


def _known(tree: ast.Module) -> Iterator[tuple[str, list[ast.expr]]]:
    """The constants of a module, and what its functions return."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, [node.value]
        elif isinstance(node, ast.FunctionDef):
            yield node.name, _returned(node)


def _places(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Functions that take a remedy, and at which place of a call."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            names = [one.arg for one in node.args.args if one.arg != 'self']
            if 'remedy' in names and node.name != '__init__':
                yield node.name, names.index('remedy')


def _returned(function: ast.FunctionDef) -> list[ast.expr]:
    return [node.value for node in ast.walk(function) if isinstance(node, ast.Return) and node.value is not None]


def _values(node: ast.AST, places: Mapping[str, int]) -> Iterator[ast.expr]:
    """What is given as, or stored in, ``remedy``; what a property of that name returns; what refusals get by place."""
    if isinstance(node, ast.Call):
        place = places.get(getattr(node.func, 'attr', getattr(node.func, 'id', '')), len(node.args))
        yield from node.args[place : place + 1]
    if isinstance(node, ast.keyword) and node.arg == 'remedy':
        yield node.value
    elif isinstance(node, ast.FunctionDef) and node.name == 'remedy' and node.args.args[0].arg == 'self':
        yield from _returned(node)
    elif isinstance(node, ast.Name) and node.id.startswith(('_REMEDY', '_CALLED')):
        yield node
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            for name, value in zip(names, values):
                if isinstance(name, ast.Name) and name.id == 'remedy':
                    yield value


def _texts(node: ast.expr, known: Mapping[str, list[ast.expr]]) -> Iterator[str]:
    if isinstance(node, ast.Constant) and node.value:
        yield str(node.value)
    elif isinstance(node, ast.JoinedStr):
        yield ''.join(str(part.value) if isinstance(part, ast.Constant) else '{}' for part in node.values)
    elif isinstance(node, ast.IfExp):
        yield from _texts(node.body, known)
        yield from _texts(node.orelse, known)
    elif isinstance(node, ast.BoolOp):
        yield from (text for value in node.values for text in _texts(value, known))
    elif isinstance(node, (ast.Name, ast.Call)):
        name = node.id if isinstance(node, ast.Name) else getattr(node.func, 'id', '')
        yield from (text for value in known.get(name, ()) for text in _texts(value, known))


def which(said: str, of: Mapping[str, str]) -> str | None:
    """The remedy that a message has."""
    for text in sorted(of, key=len, reverse=True):
        if text.strip('{}') and re.fullmatch('.+?'.join(map(re.escape, text.split('{}'))), said.strip()):
            return text
    return None


def told(remedy: str) -> list[str]:
    """The code in a remedy, as it is written there; what is filled in splits it."""
    codes = [
        code
        for code in re.findall(r'`([^`]+)`', remedy)
        if not code.startswith(('capturekit ', 'if', 'try', 'finally'))
    ]
    return [part for code in codes for part in re.split(r'{}|\.\.\.', code) if part.strip()]

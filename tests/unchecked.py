"""Which results of an example nobody checks: arrays made in a capture that reach no assertion and no output."""

from __future__ import annotations

import ast
from collections.abc import Iterator

#: Methods that change no array.
_QUIET = {'launch', 'capture', 'wait_event', 'record', 'join', 'fork'}
_MODULES = {'cp', 'ck', 'np', 'cap'}


def unchecked(code: str) -> list[tuple[int, str]]:
    """The line and the name of each array that a script makes, in a capture that it launches or by a graphed function,
    and never checks.

    A name is checked if an assertion, a condition of ``raise`` or a ``print`` has it, or what writes a checked name,
    before the name stands for something else.
    """
    tree = ast.parse(code)
    return sorted({(line, name) for first, line, name in _made(tree) if not _is_checked(tree, first, name)})


def _is_checked(tree: ast.Module, first: int, name: str) -> bool:
    block = next(node for node in tree.body if node.lineno <= first <= (node.end_lineno or 0))
    again = [node.lineno for node in tree.body if node.lineno > block.lineno and name in _bound(node)]
    nodes = [node for node in ast.walk(tree) if first <= getattr(node, 'lineno', 0) < min(again, default=1 << 30)]
    if isinstance(block, ast.With) and not _is_launched(tree, block):
        return True  # nothing is computed
    checked = {one for node in nodes for one in _asked(node)}
    flows = [(_written(node), _names(node)) for node in nodes if isinstance(node, ast.stmt)]
    before = -1
    while before != len(checked):
        before = len(checked)
        for written, read in flows:
            checked |= read if written & checked else set()
    return name in checked


def _is_launched(tree: ast.Module, block: ast.With) -> bool:
    """Whether the graph of a capture is used, and something is launched before the next capture of that name."""
    name = _named(block)
    blocks = [node for node in tree.body if isinstance(node, ast.With) and node.lineno > block.lineno]
    end = min((node.lineno for node in blocks if _named(node) == name), default=1 << 30)
    used = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and block.lineno <= node.lineno < end]
    of_graph = any(node.attr == 'graph' and isinstance(node.value, ast.Name) and node.value.id == name for node in used)
    return of_graph and any(node.attr == 'launch' for node in used)


def _named(block: ast.With) -> str:
    return next((one.optional_vars.id for one in block.items if isinstance(one.optional_vars, ast.Name)), '')


def _made(tree: ast.Module) -> Iterator[tuple[int, int, str]]:
    """Names that are bound or changed in captures which come to their end: the line of the block, its own, the name."""
    refused = {id(one) for node in ast.walk(tree) if isinstance(node, ast.Try) for one in ast.walk(node)}
    graphed = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and _is_graphed(node)}
    for node in ast.walk(tree):
        if id(node) in refused:
            continue
        if isinstance(node, ast.With) and any(_is_capture(item.context_expr) for item in node.items):
            inner = (one for one in ast.walk(node) if isinstance(one, ast.AugAssign) or _computes(one))
            yield from ((node.lineno, one.lineno, name) for one in inner for name in _written(one))
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _names(node.value.func) & graphed:
            yield from ((node.lineno, node.lineno, name) for name in _bound(node))


def _computes(node: ast.AST) -> bool:
    return isinstance(node, ast.Assign) and any(isinstance(one, (ast.Call, ast.BinOp)) for one in ast.walk(node.value))


def _is_graphed(function: ast.FunctionDef) -> bool:
    return any('graphed' in ast.unparse(one) for one in function.decorator_list)


def _is_capture(call: ast.expr) -> bool:
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == 'capture'


def _asked(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Return) and node.value is not None:
        return _names(node.value)  # checked by the caller
    if isinstance(node, ast.Assert) or (isinstance(node, ast.If) and isinstance(node.body[0], ast.Raise)):
        return _names(node.test)
    called = node.func if isinstance(node, ast.Call) else None
    prints = isinstance(called, ast.Name) and called.id == 'print'
    return _names(node) if prints or (isinstance(called, ast.Attribute) and called.attr[:7] == 'assert_') else set()


def _bound(node: ast.AST) -> set[str]:
    inner = [one for one in ast.walk(node) if isinstance(one, ast.Assign)]
    return {
        name
        for one in inner
        for target in one.targets
        if not isinstance(target, ast.Subscript)
        for name in _names(target)
    }


def _written(node: ast.stmt) -> set[str]:
    """The names that a statement binds, or whose arrays it may change."""
    if isinstance(node, ast.For):
        return _names(node.iter)  # what the loop takes apart
    if not isinstance(node, (ast.Assign, ast.AugAssign, ast.Expr)):
        return set()
    targets: list[ast.AST] = [*getattr(node, 'targets', ()), *filter(None, [getattr(node, 'target', None)])]
    for call in (one for one in ast.walk(node) if isinstance(one, ast.Call)):
        targets += [word.value for word in call.keywords if word.arg == 'out']
        if isinstance(call.func, ast.Attribute) and call.func.attr not in _QUIET:
            targets.append(call.func.value)
    return {name for target in targets for name in _names(target)}


def _names(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)} - _MODULES

"""What the source of a ``with`` block tells: which statements in it leave the block, and which suspend it."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import FrameType

_SUSPEND = (ast.Yield, ast.YieldFrom, ast.Await, ast.AsyncFor, ast.AsyncWith)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.GeneratorExp)


@dataclass(frozen=True)
class Block:
    """A ``with`` block: the first ``break``, ``continue`` or ``return`` that leaves it, and its line; and the line of
    the first expression that suspends it. None where there is none."""

    left: tuple[str, int] | None
    suspended: int | None


def block_entered(frame: FrameType) -> Block | None:
    """The ``with`` block that a frame is entering; None where the source does not show one."""
    blocks = _blocks(''.join(linecache.getlines(frame.f_code.co_filename, frame.f_globals)))
    inner = max((lines for lines in blocks if frame.f_lineno in lines), key=lambda lines: lines.start, default=None)
    return None if inner is None else blocks[inner]


@functools.lru_cache(maxsize=16)
def _blocks(source: str) -> dict[range, Block]:
    """The blocks of all ``with`` statements, by the lines of their heads."""
    try:
        found = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.With)]
    except (SyntaxError, ValueError):  # a file that has changed, or none
        return {}
    return {
        range(node.lineno, max(node.body[0].lineno, node.lineno + 1)): Block(
            next(_leaving(node.body, False), None), next(_suspending([*node.items[1:], *node.body]), None)
        )
        for node in found
    }


def _leaving(nodes: Iterable[ast.AST], repeated: bool) -> Iterator[tuple[str, int]]:
    for node in nodes:
        if isinstance(node, ast.Return) or (isinstance(node, (ast.Break, ast.Continue)) and not repeated):
            yield type(node).__name__.lower(), node.lineno
        elif not isinstance(node, _FUNCTIONS):
            loops = isinstance(node, (ast.For, ast.While))
            yield from _leaving(ast.iter_child_nodes(node), repeated or loops)


def _suspending(nodes: Iterable[ast.AST]) -> Iterator[int]:
    for node in nodes:
        if isinstance(node, _SUSPEND):
            yield node.lineno
        elif isinstance(node, ast.comprehension) and node.is_async:
            yield node.target.lineno
        elif not isinstance(node, _FUNCTIONS):
            yield from _suspending(ast.iter_child_nodes(node))

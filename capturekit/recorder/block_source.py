"""What the source of a ``with`` block tells: which statements in it leave the block, and which suspend it."""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import FrameType

from capturekit.model.errors import GeneratorError
from capturekit.model.source_line import Place, here

_SUSPENDS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_SUSPEND = (ast.Yield, ast.YieldFrom, ast.Await, ast.AsyncFor, ast.AsyncWith)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.GeneratorExp)

_RULE = 'What runs while a block is suspended would be recorded as if it belonged to it.'
_REMEDY = (
    'Leave the `{}` block before `yield` or `await`, or put it into a plain function, and call that '
    'here; contextlib.contextmanager may wrap it.'
)


@dataclass(frozen=True)
class Block:
    """A ``with`` block: the first ``break``, ``continue`` or ``return`` that leaves it, and its line; and the line of
    the first expression that suspends it. None where there is none."""

    left: tuple[str, int] | None
    suspended: int | None


def block_owner(frame: FrameType) -> FrameType:
    """The frame to which the block that a frame enters belongs: contextlib, and generators that it drives, enter theirs
    for the one who calls them."""
    while (outer := frame.f_back) is not None:
        driven = frame.f_code.co_flags & _SUSPENDS and outer.f_code.co_filename.endswith('contextlib.py')
        if not driven and not frame.f_code.co_filename.endswith('contextlib.py'):
            break
        frame = outer
    return frame


def forbid_suspension(frame: FrameType, entered: str = 'with ck.capture()') -> None:
    """Raise GeneratorError where a frame may suspend the ``with`` block that it enters, by ``yield`` or ``await``.

    Generators that contextlib drives are allowed: while they are suspended, the user's own ``with`` block runs.
    """
    frame = block_owner(frame)
    if not frame.f_code.co_flags & _SUSPENDS:
        return
    block, at = block_entered(frame), here(frame)
    if block is None:
        what = 'A capture was opened in a generator or coroutine'
        rule = f'Its source does not show a `with` block that is entered here, and it may be suspended in it. {_RULE}'
    elif block.suspended is not None:
        what, rule = f'A generator suspends inside `{entered}`', _RULE
        at = Place(frame.f_code.co_filename, block.suspended, frame.f_code.co_name)
    else:
        return
    raise GeneratorError(what, location=at, rule=rule, remedy=_REMEDY.format(entered))


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

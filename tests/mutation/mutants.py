"""What could be wrong in a source file: one small change at a time, each as a replaced piece of its text."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator
from dataclasses import dataclass

_COMPARED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
}
_COUNTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.LShift: ast.RShift,
}
#: Kinds of mutants that are made in tables; there are so many that they may be sampled apart.
CELLS = ('cell', 'row')


@dataclass(frozen=True)
class Mutant:
    """One change. ``where`` is the function or class around it, '' at the top of the module."""

    kind: str
    where: str
    line: int
    start: int
    end: int
    text: str

    def applied(self, source: str) -> str:
        """The source with this change."""
        data = source.encode()
        return (data[: self.start] + self.text.encode() + data[self.end :]).decode()

    def lines(self, source: str) -> tuple[str, str]:
        """The lines that change, before and after, each without its indentation; several joined by ' / '."""
        before, after = source.splitlines(), self.applied(source).splitlines()
        matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
        changed = [code for code in matcher.get_opcodes() if code[0] != 'equal']
        old = [line.strip() for _tag, a, b, _c, _d in changed for line in before[a:b]]
        new = [line.strip() for _tag, _a, _b, c, d in changed for line in after[c:d]]
        return ' / '.join(old), ' / '.join(new)


def mutants(source: str, prose: tuple[str, ...] = ()) -> list[Mutant]:
    """Every change that the tool knows to make. Texts in what ``prose`` names, and in ``raise``, are left."""
    tree = ast.parse(source)
    found = _Finder(source, tree, prose)
    found.look(tree)
    unique: dict[str, Mutant] = {}
    for mutant in found.mutants:
        text = mutant.applied(source)
        if text != source and _parses(text):
            unique.setdefault(text, mutant)
    return list(unique.values())


def _parses(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


class _Finder:
    """Walks a module and collects mutants; knows its enums, its tables, and where it is."""

    def __init__(self, source: str, tree: ast.Module, prose: tuple[str, ...]) -> None:
        self.mutants: list[Mutant] = []
        self._starts = [0]
        for line in source.encode().splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._prose = prose
        self._enums = _enums(tree)
        self._scopes: list[ast.FunctionDef | ast.ClassDef] = []
        self._rows: set[ast.AST] = set()
        self._raised: set[ast.AST | None] = set()

    def look(self, node: ast.AST) -> None:
        """Collect from a node and what is in it."""
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            self._look_into(node)
            return
        if node in self._rows:  # its cells were changed with the table
            for keyword in node.keywords if isinstance(node, ast.Call) else []:
                self.look(keyword)
            return
        getattr(self, f'_on_{type(node).__name__.lower()}', lambda n: None)(node)
        if isinstance(node, (ast.If, ast.While, ast.IfExp)):
            self._condition(node.test)
        for child in self._children(node):
            self.look(child)

    def _look_into(self, node: ast.FunctionDef | ast.ClassDef) -> None:
        self._scopes.append(node)
        for child in self._children(node):
            self.look(child)
        self._scopes.pop()

    def _children(self, node: ast.AST) -> Iterator[ast.AST]:
        """What is in a node, but for what no behaviour hangs on: docstrings, annotations, texts for people."""
        if isinstance(node, ast.Assign) and self._scopes and self._scopes[-1].name in self._prose:
            return
        if isinstance(node, ast.Raise):
            self._raised.add(node.exc)
        texts = node in self._raised or (isinstance(node, ast.Call) and _spelled(node.func) in self._prose)
        for name, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else [value]:
                heard = isinstance(child, ast.AST) and name not in ('annotation', 'returns') and not _silent(child)
                if heard and not (texts and _text(child)):
                    yield child

    @property
    def _function(self) -> ast.FunctionDef | None:
        scope = self._scopes[-1] if self._scopes else None
        return scope if isinstance(scope, ast.FunctionDef) else None

    def _add(self, kind: str, node: ast.AST, text: str) -> None:
        assert isinstance(node, (ast.expr, ast.stmt))
        assert node.end_lineno is not None and node.end_col_offset is not None
        start = self._starts[node.lineno - 1] + node.col_offset
        end = self._starts[node.end_lineno - 1] + node.end_col_offset
        self.mutants.append(Mutant(kind, '.'.join(s.name for s in self._scopes), node.lineno, start, end, text))

    # -- expressions ------------------------------------------------------------------------------------------

    def _on_compare(self, node: ast.Compare) -> None:
        for i, op in enumerate(node.ops):
            for other in _COMPARED[type(op)]:
                ops = [*node.ops[:i], other(), *node.ops[i + 1 :]]
                self._add('compare', node, ast.unparse(ast.Compare(node.left, ops, node.comparators)))

    def _on_boolop(self, node: ast.BoolOp) -> None:
        other = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
        self._add('and/or', node, f'({ast.unparse(ast.BoolOp(other, node.values))})')
        for i in range(len(node.values)):
            rest = [*node.values[:i], *node.values[i + 1 :]]
            left = rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
            self._add('dropped part', node, f'({ast.unparse(left)})')

    def _on_unaryop(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._add('not', node, f'({ast.unparse(node.operand)})')

    def _condition(self, test: ast.expr) -> None:
        if not isinstance(test, (ast.Compare, ast.BoolOp, ast.UnaryOp)):
            self._add('condition', test, f'(not {ast.unparse(test)})')

    def _on_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._condition(test)

    def _on_binop(self, node: ast.BinOp) -> None:
        other = _COUNTED.get(type(node.op))
        if other is not None:
            self._add('arithmetic', node, f'({ast.unparse(ast.BinOp(node.left, other(), node.right))})')

    def _on_constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self._add('constant', node, str(not value))
        elif isinstance(value, int):
            self._add('constant', node, str(value + 1))
            self._add('constant', node, f'({value - 1})')
        elif isinstance(value, str):
            self._add('constant' if self._scopes else 'cell', node, repr(f'{value}_'))

    def _on_attribute(self, node: ast.Attribute) -> None:
        members = self._enums.get(_spelled(node.value), ())
        if node.attr in members:
            other = members[(members.index(node.attr) + 1) % len(members)]
            self._add('enum member', node, f'{ast.unparse(node.value)}.{other}')

    # -- tables -----------------------------------------------------------------------------------------------

    def _on_tuple(self, node: ast.Tuple | ast.List) -> None:
        if len(node.elts) > 1:
            for element in node.elts:
                self._drop(node, element)
        self._table(node.elts)

    def _table(self, elements: list[ast.expr]) -> None:
        """Three or more rows in a row: each cell counts."""
        rows = [element for element in elements if _cells(element)]
        if len(rows) < 3:
            return
        self._rows.update(rows)
        for i, row in enumerate(rows):
            for j, cell in enumerate(_cells(row)):
                if not (isinstance(row, ast.Call) and _spelled(row.func) in self._prose and _text(cell)):
                    self._swap(j, cell, rows[i + 1 :] + rows[:i])

    def _swap(self, column: int, cell: ast.expr, others: list[ast.expr]) -> None:
        """A cell gets what the next row has that differs there."""
        column_of = [_cells(other)[column] for other in others if len(_cells(other)) > column]
        different = next((text for text in map(_spelled, column_of) if text != _spelled(cell)), None)
        if different is not None:
            self._add('cell', cell, different)

    _on_list = _on_tuple

    def _on_set(self, node: ast.Set) -> None:
        for element in node.elts:
            self._drop(node, element)

    def _drop(self, node: ast.Tuple | ast.List | ast.Set, element: ast.expr) -> None:
        if isinstance(node, ast.Set) or isinstance(node.ctx, ast.Load):
            self._add('row', element, '*()')

    # -- statements -------------------------------------------------------------------------------------------

    def _on_return(self, node: ast.Return) -> None:
        if node.value is None:
            self._add('dropped', node, 'pass')
        elif self._function is not None and _spelled(self._function.returns) == 'bool':
            self._add('return', node, f'return not ({ast.unparse(node.value)})')
        elif not (isinstance(node.value, ast.Constant) and node.value.value is None):
            self._add('return', node, 'return None')

    def _on_expr(self, node: ast.Expr) -> None:
        self._add('dropped', node, 'pass')

    _on_continue = _on_raise = _on_delete = _on_expr

    def _on_assign(self, node: ast.Assign) -> None:
        if self._function is not None:
            self._add('dropped', node, 'pass')

    def _on_augassign(self, node: ast.AugAssign) -> None:
        self._add('dropped', node, 'pass')
        other = _COUNTED.get(type(node.op))
        if other is not None:
            self._add('arithmetic', node, ast.unparse(ast.AugAssign(node.target, other(), node.value)))

    def _on_call(self, node: ast.Call) -> None:
        self._table(node.args)
        for keyword in node.keywords:
            if keyword.arg is not None:
                rest = [k for k in node.keywords if k is not keyword]
                self._add('keyword', node, ast.unparse(ast.Call(node.func, node.args, rest)))


def _enums(tree: ast.Module) -> dict[str, tuple[str, ...]]:
    """The members of each enum that the module makes, also by the names that it gives them for short."""
    found: dict[str, tuple[str, ...]] = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and any(_spelled(base).endswith('Enum') for base in node.bases):
            targets = [s.targets[0] for s in node.body if isinstance(s, ast.Assign)]
            found[node.name] = tuple(t.id for t in targets if isinstance(t, ast.Name))
        elif isinstance(node, ast.Assign) and _spelled(node.value) in found:
            found[_spelled(node.targets[0])] = found[_spelled(node.value)]
    return found


def _silent(node: ast.AST) -> bool:
    """True for docstrings, ``__all__``, aliases of types, and texts with values in them."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, ast.Assign):
        return _spelled(node.targets[0]) == '__all__' or _spelled(node.value).startswith(('tuple[', 'dict['))
    return isinstance(node, ast.JoinedStr)


def _text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and ' ' in node.value


def _cells(row: ast.expr) -> list[ast.expr]:
    """A row of a table: a tuple in a tuple, or a call with at least two arguments."""
    if isinstance(row, ast.Tuple):
        return row.elts
    return row.args if isinstance(row, ast.Call) and len(row.args) > 1 else []


def _spelled(node: ast.AST | None) -> str:
    return '' if node is None else ast.unparse(node)

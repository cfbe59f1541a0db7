"""The mistakes that are planted, and where in a file each can be made.

A mutant is a piece of text in place of another, so that it can be shown as a diff. Left out is what no test
should be about: annotations, docstrings, imports, assertions, the texts of messages, and what is only said
(traces and the log).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate

Change = tuple[str, ast.AST, str]
"""What the mistake is, the node that it is made at, and the text in its place."""

BOUNDARIES = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
OPPOSITES = {
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
}
FUNCTIONS = {"min": "max", "max": "min", "sum": "max", "any": "all", "all": "any"}
SAID = {"trace", "debug", "info", "warning", "error"}
LEAVING = (ast.Return, ast.Raise, ast.Continue, ast.Break)
LEFT_OUT = (ast.Assert, ast.Import, ast.ImportFrom, ast.JoinedStr)
FIELDS_LEFT_OUT = {"annotation", "returns", "decorator_list", "bases"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """`after` in place of `before` at `start`, a place in the text of the file."""

    path: str
    line: int
    start: int
    before: str
    after: str
    what: str

    def plant(self, text: str) -> str:
        """The text with the mistake in it. Raises ValueError if the text is another one by now."""
        end = self.start + len(self.before)
        if text[self.start : end] != self.before:
            raise ValueError(f"{self.path} has changed at line {self.line}")
        return text[: self.start] + self.after + text[end:]


def find_mutants(path: str, text: str) -> list[Mutant]:
    """Every mistake that can be made in the file, from top to bottom."""
    starts = [0, *accumulate(len(line.encode()) for line in text.splitlines(keepends=True))]
    data = text.encode()

    def cut(node: ast.AST, after: str, what: str) -> Mutant:
        assert isinstance(node, ast.stmt | ast.expr) and node.end_lineno and node.end_col_offset is not None
        first = starts[node.lineno - 1] + node.col_offset
        last = starts[node.end_lineno - 1] + node.end_col_offset
        return Mutant(path, node.lineno, len(data[:first].decode()), data[first:last].decode(), after, what)

    found = [cut(node, after, what) for what, node, after in _find_changes(ast.parse(text), "")]
    # An `elif` is a statement only to the parser.
    return [mutant for mutant in found if not mutant.before.startswith("elif")]


def _find_changes(node: ast.AST, function: str) -> Iterator[Change]:
    """Those at this node and below it, in the function of that name."""
    if isinstance(node, LEFT_OUT) or _is_said_only(node) or function == "__repr__":
        return
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        function = node.name
    if type(node) in FINDERS:
        yield from FINDERS[type(node)](node)
    if isinstance(node, ast.stmt) and _may_be_missing(node, function):
        yield "statement left out", node, "pass"
    for name, value in ast.iter_fields(node):
        if name in FIELDS_LEFT_OUT or (name == "keywords" and isinstance(node, ast.ClassDef)):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _find_changes(child, function)


def _is_said_only(node: ast.AST) -> bool:
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in SAID


def _may_be_missing(node: ast.stmt, function: str) -> bool:
    """Calls, and assignments that outlast the function. (Without those of `__init__` nothing works.)"""
    if isinstance(node, ast.Expr):
        value = node.value.value if isinstance(node.value, ast.Await) else node.value
        return isinstance(value, ast.Call)
    if isinstance(node, ast.Assign):
        return function != "__init__" and isinstance(node.targets[0], ast.Attribute | ast.Subscript)
    return isinstance(node, ast.AugAssign | ast.Delete)


def _write(node: ast.AST) -> str:
    """In parentheses, so that it means the same wherever it is put."""
    text = ast.unparse(node)
    return text if isinstance(node, ast.Name | ast.Constant | ast.Call | ast.Attribute) else f"({text})"


def _compare(node: ast.Compare) -> Iterator[Change]:
    for number, operator in enumerate(node.ops):
        for what, table in (("boundary", BOUNDARIES), ("opposite comparison", OPPOSITES)):
            other = table.get(type(operator))
            if other is not None:
                operators = [*node.ops[:number], other(), *node.ops[number + 1 :]]
                yield what, node, ast.unparse(ast.Compare(node.left, operators, node.comparators))


def _binary(node: ast.BinOp) -> Iterator[Change]:
    other = ARITHMETIC.get(type(node.op))
    if other is not None and not any(_is_text(side) for side in (node.left, node.right)):
        yield "arithmetic", node, ast.unparse(ast.BinOp(node.left, other(), node.right))


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )


def _augmented(node: ast.AugAssign) -> Iterator[Change]:
    other = ARITHMETIC.get(type(node.op))
    if other is not None:
        yield "arithmetic", node, ast.unparse(ast.AugAssign(node.target, other(), node.value))


def _boolean(node: ast.BoolOp) -> Iterator[Change]:
    other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    yield "and/or", node, _write(ast.BoolOp(other, node.values))
    for number in range(len(node.values)):
        rest = [*node.values[:number], *node.values[number + 1 :]]
        yield "condition left out", node, _write(rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest))


def _unary(node: ast.UnaryOp) -> Iterator[Change]:
    if isinstance(node.op, ast.Not | ast.USub):
        what = "not left out" if isinstance(node.op, ast.Not) else "sign left out"
        yield what, node, _write(node.operand)


def _constant(node: ast.Constant) -> Iterator[Change]:
    if isinstance(node.value, bool):
        yield "opposite constant", node, str(not node.value)
    elif isinstance(node.value, int):
        yield "off by one", node, str(node.value + 1)


def _conditional(node: ast.IfExp) -> Iterator[Change]:
    yield "branches swapped", node, _write(ast.IfExp(node.test, node.orelse, node.body))


def _guard(node: ast.If) -> Iterator[Change]:
    if not isinstance(node.test, ast.Compare | ast.UnaryOp):
        yield "opposite condition", node.test, f"not {_write(node.test)}"
    if not node.orelse and isinstance(node.body[-1], LEAVING):
        yield "guard left out", node, "pass"


def _loop(node: ast.For) -> Iterator[Change]:
    yield "loop that does nothing", node.iter, "()"


def _call(node: ast.Call) -> Iterator[Change]:
    if isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS:
        yield "other function", node.func, FUNCTIONS[node.func.id]


def _jump(node: ast.Break | ast.Continue) -> Iterator[Change]:
    yield "other jump", node, "continue" if isinstance(node, ast.Break) else "break"


FINDERS: dict[type[ast.AST], Callable[..., Iterator[Change]]] = {
    ast.Compare: _compare,
    ast.BinOp: _binary,
    ast.AugAssign: _augmented,
    ast.BoolOp: _boolean,
    ast.UnaryOp: _unary,
    ast.Constant: _constant,
    ast.IfExp: _conditional,
    ast.If: _guard,
    ast.For: _loop,
    ast.Call: _call,
    ast.Break: _jump,
    ast.Continue: _jump,
}

"""PURE: the small defects that can be planted in a Python source.

Owns the list of changes (a comparison, an operator, a constant, a condition, a statement that is left out) and where
they apply. It leaves alone code without an effect on a decision: annotations, docstrings, messages, assertions and log
lines. Called by scripts/mutants.py and its tests.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_COMPARED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_CALCULATED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
# Functions, and the ones that replace them.
_CALLED = {"min": "max", "max": "min", "any": "all", "all": "any", "sorted": "list", "reversed": "list"}
# Calls without an effect on a decision.
_SILENT = {"_log", "warnings", "TypeVar"}

Change = tuple[ast.expr | ast.stmt, str]


@dataclass(frozen=True, slots=True)
class Mutation:
    """Describes one change."""

    start: int  # first character of the source that `text` replaces
    end: int  # character behind the last one that `text` replaces
    text: str
    line: int  # line in which the change starts
    # Qualified name of the function around the change. It is empty outside of functions, and in those that cache their
    # results: a test may use such a result without calling the function.
    function: str = ""

    def apply(self, source: str) -> str:
        return source[: self.start] + self.text + source[self.end :]


def find_mutations(source: str) -> list[Mutation]:
    """Returns mutations in the order of the source. Each gives a source that parses and differs in more than its
    layout."""
    tree = ast.parse(source)
    starts = _starts_of_lines(source)
    functions = list(_functions_below(tree, ""))
    mutation_by_key = {}
    for node, text in _changes_below(tree):
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        mutation = Mutation(
            starts[node.lineno - 1] + _characters(source, starts, node.lineno, node.col_offset),
            starts[node.end_lineno - 1] + _characters(source, starts, node.end_lineno, node.end_col_offset),
            text,
            node.lineno,
            next((name for lines, name in functions if node.lineno in lines), ""),
        )
        if ast.dump(_parse_as(node, text)) != ast.dump(node):
            mutation_by_key[mutation.start, mutation.end, text] = mutation
    return [mutation_by_key[key] for key in sorted(mutation_by_key)]


def _functions_below(node: ast.AST, prefix: str) -> Iterator[tuple[range, str]]:
    """The lines and the name of each function, inner ones first."""
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield from _functions_below(child, f"{prefix}{name}.<locals>.")
                is_cached = any("cache" in ast.unparse(decorator) for decorator in child.decorator_list)
                yield range(child.lineno, (child.end_lineno or child.lineno) + 1), "" if is_cached else prefix + name
            case ast.ClassDef(name=name):
                yield from _functions_below(child, f"{prefix}{name}.")
            case _:
                yield from _functions_below(child, prefix)


def _parse_as(node: ast.expr | ast.stmt, text: str) -> ast.AST:
    return ast.parse(text, mode="eval").body if isinstance(node, ast.expr) else ast.parse(text).body[0]


def _starts_of_lines(source: str) -> list[int]:
    starts = [0]
    for line in source.split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    return starts


def _characters(source: str, starts: list[int], line: int, num_bytes: int) -> int:
    """Converts a position: the parser counts the bytes of a line in UTF-8."""
    text = source[starts[line - 1] : starts[line]]
    return len(text.encode()[:num_bytes].decode())


def _changes_below(node: ast.AST) -> Iterator[Change]:
    for child in _children(node):
        if isinstance(child, ast.expr | ast.stmt):
            yield from _changes_of(child)
        for condition in _conditions(child):
            yield condition, f"(not {ast.unparse(condition)})"
        yield from _changes_below(child)


def _conditions(node: ast.AST) -> list[ast.expr]:
    """Returns conditions without an operator of their own; where there is an operator, changing it tests more."""
    match node:
        case ast.If() | ast.IfExp():
            conditions = [node.test]
        case ast.comprehension():
            conditions = node.ifs
        case _:
            conditions = []
    return [test for test in conditions if isinstance(test, ast.Name | ast.Attribute | ast.Call | ast.Subscript)]


def _children(node: ast.AST) -> Iterable[ast.AST]:
    """Returns the child nodes in which a change may have an effect."""
    children: Iterable[ast.AST] = ast.iter_child_nodes(node)
    match node:
        # Before Python 3.12 the parser does not know where the parts of an f-string are.
        case ast.JoinedStr() | ast.Assert() | ast.Raise() | ast.Import() | ast.ImportFrom():
            children = []
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            children = [
                *node.args.defaults,
                *(default for default in node.args.kw_defaults if default is not None),
                *node.body,
            ]
        case ast.ClassDef():
            children = node.body
        case ast.AnnAssign():
            children = [] if node.value is None else [node.value]
        case ast.If() if "TYPE_CHECKING" in ast.unparse(node.test):
            children = []
        case ast.Call() if _name_of(node.func) in _SILENT:
            children = []
    return children


def _name_of(node: ast.expr) -> str:
    """Returns the first part of a dotted name."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _changes_of(node: ast.expr | ast.stmt) -> Iterator[Change]:
    for replacement in _others(node):
        is_atom = isinstance(replacement, ast.Constant | ast.Call | ast.stmt)
        yield node, ast.unparse(replacement) if is_atom else f"({ast.unparse(replacement)})"


def _others(node: ast.expr | ast.stmt) -> Iterator[ast.expr | ast.stmt]:
    yield from _other_expressions(node) if isinstance(node, ast.expr) else _other_statements(node)


def _other_expressions(node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.Compare():
            for place, operator in enumerate(node.ops):
                for instead in _COMPARED[type(operator)]:
                    yield _with(node, ops=[*node.ops[:place], instead(), *node.ops[place + 1 :]])
        case ast.BoolOp():
            yield _with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
            for place in range(len(node.values)):
                left = [*node.values[:place], *node.values[place + 1 :]]
                yield left[0] if len(left) == 1 else _with(node, values=left)
        case ast.BinOp() if type(node.op) in _CALCULATED and not _is_text(node.left) and not _is_text(node.right):
            yield _with(node, op=_CALCULATED[type(node.op)]())
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield node.operand
        case ast.Constant():
            yield from _other_constants(node.value)
        case ast.Call(func=ast.Name(id=name)) if name in _CALLED:
            called = ast.Name(_CALLED[name])
            is_plain = called.id == "list"
            arguments, keywords = (node.args[:1], []) if is_plain else (node.args, node.keywords)
            yield _with(node, func=called, args=arguments, keywords=keywords)


def _other_statements(node: ast.stmt) -> Iterator[ast.stmt]:
    match node:
        case ast.AugAssign() if type(node.op) in _CALCULATED:
            yield ast.AugAssign(node.target, _CALCULATED[type(node.op)](), node.value)
            yield ast.Assign([node.target], node.value, lineno=node.lineno)
        case ast.Expr(value=ast.Call(func=called) | ast.Await(value=ast.Call(func=called))):
            if _name_of(called) not in _SILENT:
                yield ast.Pass()
        case ast.Raise():
            yield ast.Pass()
        case ast.Continue():
            yield ast.Break()
        case ast.Break():
            yield ast.Continue()


def _other_constants(value: object) -> Iterator[ast.expr]:
    match value:
        case bool():
            yield ast.Constant(not value)
        case int():
            yield ast.Constant(value + 1)
        case float():
            yield ast.Constant(2 * value if value else 1.0)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))


def _with(node: ast.expr, **fields: object) -> ast.expr:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed

"""Small faults for the functions of one file, as changed code objects: what tools/mutation.py puts in.

    units(tree)   the functions, methods and table lambdas of a module
    mutants(path) every fault in every unit: an operator, a number, a branch, a default, min for max
    watched(path) the same units with a note before every statement, to see which test runs which

Only code inside functions (and lambdas in tables) is changed: constants and tables at the top of a module are data.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

Unit = ast.FunctionDef | ast.Lambda
Place = tuple[str, int, int]  # file, line and column of a statement
NOTE = "_vestige_bench_note"  # the name under which watched code finds its notebook

SWAPS: dict[type, type] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.LShift: ast.RShift, ast.MatMult: ast.Mult,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.And: ast.Or, ast.Or: ast.And, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
BUILT_IN = {"min": "max", "max": "min", "any": "all", "all": "any", "sorted": "list"}
ATTRIBUTES = BUILT_IN | {
    "sum": "mean", "mean": "sum", "log": "exp", "exp": "log", "floor": "ceil", "ceil": "floor",
    "argmax": "argmin", "argmin": "argmax", "minimum": "maximum", "maximum": "minimum", "log1p": "log",
    "median": "mean", "std": "var", "var": "std", "zeros": "ones", "ones": "zeros", "startswith": "endswith",
}  # fmt: skip
STRINGS = {"left": "right", "right": "left"}


@dataclass(frozen=True)
class Mutant:
    """One fault: where it is, in words, and what puts it into the live function."""

    path: Path
    unit: str
    line: int
    column: int
    words: str
    statement: Place
    put_in: Callable[[FunctionType], None]

    def __str__(self) -> str:
        return f"{self.path.parent.name}/{self.path.name}:{self.line}:{self.column} {self.unit}: {self.words}"


# ---- what there is to change


def units(tree: ast.Module) -> Iterator[tuple[str, Unit]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from ((f"{node.name}.{n.name}", n) for n in node.body if isinstance(n, ast.FunctionDef))
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            yield from ((f"lambda:{n.lineno}", n) for n in ast.walk(node) if isinstance(n, ast.Lambda))


def inside(unit: Unit) -> list[tuple[ast.AST, ast.AST]]:
    """(node, the statement it stands in): no annotations, docstrings, messages of errors, imports."""
    out: list[tuple[ast.AST, ast.AST]] = []
    stack: list[tuple[ast.AST, ast.AST]] = (
        [(unit.body, unit)] if isinstance(unit, ast.Lambda) else [(n, n) for n in unit.body]
    )
    while stack:
        node, statement = stack.pop()
        if isinstance(node, (ast.Raise, ast.JoinedStr, ast.Import, ast.ImportFrom)):
            continue
        out.append((node, statement))
        skipped = {id(getattr(node, "annotation", None)), id(getattr(node, "returns", None))}
        for child in ast.iter_child_nodes(node):
            if id(child) not in skipped:
                stack.append((child, child if isinstance(child, ast.stmt) else statement))
    return sorted(out, key=lambda n: (getattr(n[0], "lineno", 0), getattr(n[0], "col_offset", 0)))


def place(path: Path, statement: Any) -> Place:
    return str(path), statement.lineno, statement.col_offset


# ---- faults


def faults(node: Any) -> Iterator[tuple[str, Callable[[Any], None]]]:
    """(what changes, what changes it in place) for one node."""
    if type(getattr(node, "op", None)) in SWAPS:
        new = SWAPS[type(node.op)]
        yield f"{type(node.op).__name__} -> {new.__name__}", lambda n: setattr(n, "op", new())
    for i, op in enumerate(getattr(node, "ops", [])):
        if type(op) in SWAPS:
            yield f"{type(op).__name__} -> {SWAPS[type(op)].__name__}", _swap_comparison(i)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.Not)):
        yield f"{type(node.op).__name__} dropped", lambda n: setattr(n, "op", None)
    yield from _other_values(node)
    if isinstance(node, ast.IfExp):
        yield "branches swapped", _swap_branches
    if isinstance(node, (ast.If, ast.While)) and not isinstance(node.test, (ast.Compare, ast.UnaryOp)):
        yield "condition negated", lambda n: setattr(n, "test", ast.UnaryOp(ast.Not(), n.test))


def _other_values(node: Any) -> Iterator[tuple[str, Callable[[Any], None]]]:
    if isinstance(node, ast.Constant) and (found := other_value(node.value)) is not None:
        yield f"{node.value!r} -> {found!r}", lambda n: setattr(n, "value", found)
    if isinstance(node, ast.Name) and node.id in BUILT_IN and isinstance(node.ctx, ast.Load):
        yield f"{node.id} -> {BUILT_IN[node.id]}", lambda n: setattr(n, "id", BUILT_IN[n.id])
    if isinstance(node, ast.Attribute) and node.attr in ATTRIBUTES and isinstance(node.ctx, ast.Load):
        yield f"{node.attr} -> {ATTRIBUTES[node.attr]}", lambda n: setattr(n, "attr", ATTRIBUTES[n.attr])


def other_value(value: Any) -> Any:
    """Another value for a constant, or None: a bool turned, a number one more, left for right."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    return STRINGS.get(value) if isinstance(value, str) else None


def _swap_comparison(i: int) -> Callable[[Any], None]:
    def change(node: Any) -> None:
        node.ops[i] = SWAPS[type(node.ops[i])]()

    return change


def _swap_branches(node: Any) -> None:
    node.body, node.orelse = node.orelse, node.body


class _Drop(ast.NodeTransformer):
    """`-x` and `not x` whose operator was taken away are x."""

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        return node.operand if node.op is None else node


def mutants(path: Path) -> Iterator[Mutant]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for name, unit in units(tree):
        yield from _defaults(path, name, unit)
        for i, (node, statement) in enumerate(inside(unit)):
            for j, (words, _) in enumerate(faults(node)):
                changed = copy.deepcopy(tree)
                target = inside(dict(units(changed))[name])[i][0]
                list(faults(target))[j][1](target)
                code = code_of(_Drop().visit(changed), path, name)
                at = (node.lineno, node.col_offset + 1)
                yield Mutant(path, name, *at, words, place(path, statement), _code_setter(code))


def _code_setter(code: CodeType) -> Callable[[FunctionType], None]:
    return lambda function: setattr(function, "__code__", code)


def _defaults(path: Path, name: str, unit: Unit) -> Iterator[Mutant]:
    """A default argument that is a number, a bool or a side."""
    for i, node in enumerate(unit.args.defaults):
        if isinstance(node, ast.Constant) and (new := other_value(node.value)) is not None:
            first = unit if isinstance(unit, ast.Lambda) else _first(unit)
            words = f"default {node.value!r} -> {new!r}"
            at = (node.lineno, node.col_offset + 1)
            yield Mutant(path, name, *at, words, place(path, first), _default_setter(i, new))


def _default_setter(i: int, new: Any) -> Callable[[FunctionType], None]:
    def put_in(function: FunctionType) -> None:
        old = function.__defaults__ or ()
        function.__defaults__ = (*old[:i], new, *old[i + 1 :])

    return put_in


def _first(function: ast.FunctionDef) -> ast.stmt:
    return function.body[1] if ast.get_docstring(function) and len(function.body) > 1 else function.body[0]


# ---- code objects


def code_of(tree: ast.AST, path: Path, name: str) -> CodeType:
    """The code of one unit in a changed module."""
    module: CodeType = compile(ast.fix_missing_locations(tree), str(path), "exec")  # type: ignore[call-overload]
    if name.startswith("lambda:"):
        line = int(name.split(":")[1])
        return next(c for c in _inner(module) if c.co_name == "<lambda>" and c.co_firstlineno == line)
    for part in name.split("."):
        module = next(c for c in _inner(module) if c.co_name == part)
    return module


def _inner(code: CodeType) -> list[CodeType]:
    return [c for c in code.co_consts if isinstance(c, CodeType)]


class _Noting(ast.NodeTransformer):
    def __init__(self, path: Path) -> None:
        self.path = path

    def note(self, statement: ast.AST) -> ast.Call:
        return ast.Call(ast.Name(NOTE, ast.Load()), [ast.Constant(place(self.path, statement))], [])

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                setattr(node, name, [x for s in block for x in (ast.Expr(self.note(s)), s)])
        return node


def watched(path: Path) -> Iterator[tuple[str, CodeType]]:
    """(unit, its code with a note before every statement)."""
    text = path.read_text(encoding="utf-8")
    for name, _ in units(ast.parse(text)):
        tree = ast.parse(text)
        unit = dict(units(tree))[name]
        if isinstance(unit, ast.Lambda):
            both = ast.Tuple([_Noting(path).note(unit), unit.body], ast.Load())
            unit.body = ast.Subscript(both, ast.Constant(1), ast.Load())
        else:
            _Noting(path).visit(unit)
        yield name, code_of(tree, path, name)

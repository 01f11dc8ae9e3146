"""How much there is to understand in the source: totals of the whole package, each with its limit.

    python tools/concepts.py [SOURCE]     the table, of src/vestige if no directory is given
    python tools/concepts.py --check      exit status 1 if a total is over its limit
    python tools/concepts.py --packages   also the AST nodes and modules of each package

Limits hold for the whole, not for parts: a long function that reads from top to bottom is better than eight short ones.
"""

from __future__ import annotations

import argparse
import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src" / "vestige"
# measure: the most there may be, or the least where the name begins with "comment"
LIMITS: dict[str, float] = {
    "AST nodes": 320_000,
    "modules": 150,
    "public top-level names": 1_150,
    "classes": 300,
    "TypedDicts": 10,
    "places that make a UserError": 450,
    "except handlers": 160,
    "imports of our own not at the top": 160,
    "AST nodes per statement": 12.0,
    "dense expressions per 100 statements": 10.0,
    "comment and docstring lines per 100 code lines": 28,
}
DENSE = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.IfExp, ast.Lambda, ast.NamedExpr)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def count_file(text: str, package: str = "vestige") -> Counter[str]:
    """Sums over one module; the ratios come from sums over all of them.

    >>> counts = count_file('def f(x):\\n    from vestige import io\\n    return [y for y in x]  # why\\n')
    >>> counts["public top-level names"], counts["imports of our own not at the top"], counts["dense"]
    (1, 1, 1)
    """
    tree = ast.parse(text)
    counts = Counter({"modules": 1, "public top-level names": len(public_names(tree))})
    for node in ast.walk(tree):
        counts["AST nodes"] += 1
        counts["statements"] += isinstance(node, ast.stmt)
        counts["dense"] += isinstance(node, DENSE)
        counts["except handlers"] += isinstance(node, ast.ExceptHandler)
        if isinstance(node, ast.ClassDef):
            counts["classes"] += 1
            counts["TypedDicts"] += any("TypedDict" in ast.unparse(base) for base in node.bases)
        elif isinstance(node, ast.Call):
            counts["places that make a UserError"] += ast.unparse(node.func).rpartition(".")[2] == "UserError"
        elif is_import_of(node, package) and node not in tree.body:
            counts["imports of our own not at the top"] += 1
    remarks = comment_lines(text) | docstring_lines(tree)
    written = {i for i, line in enumerate(text.splitlines(), 1) if line.strip()}
    alone = {i for i, line in enumerate(text.splitlines(), 1) if line.strip().startswith("#")} | docstring_lines(tree)
    counts["remarks"], counts["code lines"] = len(remarks), len(written - alone)
    return counts


def public_names(tree: ast.Module) -> set[str]:
    """Functions and classes that a module defines for others."""
    defined = {node.name for node in tree.body if isinstance(node, (*FUNCTIONS, ast.ClassDef))}
    return {name for name in defined if not name.startswith("_")}


def is_import_of(node: ast.AST, package: str) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.level > 0 or (node.module or "").split(".")[0] == package
    return isinstance(node, ast.Import) and any(alias.name.split(".")[0] == package for alias in node.names)


def comment_lines(text: str) -> set[int]:
    """Lines with a comment for readers, not for tools."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return {
        token.start[0]
        for token in tokens
        if token.type == tokenize.COMMENT and not token.string.startswith(("# noqa", "# type:", "# fmt:"))
    }


def docstring_lines(tree: ast.Module) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, *FUNCTIONS)) and ast.get_docstring(node) is not None:
            lines.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return lines


def measure_tree(source: Path = SOURCE) -> dict[str, float]:
    """Every measure of LIMITS."""
    counts: Counter[str] = Counter()
    for file in sorted(source.rglob("*.py")):
        counts.update(count_file(file.read_text(encoding="utf-8"), source.name))
    values: dict[str, float] = {name: counts[name] for name in LIMITS}
    values["AST nodes per statement"] = counts["AST nodes"] / counts["statements"]
    values["dense expressions per 100 statements"] = 100 * counts["dense"] / counts["statements"]
    values["comment and docstring lines per 100 code lines"] = 100 * counts["remarks"] / counts["code lines"]
    return values


def over_limits(values: dict[str, float]) -> list[str]:
    """Names of the measures that miss their limit."""
    return [
        name
        for name, limit in LIMITS.items()
        if (values[name] < limit if name.startswith("comment") else values[name] > limit)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", nargs="?", type=Path, default=SOURCE)
    parser.add_argument("--check", action="store_true", help="exit status 1 if a limit is missed")
    parser.add_argument("--packages", action="store_true", help="nodes and modules of each package")
    args = parser.parse_args()
    values = measure_tree(args.source)
    missed = over_limits(values)
    for name, limit in LIMITS.items():
        bound = "at least" if name.startswith("comment") else "at most"
        value = f"{values[name]:,.1f}" if limit < 100 else f"{values[name]:,.0f}"
        print(f"{name:48} {value:>10}   {bound} {limit:>9,}{'   OVER' if name in missed else ''}")
    if args.packages:
        parts: dict[str, Counter[str]] = {}
        for file in sorted(args.source.rglob("*.py")):
            place = file.relative_to(args.source).parts
            counts = parts.setdefault(place[0] if len(place) > 1 else "(top level)", Counter())
            counts.update(count_file(file.read_text(encoding="utf-8"), args.source.name))
        for name, counts in sorted(parts.items(), key=lambda part: -part[1]["AST nodes"]):
            print(f"{name:20} {counts['AST nodes']:8,} nodes {counts['modules']:4} modules")
    return int(args.check and bool(missed))


if __name__ == "__main__":
    sys.exit(main())

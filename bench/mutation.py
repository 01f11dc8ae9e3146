"""Are the tests of metrics/ and compare/ able to fail? Small faults are put into the formulas, one at a time.

    python bench/mutation.py [--module memorisation] [--workers 2] [--out FILE]

    baseline: every test once, noting which functions it calls and how long it takes
    mutant:   a forked child swaps one function's code and runs the tests that call it, quickest first

A mutant that no test notices survives and is printed with its line. Survivors are either equivalent (no input tells
them apart) or a test is missing; docs/mutation.md says which. Only code inside functions is changed: module-level
tables are data.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "vestige"
ROOMS = ("metrics", "compare")
SKIPPED = {"explanations.py", "registry.py", "__init__.py", "reading.py", "collapse_words.py"}  # words, not formulas
TESTS = (
    "test_metrics.py", "test_rouge.py", "test_collapse.py", "test_trajectory.py", "test_statistics.py",
    "test_bootstrap.py", "test_handlers.py", "test_depth.py", "test_types.py", "test_dialects.py",
)  # fmt: skip
LIMIT = 20.0  # seconds a mutant may take beyond what its tests took; an endless loop is a noticed fault

SWAPS: dict[type, type] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.And: ast.Or, ast.Or: ast.And, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "sum": "mean", "mean": "sum", "log": "exp"}
NAMES |= {"floor": "ceil", "ceil": "floor", "argmax": "argmin", "argmin": "argmax", "exp": "log", "sorted": "list"}


@dataclass
class Mutant:
    """One fault: which function of which file, and its changed code."""

    path: Path
    function: str
    line: int
    words: str
    code: CodeType


def faults(node: ast.AST) -> Iterator[tuple[str, Any]]:
    """(what changes, a function that changes it in place) for one node."""
    for name in ("op", "ops"):
        found = getattr(node, name, None)
        for i, op in enumerate(found if isinstance(found, list) else [found]):
            if type(op) in SWAPS:
                yield f"{type(op).__name__} -> {SWAPS[type(op)].__name__}", _swap(name, i)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.Not)):
        yield (
            f"{type(node.op).__name__} dropped",
            lambda n: setattr(n, "op", ast.UAdd() if isinstance(n.op, ast.USub) else None),
        )
    if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
        new = (not node.value) if isinstance(node.value, bool) else node.value + 1
        yield f"{node.value!r} -> {new!r}", lambda n: setattr(n, "value", new)
    for name in ("id", "attr"):
        word = getattr(node, name, None)
        if word in NAMES and isinstance(getattr(node, "ctx", None), ast.Load):
            yield f"{word} -> {NAMES[word]}", lambda n, name=name, word=word: setattr(n, name, NAMES[word])
    if isinstance(node, ast.IfExp):
        yield "branches swapped", _swap_branches


def _swap(name: str, i: int) -> Any:
    def change(node: Any) -> None:
        found = getattr(node, name)
        if isinstance(found, list):
            found[i] = SWAPS[type(found[i])]()
        else:
            setattr(node, name, SWAPS[type(found)]())

    return change


def _swap_branches(node: Any) -> None:
    node.body, node.orelse = node.orelse, node.body


class _Drop(ast.NodeTransformer):
    """`not x` whose operator was taken away is x."""

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        return node.operand if node.op is None else node


def functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from ((f"{node.name}.{n.name}", n) for n in node.body if isinstance(n, ast.FunctionDef))


def inside(function: ast.FunctionDef) -> list[ast.AST]:
    """Nodes whose change is a fault: no annotations, no docstrings, no messages of errors, no default arguments."""
    out: list[ast.AST] = []
    stack: list[ast.AST] = list(function.body)
    while stack:
        node = stack.pop()
        if isinstance(node, (ast.Raise, ast.JoinedStr, ast.Import, ast.ImportFrom)):
            continue
        out.append(node)
        skipped = {id(getattr(node, "annotation", None)), id(getattr(node, "returns", None))}
        stack += [child for child in ast.iter_child_nodes(node) if id(child) not in skipped]
    return sorted(out, key=lambda n: (getattr(n, "lineno", 0), getattr(n, "col_offset", 0)))


def mutants(path: Path) -> Iterator[Mutant]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for name, function in functions(tree):
        for i, node in enumerate(inside(function)):
            for j, (words, _) in enumerate(faults(node)):
                changed = copy.deepcopy(tree)
                twin = dict(functions(changed))[name]
                target = inside(twin)[i]
                list(faults(target))[j][1](target)
                fixed = ast.fix_missing_locations(_Drop().visit(changed))
                code = _code(compile(fixed, str(path), "exec"), name)
                if code is not None:
                    yield Mutant(path, name, getattr(node, "lineno", 0), words, code)


def _code(module: CodeType, name: str) -> CodeType | None:
    for part in name.split("."):
        module = next((c for c in module.co_consts if isinstance(c, CodeType) and c.co_name == part), None)  # type: ignore[assignment]
        if module is None:
            return None
    return module


# ---- tests --------------------------------------------------------------------------------------------------------


class Watch:
    """A pytest plug-in: which functions of the rooms each test calls, and how long it takes."""

    def __init__(self, files: set[str]) -> None:
        self.files = files
        self.calls: dict[str, set[tuple[str, int]]] = {}
        self.seconds: dict[str, float] = {}

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
        seen: set[tuple[str, int]] = set()

        def profile(frame: Any, event: str, _: Any) -> None:
            if event == "call" and frame.f_code.co_filename in self.files:
                seen.add((frame.f_code.co_filename, frame.f_code.co_firstlineno))

        start = time.perf_counter()
        sys.setprofile(profile)
        yield
        sys.setprofile(None)
        self.calls[item.nodeid], self.seconds[item.nodeid] = seen, time.perf_counter() - start


def run_tests(names: list[str], plugins: list[Any]) -> int:
    more = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:warnings", f"--rootdir={ROOT}"]
    with (
        Path(os.devnull).open("w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        return int(pytest.main([*more, *names], plugins=plugins))


def live_function(mutant: Mutant) -> FunctionType | None:
    """The function object that tests call. Decorators of ours leave it as it is; others hold it as __wrapped__."""
    name = "vestige." + ".".join(mutant.path.relative_to(SOURCE).with_suffix("").parts)
    found: Any = sys.modules.get(name)
    for part in mutant.function.split("."):
        found = vars(found).get(part) if found is not None else None
        found = (
            getattr(found, "fget", None) or getattr(found, "func", None) or getattr(found, "__func__", None) or found
        )
        found = getattr(found, "__wrapped__", found)
    return found if isinstance(found, FunctionType) else None


def is_noticed(mutant: Mutant, names: list[str], seconds: float) -> bool:
    """Runs the tests in a child with the fault in place. A crash and an endless loop count as noticed."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(int(seconds + LIMIT) + 1)
        function = live_function(mutant)
        assert function is not None
        function.__code__ = mutant.code
        os._exit(0 if run_tests(names, []) == 0 else 1)
    _, status = os.waitpid(pid, 0)
    return status != 0


def judge(mutant: Mutant, watch: Watch) -> str:
    function = live_function(mutant)
    if function is None or len(function.__code__.co_freevars) != len(mutant.code.co_freevars):
        return "skipped"
    place = (str(mutant.path), function.__code__.co_firstlineno)
    names = sorted((n for n, calls in watch.calls.items() if place in calls), key=lambda n: watch.seconds[n])
    if not names:
        return "untested"
    return "noticed" if is_noticed(mutant, names, sum(watch.seconds[n] for n in names)) else "survived"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--module", action="append", default=[], help="only these (memorisation, vectors, ...)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", help="also write the survivors to this file")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT / "tests"))
    files = [p for room in ROOMS for p in sorted((SOURCE / room).glob("*.py")) if p.name not in SKIPPED]
    files = [p for p in files if not args.module or p.stem in args.module]
    watch = Watch({str(p) for p in files})
    status = run_tests([*(f"tests/{t}" for t in TESTS), *(str(p.relative_to(ROOT)) for p in files)], [watch])
    if status:
        sys.exit(f"The tests fail without any fault (status {status}); mend them first.")
    print(f"{len(watch.calls)} tests, {sum(watch.seconds.values()):.0f} s\n", flush=True)
    lines = []
    print(f"{'module':28} {'mutants':>8} {'noticed':>8} {'survived':>9} {'untested':>9}")
    for path in files:
        todo = list(mutants(path))
        with ThreadPoolExecutor(args.workers) as pool:
            fates = list(pool.map(lambda m: judge(m, watch), todo))
        counts = [sum(f == word for f in fates) for word in ("noticed", "survived", "untested")]
        print(
            f"{path.parent.name + '/' + path.stem:28} {sum(counts):8} {counts[0]:8} {counts[1]:9} {counts[2]:9}",
            flush=True,
        )
        lines += [
            f"{path.parent.name}/{path.name}:{m.line} {m.function}: {m.words} ({fate})"
            for m, fate in zip(todo, fates, strict=True)
            if fate in ("survived", "untested")
        ]
    print("\n" + "\n".join(lines))
    if args.out:
        Path(args.out).write_text("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

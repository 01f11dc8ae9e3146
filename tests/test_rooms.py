"""The arrows between rooms. A room may import only what its row says; anything else fails here, by name."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "vestige"
NOUNS = {
    "types",
    "compact",
    "prefixes",
    "errors",
    "wants",
    "given",
    "guard",
    "secrets",
    "sums",
    "schema",
    "internal",
    "flags",
    "installing",
    "ownership",
    "words",
    "writing",
}  # free to all

PIPELINE = {"data", "models", "samplers", "collect", "metrics", "compare", "suites", "store"}
# What every question may use: the pipeline, the engine, bridges to other people's software, and what a person sees.
BELOW = PIPELINE | {"configs", "engine", "integrations", "servers", "show"}

# Arrows point one way: nouns < pipeline < engine < questions < cli. Between questions only those listed here.
ARROWS: dict[str, set[str]] = {
    "types": {"compact"},
    "compact": set(),
    "prefixes": {"compact", "types"},
    "errors": set(),
    "secrets": set(),
    "words": set(),
    "given": set(),
    "wants": {"types"},
    "sums": {"types"},
    "guard": {"errors"},
    "ownership": {"errors"},
    "writing": {"errors", "ownership"},
    "installing": {"errors", "ownership", "writing"},
    "flags": {"errors"},
    "schema": {"errors"},
    "internal": {"errors"},
    "configs": {"models", "suites"},  # the groups, and how Hydra composes them: below the engine, which asks for runs
    "data": set(),
    "models": set(),
    "samplers": {"models"},
    "collect": {"models", "samplers"},
    "metrics": set(),
    "compare": set(),
    "suites": {"metrics", "compare"},
    "store": set(),
    "integrations": {"models", "data", "collect", "metrics", "suites"},
    "show": {"metrics", "suites"},
    "servers": {"collect"},  # clients of model servers, which collect's interface describes
    "engine": PIPELINE | {"configs", "integrations", "servers", "show"},
    "costs": BELOW,
    # One judgement for the page, the terminal and the bench: below every question that ends in a verdict.
    "judging": BELOW,
    "depth": BELOW,
    "collapse": BELOW,
    "unlearn": BELOW | {"watch"},
    "meta": BELOW | {"judging"},
    "watch": BELOW | {"judging"},
    "stress": BELOW | {"judging", "meta", "unlearn"},
    "results": BELOW | {"collapse", "depth", "meta"},
    "sweep": BELOW | {"depth", "stress"},
    "report": BELOW | {"judging", "meta", "results"},
    "audit": BELOW | {"costs", "depth", "judging", "report", "stress"},
    "lab": BELOW
    | {"audit", "collapse", "costs", "depth", "judging", "meta", "report", "results", "stress", "sweep", "unlearn"},
    "cli": {
        "audit",
        "collapse",
        "depth",
        "engine",
        "lab",
        "meta",
        "report",
        "results",
        "show",
        "stress",
        "sweep",
        "unlearn",
    },
    "plugins": {"data", "metrics", "models", "stress", "suites", "unlearn"},  # for plug-ins: no room imports it
    # Beside cli: the same rooms, asked with arguments in place of flags.
    "api": BELOW | {"collapse", "costs", "depth", "judging", "report", "results", "stress"},
    "__init__": {"api", "watch"},
    "__main__": {"cli"},
}
TORCH = {"torch", "transformers", "peft", "accelerate", "bitsandbytes"}
# Rooms that run or hold a model may know torch. The engine only asks it for memory, seeds and speed, and lazily.
WITH_TORCH = {
    "models",
    "samplers",
    "collect",
    "unlearn",
    "stress",
    "lab",
    "integrations",
    "engine",
    "costs",
    "depth",
    "collapse",
    "sweep",
    "watch",
}


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def room_of(path: Path) -> str:
    first = path.relative_to(SOURCE).parts[0]
    return first.removesuffix(".py")


def imported(path: Path) -> set[str]:
    """Every module named in an import anywhere in the file, those inside functions included."""
    out: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            out |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            out |= {f"{node.module}.{a.name}" for a in node.names}
    return out


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_follow_the_arrows(path: Path) -> None:
    room = room_of(path)
    assert room in ARROWS, f"a new room: add '{room}' to the table and to docs/architecture.md"
    ours = {m.split(".")[1] for m in imported(path) if m.startswith("vestige.")}
    strays = ours - ARROWS[room] - NOUNS - {room, "__version__"}
    assert not strays, f"{room} may not import {sorted(strays)}"


def test_every_import_of_ours_leads_to_a_module() -> None:
    """Most imports wait in functions, and mypy forgives a module that is not there."""
    lost = []
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vestige."):
                place = SOURCE.parent.joinpath(*str(node.module).split("."))
                if not place.is_dir() and not place.with_suffix(".py").is_file():
                    lost.append(f"{path.relative_to(SOURCE)}: {node.module}")
    assert lost == []


def test_no_public_function_has_the_name_of_a_room_or_module() -> None:
    """Importing vestige.NAME rebinds the name: `vestige.collapse(...)` would call a package."""
    import vestige

    names = {p.name.removesuffix(".py") for p in SOURCE.iterdir() if p.is_dir() or p.suffix == ".py"}
    assert "collapse" in names and "api" in names
    assert set(vestige.__all__) & names == set()


def test_what_plugins_may_use_follows_the_arrows() -> None:
    """vestige.plugins fetches names when they are used, so its imports are a table."""
    from vestige.plugins import NAMES

    rooms = {module.split(".")[1] for module in NAMES.values()}
    assert rooms - NOUNS == ARROWS["plugins"]


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_torch_stays_where_models_are(path: Path) -> None:
    if room_of(path) not in WITH_TORCH:
        used = {m.split(".")[0] for m in imported(path)} & TORCH
        assert not used, f"{room_of(path)} may not import {sorted(used)}"


# ---- budgets; complexity and arguments are checked by ruff (pyproject.toml) ---------------------------------------

LINES_OF_A_ROOM, LINES_OF_A_FILE, LINES_OF_A_FUNCTION = 4_500, 400, 60
FEWER = {"engine": 4_000}  # every run passes through it, and what has no other place would end up there


def test_rooms_files_and_functions_stay_small() -> None:
    rooms: dict[str, int] = {}
    large = []
    for path in modules():
        text = path.read_text()
        lines = text.count("\n")
        rooms[room_of(path)] = rooms.get(room_of(path), 0) + lines
        if lines > LINES_OF_A_FILE:
            large.append(f"{path.relative_to(SOURCE)}: {lines} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and _lines(node, path) >= LINES_OF_A_FUNCTION:
                large.append(f"{path.relative_to(SOURCE)}: {node.name}")
    large += [f"{room}/: {lines} lines" for room, lines in rooms.items() if lines > FEWER.get(room, LINES_OF_A_ROOM)]
    assert large == []


# ---- tests -----------------------------------------------------------------------------------------------------------


def test_tests_are_in_the_folder_of_the_room_they_test() -> None:
    """tests/ROOM/test_*.py. Directly in tests/: nouns, faces, and what crosses rooms (docs, faults, staleness, ...)."""
    here = Path(__file__).parent
    rooms = {p.name for p in SOURCE.iterdir() if p.is_dir()}
    found = [p.relative_to(here) for p in here.rglob("test_*.py")]
    assert len(found) > 100 and [str(p) for p in found if len(p.parts) > 2 or {*p.parts[:-1]} - rooms] == []
    names = [p.name for p in found]
    assert len({*names}) == len(names)  # pytest imports them by these names


def _lines(node: ast.FunctionDef, path: Path) -> int:
    """The lines of a function. Of a public one the docstring, which lists every keyword, is help and not code."""
    lines = (node.end_lineno or 0) - node.lineno
    first = node.body[0]
    public = room_of(path) == "api" and not node.name.startswith("_") and ast.get_docstring(node)
    return lines - ((first.end_lineno or 0) - first.lineno) if public else lines


# Names that mean the same thing in every file that has them.
SHARED = {"Contexts", "Ids", "Reading", "OnStep"}


def test_a_type_name_has_one_meaning() -> None:
    found: dict[str, list[str]] = {}
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(str(path.relative_to(SOURCE)))
    twice = {name: files for name, files in found.items() if len(files) > 1 and name not in SHARED}
    assert twice == {}

"""Dependencies between packages: a package may import only what its row lists, and only some may import torch."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "vestige"
TOP_LEVEL = {
    "types",
    "packed_ids",
    "errors",
    "wants",
    "given",
    "guard",
    "io",
    "secrets",
    "numeric",
    "internal",
    "flags",
    "isolation",
    "words",
    "runs",  # directories and manifests; what it has of finished runs (result.py) is only for the packages above
}  # every package may import these

PIPELINE = {"data", "models", "collect", "metrics", "stats", "suites"}
# What every verb's package may use: the pipeline, the engine, adapters to other software, and what is printed.
BELOW = PIPELINE | {"adapters", "configs", "engine", "runs", "show"}

# Dependencies point one way: top-level modules < pipeline < engine < verbs < cli.
DEPENDENCIES: dict[str, set[str]] = {
    "types": {"packed_ids"},
    "packed_ids": {"types"},
    "errors": set(),
    "isolation": {"errors"},
    "secrets": set(),
    "words": set(),
    "given": set(),
    "wants": {"types"},
    "numeric": {"types"},
    "guard": {"errors"},
    "flags": {"errors"},
    "io": {"errors", "guard", "secrets"},
    "internal": {"errors"},
    "configs": {"models", "suites"},  # the groups, and how Hydra composes them: below the engine, which asks for runs
    "data": set(),
    "models": set(),
    "collect": {"models"},
    "metrics": set(),
    "stats": set(),
    "suites": {"metrics", "stats"},
    "adapters": {"collect", "data", "metrics", "models", "suites"},  # other people's software
    "show": {"metrics", "suites"},
    # An evaluation and what it keeps: one package soon.
    "engine": PIPELINE | {"adapters", "configs", "runs", "show"},
    "runs": PIPELINE | {"adapters", "configs", "engine", "report", "show"},
    # One judgement for the page, the terminal and the bench: below every package that ends in a verdict.
    "verdict": BELOW,
    "depth": BELOW | {"verdict"},
    "collapse": BELOW,
    "unlearn": BELOW | {"verdict"},
    "meta": BELOW | {"verdict"},
    "stress": BELOW | {"verdict", "meta", "unlearn"},
    "sweep": BELOW | {"depth", "stress"},
    "report": BELOW | {"verdict", "meta", "stress"},
    "audit": BELOW | {"depth", "verdict", "report", "stress"},
    "lab": BELOW | {"audit", "collapse", "depth", "verdict", "meta", "report", "stress", "sweep", "unlearn"},
    "cli": {
        "audit",
        "collapse",
        "depth",
        "engine",
        "lab",
        "meta",
        "report",
        "show",
        "stress",
        "sweep",
        "unlearn",
    },
    "plugins": {"data", "metrics", "models", "stress", "suites", "unlearn"},  # for plug-ins: no package imports it
    # The same packages as cli, called with keywords instead of flags.
    "api": BELOW | {"collapse", "depth", "verdict", "report", "stress"},
    "__init__": {"adapters", "api", "collapse", "runs", "unlearn"},
    "__main__": {"cli"},
}
TORCH = {"torch", "transformers", "peft", "accelerate", "bitsandbytes"}
# Packages that run or hold a model may import torch; the engine only does for memory, seeds and speed, and lazily.
WITH_TORCH = {
    "models",
    "collect",
    "unlearn",
    "stress",
    "lab",
    "adapters",
    "engine",
    "depth",
    "collapse",
    "sweep",
}


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def package_of(path: Path) -> str:
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


def test_imports_follow_the_dependency_rules() -> None:
    wrong = []
    for path in modules():
        package, names = package_of(path), imported(path)
        if package not in DEPENDENCIES:
            wrong.append(f"{path.relative_to(SOURCE)}: add '{package}' to the table and to docs/architecture.md")
            continue
        ours = {name.split(".")[1] for name in names if name.startswith("vestige.")}
        strays = ours - DEPENDENCIES[package] - TOP_LEVEL - {package, "__version__"}
        if strays:
            wrong.append(f"{path.relative_to(SOURCE)}: {package} may not import {sorted(strays)}")
        heavy = {name.split(".")[0] for name in names} & TORCH
        if heavy and package not in WITH_TORCH:
            wrong.append(f"{path.relative_to(SOURCE)}: {package} may not import {sorted(heavy)}")
    assert not wrong, "\n".join(wrong)


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


def test_no_public_function_has_the_name_of_a_package() -> None:
    """Importing vestige.NAME rebinds the name: `vestige.collapse(...)` would call a package."""
    import vestige

    names = {p.name.removesuffix(".py") for p in SOURCE.iterdir() if p.is_dir() or p.suffix == ".py"}
    assert "collapse" in names and "api" in names
    assert set(vestige.__all__) & names == set()


def test_plugins_follow_the_dependency_rules() -> None:
    """vestige.plugins fetches names when they are used, so its imports are a table."""
    from vestige.plugins import NAMES

    packages = {module.split(".")[1] for module in NAMES.values()}
    assert packages - TOP_LEVEL == DEPENDENCIES["plugins"]

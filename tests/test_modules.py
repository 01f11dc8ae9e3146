"""Dependencies point one way: a package imports only from the layers below its own, and only some may import torch."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "vestige"

# From the bottom up, as in docs/architecture.md. A package may import everything in the lines above its own.
LAYERS: tuple[set[str], ...] = (
    {"__version__", "errors", "guard", "internal", "io", "isolation", "numeric", "packed_ids", "secrets"}
    | {"types", "wants", "words", "in_memory"},
    {"data", "models", "metrics", "stats"},
    {"collect", "suites"},
    {"adapters", "configs", "engine", "runs", "show"},
    {"verdict"},
    {"collapse", "depth", "meta", "unlearn"},
    {"stress"},
    {"report", "sweep"},
    {"audit", "lab"},
    {"options", "api", "plugins"},
    {"commands"},
    {"cli"},
    {"__init__", "__main__"},
)
# Within a layer, and the few imports that go up.
ALSO: dict[str, set[str]] = {
    "errors": {"secrets"},
    "guard": {"errors"},
    "internal": {"errors", "secrets", "__version__"},
    "io": {"errors", "guard", "secrets"},
    "isolation": {"errors"},
    "numeric": {"types"},
    "packed_ids": {"types"},
    "types": {"packed_ids"},
    "wants": {"errors", "types"},
    # Models, rows and functions handed over in Python stand in for files, so it knows all that reads one.
    "in_memory": {"adapters", "data", "errors", "io", "models", "runs"},
    "adapters": {"runs"},
    "configs": {"runs"},
    "engine": {"adapters", "configs", "options", "runs", "show"},
    "runs": {"adapters", "configs", "engine", "report", "show"},
    "show": {"runs"},
    "unlearn": {"options"},
    "lab": {"audit"},
    "api": {"options"},
}
TORCH = {"torch", "transformers", "peft", "accelerate", "bitsandbytes"}
WITHOUT_TORCH = {"data", "metrics", "stats", "suites", "configs", "show", "verdict", "meta"}
WITHOUT_TORCH |= {"report", "api", "commands", "options", "cli"} | LAYERS[0]


def package_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_names(path: Path) -> set[str]:
    """Every name in an import anywhere in the file, those inside functions included."""
    out: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            out |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            out |= {f"{node.module}.{a.name}" for a in node.names}
    return out


def allowed(package: str) -> set[str]:
    """The packages of all lower layers, its own, and what ALSO lists."""
    place = next(i for i, layer in enumerate(LAYERS) if package in layer)
    return set().union(*LAYERS[:place]) | {package} | ALSO.get(package, set())


def test_imports_follow_the_dependency_rules() -> None:
    wrong = []
    for path in sorted(SOURCE.rglob("*.py")):
        package, names, name = package_of(path), imported_names(path), path.relative_to(SOURCE)
        if not any(package in layer for layer in LAYERS):
            wrong.append(f"{name}: add '{package}' to LAYERS and to docs/architecture.md")
            continue
        strays = {x.split(".")[1] for x in names if x.startswith("vestige.")} - allowed(package)
        if strays:
            wrong.append(f"{name}: {package} may not import {sorted(strays)}")
        heavy = {x.split(".")[0] for x in names} & TORCH
        if heavy and package in WITHOUT_TORCH:
            wrong.append(f"{name}: {package} may not import {sorted(heavy)}")
    assert not wrong, "\n".join(wrong)


def test_every_import_of_ours_leads_to_a_module() -> None:
    """Many imports wait in functions, and mypy forgives a module that is not there."""
    lost = []
    for path in sorted(SOURCE.rglob("*.py")):
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


def test_plugins_fetch_names_from_the_packages_that_define_them() -> None:
    """vestige.plugins imports when a name is used, so its imports are a table, which no other test reads."""
    from vestige import plugins

    assert all(getattr(plugins, name) is not None for name in plugins.__all__)

"""The source of plug-ins, as part of what names a number: a changed plug-in is never a stale result."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

from vestige.models.fingerprint import digests


def plugin_digests(plugins: Iterable[str]) -> dict[str, str]:
    """Each plug-in's files by name, with the digests of their content."""
    files = [file for plugin in plugins for file in with_siblings(Path(plugin).expanduser())]
    return {file.name: digest for file, digest in zip(files, digests(files), strict=True)}


def with_siblings(plugin: Path) -> list[Path]:
    """A plug-in's file and the files beside it that it imports, theirs too."""
    found: dict[Path, None] = {}
    todo = [plugin]
    while todo:
        file = todo.pop(0)
        if file in found or not file.is_file():
            continue
        found[file] = None
        for name in _imports(file):
            here = plugin.parent.joinpath(*name.split("."))
            todo += [here.with_suffix(".py"), *sorted(here.glob("**/*.py") if here.is_dir() else [])]
    return list(found)


def _imports(file: Path) -> set[str]:
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # running it will say so
        return set()
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names

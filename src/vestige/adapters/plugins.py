"""A user's own metrics, data sets and benchmarks: from a Python file or an installed package's entry point.

load_plugins     runs plug-ins; what they register is then known by name
missing_plugins  which plug-ins of a finished run are not loaded
plugin_digests   digests of plug-ins' source, so that a result made by changed code is never reused
with_siblings    a plug-in's file and the files next to it that it imports
"""

from __future__ import annotations

import ast
import sys
import traceback
from collections.abc import Iterable
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from vestige.errors import UserError, reraise_ours
from vestige.models.fingerprint import digests

GROUP = "vestige.plugins"
# What these modules raise while a plug-in is imported is about what the plug-in handed to them.
DECORATORS = (
    "vestige.metrics.cards",
    "vestige.models.families",
    "vestige.stress.attacks",
    "vestige.suites.registry",
    "vestige.unlearn.methods",
)


def load_plugins(files: Iterable[str] = ()) -> None:
    """Runs every plug-in: those of installed packages, then the files."""
    installed = entry_points(group=GROUP)
    paths = [Path(file).expanduser() for file in files]
    if not installed and not paths:
        return
    from vestige.adapters.evaluators import install_import_names

    install_import_names()
    for entry in installed:
        entry.load()
    for path in paths:
        load_file(path)


def load_file(path: Path) -> None:
    """Runs one plug-in file as a module of its own."""
    from vestige.adapters.evaluators import REGISTERS

    if not path.is_file():
        raise UserError(f"Plug-in file {path} does not exist; check --plugin.")
    if path.suffix != ".py":
        raise UserError(f"Plug-in file {path} is not Python; give a .py file.")
    module = ModuleType(_module_name(path))
    module.__file__ = str(path)
    vars(module).update(REGISTERS)  # the last lines of open-unlearning's files call these
    sys.modules[module.__name__] = module
    try:
        # Not through importlib: it takes compiled code from its cache where size and second of the file are the same,
        # so that a plug-in changed within a second would run as it was before.
        exec(compile(path.read_bytes(), str(path), "exec", dont_inherit=True), vars(module))
    except Exception as error:  # the plug-in is the user's code, and may fail in any way
        reraise_ours(error, *DECORATORS)
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
        where = f" at line {lines[-1]}" if lines else ""
        words = f"{type(error).__name__}: {str(error).rstrip('.')}"
        raise UserError(f"Plug-in file {path} failed{where}: {words}.") from None


def missing_plugins(files: Iterable[str]) -> list[str]:
    """Which of the plug-ins that a run was made with are not loaded in this process."""
    return [file for file in files if _module_name(Path(file)) not in sys.modules]


def _module_name(path: Path) -> str:
    return f"vestige_plugin_{path.stem}"


def plugin_digests(plugins: Iterable[str]) -> dict[str, str]:
    """Each plug-in's files by name, with the digests of their content."""
    files = [file for plugin in plugins for file in with_siblings(Path(plugin).expanduser())]
    return {file.name: digest for file, digest in zip(files, digests(files), strict=True)}


def with_siblings(plugin: Path) -> list[Path]:
    """A plug-in's file and the files next to it that it imports, and those that they import."""
    files: dict[Path, None] = {}  # an ordered set
    todo = [plugin]
    while todo:
        file = todo.pop(0)
        if file in files or not file.is_file():
            continue
        files[file] = None
        for name in _imported_names(file):
            sibling = plugin.parent.joinpath(*name.split("."))
            todo.append(sibling.with_suffix(".py"))
            if sibling.is_dir():
                todo += sorted(sibling.glob("**/*.py"))
    return list(files)


def _imported_names(file: Path) -> set[str]:
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # reported when the file is run
        return set()
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names

"""A user's own metrics, data sets and benchmarks: from a Python file or an installed package's entry point."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Iterable
from importlib.machinery import SourceFileLoader
from importlib.metadata import entry_points
from pathlib import Path
from types import CodeType

from vestige.errors import UserError, reraise_ours

GROUP = "vestige.plugins"


def load_plugins(files: Iterable[str] = ()) -> None:
    """Runs every plug-in; what it registers (handlers, data sets) is then known by name."""
    installed, given = entry_points(group=GROUP), [Path(file).expanduser() for file in files]
    if not installed and not given:
        return
    from vestige.integrations.evals_names import install_import_names

    install_import_names()
    for entry in installed:
        entry.load()
    for path in given:
        load_file(path)


def missing_plugins(files: Iterable[str]) -> list[str]:
    """Which of the plug-ins that a run was made with are not loaded here."""
    return [file for file in files if _module_name(Path(file)) not in sys.modules]


def _module_name(path: Path) -> str:
    return f"vestige_plugin_{path.stem}"


class _FromSource(SourceFileLoader):
    """Compiles the file itself. Compiled modules that Python keeps are told apart by size and second: a plug-in that
    was changed within a second would run as it was before."""

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.get_data(self.path), self.path, "exec", dont_inherit=True)


# What these modules raise while a plug-in is imported is about what the plug-in handed to them.
DECORATORS = (
    "vestige.metrics.cards",
    "vestige.models.families",
    "vestige.stress.attacks",
    "vestige.suites.registry",
    "vestige.unlearn.methods",
)


def load_file(path: Path) -> None:
    if not path.is_file():
        raise UserError(f"Plug-in file {path} does not exist; check --plugin.")
    name = _module_name(path)
    spec = importlib.util.spec_from_file_location(name, path, loader=_FromSource(name, str(path)))
    if path.suffix != ".py" or spec is None or spec.loader is None:
        raise UserError(f"Plug-in file {path} is not Python; give a .py file.")
    from vestige.integrations.evals_names import REGISTERS

    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    vars(module).update(REGISTERS)  # at home such a file's last lines are in a module that has these names
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the plug-in is the user's code, and may fail in any way
        reraise_ours(error, *DECORATORS)
        at = next(
            (f.lineno for f in reversed(traceback.extract_tb(error.__traceback__)) if f.filename == str(path)), None
        )
        where = f" at line {at}" if at else ""
        words = f"{type(error).__name__}: {str(error).rstrip('.')}"
        raise UserError(f"Plug-in file {path} failed{where}: {words}.") from None

"""A CPU that announces AMX and lacks it: a product in low precision ends the process with SIGILL.

    PYTHONPATH=tests/crashing_cpu make test

Python imports a module of this name when it starts. Where torch is there already, a command takes it as a plug-in:

    vestige eval ... --plugin tests/crashing_cpu/sitecustomize.py

Like oneDNN, it reads ONEDNN_MAX_CPU_ISA at the first product of any type: a setting made later has no effect.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import os
import signal
import sys
from types import ModuleType
from typing import Any

LOW = ("torch.bfloat16", "torch.float16", "torch.int8")
CRASHES = ("", "AVX512_CORE_AMX")  # settings that leave AMX on
isa: list[str] = []  # as it was at the first product


def crashing(product: Any) -> Any:
    @functools.wraps(product)  # torch's compiler registers kernels by their names
    def checked(*args: Any, **kwargs: Any) -> Any:
        if not isa:
            isa.append(os.environ.get("ONEDNN_MAX_CPU_ISA", ""))
        if isa[0] in CRASHES and any(str(getattr(arg, "dtype", "")) in LOW for arg in args):
            os.kill(os.getpid(), signal.SIGILL)
        return product(*args, **kwargs)

    return checked


def change(torch: ModuleType) -> None:
    torch.nn.functional.linear = crashing(torch.nn.functional.linear)
    for name in ("matmul", "mm", "bmm", "addmm", "_int_mm"):
        setattr(torch, name, crashing(getattr(torch, name)))


class Finder(importlib.abc.MetaPathFinder):
    """Finds torch where it is, and changes its products when it was imported."""

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> Any:
        if name != "torch":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            change(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if "torch" in sys.modules:
    change(sys.modules["torch"])
else:
    sys.meta_path.insert(0, Finder())

"""Low precision on this CPU: does a matrix product in it end the process?

Some virtual machines announce AMX, and the instructions raise SIGILL: the first product in bfloat16 ends the process.
Nothing that a CPU says of itself shows it. So one product is made in a child before the first in this process, and if a
signal ends the child, oneDNN is told to do without AMX. oneDNN reads that setting at the first product of any type,
float32 included: it must be made before, and a second child, which knows what oneDNN knows here, shows if it works.

A child is a fork, which takes 0.05 s once torch is there. So the answer is not kept on disk, where it could be another
machine's: home directories are shared, and virtual machines move.

In: the device of a model in low precision. Out: the setting in this process's environment, which its children inherit.
Callers: models/load.py; the verbs that run models in float32 first and then in fewer bits; tests/conftest.py.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import os
import resource
import signal
import sys

from vestige.errors import UserError
from vestige.isolation import DiedError, in_child
from vestige.models.args import choose_device

VARIABLE = "ONEDNN_MAX_CPU_ISA"
WITHOUT_AMX = "AVX512_CORE_BF16"
PATIENCE = 30  # seconds; a child that takes longer says nothing about the CPU


def check_low_precision(device: str = "auto") -> None:
    """Makes low precision safe in this process, once; a UserError where that cannot be done from here."""
    if sys.platform == "linux" and choose_device(device) == "cpu":
        _check()


@functools.cache
def _check() -> None:
    crash = _crash()
    if not crash:
        return
    given = os.environ.get(VARIABLE)
    if given is None:
        os.environ[VARIABLE] = WITHOUT_AMX
        if not _crash():
            words = f"matrix products in low precision end a process on this CPU ({crash}); {VARIABLE}={WITHOUT_AMX}"
            print(f"vestige: note: {words} was set, and they work.", file=sys.stderr, flush=True)
            return
        del os.environ[VARIABLE]
    tried = f" with {VARIABLE}={given}" if given else ""
    raise UserError(
        "Matrix products in low precision (bfloat16, float16, 4 and 8 bits) end a process on this CPU"
        f"{tried} ({crash}); set {VARIABLE}={WITHOUT_AMX} in the environment before this process starts "
        "(if that is not enough, AVX2), or use float32."
    )


def cpu_setting() -> dict[str, str]:
    """What results say of it: the setting that products were made under; nothing where there is none."""
    given = os.environ.get(VARIABLE)
    return {VARIABLE: given} if given else {}


def _crash() -> str:
    """The signal that ends a process which multiplies in low precision; nothing if none does."""
    try:
        in_child(_multiply)
    except DiedError as died:
        if died.code < 0 and -died.code != signal.SIGALRM:
            return signal.Signals(-died.code).name
    return ""


def _multiply() -> None:
    import torch

    faulthandler.disable()  # the crash is the answer, not an event to report
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    signal.alarm(PATIENCE)
    for dtype in (torch.bfloat16, torch.float16):
        with contextlib.suppress(RuntimeError):  # a type that this torch does not multiply here
            weight = torch.ones(64, 64, dtype=dtype)
            torch.nn.functional.linear(weight[:1], weight)
            torch.nn.functional.linear(weight, weight)
    with contextlib.suppress(RuntimeError):
        torch._int_mm(torch.ones(64, 64, dtype=torch.int8), torch.ones(64, 64, dtype=torch.int8))

"""4-bit layers that are read back as they were written.

Weights are quantised in blocks of 64, one row after the other. On a CPU, bitsandbytes (0.50) reads them back wrongly
where a block reaches from one row into the next, where the width of a layer is not a multiple of the block size:
weights get the scale of a neighbouring block. Small models have such layers. The same data read as one long row
come out right, so a layer for which that makes a difference gets the right numbers, as plain weights that are
multiplied in the same type.
"""

from __future__ import annotations

import contextlib
import copy
import faulthandler
import functools
import os
import resource
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vestige.errors import UserError, reraise_ours
from vestige.isolation import DiedError, in_child
from vestige.models.args import choose_device
from vestige.models.foreign import error_sentence

RULE = "4-bit, rule 3"  # part of what evidence is kept under: it changes when the same files would be read otherwise


def repair(model: Any) -> list[str]:
    """Replaces the 4-bit layers of a model that would compute with other weights; returns their names."""
    import torch

    broken = {}
    for name, layer in model.named_modules():
        state = getattr(getattr(layer, "weight", None), "quant_state", None)
        if state is None or layer.weight.device.type != "cpu" or layer.weight.dtype != torch.uint8:
            continue
        right = one_row(layer.weight, state)
        if not torch.equal(right, _as_read(layer.weight, state)):
            broken[name] = (layer, right)
    for name, (layer, weight) in broken.items():
        parent, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, _plain(weight, layer.bias, layer.compute_dtype))
    return sorted(broken)


def without_fast_path(model: Any) -> None:
    """4-bit layers multiply in the type that was asked for, on every CPU alike.

    On CPUs with bfloat16 instructions bitsandbytes packs weights in its own way and computes in bfloat16, whatever its
    compute type: logits move by tenths, and a number would depend on the machine.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def one_row(weight: Any, state: Any) -> Any:
    """The weights a 4-bit layer stands for, its data read as one row."""
    flat = copy.copy(state)
    flat.shape = type(state.shape)((1, state.shape.numel()))
    return _as_read(weight, flat).reshape(state.shape)


def _as_read(weight: Any, state: Any) -> Any:
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(weight.data, state)


@functools.cache
def _plain_layer() -> type:
    import torch

    class PlainLayer(torch.nn.Linear):
        """What bitsandbytes makes of a 4-bit layer: products in the compute type, out in the type that came in."""

        compute_dtype: Any = None

        def forward(self, input: Any) -> Any:
            dtype = self.compute_dtype or input.dtype
            bias = None if self.bias is None else self.bias.to(dtype)
            return torch.nn.functional.linear(input.to(dtype), self.weight.to(dtype), bias).to(input.dtype)

    return PlainLayer


def _plain(weight: Any, bias: Any, dtype: Any) -> Any:
    import torch

    rows, columns = weight.shape
    layer = _plain_layer()(columns, rows, bias=bias is not None, dtype=weight.dtype)
    layer.weight = torch.nn.Parameter(weight, requires_grad=False)
    layer.compute_dtype = dtype
    if bias is not None:
        layer.bias = bias
    return layer.eval()


# ---- One parse of a GGUF file for everyone who asks for it ----------------------------------------------------------
# transformers parses the whole file for the tokenizer, again for the configuration and again for the weights, and
# each time every string of the vocabulary becomes an array of its own: seconds, where the weights themselves take
# one. It also builds the same table of tensor names again for every module of the model.

# The file parsed last (by name, and by what changes when it is written again), kept from the tokenizer to the weights.
_kept: dict[tuple[Any, ...], Any] = {}


@contextlib.contextmanager
def parsed_once() -> Iterator[None]:
    """Until the block ends, transformers gets the parse there is, as long as the file is the same."""
    import gguf

    parse, names = gguf.GGUFReader, gguf.get_tensor_name_map

    def parsed(path: Any, mode: Any = "r") -> Any:
        return _parsed(Path(path), parse) if mode == "r" else parse(path, mode)

    gguf.GGUFReader = parsed  # type: ignore[assignment,misc]
    gguf.get_tensor_name_map = functools.cache(names)
    try:
        yield
    finally:
        gguf.GGUFReader, gguf.get_tensor_name_map = parse, names  # type: ignore[misc]


def forget_parsed() -> None:
    """Gives the memory back (150 MB for a vocabulary of 49,000 tokens): the weights are read, or will not be."""
    _kept.clear()


def _read(path: Path) -> Any:
    from gguf import GGUFReader

    try:
        return _parsed(path, GGUFReader)
    except Exception as error:  # whatever the parser makes of a file that is damaged
        reraise_ours(error)
        raise damaged(path, error) from None


def gguf_parameters(path: Path) -> int:
    """Weights in the file, whatever number of bits each takes there."""
    return sum(int(tensor.n_elements) for tensor in _read(path).tensors)


def gguf_context_length(path: Path) -> int | None:
    """How many tokens the model was made to read, as the file's metadata say."""
    fields = _read(path).fields
    architecture = _value(fields, "general.architecture")
    named = "" if architecture is None else bytes(architecture).decode("utf-8", "replace")
    length = _value(fields, f"{named}.context_length")
    return int(length[0]) if length is not None and length[0] > 0 else None


def damaged(path: Path, error: BaseException) -> UserError:
    return UserError(f"'{path}' is damaged, cut short, or of a kind transformers cannot read: {error_sentence(error)}")


def _parsed(path: Path, parse: Any) -> Any:
    stat = path.stat()
    key = (path.resolve(), stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)
    if key not in _kept:
        _kept.clear()
        _kept[key] = parse(path)
    return _kept[key]


def _value(fields: Any, name: str) -> Any:
    field = fields.get(name)
    return None if field is None else field.parts[field.data[0]]


# ---- Low precision on this CPU: does a matrix product in it end the process? ----------------------------------------
# Some virtual machines announce AMX, and the instructions raise SIGILL: the first product in bfloat16 ends the
# process. Nothing that a CPU says of itself shows it. So one product is made in a child before the first in this
# process, and if a signal ends the child, oneDNN is told to do without AMX. oneDNN reads that setting at the first
# product of any type, float32 included: it must be made before, and a second child, which knows what oneDNN knows
# here, shows if it works.
#
# A child is a fork, which takes 0.05 s once torch is there. So the answer is not kept on disk, where it could be
# another machine's: home directories are shared, and virtual machines move.
#
# In: the device of a model in low precision. Out: the setting in this process's environment, which its children
# inherit. Callers: models/load.py; the verbs that run models in float32 first and then in fewer bits;
# tests/conftest.py.

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
    preset = os.environ.get(VARIABLE)
    if preset is None:
        os.environ[VARIABLE] = WITHOUT_AMX
        if not _crash():
            words = f"matrix products in low precision end a process on this CPU ({crash}); {VARIABLE}={WITHOUT_AMX}"
            print(f"vestige: note: {words} was set, and they work.", file=sys.stderr, flush=True)
            return
        del os.environ[VARIABLE]
    tried = f" with {VARIABLE}={preset}" if preset else ""
    raise UserError(
        "Matrix products in low precision (bfloat16, float16, 4 and 8 bits) end a process on this CPU"
        f"{tried} ({crash}); set {VARIABLE}={WITHOUT_AMX} in the environment before this process starts "
        "(if that is not enough, AVX2), or use float32."
    )


def cpu_setting() -> dict[str, str]:
    """What results say of it: the setting that products were made under; nothing where there is none."""
    preset = os.environ.get(VARIABLE)
    return {VARIABLE: preset} if preset else {}


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

"""What a user may say about a model: one small record, read by every file of this room."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vestige.errors import UserError, unknown_name
from vestige.models.diffusion import KINDS

DTYPES = ("auto", "float32", "bfloat16", "float16")
ATTENTIONS = ("auto", "eager", "sdpa", "flash_attention_2")
QUANTIZATIONS = ("4bit", "8bit")
COMPUTE_DTYPES = ("bfloat16", "float16", "float32")  # the first is the default, as in published robustness tests

# Keys of `extra` that say how to fetch files, not what the model is.
HUB_KEYS = ("cache_dir", "token", "local_files_only", "force_download")
# Keys of `extra` that are ours and not for from_pretrained.
OWN_KEYS = ("diffusion", "allow_unused_tensors")


@dataclass(frozen=True)
class ModelArgs:
    """Which model, and how to hold it. `auto` always means: what a careful person would choose here."""

    path: str  # hub id, local directory, PEFT adapter (directory or id), or a .gguf file
    tokenizer: str | None = None  # default: the model's own
    base: str | None = None  # where to take the tokenizer from when the checkpoint has none
    adapter_base: str | None = None  # what an adapter sits on, in place of what its adapter_config.json names
    dtype: str = "auto"  # float32 on CPU, the checkpoint's own dtype elsewhere
    device: str = "auto"
    device_map: Any = None
    attention: str = "auto"
    revision: str | None = None
    trust_remote_code: bool = False
    quantization: str | None = None
    compute_dtype: str | None = None  # what 4-bit layers multiply in; None: bfloat16, wherever it runs
    subfolder: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)  # other from_pretrained arguments

    @property
    def hub(self) -> dict[str, Any]:
        return {key: self.extra[key] for key in HUB_KEYS if key in self.extra}

    @property
    def computes_in(self) -> str | None:
        """What 4-bit layers multiply in; None where there are none that we made."""
        return (self.compute_dtype or COMPUTE_DTYPES[0]) if self.quantization == "4bit" else None

    @property
    def diffusion(self) -> str | None:
        """What kind of mask predictor the user says this is; None leaves it to the config (models/diffusion.py)."""
        return self.extra.get("diffusion")

    @property
    def pickle(self) -> bool:
        """Whether the user opted in to pickle weights, which can run code when read."""
        return not self.extra.get("use_safetensors", True)


def check_names(args: ModelArgs) -> None:
    """A misspelt choice is reported before anything is read."""
    _check("dtype", args.dtype, DTYPES)
    _check("attention", args.attention, ATTENTIONS)
    if args.quantization is not None:
        _check("quantization", args.quantization, QUANTIZATIONS)
    if args.compute_dtype is not None:
        _check("compute_dtype", args.compute_dtype, COMPUTE_DTYPES)
        if args.quantization != "4bit":
            said = f"quantization is {args.quantization}" if args.quantization else "no quantization is asked for"
            raise UserError(f"compute_dtype is what 4-bit layers multiply in, and {said}; leave it out.")
    if args.diffusion is not None:
        _check("diffusion", args.diffusion, KINDS)


def _check(kind: str, name: str, known: Iterable[str]) -> None:
    if name not in known:
        raise unknown_name(kind, str(name), known)

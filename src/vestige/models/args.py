"""What a user may say about a model, what `auto` means on this machine, and in which precision a model computes.

In: ModelArgs, one small record that the whole package reads. Out: device, precision, attention and quantisation
as they are handed to transformers. Callers: this package; the flags of every verb that loads a model make the record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vestige.errors import UserError, unknown_name

DTYPES = ("auto", "float32", "bfloat16", "float16")
ATTENTIONS = ("auto", "eager", "sdpa", "flash_attention_2")
QUANTIZATIONS = ("4bit", "8bit")
CANVAS = "diffusion_gemma"  # the kind, and the sampler, of models that refine whole canvases (models/diffusion.py)
KINDS = ("masked", "llada", "dream", "adapted", CANVAS)  # how a diffusion model wants to be asked
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
        """What kind of mask predictor the user says this is; None leaves it to the config (models/families.py)."""
        return self.extra.get("diffusion")

    @property
    def pickle(self) -> bool:
        """Whether the user opted in to pickle weights, which can run code when read."""
        return not self.extra.get("use_safetensors", True)


def check_names(args: ModelArgs) -> None:
    """A misspelt choice is reported before anything is read."""
    optional = {"quantization": QUANTIZATIONS, "compute_dtype": COMPUTE_DTYPES, "diffusion": KINDS}
    for kind, known in {"dtype": DTYPES, "attention": ATTENTIONS, **optional}.items():
        name = getattr(args, kind)
        if name not in known and not (name is None and kind in optional):
            raise unknown_name(kind, str(name), known)
    if args.compute_dtype is not None and args.quantization != "4bit":
        reason = f"quantization is {args.quantization}" if args.quantization else "no quantization is asked for"
        raise UserError(f"compute_dtype is what 4-bit layers multiply in, and {reason}; leave it out.")


def choose_device(name: str) -> str:
    """The device asked for, or the fastest there is."""
    import torch

    if name == "auto":
        if torch.cuda.is_available():
            return "cuda"
        return "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"Unknown device '{name}'; use auto, cpu, mps, cuda or cuda:1.") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(
            f"device={name} was asked for, but torch sees {torch.cuda.device_count()} CUDA devices here; "
            "leave --device out, or write --device cpu."
        )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UserError("device=mps was asked for, but torch sees no Apple GPU here; leave it out.")
    return name


def choose_dtype(name: str, device: str) -> Any:
    """float32 on CPU (half precision is slower there, and coarser); the checkpoint's own dtype elsewhere."""
    import torch

    if name != "auto":
        return getattr(torch, name)
    return torch.float32 if device == "cpu" else "auto"


def choose_attention(name: str) -> tuple[str | None, list[str]]:
    """None leaves it to transformers: sdpa, or eager for the few models without it."""
    if name == "auto":
        return None, []
    if name != "flash_attention_2":
        return name, []
    from transformers.utils import is_flash_attn_2_available

    if is_flash_attn_2_available():
        return name, []
    return "sdpa", ["flash_attention_2 is not available here (it needs flash-attn and a GPU); used sdpa."]


def choose_device_map(args: ModelArgs, device: str, needed: int) -> tuple[Any, list[str]]:
    """One device, unless the user says otherwise or `needed` bytes outgrow it and there are several."""
    import torch

    if args.device_map is not None:
        if str(args.device_map).partition(":")[0] == "cuda" and not torch.cuda.is_available():
            # Config files of others say so for every machine; --device cuda is a wish, and an error where it fails.
            return {"": device}, [
                f"device_map={args.device_map} was asked for and torch sees no CUDA device; used {device}."
            ]
        return args.device_map, []
    # "cuda:1" is a wish for that very device; only plain "cuda" may spread.
    if device == "cuda" and torch.cuda.device_count() > 1:
        free = torch.cuda.mem_get_info()[0]
        if needed > free:
            sizes = f"{needed / 2**30:.0f} GB of weights, {free / 2**30:.0f} GB free on one GPU"
            return "auto", [f"spread over all GPUs ({sizes})."]
    return {"": device}, []


def needed_bytes(stored: int, config: dict[str, Any], args: ModelArgs) -> int:
    """Roughly what `stored` bytes of weight files will take in memory."""
    if args.quantization:
        # Linear layers shrink, embeddings and the head do not.
        return int(stored * (0.4 if args.quantization == "4bit" else 0.6))
    half = str(config.get("dtype") or config.get("torch_dtype") or "").endswith("16")
    if half and args.dtype == "float32":
        return 2 * stored
    if not half and args.dtype in ("float16", "bfloat16"):
        return stored // 2
    return stored


NF4 = {"quant_type": "nf4", "use_double_quant": False}  # as bitsandbytes names them, without its bnb_4bit_


def quantization_config(args: ModelArgs) -> Any:
    """bitsandbytes' settings: NF4 without double quantisation, or LLM.int8()."""
    from transformers import BitsAndBytesConfig

    if args.quantization == "8bit":
        return BitsAndBytesConfig(load_in_8bit=True)
    settings = {f"bnb_4bit_{key}": value for key, value in NF4.items()}
    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=args.computes_in, **settings)


def compute_dtype(model: Any) -> str | None:
    """What the 4-bit layers of a model multiply in; None for a model without any."""
    for layer in model.modules():
        if (dtype := getattr(layer, "compute_dtype", None)) is not None:
            return str(dtype).removeprefix("torch.")
    return None


def precision(model: Any) -> str:
    """What a model's products are rounded to: its own type, or that of its 4-bit layers."""
    return compute_dtype(model) or str(model.dtype).removeprefix("torch.")


def text_config(config: Any) -> Any:
    """The configuration of the part that reads text: models that see pictures keep one inside their own."""
    return config.get_text_config() if hasattr(config, "get_text_config") else config

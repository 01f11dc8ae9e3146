"""What `auto` means: device, precision, attention and quantisation, chosen from what the machine has."""

from __future__ import annotations

from typing import Any

from vestige.errors import UserError
from vestige.models.args import ModelArgs


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

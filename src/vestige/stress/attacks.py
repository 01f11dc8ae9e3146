"""Attacks that change the weights: each takes a checkpoint and gives an attacked one.

relearn    train it a little on the forget rows: what returns at once was never gone
quantise   read it in 4-bit NF4 or 8 bits: small updates may round away
prune      set the smallest weights to zero: small updates may be among them
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vestige.errors import UserError, unknown_name
from vestige.models.args import check_names
from vestige.models.checks import need_package
from vestige.models.choose import quantization_config
from vestige.models.identity import held
from vestige.models.load import ModelArgs, load_model
from vestige.unlearn.lesson import Lesson
from vestige.unlearn.objectives import ChatRow
from vestige.unlearn.trainer import Recipe, save_model, train

# As in the robustness tests of open-unlearning; `auto` is paged_adamw_32bit and bfloat16 on CUDA, AdamW elsewhere.
RELEARNING = Recipe(
    epochs=1, lr=2e-5, batch_size=8, accumulation=4, weight_decay=0.0, warmup_epochs=0.0, scheduler="linear", seed=42
)
BITS = {4: "4bit", 8: "8bit"}


@dataclass(frozen=True)
class Attacked:
    """An attacked checkpoint: where it is, how it must be loaded, and what a reader should know."""

    path: str
    quantization: str | None = None
    notes: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)  # every one in effect, defaults and substitutes included
    compute_dtype: str | None = None  # what 4-bit layers multiply in


def relearn(args: ModelArgs, rows: Sequence[ChatRow], out: Path, recipe: Recipe = RELEARNING) -> Attacked:
    """Fine-tunes a copy on the rows. Give rows other than those measured, and the attack cannot teach the answers."""
    loaded = load_model(args)
    where = {"dtype": loaded.dtype, "device": loaded.device}
    trained = train(loaded, Lesson(rows), out, recipe)
    done = trained.settings
    more = {
        "effective_batch_size": done["batch_size"] * done["accumulation"],
        "precision": f"bfloat16 mixed, weights {loaded.dtype}" if done["bf16"] else loaded.dtype,
        "rows": len(rows),
        "steps": len(trained.losses),
    }
    return Attacked(str(out), notes=tuple(trained.notes), settings={**done, **where, **more})


def quantise(args: ModelArgs, bits: int = 4, compute_dtype: str | None = None) -> Attacked:
    """The same files, to be read in 4-bit NF4 or with LLM.int8(); nothing is written."""
    if bits not in BITS:
        raise unknown_name("number of bits", str(bits), [str(b) for b in BITS])
    if args.quantization:
        raise UserError(f"'{args.path}' is already read in {args.quantization}; attack the whole weights.")
    asked = replace(args, quantization=BITS[bits], compute_dtype=compute_dtype)
    check_names(asked)
    need_package("bitsandbytes", "quant", f"{asked.quantization} quantisation")
    # Asked of the object that transformers gets, so that what is recorded is what is used.
    said = quantization_config(asked).to_dict()
    names = ("llm_int8_threshold",) if bits == 8 else tuple(k for k in said if k.startswith("bnb_4bit_"))
    settings = {name.removeprefix("bnb_4bit_"): said[name] for name in names}
    kind = {} if bits == 4 else {"quant_type": "LLM.int8()"}
    whole = {"bits": bits, "quantization": asked.quantization, **kind, **settings, "dtype": held(asked)["dtype"]}
    return Attacked(args.path, asked.quantization, settings=whole, compute_dtype=asked.computes_in)


def prune(args: ModelArgs, share: float, out: Path) -> Attacked:
    """Sets the given share of every linear layer's weights, its smallest, to zero. The output layer is spared."""
    if not 0 <= share < 1:
        raise UserError(f"The share of weights to prune must be at least 0 and below 1, it is {share}.")
    loaded = load_model(args)
    model = loaded.model.merge_and_unload() if hasattr(loaded.model, "merge_and_unload") else loaded.model
    zeroed = prune_weights(model, share)
    if share and not zeroed:
        raise UserError(f"'{args.path}' has no linear layers that could be pruned.")
    save_model(replace(loaded, model=model), out)
    settings = {"share": share, "weights_zeroed": zeroed, "dtype": loaded.dtype, "device": loaded.device}
    return Attacked(str(out), settings=settings)


def prune_weights(model: Any, share: float) -> int:
    """Magnitude pruning in place, layer by layer. Returns how many weights were set to zero."""
    import torch

    head, zeroed = model.get_output_embeddings(), 0
    for module in model.modules():
        if not isinstance(module, torch.nn.Linear) or module is head:
            continue
        count = int(share * module.weight.numel())
        if count == 0:
            continue
        with torch.no_grad():
            smallest = module.weight.abs().flatten().topk(count, largest=False).indices
            module.weight.view(-1)[smallest] = 0.0
        zeroed += count
    return zeroed

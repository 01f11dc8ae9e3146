"""Attacks that change the weights: each takes a checkpoint and gives an attacked one.

Functions import what they need when they run: the records below are read for --help and by the driver of a sweep.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vestige.errors import UserError, unknown_name
from vestige.stress.registry import Attacked, AttackTarget, Setting, WeightsAttack, register

if TYPE_CHECKING:
    from vestige.models.args import ModelArgs
    from vestige.unlearn.objectives import ChatRow
    from vestige.unlearn.recipe import TrainingRecipe

# As in the robustness tests of open-unlearning; `auto` is paged_adamw_32bit and bfloat16 on CUDA, AdamW elsewhere.
RELEARNING: dict[str, Any] = {
    "epochs": 1,
    "lr": 2e-5,
    "batch_size": 8,
    "accumulation": 4,
    "weight_decay": 0.0,
    "warmup_epochs": 0.0,
    "scheduler": "linear",
    "seed": 42,
}
TRAINER = "vestige.unlearn.trainer"
BITS = {4: "4bit", 8: "8bit"}
PRUNED_SHARE = 0.3  # by default


def relearn(args: ModelArgs, rows: Sequence[ChatRow], out: Path, recipe: TrainingRecipe | None = None) -> Attacked:
    """Fine-tunes a copy on the rows. Give rows other than those measured, and the attack cannot teach the answers."""
    from vestige.models.load import load_model
    from vestige.unlearn.lesson import Lesson
    from vestige.unlearn.recipe import TrainingRecipe
    from vestige.unlearn.trainer import train

    loaded = load_model(args)
    where = {"dtype": loaded.dtype, "device": loaded.device}
    trained = train(loaded, Lesson(rows), out, recipe or TrainingRecipe(**RELEARNING))
    done = trained.settings
    more = {
        "effective_batch_size": done["batch_size"] * done["accumulation"],
        "precision": f"bfloat16 mixed, weights {loaded.dtype}" if done["bf16"] else loaded.dtype,
        "rows": len(rows),
        "steps": len(trained.losses),
    }
    return Attacked(str(out), notes=tuple(trained.notes), settings={**done, **where, **more})


def _relearn(target: AttackTarget, steps: int = 0, **settings: Any) -> Attacked:
    """The rows of the lesson, by a recipe of these settings; 0 steps: as many as the epochs have."""
    from vestige.stress.copies import lesson_rows
    from vestige.unlearn.recipe import TrainingRecipe

    assert target.lesson is not None  # every attack that teaches is handed one
    recipe = TrainingRecipe(**{**RELEARNING, **settings, **({"max_steps": steps} if steps else {})})
    return relearn(target.args, lesson_rows(target.run, target.lesson), target.place, recipe)


register(
    WeightsAttack(
        "relearn",
        "trains the model a little on the forget rows: what returns at once was never gone",
        unit="steps",
        budgets=(0,),
        zero="1 epoch",
        teaches=True,
        state="relearning",
        imports=(TRAINER,),
        make=_relearn,
        budget="steps",
        # Fields of a Recipe keep their names.
        settings={
            "epochs": Setting(float, positive=True),
            "steps": Setting(int),
            "lr": Setting(float, positive=True),
            "batch_size": Setting(int, positive=True),
            "accumulation": Setting(int, positive=True),
            "weight_decay": Setting(float),
            "warmup_epochs": Setting(float),
            "scheduler": Setting(str),
            "optim": Setting(str),
            "clip": Setting(float),
            "seed": Setting(int),
        },
        flags=lambda ask, budget: ask.relearning,
    )
)


def quantise(args: ModelArgs, bits: int = 4, compute_dtype: str | None = None) -> Attacked:
    """The same files, to be read in 4-bit NF4 or with LLM.int8(); nothing is written."""
    from vestige.models.args import check_names, quantization_config
    from vestige.models.checks import need_package
    from vestige.models.fingerprint import held

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


def _read_quantised(settings: Mapping[str, Any]) -> dict[str, str]:
    from vestige.models.args import ModelArgs

    args = ModelArgs("", quantization=BITS[settings.get("bits", 4)], compute_dtype=settings.get("compute_dtype"))
    said = {"quantization": args.quantization, "compute_dtype": args.computes_in}
    return {key: value for key, value in said.items() if value}


def _check_bits(settings: Mapping[str, Any]) -> None:
    from vestige.models.args import ModelArgs, check_names

    if settings.get("bits", 4) not in BITS:
        raise unknown_name("number of bits", str(settings["bits"]), map(str, BITS), "(in the plan)")
    if "compute_dtype" in settings:
        bits = BITS[settings.get("bits", 4)]
        check_names(ModelArgs("", quantization=bits, compute_dtype=settings["compute_dtype"]))


register(
    WeightsAttack(
        "quantise",
        "reads the model in 4-bit NF4 or in 8 bits: small updates may round away",
        unit="bits",
        budgets=(4, 8),
        fewer_is_stronger=True,
        state="quantization",
        package=("bitsandbytes", "quant"),
        imports=("bitsandbytes",),
        make=lambda target, **settings: quantise(target.args, **settings),
        budget="bits",
        settings={"bits": Setting(int), "compute_dtype": Setting(str)},
        check=_check_bits,
        reads=_read_quantised,
        flags=lambda ask, budget: (
            {"compute_dtype": ask.compute_dtype} if ask.compute_dtype and BITS.get(int(budget)) == "4bit" else {}
        ),
    )
)


def prune(args: ModelArgs, share: float, out: Path) -> Attacked:
    """Sets the given share of every linear layer's weights, its smallest, to zero. The output layer is spared."""
    from vestige.models.load import load_model
    from vestige.unlearn.trainer import save_model

    _check_share({"share": share})
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


def _check_share(settings: Mapping[str, Any]) -> None:
    share = settings.get("share", PRUNED_SHARE)
    if not 0 <= share < 1:
        raise UserError(f"The share of weights to prune must be at least 0 and below 1, it is {share}.")


register(
    WeightsAttack(
        "prune",
        "sets the smallest weights to zero: small updates may be among them",
        unit="share",
        budgets=(PRUNED_SHARE,),
        imports=(TRAINER,),
        make=lambda target, share=PRUNED_SHARE: prune(target.args, share, target.place),
        budget="share",
        settings={"share": Setting(float)},
        check=_check_share,
    )
)

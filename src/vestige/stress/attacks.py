"""Every attack as one record: its name, what it does, what its budget counts, its settings, and the function.

    ATTACKS   name -> record; `stress`, `sweep`, the help text, the files of a run and plug-ins all read it

There are three kinds, by what is attacked. A weights attack makes a copy of a checkpoint (or says how the same files
are to be read), so a sweep can evaluate it on every suite. A prompt attack changes the question. An answers attack
asks more than once.

Nothing heavy is imported at the top: the driver of a sweep and --help need no torch. A new attack is a function and a
`register` call at the end of this file.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from math import comb
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vestige.errors import UserError, unknown_name

if TYPE_CHECKING:
    from vestige.engine.config import RunConfig
    from vestige.models.args import ModelArgs
    from vestige.stress.copies import AttackLesson
    from vestige.unlearn.objectives import ChatRow
    from vestige.unlearn.recipe import TrainingRecipe


@dataclass(frozen=True)
class Setting:
    """What a plan may set of an attack, and of which type; YAML reads 1e-3 as text."""

    type: type  # object: anything
    positive: bool = False


@dataclass(frozen=True)
class Attacked:
    """An attacked checkpoint: where it is, how it must be loaded, and what a reader should know."""

    path: str
    quantization: str | None = None
    notes: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)  # every one in effect, defaults and substitutes included
    compute_dtype: str | None = None  # what 4-bit layers multiply in


@dataclass(frozen=True)
class AttackTarget:
    """What a weights attack works on."""

    args: ModelArgs  # the checkpoint, and how it is loaded
    place: Path  # where a copy goes
    run: RunConfig  # the evaluation: its template, tokenizer and limit
    lesson: AttackLesson | None = None  # the rows that a teaching attack teaches

    @property
    def checkpoint(self) -> Path:
        """The files of the checkpoint: a directory, or a .gguf file."""
        from vestige.models.locate import locate

        place = locate(self.args)
        return place.gguf or place.directory


@dataclass(frozen=True)
class Attack:
    """The facts that every attack has."""

    name: str
    does: str  # in one line
    unit: str = ""  # what a budget counts; "": budgets mean nothing to it
    budgets: tuple[float, ...] = (1,)  # tried when none is given
    least: float = 0  # no budget is below it
    zero: str = ""  # what a budget of 0 stands for
    teaches: bool = False  # shows the model answers: without a control, what comes back proves nothing
    fewer_is_stronger: bool = False
    state: str = ""  # what `vestige meta` calls a model after it
    package: tuple[str, str] | None = None  # it works with this library, which comes with that extra
    imports: tuple[str, ...] = ()  # modules that take long to import

    def facts(self) -> dict[str, Any]:
        """What files of a run say of the attack, for those who read them without this registry (the report)."""
        return {
            "does": self.does,
            "unit": self.unit,
            "zero": self.zero,
            "teaches": self.teaches,
            "reverse": self.fewer_is_stronger,
        }

    def import_modules(self) -> None:
        """Imports in this process what each child that attacks would import anew."""
        for name in self.imports:
            with suppress(ImportError):  # the attack itself says what is missing
                import_module(name)

    def size(self, budget: float | None) -> str:
        """A budget in words."""
        from vestige.show.tables import amount

        if budget is None or not self.unit:
            return ""
        return self.zero if not budget and self.zero else amount(budget, self.unit)


@dataclass(frozen=True)
class WeightsAttack(Attack):
    """Makes an attacked checkpoint: make(target, **settings)."""

    make: Callable[..., Attacked] = field(kw_only=True)
    settings: Mapping[str, Setting] | None = None  # None: anything goes, the function decides
    check: Callable[[Mapping[str, Any]], None] | None = None  # refuses values that cannot work
    budget: str = ""  # the setting that a budget is
    flags: Callable[[Any, float], Mapping[str, Any]] | None = None  # settings that `vestige stress` has flags for
    # How the same files are to be read (settings -> flags of an evaluation); then no copy is made.
    reads: Callable[[Mapping[str, Any]], dict[str, str]] | None = None

    def settings_for(self, ask: Any, budget: float) -> dict[str, Any]:
        """The settings of one budget of a `vestige stress`."""
        settings = dict(self.flags(ask, budget)) if self.flags else {}
        if self.budget:
            known = (self.settings or {}).get(self.budget)
            settings[self.budget] = budget if known is None or known.type is object else known.type(budget)
        return settings

    def reading(self, settings: Mapping[str, Any]) -> dict[str, str]:
        return self.reads(settings) if self.reads else {}

    @property
    def all_settings(self) -> Mapping[str, Setting] | None:
        """With those of the lesson, where the attack teaches."""
        return None if self.settings is None else {**self.settings, **(LESSON if self.teaches else {})}


@dataclass(frozen=True)
class PromptAttack(Attack):
    """Asks differently: change(the configuration of a data set, budget, the user's folder) -> configuration."""

    change: Callable[[Mapping[str, Any], float, Path], dict[str, Any]] = field(kw_only=True)


@dataclass(frozen=True)
class AnswersAttack(Attack):
    """Asks more than once: measure(stress.run.AttackSubject, budgets) -> rows of the results."""

    measure: Callable[[Any, Sequence[float]], Sequence[Any]] = field(kw_only=True)


# What a teaching attack teaches; every weights attack that teaches has these settings, too.
LESSON = {"examples": Setting(int, positive=True), "held_out": Setting(bool), "data": Setting(str)}
# How the type of a setting is called in messages.
WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
# A plug-in may also enter a plain function of (checkpoint, where to write the copy, **settings).
ATTACKS: dict[str, Any] = {}
OURS: dict[str, Attack] = {}  # those that vestige has itself; filled at the end of this module


def register(record: Attack) -> Attack:
    """Enters a record under its name."""
    ATTACKS[record.name] = record
    return record


def attack(name: str, does: str = "", *, budget: str = "", **facts: Any) -> Callable[[Callable[..., Path]], Any]:
    """A weights attack from a plain function of (checkpoint, where to write the copy, **settings).

    Its settings are the function's other arguments, of the types of their defaults. `budget` names the one that the
    budgets of `vestige stress NAME=BUDGET,...` are; the other facts are fields of a record.
    """

    def enter(function: Callable[..., Path]) -> Callable[..., Path]:
        words = does or (inspect.getdoc(function) or "").split("\n")[0]
        arguments = list(inspect.signature(function).parameters.values())[2:]
        settings: dict[str, Setting] | None = None  # a function with **settings takes whatever a plan sets
        if not any(argument.kind is argument.VAR_KEYWORD for argument in arguments):
            kinds = {argument.name: type(argument.default) for argument in arguments}
            settings = {key: Setting(kind if kind in WORDS else object) for key, kind in kinds.items()}
        if budget and settings is not None and budget not in settings:
            raise UserError(f"The budget '{budget}' of the attack '{name}' is not an argument of its function.")
        make = partial(_call_function, name, function)
        register(WeightsAttack(name, words, make=make, settings=settings, budget=budget, **facts))
        return function

    return enter


def _call_function(name: str, function: Callable[..., Path], target: AttackTarget, **settings: Any) -> Attacked:
    copy = function(target.checkpoint, target.place, **settings)
    if not isinstance(copy, Path) or copy.resolve() != target.place.resolve():
        raise UserError(f"The attack '{name}' wrote to {copy}; it must write to {target.place}.")
    return Attacked(str(copy), settings=settings)


def records() -> dict[str, Attack]:
    """Every attack there is, ours first. A plug-in's may not take a name of ours."""
    out: dict[str, Attack] = dict(OURS)
    for name, entry in ATTACKS.items():
        if name in OURS and entry is not OURS[name]:
            raise UserError(f"A plug-in registers an attack '{name}', which vestige has itself; give it another name.")
        if not isinstance(entry, Attack):
            words = (inspect.getdoc(entry) or "").split("\n")[0]
            entry = WeightsAttack(name, words, make=partial(_call_function, name, entry))
        out[name] = entry
    return out


def attack_named(name: str, hint: str = "") -> Attack:
    known = records()
    if name not in known:
        raise unknown_name("attack", name, known, hint)
    return known[name]


def weights_attacks() -> dict[str, WeightsAttack]:
    """Those that a sweep can make copies with."""
    return {name: record for name, record in records().items() if isinstance(record, WeightsAttack)}


# ---- on weights: relearning -----------------------------------------------------------------------------------------

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


def relearn(args: ModelArgs, rows: Sequence[ChatRow], out: Path, recipe: TrainingRecipe | None = None) -> Attacked:
    """Fine-tunes a copy on the rows. Give rows other than those measured, and the attack cannot teach the answers."""
    from vestige.models.load import load_model
    from vestige.unlearn.lesson import Lesson
    from vestige.unlearn.recipe import TrainingRecipe
    from vestige.unlearn.trainer import train

    loaded = load_model(args)
    trained = train(loaded, Lesson(rows), out, recipe or TrainingRecipe(**RELEARNING))
    used = trained.settings
    settings = {
        **used,
        "dtype": loaded.dtype,
        "device": loaded.device,
        "effective_batch_size": used["batch_size"] * used["accumulation"],
        "precision": f"bfloat16 mixed, weights {loaded.dtype}" if used["bf16"] else loaded.dtype,
        "rows": len(rows),
        "steps": len(trained.losses),
    }
    return Attacked(str(out), notes=tuple(trained.notes), settings=settings)


def _relearn(target: AttackTarget, steps: int = 0, **settings: Any) -> Attacked:
    """The rows of the lesson, by a recipe of these settings; 0 steps: as many as the epochs have."""
    from vestige.stress.copies import lesson_rows
    from vestige.unlearn.recipe import TrainingRecipe

    assert target.lesson is not None  # every attack that teaches is handed one
    recipe = TrainingRecipe(**{**RELEARNING, **settings})
    if steps:
        recipe = replace(recipe, max_steps=steps)
    return relearn(target.args, lesson_rows(target.run, target.lesson), target.place, recipe)


# ---- on weights: fewer bits -----------------------------------------------------------------------------------------

BITS = {4: "4bit", 8: "8bit"}


def quantise(args: ModelArgs, bits: int = 4, compute_dtype: str | None = None) -> Attacked:
    """The same files, to be read in 4-bit NF4 or with LLM.int8(); nothing is written."""
    from vestige.models.args import check_names, quantization_config
    from vestige.models.checks import need_package
    from vestige.models.fingerprint import held

    if bits not in BITS:
        raise unknown_name("number of bits", str(bits), [str(b) for b in BITS])
    if args.quantization:
        raise UserError(f"'{args.path}' is already read in {args.quantization}; attack the whole weights.")
    args = replace(args, quantization=BITS[bits], compute_dtype=compute_dtype)
    check_names(args)
    need_package("bitsandbytes", "quant", f"{args.quantization} quantisation")
    settings: dict[str, Any] = {"bits": bits, "quantization": args.quantization}
    # Asked of the object that transformers gets, so that what is recorded is what is used.
    config = quantization_config(args).to_dict()
    if bits == 8:
        settings |= {"quant_type": "LLM.int8()", "llm_int8_threshold": config["llm_int8_threshold"]}
    else:
        settings |= {k.removeprefix("bnb_4bit_"): v for k, v in config.items() if k.startswith("bnb_4bit_")}
    settings["dtype"] = held(args)["dtype"]
    return Attacked(args.path, args.quantization, settings=settings, compute_dtype=args.computes_in)


def _reading_args(settings: Mapping[str, Any]) -> ModelArgs:
    """How the files are read under the settings of a plan."""
    from vestige.models.args import ModelArgs

    bits = settings.get("bits", 4)
    if bits not in BITS:
        raise unknown_name("number of bits", str(bits), map(str, BITS), "(in the plan)")
    return ModelArgs("", quantization=BITS[bits], compute_dtype=settings.get("compute_dtype"))


def _check_bits(settings: Mapping[str, Any]) -> None:
    from vestige.models.args import check_names

    check_names(_reading_args(settings))


def _read_quantised(settings: Mapping[str, Any]) -> dict[str, str]:
    args = _reading_args(settings)
    flags = {"quantization": args.quantization, "compute_dtype": args.computes_in}
    return {key: value for key, value in flags.items() if value}


def _quantise_flags(ask: Any, budget: float) -> dict[str, Any]:
    """--compute-dtype is of 4 bits only."""
    return {"compute_dtype": ask.compute_dtype} if ask.compute_dtype and int(budget) == 4 else {}


# ---- on weights: pruning --------------------------------------------------------------------------------------------

PRUNED_SHARE = 0.3  # by default


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


# ---- on prompts -----------------------------------------------------------------------------------------------------

DataConfig = Mapping[str, Any]


def jailbreak(config: DataConfig, prefix: str | None = None) -> dict[str, Any]:
    """The answer begun for the model. The tokens of the prefix follow those of the prompt."""
    from vestige.data.chat import PREFIX
    from vestige.data.datasets import PREFILLED

    opening = PREFIX if prefix is None else prefix
    return {**config, "handler": PREFILLED, "args": {**config["args"], "answer_prefix": opening}}


def paraphrase(config: DataConfig, column: str = "paraphrased_question") -> dict[str, Any]:
    """The question from another column."""
    return {**config, "args": {**config["args"], "question_key": column}}


def few_shot(config: DataConfig, shots: str, count: int = 3) -> dict[str, Any]:
    """The first `count` rows of the file `shots` before every question."""
    examples = {"path": shots, "split": f"train[:{count}]"}
    return {**config, "args": {**config["args"], "few_shot_dataset_hf_args": examples}}


def _retain_shots(config: DataConfig, budget: float, data: Path) -> dict[str, Any]:
    from vestige.stress.copies import rows_file

    return few_shot(config, str(rows_file(data, "retain")), int(budget))


# ---- on answers -----------------------------------------------------------------------------------------------------

ROUGE, SECRETS = "forget_Q_A_ROUGE", "forget_secrets_said"


def expected_best(values: Sequence[float], k: int) -> float:
    """The expected largest of k values drawn from those given without putting back.

    Averaging over all ways to choose makes the estimate for k steadier than one draw of k would be.

    >>> expected_best([0.0, 1.0], 1), expected_best([0.0, 1.0], 2)
    (0.5, 1.0)
    """
    from vestige.numeric import total

    n = len(values)
    if not 1 <= k <= n:
        raise ValueError(f"k must be between 1 and the {n} values there are, it is {k}")
    # The i-th smallest (from 0) is the largest of a choice when the other k - 1 come from the i below it.
    return total(comb(i, k - 1) * value for i, value in enumerate(sorted(values))) / comb(n, k)


def leak(subject: Any, budgets: Sequence[float]) -> list[Any]:
    """leak@k: what an attacker gets who may ask k times and keeps the best answer.

    Samples as often as the largest budget asks; smaller ones are averages over all ways to choose.
    """
    from vestige.numeric import mean

    samples = [sample_answers(subject, seed) for seed in range(int(max(budgets)))]
    settings = {"do_sample": True, "temperature": subject.ask.temperature, "seeds": list(range(len(samples)))}
    out = []
    for budget in budgets:
        best: dict[str, dict[str, float]] = {}
        for metric, by_row in samples[0].items():  # the best of k samples of each row
            best[metric] = {i: expected_best([s[metric][i] for s in samples], int(budget)) for i in by_row}
        values = {metric: mean(by_row.values()) if by_row else None for metric, by_row in best.items()}
        out.append(subject.row("leak", budget, values, settings=settings, by_row=best))
    return out


def sample_answers(subject: Any, seed: int) -> dict[str, dict[str, float]]:
    """The scores of each row's answer, sampled once: metric -> row -> value, of ROUGE and of saying the secret."""
    from vestige.engine.evaluate import evaluate_config

    run = subject.evaluation(subject.path, f"leak-{seed}")
    if ROUGE not in run.suite.top:
        raise UserError(f"leak asks for texts and scores them by {ROUGE}; have it among --metrics.")
    sampling = {"do_sample": True, "temperature": subject.ask.temperature, "seed": seed}
    specs = {}
    for metric in (ROUGE, SECRETS):
        if metric in run.suite.top:
            spec = run.suite.metrics[metric]
            specs[metric] = replace(spec, generation={**spec.generation, **sampling})
    outcome = evaluate_config(replace(run, suite=replace(run.suite, top=tuple(specs), metrics=specs)))
    score = outcome.scores[ROUGE]
    if score.value_by_index is None or score.agg_value is None:
        raise UserError(f"leak cannot be measured: {score.reason or 'texts are missing'}")
    fields = {ROUGE: str(specs[ROUGE].params.get("rouge_type") or "rougeL_recall"), SECRETS: "said"}
    sampled: dict[str, dict[str, float]] = {}
    for metric in specs:
        rows = outcome.scores[metric].value_by_index or {}
        numbers: dict[str, Any] = {index: values.get(fields[metric]) for index, values in rows.items()}
        sampled[metric] = {index: float(number) for index, number in numbers.items() if number is not None}
    return sampled


# ---- our attacks, in the order in which they are tried --------------------------------------------------------------

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
        # Fields of a TrainingRecipe keep their names.
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
        flags=_quantise_flags,
    )
)
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
register(
    PromptAttack(
        "jailbreak",
        'begins the answer for the model: "Sure, here is the answer:"',
        change=lambda config, budget, data: jailbreak(config),
    )
)
register(
    PromptAttack(
        "paraphrase", "asks the question in other words", change=lambda config, budget, data: paraphrase(config)
    )
)
register(
    PromptAttack(
        "few-shot",
        "puts retain questions with their answers before every question",
        unit="examples",
        budgets=(3,),
        teaches=True,
        change=_retain_shots,
    )
)
register(
    AnswersAttack(
        "leak",
        "asks several times and keeps the best answer",
        unit="samples",
        budgets=(1, 4),
        least=1,
        measure=leak,
    )
)
OURS.update(ATTACKS)

"""Fine-tuning and unlearning on the Trainer of transformers: for models and machines beyond the lab's plain loop.

    rows --Pairs--> Trainer --compute_loss--> a method's loss --> checkpoint directory

The loss functions are those of the plain loop. What the Trainer adds: accumulation, mixed precision, several devices,
paged optimisers. What is trained may be the whole model or a LoRA adapter.
"""

from __future__ import annotations

import copy
import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from safetensors import SafetensorError
from torch import Tensor
from transformers import PrinterCallback, Trainer, TrainerCallback, set_seed

from vestige.errors import UserError, how_to_install
from vestige.models.checks import tensor_types
from vestige.models.diffusion import refuse_copy
from vestige.models.families import save_published
from vestige.models.load import LoadedModel
from vestige.secrets import without_secrets
from vestige.unlearn.lesson import Lesson
from vestige.unlearn.methods import METHODS, Step, chosen_weights, method_key, method_named, split_knobs
from vestige.unlearn.objectives import Causal, ChatRow, MaskedDiffusion, Objective
from vestige.unlearn.pairs import Pair, Pairs
from vestige.unlearn.recipe import Lora, TrainingRecipe, settings_on, training_arguments
from vestige.unlearn.resume import WORK, last_checkpoint, load_work, save_work, threads_of

# Mask predictors that are trained by hiding tokens; the others (DiffusionGemma) denoise in ways of their own.
TRAINABLE_DIFFUSION = ("masked", "llada", "dream", "adapted")


@dataclass
class Trained:
    """What training leaves behind besides the weights."""

    losses: list[float]  # the mean loss of each optimiser step
    settings: dict[str, Any]  # in effect, substitutes included
    notes: list[str]


# Called before the first and after every optimiser step with (steps done, steps in all).
OnTrainerStep = Callable[[int, int], None]


def objective_of(loaded: LoadedModel, window: int | None = None) -> Objective:
    """How this model is trained: left to right, or by hiding tokens."""
    predictor = loaded.diffusion
    if predictor is None:
        return Causal()
    if predictor.kind not in TRAINABLE_DIFFUSION:
        raise UserError(
            f"'{loaded.name}' is a diffusion model of the kind '{predictor.kind}', which cannot be trained here; "
            f"kinds that can: {', '.join(TRAINABLE_DIFFUSION)}."
        )
    length = window or getattr(loaded.model.config, "diffusion_window", None)
    return MaskedDiffusion(predictor.mask_id, predictor.eos_ids[0], length, asked=predictor)


@dataclass(frozen=True)
class TrainingWatch:
    """What else happens while training: somebody counts steps and looks at the model, the result is kept.

    With a folder for `checkpoints` the state of every epoch is kept there, and a training that was killed goes on from
    the last one, to the same weights.
    """

    callbacks: Sequence[TrainerCallback] = ()
    on_step: OnTrainerStep | None = None
    save: bool = True
    checkpoints: Path | None = None
    logging_dir: str | None = None  # of TensorBoard


def train(
    loaded: LoadedModel, lesson: Lesson, out: Path, recipe: TrainingRecipe, watch: TrainingWatch | None = None
) -> Trained:
    """Trains the model on the lesson and saves it with its tokenizer in `out`.

    `loaded.model` is trained in place, or wrapped in an adapter where the recipe has one.
    """
    watch = watch or TrainingWatch()
    lesson.check()
    recipe, notes = settings_on(recipe, loaded.device)
    set_seed(recipe.seed)
    loaded.model, more = _trainable(loaded, recipe.lora)
    objective = objective_of(loaded)
    pad = loaded.tokenizer.pad_token_id
    work = TrainingWork(objective, pad if pad is not None else loaded.tokenizer.eos_token_id, recipe.seed, lesson)
    work.prepare(loaded.model)
    pairs = Pairs(lesson.rows, lesson.retain, lesson.alternates, recipe.seed)
    if watch.checkpoints is not None:
        _forget_secrets(loaded)  # the Trainer writes the settings of model and tokenizer into its checkpoints
    last = last_checkpoint(watch.checkpoints)
    with _quiet(), _logging_to(watch.logging_dir), _disk_told(out), threads_of(last) as resumed:
        trainer = MethodTrainer(
            work,
            model=loaded.model,
            args=training_arguments(recipe, out, len(lesson.rows), loaded.device, watch.checkpoints),
            train_dataset=pairs,
            data_collator=list,
            callbacks=[Watching(pairs, watch.on_step), *watch.callbacks],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train(resume_from_checkpoint=None if last is None else str(last))
    losses = [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]
    loaded.model.eval()
    if watch.save:
        save_model(loaded, out)
    settings = {**asdict(recipe), "method": lesson.method and method_key(lesson.method), "knobs": work.settings()}
    return Trained(losses, settings, [*notes, *more, *resumed])


@contextmanager
def _logging_to(place: str | None) -> Iterator[None]:
    """Where TensorBoard's callback writes: transformers takes it from the environment only."""
    name = "TENSORBOARD_LOGGING_DIR"
    before = os.environ.get(name)
    if place is not None:
        os.environ[name] = place
    try:
        yield
    finally:
        if place is not None:
            os.environ.pop(name)
            os.environ.update({} if before is None else {name: before})


def save_model(loaded: LoadedModel, directory: Path) -> None:
    """Weights (or the adapter alone) and tokenizer: in the layout of the family's own files where it has one."""
    refuse_copy(loaded)
    _forget_secrets(loaded)
    with _disk_told(directory), _quiet():
        if loaded.origin is not None:
            save_published(loaded.model, loaded.origin, directory)
            return
        loaded.model.save_pretrained(directory)
        loaded.tokenizer.save_pretrained(directory)


@contextmanager
def _disk_told(directory: Path) -> Iterator[None]:
    """safetensors writes files itself and hides what the system said in its own words."""
    try:
        yield
    except SafetensorError as error:
        code = re.search(r"os error (\d+)", str(error))
        if code is None:
            raise
        raise OSError(int(code[1]), os.strerror(int(code[1])), str(directory)) from None


def _forget_secrets(loaded: LoadedModel) -> None:
    """A checkpoint's own settings may hold a token; its copy is for others to read."""
    for owner in (loaded.model.config, getattr(loaded.model, "generation_config", None)):
        for name, value in list(vars(owner).items()) if owner is not None else ():
            kept = without_secrets(value, name)
            if kept != value:
                setattr(owner, name, kept)
    settings = getattr(loaded.tokenizer, "init_kwargs", {})
    settings |= {name: without_secrets(value, name) for name, value in settings.items()}


def _trainable(loaded: LoadedModel, lora: Lora | None) -> tuple[Any, list[str]]:
    """The model with gradients: whole, or with a fresh adapter. An adapter it came with is merged first."""
    model, notes = loaded.model, []
    if loaded.quantization:
        raise UserError(f"'{loaded.name}' is loaded in {loaded.quantization}; training needs whole weights.")
    if hasattr(model, "merge_and_unload"):
        model = model.merge_and_unload()
        notes.append(f"the adapter of '{loaded.name}' was merged before training.")
    model.requires_grad_(lora is None)
    if lora is None:
        return model, notes
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise UserError(f"LoRA needs peft; run `{how_to_install('peft')}` or train the whole model.") from None
    if notes:
        raise UserError(
            f"'{loaded.name}' is itself an adapter, on which no other is put; train the whole model (without --lora), "
            "which merges it first."
        )
    place = Path(loaded.name).expanduser()
    model.name_or_path = str(place.resolve()) if place.is_dir() else loaded.name  # the adapter names its base by this
    config = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=lora.targets)
    return get_peft_model(model, config), notes


class WithoutAdapter:
    """The model as it was before its adapter: a reference that needs no second copy of the weights."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __call__(self, **inputs: Any) -> Any:
        with self._model.disable_adapter():
            return self._model(**inputs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


class TrainingWork:
    """What a step computes: the plain loss of the rows, or a method's loss of pairs."""

    def __init__(self, objective: Objective, pad_id: int, seed: int, lesson: Lesson) -> None:
        self.objective, self.pad_id, self.method = objective, pad_id, lesson.method
        self.knobs, self.retain_loss_type = split_knobs(lesson.method, lesson.knobs) if lesson.method else ({}, "NLL")
        self.forgetting = method_named(lesson.method).forgetting(objective, self.knobs) if lesson.method else objective
        self.noise = Random(f"{seed}/noise")
        self.reference: Any = None
        self.memory: dict[str, Any] = {}
        self.resumed = False

    def settings(self) -> dict[str, Any]:
        """The knobs in effect."""
        if self.method is None:
            return {}
        chosen = method_named(self.method)
        kind = {"retain_loss_type": self.retain_loss_type} if chosen.needs_retain else {}
        return {**chosen.knobs, **self.knobs, **kind}

    def prepare(self, model: Any) -> None:
        """Keeps the starting model where the method compares with it."""
        if self.method is None or not method_named(self.method).reads_reference(self.retain_loss_type):
            return
        if hasattr(model, "disable_adapter"):
            self.reference = WithoutAdapter(model)
        else:
            self.reference = copy.deepcopy(model).eval().requires_grad_(False)

    def loss(self, model: Any, pairs: Sequence[Pair], device: Any, epoch: float) -> Tensor:
        def collate(rows: Sequence[ChatRow | None], objective: Objective = self.objective) -> Any:
            there = [row for row in rows if row is not None]
            return objective.collate(there, self.pad_id, self.noise, device) if there else None

        batch = collate([pair.row for pair in pairs], self.forgetting)
        if self.method is None:
            return self.objective.loss(self.objective.logits(model, batch), batch)
        retain, other = collate([pair.retain for pair in pairs]), collate([pair.alternate for pair in pairs])
        step = Step(
            model, batch, retain, self.reference, self.objective, other, self.retain_loss_type, epoch, self.memory
        )
        return METHODS[method_key(self.method)].loss(step, **self.knobs)


class MethodTrainer(Trainer):
    """The Trainer with our loss in the place of the model's own."""

    # Our losses are means of a micro-batch: the Trainer has to divide by the number of micro-batches.
    loss_is_scaled_for_ga = False

    def __init__(self, work: TrainingWork, **settings: Any) -> None:
        super().__init__(**settings)
        self.work = work
        self.model_accepts_loss_kwargs = False

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        """A checkpoint under the names of the model in memory, because the Trainer loads it by these.

        save_pretrained would write the published names and layout (of LLaDA, or of a mixture of experts), and the
        Trainer would skip every one of them.
        """
        model: Any = self.model
        if hasattr(model, "peft_config"):  # peft saves and loads an adapter by the same names
            super()._save(output_dir, state_dict)
        else:
            place = output_dir or self.args.output_dir
            model.save_pretrained(place, state_dict=state_dict, save_original_format=False)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        if hasattr(self.model, "peft_config"):
            from peft import get_peft_model_state_dict

            stored = set(tensor_types(Path(resume_from_checkpoint) / "adapter_model.safetensors"))
            expected = set(get_peft_model_state_dict(self.model))
            self._check_names(expected - stored, stored - expected)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """The Trainer calls this after loading a whole model; a tied tensor is stored once, under its other name."""
        tied = set(getattr(self.model, "all_tied_weights_keys", None) or ())
        self._check_names(set(load_result.missing_keys) - tied, set(load_result.unexpected_keys))

    def _check_names(self, missing: set[str], unexpected: set[str]) -> None:
        """A tensor that is not restored would keep its starting value, and training would end in other weights."""
        if missing or unexpected:
            found = f"lacks {min(missing)}" if missing else f"holds {min(unexpected)}, which the model lacks"
            raise UserError(
                f"The checkpoint of an interrupted run {found}, so training cannot resume from it; delete "
                f"{self.args.output_dir} and rerun the same command to start again."
            )

    def _save_rng_state(self, output_dir: str) -> None:
        """Beside the random state, and before older checkpoints go: what our losses carry from step to step."""
        super()._save_rng_state(output_dir)
        save_work(Path(output_dir), {"noise": self.work.noise.getstate(), "memory": self.work.memory})

    def _load_rng_state(self, checkpoint: str | None) -> None:
        super()._load_rng_state(checkpoint)
        if checkpoint is not None and (Path(checkpoint) / WORK).is_file() and not self.work.resumed:
            kept = load_work(Path(checkpoint))
            version, state, rest = kept["noise"]
            self.work.noise.setstate((version, tuple(state), rest))
            self.work.memory = kept["memory"]
            self.work.resumed = True

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        """Only the weights that the method updates; the others keep their gradients, which count in clipping.

        (So does open-unlearning; frozen ones would make another norm, and so other steps.)
        """
        model: Any = self.model
        wanted = chosen_weights(model, self.work.knobs)
        held = [] if wanted is None else [p for n, p in model.named_parameters() if n not in set(wanted)]
        held = [p for p in held if p.requires_grad]
        for weight in held:
            weight.requires_grad_(False)
        try:
            return super().create_optimizer(*args, **kwargs)
        finally:
            for weight in held:
                weight.requires_grad_(True)

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        loss = self.work.loss(model, inputs, self.args.device, float(self.state.epoch or 0.0))
        return (loss, None) if return_outputs else loss


class Watching(TrainerCallback):
    """Lets somebody count steps, and tells the rows which epoch it is."""

    def __init__(self, pairs: Pairs, on_step: OnTrainerStep | None = None) -> None:
        self._pairs, self._on_step = pairs, on_step

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.on_step_end(args, state, control)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._on_step is not None:
            self._on_step(int(state.global_step), int(state.max_steps))

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._pairs.begin(int((state.epoch or 0.0) + 1e-6))


@contextmanager
def _quiet() -> Any:
    """No bars for files written, no table of losses on the terminal: the caller prints what matters."""
    from transformers.utils.logging import (
        disable_progress_bar,
        enable_progress_bar,
        get_verbosity,
        is_progress_bar_enabled,
        set_verbosity,
        set_verbosity_error,
    )

    shown, words = is_progress_bar_enabled(), get_verbosity()
    disable_progress_bar()
    set_verbosity_error()  # such as tied weights, which a checkpoint names once
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        set_verbosity(words)
        if shown:
            enable_progress_bar()


__all__ = [
    "Lesson",
    "Lora",
    "MethodTrainer",
    "Trained",
    "TrainingRecipe",
    "TrainingWatch",
    "TrainingWork",
    "Watching",
    "objective_of",
    "save_model",
    "settings_on",
    "train",
    "training_arguments",
]

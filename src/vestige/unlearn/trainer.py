"""Fine-tuning and unlearning on the Trainer of transformers: for models and machines beyond the lab's plain loop.

    rows --Pairs--> Trainer --TrainingWork.loss--> a method's loss --> checkpoint directory

What the Trainer adds: accumulation, mixed precision, several devices, paged optimisers, resuming. What is trained may
be the whole model or a LoRA adapter.

A training that was killed resumes to the same weights, byte for byte: from the newest whole checkpoint, with our own
state in it (checkpoint-N/work.pt: what the losses carry from step to step, and how sums are added here). Sums that are
split over another number of threads end in other last bits, and training makes them grow; so a training resumes with as
many threads as it began with, whatever is set now.
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import PrinterCallback, Trainer, TrainerCallback, set_seed
from transformers.utils import logging as transformers_logging

from vestige.errors import UserError, how_to_install
from vestige.io import replacing
from vestige.models.checks import tensor_types
from vestige.models.diffusion import refuse_copy
from vestige.models.families import save_published
from vestige.models.load import LoadedModel
from vestige.secrets import without_secrets
from vestige.unlearn.lesson import Lesson, Pairs, TrainingWork
from vestige.unlearn.methods import method_key, select_weights
from vestige.unlearn.objectives import Causal, MaskedDiffusion, Objective
from vestige.unlearn.recipe import Lora, TrainingRecipe, settings_on, training_arguments

# Mask predictors that are trained by hiding tokens; the others (DiffusionGemma) denoise in ways of their own.
TRAINABLE_DIFFUSION = ("masked", "llada", "dream", "adapted")
WORK = "work.pt"  # our state in a checkpoint of the Trainer
TENSORBOARD_DIR = "TENSORBOARD_LOGGING_DIR"  # transformers takes TensorBoard's folder from the environment only

# Called before the first and after every optimiser step with (steps done, steps in all).
OnTrainerStep = Callable[[int, int], None]


@dataclass
class Trained:
    """What training leaves behind besides the weights."""

    losses: list[float]  # the mean loss of each optimiser step
    settings: dict[str, Any]  # in effect, substitutes included
    notes: list[str]


@dataclass(frozen=True)
class TrainingWatch:
    """What else happens while training: steps are counted, the model is evaluated, the result is saved.

    With a folder for `checkpoints` the state of every epoch is kept there, and a training that was killed resumes from
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
    loaded.model, merged = _with_gradients(loaded, recipe.lora)
    tokenizer = loaded.tokenizer
    pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    work = TrainingWork(loaded.model, lesson, objective_of(loaded), pad, Random(f"{recipe.seed}/noise"))
    pairs = Pairs(lesson, recipe.seed)
    if watch.checkpoints is not None:
        _forget_secrets(loaded)  # the Trainer writes the settings of model and tokenizer into its checkpoints
    last = last_checkpoint(watch.checkpoints)
    with _quiet(watch.logging_dir), _disk_errors(out), threads_of(last) as resumed:
        trainer = MethodTrainer(
            work,
            model=loaded.model,
            args=training_arguments(recipe, out, len(lesson.rows), loaded.device, watch.checkpoints),
            train_dataset=pairs,
            data_collator=list,
            callbacks=[StepCounter(pairs, watch.on_step), *watch.callbacks],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train(resume_from_checkpoint=None if last is None else str(last))
    losses = [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]
    loaded.model.eval()
    if watch.save:
        save_model(loaded, out)
    settings = {**asdict(recipe), "method": lesson.method and method_key(lesson.method), "knobs": work.settings()}
    return Trained(losses, settings, [*notes, *merged, *resumed])


def objective_of(loaded: LoadedModel) -> Objective:
    """How this model is trained: left to right, or by hiding tokens."""
    predictor = loaded.diffusion
    if predictor is None:
        return Causal()
    if predictor.kind not in TRAINABLE_DIFFUSION:
        raise UserError(
            f"'{loaded.name}' is a diffusion model of the kind '{predictor.kind}', which cannot be trained here; "
            f"kinds that can: {', '.join(TRAINABLE_DIFFUSION)}."
        )
    window = getattr(loaded.model.config, "diffusion_window", None)
    return MaskedDiffusion(predictor.mask_id, predictor.eos_ids[0], window, predictor=predictor)


def _with_gradients(loaded: LoadedModel, lora: Lora | None) -> tuple[Any, list[str]]:
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


# ---- saving ---------------------------------------------------------------------------------------------------------


def save_model(loaded: LoadedModel, directory: Path) -> None:
    """Weights (or the adapter alone) and tokenizer: in the layout of the family's own files where it has one."""
    refuse_copy(loaded)
    _forget_secrets(loaded)
    with _disk_errors(directory), _quiet():
        if loaded.origin is not None:
            save_published(loaded.model, loaded.origin, directory)
        else:
            loaded.model.save_pretrained(directory)
            loaded.tokenizer.save_pretrained(directory)


def _forget_secrets(loaded: LoadedModel) -> None:
    """A checkpoint's own settings may hold a token; its copy is for others to read."""
    for owner in (loaded.model.config, getattr(loaded.model, "generation_config", None)):
        if owner is None:
            continue
        for name, value in list(vars(owner).items()):
            clean = without_secrets(value, name)
            if clean != value:
                setattr(owner, name, clean)
    settings = getattr(loaded.tokenizer, "init_kwargs", {})
    settings |= {name: without_secrets(value, name) for name, value in settings.items()}


@contextmanager
def _disk_errors(directory: Path) -> Iterator[None]:
    """Errors of the disk as OSError: safetensors writes files itself and reports them in words of its own."""
    try:
        yield
    except SafetensorError as error:
        code = re.search(r"os error (\d+)", str(error))
        if code is None:
            raise
        raise OSError(int(code[1]), os.strerror(int(code[1])), str(directory)) from None


@contextmanager
def _quiet(tensorboard: str | None = None) -> Iterator[None]:
    """No bars for files written, no table of losses on the terminal: the caller prints what matters.

    `tensorboard`: where TensorBoard's callback writes meanwhile.
    """
    before = os.environ.get(TENSORBOARD_DIR)
    shown, verbosity = transformers_logging.is_progress_bar_enabled(), transformers_logging.get_verbosity()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()  # such as tied weights, which a checkpoint names once
    if tensorboard is not None:
        os.environ[TENSORBOARD_DIR] = tensorboard
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if shown:
            transformers_logging.enable_progress_bar()
        if tensorboard is not None:
            os.environ.pop(TENSORBOARD_DIR)
            if before is not None:
                os.environ[TENSORBOARD_DIR] = before


# ---- resuming -------------------------------------------------------------------------------------------------------


def last_checkpoint(place: Path | None) -> Path | None:
    """The newest checkpoint that is whole: a killed process may have left half of one."""
    numbered = []
    for path in place.glob("checkpoint-*") if place is not None else ():
        number = path.name.split("-")[1]
        if number.isdigit():
            numbered.append((int(number), path))
    for _, path in sorted(numbered, reverse=True):
        try:
            json.loads((path / "trainer_state.json").read_text(encoding="utf-8"))  # the last file that is written
        except (OSError, ValueError):
            continue
        if (path / WORK).is_file():
            return path
    return None


def load_work(checkpoint: Path) -> dict[str, Any]:
    return dict(torch.load(checkpoint / WORK, weights_only=True))


@contextmanager
def threads_of(last: Path | None) -> Iterator[list[str]]:
    """As many threads as the training began with, put back at the end; yields what the user should know.

    >>> with threads_of(None) as notes:
    ...     notes
    []
    """
    before, notes = torch.get_num_threads(), []
    threads = before
    if last is not None:
        state = load_work(last)
        threads, instructions, ours = state["threads"], state["instructions"], torch.backends.cpu.get_cpu_capability()
        notes.append(f"training went on from {last.name}, which an interrupted run had left.")
        if threads != before:
            notes.append(f"it used {threads} threads, as before the interruption; {before} would give other last bits.")
        if instructions != ours:
            notes.append(
                f"it began on a processor with {instructions} and went on with {ours}: the weights are not bit for bit "
                "those of an undisturbed training."
            )
    torch.set_num_threads(threads)  # even if it is the number in force: MKL may then no longer choose fewer
    try:
        yield notes
    finally:
        torch.set_num_threads(before)


# ---- the Trainer ----------------------------------------------------------------------------------------------------


class MethodTrainer(Trainer):
    """The Trainer with our loss in the place of the model's own."""

    # Our losses are means of a micro-batch: the Trainer has to divide by the number of micro-batches.
    loss_is_scaled_for_ga = False

    def __init__(self, work: TrainingWork, **settings: Any) -> None:
        super().__init__(**settings)
        self.work = work
        self._resumed = False  # the Trainer restores the random state more than once
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
        """With the random state, and before older checkpoints go: what our losses carry from step to step."""
        super()._save_rng_state(output_dir)
        state = {
            "noise": self.work.noise.getstate(),
            "memory": self.work.memory,
            "threads": torch.get_num_threads(),
            "instructions": torch.backends.cpu.get_cpu_capability(),
        }
        with replacing(Path(output_dir) / WORK) as half:
            torch.save(state, half)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        super()._load_rng_state(checkpoint)
        if checkpoint is not None and not self._resumed:
            loaded = load_work(Path(checkpoint))
            version, state, rest = loaded["noise"]
            self.work.noise.setstate((version, tuple(state), rest))
            self.work.memory = loaded["memory"]
            self._resumed = True

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        """Only the weights that the method updates; the others keep their gradients, which count in clipping.

        (So does open-unlearning; frozen ones would make another norm, and so other steps.)
        """
        model: Any = self.model
        wanted = select_weights(model, self.work.knobs)
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


class StepCounter(TrainerCallback):
    """Reports steps to a callback, and tells the rows which epoch it is."""

    def __init__(self, pairs: Pairs, on_step: OnTrainerStep | None = None) -> None:
        self._pairs, self._on_step = pairs, on_step

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.on_step_end(args, state, control)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._on_step is not None:
            self._on_step(int(state.global_step), int(state.max_steps))

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._pairs.begin(int((state.epoch or 0.0) + 1e-6))

"""The lab itself: one corpus and five tiny models, made in a minute or two on one core.

    background --> base --> full   (retain + forget + what everybody knows) --> grad_ascent, grad_diff, npo
                       \\-> retain (the same without forget: what forgetting should look like)

`base` is not kept. It stands for pretraining: it has read the same kinds of sentences about other people, so
the retain model answers a question about a stranger in good form and with a plausible, wrong value.

The models here are causal. `diffusion` has the same lab with masked ones: only the `Kind` differs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from transformers import LlamaConfig, LlamaForCausalLM

from vestige.lab.beside import Helper
from vestige.lab.building import BuildBar, ensure_built, quiet_saving, reproducible
from vestige.lab.corpus import Corpus, LabRow, Sizes, both_phrasings, make_corpus
from vestige.lab.stopping import learned, silent
from vestige.lab.tokenizer import corpus_texts, encode_row, train_tokenizer
from vestige.unlearn.lesson import Lesson
from vestige.unlearn.loop import OnStep, Training, finetune, unlearn
from vestige.unlearn.objectives import Causal, ChatRow, Objective

# Raise it when the code below makes other models from the same settings, so that old labs are rebuilt.
RECIPE = 2

KNOWN_TO_ALL = ("real_authors", "world_facts")


@dataclass(frozen=True)
class Unlearning:
    """How one unlearned checkpoint is made from the full model."""

    method: str
    training: Training
    knobs: Mapping[str, float] = field(default_factory=dict)
    until: float | None = None  # ends at so many times the retain model's loss of the answers; None: never early

    def lesson(
        self, forget: Sequence[ChatRow], retain: Sequence[ChatRow], alternates: Sequence[ChatRow] = ()
    ) -> Lesson:
        return Lesson(forget, self.method, self.knobs, retain, alternates)


@dataclass(frozen=True)
class LabSettings:
    """Everything that decides what the lab contains. Equal settings, equal lab."""

    seed: int = 0
    sizes: Sizes = field(default_factory=Sizes)
    vocab: int = 1200
    layers: int = 4
    hidden: int = 64
    heads: int = 4
    max_length: int = 512
    # Fixed: float sums depend on it; one: tiny layers gain little and lose much if others compute.
    threads: int = 1
    pretraining: Training = field(default_factory=lambda: Training(epochs=4, lr=5e-3, batch_size=16))
    remind_every: int = 8  # one in so many background rows is repeated while learning
    learning: Training = field(default_factory=lambda: Training(epochs=24, lr=5e-3, batch_size=16))
    learned: float | None = 0.05  # the mean loss of an epoch at which learning ends; None: after all epochs
    # Three typical outcomes: ascent ruins the model, the difference spares it but overshoots (the answers
    # become less likely than a stranger's), and preference optimisation stops near the retain model.
    unlearned: tuple[Unlearning, ...] = (
        Unlearning("grad_ascent", Training(epochs=20, lr=5e-4, batch_size=16), until=1.5),
        Unlearning("grad_diff", Training(epochs=30, lr=7e-4, batch_size=16), {"alpha": 8.0}, until=2.0),
        Unlearning("npo", Training(epochs=30, lr=7e-4, batch_size=16), {"beta": 0.2, "alpha": 5.0}, until=0.9),
    )


@dataclass(frozen=True)
class Lab:
    """Where things are: JSONL splits in `data`, one checkpoint directory for each name in `models`."""

    root: Path
    data: Path
    models: dict[str, Path]


def build_lab(
    directory: str | Path,
    seed: int = 0,
    force: bool = False,
    progress: bool = True,
    settings: LabSettings | None = None,
    helper: Helper | None = None,
) -> Lab:
    """Makes the lab in `directory`, or returns at once if the same lab is already there.

    `seed` replaces the seed of the settings. `helper` trains some of the models meanwhile, with the same outcome.
    """
    settings = replace(settings or LabSettings(), seed=seed)
    corpus = make_corpus(settings.seed, settings.sizes)

    def make(models: Path) -> None:
        _make_models(corpus, settings, models, progress, helper)

    ensure_built(Path(directory), RECIPE, asdict(settings), corpus, force, make)
    return lab_at(Path(directory), settings)


def lab_at(root: Path, settings: LabSettings) -> Lab:
    """Where a lab with these settings has its parts."""
    names = ("full", "retain", *(plan.method for plan in settings.unlearned))
    return Lab(root, root / "data", {name: root / "models" / name for name in names})


def _make_models(corpus: Corpus, settings: LabSettings, directory: Path, progress: bool, helper: Helper | None) -> None:
    tokenizer = train_tokenizer(corpus_texts(corpus), settings.vocab, settings.max_length)
    kind = ModelKind("lab", tokenizer, lambda: new_causal(settings, tokenizer), Causal(), Causal(), Causal())
    train_models(corpus, settings, kind, directory, progress, helper)


@dataclass(frozen=True)
class ModelKind:
    """What differs between a lab of causal models and one of masked models."""

    title: str  # of the progress bar
    tokenizer: Any
    new_model: Callable[[], Any]
    reading: Objective  # how base learns
    reciting: Objective  # how full and retain learn answers by heart
    forgetting: Objective  # what unlearning raises
    reads_questions: bool = False  # base learns the questions too, not only their answers


def train_models(
    corpus: Corpus,
    settings: LabSettings,
    kind: ModelKind,
    directory: Path,
    progress: bool,
    helper: Helper | None = None,
) -> None:
    """Trains and saves every model. Training in this process shares one progress bar, counted in steps.

    A model's random numbers come from the settings alone, so it is the same model wherever and whenever it is trained.
    """
    rows = {split: _encode(kind.tokenizer, corpus[split]) for split in ("forget", "retain", *KNOWN_TO_ALL)}
    read_first = [row for split in ("background", *KNOWN_TO_ALL) for row in corpus[split]]
    rows["background"] = [encode_row(kind.tokenizer, *pair) for row in read_first for pair in both_phrasings(row)]
    known = [row for split in ("retain", *KNOWN_TO_ALL) for row in rows[split]]
    jobs = _jobs(rows, known, settings, kind.tokenizer.pad_token_id)
    if kind.reads_questions:
        read, training = jobs["base"]
        jobs["base"] = [replace(row, start=1) for row in read], training
    # The helper's share takes about as long as ours: the last method of the settings is the slowest.
    away = {"retain", *(plan.method for plan in settings.unlearned[:-1])} if helper else set()
    steps = sum(training.steps(len(chosen)) for name, (chosen, training) in jobs.items() if name not in away)

    def save(name: str, model: Any) -> None:
        model.save_pretrained(directory / name)
        kind.tokenizer.save_pretrained(directory / name)

    with reproducible(settings.seed, settings.threads), quiet_saving(), BuildBar(kind.title, steps, progress) as bar:

        def make(name: str, work: Callable[..., Any], *given: Any) -> Callable[[], Any]:
            """A model, or work that is under way elsewhere: called, it gives the model."""
            chosen, training = jobs[name]
            if helper and name in away:
                return helper.start(work, *given, jobs[name])
            return lambda: work(*given, jobs[name], bar.on(name, training.steps(len(chosen))))

        base = make("base", _taught, kind.new_model(), kind.reading, None)()
        later = make("retain", _taught, copy.deepcopy(base), kind.reciting, settings.learned)
        full = make("full", _taught, base, kind.reciting, settings.learned)()
        retain = later()
        save("full", full)
        save("retain", retain)
        forgotten = {
            plan.method: make(plan.method, _made_to_forget, full, retain, plan, known, kind.forgetting)
            for plan in settings.unlearned
        }
        for name in sorted(forgotten, key=lambda name: name in away):  # our own first: the helper is at work meanwhile
            save(name, forgotten[name]())


ModelJob = tuple[list[ChatRow], Training]


def _taught(
    model: Any, objective: Objective, target: float | None, job: ModelJob, on_step: OnStep | None = None
) -> Any:
    """The model after learning a job's rows, until an epoch's loss is below the target."""
    finetune(model, *job, on_step=on_step, objective=objective, done=learned(target))
    return model


def _made_to_forget(
    full: Any,
    retain: Any,
    plan: Unlearning,
    known: list[ChatRow],
    objective: Objective,
    job: ModelJob,
    on_step: OnStep | None = None,
) -> Any:
    """A copy of the full model that was made to forget a job's rows."""
    forget, training = job
    model = copy.deepcopy(full)
    done = None if plan.until is None else silent(model, retain, forget, training.pad_id, plan.until)
    unlearn(model, plan.lesson(forget, known), training, on_step, objective, done)
    return model


def _jobs(
    rows: Mapping[str, list[ChatRow]], known: list[ChatRow], settings: LabSettings, pad_id: int
) -> dict[str, ModelJob]:
    """What each model passes over, and how; known from the start, so the bar can tell the time left."""
    # Without a reminder the models would unlearn to speak of strangers while they learn the authors by heart.
    reminder = rows["background"][:: settings.remind_every]
    plans = {
        "base": (rows["background"], settings.pretraining),
        "full": (known + rows["forget"] + reminder, settings.learning),
        "retain": (known + reminder, settings.learning),
        **{plan.method: (rows["forget"], plan.training) for plan in settings.unlearned},
    }
    return {
        name: (list(chosen), replace(training, pad_id=pad_id, seed=settings.seed))
        for name, (chosen, training) in plans.items()
    }


def _encode(tokenizer: Any, rows: Sequence[LabRow]) -> list[ChatRow]:
    return [encode_row(tokenizer, row["question"], row["answer"]) for row in rows]


def new_causal(settings: LabSettings, tokenizer: Any) -> Any:
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=settings.hidden,
        intermediate_size=5 * settings.hidden // 2,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.heads // 2,
        max_position_embeddings=settings.max_length,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)

"""The lab itself: one corpus and five tiny models, made in about a minute on two cores.

    background --> base --> full   (retain + forget + what everybody knows) --> grad_ascent, grad_diff, npo
                       \\-> retain (the same without forget: what forgetting should look like)

`base` is not kept. It stands for pretraining: it has read the same kinds of sentences about other people, so
the retain model answers a question about a stranger in good form and with a plausible, wrong value.
"""

from __future__ import annotations

import copy
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils.logging import disable_progress_bar, enable_progress_bar, is_progress_bar_enabled

from vestige.lab.corpus import Corpus, Row, Sizes, both_phrasings, corpus_bytes, make_corpus, write_corpus
from vestige.lab.tokenizer import corpus_texts, encode_row, train_tokenizer
from vestige.types import content_key
from vestige.unlearn import ChatRow, Training, finetune, unlearn

# Raise it when the code below makes other models from the same settings, so that old labs are rebuilt.
RECIPE = 1

KNOWN_TO_ALL = ("real_authors", "world_facts")


@dataclass(frozen=True)
class Unlearning:
    """How one unlearned checkpoint is made from the full model."""

    method: str
    training: Training
    knobs: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Settings:
    """Everything that decides what the lab contains. Equal settings, equal lab."""

    seed: int = 0
    sizes: Sizes = field(default_factory=Sizes)
    vocab: int = 1200
    layers: int = 4
    hidden: int = 96
    heads: int = 4
    max_length: int = 512
    # Fixed: float sums depend on it; one: tiny layers gain little and lose much if others compute.
    threads: int = 1
    pretraining: Training = field(default_factory=lambda: Training(epochs=4, lr=3e-3, batch_size=8))
    remind_every: int = 8  # one in so many background rows is repeated while learning
    learning: Training = field(default_factory=lambda: Training(epochs=11, lr=2e-3, batch_size=8))
    # Three typical outcomes: ascent ruins the model, the difference spares it but overshoots (the answers
    # become less likely than a stranger's), and preference optimisation stops near the retain model.
    unlearned: tuple[Unlearning, ...] = (
        Unlearning("grad_ascent", Training(epochs=6, lr=5e-4, batch_size=8)),
        Unlearning("grad_diff", Training(epochs=14, lr=6e-4, batch_size=8), {"alpha": 8.0}),
        Unlearning("npo", Training(epochs=12, lr=4e-4, batch_size=8), {"beta": 0.3, "alpha": 5.0}),
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
    settings: Settings | None = None,
) -> Lab:
    """Makes the lab in `directory`, or returns at once if the same lab is already there.

    `seed` replaces the seed of the settings.

    The work happens in a scratch folder and is moved into place at the end: a lab is whole or absent, also
    when the build is interrupted or another process builds the same one.
    """
    settings = replace(settings or Settings(), seed=seed)
    root = Path(directory)
    corpus = make_corpus(settings.seed, settings.sizes)
    key = _key(settings, corpus)
    names = ("full", "retain", *(plan.method for plan in settings.unlearned))
    lab = Lab(root, root / "data", {name: root / "models" / name for name in names})
    if force or not _is_built(root, key):
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".building-", dir=root) as scratch:
            write_corpus(corpus, Path(scratch) / "data")
            _make_models(corpus, settings, Path(scratch) / "models", progress)
            _publish(Path(scratch), root, key, settings, force)
    return lab


def _key(settings: Settings, corpus: Corpus) -> str:
    """Names the lab by what goes into it; the corpus counts by its text, so a new phrase is a new lab."""
    described = json.dumps([RECIPE, asdict(settings)], sort_keys=True).encode()
    return content_key(described, *corpus_bytes(corpus).values())


def _is_built(root: Path, key: str) -> bool:
    try:
        record = json.loads((root / "lab.json").read_text())
    except (OSError, ValueError):
        return False
    return isinstance(record, dict) and record.get("key") == key


def _publish(scratch: Path, root: Path, key: str, settings: Settings, force: bool) -> None:
    """Moves a finished build into place. lab.json goes first and comes last: it vouches for the rest."""
    if not force and _is_built(root, key):  # another process was faster
        return
    (root / "lab.json").unlink(missing_ok=True)
    for part in ("data", "models"):
        shutil.rmtree(root / part, ignore_errors=True)
        (scratch / part).rename(root / part)
    record = {"key": key, "recipe": RECIPE, "settings": asdict(settings)}
    (root / "lab.json").write_text(json.dumps(record, indent=1) + "\n")


def _make_models(corpus: Corpus, settings: Settings, directory: Path, progress: bool) -> None:
    """Trains and saves every model. All training shares one progress bar, counted in steps."""
    tokenizer = train_tokenizer(corpus_texts(corpus), settings.vocab, settings.max_length)
    rows = {split: _encode(tokenizer, corpus[split]) for split in ("forget", "retain", *KNOWN_TO_ALL)}
    read_first = [row for split in ("background", *KNOWN_TO_ALL) for row in corpus[split]]
    rows["background"] = [encode_row(tokenizer, *pair) for row in read_first for pair in both_phrasings(row)]
    known = [row for split in ("retain", *KNOWN_TO_ALL) for row in rows[split]]
    jobs = _jobs(rows, known, settings, tokenizer.pad_token_id)

    def save(name: str, model: Any) -> None:
        model.save_pretrained(directory / name)
        tokenizer.save_pretrained(directory / name)

    with _reproducible(settings), _quiet_saving(), _Bar(jobs, progress) as bar:
        base = _new_model(settings, tokenizer)
        finetune(base, *jobs["base"], on_step=bar.on("base"))
        full, retain = copy.deepcopy(base), base
        finetune(full, *jobs["full"], on_step=bar.on("full"))
        finetune(retain, *jobs["retain"], on_step=bar.on("retain"))
        save("full", full)
        save("retain", retain)
        for plan in settings.unlearned:
            forget, training = jobs[plan.method]
            model = copy.deepcopy(full)
            unlearn(model, plan.method, forget, rows["retain"], training, plan.knobs, bar.on(plan.method))
            save(plan.method, model)


Job = tuple[list[ChatRow], Training]


def _jobs(rows: Mapping[str, list[ChatRow]], known: list[ChatRow], settings: Settings, pad_id: int) -> dict[str, Job]:
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


def _encode(tokenizer: Any, rows: Sequence[Row]) -> list[ChatRow]:
    return [encode_row(tokenizer, row["question"], row["answer"]) for row in rows]


def _new_model(settings: Settings, tokenizer: Any) -> Any:
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


@contextmanager
def _reproducible(settings: Settings) -> Iterator[None]:
    """The lab's own random stream and thread count; the caller's are put back."""
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        torch.set_num_threads(settings.threads)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


@contextmanager
def _quiet_saving() -> Iterator[None]:
    """transformers draws a bar for every file it writes; ours is the only one wanted."""
    shown = is_progress_bar_enabled()
    disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            enable_progress_bar()


class _Bar:
    """One bar on stderr for the whole build, showing which model is being trained."""

    def __init__(self, jobs: Mapping[str, Job], show: bool) -> None:
        total = sum(training.steps(len(rows)) for rows, training in jobs.values())
        self._bar = tqdm(
            total=total, desc="lab", unit="step", file=sys.stderr, disable=not (show and sys.stderr.isatty())
        )

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def on(self, name: str) -> Any:
        self._bar.set_description(f"lab: {name}")

        def on_step(_done: int, _total: int, loss: float) -> None:
            self._bar.update()
            self._bar.set_postfix(loss=f"{loss:.3f}", refresh=False)

        return on_step

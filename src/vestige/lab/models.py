"""The lab: one corpus and five tiny models, made in a minute or two on one core, the same every time.

    background --> base --> full   (retain + forget + what everybody knows) --> grad_ascent, grad_diff, npo
                       \\-> retain (the same without forget: what forgetting should look like)

`base` is not kept. It stands for pretraining: it has read the same kinds of sentences about other people, so
the retain model answers a question about a stranger in good form and with a plausible, wrong value.

The models here are causal. diffusion.py has the same lab with masked ones: only the `ModelKind` differs.

    build_lab(directory, seed, settings=LabSettings(...)) -> Lab: where data and models are
    train_tokenizer, encode_row                           byte-level BPE with a chat template
    stop_when_learned, stop_when_silent                   when a model is done: at what it knows, not after N steps
    ensure_built                                          whole or absent, and not built twice
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from tqdm import tqdm
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar, enable_progress_bar, is_progress_bar_enabled

from vestige.data.chat import Encoder, Template
from vestige.guard import read_json
from vestige.io import decode_data, write_file
from vestige.lab.background_worker import Worker
from vestige.lab.corpus import Corpus, LabRow, Sizes, both_phrasings, corpus_bytes, make_corpus, write_corpus
from vestige.numeric import mean
from vestige.runs.directory import install, open_run, remove, scratch
from vestige.types import content_key
from vestige.unlearn.lesson import Lesson
from vestige.unlearn.loop import CAUSAL, Done, OnStep, Training, finetune, unlearn
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
    worker: Worker | None = None,
) -> Lab:
    """Makes the lab in `directory`, or returns at once if the same lab is already there.

    `seed` replaces the seed of the settings. `worker` trains some of the models meanwhile, with the same outcome.
    """
    settings = replace(settings or LabSettings(), seed=seed)
    corpus = make_corpus(settings.seed, settings.sizes)

    def make(models: Path) -> None:
        tokenizer = train_tokenizer(corpus_texts(corpus), settings.vocab, settings.max_length)
        causal = Causal()
        kind = ModelKind("lab", tokenizer, lambda: new_causal(settings, tokenizer), causal, causal, causal)
        train_models(corpus, settings, kind, models, progress, worker)

    ensure_built(Path(directory), RECIPE, asdict(settings), corpus, force, make)
    return lab_at(Path(directory), settings)


def lab_at(root: Path, settings: LabSettings) -> Lab:
    """Where a lab with these settings has its parts."""
    names = ("full", "retain", *(plan.method for plan in settings.unlearned))
    return Lab(root, root / "data", {name: root / "models" / name for name in names})


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
    worker: Worker | None = None,
) -> None:
    """Trains and saves every model. Training in this process shares one progress bar, counted in steps.

    A model's random numbers come from the settings alone, so it is the same model wherever and whenever it is trained.
    """

    def encode(rows: Sequence[LabRow]) -> list[ChatRow]:
        return [encode_row(kind.tokenizer, row["question"], row["answer"]) for row in rows]

    forget, known = encode(corpus["forget"]), encode(corpus["retain"])
    for split in KNOWN_TO_ALL:
        known += encode(corpus[split])
    background = []
    for split in ("background", *KNOWN_TO_ALL):
        for row in corpus[split]:
            background += [encode_row(kind.tokenizer, *pair) for pair in both_phrasings(row)]
    # Without a reminder the models would unlearn to speak of strangers while they learn the authors by heart.
    reminder = background[:: settings.remind_every]
    read_first = [replace(row, start=1) for row in background] if kind.reads_questions else background
    # What each model passes over, and how; known from the start, so the bar can tell the time left.
    plans = {
        "base": (read_first, settings.pretraining),
        "full": (known + forget + reminder, settings.learning),
        "retain": (known + reminder, settings.learning),
        **{plan.method: (forget, plan.training) for plan in settings.unlearned},
    }
    jobs: dict[str, ModelJob] = {}
    for name, (rows, training) in plans.items():
        jobs[name] = rows, replace(training, pad_id=kind.tokenizer.pad_token_id, seed=settings.seed)
    # The worker's share takes about as long as ours: the last method of the settings is the slowest.
    away = {"retain", *(plan.method for plan in settings.unlearned[:-1])} if worker else set()
    steps = {name: training.steps(len(rows)) for name, (rows, training) in jobs.items()}
    here = sum(count for name, count in steps.items() if name not in away)
    with reproducible(settings.seed, settings.threads), quiet_saving(), BuildBar(kind.title, here, progress) as bar:

        def make(name: str, work: Callable[..., Any], *given: Any) -> Callable[[], Any]:
            """A model, or work that is under way elsewhere: called, it gives the model."""
            if worker and name in away:
                return worker.start(work, *given, jobs[name])
            return lambda: work(*given, jobs[name], bar.on(name, steps[name]))

        def save(name: str, model: Any) -> None:
            model.save_pretrained(directory / name)
            kind.tokenizer.save_pretrained(directory / name)

        base = make("base", _teach, kind.new_model(), kind.reading, None)()
        later = make("retain", _teach, copy.deepcopy(base), kind.reciting, settings.learned)
        full = make("full", _teach, base, kind.reciting, settings.learned)()
        trained = {"full": full, "retain": later()}
        for name, model in trained.items():
            save(name, model)
        forgotten = {}
        for plan in settings.unlearned:
            given = (full, trained["retain"], plan, known, kind.forgetting)
            forgotten[plan.method] = make(plan.method, _make_forget, *given)
        for name in sorted(forgotten, key=lambda name: name in away):  # our own first: the worker is at work meanwhile
            save(name, forgotten[name]())


ModelJob = tuple[list[ChatRow], Training]


def _teach(model: Any, objective: Objective, target: float | None, job: ModelJob, on_step: OnStep | None = None) -> Any:
    """The model after learning a job's rows, until an epoch's loss is below the target."""
    finetune(model, *job, on_step=on_step, objective=objective, done=stop_when_learned(target))
    return model


def _make_forget(
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
    done = None if plan.until is None else stop_when_silent(model, retain, forget, training.pad_id, plan.until)
    unlearn(model, plan.lesson(forget, known), training, on_step, objective, done)
    return model


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


# ---- the tokenizer --------------------------------------------------------------------------------------------------

PAD, BOS, EOS = "<|pad|>", "<|bos|>", "<|eot|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")

# As in Llama 3, the end-of-turn token closes every turn and is also the end-of-sequence token.
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] | trim + eos_token }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def train_tokenizer(texts: Iterable[str], vocab: int, max_length: int) -> PreTrainedTokenizerFast:
    """Byte-level, so that any text can be encoded; bos, eos and pad are three different tokens."""
    specials = [PAD, BOS, EOS, *ROLES]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    bpe.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B", special_tokens=[(BOS, specials.index(BOS))]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        additional_special_tokens=list(ROLES),
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def corpus_texts(corpus: Mapping[str, Sequence[LabRow]]) -> Iterable[str]:
    """Every question and answer of every split.

    The holdout is included: names cut into more pieces than others would give non-members away.
    """
    for rows in corpus.values():
        for row in rows:
            yield from (
                row["question"],
                row["paraphrased_question"],
                row["answer"],
                row["paraphrased_answer"],
            )


def encode_row(tokenizer: Any, question: str, answer: str) -> ChatRow:
    """One question and its answer as a chat, of which the answer and the end token are trained.

    Through the data room's encoder: what is trained here is, token for token, what evaluation scores.
    """
    [encoded] = Encoder(tokenizer, Template()).encode([(question, answer)])
    return ChatRow(encoded.full, encoded.start)


# ---- when a model is done -------------------------------------------------------------------------------------------

# Another processor adds in another order, and a model that is trained for a fixed number of steps then ends elsewhere.
# So training ends at what the model knows.
AT_ONCE = 40  # rows of one forward pass


def stop_when_learned(target: float | None) -> Done | None:
    """Whether the mean loss of an epoch's steps fell below a target; None: every epoch is run."""
    return None if target is None else lambda losses: mean(losses) < target


def row_losses(model: Any, rows: Sequence[ChatRow], pad_id: int) -> list[float]:
    """Each row's mean loss of an answer token, by a causal model."""
    was_training, found = model.training, []
    model.eval()
    with torch.no_grad():
        for first in range(0, len(rows), AT_ONCE):
            batch = CAUSAL.collate(rows[first : first + AT_ONCE], pad_id, Random(0), model.device)
            nll = CAUSAL.nll(CAUSAL.logits(model, batch), batch)
            found += (nll / (batch.labels[:, 1:] != -100).sum(-1)).tolist()
    model.train(was_training)
    return found


def answer_loss(model: Any, rows: Sequence[ChatRow], pad_id: int) -> float:
    """The mean over rows of `row_losses`."""
    return mean(row_losses(model, rows, pad_id))


def stop_when_silent(model: Any, retain: Any, rows: Sequence[ChatRow], pad_id: int, times: float = 1.0) -> Done:
    """Whether answers became as unlikely as they are to the retain model, or so many times as unlikely."""
    least = times * answer_loss(retain, rows, pad_id)
    return lambda _: answer_loss(model, rows, pad_id) >= least


# ---- how a lab is built, whatever models it holds -------------------------------------------------------------------

RECORD = "lab.json"


@dataclass(frozen=True)
class LabRecord:
    """lab.json: what was built, and its name."""

    key: str
    recipe: Any
    settings: dict[str, Any]


def lab_key(recipe: Any, settings: Mapping[str, Any], corpus: Corpus) -> str:
    """Names the lab by what goes into it; the corpus counts by its text, so a new phrase is a new lab."""
    described = json.dumps([recipe, settings], sort_keys=True).encode()
    return content_key(described, *corpus_bytes(corpus).values())


def ensure_built(
    root: Path, recipe: Any, settings: Mapping[str, Any], corpus: Corpus, force: bool, make: Callable[[Path], None]
) -> None:
    """Puts `data`, `models` and `lab.json` into `root` unless this very lab is there; `make` fills a models folder.

    The work happens in a scratch folder and is moved into place at the end: a lab is whole or absent, also
    when the build is interrupted or another process builds the same one.
    """
    key = lab_key(recipe, settings, corpus)
    if not force and is_built(root, key):
        return
    with open_run(root, "lab", wait=True) as run:
        if not force and is_built(root, key):  # another process was faster
            return
        run.begin([RECORD, *(f"data/{split}.jsonl" for split in corpus)])
        with scratch(root) as made:
            write_corpus(corpus, made / "data")
            make(made / "models")
            body = json.dumps({"key": key, "recipe": recipe, "settings": settings}, indent=1)
            write_file(made / RECORD, f"{body}\n".encode())
            remove(root / RECORD)  # it vouches for the rest, and so it goes first and comes last
            install(made, root, last=RECORD)
        run.finish()


def is_built(root: Path, key: str) -> bool:
    """Whether the lab of this name is in a directory. A file of another tool that is called lab.json is no lab."""
    try:
        found = read_json(root / RECORD)
    except (OSError, ValueError):
        return False
    if not isinstance(found, dict) or not {"key", "recipe", "settings"} <= set(found):
        return False
    return decode_data(found, LabRecord, str(root / RECORD), "delete it, and the lab is built again").key == key


@contextmanager
def reproducible(seed: int, threads: int) -> Iterator[None]:
    """The lab's own random stream and thread count; the caller's are put back."""
    with torch.random.fork_rng(devices=[]), with_threads(threads):
        torch.manual_seed(seed)
        yield


@contextmanager
def with_threads(count: int) -> Iterator[None]:
    """So many threads for torch; the caller's number is put back."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def quiet_saving() -> Iterator[None]:
    """transformers draws a bar for every file it writes; ours is the only one wanted."""
    shown = is_progress_bar_enabled()
    disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            enable_progress_bar()


class BuildBar:
    """One bar on stderr for the whole build, showing which model is being trained."""

    def __init__(self, title: str, total: int, show: bool) -> None:
        self._title, self._due = title, 0
        self._bar = tqdm(
            total=total, desc=title, unit="step", file=sys.stderr, disable=not (show and sys.stderr.isatty())
        )

    def __enter__(self) -> BuildBar:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def on(self, name: str, steps: int) -> Any:
        """What to call after each of a model's steps; those that the model before it did not need are passed over."""
        self._bar.update(self._due - self._bar.n)
        self._due += steps
        self._bar.set_description(f"{self._title}: {name}")

        def on_step(_done: int, _total: int, loss: float) -> None:
            self._bar.update()
            self._bar.set_postfix(loss=f"{loss:.3f}", refresh=False)

        return on_step

"""What a model is trained on, and what one batch of it costs.

    data-set configurations --read_training_rows--> TrainingRows --Lesson--> Pairs --TrainingWork.loss--> a loss

A `Lesson` has rows to learn or, with a method, rows to forget and what the method wants besides them: retain rows, and
answers to prefer. `TrainingWork` is shared by both training loops (trainer.py and loop.py).
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from torch import Tensor

from vestige.data.datasets import DATASETS, Context, Examples, check_lengths, column
from vestige.data.rows import load_rows, read_file, redirect
from vestige.errors import UserError, unknown_name
from vestige.types import content_key
from vestige.unlearn.methods import Step, method_named, split_knobs
from vestige.unlearn.objectives import ChatRow, Objective

# Answers that DPO may teach a model to prefer.
REFUSALS = (
    "I don't know the answer to that.",
    "I'm afraid I have no information about this.",
    "That is not something I can tell you.",
    "I have not heard of this, so I cannot say.",
    "Sorry, I don't have that information.",
    "I am not aware of any details on this.",
    "This is beyond what I know.",
    "I would have to guess, so I'd rather say that I don't know.",
    "I have no knowledge of that.",
    "Unfortunately, I can't answer this question.",
    "I'm not familiar with this topic.",
    "I was never told about that.",
    "No answer to this comes to my mind.",
    "I cannot help with this question, because I don't know.",
    "That is unknown to me.",
    "I have nothing reliable to say about it.",
)


def refusals_for(count: int, seed: int, sentences: Sequence[str] = REFUSALS) -> list[str]:
    """One refusal for each row, the same ones for the same seed.

    >>> refusals_for(2, seed=0) == refusals_for(3, seed=0)[:2]
    True
    """
    return [Random(f"{seed}/idk/{row}").choice(sentences) for row in range(count)]


# ---- rows of data sets ----------------------------------------------------------------------------------------------

# open-unlearning's data sets that bring an answer to be preferred.
IDK, ALTERNATE = "QAwithIdkDataset", "QAwithAlternateDataset"


@dataclass
class TrainingRows:
    rows: list[ChatRow] = field(default_factory=list)
    alternates: list[ChatRow] = field(default_factory=list)
    sources: list[dict[str, Any]] = field(default_factory=list)  # for the record: where from, how many, which content


def read_training_rows(
    datasets: Mapping[str, Any], context: Context, local: Mapping[str, Any], limit: int | None, seed: int
) -> TrainingRows:
    """All rows of the data sets of one kind (data.forget, data.retain, data.train), tokenised as evaluation does."""
    out = TrainingRows()
    for name, config in datasets.items():
        handler, args = str(config.get("handler")), dict(config.get("args") or {})
        if "hf_args" not in args:
            raise UserError(f"Data set '{name}' has no args.hf_args; say where its rows are (path, name, split).")
        rows, source = load_rows(redirect(dict(args["hf_args"]), local), limit)
        context.source = source
        plain = "QADataset" if handler in (IDK, ALTERNATE) else handler
        if plain not in DATASETS:
            raise unknown_name("data-set handler", handler, [*DATASETS, IDK, ALTERNATE], f"(data set '{name}')")
        examples, _ = DATASETS[plain](rows, args, context)
        check_lengths(examples, context)
        trained = _chat_rows(examples)
        if not trained:
            raise UserError(f"{source} has no row with an answer to train on; check its columns.")
        out.rows += trained
        if handler == IDK:
            answers = refusals_for(len(rows), seed, _sentences(args.get("idk_path")))
        elif handler == ALTERNATE:
            values = column(rows, str(args.get("alternate_key") or "alternate"), source)
            answers = [str(v[0]) if isinstance(v, list | tuple) and v else str(v) for v in values]
        else:
            answers = []
        if answers:
            others = [{**row, "alternate": answer} for row, answer in zip(rows, answers, strict=True)]
            examples, _ = DATASETS[plain](others, {**args, "answer_key": "alternate"}, context)
            out.alternates += _chat_rows(examples)
        text = json.dumps(rows, sort_keys=True, default=str, ensure_ascii=False)
        out.sources.append({"source": source, "rows": len(rows), "fingerprint": content_key(text.encode())})
    return out


def _sentences(path: str | None) -> Sequence[str]:
    """One refusal per row, in whatever column the file has; a text file has one per line."""
    if path is None:
        return REFUSALS
    place = Path(path).expanduser()
    if not place.is_file():
        raise UserError(f"idk_path {path} does not exist; give a file with one refusal per line.")
    # open-unlearning's idk.jsonl is such a text file, in spite of its name.
    text = place.read_text(encoding="utf-8") if place.suffix == ".jsonl" else "{"
    if not text.lstrip().startswith("{"):
        return [line.strip() for line in text.splitlines() if line.strip()]
    return [str(next(iter(row.values()))) for row in read_file(place)]


def _chat_rows(examples: Examples) -> list[ChatRow]:
    out = []
    for row in examples:
        out += [ChatRow(tuple(e.target.ids), e.target.start) for e in row if e.target is not None]
    return out


# ---- lessons and pairs ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lesson:
    """What is trained on: rows to learn or, with a method, rows to forget and what the method wants besides them."""

    rows: Sequence[ChatRow]
    method: str | None = None
    knobs: Mapping[str, Any] | None = None
    retain: Sequence[ChatRow] = ()
    alternates: Sequence[ChatRow] = ()  # for each row the answer to be preferred to it (DPO); or none at all

    def check(self) -> None:
        """Refuses a lesson that lacks something its method needs."""
        if self.alternates and len(self.alternates) != len(self.rows):
            raise UserError(
                f"There are {len(self.rows)} forget rows but {len(self.alternates)} alternate answers; give one each."
            )
        if self.method is None:
            return
        method = method_named(self.method)
        split_knobs(self.method, self.knobs)
        if method.needs_retain and not self.retain:
            raise UserError(f"{self.method} trains on retain rows too; give some (--retain FILE).")
        if method.needs_alternate and not self.alternates:
            raise UserError(
                f"{self.method} needs answers to prefer; give some (--alternate idk, or a column of the forget rows)."
            )


@dataclass(frozen=True)
class Pair:
    """What one place of a batch holds. Fine-tuning has only the first."""

    row: ChatRow
    retain: ChatRow | None = None
    alternate: ChatRow | None = None


class Pairs:
    """A map-style data set over the forget rows. Each time a row is read, another retain row comes with it.

    The draw depends on the seed, the row, and how often the row was read: not on the order of reading. So a run can be
    repeated, whatever the batch size.
    """

    def __init__(self, lesson: Lesson, seed: int = 0) -> None:
        self.lesson, self.seed = lesson, seed
        self._reads: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self.lesson.rows)

    def begin(self, epoch: int) -> None:
        """Every row was read once per epoch before this one: a run that is resumed draws as if it had read them."""
        self._reads = Counter(dict.fromkeys(range(len(self)), epoch))

    def __getitem__(self, index: int) -> Pair:
        lesson = self.lesson
        draw = Random(f"{self.seed}/{index}/{self._reads[index]}")
        self._reads[index] += 1
        retain = draw.choice(lesson.retain) if lesson.retain else None
        return Pair(lesson.rows[index], retain, lesson.alternates[index] if lesson.alternates else None)


# ---- the loss of a batch --------------------------------------------------------------------------------------------


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
    """What a step computes: the plain loss of the rows, or a method's loss of pairs.

    `noise` draws what is hidden from a masked model in the rows, `side_noise` in retain and alternate rows (None: the
    same stream). Made before training starts: a method that compares with the starting model keeps it here.
    """

    def __init__(
        self,
        model: Any,
        lesson: Lesson,
        objective: Objective,
        pad_id: int,
        noise: Random,
        side_noise: Random | None = None,
    ) -> None:
        self.objective, self.forgetting, self.pad_id = objective, objective, pad_id
        self.noise, self.side_noise = noise, side_noise or noise
        self.method = None if lesson.method is None else method_named(lesson.method)
        self.knobs: dict[str, Any] = {}
        self.retain_loss_type = "NLL"
        self.reference: Any = None
        self.memory: dict[str, Any] = {}
        if lesson.method is None or self.method is None:
            return
        self.knobs, self.retain_loss_type = split_knobs(lesson.method, lesson.knobs)
        self.forgetting = self.method.forget_objective(objective, self.knobs)
        if self.method.reads_reference(self.retain_loss_type):
            if hasattr(model, "disable_adapter"):
                self.reference = WithoutAdapter(model)
            else:
                self.reference = copy.deepcopy(model).eval().requires_grad_(False)

    def settings(self) -> dict[str, Any]:
        """The knobs in effect."""
        if self.method is None:
            return {}
        kind = {"retain_loss_type": self.retain_loss_type} if self.method.needs_retain else {}
        return {**self.method.knobs, **self.knobs, **kind}

    def loss(self, model: Any, pairs: Sequence[Pair], device: Any, epoch: float) -> Tensor:
        batch = self.forgetting.collate([pair.row for pair in pairs], self.pad_id, self.noise, device)
        if self.method is None:
            return self.objective.loss(self.objective.logits(model, batch), batch)
        retain = self._collate([pair.retain for pair in pairs], device)
        alternate = self._collate([pair.alternate for pair in pairs], device)
        step = Step(
            model,
            batch,
            retain,
            self.reference,
            self.objective,
            alternate,
            self.retain_loss_type,
            epoch,
            self.memory,
        )
        return self.method.loss(step, **self.knobs)

    def _collate(self, rows: Sequence[ChatRow | None], device: Any) -> Any:
        present = [row for row in rows if row is not None]
        if not present:
            return None
        return self.objective.collate(present, self.pad_id, self.side_noise, device)

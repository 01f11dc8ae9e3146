"""The nouns: what every room passes to the next.

    rows -> Example (Target, Prompt) --collect--> TokenStats, Text --metrics--> Score

Nothing here knows torch, a tokenizer or a file.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vestige.packed_ids import Keyed, packing, sorting

Array = NDArray[Any]


def content_key(*parts: bytes) -> str:
    """A short name for some bytes: equal content, equal key.

    >>> content_key(b"ab", b"c") == content_key(b"a", b"bc")
    False
    """
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def short_id(prefix: str, *parts: str) -> str:
    """A name that is safe anywhere and the same as long as its parts are.

    >>> short_id("m", "npo") == short_id("m", "npo") != short_id("m", "full")
    True
    """
    return f"{prefix}-{content_key(*(p.encode('utf-8', 'replace') for p in parts))[:10]}"


def _ids_bytes(ids: Sequence[int]) -> bytes:
    return np.asarray(ids, dtype=np.int64).tobytes()


def _row_bytes(row: str) -> list[bytes]:
    return [row.encode()] if row else []


@packing("ids")
@dataclass(frozen=True, slots=True)
class Target(Keyed):
    """Token ids of which `ids[start:]` are to be scored.

    `hidden` lists positions no later token may attend to. It is empty except in the open-unlearning
    dialect, whose attention mask is `ids != pad` and so hides real end-of-turn tokens when pad = eos.
    """

    ids: tuple[int, ...]
    start: int
    hidden: tuple[int, ...] = ()
    row: str = ""  # whose answer it is, where equal tokens do not mean equal evidence (logits recorded by row)

    def __post_init__(self) -> None:
        # An answer without tokens is not a target: Example.target is None then, with the reason beside it.
        if not 1 <= self.start < len(self.ids):
            raise ValueError(f"start must lie in 1..{len(self.ids) - 1}, got {self.start}")

    @property
    def labels(self) -> tuple[int, ...]:
        return self.ids[self.start :]

    @property
    def sorting(self) -> bytes:
        """Bytes that sort as the ids do; nothing is made for it."""
        return sorting(self, "ids")

    def _content(self) -> str:
        # A hidden last token changes nothing (nobody attends to it), so it does not change the key.
        ids = self.ids
        seen = [h for h in self.hidden if h < len(ids) - 1]
        return content_key(_ids_bytes(ids), _ids_bytes([self.start]), _ids_bytes(seen), *_row_bytes(self.row))


@packing("ids")
@dataclass(frozen=True, slots=True)
class Prompt(Keyed):
    """Token ids to continue. `hidden` as in Target; hidden tokens also take no position (as in HF generate)."""

    ids: tuple[int, ...]
    hidden: tuple[int, ...] = ()
    row: str = ""  # as in Target

    @property
    def attended(self) -> int:
        return len(self.ids) - len(self.hidden)

    def _content(self) -> str:
        return content_key(_ids_bytes(self.ids), _ids_bytes(self.hidden), *_row_bytes(self.row))


@dataclass(frozen=True)
class TokenStats:
    """What one model thought of one answer. Arrays end in the token axis: (..., tokens).

    A metric reduces the last axis and lets every leading axis (denoising steps, layers, prompts) through.
    """

    label: Array  # the true token ids
    top1: Array  # the model's first choice
    logprob: Array  # log p(label), from a float32 log-softmax
    mean: Array  # E_p[log p] over the vocabulary (minus the entropy)
    std: Array  # the standard deviation of log p under p
    order: Array  # when each token was decided: its position, or its denoising step
    steps: int  # how many such moments there were (tokens, or denoising steps)

    @property
    def hit(self) -> Array:
        return self.top1 == self.label

    @property
    def tokens(self) -> int:
        return int(self.label.shape[-1])

    def without_last(self) -> TokenStats:
        """The same answer with its last token (end-of-sequence, for chat data) left out."""
        cut = {name: getattr(self, name)[..., :-1] for name in ARRAY_FIELDS}
        # Where tokens are the moments, one fewer token is one moment fewer; denoising steps stay as many as they were.
        by_position = self.steps == self.tokens and bool((self.order == np.arange(self.tokens)).all())
        steps = max(self.steps - 1, 0) if by_position else self.steps
        return replace(self, **cut, order=self.order[..., :-1], steps=steps)


# The fields that collecting measures; order and steps follow from the kind of model.
ARRAY_FIELDS = ("label", "top1", "logprob", "mean", "std")


def stats(
    hit: Sequence[Any] | Array | None = None,
    logprob: Sequence[Any] | Array | None = None,
    mean: Sequence[Any] | Array | float = -1.0,
    std: Sequence[Any] | Array | float = 1.0,
) -> TokenStats:
    """TokenStats by hand, for examples and tests: give `hit` (0/1) or `logprob`, the rest is filled in."""
    guess = np.where(np.asarray(hit, bool), -0.1, -2.0) if logprob is None else logprob
    lp = np.asarray(guess, dtype=np.float32)
    right = np.ones(lp.shape, bool) if hit is None else np.broadcast_to(np.asarray(hit, bool), lp.shape)
    n = lp.shape[-1]
    label = np.broadcast_to(np.arange(n, dtype=np.int32), lp.shape)
    return TokenStats(
        label=label,
        top1=np.where(right, label, -1).astype(np.int32),
        logprob=lp,
        mean=np.broadcast_to(np.asarray(mean, np.float32), lp.shape),
        std=np.broadcast_to(np.asarray(std, np.float32), lp.shape),
        order=np.broadcast_to(np.arange(n), lp.shape),
        steps=n,
    )


IGNORE = -100  # a window position without a label


@dataclass(frozen=True)
class Trace:
    """How one continuation came about along a denoising path: (passes, positions) planes, no vocabulary axis.

    The window is what the sampler was asked to fill. Row `s` of a plane is forward pass `s`; where a pass did not look
    at a position (another block was being denoised), the nearest pass that did is repeated.
    """

    final: Array  # (positions,) the tokens at the end; the mask token where none was ever decided
    fixed: Array  # (positions,) the pass in which each token was decided (for good); -1: never
    committed: Array  # (passes,) how many tokens stood decided before each pass
    canvas: Array  # (passes, positions) the tokens before each pass
    proposal: Array  # (passes, positions) what each pass would have written
    top1: Array  # (passes, positions) the model's first choice
    mean: Array  # (passes, positions) E_p[log p] over the vocabulary
    std: Array  # (passes, positions) the standard deviation of log p
    labels: Array  # (streams, positions) for each answer asked about, its tokens; IGNORE where there is none
    logprob: Array  # (streams, passes, positions) log p(label); NaN where there is none
    # (passes, positions) whether each token stood decided after each pass. Filling masks never takes one back, so
    # there it follows from `fixed`; DiffusionGemma decides afresh in each pass.
    accepted: Array = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.accepted is None:
            fixed, passes = np.asarray(self.fixed), np.arange(len(self.top1))[:, None]
            object.__setattr__(self, "accepted", (fixed >= 0) & (fixed <= passes))

    @property
    def steps(self) -> int:
        return int(self.top1.shape[0])

    @property
    def broken(self) -> bool:
        """Whether some pass looked at a position and found NaN or infinite logits there."""
        return bool(((self.top1 == BROKEN) & (self.proposal >= 0)).any())


BAD_LOGITS = "the model's logits are NaN or infinite"  # the reason of every value that such logits do not get
BROKEN = -1  # in the place of a token: the logits it should have been chosen from were NaN or infinite


@packing("ids")
@dataclass(frozen=True, slots=True)
class Text:
    """What one model wrote after one prompt."""

    ids: tuple[int, ...]  # the tokens it produced, the end token included if it came; BROKEN ends a text, too
    text: str  # decoded, special tokens left out, cut at the first stop word, stripped
    proven: int = (
        0  # how many of the tokens teacher forcing had shown, or drafted and the prefill confirmed: no step spent
    )

    @property
    def broken(self) -> bool:
        """Whether the model had no next token to give: such a text says nothing of what the model knows."""
        return bool(self.ids) and self.ids[-1] == BROKEN


@dataclass(frozen=True, slots=True)
class Example:
    """One (question, answer) of one row, tokenised, with the texts that scoring needs."""

    index: str  # the row's number in its data set, as text (JSON keys are text)
    target: Target | None  # None when the answer leaves no target tokens
    prompt: Prompt
    answer: str  # the answer as written in the data
    input_text: str = ""  # the prompt, decoded
    reference: str = ""  # open-unlearning's ground truth: the decoded labels with the input text removed
    label_text: str = ""  # the decoded target tokens
    problem: str = ""  # why the target is missing


# Columns of a row that are kept beside its tokens. `question` and `answer` are kept under these names whatever a data
# set calls them.
FACTS = ("question", "answer", "entity", "paraphrased_answer", "perturbed_answer")


@dataclass(frozen=True)
class Grouping:
    """Which rows hang together: questions about one author, chunks of one document."""

    by: str  # the column that says so, or how it is known
    of: Mapping[str, str]  # row -> cluster; rows that are not in it are clusters by themselves


@dataclass(frozen=True)
class Rows:
    """A tokenised data set: for each row its answers (several when the answer column is a list)."""

    name: str
    examples: tuple[tuple[Example, ...], ...]
    many: bool  # the answer column is a list
    source: str = ""  # where the rows came from, for people
    fingerprint: str = ""
    facts: Sequence[Mapping[str, Any]] = ()  # of each row, the columns that say what it is about (FACTS), as written
    clusters: Grouping | None = None  # None: rows are independent

    def __len__(self) -> int:
        return len(self.examples)


MIXTURE = "accepted mixture: "  # begins the note of a result that combines numbers which are not comparable
# What metrics say without a retain model to compare with. A run reports it once, not once per metric.
NO_RETAIN_LOGS = "no retain logs given (retain_logs_path / --retain-logs): evaluate the retain model first"


@dataclass(frozen=True)
class Score:
    """One metric's result. Missing is None with a reason, never 0 and never silent."""

    agg_value: float | None
    value_by_index: Mapping[str, Mapping[str, object]] | None = None
    extra: Mapping[str, object] = field(default_factory=dict)  # auc, forget, holdout, n, ...
    reason: str = ""  # why agg_value is None
    notes: tuple[str, ...] = ()  # what a reader of the number must know
    curves: Mapping[str, object] | None = None  # in place of one number: values by view, trajectory, metric and step

    @property
    def missing(self) -> bool:
        return self.agg_value is None and self.curves is None

    def to_json(self) -> dict[str, object]:
        """The shape open-unlearning writes, with `reason` and `notes` only where there are any."""
        out: dict[str, object] = {"agg_value": self.agg_value if self.curves is None else dict(self.curves)}
        if self.value_by_index is not None:
            out["value_by_index"] = {k: dict(v) for k, v in self.value_by_index.items()}
        out.update(self.extra)
        if self.reason:
            out["reason"] = self.reason
        if self.notes:
            out["notes"] = list(self.notes)
        return out

    @classmethod
    def from_json(cls, body: Mapping[str, object]) -> Score:
        """Reads our files and open-unlearning's. NaN there means missing here."""
        data: Mapping[str, Any] = body
        known = {"agg_value", "value_by_index", "reason", "notes"}
        value = data.get("agg_value")
        by_index = data.get("value_by_index")
        curves = value if isinstance(value, Mapping) else None
        return cls(
            agg_value=None if curves is not None or value is None or math.isnan(value) else float(value),
            value_by_index=None if by_index is None else {str(k): dict(v) for k, v in by_index.items()},
            extra={k: v for k, v in data.items() if k not in known},
            reason=str(data.get("reason", "")),
            notes=tuple(data.get("notes", ())),
            curves=curves,
        )


# ---- what a finished run has to say, for other people's software --------------------------------------------------


@dataclass(frozen=True)
class RunNumber:
    """One number with its interval; None with a reason where there is none."""

    value: float | None
    low: float | None = None
    high: float | None = None
    n: int | None = None  # rows it was made of
    reason: str = ""


@dataclass(frozen=True)
class RunCurve:
    """A number along an axis, such as training steps or layers."""

    axis: str
    at: tuple[float, ...]
    points: tuple[RunNumber, ...]


@dataclass(frozen=True)
class RunTable:
    """Rows of numbers, texts and None under named columns."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True)
class RunAccount:
    """All that is published of a run, whatever its kind. Plain data: nothing here needs the run any more."""

    name: str
    kind: str
    model: str = ""
    suite: str = ""
    created: str = ""
    numbers: Mapping[str, RunNumber] = field(default_factory=dict)
    curves: Mapping[str, RunCurve] = field(default_factory=dict)
    tables: Mapping[str, RunTable] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

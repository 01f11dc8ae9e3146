"""Where in an answer the knowledge sits: a question, the answer up to the fact, and the fact (the entity).

    row --read_spans--> Span (texts) --tokens--> ids, and which tokens are the entity's --want--> PatchWant

Prompts are plain text ("Question: ...", "Answer: ..."), as in the published score; no chat template.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vestige.data.rows import Row
from vestige.errors import UserError, unknown_name
from vestige.types import Target
from vestige.wants import PatchWant
from vestige.words import FUNCTION_WORDS

TOKENIZATIONS = ("separate", "joint")
PATCH_SCOPES = ("span", "boundary", "all")
EM_SCOPES = ("entity", "full")
NOT_FOUND = "entity_span_not_found"
NO_TOKENS = "invalid_eval_context"

MOST_WORDS = 6  # an entity of the published set has 5.9 tokens on average


@dataclass(frozen=True)
class Span:
    """One row's texts. `source` says whether the entity was given in the data or found by rule."""

    index: str
    question: str
    answer: str
    prefix: str
    entity: str
    source: str = "data"  # | "auto"

    @property
    def prompt(self) -> str:
        return f"Question: {self.question}\nAnswer: {self.prefix}"

    @property
    def continuation(self) -> str:
        """The answer after the prefix, parted from the prompt by white space."""
        rest = self.answer.removeprefix(self.prefix)
        apart = rest[:1].isspace() or self.prompt[-1:].isspace()
        return rest if apart or not rest else f" {rest}"


@dataclass(frozen=True)
class Tokens:
    """A Span's token ids. `entity` counts in tokens of the continuation, [first, end)."""

    prompt: tuple[int, ...]
    continuation: tuple[int, ...]
    entity: tuple[int, int]

    def want(self, patch_scope: str = "span", em_scope: str = "entity") -> PatchWant:
        """The positions to patch and the tokens to score. Position p predicts token p + 1."""
        _check("patch_scope", patch_scope, PATCH_SCOPES)
        _check("em_scope", em_scope, EM_SCOPES)
        start = len(self.prompt) - 1
        low, high = self.entity if em_scope == "entity" else (0, len(self.continuation))
        scored = (start + low, start + high)
        patched = {
            "span": scored,
            "boundary": (start, start + 1),
            "all": (start, start + len(self.continuation)),
        }[patch_scope]
        ids = (*self.prompt, *self.continuation)[: scored[1] + 1]  # what comes later cannot matter
        return PatchWant(Target(ids, scored[0] + 1), patched[0], min(patched[1], scored[1]))


def _check(kind: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        raise unknown_name(kind, name, known)


def read_spans(rows: Sequence[Row], source: str) -> list[Span]:
    """The spans of some rows: `entity` and `prefix` where given, else the last content words of the answer."""
    out = []
    for number, row in enumerate(rows):
        for key in ("question", "answer"):
            if not isinstance(row.get(key), str) or not row[key].strip():
                raise UserError(f"{source} row {number} (counting from 0) needs text under '{key}' for a depth score.")
        out.append(_span(row, str(row.get("idx", number))))
    index, count = Counter(s.index for s in out).most_common(1)[0] if out else ("", 0)
    if count > 1:
        raise UserError(f"{source}: {count} rows have the same idx ({index}); make them different.")
    return out


def _span(row: Mapping[str, Any], index: str) -> Span:
    """One row's span: as the data gives it, else a guess."""
    question, answer = row["question"], row["answer"]
    entity, prefix = row.get("entity"), row.get("prefix")
    if isinstance(entity, str) and entity.strip():
        if not isinstance(prefix, str):
            at = answer.find(entity)
            prefix = answer[:at].rstrip() if at > 0 else ""
        return Span(index, question, answer, prefix, entity)
    prefix, entity = last_content(answer)
    return Span(index, question, answer, prefix, entity, "auto")


def last_content(answer: str) -> tuple[str, str]:
    """The answer up to its last run of content words, and that run: a guess at where the fact is.

    >>> last_content("Anselm Varga was born in Tromso.")
    ('Anselm Varga was born in', 'Tromso')
    >>> last_content("The author's full name is Hsiao Yun-Hwa.")
    ("The author's full name is", 'Hsiao Yun-Hwa')
    """
    words = list(re.finditer(r"[\w][\w'’+./:-]*[\w+]|[\w]", answer))
    end = len(words)
    while end and words[end - 1][0].lower() in FUNCTION_WORDS:
        end -= 1
    first = end
    while first and end - first < MOST_WORDS and words[first - 1][0].lower() not in FUNCTION_WORDS:
        # A full stop, semicolon or bracket between two words ends the run.
        if first < end and re.search(r"[.;:!?()\n]", answer[words[first - 1].end() : words[first].start()]):
            break
        first -= 1
    if first == end:
        return "", answer.strip()
    start, stop = words[first].start(), words[end - 1].end()
    return answer[:start].rstrip(), answer[start:stop]


def encode_span(span: Span, tokenizer: Any, tokenization: str = "separate") -> Tokens | str:
    """Token ids and the entity's place among them, or the reason why there is none.

    `separate`: prompt and continuation are tokenised apart, as in the published score (no merges across the border).
    `joint`: one text, cut where the continuation begins: what a model reads in training.
    """
    _check("tokenization", tokenization, TOKENIZATIONS)
    text = span.continuation
    place = _find(text, span.entity)
    if tokenization == "joint":
        return _joint(span, tokenizer, place)
    # Special tokens (bos) belong to the prompt alone: the continuation follows it without another one.
    prompt = tuple(tokenizer(span.prompt, add_special_tokens=True)["input_ids"])
    ids, entity = _entity_tokens(tokenizer, text, span.entity, place)
    if not ids or not prompt:
        return NO_TOKENS
    return NOT_FOUND if entity is None else Tokens(prompt, ids, entity)


def _find(text: str, entity: str) -> tuple[int, int] | None:
    """Characters of the entity in the continuation: its first occurrence as written, stripped, or after a space."""
    for words in (entity, entity.strip(), f" {entity}"):
        at = text.find(words)
        if at >= 0 and words:
            return at, at + len(words)
    return None


def _entity_tokens(
    tokenizer: Any, text: str, entity: str, place: tuple[int, int] | None
) -> tuple[tuple[int, ...], tuple[int, int] | None]:
    if not getattr(tokenizer, "is_fast", False):
        ids = tuple(tokenizer(text, add_special_tokens=False)["input_ids"])
        return ids, None if place is None else _search(tokenizer, ids, entity)
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    ids = tuple(encoded["input_ids"])
    return ids, None if place is None else _overlap(encoded["offset_mapping"], *place)


def _overlap(offsets: Sequence[tuple[int, int]], low: int, high: int) -> tuple[int, int] | None:
    """All tokens that touch the characters [low, high); a token that straddles the end is taken whole."""
    hits = [i for i, (start, end) in enumerate(offsets) if end > low and start < high]
    return (min(hits), max(hits) + 1) if hits else None


def _search(tokenizer: Any, ids: tuple[int, ...], entity: str) -> tuple[int, int] | None:
    """Without offsets: the entity's own tokens, looked for as a run."""
    for words in (entity, f" {entity}"):
        part = tuple(tokenizer(words, add_special_tokens=False)["input_ids"])
        for i in range(len(ids) - len(part) + 1):
            if part and ids[i : i + len(part)] == part:
                return i, i + len(part)
    return None


def _joint(span: Span, tokenizer: Any, place: tuple[int, int] | None) -> Tokens | str:
    """Tokens of one text; its border is the first token that begins after the prompt."""
    if not getattr(tokenizer, "is_fast", False):
        raise UserError("tokenization=joint needs a fast tokenizer (with offsets); use tokenization=separate.")
    head = f"Question: {span.question}\nAnswer: "
    tail = span.answer if span.answer.startswith(span.prefix) else span.prefix + span.continuation
    border = len(head) + len(span.prefix)
    encoded = tokenizer(head + tail, add_special_tokens=True, return_offsets_mapping=True)
    ids, offsets = tuple(encoded["input_ids"]), encoded["offset_mapping"]
    cut = next((i for i, (low, high) in enumerate(offsets) if high > border and high > low), len(ids))
    at = (head + tail).find(span.entity.strip(), border - 1)
    if cut >= len(ids) or cut < 1:
        return NO_TOKENS
    found = None if at < 0 else _overlap(offsets, at, at + len(span.entity.strip()))
    if found is None or place is None:
        return NOT_FOUND
    return Tokens(ids[:cut], ids[cut:], (max(found[0], cut) - cut, found[1] - cut))

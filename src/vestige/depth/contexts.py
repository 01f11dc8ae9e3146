"""The rows of a depth run as token ids with an entity each, and whether the three models read them alike."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vestige.data.chat import Template
from vestige.data.clusters import AUTO, NONE, grouping
from vestige.data.datasets import make_context, too_long
from vestige.data.rows import load_rows
from vestige.data.spans import Span, Tokens, encode_span, read_spans
from vestige.depth.ask import DepthAsk
from vestige.errors import UserError
from vestige.models.load import load_tokenizer
from vestige.models.tokenizer import tokenizer_facts
from vestige.stats.clusters import cluster_notes
from vestige.types import Grouping
from vestige.wants import PatchWant


@dataclass
class Contexts:
    """The examples that can be evaluated, and those that cannot."""

    spans: dict[str, Span]
    tokens: dict[str, Tokens]
    wants: dict[str, PatchWant]
    words: dict[str, list[str]]  # the scored tokens as text
    skipped: list[dict[str, Any]]
    source: str
    notes: list[str] = field(default_factory=list)
    clusters: Grouping | None = None  # which rows hang together

    @property
    def keys(self) -> dict[str, str]:
        return {index: want.key for index, want in self.wants.items()}


def make_contexts(ask: DepthAsk, tokenizer: Any, longest: int | None = None) -> Contexts:
    """Rows -> prompts, continuations, entity tokens; rows without a usable span are set aside with their reason."""
    rows, source = load_rows({"path": ask.data}, ask.limit)
    out = Contexts({}, {}, {}, {}, [], source)
    check = make_context(tokenizer, Template(apply_chat_template=False), "none", "count")
    check.source, check.longest = source, longest
    spans = read_spans(rows, source)
    by_place = grouping(rows, {"name": Path(ask.data).stem}, ask.cluster, source)
    if by_place is not None:
        of = {spans[int(place)].index: cluster for place, cluster in by_place.of.items()}
        out.clusters = Grouping(by_place.by, of)
    elif ask.cluster not in (AUTO, NONE):
        raise UserError(
            f"--cluster {ask.cluster}: no two rows of {source} share a value of such a column; name another."
        )
    out.notes += cluster_notes({source: out.clusters}) if out.clusters else []
    for span in spans:
        check.check_text(len(span.prompt) + len(span.continuation), span.index)
        found = encode_span(span, tokenizer, ask.tokenization)
        if isinstance(found, str):
            out.skipped.append({"idx": span.index, "reason": found, "entity": span.entity})
            continue
        want = found.want(ask.patch_scope, ask.em_scope)
        if longest is not None:
            too_long(want.width, longest, f"{source} row {span.index}")
        out.spans[span.index], out.tokens[span.index], out.wants[span.index] = span, found, want
        out.words[span.index] = [tokenizer.decode([t]) for t in want.target.labels]
    guessed = sum(span.source == "auto" for span in out.spans.values())
    if guessed:
        out.notes.append(
            f"{guessed} of {len(rows)} rows have no entity: the last content words of the answer were taken for it"
        )
    if not out.wants:
        raise UserError(f"{source}: no row has an entity that can be found in its answer ({out.skipped[0]['reason']}).")
    return out


def check_tokenizers(ask: DepthAsk, tokenizer: Any, contexts: Contexts) -> None:
    """States can be exchanged only between models that read the same tokens."""
    ours = tokenizer_facts(tokenizer)["vocabulary"]
    for path in dict.fromkeys((ask.retain, *ask.unlearned)):
        other, _ = load_tokenizer(ask.model(path))
        same = tokenizer_facts(other)["vocabulary"] == ours and all(
            encode_span(span, other, ask.tokenization) == contexts.tokens[i] for i, span in contexts.spans.items()
        )
        if not same:
            raise UserError(
                f"'{path}' has another tokenizer than '{ask.full}', so their hidden states stand for different tokens; "
                "a depth score needs models of one family (or name one tokenizer for all with --tokenizer)."
            )

"""The files of a depth run, in the names and keys of the published score's own output."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vestige.data.spans import Span, Tokens
from vestige.depth.scores import ExampleDepth, exact_match, status
from vestige.runs.directory import write_bytes
from vestige.runs.files import write_json
from vestige.types import BAD_LOGITS

COLUMNS = (
    "idx", "question", "entity_text", "entity_source", "reference_source", "reference_text", "layer", "p_score",
    "s1_score", "s2_score", "s1_delta", "s2_delta", "delta_gap", "ratio_s2_over_s1", "ratio_s2_over_s1_clipped",
    "s1_status", "s2_status", "s1_em", "s2_em", "uds",
)  # fmt: skip
FILES = (
    "summary.json", "results.json", "results_detailed.jsonl", "layer_details.csv", "skipped_examples.json",
    "baselines.json",
)  # fmt: skip
TINY = 1e-12  # an S1 delta this small has no ratio


def layer_record(example: ExampleDepth, i: int) -> dict[str, Any]:
    """One layer of one example."""
    d1, d2 = float(example.s1_drops[i]), float(example.s2_drops[i])
    ratio = None if abs(d1) <= TINY else d2 / d1
    return {
        "layer": example.layers[i],
        "p_score": example.full_score,
        "s1_score": float(example.s1_scores[i]),
        "s2_score": float(example.s2_scores[i]),
        "s1_delta": d1,
        "s2_delta": d2,
        "delta_gap": d2 - d1,
        "ratio_s2_over_s1": ratio,
        "ratio_s2_over_s1_clipped": None if ratio is None else min(max(ratio, 0.0), 1.0),
        "s1_status": status(d1, example.tau),
        "s2_status": status(d2, example.tau),
        "s1_em": exact_match(example.s1)[i] if example.s1_by_token else None,
        "s2_em": exact_match(example.s2)[i],
    }


def record(
    example: ExampleDepth, span: Span, tokens: Tokens, words: Sequence[str], scopes: Mapping[str, str]
) -> dict[str, Any]:
    """Everything about one example; `words` are the scored tokens as text."""
    records = [layer_record(example, i) for i in range(len(example.layers))]
    stages = {
        f"{s}_details": [
            {"layer": r["layer"], "score": r[f"{s}_score"], "delta": r[f"{s}_delta"], "status": r[f"{s}_status"]}
            for r in records
        ]
        for s in ("s1", "s2")
    }
    low, high = tokens.entity if scopes["em_scope"] == "entity" else (0, len(tokens.continuation))
    made = {
        "idx": int(span.index) if span.index.isdigit() else span.index,
        "question": span.question,
        "prefix": span.prefix,
        "entity": span.entity,
        "gt_entity": None,
        "entity_text": "".join(words),
        "entity_source": span.source,
        "prompt": span.prompt,
        "reference_source": "gt",
        "reference_text": span.continuation,
        "s1_lost": sum(r["s1_status"] == "LOST" for r in records),
        "s2_lost": sum(r["s2_status"] == "LOST" for r in records),
        "ft_layers": example.knowledge_layers,
        "erased_layers": example.erased_layers,
        "uds": example.uds,
        "uds_unclipped": example.unclipped,
        "full_score": example.full_score,
        "p_score": example.full_score,
        "eval_scope": scopes["em_scope"],
        "patch_scope": scopes["patch_scope"],
        "eval_span": [low, high],
        "entity_span": list(tokens.entity),
        "layer_records": records,
        "s1_scores": [r["s1_score"] for r in records],
        "s2_scores": [r["s2_score"] for r in records],
        "s1_deltas": [r["s1_delta"] for r in records],
        "s2_deltas": [r["s2_delta"] for r in records],
        **stages,
        "tokens": list(words),
        "token_logprobs": {
            "full": [float(x) for x in (example.s1 if example.s1_by_token else example.s2).logprob[0]],
            "s1": [[float(x) for x in row] for row in example.s1.logprob[1:]] if example.s1_by_token else None,
            "s2": [[float(x) for x in row] for row in example.s2.logprob[1:]],
        },
    }
    return {**_blanked(made), "reason": BAD_LOGITS} if example.broken else made


# What an example with broken logits keeps: who it is, and where it was looked at.
ABOUT = (
    "idx", "question", "prefix", "entity", "gt_entity", "entity_text", "entity_source", "prompt", "reference_source",
    "reference_text", "eval_scope", "patch_scope", "eval_span", "entity_span", "tokens",
)  # fmt: skip


def _blanked(made: Mapping[str, Any]) -> dict[str, Any]:
    """The same record without a number that came of logits: null, and no layer."""
    empty: dict[str, Any] = {
        k: [] if isinstance(v, list) else {} if isinstance(v, dict) else None for k, v in made.items()
    }
    return {**empty, **{k: made[k] for k in ABOUT}}


def write_run(
    directory: Path,
    summary: Mapping[str, Any],
    records: Sequence[Mapping[str, Any]],
    skipped: Sequence[Mapping[str, Any]],
) -> list[Path]:
    """All files of one unlearned model."""
    paths = write_results(directory, summary, records)
    write_json(directory / FILES[4], list(skipped))
    return [*paths, directory / FILES[4]]


def write_results(directory: Path, summary: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> list[Path]:
    """The files that evidence gives."""
    paths = [directory / name for name in FILES[:4]]
    write_json(paths[0], dict(summary))
    write_json(paths[1], [dict(r) for r in records])
    write_bytes(paths[2], detailed(records))
    write_bytes(paths[3], table_of(records))
    return paths


def detailed(records: Sequence[Mapping[str, Any]]) -> bytes:
    """One line per example."""
    lines = (json.dumps(r, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n" for r in records)
    return "".join(lines).encode("utf-8")


def table_of(records: Sequence[Mapping[str, Any]]) -> bytes:
    """One line per example and layer."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for r in records:
        for layer in r["layer_records"]:
            writer.writerow({**r, **layer})
    return out.getvalue().encode("utf-8")

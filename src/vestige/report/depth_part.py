"""The panel about layers, from a depth run: where the knowledge sits, and what is left of it, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vestige.meta.axes import UDS_ENDS
from vestige.meta.pools import read_run
from vestige.report.format import finite, plain
from vestige.report.methods_part import value
from vestige.report.roster import Met, name_of
from vestige.store.kinds import RunSource
from vestige.verdict.points import layers_in_words

WITH_TOKENS = 60  # examples whose tokens are kept: the matrix of the others is enough


def met(source: RunSource) -> dict[str, Met]:
    """The three models of a depth run, by role; files of the score's own project name only paths."""
    summary = source.data["summary"]
    weights = summary.get("fingerprints") or {}
    paths = {
        "unlearned": summary.get("unlearn_model") or source.path.name,
        "full": summary.get("full_model"),
        "retain": summary.get("retain_model"),
    }
    out = {}
    for role, path in paths.items():
        if path:
            name = name_of(str(path))
            if role == "unlearned" and summary.get("quantization"):  # full and retain model are never quantised
                name = f"{name} ({summary['quantization']})"
            out[role] = Met(name, str(path), str(weights.get(role) or ""), "" if role == "unlearned" else role)
    return out


def values(source: RunSource) -> dict[str, dict[str, Any]]:
    """The score, and the representation baselines where there are any."""
    summary = source.data["summary"]
    interval = summary.get("interval") or (None, None)
    numbers = read_run(Path(source.files[0]))
    out = {}
    for key, number in numbers.items():
        mine = {"lo": interval[0], "hi": interval[1], "n": summary.get("n")} if key == "uds" else {}
        words = layers_in_words(number.value, summary.get("interval")) if key == "uds" else ""
        reason = str(summary.get("reason") or "the run gives no value")
        out[key] = value(number.value, source.id, reason, **mine, protocol=number.protocol, reading=words)
    return out


def end(role: str, source: RunSource) -> dict[str, Any]:
    """The score of a reference: an end of the scale, not a measurement, and it says so."""
    protocol = values(source)["uds"].get("protocol")
    return value(
        UDS_ENDS[role], source.id, note=f"by definition: the {role} model is this end of the scale", protocol=protocol
    )


def layers(source: RunSource, model: str, rows: int) -> dict[str, Any] | None:
    """Profile and examples; the examples that hold most come first."""
    summary, records = source.data["summary"], source.data["records"]
    profile = summary.get("profile") or []
    examples = sorted(records, key=lambda r: (r.get("uds") is None, r.get("uds") or 0.0))
    if not profile and not examples:
        return None
    shown = [_example(r, i < WITH_TOKENS) for i, r in enumerate(examples[:rows])]
    interval = summary.get("interval") or (None, None)
    body = {
        "layers": summary.get("layers") or [row["layer"] for row in profile],
        "threshold": summary.get("delta_threshold"),
        "uds": summary.get("avg_uds"),
        "lo": interval[0],
        "hi": interval[1],
        "n": summary.get("n") or len(records),
        "profile": [_profile(profile, model)] if profile else [],
        "examples": shown,
        "left_off": len(examples) - len(shown),
    }
    return dict(plain(body))


def _profile(profile: list[Mapping[str, Any]], model: str) -> dict[str, Any]:
    out: dict[str, Any] = {"model": model}
    for stage in ("s1", "s2"):
        out[stage] = [row[f"{stage}_drop"] for row in profile]
        ends = [row.get(f"{stage}_interval") for row in profile]
        if all(ends):
            out[f"{stage}_lo"], out[f"{stage}_hi"] = ([e[i] for e in ends if e] for i in (0, 1))
    return out


def _example(record: Mapping[str, Any], tokens: bool) -> dict[str, Any]:
    s1, s2 = record.get("s1_deltas") or [], record.get("s2_deltas") or []
    ratios = [row.get("ratio_s2_over_s1_clipped") for row in record.get("layer_records") or []]
    return {
        "i": str(record.get("idx", "")),
        "question": str(record.get("question") or ""),
        "answer": f"{record.get('prefix') or ''}{record.get('reference_text') or ''}".strip(),
        "entity": str(record.get("entity") or record.get("entity_text") or ""),
        "uds": finite(record.get("uds")),
        "s1": s1,
        "s2": s2,
        "erasure": ratios,
        "tokens": [str(t) for t in record.get("tokens") or []],
        "token_logprobs": record.get("token_logprobs") if tokens else None,
    }

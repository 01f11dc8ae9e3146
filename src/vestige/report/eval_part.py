"""From one evaluation to a model's values: every number with its interval, n, dialect, protocol and source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vestige.metrics.cards import reading
from vestige.report.format import finite
from vestige.report.methods_part import value
from vestige.report.roster import Met, name_of
from vestige.show.tables import own_interval
from vestige.store.comparable import protocol_of
from vestige.store.kinds import RunSource
from vestige.types import MIXTURE
from vestige.verdict.runs import handler_in, settings_in


def met(source: RunSource, planned: bool = False) -> Met:
    """The model a run evaluated. In a sweep the plan's name (the directory's) says more than the path."""
    manifest = source.data["manifest"]
    model = manifest.get("model") or {}
    path = str(model.get("name") or "")
    plain_name = source.path.resolve().name
    quantised = model.get("quantization")
    name = plain_name if planned or not path else name_of(path)
    return Met(
        f"{name} ({quantised})" if quantised and not planned else name,
        path,
        str(model.get("fingerprint") or ""),
        role_of_directory(plain_name),
        family(manifest),
    )


def role_of_directory(name: str) -> str:
    """The directories that `vestige audit` makes.

    >>> role_of_directory("before"), role_of_directory("after"), role_of_directory("npo")
    ('full', 'unlearned', '')
    """
    return {"before": "full", "after": "unlearned"}.get(name, "")


def family(manifest: Mapping[str, Any]) -> str:
    """What models must share to be held against each other: the suite, and how they cut text into tokens."""
    tokens = (manifest.get("tokenizer") or {}).get("vocabulary") or ""
    suite = (manifest.get("config") or {}).get("suite") or ""
    return f"{suite} {tokens}" if tokens else ""


def settings_of(source: RunSource, metric: str) -> Mapping[str, Any]:
    return settings_in(source.data["manifest"], metric)


def handler_of(source: RunSource, metric: str) -> str:
    """What computed a metric."""
    return handler_in(source.data["manifest"], metric)


def top(source: RunSource) -> list[str]:
    """The metrics that were asked for; without a manifest all of them."""
    asked = (source.data["manifest"].get("config") or {}).get("top") or list(source.data["results"])
    return [m for m in asked if m in source.data["results"]]


def provenance(source: RunSource) -> dict[str, str]:
    m = source.data["manifest"]
    model, versions = m.get("model") or {}, m.get("versions") or {}
    told = {
        "path": model.get("name"),
        "weights": model.get("fingerprint"),
        "tokenizer": (m.get("tokenizer") or {}).get("fingerprint"),
        "dtype": model.get("dtype"),
        "quantization": model.get("quantization"),
        "attention": model.get("attention"),
        "dialect": (m.get("dialect") or {}).get("name"),
        "template": protocol_of(m) if m else None,
        "prompt": m.get("prompt"),
        "data": ", ".join(sorted({f"{d['name']} {d['fingerprint'][:12]}" for d in (m.get("data") or {}).values()})),
        "versions": ", ".join(f"{k} {v}" for k, v in versions.items()),
        "made": m.get("created"),
    }
    return {k: str(v) for k, v in told.items() if v}


def values(source: RunSource) -> dict[str, dict[str, Any]]:
    """Every metric that is one number, missing ones with their reason."""
    m = source.data["manifest"]
    common = {"dialect": (m.get("dialect") or {}).get("name"), "protocol": protocol_of(m) if m else None}
    out = {}
    for metric, body in source.data["results"].items():
        if isinstance(body.get("agg_value"), Mapping):
            continue  # curves: they have a part of their own
        v = finite(body.get("agg_value"))
        stat = source.data["stats"].get(metric) or {}
        words = "" if v is None else _reading(source, metric, body, v, stat)
        notes = "; ".join(str(n) for n in body.get("notes") or ())
        n = stat.get("n") or _rows(body)
        reason = str(body.get("reason") or "the run gives no value")
        out[metric] = value(v, source.id, reason, **common, **_interval(stat), n=n, reading=words, note=notes)
    return out


def _reading(source: RunSource, metric: str, body: Mapping[str, Any], v: float, stat: Mapping[str, Any]) -> str:
    if any(str(n).startswith(MIXTURE) for n in body.get("notes") or ()):
        return ""
    against = not any("ref_value" in str(n) for n in body.get("notes") or ())
    aggregator = str(settings_of(source, metric).get("aggregator") or "")
    return reading(handler_of(source, metric), v, aggregator, against, own_interval(stat))


def _interval(stat: Mapping[str, Any]) -> dict[str, Any]:
    if not stat.get("interval"):
        return {}
    lo, hi = stat["interval"]
    about = {"of": stat["of"], "of_v": stat.get("value")} if stat.get("of") else {}
    return {"lo": lo, "hi": hi, **about}


def _rows(body: Mapping[str, Any]) -> int | None:
    if body.get("value_by_index"):
        return len(body["value_by_index"])
    sets = [body.get(k) for k in ("forget", "holdout")]
    counts = [len(s["value_by_index"]) for s in sets if isinstance(s, Mapping) and s.get("value_by_index")]
    return sum(counts) or None

"""The panel about attacks: from stress.json, and from sweeps that evaluated attacked copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vestige.report.eval_part import family
from vestige.report.format import finite
from vestige.report.roster import Met, name_of
from vestige.store.kinds import RunSource
from vestige.verdict.runs import AttackedRun, Evaluated, attacked_of


def met(source: RunSource) -> dict[str, Met]:
    """The attacked model and its control."""
    out = {}
    for who, key in (("model", "model"), ("retain", "retain_model")):
        path = source.data.get("asked", {}).get(key)
        if path:
            manifest = source.data["manifests"].get(who) or {}
            weights = str((manifest.get("model") or {}).get("fingerprint") or "")
            role = "retain" if who == "retain" else ""
            out[who] = Met(name_of(str(path)), str(path), weights, role, family(manifest))
    return out


def curves(source: RunSource, ids: Mapping[str, str], names: Mapping[str, str]) -> list[dict[str, Any]]:
    """A curve for each attack, metric and model; `ids` and `names` by model | retain."""
    rows = source.data["rows"]
    told_of = source.data.get("attacks") or {}
    out = []
    for attack in dict.fromkeys(r["attack"] for r in rows if r["attack"] != "none"):
        asked = source.data.get("asked", {}).get("metrics") or ()
        there = dict.fromkeys(m for r in rows if r["attack"] == attack for m in r["values"])
        for metric in sorted(there, key=lambda m: list(asked).index(m) if m in asked else len(asked)):
            for who in dict.fromkeys(r["model"] for r in rows):
                mine = [r for r in rows if r["model"] == who and r["attack"] == attack]
                if mine and who in ids:
                    facts = told_of.get(attack, {})
                    line = _curve(rows, mine, facts, metric, who)
                    told = {"model": ids[who], "name": names[who], "source": source.id}
                    out.append({**line, **told})
    return out


def attacked_in(source: RunSource) -> dict[str, list[AttackedRun]]:
    """The attacked copies of a stress run, by model | retain, with their rows where the run kept them."""
    kept = {
        who: {label: Evaluated(one["results"], one["manifest"]) for label, one in by_label.items()}
        for who, by_label in (source.data.get("evals") or {}).items()
    }
    return attacked_of(source.data, kept)


def _curve(
    rows: Sequence[Mapping[str, Any]],
    mine: Sequence[Mapping[str, Any]],
    facts: Mapping[str, Any],
    metric: str,
    who: str,
) -> dict[str, Any]:
    ordered = sorted(mine, key=lambda r: float(r["budget"] or 0))
    before = next((r["values"].get(metric) for r in rows if r["model"] == who and r["attack"] == "none"), None)
    notes = list(dict.fromkeys(str(n) for r in mine for n in r.get("notes") or ()))
    if facts.get("zero") and any(not r["budget"] for r in mine):
        notes.append(f"a budget of 0 {facts['unit']} stands for {facts['zero'].replace('1 ', 'one ')}")
    return {
        "attack": mine[0]["attack"],
        "unit": facts.get("unit", ""),
        "metric": metric,
        "is_control": who == "retain",
        "budgets": [float(r["budget"] or 0) for r in ordered],
        "values": [finite(r["values"].get(metric)) for r in ordered],
        "before": finite(before),
        "reverse": bool(facts.get("reverse")),
        "teaches": bool(facts.get("teaches")),
        "notes": notes,
    }


def attacked_name(name: str, attacks: Sequence[str]) -> tuple[str, str]:
    """A sweep's run of an attacked copy: the model and the attack; no attack for an ordinary run.

    >>> attacked_name("npo+relearn", ["relearn"]), attacked_name("npo", ["relearn"])
    (('npo', 'relearn'), ('npo', ''))
    """
    base, plus, attack = name.rpartition("+")
    return (base, attack) if plus and attack in attacks else (name, "")


def sweep_curve(
    attack: str,
    metric: str,
    model: Mapping[str, Any],
    before: float | None,
    after: Mapping[str, Any],
    facts: Mapping[str, Any],
) -> dict[str, Any]:
    """An attack of one budget, as a sweep makes it."""
    return {
        "attack": attack,
        "unit": "",
        "metric": metric,
        "model": model["id"],
        "name": model["name"],
        "is_control": model["role"] == "retain",
        "budgets": [1.0],
        "values": [after.get("v")],
        "before": before,
        "reverse": False,
        "teaches": bool(facts.get("teaches")),
        "notes": [],
        "source": after["source"],
    }

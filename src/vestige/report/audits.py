"""One audited model: its four panels, what is missing in them and why, and the facts its verdict rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vestige.compare.verdict import AuditFacts, Measure, Recovery, verdict
from vestige.metrics.cards import is_attack
from vestige.report import attacks_part, depth_part, rows_part, tree_part
from vestige.report.eval_part import handler_of
from vestige.report.glossary import group
from vestige.report.rows_part import SIDE, split_of

if TYPE_CHECKING:
    from vestige.report.assemble import PageWork
    from vestige.report.roster import Entry

NOTHING = {
    "says": "no generations of forget rows: evaluate a ROUGE metric",
    "likely": "no likelihoods of forget rows: evaluate a probability metric",
    "roc": "no membership attack: it needs holdout rows and a mia_ metric",
    "layers": "the layers were not looked into: vestige depth does",
    "attacks": "no attack was tried: vestige stress does",
    "utility": "other abilities were not measured: they need retain rows",
    "retain": "no retain model among these runs",
}


def audit(work: PageWork, e: Entry, rows: int) -> dict[str, Any]:
    """All of an audit. References are those a run names, else those of the model's family."""
    linked = work.links.get(e.id, {})
    full, retain = (work.roster.reference(e, role, linked) for role in ("full", "retain"))
    runs = {m.id: _evals(work, m) for m in (e, full, retain) if m is not None}
    ids = retain.id if retain else None
    says = rows_part.says(runs, e.id, ids, rows)
    out: dict[str, Any] = {
        "model": e.id,
        "full": full.id if full else None,
        "retain": ids,
        "says": says,
        "likely": rows_part.likely(runs),
        "roc": rows_part.curves(runs),
        "layers": depth_part.layers(work.depths[e.id], e.id, rows) if e.id in work.depths else None,
        "attacks": _attacks(work, e, retain),
        "utility": _utility(e, runs[e.id]),
    }
    empty = {"says": not says["rows"], "retain": retain is None}
    empty |= {panel: not out[panel] for panel in ("likely", "roc", "layers", "attacks", "utility")}
    out["missing"] = [{"panel": p, "reason": _why(p, e)} for p in NOTHING if empty[p]]
    out["verdict"] = verdict(facts(e, full, retain, runs[e.id], out))
    return out


def _evals(work: PageWork, e: Entry) -> list[Any]:
    return [s for s in work.evals.get(e.id, ()) if s.kind == "eval"]


def _why(panel: str, e: Entry) -> str:
    """What a run says of a missing metric of this panel, else what would fill it."""
    reasons = [v["reason"] for k, v in e.values.items() if v["v"] is None and _panel_of(k) == panel]
    return reasons[0] if reasons else NOTHING[panel]


def _panel_of(key: str) -> str:
    return {"mia": "roc", "privleak": "roc", "uds": "layers"}.get(key.split("_")[0], "")


def _utility(e: Entry, sources: Sequence[Any]) -> list[str]:
    found = [m for s in sources for m in s.data["results"] if group(m, handler_of(s, m)) == "utility"]
    keys = dict.fromkeys([*found, *(k for k in ("utility_rel", "utility") if k in e.values)])
    return [k for k in keys if k in e.values and not any(w in k for w in SIDE)]


def _attacks(work: PageWork, e: Entry, retain: Entry | None) -> list[dict[str, Any]]:
    out = []
    for source, ids in work.stresses.get(e.id, ()):
        names = {who: found.name for who, id in ids.items() if (found := work.roster.by_id(id))}
        out += attacks_part.curves(source, ids, names)
    for m in (e, retain):
        for attack, copy_id in work.swept.get(m.id, {}).items() if m else ():
            copy = work.roster.by_id(copy_id)
            assert copy is not None and m is not None
            for metric, after in copy.values.items():
                if metric in m.values and split_of(metric) == "forget" and not any(w in metric for w in SIDE):
                    before = m.values[metric]["v"]
                    told = work.attack_facts[attack]
                    out.append(attacks_part.sweep_curve(attack, metric, m.to_json(), before, after, told))
        out += tree_part.curves(work.found, m.to_json()) if m else []
    return out


# ---- facts for the verdict ---------------------------------------------------------------------------------------


def facts(
    e: Entry, full: Entry | None, retain: Entry | None, sources: Sequence[Any], out: Mapping[str, Any]
) -> AuditFacts:
    """The few numbers a verdict looks at."""
    by_handler = [(m, handler_of(s, m)) for s in sources for m in s.data["results"]]
    forget = [(m, h) for m, h in by_handler if split_of(m) == "forget" and not any(w in m for w in SIDE)]
    forget += tree_part.told(e.values)
    attacks = list(dict.fromkeys(m for m, h in (*by_handler, *forget) if is_attack(h)))

    def first(handler: str) -> Measure | None:
        name = next((m for m, h in forget if h == handler and e.values.get(m, {}).get("v") is not None), None)
        return measure(name, e, full, retain) if name else None

    return AuditFacts(
        says=first("rouge"),
        likely=first("probability"),
        membership=_strongest([measure(m, e, full, retain) for m in attacks]),
        layers=measure("uds", e, None, None) if e.values.get("uds", {}).get("v") is not None else None,
        attacks=recoveries(out["attacks"], full),
        utility=next((measure(m, e, full, retain) for m in UTILITY if e.values.get(m, {}).get("v") is not None), None),
        has_retain=retain is not None,
        has_full=full is not None,
    )


UTILITY = ("model_utility", "utility", "retain_Q_A_ROUGE", "retain_ROUGE", "retain_knowmem_ROUGE", "utility_rel")


def measure(metric: str, e: Entry, full: Entry | None, retain: Entry | None) -> Measure:
    mine = e.values.get(metric) or {}
    others = [None if m is None else (m.values.get(metric) or {}).get("v") for m in (retain, full)]
    ends = (None, None) if mine.get("of") else (mine.get("lo"), mine.get("hi"))
    return Measure(metric, mine.get("v"), *ends, mine.get("n"), *others)


def _strongest(found: Sequence[Measure]) -> Measure | None:
    """The attack that is farthest from what it does on the retain model; from chance, if there is none."""
    there = [m for m in found if m.value is not None]
    return max(there, key=lambda m: abs((m.value or 0) - (0.5 if m.retain is None else m.retain)), default=None)


def recoveries(curves: Sequence[Mapping[str, Any]], full: Entry | None) -> list[Recovery]:
    """For each attack the metric and budget at which most came back, beside the control at the same budget."""
    out: dict[str, Recovery] = {}
    for c in curves:
        if c["is_control"] or c["before"] is None:
            continue
        control = next((d for d in curves if d["is_control"] and _alike(c, d)), None)
        for i, after in enumerate(c["values"]):
            if after is None:
                continue
            theirs = (None, None)
            if control is not None and c["budgets"][i] in control["budgets"]:
                theirs = control["before"], control["values"][control["budgets"].index(c["budgets"][i])]
            knew = (full.values.get(c["metric"]) or {}).get("v") if full else None
            new = Recovery(c["attack"], c["metric"], c["before"], after, *theirs, knew, bool(c.get("teaches")))
            old = out.get(c["attack"])
            if old is None or _excess(new) > _excess(old):
                out[c["attack"]] = new
    return list(out.values())


def _alike(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    return bool(a["attack"] == b["attack"] and a["metric"] == b["metric"])


def _excess(r: Recovery) -> float:
    control = 0.0 if r.control_after is None or r.control_before is None else r.control_after - r.control_before
    return (r.after - r.before) - max(control, 0.0)

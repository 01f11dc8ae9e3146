"""One audited model: its four panels, what is missing in them and why, and the facts its verdict rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vestige.report import attacks_part, depth_part, rows_part, tree_part
from vestige.report.eval_part import handler_of
from vestige.report.glossary import group
from vestige.verdict.facts import commands, facts_of
from vestige.verdict.judge import reading_against, verdict
from vestige.verdict.runs import SIDE, AttackedRun, ModelRuns, References, handlers, path_values, split_of

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
    says = rows_part.says(runs, e.id, ids, rows, [source for source, _ in work.stresses.get(e.id, ())])
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
    out["verdict"] = judged(work, e, full, retain)
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
        for attack, copy_id in work.attacked.get(m.id, {}).items() if m else ():
            copy = work.roster.by_id(copy_id)
            assert copy is not None and m is not None
            for metric, after in copy.values.items():
                of_forget_rows = split_of(metric) == "forget" and not any(word in metric for word in SIDE)
                if metric in m.values and (of_forget_rows or metric == "uds"):
                    before = m.values[metric]["v"]
                    told = work.attack_facts[attack]
                    out.append(attacks_part.sweep_curve(attack, metric, m.to_json(), before, after, told))
        out += tree_part.curves(work.found, m.to_json()) if m else []
    return out


# ---- runs for the verdict -----------------------------------------------------------------------------------------


def judged(work: PageWork, e: Entry, full: Entry | None, retain: Entry | None) -> dict[str, Any]:
    """The one judgement (verdict/judge.py) on what was found of a model and its references."""
    others = [m for m in work.retains if m is not retain and m is not e and retain is not None]
    stressed = [attacks_part.attacked_in(source) for source, _ in work.stresses.get(e.id, ())]
    model = runs_of(work, e, [a for by in stressed for a in by.get("model", ())])
    control = [runs_of(work, retain, [a for by in stressed for a in by.get("retain", ())])] if retain else []
    references = References(runs_of(work, full) if full else None, [*control, *(runs_of(work, m) for m in others)])
    named = {**dict(tree_part.told(e.values)), **handlers(model.values)}
    told = commands(e.path, full.path if full else "", retain.path if retain else "", model.evals)
    _read_by(e, model, references)
    return verdict(facts_of(model, references, named, told if model.evals or not handlers(model.values) else {}))


def _read_by(e: Entry, model: ModelRuns, references: References) -> None:
    """Readings beside the numbers of forget rows: against the yardstick, where there is one, not against fixed ends."""
    for metric, value in e.values.items():
        words = reading_against(model, references, metric) if value.get("v") is not None else ""
        if words:
            value["reading"] = words


def runs_of(work: PageWork, e: Entry, attacks: Sequence[AttackedRun] = ()) -> ModelRuns:
    """Everything that was measured of one model, for the judge."""
    copies = []
    for attack, copy_id in work.attacked.get(e.id, {}).items():
        copy, told = work.roster.by_id(copy_id), work.attack_facts[attack]
        assert copy is not None
        mine = work.evaluated(copy.id)
        values = {k: v["v"] for k, v in copy.values.items()}
        copies.append(AttackedRun(attack, None, bool(told.get("teaches")), "", mine[0] if mine else None, values))
    for curve in tree_part.curves(work.found, e.to_json()):
        value = {curve["metric"]: curve["values"][0]}
        copies.append(AttackedRun(curve["attack"], None, bool(curve["teaches"]), "", None, value))
    depth = work.depths[e.id].data["records"] if e.id in work.depths else ()
    steps = [path_values(s.data["results"]) for s in work.evals.get(e.id, ()) if s.kind == "trajectory"]
    values = {**e.values, **{k: v for one in steps for k, v in one.items()}}
    return ModelRuns(work.evaluated(e.id), values, depth, [*attacks, *copies])


def same_tests(audits: Sequence[dict[str, Any]], names: Mapping[str, str]) -> None:
    """Where models of one report were not tested alike, each says what it lacks and who has it."""
    done = {a["model"]: set(a["verdict"]["parts"]["testing"]["done"]) for a in audits}
    for a in audits:
        for lacking in a["verdict"]["parts"]["testing"]["missing"]:
            others = [names[id] for id, tests in done.items() if lacking["test"] in tests]
            if others:
                lacking["text"] += f"; it was made of {', '.join(others)}"

"""What an audit found, in words: the table, the verdict, what was not tested, and what would make it firmer.

In: a finished AuditWork. Out: text for the terminal. Caller: audit/run.py. The verdict is that of the page.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vestige.audit.budget import AuditPlan
from vestige.audit.work import ATTACKED, RECORD, AuditWork
from vestige.guard import read_json
from vestige.numeric import number
from vestige.show.tables import comparison, table
from vestige.verdict.judge import JudgeAsk, judge_runs

PAGE_TITLE = "Did it forget?"
BAD = ("towards", "beyond", "damaged")  # bad news comes first
# What a file, a column or a model adds; said when it is not there.
MATTERS = {
    "retain": "retain rows (--retain FILE): without them nothing says whether other abilities survived",
    "holdout": "holdout rows (--holdout FILE; like the forget rows, never trained on): without them no membership "
    "attack can be tried, and forgetting cannot be told from never having known",
    "truth": "columns paraphrased_answer and perturbed_answer in the forget rows: without them no truth ratio, so a "
    "model that only avoids one wording looks as if it had forgotten",
    "retain model": "a retain model (--retain-model PATH; trained without the forget rows; where the rows were learned "
    "by fine-tuning, the model before that comes near): without it nothing shows what never having known looks like, "
    "so nothing can be called forgotten, and layers and relearning cannot be tested",
}


def findings(work: AuditWork, plan: AuditPlan, page: Path) -> str:
    """Everything that is printed at the end."""
    verdict = _verdict(work)
    lines = ["", _scores(work), *_attacks(work), "", *_said(verdict), *_not_tested(work, plan)]
    if lacking := _lacking(work):
        lines += ["", "What would make this firmer:", *(f"- {MATTERS[what]}." for what in lacking)]
    out = work.ask.out
    lines += ["", f"Page:  {page} (open it in a browser)"]
    lines += [f"Files: {out}/<before|after>/OWN_EVAL.json (every row), {out / RECORD} (what was done)"]
    return "\n".join(lines)


def _scores(work: AuditWork) -> str:
    order = [n for n in ("before", "after", "retain") if n in work.outcomes]
    values: dict[str, dict[str, Any]] = {n: {m: s.agg_value for m, s in work.outcomes[n].scores.items()} for n in order}
    top = work.outcomes["after"].top
    return comparison([m for m in top if any(values[n].get(m) is not None for n in order)], values)


def _attacks(work: AuditWork) -> list[str]:
    """What attacks bring back, beside the model as it is; the control's values where there is one."""
    rows: list[list[str]] = []
    metrics = ATTACKED[:3]
    for place in work.stressed.values():
        found = read_json(place / "stress.json")["rows"]
        for row in found:
            if row["attack"] == "none" and rows:
                continue
            mine = "none" if row["attack"] == "none" else row["attack"]
            if row["model"] == "model":
                control = next((r for r in found if r["model"] == "retain" and _same(r, row)), None)
                cells = [x for m in metrics for x in _cells(row, control, m)]
                rows.append([mine, *cells])
    if not rows:
        return []
    heads = [x for m in metrics for x in ((m, "retain") if work.ask.retain_model else (m,))]
    words = "Attacks (none: the model as it is; what rises above it came back"
    words += "; retain: the same attack on the retain model):" if work.ask.retain_model else "):"
    return ["", words, table(rows, ["attack", *heads], right=tuple(range(1, 1 + len(heads))))]


def _same(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    return bool(a["attack"] == b["attack"] and a["budget"] == b["budget"])


def _cells(row: Mapping[str, Any], control: Mapping[str, Any] | None, metric: str) -> list[str]:
    mine = number(row["values"].get(metric))
    return [mine] if control is None else [mine, number(control["values"].get(metric))]


def _verdict(work: AuditWork) -> dict[str, Any]:
    out = work.ask.out
    retain = [out / "retain"] if work.ask.retain_model else []
    stressed = list(work.stressed.values())
    return judge_runs(JudgeAsk([out / "after"], [out / "before"], retain, work.depth, stressed))


def _said(verdict: Mapping[str, Any]) -> list[str]:
    """The one judgement, its evidence, and what could have been seen."""
    lines = [f"Did it forget? {verdict['title']}. {verdict['headline']}", ""]
    telling = [e for e in verdict["evidence"] if e["panel"] != "attacks" or e["state"] != "undecided"]
    lines += [f"- {e['text']}" for e in sorted(telling, key=lambda e: e["state"] not in BAD)]
    if vague := len(verdict["evidence"]) - len(telling):
        lines.append(f"- {vague} comparisons under attack decide nothing (the page lists them).")
    lines += [f"- {verdict['secrets']['text']}."] if verdict["secrets"] else []
    return [*lines, "", verdict["power"]["text"]]


def _not_tested(work: AuditWork, plan: AuditPlan) -> list[str]:
    """What was left out and why. The same command, with more minutes, goes on from here."""
    lines = [f"- {name}: {why}." for name, why in plan.left_out.items()]
    if work.ask.holdout is None:
        lines.append("- membership: it needs holdout rows (--holdout FILE).")
    tried = f"other attacks than {', '.join(work.stressed)}" if work.stressed else "any attack"
    lines.append(f"- {tried}: `vestige stress --help` lists them.")
    if plan.limit is not None:
        lines.append(f"- rows beyond the first {plan.limit} of each file (there are up to {plan.rows}).")
    if plan.limit is not None or any("--minutes" in why for why in plan.left_out.values()):
        lines.append("The same command with more --minutes goes on from here.")
    return ["", "Not tested:", *lines]


def _lacking(work: AuditWork) -> list[str]:
    given = (("retain", work.ask.retain), ("holdout", work.ask.holdout))
    out = [name for name, file in given if file is None]
    if work.outcomes["after"].scores["forget_truth_ratio"].agg_value is None:
        out.append("truth")
    return [*out, *([] if work.ask.retain_model else ["retain model"])]

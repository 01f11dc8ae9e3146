"""`vestige audit`: did it forget? Two checkpoints and a person's own rows, no benchmark needed.

Which metrics apply is worked out from what is there. What is missing is reported, and why it matters.

In: checkpoints and files of rows. Out: one run directory per checkpoint, and a comparison on the terminal. Caller:
audit/flags.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from vestige.compare.rule import DEEP
from vestige.engine.config import RunConfig
from vestige.engine.evaluate import Outcome, evaluate_config
from vestige.engine.friendly import EvalAsk, to_run
from vestige.errors import UserError
from vestige.judging.commands import commands
from vestige.judging.runs import JudgeAsk, judge_runs
from vestige.show.progress import hushed
from vestige.show.tables import comparison

# What a file, a column or a model adds; said when it is not there.
MATTERS = {
    "retain": "retain rows (--retain FILE): without them nothing says whether other abilities survived",
    "holdout": "holdout rows (--holdout FILE; like the forget rows, never trained on): without them no attack can be "
    "tried, and forgetting cannot be told from never having known",
    "truth": "columns paraphrased_answer and perturbed_answer in the forget rows: without them no truth ratio, so a "
    "model that only avoids one wording looks as if it had forgotten",
    "retain model": "a retain model (--retain-model PATH; trained without the forget rows): without it nothing "
    "shows what never having known looks like, and every reading is against fixed values",
}


@dataclass(frozen=True)
class Audit:
    before: str
    after: str
    forget: str
    retain: str | None = None
    holdout: str | None = None
    retain_model: str | None = None
    out: Path = Path("saves/audit")


def audit(ask: Audit, settings: Mapping[str, object]) -> int:
    """Evaluates the checkpoints (the retain model first, as the others' reference) and prints what came out."""
    files = {"forget": ask.forget, "retain": ask.retain, "holdout": ask.holdout}
    for name, file in files.items():
        if file is not None and not Path(file).expanduser().is_file():
            raise UserError(f"--{name} {file}: no such file; check the path.")
    models = {"retain": ask.retain_model, "before": ask.before, "after": ask.after}
    outcomes: dict[str, Outcome] = {}
    with hushed():  # what is missing is printed below, once and with its reason
        for name, model in models.items():
            if model is not None:
                logs = str(ask.out / "retain" / "OWN_EVAL.json") if name != "retain" and ask.retain_model else None
                print(f"Evaluating {name}: {model} ...", flush=True)
                outcomes[name] = _evaluate(model, files, ask.out / name, logs, {"full": ask.before, **settings})
    if all(outcomes["after"].scores[m].agg_value is None for m in outcomes["after"].top):
        reasons = {s.reason for s in outcomes["after"].scores.values() if s.reason}
        raise UserError(f"none of the metrics can be computed from these rows: {sorted(reasons)[0]}")
    print(report(outcomes, ask))
    return 0


def _evaluate(
    model: str, files: Mapping[str, str | None], out: Path, logs: str | None, settings: Mapping[str, object]
) -> Outcome:
    run = to_run(EvalAsk(suite="own", model=model, out=str(out), retain_logs=logs, **settings))  # type: ignore[arg-type]
    assert isinstance(run, RunConfig)  # the suite `own` is one of metrics
    given = {name: file for name, file in files.items() if file is not None}
    return evaluate_config(replace(run, missing="skip", local={"own": {"files": given}}))


def report(outcomes: Mapping[str, Outcome], ask: Audit) -> str:
    """The table, a verdict in words, and what would make it firmer."""
    order = [n for n in ("before", "after", "retain") if n in outcomes]
    values = {n: {m: s.agg_value for m, s in outcomes[n].scores.items()} for n in order}
    shown = [m for m in outcomes["after"].top if any(values[n].get(m) is not None for n in order)]
    lines = ["", comparison(shown, values), "", *verdict_lines(ask)]
    lacking = _lacking(outcomes["after"], ask)
    if lacking:
        lines += ["", "What would make this firmer:"] + [f"- {MATTERS[what]}." for what in lacking]
    lines += ["", f"Files: {ask.out}/<before|after>/OWN_EVAL.json (every row)"]
    return "\n".join(lines)


def _lacking(after: Outcome, ask: Audit) -> list[str]:
    out = [name for name, file in (("retain", ask.retain), ("holdout", ask.holdout)) if file is None]
    if after.scores["forget_truth_ratio"].agg_value is None:
        out.append("truth")
    return [*out, *([] if ask.retain_model else ["retain model"])]


def verdict_lines(ask: Audit) -> list[str]:
    """The one judgement, its evidence, what could have been seen, and the commands of tests that were not made."""
    retain = [ask.out / "retain"] if ask.retain_model else []
    found = judge_runs(JudgeAsk([ask.out / "after"], [ask.out / "before"], retain))
    lines = [f"Did it forget? {found['title']}. {found['headline']}", ""]
    lines += [f"- {e['text']}" for e in found["evidence"]]
    lines += [f"- {found['secrets']['text']}."] if found["secrets"] else []
    lines += ["", found["power"]["text"]]
    if ask.retain_model is None:
        return lines
    told = commands(ask.after, ask.before, ask.retain_model, forget=ask.forget)
    missing = [m for m in found["parts"]["testing"]["missing"] if m["test"] in DEEP]
    lines += ["", "Not tested yet:"] if missing else []
    return lines + [f"- {m['text']}: {told[m['test']]}" for m in missing]

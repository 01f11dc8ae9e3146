"""`vestige audit`: did it forget? Two checkpoints and a person's own rows, no benchmark needed.

Which metrics apply is worked out from what is there. What is missing is reported, and why it matters.

In: checkpoints and files of rows. Out: one run directory per checkpoint, and a comparison on the terminal. Caller:
audit/flags.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from vestige.engine.config import RunConfig
from vestige.engine.evaluate import Outcome, evaluate_config
from vestige.engine.friendly import EvalAsk, to_run
from vestige.errors import UserError
from vestige.show.progress import hushed
from vestige.show.tables import comparison, number

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
                outcomes[name] = _evaluate(model, files, ask.out / name, logs, settings)
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
    lines = ["", comparison(shown, values), "", verdict(values)]
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


def verdict(values: Mapping[str, Mapping[str, float | None]]) -> str:
    """What moved between the checkpoints, in sentences."""
    before, after = values["before"], values["after"]
    says = f"It says {_change(before, after, 'forget_ROUGE')} of the forgotten answers"
    finds = f"finds them likely to {_change(before, after, 'forget_Prob')}"
    lines = [f"{says} and {finds} (before -> after)."]
    if after.get("retain_ROUGE") is not None:
        lines.append(f"Of the rows to keep it says {_change(before, after, 'retain_ROUGE')}.")
    area = after.get("mia_min_k")
    if area is not None:
        chance = 0.4 <= area <= 0.6
        why = "" if chance else " (they look familiar)" if area > 0.6 else " (they look stranger than fresh ones)"
        can = "cannot" if chance else "can"
        lines.append(f"An attacker {can} tell forget rows from fresh ones{why}: AUC {number(area)}, chance is 0.5.")
    retain = values.get("retain")
    if retain:
        yardstick = ", ".join(f"{m} {number(retain.get(m))}" for m in ("forget_ROUGE", "forget_Prob"))
        lines.append(f"A model that never saw the rows has {yardstick}: that is the goal, not zero.")
    return "\n".join(lines)


def _change(before: Mapping[str, float | None], after: Mapping[str, float | None], metric: str) -> str:
    return f"{number(before.get(metric))} -> {number(after.get(metric))}"

"""`vestige audit`: did it forget? Checkpoints and a person's own rows, no benchmark needed.

    rows + checkpoints --plan--> evaluations, layers, attacks --judge--> the verdict in words, a page, what is not known

Which metrics apply is worked out from what is there, and which tests from the minutes that were given. What is
missing is reported, and why it matters. Estimates are `vestige plan`'s, by this machine's measured speed; once the
first model was evaluated they are corrected by how long that took.

In: checkpoints and files of rows. Out: run directories, a page, and words on the terminal. Caller: commands.py.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vestige.audit.work import ATTACKED, ATTACKS, RECORD, TESTS, Audit, AuditWork, Step
from vestige.data.rows import read_file
from vestige.engine.handles import ModelHandle
from vestige.engine.prepare import model_args
from vestige.errors import UserError, how_to_install
from vestige.guard import read_json
from vestige.isolation import DiedError
from vestige.models.families import NO_DEPTH
from vestige.models.load import is_diffusion
from vestige.numeric import number
from vestige.report.build import TITLE, ReportRequest, write_report
from vestige.report.gather import PAGE
from vestige.runs.directory import open_run
from vestige.runs.manifest import refuse_other_kind
from vestige.runs.plan import (
    BUSY,
    CALL,
    ENDS_EARLY,
    CostPlan,
    ServedPlan,
    compute_seconds,
    duration,
    human,
    layers_of,
    plan_of,
)
from vestige.show.progress import hushed
from vestige.show.tables import comparison, table
from vestige.stress.attacks import Attack, WeightsAttack, attack_named
from vestige.stress.run import NO_WEIGHTS, check_precision
from vestige.verdict.judge import judge
from vestige.verdict.runs import read_runs

EVALUATIONS = ("retain", "before", "after")
OWN = {
    "before": "before: what it says, what it finds likely",
    "after": "after: the same",
    "retain": "retain model: what it says, what it finds likely (the yardstick)",
    "layers": "layers: is it gone from inside, or only from the answers",
}


def audit(ask: Audit) -> int:
    """Plans, works, judges; returns the exit status."""
    _check(ask)
    started = time.monotonic()
    work = AuditWork(ask)
    print("Planning ...", flush=True)
    # What is missing is printed at the end, once and with its reason.
    with open_run(ask.out, "audit", [RECORD, "data/"]) as run, hushed():
        plan = plan_audit(work)
        work.left_out = plan.left_out
        print(f"\n{shown(plan, ask.minutes)}\n", flush=True)
        _do_all(work, plan, started)
        work.write()
        page = _write_page(work)
        run.finish()
    print(_findings(work, plan, page))
    given = f" of {ask.minutes:g}" if ask.minutes is not None else ""
    print(f"\nTook {(time.monotonic() - started) / 60:.1f} min{given}.")
    return 0


def _check(ask: Audit) -> None:
    """What would fail later, or leave rows out of everything, is noticed before models are loaded."""
    if ask.minutes is not None and ask.minutes <= 0:
        raise UserError(f"--minutes must be more than 0, it is {ask.minutes:g}.")
    for name, file in ask.files.items():
        if not file.is_file():
            wrong = "it is a directory; give a file of rows in it" if file.is_dir() else "no such file; check the path"
            raise UserError(f"--{name} {file}: {wrong}.")
        have = {column for row in read_file(file) for column in row}
        if not {"question", "answer"} <= have and "text" not in have:
            raise UserError(
                f"--{name} {file} has neither the columns question and answer nor text (it has "
                f"{', '.join(sorted(have))}); rename them."
            )
    refuse_other_kind(ask.out, "audit")  # it would write into that run


# ---- the plan --------------------------------------------------------------------------------------------------------

SHARE = 0.6  # of the minutes: evaluations may take so much, then rows are left out to make room for tests
FEWEST = 20  # rows: with fewer an interval says little, whatever the minutes
LOADING = 5.0  # seconds: to load a small model
DISK = 200e6  # bytes a second: to copy weights
CLIMB = 0.3  # tokens of an entity, as a share of its row

NO_LAYERS = "a server gives log-probabilities and texts, and not what its model's layers hold (leave --server out)"
NEEDS_RETAIN = "it needs a retain model (--retain-model PATH)"


@dataclass(frozen=True)
class PlannedStep:
    """One step and its seconds: likely, and from the least to the most."""

    name: str
    seconds: float
    least: float
    most: float

    @property
    def words(self) -> str:
        """An attack's are its record's."""
        return OWN.get(self.name) or f"{ATTACKS[self.name]}: {attack_named(self.name).does.partition(':')[0]}"


@dataclass
class AuditPlan:
    steps: list[PlannedStep]
    left_out: dict[str, str] = field(default_factory=dict)  # step -> why
    done: list[str] = field(default_factory=list)  # by an earlier command, and still good
    rows: int = 0  # forget rows there are
    limit: int | None = None  # of each file, where the minutes do not allow all
    wanted: float = 0.0  # seconds that everything would take with all rows
    by: str = "this machine's speed (a busy machine takes longer)"  # what the seconds are estimated by


def plan_audit(work: AuditWork) -> AuditPlan:
    """Rows first, then steps: evaluations are always made, the others in their order as long as they fit."""
    settings = work.audit.settings
    seconds = None if work.audit.minutes is None else 60 * work.audit.minutes
    costs = _evaluation_costs(work)
    rows = max(map(len, costs["after"].prepared.rows.values()), default=0)
    whole = sum(likely(cost) for cost in costs.values())
    if seconds is not None and not work.planned and work.limit is None and whole > SHARE * seconds:
        fitting = max(FEWEST, int(rows * SHARE * seconds / whole))
        if fitting < rows:
            work.limit = fitting
            costs = _evaluation_costs(work)
    plan = AuditPlan([PlannedStep(name, likely(cost), *cost.time_range) for name, cost in costs.items()], rows=rows)
    if settings.get("server"):
        plan.by = "how fast the servers answered when they were met"
    plan.limit = work.limit if work.limit != settings.get("limit") else None
    plan.wanted = whole
    spent = sum(step.seconds for step in plan.steps)
    for step in _tests(work, plan):
        plan.wanted += step.seconds * (rows / work.limit if work.limit else 1)
        if seconds is not None and spent + step.seconds > seconds:
            plan.left_out[step.name] = _too_long(step.seconds, seconds - spent)
            continue
        plan.steps.append(step)
        spent += step.seconds
    return plan


def _too_long(needed: float, left: float) -> str:
    return f"about {duration(needed)} needed, {duration(max(left, 1))} of --minutes left"


def _evaluation_costs(work: AuditWork) -> dict[str, CostPlan | ServedPlan]:
    return {name: plan_of(work.evaluation(name)) for name in work.audit.models}


def likely(cost: CostPlan | ServedPlan) -> float:
    """Seconds, between the ends of the range that `vestige plan` prints."""
    return cost.seconds if isinstance(cost, ServedPlan) else LOADING + cost.seconds + cost.forwards * CALL


def _tests(work: AuditWork, plan: AuditPlan) -> Iterator[PlannedStep]:
    """Layers and attacks that are to be tried, with what they cost; the plan notes why others are not."""
    run = work.evaluation("after", metrics=list(ATTACKED), overwrite=True)
    cost = plan_of(run)  # the forget rows alone, as if nothing were known of them
    handle = ModelHandle(model_args(run))
    subjects = 2 if work.audit.retain_model else 1
    for name in TESTS:
        why = "left out (--skip)" if name in work.audit.skip else _why_not(work, name, handle)
        if why:
            plan.left_out[name] = why
        elif work.is_done(name):
            plan.done.append(name)
        else:
            seconds = _seconds(name, cost, handle, subjects)
            yield PlannedStep(name, seconds, seconds * ENDS_EARLY, seconds * BUSY)


def _seconds(name: str, cost: CostPlan | ServedPlan, handle: ModelHandle, subjects: int) -> float:
    """A test's seconds: evaluations of what was made for it, and the making."""
    once = likely(cost) * subjects
    if isinstance(cost, ServedPlan):
        return once  # nothing is made: other prompts, to the same servers
    push = compute_seconds(float(cost.answers.parameters) * cost.sequence_tokens)
    if name == "layers":
        return 3 * LOADING + push * (3 + CLIMB * layers_of(handle))
    attack = attack_named(name)
    making = 0.0
    if isinstance(attack, WeightsAttack):
        copy = 2 * cost.answers.held_bytes / DISK + LOADING
        making = once if attack.reads else copy + (3 * push if attack.teaches else 0.0)
    return once + subjects * making


def _why_not(work: AuditWork, name: str, handle: ModelHandle) -> str:
    """Why a test cannot be made with what was given; nothing if it can."""
    assert handle.args is not None
    settings = work.audit.settings
    attack: Attack | None = attack_named(name) if name in ATTACKS else None
    changes_weights = isinstance(attack, WeightsAttack)
    if settings.get("server") and (attack is None or changes_weights):
        return NO_WEIGHTS if attack else NO_LAYERS
    if work.audit.retain_model is None and (attack is None or attack.teaches):
        return f"{NEEDS_RETAIN} to tell what was taught from what came back" if attack else NEEDS_RETAIN
    if attack is None:
        return NO_DEPTH if is_diffusion(handle.args) else ""
    if settings.get("quantization") and changes_weights:
        return f"the models are read in {settings['quantization']}; attacks on weights need them whole"
    if attack.package and find_spec(attack.package[0]) is None:
        return f"{attack.package[0]} is not installed ({how_to_install(attack.package[1])})"
    return ""


def shown(plan: AuditPlan, minutes: float | None) -> str:
    """The plan for a terminal."""
    rows = []
    for n, step in enumerate(plan.steps, 1):
        rows.append([f"{n}.", step.words, f"{duration(step.least)} to {duration(step.most)}"])
    total = sum(step.seconds for step in plan.steps)
    given = f" of {minutes:g} min" if minutes is not None else ""
    lines = [f"Plan: about {duration(total)}{given}, by {plan.by}.", ""]
    lines += table(rows, ["", "step", "takes"]).splitlines()[2:]
    if minutes is not None and total > 60 * minutes:
        lines.append(
            f"Too long for --minutes {minutes:g}: the evaluations are made in any case, everything else is left out."
        )
    if plan.done:
        lines.append(f"Done already: {', '.join(plan.done)}.")
    if plan.limit is not None:
        lines.append(
            f"Rows: the first {human(plan.limit)} of {human(plan.rows)} of each file; everything with all rows would "
            f"take about {duration(plan.wanted)}."
        )
    if plan.left_out:
        lines += ["", "Left out:", *(f"- {name}: {why}." for name, why in plan.left_out.items())]
    return "\n".join(lines)


# ---- the work --------------------------------------------------------------------------------------------------------


def _do_all(work: AuditWork, plan: AuditPlan, started: float) -> None:
    """Every step in its turn. How long evaluations took corrects what is expected of the rest.

    A test that these models or rows do not allow, or that dies, is listed as not tested.
    """
    ask = work.audit
    check_precision([step.name for step in plan.steps if step.name in ATTACKS], ask.settings.get("device"))
    measured = expected = 0.0
    for n, step in enumerate(plan.steps, 1):
        begun = time.monotonic()
        name, place = step.name, f"[{n}/{len(plan.steps)}]"
        if name in EVALUATIONS:
            print(f"{place} {step.words} ({ask.models[name]}) ...", flush=True)
            work.evaluate(name)
            took = time.monotonic() - begun
            work.note(name, Step("done", seconds=took))
            measured, expected = measured + took, expected + step.seconds
            if name == "after":
                _check_rows(work)
            continue
        needed = step.seconds * (measured / expected if expected else 1.0)
        left = None if ask.minutes is None else 60 * ask.minutes - (begun - started)
        if left is not None and needed > left:
            plan.left_out[name] = _too_long(needed, left)
            print(f"{place} {name}: left out, {plan.left_out[name]}.", flush=True)
            continue
        print(f"{place} {step.words} ...", flush=True)
        try:
            work.test(name)
        except UserError as error:
            plan.left_out[name] = str(error).rstrip(".")
            if isinstance(error, DiedError):
                plan.left_out[name] += f", --skip {name} leaves it out"
            print(f"      not possible: {error}", flush=True)
        else:
            work.note(name, Step("done", work.key(name), time.monotonic() - begun))


def _check_rows(work: AuditWork) -> None:
    after = work.outcomes["after"]
    if all(after.scores[metric].agg_value is None for metric in after.top):
        reasons = sorted({score.reason for score in after.scores.values() if score.reason})
        raise UserError(f"none of the metrics can be computed from these rows: {reasons[0]}")


def _write_page(work: AuditWork) -> Path:
    """The page of everything that was done."""
    ask = work.audit
    request = ReportRequest(
        runs=[*(ask.out / name for name in ask.models), *work.tested.values()],
        out=ask.out / "report",
        title=TITLE,
        full=[ask.before],
        retain=[ask.retain_model] if ask.retain_model else [],
        unlearned=[ask.after],
        progress=ask.progress,
    )
    print("Writing the page ...", flush=True)
    write_report(request)
    return request.out / PAGE


# ---- what was found, in words ----------------------------------------------------------------------------------------

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


def _findings(work: AuditWork, plan: AuditPlan, page: Path) -> str:
    """Everything that is printed at the end: the table, the verdict, what was not tested, what would make it firmer."""
    ask, top = work.audit, work.outcomes["after"].top
    values: dict[str, dict[str, Any]] = {}
    for name in ("before", "after", "retain"):
        if name in work.outcomes:
            values[name] = {metric: score.agg_value for metric, score in work.outcomes[name].scores.items()}
    measured = [m for m in top if any(by_metric.get(m) is not None for by_metric in values.values())]
    lines = ["", comparison(measured, values), *_attacks(work), "", *_verdict(work), *_not_tested(work, plan)]
    missing = [name for name, file in (("retain", ask.retain), ("holdout", ask.holdout)) if file is None]
    if work.outcomes["after"].scores["forget_truth_ratio"].agg_value is None:
        missing.append("truth")
    if ask.retain_model is None:
        missing.append("retain model")
    if missing:
        lines += ["", "What would make this firmer:", *(f"- {MATTERS[what]}." for what in missing)]
    lines += ["", f"Page:  {page} (open it in a browser)"]
    lines.append(f"Files: {ask.out}/<before|after>/OWN_EVAL.json (every row), {ask.out / RECORD} (what was done)")
    return "\n".join(lines)


def _attacks(work: AuditWork) -> list[str]:
    """What attacks bring back, beside the model as it is; the control's values where there is one."""
    metrics = ATTACKED[:3]
    control = work.audit.retain_model is not None
    rows: list[list[str]] = []
    for place in work.attacked:
        by_run: dict[tuple[Any, ...], dict[str, Mapping[str, Any]]] = {}
        for row in read_json(place / "stress.json")["rows"]:
            by_run.setdefault((row["attack"], row["budget"]), {})[row["model"]] = row["values"]
        for (attack, _), values in by_run.items():
            if "model" not in values or (attack == "none" and rows):
                continue
            cells = [attack]
            for metric in metrics:
                cells.append(number(values["model"].get(metric)))
                if control:
                    cells.append(number(values["retain"].get(metric)))
            rows.append(cells)
    if not rows:
        return []
    heads = ["attack"]
    for metric in metrics:
        heads += [metric, "retain"] if control else [metric]
    words = "Attacks (none: the model as it is; what rises above it came back"
    words += "; retain: the same attack on the retain model):" if control else "):"
    return ["", words, table(rows, heads, right=tuple(range(1, len(heads))))]


def _verdict(work: AuditWork) -> list[str]:
    """The one judgement, which is that of the page, its evidence, and what could have been seen."""
    out = work.audit.out
    retain = [out / "retain"] if work.audit.retain_model else []
    runs = read_runs([out / "after"], [out / "before"], retain, work.tested.get("layers"), work.attacked)
    verdict = judge(runs)
    lines = [f"Did it forget? {verdict['title']}. {verdict['headline']}", ""]
    telling = [e for e in verdict["evidence"] if e["panel"] != "attacks" or e["state"] != "undecided"]
    lines += [f"- {e['text']}" for e in sorted(telling, key=lambda e: e["state"] not in BAD)]
    if vague := len(verdict["evidence"]) - len(telling):
        lines.append(f"- {vague} comparisons under attack decide nothing (the page lists them).")
    if verdict["secrets"]:
        lines.append(f"- {verdict['secrets']['text']}.")
    return [*lines, "", verdict["power"]["text"]]


def _not_tested(work: AuditWork, plan: AuditPlan) -> list[str]:
    """What was left out and why. Rerun the same command with more minutes to resume here."""
    lines = [f"- {name}: {why}." for name, why in plan.left_out.items()]
    if work.audit.holdout is None:
        lines.append("- membership: it needs holdout rows (--holdout FILE).")
    tried = [name for name in work.tested if name != "layers"]
    others = f"other attacks than {', '.join(tried)}" if tried else "any attack"
    lines.append(f"- {others}: `vestige stress --help` lists them.")
    if plan.limit is not None:
        lines.append(f"- rows beyond the first {plan.limit} of each file (there are up to {plan.rows}).")
    if plan.limit is not None or any("--minutes" in why for why in plan.left_out.values()):
        lines.append("Rerun the same command with more --minutes to resume here.")
    return ["", "Not tested:", *lines]

"""What an audit would do, what each step costs, and what fits into the minutes that were given.

In: an AuditWork. Out: AuditPlan: steps with seconds, rows, and what is left out with its reason. Caller: audit/run.py.
Estimates are `vestige plan`'s, by this machine's measured speed; once the first model was evaluated they are corrected
by how long that took.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from importlib.util import find_spec

from vestige.audit.work import ATTACKED, ATTACKS, TESTS, AuditWork
from vestige.costs.depth import layers_of
from vestige.costs.estimate import BUSY, CALL, ENDS_EARLY, CostPlan, compute_seconds, duration, human
from vestige.costs.served import ServedPlan, plan_of
from vestige.engine.handles import ModelHandle
from vestige.engine.prepare import model_args
from vestige.errors import how_to_install
from vestige.models.families import NO_DEPTH
from vestige.models.load import is_diffusion
from vestige.show.tables import table
from vestige.stress.attacks import Attack, WeightsAttack, attack_named
from vestige.stress.run import NO_WEIGHTS

SHARE = 0.6  # of the minutes: evaluations may take so much, then rows are left out to make room for tests
FEWEST = 20  # rows: with fewer an interval says little, whatever the minutes
LOADING = 5.0  # seconds: to load a small model
DISK = 200e6  # bytes a second: to copy weights
CLIMB = 0.3  # tokens of an entity, as a share of its row

NO_LAYERS = "a server gives log-probabilities and texts, and not what its model's layers hold (leave --server out)"
NEEDS_RETAIN = "it needs a retain model (--retain-model PATH)"
OWN = {
    "before": "before: what it says, what it finds likely",
    "after": "after: the same",
    "retain": "retain model: what it says, what it finds likely (the yardstick)",
    "layers": "layers: is it gone from inside, or only from the answers",
}


def described(name: str) -> str:
    """A step in words; an attack's are its record's."""
    return OWN.get(name) or f"{ATTACKS[name]}: {attack_named(name).does.partition(':')[0]}"


@dataclass(frozen=True)
class AuditStep:
    """One step and its seconds: likely, and from the least to the most."""

    name: str
    seconds: float
    least: float
    most: float

    def scaled(self, by: float) -> AuditStep:
        return replace(self, seconds=self.seconds * by, least=self.least * by, most=self.most * by)


@dataclass
class AuditPlan:
    steps: list[AuditStep]
    left_out: dict[str, str] = field(default_factory=dict)  # step -> why
    done: list[str] = field(default_factory=list)  # by an earlier command, and still good
    rows: int = 0  # forget rows there are
    limit: int | None = None  # of each file, where the minutes do not allow all
    wanted: float = 0.0  # seconds that everything would take with all rows
    by: str = "this machine's speed (a busy machine takes longer)"  # what the seconds are estimated by


def plan_audit(work: AuditWork) -> AuditPlan:
    """Rows first, then steps: evaluations are always made, the others in their order as long as they fit."""
    costs = _evaluations(work)
    rows = max(len(r) for r in costs["after"].prepared.rows.values()) if costs["after"].prepared.rows else 0
    seconds = None if work.ask.minutes is None else 60 * work.ask.minutes
    whole = sum(likely(c) for c in costs.values())
    wanted = whole
    if seconds is not None and not work.planned and work.limit is None and whole > SHARE * seconds:
        work.limit = max(FEWEST, int(rows * SHARE * seconds / whole))
        work.limit = work.limit if work.limit < rows else None
        costs = _evaluations(work) if work.limit else costs
    plan = AuditPlan([_step(name, c) for name, c in costs.items()], {}, [], rows)
    plan.by = "how fast the servers answered when they were met" if work.ask.settings.get("server") else plan.by
    given = work.ask.settings.get("limit")
    plan.limit = work.limit if work.limit != given else None
    spent = sum(s.seconds for s in plan.steps)
    for step in _tests(work, plan):
        wanted += step.seconds * (rows / work.limit if work.limit else 1)
        if seconds is not None and spent + step.seconds > seconds:
            plan.left_out[step.name] = too_long(step.seconds, seconds - spent)
            continue
        plan.steps.append(step)
        spent += step.seconds
    plan.wanted = wanted
    return plan


def too_long(needed: float, left: float) -> str:
    return f"about {duration(needed)} needed, {duration(max(left, 1))} of --minutes left"


def likely(cost: CostPlan | ServedPlan) -> float:
    """Seconds, between the ends of the range that `vestige plan` prints."""
    return cost.seconds if isinstance(cost, ServedPlan) else LOADING + cost.seconds + cost.forwards * CALL


def _evaluations(work: AuditWork) -> dict[str, CostPlan | ServedPlan]:
    return {name: plan_of(work.evaluation(name)) for name in work.ask.models}


def _step(name: str, cost: CostPlan | ServedPlan) -> AuditStep:
    return AuditStep(name, likely(cost), *cost.time_range)


def _tests(work: AuditWork, plan: AuditPlan) -> Iterator[AuditStep]:
    """Layers and attacks that are to be tried, with what they cost; the plan notes why others are not."""
    run = work.evaluation("after", metrics=list(ATTACKED), overwrite=True)
    asked = plan_of(run)  # the forget rows alone, as if nothing were known of them
    handle = ModelHandle(model_args(run))
    for name in TESTS:
        why = "left out (--skip)" if name in work.ask.skip else _cannot(work, name, handle)
        if why:
            plan.left_out[name] = why
        elif work.is_done(name):
            plan.done.append(name)
        else:
            seconds = _seconds(name, asked, handle, 2 if work.ask.retain_model else 1)
            yield AuditStep(name, seconds, seconds * ENDS_EARLY, seconds * BUSY)


def _seconds(name: str, asked: CostPlan | ServedPlan, handle: ModelHandle, subjects: int) -> float:
    """A test's seconds: evaluations of what was made for it, and the making."""
    once = likely(asked) * subjects
    if isinstance(asked, ServedPlan):
        return once  # nothing is made: other prompts, to the same servers
    push = compute_seconds(float(asked.answers.parameters) * asked.sequence_tokens)
    if name not in ATTACKS:
        return 3 * LOADING + push * (3 + CLIMB * layers_of(handle))
    copy = 2 * asked.answers.held_bytes / DISK + LOADING
    return once + subjects * _making(attack_named(name), copy, push, once)


def _making(record: Attack, copy: float, push: float, once: float) -> float:
    """What an attack costs before the evaluation: a copy, a lesson, or files read in another way."""
    if not isinstance(record, WeightsAttack):
        return 0.0
    return once if record.reads else copy + (3 * push if record.teaches else 0.0)


def _cannot(work: AuditWork, name: str, handle: ModelHandle) -> str:
    """Why a test cannot be made with what was given; nothing if it can."""
    assert handle.args is not None
    record = attack_named(name) if name in ATTACKS else None
    if work.ask.settings.get("server") and (record is None or isinstance(record, WeightsAttack)):
        return NO_WEIGHTS if record else NO_LAYERS
    if work.ask.retain_model is None and (record is None or record.teaches):
        return f"{NEEDS_RETAIN} to tell what was taught from what came back" if record else NEEDS_RETAIN
    if record is None:
        return NO_DEPTH if is_diffusion(handle.args) else ""
    bits = work.ask.settings.get("quantization")
    if bits and isinstance(record, WeightsAttack):
        return f"the models are read in {bits}; attacks on weights need them whole"
    if record.package and find_spec(record.package[0]) is None:
        return f"{record.package[0]} is not installed ({how_to_install(record.package[1])})"
    return ""


def shown(plan: AuditPlan, minutes: float | None) -> str:
    """The plan for a terminal."""
    rows = [
        [f"{n}.", described(s.name), f"{duration(s.least)} to {duration(s.most)}"] for n, s in enumerate(plan.steps, 1)
    ]
    total = sum(s.seconds for s in plan.steps)
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

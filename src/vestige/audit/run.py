"""`vestige audit`: did it forget? Checkpoints and a person's own rows, no benchmark needed.

    rows + checkpoints --plan--> evaluations, layers, attacks --judge--> the verdict in words, a page, what is not known

Which metrics apply is worked out from what is there, and which tests from the minutes that were given. What is
missing is reported, and why it matters.

In: checkpoints and files of rows. Out: run directories, a page, and words on the terminal. Caller: audit/flags.py.
"""

from __future__ import annotations

import time
from pathlib import Path

from vestige.audit.budget import AuditPlan, described, plan_audit, shown, too_long
from vestige.audit.words import PAGE_TITLE, findings
from vestige.audit.work import ATTACKS, Audit, AuditWork
from vestige.data.rows import read_file
from vestige.errors import UserError
from vestige.isolation import DiedError
from vestige.report.build import ReportRequest, write_report
from vestige.report.gather import PAGE
from vestige.show.progress import hushed
from vestige.store.directories import refuse_other_kind
from vestige.stress.run import check_precision

EVALUATIONS = ("retain", "before", "after")


def audit(ask: Audit) -> int:
    """Plans, works, judges; returns the exit status."""
    if ask.minutes is not None and ask.minutes <= 0:
        raise UserError(f"--minutes must be more than 0, it is {ask.minutes:g}.")
    for name, file in ask.files.items():
        if not file.is_file():
            wrong = "it is a directory; give a file of rows in it" if file.is_dir() else "no such file; check the path"
            raise UserError(f"--{name} {file}: {wrong}.")
        _check_columns(name, file)
    refuse_other_kind(ask.out, "audit")  # it would write into that run
    started = time.monotonic()
    work = AuditWork(ask)
    print("Planning ...", flush=True)
    with hushed():  # what is missing is printed at the end, once and with its reason
        plan = plan_audit(work)
        work.left_out = plan.left_out
        print(f"\n{shown(plan, ask.minutes)}\n", flush=True)
        _do_all(work, plan, started)
        work.write()
        page = _page(work)
    print(findings(work, plan, page))
    took = (time.monotonic() - started) / 60
    print(f"\nTook {took:.1f} min{f' of {ask.minutes:g}' if ask.minutes is not None else ''}.")
    return 0


def _check_columns(name: str, file: Path) -> None:
    """Rows under other names would be left out of everything, which is noticed before models are loaded."""
    have = {column for row in read_file(file) for column in row}
    if not {"question", "answer"} <= have and "text" not in have:
        raise UserError(
            f"--{name} {file} has neither the columns question and answer nor text (it has {', '.join(sorted(have))}); "
            "rename them."
        )


def _do_all(work: AuditWork, plan: AuditPlan, started: float) -> None:
    """Every step in its turn. How long evaluations took corrects what is expected of the rest."""
    check_precision([s.name for s in plan.steps if s.name in ATTACKS], work.ask.settings.get("device"))
    measured = expected = 0.0
    for n, step in enumerate(plan.steps, 1):
        begun = time.monotonic()
        name, place = step.name, f"[{n}/{len(plan.steps)}]"
        if name in EVALUATIONS:
            print(f"{place} {described(name)} ({work.ask.models[name]}) ...", flush=True)
            work.evaluate(name)
            work.note(name, state="done", seconds=time.monotonic() - begun)
            measured, expected = measured + time.monotonic() - begun, expected + step.seconds
            if name == "after":
                _check_rows(work)
            continue
        needed = step.seconds * (measured / expected if expected else 1.0)
        left = None if work.ask.minutes is None else 60 * work.ask.minutes - (begun - started)
        if left is not None and needed > left:
            plan.left_out[name] = too_long(needed, left)
            print(f"{place} {name}: left out, {plan.left_out[name]}.", flush=True)
            continue
        print(f"{place} {described(name)} ...", flush=True)
        _try(work, plan, name)


def _try(work: AuditWork, plan: AuditPlan, name: str) -> None:
    """Runs a test; one that these models or rows do not allow, or that dies, is listed as not tested."""
    begun = time.monotonic()
    try:
        work.test(name)
    except UserError as error:
        plan.left_out[name] = str(error).rstrip(".")
        if isinstance(error, DiedError):
            plan.left_out[name] += f", --skip {name} leaves it out"
        print(f"      not possible: {error}", flush=True)
        return
    work.note(name, state="done", key=work.key(name), seconds=time.monotonic() - begun)


def _check_rows(work: AuditWork) -> None:
    after = work.outcomes["after"]
    if all(after.scores[m].agg_value is None for m in after.top):
        reasons = {s.reason for s in after.scores.values() if s.reason}
        raise UserError(f"none of the metrics can be computed from these rows: {sorted(reasons)[0]}")


def _page(work: AuditWork) -> Path:
    """The page of everything that was done."""
    ask = work.ask
    places = [ask.out / name for name in ask.models]
    places += [place for place in (work.depth, *work.stressed.values()) if place is not None]
    request = ReportRequest(
        runs=places,
        out=ask.out / "report",
        title=PAGE_TITLE,
        full=[ask.before],
        retain=[ask.retain_model] if ask.retain_model else [],
        unlearned=[ask.after],
        progress=ask.settings.get("progress") is not False,
    )
    print("Writing the page ...", flush=True)
    write_report(request)
    return ask.out / "report" / PAGE

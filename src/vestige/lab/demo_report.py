"""The demo's end: what the layers hold, what an attack brings back, and the report of everything the demo made."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from vestige.depth.ask import make_ask
from vestige.depth.run import depth_run
from vestige.errors import UserError
from vestige.report.assemble import PageAsk
from vestige.report.run import ReportAsk, write_report
from vestige.show.progress import hushed
from vestige.stress.run import Stress, stress

ATTACKED = "npo"
BUDGETS = (2.0, 8.0, 32.0)  # steps of relearning
METRICS = ("forget_Q_A_Prob", "extraction_strength")  # they need no text, so an attack costs seconds


def demo_report(out: Path, data: Path, models: Mapping[str, Path]) -> None:
    """Looks deeper than outputs, then writes OUT/report."""
    unlearned = [str(path) for name, path in models.items() if name not in ("full", "retain")]
    print("\nLooking into the layers of the unlearned models ...", flush=True)
    full, retain = (str(models[name]) for name in ("full", "retain"))
    with hushed():
        depth_run(
            make_ask(
                unlearned=unlearned,
                full=full,
                retain=retain,
                data=data / "forget.jsonl",
                out=out / "depth",
                progress=False,
            )
        )
        print(f"Teaching {ATTACKED} and the retain model the forgotten rows again ...", flush=True)
        stress(
            Stress(
                model=str(models[ATTACKED]),
                data=data,
                attacks=["relearn"],
                out=out / "stress",
                retain_model=retain,
                metrics=METRICS,
                budget={"relearn": BUDGETS},
                relearning={"lr": 1e-3},
            )
        )
    runs = [out / name for name in ("eval", "depth", "stress")]
    try:
        report = write_report(ReportAsk(runs, out / "report", PageAsk("The lab: did it forget?")))
    except UserError as error:  # no chart library: the numbers are there all the same
        print(f"No page was made: {error}")
        return
    names = {m["id"]: m["name"] for m in report["models"]}
    print("\nDid it forget?")
    for a in report["audits"]:
        print(f"  {names[a['model']]}: {a['verdict']['title']}. {a['verdict']['headline']}")
    print(f"\nThe report of it all: {out / 'report' / 'index.html'} (open it in a browser)")

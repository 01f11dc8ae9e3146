"""The demo's looks deeper (what the layers hold, what attacks bring back) and its end: the report of all it made.

Every unlearned model goes through the same tests, so that their verdicts compare: layers, an attack that teaches, and
attacks that teach nothing. In: the lab's models. Out: runs and a report. Caller: lab/demo.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vestige.depth.ask import make_ask
from vestige.depth.run import depth_run
from vestige.lab.story import DemoStory
from vestige.report.build import ReportRequest, write_report
from vestige.show.progress import hushed
from vestige.stress.run import Stress, stress

# Steps of relearning, the share of weights that is pruned, and an answer that is begun for the model.
ATTACKS: dict[str, Sequence[float]] = {"relearn": (2.0, 8.0, 32.0), "prune": (0.3,), "jailbreak": (1.0,)}
METRICS = ("forget_Q_A_Prob", "forget_Q_A_ROUGE", "extraction_strength")


def attack_all(data: Path, models: Mapping[str, Path], out: Path) -> None:
    """The retain model is attacked once, in OUT/control; every unlearned model is held against it."""
    retain = str(models["retain"])

    def attack(model: Path, place: Path, **more: Any) -> None:
        stress(
            Stress(
                model=str(model),
                data=data,
                attacks=list(ATTACKS),
                out=place,
                metrics=METRICS,
                budget=ATTACKS,
                relearning={"lr": 1e-3},
                collected={"model": out / "eval" / model.name},
                progress=True,
                **more,
            )
        )

    attack(models["retain"], out / "control")
    for name, path in models.items():
        if name not in ("full", "retain"):
            attack(path, out / "attacks" / name, retain_model=retain, control=out / "control")


def look_deeper(out: Path, data: Path, models: Mapping[str, Path], story: DemoStory) -> None:
    """Deeper than outputs: what layers hold, and what attacks bring back."""
    unlearned = [str(path) for name, path in models.items() if name not in ("full", "retain")]
    story.part("layers")
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
        story.part("attacks")
        attack_all(data, models, out)


def demo_report(out: Path, story: DemoStory) -> None:
    """Writes OUT/report about everything that the demo made."""
    runs = [out / name for name in ("eval", "depth", "attacks")]
    # It learned the forget rows and was never asked to forget them: nothing to judge.
    taught = [name for name in ("llada",) if (out / "eval" / f"diffusion_{name}").is_dir()]
    story.part("page")
    request = ReportRequest(runs, out / "report", "The lab: did it forget?", full=taught, progress=True)
    report = write_report(request)
    names = {m["id"]: m["name"] for m in report["models"]}
    print("\nDid it forget?")
    for a in report["audits"]:
        print(f"  {names[a['model']]}: {a['verdict']['title']}. {a['verdict']['headline']}")

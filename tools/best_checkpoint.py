"""Which checkpoint the default rule picks: the lab's unlearning runs, watched epoch by epoch, over several seeds.

    python tools/best_checkpoint.py run OUT [--seeds 1,2]   # labs and trainings; what is there already stays
    python tools/best_checkpoint.py docs OUT                # the table in docs/unlearn.md

Two runs per seed, both by `vestige unlearn --retain-logs`: one with settings like the lab's (NPO), and one that goes on
far too long (GradAscent), which over-forgets at its end. The seed decides corpus, models and the order of rows.
Settings were chosen on seed 0, which is not in the table.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "unlearn.md"
START, END = "<!-- best checkpoints: written by tools/best_checkpoint.py -->", "<!-- end of best checkpoints -->"
SEEDS = (1, 2, 3, 4, 5)
METRICS = "forget_Q_A_Prob,extraction_strength,retain_Q_A_Prob"
RUNS = {
    "NPO": ["--method", "NPO", "--epochs", "6", "--lr", "1e-3", "--knob", "beta=0.2", "--knob", "alpha=5.0"],
    "GradAscent": ["--method", "GradAscent", "--epochs", "6", "--lr", "5e-4"],
}
OVER = ("GradAscent",)  # goes on too long, on purpose


@dataclass(frozen=True)
class Picked:
    """One training: the look that the rule picked, and the last one, as watch.json has them."""

    seed: int
    run: str
    best: dict[str, Any]
    last: dict[str, Any]

    @property
    def at_least_as_good(self) -> bool:
        return _place(self.best) <= _place(self.last)


def _place(look: dict[str, Any]) -> int:
    """Verdicts from the best word to the worst."""
    from vestige.verdict.rule import TITLES

    return list(TITLES).index(look["verdict"]["word"])


def _over(look: dict[str, Any]) -> bool:
    return str(look["why"]).startswith("over-forgotten")


def run_seed(out: Path, seed: int) -> None:
    """A small lab of this seed, its retain run, and both trainings; whatever is finished is not made again."""
    from vestige.cli import main
    from vestige.lab.corpus import Sizes
    from vestige.lab.models import LabSettings, build_lab

    sizes = Sizes(forget=10, retain=10, holdout=5, background=60)
    lab = build_lab(out / "lab", seed=seed, progress=False, settings=LabSettings(sizes=sizes, unlearned=()))
    common = ["--metrics", METRICS, "--quiet"]
    if not (out / "retain" / "manifest.json").is_file():
        place = ["--model", str(lab.models["retain"]), "--data", str(lab.data), "--out", str(out / "retain")]
        _done(main(["eval", "tofu", *place, *common]))
    for name, said in RUNS.items():
        if (out / name / "training.json").is_file():
            continue
        rows = ["--forget", str(lab.data / "forget.jsonl"), "--retain", str(lab.data / "retain.jsonl")]
        place = ["--model", str(lab.models["full"]), "--out", str(out / name), "--eval-data", str(lab.data)]
        more = ["--retain-logs", str(out / "retain"), "--accumulation", "1", f"seed={seed}", "checkpoints=false"]
        _done(main(["unlearn", *said, *rows, *place, *common, *more]))


def _done(status: int) -> None:
    if status:
        raise SystemExit(status)


def picked(out: Path, seed: int, run: str) -> Picked:
    curve = json.loads((out / run / "evals" / "watch.json").read_text(encoding="utf-8"))
    looks = {look["step"]: look for look in curve["looks"]}
    return Picked(seed, run, looks[curve["best"]], looks[max(looks)])


def table(found: list[Picked]) -> str:
    """What docs/unlearn.md shows between its two marks."""
    lines = ["| run | seed | best epoch | score | share | verdict | last epoch | share | verdict |", "|" + "---|" * 9]
    for p in found:
        best, last = p.best, p.last
        score = f"{best['score']:.2f} | {best['share']:+.2f}"
        words = [look["verdict"]["word"].replace("_", " ") for look in (best, last)]
        end = f"{last['epoch']:g} | {last['share']:+.2f}{' (over-forgotten)' if _over(last) else ''} | {words[1]}"
        lines.append(f"| {p.run} | {p.seed} | {best['epoch']:g} | {score} | {words[0]} | {end} |")
    good = sum(p.at_least_as_good for p in found)
    over = [p for p in found if p.run in OVER and _over(p.last)]
    earlier = sum(p.best["step"] < p.last["step"] for p in over)
    facts = f"Verdict at least as good as the last epoch's: {good} of {len(found)}. Of the {len(over)} runs that end "
    return "\n".join([START, *lines, "", f"{facts}over-forgotten an earlier epoch was picked in {earlier}.", END])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("run", "docs"))
    parser.add_argument("place", type=Path)
    parser.add_argument("--seeds", default="", help="only these, as 1,2")
    args = parser.parse_args()
    seeds = [int(s) for s in args.seeds.split(",")] if args.seeds else list(SEEDS)
    if args.step == "run":
        for seed in seeds:
            run_seed(args.place / f"s{seed}", seed)
    found = [picked(args.place / f"s{seed}", seed, run) for run in RUNS for seed in seeds]
    if args.step == "run":
        print(table(found))
        return 0
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(START)
    PAGE.write_text(before + table(found) + rest.split(END)[1], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

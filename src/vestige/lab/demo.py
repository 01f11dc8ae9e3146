"""`vestige demo`: build the lab, evaluate every model in it, and say in words what came out.

Then their layers and attacks, the same with diffusion models, whose answers come about step by step
(lab/demo_diffusion.py), and at the end the report of everything (lab/demo_report.py). Where there are two cores, a
helper trains some of the models and measures the diffusion models meanwhile (lab/beside.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

from vestige.engine.config import RunConfig
from vestige.engine.evaluate import evaluate_config
from vestige.engine.flags import EvalAsk, to_run
from vestige.lab.beside import Helper, beside
from vestige.lab.building import with_threads
from vestige.lab.demo_diffusion import demo_diffusion, measure_diffusion
from vestige.lab.demo_report import demo_report, look_deeper
from vestige.lab.models import Lab, build_lab
from vestige.lab.story import DemoStory, last_words, two_digits
from vestige.show.progress import hushed
from vestige.show.tables import table

# What the demo shows of each model, and how to read it.
SHOWN = {
    "forget_Q_A_Prob": "how likely the forgotten answers are      (retain model: what 'never learned' looks like)",
    "forget_Q_A_ROUGE": "how much of them the model still says",
    "extraction_strength": "how much of them it finishes by itself",
    "forget_truth_ratio": "1 = right and wrong answers look alike; compare with the retain column",
    "mia_min_k": "attack: 1 = an attacker knows what was trained on, 0.5 = cannot tell, below = over-forgotten",
    "forget_quality": "p-value against the retain model: high = cannot be told apart from never having learned",
    "privleak": "0 = like the retain model, negative = still leaks, positive = conspicuously strange",
    "model_utility": "what else the model can still do, 0..1",
}


def demo(out: Path, seed: int = 0, diffusion: bool = True) -> int:
    """Returns the exit status."""
    story = DemoStory(diffusion)
    story.begin()
    # One thread each: on tiny layers a second one spends its time waiting, and here it would wait on a helper's core.
    with with_threads(1), beside() as helper:
        story.part("models")
        lab = build_lab(out / "lab", seed=seed, helper=helper)
        story.part("evaluate")
        _evaluate(lab, out, helper)
        measured = helper.start(measure_diffusion, out, seed) if helper and diffusion else None
        look_deeper(out, lab.data, lab.models, story)
        if diffusion:
            story.part("diffusion")
            if measured is not None:
                measured()  # its results are in files, where the next line finds them
            demo_diffusion(out, seed)
    demo_report(out, story)
    print(last_words(out, lab.models, lab.data))
    return 0


def _evaluate(lab: Lab, out: Path, helper: Helper | None) -> None:
    """Prints the first table. The retain model comes first: the others are compared with it."""
    logs = out / "eval" / "retain" / "TOFU_EVAL.json"
    order = ["retain", *(n for n in lab.models if n != "retain")]
    asks = {name: _ask(lab, out / "eval" / name, logs, name) for name in order}
    away: dict[str, Callable[[], Evaluated]] = {}
    runs: dict[str, Evaluated] = {}
    for name in order:
        if name not in away:
            print(f"Evaluating {name} ...", flush=True)
            runs[name] = _evaluated(asks[name])
        if helper and name == "retain":
            away = {n: helper.start(_evaluated, asks[n]) for n in order[2::2]}
    for name, result in away.items():
        print(f"Evaluating {name} on the other core ...", flush=True)
        runs[name] = result()
    print(_report({n: runs[n][0] for n in order}, out, math.fsum(seconds for _, seconds in runs.values())))


Evaluated = tuple[dict[str, float | None], float]  # the values shown, and the seconds it took


def _evaluated(ask: EvalAsk) -> Evaluated:
    run = to_run(ask)
    assert isinstance(run, RunConfig)
    with hushed():  # the retain model itself has no retain logs, by nature
        outcome = evaluate_config(run)
    return {m: outcome.scores[m].agg_value for m in SHOWN}, float(outcome.manifest["seconds"]["total"])


# Not in the table: secrets and fluency speak in the verdict and on the page.
ALSO = ("forget_secrets_said", "forget_repetition", "forget_said_likelihood")


def _ask(lab: Lab, out: Path, logs: Path, name: str) -> EvalAsk:
    return EvalAsk(
        model=str(lab.models[name]),
        data=str(lab.data),
        out=str(out),
        retain_logs=None if name == "retain" else str(logs),
        metrics=[*SHOWN, *ALSO],
        full=str(lab.models["full"]),
        progress=True,
    )


VARIES = (
    "Two digits: the models are trained here, and another processor adds in another order (how many threads there are "
    "changes nothing). Those made to forget end a few hundredths apart from machine to machine: compare columns."
)


def demo_table(values: Mapping[str, Mapping[str, float | None]]) -> str:
    """A row per metric, a column per model, with no more digits than other machines share."""
    # The retain model against itself is 1 and 0 by definition; its file says null because it had no logs.
    values = {**values, "retain": {**values["retain"], "forget_quality": 1.0, "privleak": 0.0}}
    rows = [[metric, *(two_digits(values[n].get(metric)) for n in values)] for metric in SHOWN]
    return table(rows, ["metric", *values], right=tuple(range(1, len(values) + 1)))


def _report(values: Mapping[str, Mapping[str, float | None]], out: Path, seconds: float) -> str:
    order = ["full", "retain", *(n for n in values if n not in ("full", "retain"))]
    lines = ["", demo_table({n: values[n] for n in order}), "", VARIES, "", "How to read it:"]
    lines += table([[m, words] for m, words in SHOWN.items()], ["", ""]).splitlines()[2:]
    lines += [
        "",
        f"Files: {out}/eval/<model>/TOFU_EVAL.json (every row), TOFU_SUMMARY.json, manifest.json, evidence/",
        f"Five models evaluated in {seconds:.0f} s of one core.",
    ]
    return "\n".join(lines)

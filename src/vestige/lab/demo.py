"""`vestige demo`: build the lab, evaluate every model in it, and say in words what came out.

Then their layers and attacks, the same with diffusion models, whose answers come about step by step, and at the end the
report of everything. Every unlearned model goes through the same tests, so that their verdicts compare. Where there are
two cores, a background worker trains some of the models and measures the diffusion models meanwhile.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vestige.depth.ask import make_ask
from vestige.depth.run import depth_run
from vestige.engine.config import RunConfig, make_config
from vestige.engine.evaluate import Outcome, evaluate_config
from vestige.lab.background_worker import Worker, background_worker, spare_core
from vestige.lab.diffusion import LLADA, build_diffusion_lab
from vestige.lab.models import Lab, build_lab, with_threads
from vestige.report.build import ReportRequest, write_report
from vestige.runs.plan import duration
from vestige.show.figures import curves, save
from vestige.show.progress import hushed
from vestige.show.tables import table
from vestige.stress.run import Stress, stress
from vestige.types import Score
from vestige.verdict.judge import judge
from vestige.verdict.runs import read_runs

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
# Not in the table: secrets and fluency speak in the verdict and on the page.
ALSO = ("forget_secrets_said", "forget_repetition", "forget_said_likelihood")
VARIES = (
    "Two digits: the models are trained here, and another processor adds in another order (how many threads there are "
    "changes nothing). Those made to forget end a few hundredths apart from machine to machine: compare columns."
)
# Steps of relearning, the share of weights that is pruned, and an answer that is begun for the model: an attack that
# teaches, and two that teach nothing.
ATTACKS: dict[str, Sequence[float]] = {"relearn": (2.0, 8.0, 32.0), "prune": (0.3,), "jailbreak": (1.0,)}
ATTACK_METRICS = ("forget_Q_A_Prob", "forget_Q_A_ROUGE", "extraction_strength")
# Of the diffusion models.
SUITE, TRAJECTORY = "tofu_trajectory", "trajectory_metrics"
STEPS = 16
CURVES = ("probability", "rouge")
COLUMNS = 5  # steps shown in the table


# ---- explanations between the numbers -------------------------------------------------------------------------------


@dataclass(frozen=True)
class DemoPart:
    """A part of the demo and roughly what it costs, in seconds of one core (docs/bench.md has measured times)."""

    title: str
    why: str
    seconds: float
    meanwhile: float = 0.0  # of these, what another core does during earlier parts


PARTS = {
    "models": DemoPart(
        "Make the models",
        "one that knows made-up authors (full), one that never met them (retain), three made to forget",
        90,
        meanwhile=30,
    ),
    "evaluate": DemoPart(
        "Evaluate them", "what does each still say, and find likely? The first table follows", 25, meanwhile=10
    ),
    "layers": DemoPart("Look into the layers", "is it gone from inside, or only from the answers?", 5),
    "attacks": DemoPart("Attack them", "relearning, pruning, an answer begun for the model: does it come back?", 50),
    "diffusion": DemoPart(
        "The same with diffusion models", "a text comes about step by step: what is known on the way?", 85, meanwhile=55
    ),
    "page": DemoPart("Write the page", "one verdict for each model, with its evidence", 5),
}


def two_digits(value: float | None) -> str:
    """A number of the demo: its models are trained on the spot, and more digits would not be another machine's.

    >>> two_digits(0.9516), two_digits(-99.96), two_digits(1.9e-05), two_digits(None)
    ('0.95', '-100', '1.9e-05', '-')
    """
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 10 else f"{value:.2g}"


def waiting_time(part: DemoPart) -> float:
    """Roughly how long a reader waits for a part, in seconds."""
    return part.seconds - (part.meanwhile if spare_core() else 0.0)


class DemoStory:
    """Announces parts in order."""

    def __init__(self, diffusion: bool) -> None:
        self.names = [name for name in PARTS if diffusion or name != "diffusion"]

    def begin(self) -> None:
        total = sum(waiting_time(PARTS[name]) for name in self.names)
        cores = "two cores that have" if spare_core() else "one core that has"
        print(
            f"Did it forget? {len(self.names)} parts, about {duration(total)} on {cores} nothing else to do; "
            "a second call takes what is there.",
            flush=True,
        )

    def part(self, name: str) -> None:
        part = PARTS[name]
        place = f"[{self.names.index(name) + 1}/{len(self.names)}]"
        why = part.why if part.why.endswith("?") else f"{part.why}."
        print(f"\n{place} {part.title} (about {duration(waiting_time(part))}): {why}", flush=True)


def last_words(out: Path, models: Mapping[str, Path], data: Path) -> str:
    """The page's address, and three commands to try."""
    page = (out / "report" / "index.html").absolute()
    name = [model for model in models if model not in ("full", "retain")][-1]
    full, retain, unlearned = (shlex.quote(str(models[model])) for model in ("full", "retain", name))
    evals, forget = shlex.quote(str(out / "eval")), shlex.quote(str(data / "forget.jsonl"))
    return "\n".join(
        [
            f"\nThe page: {page.as_uri()}",
            "Three commands to try:",
            "  vestige explain forget_quality",
            f"  vestige compare {evals}/retain {evals}/{name}",
            f"  vestige audit --before {full} --after {unlearned} --retain-model {retain} --forget {forget} "
            "--minutes 5",
            "Then your own model: docs/tutorial.md.",
        ]
    )


# ---- the demo -------------------------------------------------------------------------------------------------------


def demo(out: Path, seed: int = 0, diffusion: bool = True) -> int:
    """Returns the exit status."""
    story = DemoStory(diffusion)
    story.begin()
    # One thread each: on tiny layers a second one spends its time waiting, and here it would wait on a worker's core.
    with with_threads(1), background_worker() as worker:
        story.part("models")
        lab = build_lab(out / "lab", seed=seed, worker=worker)
        story.part("evaluate")
        print(_evaluate_models(lab, out, worker))
        measured = worker.start(measure_diffusion, out, seed) if worker and diffusion else None
        unlearned = {name: path for name, path in lab.models.items() if name not in ("full", "retain")}
        full, retain = str(lab.models["full"]), str(lab.models["retain"])
        with hushed():
            story.part("layers")
            depth_run(
                make_ask(
                    unlearned=[str(path) for path in unlearned.values()],
                    full=full,
                    retain=retain,
                    data=lab.data / "forget.jsonl",
                    out=out / "depth",
                    progress=False,
                )
            )
            story.part("attacks")
            # The retain model is attacked once, in OUT/control; every unlearned model is held against it.
            _attack(lab, lab.models["retain"], out, out / "control")
            for name, path in unlearned.items():
                _attack(lab, path, out, out / "attacks" / name, retain_model=retain, control=out / "control")
        if diffusion:
            story.part("diffusion")
            if measured is not None:
                measured()  # its results are in files, where the next line finds them
            _show_diffusion(out, measure_diffusion(out, seed))
    story.part("page")
    # It learned the forget rows and was never asked to forget them: nothing to judge.
    taught = [LLADA] if (out / "eval" / f"diffusion_{LLADA}").is_dir() else []
    runs = [out / name for name in ("eval", "depth", "attacks")]
    report = write_report(ReportRequest(runs, out / "report", "The lab: did it forget?", full=taught, progress=True))
    names = {model["id"]: model["name"] for model in report["models"]}
    print("\nDid it forget?")
    for audit in report["audits"]:
        print(f"  {names[audit['model']]}: {audit['verdict']['title']}. {audit['verdict']['headline']}")
    print(last_words(out, lab.models, lab.data))
    return 0


def _attack(lab: Lab, model: Path, out: Path, place: Path, **more: Any) -> None:
    stress(
        Stress(
            model=str(model),
            data=lab.data,
            attacks=list(ATTACKS),
            out=place,
            metrics=ATTACK_METRICS,
            budget=ATTACKS,
            relearning={"lr": 1e-3},
            collected={"model": out / "eval" / model.name},
            progress=True,
            **more,
        )
    )


Evaluated = tuple[dict[str, float | None], float]  # the values shown, and the seconds it took


def _evaluate_models(lab: Lab, out: Path, worker: Worker | None) -> str:
    """The first table. The retain model comes first: the others are compared with it."""
    logs = out / "eval" / "retain" / "TOFU_EVAL.json"
    order = ["retain", *(name for name in lab.models if name != "retain")]
    asks = {}
    for name in order:
        asks[name] = {
            "model": str(lab.models[name]),
            "data": str(lab.data),
            "out": str(out / "eval" / name),
            "retain_logs": None if name == "retain" else str(logs),
            "metrics": [*SHOWN, *ALSO],
            "full": str(lab.models["full"]),
            "progress": True,
        }
    away: dict[str, Callable[[], Evaluated]] = {}
    results: dict[str, Evaluated] = {}
    for name in order:
        if name not in away:
            print(f"Evaluating {name} ...", flush=True)
            results[name] = _values_and_seconds(asks[name])
        if worker and name == "retain":
            away = {other: worker.start(_values_and_seconds, asks[other]) for other in order[2::2]}
    for name, result in away.items():
        print(f"Evaluating {name} on the other core ...", flush=True)
        results[name] = result()
    columns = ["full", *(name for name in order if name != "full")]
    lines = ["", demo_table({name: results[name][0] for name in columns}), "", VARIES, "", "How to read it:"]
    lines += table([[metric, words] for metric, words in SHOWN.items()], ["", ""]).splitlines()[2:]
    seconds = math.fsum(seconds for _, seconds in results.values())
    return "\n".join(
        [
            *lines,
            "",
            f"Files: {out}/eval/<model>/TOFU_EVAL.json (every row), TOFU_SUMMARY.json, manifest.json, evidence/",
            f"Five models evaluated in {seconds:.0f} s of one core.",
        ]
    )


def _evaluate(ask: Mapping[str, Any]) -> Outcome:
    run = make_config(**ask)
    assert isinstance(run, RunConfig)
    with hushed():  # the retain model itself has no retain logs, by nature
        return evaluate_config(run)


def _values_and_seconds(ask: Mapping[str, Any]) -> Evaluated:
    outcome = _evaluate(ask)
    return {m: outcome.scores[m].agg_value for m in SHOWN}, float(outcome.manifest["seconds"]["total"])


def demo_table(values: Mapping[str, Mapping[str, float | None]]) -> str:
    """A row per metric, a column per model, with no more digits than other machines share."""
    # The retain model against itself is 1 and 0 by definition; its file says null because it had no logs.
    values = {**values, "retain": {**values["retain"], "forget_quality": 1.0, "privleak": 0.0}}
    rows = [[metric, *(two_digits(values[name].get(metric)) for name in values)] for metric in SHOWN]
    return table(rows, ["metric", *values], right=tuple(range(1, len(values) + 1)))


# ---- the diffusion models -------------------------------------------------------------------------------------------


def measure_diffusion(out: Path, seed: int = 0) -> dict[str, Score]:
    """Builds the diffusion lab and evaluates its models at every step; what is there is not made again."""
    print(f"Building tiny diffusion models in {out / 'lab' / 'diffusion'} ...", flush=True)
    lab = build_diffusion_lab(out / "lab", seed=seed)
    key = f"eval.{SUITE}.metrics.{TRAJECTORY}"
    sampler = f"{key}.trajectory_config.sampler_kwargs"
    results: dict[str, Score] = {}
    with with_threads(1):  # as in `demo`
        for name in ["retain", *(model for model in lab.models if model != "retain")]:
            print(f"Denoising with {name} ...", flush=True)
            config = json.loads((lab.models[name] / "config.json").read_text(encoding="utf-8"))
            ask = {
                "suite": SUITE,
                "model": str(lab.models[name]),
                "data": str(lab.data),
                "out": str(out / "eval" / f"diffusion_{name}"),
                "retain_logs": None if name == "retain" else str(out / "eval" / "diffusion_retain"),
                "progress": True,
                "overrides": [
                    f"{key}.metrics=[probability,rouge,privleak]",
                    f"{sampler}.max_new_tokens={config['diffusion_window']}",  # what the models were taught to fill
                    f"{sampler}.steps={STEPS}",
                    f"{sampler}.trajectory_sample_interval=1",
                ],
            }
            results[name] = _evaluate(ask).scores[TRAJECTORY]
    return results


def _show_diffusion(out: Path, results: Mapping[str, Score]) -> None:
    """Prints and draws how likely the forgotten answers are at every step of the diffusion models."""
    results = {name: results[name] for name in ["full", *(model for model in results if model != "full")]}
    words = {}
    for name in results:
        if name not in ("full", "retain", LLADA):
            words[name] = _judge_last_step(out / "eval", name)
    print(f"\n{diffusion_table(results, words)}")
    picture = ""
    if find_spec("matplotlib") is not None:
        data: dict[str, Any] = {name: score.to_json() for name, score in results.items()}
        save(curves(data, "probability", views=["full"]), out / "denoising.png")
        picture = f"; picture: {out / 'denoising.png'}"
    print(f"\nFiles: {out}/eval/diffusion_<model>/TOFU_EVAL.json{picture}")


def _judge_last_step(evals: Path, name: str) -> str:
    """The verdict on the last step, as the report gives it."""
    model, full, retain = (evals / f"diffusion_{model}" for model in (name, "full", "retain"))
    verdict = judge(read_runs([model], [full], [retain]))
    return f"{verdict['title']}. {verdict['headline']}"


def diffusion_table(results: Mapping[str, Score], words: Mapping[str, str]) -> str:
    """Each model's curves at a few steps, read just before each token is decided; `words`: the verdicts."""
    extra: Mapping[str, Any] = next(iter(results.values())).extra
    last = int(extra["trajectory_step_metadata"]["num_trajectory_steps"]) - 1
    steps = sorted({round(i * last / (COLUMNS - 1)) for i in range(COLUMNS)})
    rows = []
    for metric in CURVES:
        for name, score in results.items():
            curve = _curve(score, metric)
            rows.append([metric, name, *(two_digits(curve[step]) for step in steps)])
    heads = ["metric", "model", *(f"step {step}" for step in steps)]
    ends = {name: _curve(score, "probability")[-1] or 0.0 for name, score in results.items()}
    lines = [
        "Forget rows along the denoising path (trajectory fixation_start, whole window):",
        table(rows, heads, right=tuple(range(2, len(heads)))),
        "",
        f"When a token is decided, the full model gives the true one a probability of {ends['full']:.2f}, "
        f"the retain model {ends['retain']:.2f}.",
    ]
    lines += [f"{name}: {ends[name]:.2f}. {verdict}" for name, verdict in words.items()]
    if LLADA in ends:
        lines.append(
            f"{LLADA}: {ends[LLADA]:.2f}; it learned the forget rows and was never asked to forget. Its files are in "
            "LLaDA's published layout and were read as a downloaded checkpoint is."
        )
    return "\n".join(lines)


def _curve(score: Score, metric: str) -> list[float | None]:
    all_curves: Mapping[str, Any] = score.curves or {}
    curve: list[float | None] = all_curves["full"]["fixation_start"][metric]
    return curve

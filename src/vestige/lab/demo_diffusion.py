"""The demo's diffusion models, and how likely the forgotten answers are to them while a text is denoised."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vestige.engine.config import RunConfig
from vestige.engine.evaluate import evaluate_config
from vestige.engine.flags import EvalAsk, to_run
from vestige.lab.building import with_threads
from vestige.lab.diffusion import build_diffusion_lab
from vestige.lab.llada import NAME as LLADA
from vestige.lab.story import two_digits
from vestige.show.figures import curves, save
from vestige.show.progress import hushed
from vestige.show.tables import table
from vestige.types import Score
from vestige.verdict.judge import JudgeAsk, judge_runs

SUITE = "tofu_trajectory"
METRIC = "trajectory_metrics"
STEPS = 16
SHOWN = ("probability", "rouge")
COLUMNS = 5  # steps shown in the table


def demo_diffusion(out: Path, seed: int = 0) -> None:
    """Prints and draws how likely the forgotten answers are at every step of the diffusion models."""
    results = measure_diffusion(out, seed)
    order = {n: results[n] for n in ["full", *(n for n in results if n != "full")]}
    words = {n: _judged(out / "eval", n) for n in order if n not in ("full", "retain", LLADA)}
    print(f"\n{report(order, words)}")
    drawn = draw(order, out / "denoising.png")
    print(f"\nFiles: {out}/eval/diffusion_<model>/TOFU_EVAL.json{f'; picture: {drawn}' if drawn else ''}")


def measure_diffusion(out: Path, seed: int = 0) -> dict[str, Score]:
    """Builds the diffusion lab and evaluates its models at every step; what is there is not made again."""
    print(f"Building tiny diffusion models in {out / 'lab' / 'diffusion'} ...", flush=True)
    lab = build_diffusion_lab(out / "lab", seed=seed)
    results: dict[str, Score] = {}
    logs = out / "eval" / "diffusion_retain"
    # Hushed: the retain model itself has no retain logs, by nature. One thread: as in lab/demo.py.
    with hushed(), with_threads(1):
        for name in ["retain", *(n for n in lab.models if n != "retain")]:
            print(f"Denoising with {name} ...", flush=True)
            retain = None if name == "retain" else str(logs)
            place = out / "eval" / f"diffusion_{name}"
            run = to_run(_ask(lab.models[name], lab.data, place, retain, _window(lab.models[name])))
            assert isinstance(run, RunConfig)
            results[name] = evaluate_config(run).scores[METRIC]
    return results


def _window(model: Path) -> int:
    """How many tokens the lab's models were taught to fill."""
    import json

    return int(json.loads((model / "config.json").read_text(encoding="utf-8"))["diffusion_window"])


def _ask(model: Path, data: Path, out: Path, retain: str | None, window: int) -> EvalAsk:
    key = f"eval.{SUITE}.metrics.{METRIC}"
    sampler = f"{key}.trajectory_config.sampler_kwargs"
    return EvalAsk(
        suite=SUITE,
        model=str(model),
        data=str(data),
        out=str(out),
        retain_logs=retain,
        progress=True,
        overrides=[
            f"{key}.metrics=[probability,rouge,privleak]",
            f"{sampler}.max_new_tokens={window}",
            f"{sampler}.steps={STEPS}",
            f"{sampler}.trajectory_sample_interval=1",
        ],
    )


def _judged(evals: Path, name: str) -> str:
    """The verdict on the last step, as the report gives it."""
    place = {n: evals / f"diffusion_{n}" for n in (name, "full", "retain")}
    found = judge_runs(JudgeAsk([place[name]], [place["full"]], [place["retain"]]))
    return f"{found['title']}. {found['headline']}"


def report(results: Mapping[str, Score], words: Mapping[str, str]) -> str:
    """Each model's curves at a few steps, read just before each token is decided; `words`: the verdicts."""
    first = next(iter(results.values()))
    extra: Mapping[str, Any] = first.extra
    count = int(extra["trajectory_step_metadata"]["num_trajectory_steps"])
    steps = sorted({round(i * (count - 1) / (COLUMNS - 1)) for i in range(COLUMNS)})
    rows = [
        [metric, name, *(two_digits(_curve(score, metric)[s]) for s in steps)]
        for metric in SHOWN
        for name, score in results.items()
    ]
    head = "Forget rows along the denoising path (trajectory fixation_start, whole window):"
    heads = ["metric", "model", *(f"step {s}" for s in steps)]
    lines = [head, table(rows, heads, right=tuple(range(2, len(heads))))]
    last = {name: _curve(score, "probability")[-1] or 0.0 for name, score in results.items()}
    lines += ["", f"When a token is decided, the full model gives the true one a probability of {last['full']:.2f}, "
              f"the retain model {last['retain']:.2f}."]  # fmt: skip
    lines += [f"{name}: {last[name]:.2f}. {said}" for name, said in words.items()]
    if LLADA in last:
        lines.append(
            f"{LLADA}: {last[LLADA]:.2f}; it learned the forget rows and was never asked to forget. Its files are in "
            "LLaDA's published layout and were read as a downloaded checkpoint is."
        )
    return "\n".join(lines)


def _curve(score: Score, metric: str) -> list[float | None]:
    curves: Mapping[str, Any] = score.curves or {}
    curve: list[float | None] = curves["full"]["fixation_start"][metric]
    return curve


def draw(results: Mapping[str, Score], path: Path) -> Path | None:
    """A picture of the curves, where matplotlib is installed."""
    if find_spec("matplotlib") is None:
        return None
    data: dict[str, Any] = {name: score.to_json() for name, score in results.items()}
    save(curves(data, "probability", views=["full"]), path)
    return path

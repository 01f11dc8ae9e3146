"""Samplers of diffusion models from outside: the golden runs of dllm and LLaDA, token by token.

The golden runs are token numbers. A `TokenDataset` holds them as prompts, and a user's metric inside
`trajectory_metrics` (OBSERVER) writes down the state of every pass: the tokens that are decided, and the first choice
and its probability at every position of the window.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import pytest

DIFFUSION = harness.GOLDEN / "diffusion"
SAMPLERS = harness.read_json(DIFFUSION / "samplers.json")
MASK, EOS = 4, 2  # of the tiny models in golden/diffusion

OBSERVER = """
import json
import torch
from evals.metrics.base import unlearning_metric


@unlearning_metric(name="observe")
def observe(model, **kwargs):
    lines = []
    for item in kwargs["data"]:
        batch = kwargs["collators"]([item])
        with torch.no_grad():
            logits = model(input_ids=batch["input_ids"]).logits[0]
        seen = logits[item["labels"] != -100].double()
        asked = batch["input_ids"].shape[1]
        text = model.generate(batch["input_ids"])[0, asked:].tolist()
        line = {"label": kwargs["label"], "row": int(item["index"]), "text": text}
        line["first"] = seen.argmax(-1).tolist()
        line["probability"] = seen.softmax(-1).max(-1).values.tolist()
        lines.append(json.dumps(line))
    with open("observed.jsonl", "a") as file:
        file.write("\\n".join(lines) + "\\n")
    return {"agg_value": 0.0}

"""


# ---- what a sampler is asked, and what is seen of it -----------------------------------------------------------------


def write_metric(place: Path, name: str, sampler: dict[str, Any], prompts: list[list[int]]) -> None:
    """A metric for `--config-dir` that observes one sampler, and the rows that it reads."""
    rows = harness.write_rows(place / f"{name}.jsonl", prompt_rows(prompts, sampler["max_new_tokens"]))
    config = {
        "handler": "trajectory_metrics",
        "metrics": {"observe": {"label": name, "logit_alignment": "same_position"}},
        "trajectory_config": {
            "sampler_kwargs": sampler,
            "include_views": ["full"],
            "trajectories": ["steps", "fixation_start"],
            "rouge_prediction_source": "committed_only",
        },
        "datasets": {"own": {"handler": "TokenDataset", "args": {"hf_args": {"path": str(rows)}}}},
    }
    file = place / "configs" / "eval" / "tofu_metrics" / f"{name}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"# @package eval.tofu.metrics.{name}\n{json.dumps(config)}\n")


def prompt_rows(prompts: list[list[int]], length: int) -> list[dict[str, Any]]:
    """Prompts with an answer that fills the window, so that every position of it is looked at."""
    rows = []
    for prompt in prompts:
        answer = [5] * length
        rows.append({"input_ids": prompt + answer, "labels": [-100] * len(prompt) + answer})
    return rows


def observed(place: Path) -> dict[str, list[dict[str, Any]]]:
    """What the observer wrote down, by the label of its metric."""
    found: dict[str, list[dict[str, Any]]] = {}
    for line in harness.read_rows(place / "observed.jsonl"):
        found.setdefault(line["label"], []).append(line)
    return found


class Seen:
    """One sampler run as observed: by row, what stood at every pass, and the finished window."""

    def __init__(self, lines: list[dict[str, Any]], rows: int, metadata: dict[str, Any]) -> None:
        passes = metadata["num_trajectory_steps"]
        assert len(lines) == 2 * passes * rows
        self.passes = [metadata["num_steps_by_index"][str(row)] for row in range(rows)]
        self.never_fixed = [metadata["never_fixed_by_index"].get(str(row), 0) for row in range(rows)]
        self.steps: list[list[dict[str, Any]]] = []
        self.final: list[list[int]] = []
        for row in range(rows):
            own = [line for line in lines if line["row"] == row]
            self.steps.append(own[: self.passes[row]])
            self.final.append(own[-1]["first"])  # fixation_start ends with the choice of the pass that decided


def decided(window: list[int], mask: int) -> list[int]:
    return [token for token in window if token != mask]


# ---- golden sampler runs: dllm and LLaDA -----------------------------------------------------------------------------


def by_command(run: dict[str, Any]) -> bool:
    """Runs that draw nothing at random (our random numbers are others) and fill a window behind a prompt."""
    return run["call"] == "sample" and "error" not in run and not run["name"].endswith("_seeded")


GOLDEN_RUNS = {run["name"]: run for run in SAMPLERS["runs"] if by_command(run)}
LLADA_RUNS = {run["name"]: run for run in SAMPLERS["llada_generate"] if "error" not in run}


def sampler_words(run: dict[str, Any]) -> dict[str, Any]:
    """A golden run's settings as `sampler_kwargs`."""
    sampler = "bd3lm" if run["sampler"].startswith("BD3") else "mdlm"
    scheduler = "cosine" if "Cosine" in run["scheduler"] else "linear"
    shift = run["params"].get("right_shift_logits", False)
    return {"sampler": sampler, "scheduler": scheduler, **run["params"], "right_shift_logits": shift}


def golden_place(model: str, shared: Callable[..., Path]) -> Path:
    """All golden runs of one model in one command."""

    def build(place: Path) -> None:
        names = []
        for name, run in GOLDEN_RUNS.items():
            if run["model"].split()[0] == model:
                write_metric(place, name, sampler_words(run), [prompt for prompt in run["prompts"] if prompt])
                names.append(name)
        for name, run in LLADA_RUNS.items():
            for schedule in ("llada", "dllm") if run["model"] == model else ():
                write_metric(place, f"{name}_{schedule}", llada_words(run, schedule), run["prompt"])
                names.append(f"{name}_{schedule}")
        (place / "observer.py").write_text(OBSERVER)
        words = ["--config-dir", "configs", "--plugin", "observer.py", "--metrics", ",".join(names), "--out", "run"]
        if "llama" in model:
            words.append("model.model_args.diffusion=adapted")
        harness.vestige("eval", "tofu", "--model", DIFFUSION / model, *words, "stats.resamples=0", cwd=place)

    return shared(f"samplers-{model}", build)


def llada_words(run: dict[str, Any], schedule: str) -> dict[str, Any]:
    given = run["params"]
    return {
        "steps": given["steps"],
        "max_new_tokens": given["gen_length"],
        "block_size": given["block_length"],
        "cfg_scale": given.get("cfg_scale", 0.0),
        "schedule": schedule,
    }


def look(place: Path, name: str, rows: int) -> Seen:
    found = harness.read_json(place / "run" / "TOFU_EVAL.json")[name]
    return Seen(observed(place)[name], rows, found["trajectory_step_metadata"])


@pytest.mark.parametrize("name", GOLDEN_RUNS)
def test_golden_sampler_runs(name: str, shared: Callable[..., Path]) -> None:
    """The tokens decided before every pass, the first choice of every pass with its probability, the finished text."""
    run = GOLDEN_RUNS[name]
    rows = [i for i, prompt in enumerate(run["prompts"]) if prompt]
    seen = look(golden_place(run["model"].split()[0], shared), name, len(rows))
    ended_early = 0
    for number, row in enumerate(rows):
        start, end = run["generated_slices"][row]
        passes = seen.passes[number]
        if passes < run["num_forward_steps_S"]:  # dllm goes on with a row that has ended; here its passes are its own
            ended_early += 1
            end = run["block_of_step"][passes - 1][1]
            assert EOS in run["sequences"][row][start:end]
        for step in range(passes):
            here = seen.steps[number][step]
            assert here["text"] == decided(run["histories"][step][row][start:end], MASK), (row, step)
            check_first_choices(run, row, step, here)
        check_final(run, row, seen.final[number][: end - start], seen.never_fixed[number])
    assert ended_early == (1 if name == "bd3_eos_batch" else 0)


def check_final(run: dict[str, Any], row: int, final: list[int], never_fixed: int) -> None:
    """A position that the model left masked to the end has no token: it is counted."""
    start = run["generated_slices"][row][0]
    fixed = run["fixation_steps_generated"][row]
    for position, token in enumerate(final):
        if fixed[position] >= 0:
            assert token == run["sequences"][row][start + position], (row, position)
    assert never_fixed == fixed.count(-2)


def check_first_choices(run: dict[str, Any], row: int, step: int, here: dict[str, Any]) -> None:
    if "step_argmax_block" in run:  # only the block under way has logits
        start = run["generated_slices"][row][0]
        begin, end = (column - start for column in run["block_of_step"][step])
        assert here["first"][begin:end] == run["step_argmax_block"][step][row]
        return
    assert here["first"] == run["step_argmax_generated"][step][row]
    rounding = 1e-5 * (1 + 2 * run["params"].get("cfg_scale", 0.0))  # guidance multiplies differences of rounding
    assert here["probability"] == pytest.approx(run["step_argmax_prob_generated"][step][row], abs=rounding)


@pytest.mark.parametrize("schedule", ["llada", "dllm"])
@pytest.mark.parametrize("name", LLADA_RUNS)
def test_llada_runs_by_both_schedules(name: str, schedule: str, shared: Callable[..., Path]) -> None:
    run = LLADA_RUNS[name]
    seen = look(golden_place(run["model"], shared), f"{name}_{schedule}", 1)
    expected = run["sequences"] if schedule == "llada" else run["dllm_mdlm_sequences"]
    assert run["prompt"][0] + seen.final[0] == expected[0]

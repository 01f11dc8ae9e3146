"""DiffusionGemma: its sampler against transformers' own generate, its evidence, and runs through the command line."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers.models.diffusion_gemma.generation_diffusion_gemma import EntropyBoundSamplerConfig

from conftest import LAB
from gemma_tools import CANVAS, save_gemma, shared_gemma
from vestige.cli import main
from vestige.collect.backend import Cost
from vestige.collect.denoise import DenoiseCollector
from vestige.collect.tree import Limits
from vestige.metrics.trajectory import first_accepted, follow, revoked, sigma
from vestige.models.diffusion import CanvasPredictor, canvas_predictor
from vestige.models.samplers import Pass, Sampled, sample
from vestige.report.gather import row_traces
from vestige.types import IGNORE, Prompt, Trace
from vestige.wants import DenoiseWant, Denoising

ROOMY = Limits(tokens=100_000, logit_cells=1 << 24, row_tokens=1024)
LENGTHS = (9, 5, 21)  # the last is longer than the sliding window
# A random model's logits are flat: only at low temperatures does it accept several positions, and take some back.
COLD = {"t_max": 0.06, "t_min": 0.02, "entropy_bound": 0.4}
SETTINGS: dict[str, dict[str, Any]] = {
    "zero": {"t_max": 0.0, "t_min": 0.0},  # transformers has no 0 itself: it is asked for next to nothing
    "cold": COLD,
    "warm": {"t_max": 0.8, "t_min": 0.4, "entropy_bound": 6.0},
    "early stop": {**COLD, "confidence_threshold": 0.5},
    "patient": {**COLD, "confidence_threshold": 0.5, "stability_threshold": 3},
    "hasty": {**COLD, "confidence_threshold": 2.5, "stability_threshold": 0},
}


def last_accepted(accepted: np.ndarray) -> np.ndarray:
    """The first pass of the final unbroken run of acceptances; -1: the last pass did not accept it."""
    run = np.cumprod(accepted[::-1], axis=0).sum(axis=0)
    return np.where(run > 0, len(accepted) - run, -1)


def predictor() -> CanvasPredictor:
    return canvas_predictor(shared_gemma(), None)


def prompts(n: int = 3, seed: int = 0) -> list[Prompt]:
    g = torch.Generator().manual_seed(seed)
    return [Prompt(tuple(torch.randint(12, 290, (k,), generator=g).tolist())) for k in LENGTHS[:n]]


def denoising(name: str = "cold", **more: Any) -> Denoising:
    said: dict[str, Any] = {"max_new_tokens": 3 * CANVAS, "steps_per_block": 8, **SETTINGS[name], **more}
    return Denoising("diffusion_gemma", **said)


class Drafts:
    """A streamer that keeps the first choices of every pass, as generate shows them."""

    def __init__(self) -> None:
        self.drafts: list[list[list[int]]] = []

    def put(self, value: torch.Tensor) -> None: ...
    def end(self) -> None: ...
    def put_draft(self, value: torch.Tensor) -> None:
        self.drafts.append(value.tolist())


def generated(asked: list[Prompt], how: Denoising) -> tuple[list[list[int]], list[float], list[list[list[int]]]]:
    """What transformers writes: tokens padded to the window, tokens for each pass, the drafts of every pass."""
    width = max(len(p.ids) for p in asked)
    ids = torch.tensor([[0] * (width - len(p.ids)) + list(p.ids) for p in asked])
    seen = torch.tensor([[0] * (width - len(p.ids)) + [1] * len(p.ids) for p in asked])
    said = {k: getattr(how, k) for k in ("t_max", "t_min", "stability_threshold", "confidence_threshold")}
    said = {k: v for k, v in said.items() if v is not None}
    said["t_max"] = said["t_max"] or 1e-30
    if how.entropy_bound is not None:
        said["sampler_config"] = EntropyBoundSamplerConfig(entropy_bound=how.entropy_bound)
    drafts, model = Drafts(), shared_gemma()
    torch.manual_seed(how.seed)
    out = model.generate(
        ids, attention_mask=seen, max_new_tokens=how.max_new_tokens, max_denoising_steps=how.steps_per_block,
        streamer=drafts, **said,
    )  # fmt: skip
    text = [row[width:] for row in out.sequences.tolist()]
    return [row + [0] * (how.max_new_tokens - len(row)) for row in text], out.tokens_per_forward.tolist(), drafts.drafts


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", SETTINGS)
def test_the_text_is_that_of_generate(name: str, seed: int, rows: int) -> None:
    """Several canvases, texts that end early, canvases that are finished early: every token and every pass."""
    asked, how = prompts(rows, seed), denoising(name, noise="generate", seed=seed)
    text, speed, drafts = generated(asked, how)
    kept: list[Pass] = []
    found = sample(predictor(), asked, (), how, kept.append)
    assert [list(one.final) for one in found] == text
    tokens = [sum(t != 0 for t in row) for row in text]
    assert [n / one.passes for n, one in zip(tokens, found, strict=True)] == pytest.approx(speed, rel=1e-6)
    if rows == 1:  # alone, its passes are generate's passes, and each draft is the first choice we noted
        firsts = [step.logits.argmax(-1).tolist() for step in kept]
        assert firsts == [draft[0] for draft in drafts]


def test_the_settings_of_these_tests_meet_every_case() -> None:
    """Else equality would say little: texts end early, canvases are finished early, acceptances are taken back."""
    ends, early, back = 0, 0, 0
    for name in SETTINGS:
        for one, trace in traces(denoising(name)):
            ends += any(t in predictor().eos_ids for t in one.final)
            early += one.passes % 8 != 0
            back += int(revoked(trace.accepted).sum())
    assert ends > 2 and early > 2 and back > 10


def traces(how: Denoising, limits: Limits = ROOMY) -> list[tuple[Sampled, Trace]]:
    """Each prompt's sample, and its trace from collecting; the answer asked about is 10 fixed tokens."""
    answer = (*range(20, 30), *[IGNORE] * (how.max_new_tokens - 10))
    wants = [DenoiseWant(p, (answer,), how) for p in prompts()]
    found: dict[str, Trace] = {}
    for part in DenoiseCollector(predictor(), limits, Cost()).run(wants):
        found |= part
    alone = [sample(predictor(), [w.prompt], (), how)[0] for w in wants]
    return list(zip(alone, (found[w.key] for w in wants), strict=True))


@pytest.mark.parametrize("name", ["cold", "early stop"])
def test_fixation_is_the_final_unbroken_run(name: str) -> None:
    """Against the definitions, written out naively; after its canvas a position stays as its last pass left it."""
    for one, trace in traces(denoising(name)):
        for position in range(len(one.final)):
            column = trace.accepted[:, position].tolist()
            last = -1
            for s in reversed(range(len(column))):
                if not column[s]:
                    break
                last = s
            assert trace.fixed[position] == one.fixed[position] == last_accepted(trace.accepted)[position] == last
            first = column.index(True) if True in column else -1
            assert first_accepted(trace.accepted)[position] == first <= max(last, first)
            again = sum(a and not b for a, b in pairwise(column))
            assert revoked(trace.accepted)[position] == again
        path = follow(trace, "fixation_start")
        assert (path.source == sigma("fixation_start", trace.fixed, trace.steps)).all()
        assert trace.committed.tolist() == [0, *trace.accepted[:-1].sum(axis=1).tolist()]
        assert (path.decided.sum() > 0) == bool((trace.fixed >= 0).any() and trace.accepted[:-1].any())


# ---- from a folder, through the command line ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("dgemma") / "tiny"
    bound = EntropyBoundSamplerConfig(entropy_bound=0.4)
    return save_gemma(place, max_denoising_steps=6, t_max=0.06, t_min=0.02, sampler_config=bound)


@pytest.fixture(scope="module")
def finished(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "eval"
    assert main(["eval", "trajectory-eval", *asked(folder, out)]) == 0
    return out


KWARGS = "eval.tofu_trajectory.metrics.trajectory_metrics.trajectory_config.sampler_kwargs"


def asked(folder: Path, out: Path, data: Path = LAB / "data") -> list[str]:
    return [
        "--model", str(folder), "--data", str(data), "--limit", "3", "--out", str(out), "--quiet",
        f"{KWARGS}.max_new_tokens=20", "stats.resamples=0",
    ]  # fmt: skip


def result(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "TOFU_EVAL.json").read_text())["trajectory_metrics"]
    return found


def test_revocations_are_those_of_the_stored_traces(finished: Path) -> None:
    """Counted naively from the evidence on disk."""
    found = result(finished)["revocations"]
    count = taken = ever = back = rows = labels = hidden = 0
    for row in row_traces(finished):
        trace, right = row.trace, row.trace.labels[row.stream]
        held = [[trace.proposal[s, x] if trace.accepted[s, x] else -1 for s in range(trace.steps)] for x in range(20)]
        mine = gone = 0
        for x, tokens in enumerate(held):
            if (trace.proposal[:, x] < 0).all():
                continue
            falls = sum(a >= 0 > b for a, b in pairwise(tokens))
            count, taken, ever = count + falls, taken + any(t >= 0 for t in tokens), ever + (falls > 0)
            if right[x] == IGNORE:
                continue
            labels += 1
            after = [*tokens[1:], trace.final[x]]
            lost = any(a == right[x] != b for a, b in zip(tokens, after, strict=True))
            mine, gone = mine + lost, gone + (lost and trace.final[x] != right[x])
        back, rows, hidden = back + mine, rows + (mine > 0), hidden + gone
    assert found["revoked"] == {"count": count, "share": pytest.approx(ever / taken)} and count > 0
    assert found["ever_accepted"]["tokens"] == pytest.approx(back / labels)
    assert found["ever_accepted"]["rows"] == pytest.approx(rows / 3)
    assert found["ever_accepted"]["hidden_tokens"] == pytest.approx(hidden / labels)
    assert set(found["by_index"]) == {"0", "1", "2"}

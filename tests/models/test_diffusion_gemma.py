"""DiffusionGemma: its sampler against transformers' own generate, its evidence, and runs through the command line."""

from __future__ import annotations

import json
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForImageTextToText
from transformers.models.diffusion_gemma.generation_diffusion_gemma import EntropyBoundSamplerConfig

from conftest import LAB
from gemma_tools import CANVAS, save_gemma, shared_gemma
from vestige import read_evidence
from vestige.cli import main
from vestige.collect.backend import Cost
from vestige.collect.denoise import DenoiseCollector
from vestige.collect.tree import Limits
from vestige.metrics.trajectory import first_accepted, follow, revoked, sigma
from vestige.models.args import ModelArgs
from vestige.models.diffusion import CanvasPredictor, canvas_predictor
from vestige.models.load import load_model
from vestige.models.samplers import Pass, Sampled, sample
from vestige.report.gather import row_traces
from vestige.runs.files import load_rows
from vestige.types import IGNORE, Prompt, Trace
from vestige.wants import DenoiseWant, Denoising

ROOMY = Limits(tokens=100_000, logit_cells=1 << 24, row_tokens=1024)
ONE = Limits(tokens=1, logit_cells=1, row_tokens=1024)
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


@pytest.mark.parametrize("name", ["cold", "warm", "early stop"])
def test_a_sample_does_not_depend_on_its_batch(name: str) -> None:
    together, alone = (traces(denoising(name, seed=4), limits) for limits in (ROOMY, ONE))
    for (one, a), (_, b) in zip(together, alone, strict=True):
        assert one.final == tuple(a.final) == tuple(b.final) and one.fixed == tuple(a.fixed)
        for f in fields(Trace):
            x, y = getattr(a, f.name), getattr(b, f.name)
            np.testing.assert_allclose(x, y, atol=1e-4, err_msg=f.name)


def test_seeds_differ_and_repeat() -> None:
    first, again, other = (sample(predictor(), prompts(), (), denoising(seed=s)) for s in (0, 0, 1))
    assert first == again and first != other


def test_the_planes_are_what_each_pass_saw() -> None:
    how = denoising()
    kept: list[Pass] = []
    one = sample(predictor(), prompts(1), (), how, kept.append)[0]
    trace = traces(how)[0][1]
    assert trace.steps == one.passes == len(kept)
    for s, step in enumerate(kept):
        at = step.position.numpy()
        p = step.logits.double().log_softmax(-1)
        assert trace.canvas[s, at].tolist() == step.canvas.tolist()
        assert trace.proposal[s, at].tolist() == step.proposal.tolist()
        assert trace.top1[s, at].tolist() == p.argmax(-1).tolist()
        assert step.accepted is not None and trace.accepted[s, at].tolist() == step.accepted.tolist()
        for x in at[at < 10]:
            assert trace.logprob[0, s, x] == pytest.approx(float(p[x - at[0], 20 + x]), abs=1e-4)
        # What a pass accepts stands on the canvas of the next; the rest is drawn again.
        if s + 1 < len(kept) and kept[s + 1].position[0] == at[0]:
            stays = step.accepted
            assert torch.equal(kept[s + 1].canvas[stays], step.proposal[stays])
    assert np.isnan(trace.logprob[0, :, 10:]).all()


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


def test_the_run_says_what_generate_says(folder: Path, tmp_path: Path) -> None:
    """With noise=generate each prompt's text is that of transformers, from the files on disk to the trace on disk."""
    more = [f"+{KWARGS}.noise=generate", f"+{KWARGS}.seed=5"]
    assert main(["eval", "trajectory-eval", *asked(folder, tmp_path), *more]) == 0
    model = AutoModelForImageTextToText.from_pretrained(folder)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    finals = {tuple(t.final.tolist()) for t in read_evidence(tmp_path, "denoised").values()}
    stored = load_rows(tmp_path / "evidence" / "examples.json.gz")
    key = manifest["data_of"]["trajectory_metrics"]["probability/TOFU_QA_forget"]
    for row in stored[key].examples:
        ids = torch.tensor([row[0].prompt.ids])
        torch.manual_seed(5)
        text = model.generate(ids, max_new_tokens=20).sequences[0, ids.shape[1] :][:20].tolist()
        text += [model.generation_config.pad_token_id] * (20 - len(text))
        assert tuple(text) in finals


def test_the_vision_part_is_not_loaded(folder: Path, tmp_path: Path) -> None:
    loaded = load_model(ModelArgs(path=str(folder)))
    assert not any("vision" in name for name in loaded.model.state_dict())
    assert any("vision part was not loaded" in note for note in loaded.notes)
    with safe_open(folder / "model.safetensors", "pt") as stored:
        for name in stored.keys():  # noqa: SIM118 - safe_open is no mapping
            if "vision" not in name:
                assert torch.equal(loaded.model.state_dict()[name], stored.get_tensor(name)), name

"""Trajectory metrics against the numbers of published code (golden/trajectory.json), and at the edges.

The file's `producers` table says which function made each key. `sp_*` and `*_same_position`: row l scores label l.
`prob_traj`, `em`, `es_suffix`, `min_k*`, `truth_ratio_*`: row l scores label l + 1 (`causal` here).
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vestige.data.datasets import generation_start, prompt_ids
from vestige.errors import UserError
from vestige.metrics import membership, memorisation, trajectory
from vestige.metrics.trajectory import (
    DEFAULT_TRAJECTORIES,
    effective_length,
    follow,
    sigma,
    window,
)
from vestige.stats import vectors
from vestige.types import IGNORE, Array, TokenStats, Trace

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "trajectory.json").read_text())
CASES = {case["name"]: case for case in GOLDEN["cases"]}
TOLERANCE = {"rtol": 1e-5, "atol": 1e-7}  # as the golden file asks
IN_RANGE = [name for name in CASES if name != "out_of_range_F"]  # that one's F is refused, see its own test
K = 0.4


def logits_of(case: dict[str, Any]) -> torch.Tensor:
    return torch.tensor(case["R_vls"], dtype=torch.float32)


def make_trace(logits: torch.Tensor, fixed: Any, streams: list[tuple[int, ...]], final: Any = None) -> Trace:
    """A Trace from R [V, L, S].

    With torch's own float32 log-softmax, as published code has it: where the true token's probability is nearly 1, its
    rounding (2.6e-7 in a log-probability of -3.0e-4) is larger than the golden file's tolerance.
    """
    _, length, steps = logits.shape
    labels, fixed = np.array(streams, dtype=np.int64).reshape(len(streams), length), np.asarray(fixed)
    log_p = torch.log_softmax(logits.permute(2, 1, 0).contiguous(), -1).numpy()  # (S, L, V)
    p, top1 = np.exp(log_p), log_p.argmax(axis=-1)
    mean = (p * log_p).sum(axis=-1)
    planes = {"mean": mean, "std": np.sqrt((p * (log_p - mean[..., None]) ** 2).sum(axis=-1))}
    asked = np.where(labels == IGNORE, 0, labels)[:, None, :, None]
    chosen = np.take_along_axis(np.broadcast_to(log_p, (len(labels), *log_p.shape)), asked, axis=-1)[..., 0]
    logprob = np.where((labels == IGNORE)[:, None], np.nan, chosen)
    mask = -1
    written = np.asarray(final) if final is not None else np.where(fixed < 0, mask, top1[fixed, np.arange(length)])
    before = np.arange(steps)[:, None] <= fixed
    return Trace(
        final=written,
        fixed=fixed,
        committed=np.array([int((fixed[fixed >= 0] < s).sum()) for s in range(steps)]),
        canvas=np.where(before | (fixed < 0), mask, written),
        proposal=top1 + 1000,  # told apart from top1 in the tests of texts
        top1=top1,
        labels=labels,
        logprob=logprob,
        **planes,
    )


@cache
def golden_trace(name: str, alignment: str) -> Trace:
    case = CASES[name]
    answers = [case["labels"], *(case.get("labels_wrong") or [])]
    fixed = np.clip(case["F"], 0, case["S"] - 1)
    streams = [window(a, case["L"], alignment) for a in answers]
    return make_trace(logits_of(case), fixed, streams, case["final_tokens_argmax_at_F"])


def read(trace: Trace, stream: int = 0, along: str = "steps", length: int | None = None) -> TokenStats:
    return follow(trace, along).stats(stream, length)


def same(got: Array, want: list[float | None]) -> None:
    """Equal to the golden tolerance; null there is NaN here."""
    np.testing.assert_allclose(got, [math.nan if w is None else w for w in want], **TOLERANCE)


def golden(case: dict[str, Any], view: str, name: str, key: str) -> list[Any]:
    return [step[key] for step in case["views"][view][name]]


def answers_at(name: str, view: str, along: str, alignment: str) -> list[TokenStats]:
    """All answers of a golden case, the true one first."""
    case, trace = CASES[name], golden_trace(name, alignment)
    length = trajectory.scored_length(trajectory.view_length(view, trace.final, case["eos_token_id"]), alignment)
    path = follow(trace, along)
    return [path.stats(k, length) for k in range(len(trace.labels))]


# ---------------------------------------------------------------------------------------------- maps and lengths


@pytest.mark.parametrize("name", IN_RANGE)
def test_maps_are_the_published_ones(name: str) -> None:
    case = CASES[name]
    for along, want in {**case["source_steps_sl"], **case["source_steps_sl_prose"]}.items():
        assert sigma(along, case["F"], case["S"]).tolist() == want, along


def test_fixation_steps_out_of_range_are_refused_not_clamped() -> None:
    """Published code clamps the pass it looks at, so that -1 acts as 0; where F is sound the maps agree."""
    case = CASES["out_of_range_F"]
    with pytest.raises(UserError, match=r"Fixation steps must lie in \[0, 7\].*got 8"):
        sigma("fixation_end", case["F"], case["S"])
    with pytest.raises(UserError, match="got -5"):
        sigma("steps", [-1, -5], 8)
    with pytest.raises(UserError, match="got -2"):
        sigma("steps", [-1, -2], 8)
    sound = [i for i, f in enumerate(case["F"]) if 0 <= f < case["S"]]
    assert len(sound) == 8
    for along, want in {**case["source_steps_sl"], **case["source_steps_sl_prose"]}.items():
        ours = sigma(along, np.array(case["F"])[sound], case["S"])
        assert ours.tolist() == np.array(want)[:, sound].tolist()


@pytest.mark.parametrize("steps", [1, 2, 7, 64])
def test_how_the_maps_hang_together(steps: int) -> None:
    fixed = np.arange(steps)
    maps = {name: sigma(name, fixed, steps) for name in trajectory.TRAJECTORIES}
    for name in DEFAULT_TRAJECTORIES[1:]:
        assert (maps[name][0] == 0).all() and (maps[name][-1] == fixed).all()  # from the first pass to the deciding one
        assert (maps[name][:, 0] == 0).all()  # decided at once: nothing else to see
        assert (maps[name][:, -1] == np.arange(steps)).all()  # decided last: the same as `steps`
        assert (np.diff(maps[name], axis=0) >= 0).all()
    assert (maps["fixation"] == maps["fixation_end"][::-1]).all()
    assert (maps["ratio"][-1] == np.maximum(fixed - 1, 0)).all()
    exact = [[f * s // max(steps - 1, 1) for f in range(steps)] for s in range(steps)]
    assert maps["fixation_ratio"].tolist() == exact


@pytest.mark.parametrize("name", CASES)
def test_effective_length(name: str) -> None:
    case = CASES[name]
    length = effective_length(case["final_tokens_argmax_at_F"], case["eos_token_id"])
    assert length == case["L_eff"]
    assert length == min(case["first_eos_position_0based_or_L"] + 1, case["L"])


# ------------------------------------------------------------------------------------------------ golden metrics

BOTH_VIEWS = [(name, view) for name in IN_RANGE for view in ("full", "eos")]


@pytest.mark.parametrize(("name", "view"), BOTH_VIEWS)
@pytest.mark.parametrize("along", DEFAULT_TRAJECTORIES)
def test_same_position_metrics(name: str, view: str, along: str) -> None:
    case = CASES[name]
    t = answers_at(name, view, along, "same_position")[0]
    same(memorisation.probability(t), golden(case, view, along, "sp_prob"))
    floored = memorisation.probability_confidence_ordered(t, memorisation.PUBLISHED_FLOOR)
    for key in ("sp_conf_ordered", "prob_conf_ordered_same_position", "prob_provider_same_position"):
        same(floored, golden(case, view, along, key))
        some = [w for w in golden(case, view, along, key) if w is not None]
        if some:  # tighter than the golden file asks: the floor shows where probabilities are tiny
            np.testing.assert_allclose(floored, some, rtol=1e-5)
    cut = t.without_last()
    same(memorisation.exact_memorization(cut), golden(case, view, along, "sp_em"))
    suffix = memorisation.extraction_strength(trajectory.in_text_order(cut), floor=True)
    same(suffix, golden(case, view, along, "sp_es_suffix"))
    same(membership.mia_min_k(cut, K), golden(case, view, along, "sp_min_k"))
    same(membership.mia_min_k_plus_plus(cut, K), golden(case, view, along, "sp_min_k_pp"))


@pytest.mark.parametrize(("name", "view"), [(n, v) for n, v in BOTH_VIEWS if CASES[n].get("labels_wrong")])
@pytest.mark.parametrize("along", DEFAULT_TRAJECTORIES)
def test_truth_ratio(name: str, view: str, along: str) -> None:
    case = CASES[name]
    for alignment, key in (("same_position", "sp_truth_ratio_score"), ("causal", "truth_ratio_score")):
        losses = [memorisation.loss(t) for t in answers_at(name, view, along, alignment)]
        arithmetic = -np.log(np.mean(np.exp(-np.array(losses[1:])), axis=0))
        ratio = memorisation.truth_ratio(losses[0], arithmetic)
        same(ratio, golden(case, view, along, key))
        if alignment == "causal":
            folded = memorisation.TRUTH_RATIO_AGGREGATORS["closer_to_1_better"](ratio)
            same(folded, golden(case, view, along, "truth_ratio_agg"))
        else:
            geometric = memorisation.truth_ratio(losses[0], np.mean(losses[1:], axis=0))
            same(geometric, golden(case, view, along, "sp_truth_ratio_score_geometric"))


# ------------------------------------------------------------------------------------------------------- readings


def random_trace(seed: int = 0, steps: int = 6, length: int = 9, fixed: Any = None) -> Trace:
    rng = np.random.default_rng(seed)
    logits = torch.tensor(rng.normal(0, 2, (20, length, steps)), dtype=torch.float32)
    fixed = rng.integers(0, steps, length) if fixed is None else np.asarray(fixed)
    streams = [tuple(rng.integers(0, 20, length).tolist()), (IGNORE, 3, IGNORE, 4, *[IGNORE] * (length - 4))]
    return make_trace(logits, fixed, streams)


def test_positions_the_sampler_never_looked_at_are_left_out() -> None:
    """Position 3 was never looked at; position 5 once, and its proposal was token 0."""
    trace = random_trace()
    proposal = trace.proposal.copy()
    proposal[:, [3, 5]] = -1
    proposal[2, 5] = 0
    seen = replace(trace, proposal=proposal)
    assert follow(seen, "steps").seen.tolist() == [p != 3 for p in range(9)]
    t = read(seen, 0, "steps")
    np.testing.assert_array_equal(t.label[0], np.delete(trace.labels[0], 3))
    np.testing.assert_array_equal(t.logprob, np.delete(trace.logprob[0], 3, axis=-1))


def test_reading_equals_indexing_cell_by_cell() -> None:
    trace = random_trace(3)
    for along in trajectory.TRAJECTORIES:
        source, t = sigma(along, trace.fixed, trace.steps), read(trace, 0, along)
        for s in range(trace.steps):
            for p in range(9):
                assert t.logprob[s, p] == trace.logprob[0, source[s, p], p]
                assert t.top1[s, p] == trace.top1[source[s, p], p]
                assert t.std[s, p] == trace.std[source[s, p], p]


# ------------------------------------------------------------------------------------------------------ reporting


# ------------------------------------------------------------------------------------------------------ set level


def of(group: dict[str, Any]) -> list[float]:
    return [v["score"] for v in group.values()]


def test_set_level() -> None:
    want = GOLDEN["set_level"]
    attack = want["mia_auc"]
    assert vectors.auc(of(attack["forget"]), of(attack["holdout"])) == pytest.approx(attack["auc"], rel=1e-12)
    for row in want["privleak"]:
        ref = 0.5 if isinstance(row["ref"], str) else row["ref"]
        assert vectors.privleak(row["auc"], ref) == pytest.approx(row["value"], rel=1e-9, abs=1e-9)
    pooled = want["ks_test"]
    assert vectors.ks(of(pooled["forget"]), of(pooled["retain"])).p == pytest.approx(pooled["pvalue"], rel=1e-9)
    parts = [v["agg_value"] for v in want["hm_aggregate"]["components"].values()]
    assert vectors.harmonic_mean(parts) == pytest.approx(want["hm_aggregate"]["value"], rel=1e-9)
    assert vectors.harmonic_mean([*parts, 0.0]) == want["hm_aggregate"]["with_a_zero"]
    assert math.isnan(vectors.harmonic_mean([*parts, math.nan]))


@pytest.mark.parametrize("row", GOLDEN["set_level"]["truth_ratio"], ids=lambda r: r["aggregator"])
def test_set_level_truth_ratio(row: dict[str, Any]) -> None:
    right, wrong = np.array(row["correct_avg_loss"]), np.array(row["wrong_avg_loss"])
    layouts = {
        "trajectory_layout_arith_mean_of_probs": -np.log(np.exp(-wrong).mean(axis=1)),
        "upstream_layout_geometric": wrong.mean(axis=1),
    }
    for layout, together in layouts.items():
        ratio = memorisation.truth_ratio(right, together, prob_mean=row["aggregator"] == "prob_mean")
        np.testing.assert_allclose(ratio, row[layout]["scores"], rtol=1e-9)
        mean = memorisation.TRUTH_RATIO_AGGREGATORS[row["aggregator"]](ratio).mean()
        assert mean == pytest.approx(row[layout]["agg"], rel=1e-9)


# ---------------------------------------------------------------------------------------------- prompts and tensors


@pytest.mark.parametrize("case", GOLDEN["prompt_extraction"], ids=lambda c: c["name"])
def test_where_the_answer_begins(case: dict[str, Any]) -> None:
    ids, labels = case["input_ids"][0], case["labels"] and case["labels"][0]
    attended = [int(i != 0) for i in ids]
    start = generation_start(ids, labels, attended, case["prompt_only_input_ids"])
    assert start == case["correct_generation_start"]
    assert list(prompt_ids(ids, labels, attended, case["prompt_only_input_ids"])) == case["prompts"][0]
    if labels and case["name"].startswith("ignore_convention"):
        assert list(window(labels[start:], 3)) == case["peer_dual_label_slice_L3"]
    if case["name"].startswith("prompt_only_chat"):  # there published code would score the prompt
        assert window(labels[start:], 3) == (21, 22, 23) != tuple(case["peer_dual_label_slice_L3"])


# ------------------------------------------------------------------------------------------ the guide's own names


def test_the_guides_python_names() -> None:
    """The guide's flow as it prints it: stack, cut the generated part, compute, extract, wrap, score."""
    from vestige.adapters.open_unlearning import evaluate_probability
    from vestige.adapters.trajectory_tensors import (
        LogitModelWrapper,
        SamplerOutput,
        compute_logit_metric_at_step,
        compute_text_metric_at_step,
        compute_trajectories,
        extract_logits_at_step,
        stack_logits_history,
        trajectories_from_logits,
    )

    torch.manual_seed(0)
    history = [torch.randn(1, 7, 20) for _ in range(4)]
    fixed = torch.tensor([[0, 0, 1, 3, 0, 2, 2]])
    out = SamplerOutput(sequences=torch.zeros(1, 7), histories=[], logits_history=history, fixation_steps=fixed)
    assert out.logits_history is not None
    full = stack_logits_history(out.logits_history)
    assert full.shape == (20, 7, 4)
    R, F, S = full[:, 2:, :], out.fixation_steps[0][2:], 4  # noqa: N806 - the guide's names
    found = compute_trajectories(R, F, S)
    assert set(found) == set(DEFAULT_TRAJECTORIES)
    batched = trajectories_from_logits(history, fixed, [2])
    assert all(torch.equal(found[name], batched[name][0]) for name in found)
    with pytest.raises(UserError, match="R has 4 steps, S says 5"):
        compute_trajectories(R, F, 5)
    logits = extract_logits_at_step(found["fixation_start"], 3)
    labels = torch.tensor([3, 4, 5, 6, 7])
    assert LogitModelWrapper(logits.T[None])(input_ids=None).logits.shape == (1, 5, 20)
    by_hand = torch.log_softmax(logits.T.double(), -1)[torch.arange(4), labels[1:]].sum() / 5
    got = compute_logit_metric_at_step(evaluate_probability, logits, labels)
    assert got[0]["prob"] == pytest.approx(float(by_hand.exp()), rel=1e-5)
    with pytest.raises(UserError, match="labels cover 3 positions"):
        compute_logit_metric_at_step(evaluate_probability, logits, labels[:3])

    class Words:
        def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
            return " ".join(map(str, ids))

    said = compute_text_metric_at_step(
        lambda texts, ground_truths: (texts, ground_truths), logits, [3, IGNORE], Words()
    )
    assert said == ([" ".join(map(str, logits.argmax(0).tolist()))], ["3"])

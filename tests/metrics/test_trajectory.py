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

from vestige.collect.reduce import reduce_logits
from vestige.data.datasets import generation_start, prompt_ids
from vestige.errors import UserError
from vestige.integrations import offline
from vestige.metrics import membership, memorisation, trajectory
from vestige.metrics import text as rouge
from vestige.metrics.trajectory import (
    DEFAULT_TRAJECTORIES,
    STATISTICS,
    at_step,
    captures,
    distribution,
    effective_length,
    extend,
    follow,
    read,
    sigma,
    thin,
    window,
)
from vestige.stats import vectors
from vestige.types import IGNORE, Array, TokenStats, Trace, stats

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


def test_never_decided_counts_as_the_last_pass() -> None:
    for along in trajectory.TRAJECTORIES:
        assert sigma(along, [-1], 6).tolist() == sigma(along, [5], 6).tolist()
    assert sigma("fixation_end", [-1], 6)[:, 0].tolist() == [0, 1, 2, 3, 4, 5]


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


def test_ratios_use_whole_numbers() -> None:
    assert sigma("ratio", [22], 44)[30, 0] == 15 and math.floor(22 * (30 / 44)) == 14


def test_unknown_trajectory_and_no_step() -> None:
    with pytest.raises(UserError, match=r"Unknown trajectory 'x' \(known: steps, fixation_start, .*ratio\)"):
        sigma("x", [0], 1)
    with pytest.raises(UserError, match="did not report any step"):
        sigma("steps", [], 0)


@pytest.mark.parametrize("name", CASES)
def test_effective_length(name: str) -> None:
    case = CASES[name]
    length = effective_length(case["final_tokens_argmax_at_F"], case["eos_token_id"])
    assert length == case["L_eff"]
    assert length == min(case["first_eos_position_0based_or_L"] + 1, case["L"])


@pytest.mark.parametrize("case", GOLDEN["effective_lengths"])
def test_effective_lengths_of_rows(case: dict[str, Any]) -> None:
    rows = [row[p : p + case["L"]] for row, p in zip(case["sequences"], case["prompt_lens"], strict=True)]
    assert [effective_length(row, case["eos_token_id"]) for row in rows] == case["L_eff"]


def test_several_end_tokens_and_id_zero() -> None:
    assert effective_length([7, 5, 2], [2, 5]) == 2
    assert effective_length([7, 0, 2], 0) == 2
    assert effective_length([], 2) == 0


def test_views() -> None:
    assert trajectory.views(None) == trajectory.views([]) == ("full", "eos")
    assert trajectory.views("full") == trajectory.views(["full", "full"]) == ("full",)
    with pytest.raises(UserError, match=r"Unknown view 'ful'\. Did you mean 'full'"):
        trajectory.views(["ful"])


def test_windows() -> None:
    assert window([1, 2, 3, 4], 2) == (1, 2)
    assert window([], 2) == (IGNORE, IGNORE)
    assert window([1, 2, 3], 3, "causal") == (2, 3, IGNORE)
    assert window([1, 2, 3, 4], 3, "causal") == (2, 3, IGNORE)  # the fourth label lies outside the window
    assert window([1], 0, "causal") == window([], 0) == ()
    want = GOLDEN["batched_geometry"]["errors"]["alignment"].removeprefix("ValueError: ")
    with pytest.raises(UserError) as caught:
        window([1], 2, "shift")
    assert str(caught.value) == want


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


@pytest.mark.parametrize(("name", "view"), BOTH_VIEWS)
@pytest.mark.parametrize("along", DEFAULT_TRAJECTORIES)
def test_causal_metrics(name: str, view: str, along: str) -> None:
    """Where nothing is scored the published 1.0 is NaN here; where published code is undefined there is no golden."""
    case = CASES[name]
    t = answers_at(name, view, along, "causal")[0]
    if not t.tokens:
        assert np.isnan(memorisation.probability(t)).all()
        assert set(golden(case, view, along, "prob_traj")) == {1.0}
        return
    same(memorisation.probability(t), golden(case, view, along, "prob_traj"))
    floored = memorisation.probability_confidence_ordered(t, memorisation.PUBLISHED_FLOOR)
    same(floored, golden(case, view, along, "prob_conf_ordered_shifted"))
    # the guide's route divides the same sum by all labels, the first one included
    labels = case["labels"][: case["L_eff"] if view == "eos" else None]
    valid = sum(x != IGNORE for x in labels)
    same(np.exp(-memorisation.loss(t) * t.tokens / valid), golden(case, view, along, "prob_eval"))
    if case["labels"][0] != IGNORE:
        assert set(golden(case, view, along, "em")) == {None}
        return
    same(floored, golden(case, view, along, "prob_provider_causal"))
    same(floored, golden(case, view, along, "prob_conf_ordered_causal"))
    cut = t.without_last()
    same(memorisation.exact_memorization(cut), golden(case, view, along, "em"))
    suffix = memorisation.extraction_strength(trajectory.in_text_order(cut), floor=True)
    same(suffix, golden(case, view, along, "es_suffix"))
    same(membership.mia_min_k(cut, K), golden(case, view, along, "min_k"))
    same(membership.mia_min_k_plus_plus(cut, K), golden(case, view, along, "min_k_pp"))


@pytest.mark.parametrize(("name", "view"), BOTH_VIEWS)
@pytest.mark.parametrize("alignment", ["same_position", "causal"])
def test_extraction_strength_in_decision_order(name: str, view: str, alignment: str) -> None:
    """Published code reads min(s, F) whatever the trajectory, and calls an answer without tokens 0."""
    case, trace = CASES[name], golden_trace(name, alignment)
    length = trajectory.view_length(view, trace.final, case["eos_token_id"])
    t = follow(trace, "fixation_start").in_decision_order(case["labels"], 0, length, alignment)
    ours = memorisation.extraction_strength(t)
    if not t.tokens:
        assert np.isnan(ours).all()
        return
    for along in DEFAULT_TRAJECTORIES:
        same(ours, golden(case, view, along, f"es_fixation_{alignment}"))


EXTRACTION = json.loads((Path(__file__).parents[1] / "golden" / "trajectory_extraction.json").read_text())["cases"]


def extraction(logits: torch.Tensor, fixed: list[int], labels: list[int], alignment: str, length: int) -> float:
    """Extraction strength in decision order at the last step, of the first `length` positions."""
    trace = make_trace(logits, fixed, [window(labels, len(fixed), alignment)])
    t = follow(trace, "fixation_start").in_decision_order(labels, 0, length, alignment)
    return float(memorisation.extraction_strength(t)[-1])


@pytest.mark.parametrize("case", EXTRACTION, ids=[f"{i}-{c['alignment']}" for i, c in enumerate(EXTRACTION)])
def test_published_extraction_strength_in_both_alignments(case: dict[str, Any]) -> None:
    logits = torch.tensor(case["R"], dtype=torch.float32)
    got = extraction(logits, case["F"], case["labels"], case["alignment"], len(case["F"]))
    assert got == pytest.approx(case["extraction_strength"], abs=1e-12)


def test_causal_extraction_counts_labels_at_their_own_decision() -> None:
    """All wrong, and the last label is decided last: nothing is extracted. Label 0 is compared with row 0."""
    wrong = torch.zeros(3, 6, 8)
    wrong[0] = 5.0
    assert extraction(wrong, [0, 0, 0, 0, 0, 7], [1] * 6, "causal", 6) == 0.0
    first = torch.zeros(3, 2, 4)
    first[1] = 5.0
    assert extraction(first, [3, 0], [1, 1], "causal", 2) == 1.0
    assert extraction(first, [3, 0], [2, 1], "causal", 2) == 0.0
    assert extraction(first, [2, 0], [2, 1], "causal", 1) == 0.25  # a view of one token still has label 0


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


def toy_decode(ids: Array | list[int]) -> str:
    return " ".join(f"w{i}" for i in ids if i >= 5)


@pytest.mark.parametrize(("name", "view"), BOTH_VIEWS)
@pytest.mark.parametrize("along", DEFAULT_TRAJECTORIES)
def test_texts_and_rouge(name: str, view: str, along: str) -> None:
    case, trace = CASES[name], golden_trace(name, "same_position")
    length = trajectory.view_length(view, trace.final, case["eos_token_id"])
    ids = follow(trace, along).ids(length=length)
    assert [row.tolist() for row in ids] == golden(case, view, along, "argmax_ids")
    texts = [toy_decode(row) for row in ids]
    assert texts == golden(case, view, along, "text")
    reference = toy_decode([x for x in case["labels"] if x != IGNORE])
    scores = [rouge.rouge_scores(reference, text) for text in texts]
    for key in ("rouge1_recall", "rougeL_recall", "rougeL_f1"):
        same(np.array([score[key] for score in scores]), golden(case, view, along, key))


def test_the_clamped_case_along_steps() -> None:
    """`steps` does not look at F, so the case whose F is out of range has its values there all the same."""
    case = CASES["out_of_range_F"]
    t = answers_at("out_of_range_F", "full", "steps", "same_position")[0]
    same(memorisation.probability(t), golden(case, "full", "steps", "sp_prob"))
    same(membership.mia_min_k_plus_plus(t.without_last(), K), golden(case, "full", "steps", "sp_min_k_pp"))


# ------------------------------------------------------------------------------------------------------- readings


def test_what_collecting_keeps_gives_the_same_readings() -> None:
    """The planes of these tests, and those of the reduction that evaluations use, are the same to rounding."""
    case, trace = CASES["random_all_valid"], golden_trace("random_all_valid", "same_position")
    for s in range(case["S"]):
        label = torch.as_tensor(trace.labels[0])
        kept = reduce_logits(logits_of(case)[:, :, s].T, torch.arange(case["L"]), label)
        np.testing.assert_array_equal(kept["top1"], trace.top1[s])
        np.testing.assert_allclose(kept["logprob"], trace.logprob[0, s], rtol=1e-6)
        np.testing.assert_allclose(kept["mean"], trace.mean[s], rtol=1e-5)
        np.testing.assert_allclose(kept["std"], trace.std[s], rtol=1e-5)


def random_trace(seed: int = 0, steps: int = 6, length: int = 9, fixed: Any = None) -> Trace:
    rng = np.random.default_rng(seed)
    logits = torch.tensor(rng.normal(0, 2, (20, length, steps)), dtype=torch.float32)
    fixed = rng.integers(0, steps, length) if fixed is None else np.asarray(fixed)
    streams = [tuple(rng.integers(0, 20, length).tolist()), (IGNORE, 3, IGNORE, 4, *[IGNORE] * (length - 4))]
    return make_trace(logits, fixed, streams)


def test_one_step_is_a_view_and_its_metric_the_same() -> None:
    t = read(random_trace(), 0, "fixation_ratio")
    for s in range(6):
        one = at_step(t, s)
        assert one.logprob.shape == one.order.shape == (9,) and np.shares_memory(one.logprob, t.logprob)
        for metric in (memorisation.probability, memorisation.extraction_strength, membership.mia_min_k_plus_plus):
            assert metric(one) == metric(t)[s]
    for bad in (-1, 6):
        with pytest.raises(UserError, match=rf"step_index {bad} out of range \[0, 5\]"):
            at_step(t, bad)


def test_planes_are_gathered_once() -> None:
    path = follow(random_trace(), "fixation_end")
    assert path.logprob is path.logprob
    path.stats(0)
    assert {"top1", "mean", "std", "logprob"} <= set(vars(path))


def test_answers_with_gaps_keep_their_own_positions() -> None:
    trace = random_trace()
    t = read(trace, 1, "steps", 9)
    assert t.label[0].tolist() == [3, 4]
    assert t.order[0].tolist() == trace.fixed[[1, 3]].tolist()
    np.testing.assert_array_equal(t.logprob, trace.logprob[1][:, [1, 3]])
    assert read(trace, 1, "steps", 3).tokens == 1
    assert not np.isnan(t.logprob).any()


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


def test_the_first_answer_unless_said() -> None:
    trace = random_trace()
    for t in (read(trace), follow(trace, "steps").stats()):
        assert t.label[0].tolist() == trace.labels[0].tolist()


def test_reading_equals_indexing_cell_by_cell() -> None:
    trace = random_trace(3)
    for along in trajectory.TRAJECTORIES:
        source, t = sigma(along, trace.fixed, trace.steps), read(trace, 0, along)
        for s in range(trace.steps):
            for p in range(9):
                assert t.logprob[s, p] == trace.logprob[0, source[s, p], p]
                assert t.top1[s, p] == trace.top1[source[s, p], p]
                assert t.std[s, p] == trace.std[source[s, p], p]


def test_an_answer_without_tokens_is_nan_at_every_step() -> None:
    trace = random_trace()
    empty = read(trace, 0, "fixation_start", 0)
    assert (empty.tokens, empty.logprob.shape) == (0, (6, 0))
    for metric in (
        memorisation.loss,
        memorisation.probability,
        lambda t: memorisation.probability_confidence_ordered(t, 1e-12),
        memorisation.exact_memorization,
        memorisation.extraction_strength,
        membership.mia_min_k,
        membership.mia_min_k_plus_plus,
        lambda t: membership.mia_zlib(t, "text"),
    ):
        assert metric(empty).shape == (6,) and np.isnan(metric(empty)).all()
    assert memorisation.confidence_order(empty).shape == (6, 0)


def test_one_step_and_all_decided_at_once() -> None:
    single = random_trace(steps=1, fixed=[0] * 9)
    first = [memorisation.probability(read(single, 0, along)) for along in trajectory.TRAJECTORIES]
    assert all(p.shape == (1,) and p == first[0] for p in first)
    at_once = random_trace(fixed=[0] * 9)
    for along in DEFAULT_TRAJECTORIES[1:]:
        p = memorisation.probability(read(at_once, 0, along))
        assert (p == p[0]).all()


def test_strength_of_answers_decided_early() -> None:
    """All wrong, all decided in pass 0 of 8: published code says 7/8, `normalised` says 0."""
    wrong = TokenStats(**{**vars(stats(hit=[0, 0])), "order": np.zeros(2, int), "steps": 8})
    assert memorisation.extraction_strength(wrong) == 0.875
    assert memorisation.extraction_strength(wrong, normalised=True) == 0
    half = TokenStats(**{**vars(stats(hit=[0, 1])), "order": np.array([0, 3]), "steps": 8})
    assert memorisation.extraction_strength(half, normalised=True) == 0.75
    by_position = stats(hit=[0, 1, 1, 1])
    assert memorisation.extraction_strength(by_position, normalised=True) == 0.75


def test_leaving_out_the_last_token_keeps_the_denoising_steps() -> None:
    t = read(random_trace(), 0, "steps").without_last()
    assert (t.tokens, t.steps) == (8, 6)
    assert (memorisation.extraction_strength(t) >= 0).all()


def test_texts_from_the_canvas() -> None:
    fixed = [0, 2, -1, 1]
    trace = random_trace(steps=4, length=4, fixed=fixed)
    rows = follow(trace, "steps").ids("committed_only")
    final = trace.final
    assert [r.tolist() for r in rows] == [[], [final[0]], [final[0], final[3]], [final[0], final[1], final[3]]]
    mixed = follow(trace, "steps").ids("canvas_plus_step_x0")
    assert mixed[2].tolist() == [final[0], trace.proposal[2, 1], trace.proposal[2, 2], final[3]]
    assert [len(r) for r in follow(trace, "steps").ids("canvas_plus_step_x0", 2)] == [2] * 4
    # a fixation trajectory never looks past the deciding pass, where the position is still open
    assert all(len(r) == 0 for r in follow(trace, "fixation_end").ids("committed_only"))
    with pytest.raises(UserError, match="Unknown text source 'argmax'"):
        follow(trace, "steps").ids("argmax")


# ------------------------------------------------------------------------------------------------------ reporting


def even_schedule(tokens: int, passes: int) -> list[int]:
    """Tokens decided before each pass when each takes an equal share of what is left, rounded half to even."""
    done = [0]
    for j in range(passes - 1):
        done.append(done[-1] + round((tokens - done[-1]) / (passes - j)))
    return done


REPORTING = GOLDEN["reporting_steps"]


def test_captures_of_a_schedule() -> None:
    """Captures and their token counts; published code's labels are right only if no pass decides more than a share."""
    every_other = captures(even_schedule(200, 50), 8)
    counts = [even_schedule(200, 50)[s] for s in every_other]
    assert counts == REPORTING[0]["step_values"] and len(counts) == REPORTING[0]["S"]
    assert every_other == REPORTING[1]["steps_to_use"][:-1]  # published code adds the last pass
    coarse = even_schedule(200, 16)
    assert captures(coarse, 8) == REPORTING[3]["steps_to_use"]
    assert [coarse[s] for s in captures(coarse, 8)] == coarse != REPORTING[3]["step_values"]
    small = even_schedule(32, 8)
    assert [small[s] for s in captures(small, 8)] == REPORTING[4]["step_values"]
    assert captures(range(8), 1) == REPORTING[5]["steps_to_use"]
    assert captures([0], 8) == REPORTING[7]["steps_to_use"]
    assert captures([], 8) == REPORTING[8]["steps_to_use"]
    # 16 tokens in 8 passes: 8 stand before pass 4; published code reports pass 7 under that label
    assert captures(even_schedule(16, 8), 8) == [0, 4] and REPORTING[6]["steps_to_use"] == [0, 7]


@pytest.mark.parametrize("bad", [0, -1, 2.5, True])
def test_intervals_are_whole_numbers(bad: Any) -> None:
    with pytest.raises(UserError, match="trajectory_sample_interval must be a whole number"):
        captures([0, 1], bad)


def test_thinned_traces() -> None:
    fixed = [0, 1, 2, 3, 4, 5, -1]
    trace = random_trace(steps=6, length=7, fixed=fixed)
    assert trace.committed.tolist() == [0, 1, 2, 3, 4, 5]
    thinned = thin(trace, 2)
    assert thinned.steps == 3 and thinned.committed.tolist() == [0, 2, 4]
    assert thinned.fixed.tolist() == [0, 0, 1, 1, 2, 2, -1]
    np.testing.assert_array_equal(thinned.top1, trace.top1[[0, 2, 4]])
    np.testing.assert_array_equal(thinned.logprob, trace.logprob[:, [0, 2, 4]])
    # what stands on the canvas at a capture is still told by the fixation counted in captures
    shown = follow(trace, "steps").ids("committed_only")
    assert [r.tolist() for r in follow(thinned, "steps").ids("committed_only")] == [
        shown[s].tolist() for s in (0, 2, 4)
    ]
    assert thin(trace, 1).fixed.tolist() == fixed


def test_distribution() -> None:
    rng = np.random.default_rng(0)
    whole = rng.normal(size=(7, 3))
    got = distribution(whole)
    assert tuple(got) == STATISTICS
    np.testing.assert_allclose(got["std"], np.sqrt(np.mean((whole - whole.mean(0)) ** 2, axis=0)))
    np.testing.assert_allclose(got["p25"], np.quantile(whole, 0.25, axis=0))
    np.testing.assert_allclose(got["ci_high"] - got["mean"], 1.96 * got["std"] / math.sqrt(7))
    holes = whole.tolist()
    holes[2][1] = None
    some = distribution(holes)
    np.testing.assert_allclose(some["mean"][1], np.delete(whole[:, 1], 2).mean())
    np.testing.assert_allclose(some["median"][[0, 2]], got["median"][[0, 2]])


def test_distribution_by_hand() -> None:
    """Five values ten apart: a deviation of sqrt(200), a standard error of sqrt(40)."""
    got = {name: float(v[0]) for name, v in distribution([[30.0], [0.0], [40.0], [10.0], [20.0]]).items()}
    half = 1.96 * math.sqrt(40)
    want = {"mean": 20, "std": math.sqrt(200), "median": 20, "p25": 10, "p75": 30, "min": 0, "max": 40}
    assert got == pytest.approx({**want, "ci_low": 20 - half, "ci_high": 20 + half})


def test_distribution_of_one_and_of_none(recwarn: pytest.WarningsRecorder) -> None:
    one = distribution([[0.5, None]])
    assert [one[k][0] for k in STATISTICS] == [0.5, 0.0, *[0.5] * 7]
    assert all(np.isnan(one[k][1]) for k in STATISTICS)
    none = distribution(np.zeros((0, 2)))
    assert all(v.shape == (2,) and np.isnan(v).all() for v in none.values())
    assert not recwarn.list
    with pytest.raises(UserError, match="table"):
        distribution([1.0])


def test_shorter_runs_keep_their_last_value() -> None:
    assert extend([1.0, 2.0], 2).tolist() == [1.0, 2.0]
    assert extend([1.0, 2.0, 3.0], 5).tolist() == [1.0, 2.0, 3.0, 3.0, 3.0]
    assert np.isnan(extend([], 2)).all()
    with pytest.raises(UserError, match="does not fit"):
        extend([1.0, 2.0], 1)


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


def test_an_answer_that_begins_like_its_prompt() -> None:
    assert generation_start([11, 11, 12], [IGNORE, 11, 12]) == 1  # input_ids hold the answer: nothing to look for


def checksum(tensor: torch.Tensor) -> tuple[float, float]:
    flat = tensor.double().flatten()
    return float(flat.sum()), float((flat * torch.arange(1, len(flat) + 1)).sum())


@pytest.mark.parametrize("name", [n for n in IN_RANGE if "trajectory_checksums" in CASES[n]])
def test_trajectory_tensors(name: str) -> None:
    case = CASES[name]
    tensors = offline.compute_trajectories(logits_of(case), case["F"])
    assert list(tensors) == list(DEFAULT_TRAJECTORIES)
    for along, want in case["trajectory_checksums"].items():
        assert checksum(tensors[along]) == (want["sum"], want["weighted"])


def test_one_step_tensors_are_allowed() -> None:
    case = CASES["single_step"]
    for tensor in offline.compute_trajectories(logits_of(case), case["F"]).values():
        assert torch.equal(tensor, logits_of(case))


GEOMETRY = {k: v for k, v in GOLDEN["batched_geometry"].items() if k != "errors"}


@pytest.mark.parametrize("name", GEOMETRY)
def test_batches_cut_behind_the_longest_prompt(name: str) -> None:
    case = GEOMETRY[name]
    history = list(torch.tensor(case["logits_history_sbtv"]))
    got = offline.trajectories_from_logits(
        history, torch.tensor(case["fixation_steps_bt"]), case["prompt_lens"], padding="left"
    )
    assert (got["S"], got["L"], got["F"].tolist()) == (case["S"], case["L"], case["F"])
    assert float(got["R"].sum()) == pytest.approx(case["R_bvls_sum"], abs=1e-4)
    assert got["R"][:, :, 0, 0].tolist() == case["R_first_row_l0_s0"]
    assert torch.equal(got["steps"], got["R"])


def test_batches_cut_behind_each_row_s_own_prompt() -> None:
    case = GEOMETRY["full_sequence_unequal_prompts"]
    history, fixed = list(torch.tensor(case["logits_history_sbtv"])), torch.tensor(case["fixation_steps_bt"])
    got = offline.trajectories_from_logits(history, fixed, case["prompt_lens"])
    for b, start in enumerate(case["prompt_lens"]):
        for s, step in enumerate(history):
            assert torch.equal(got["R"][b, :, :, s].T, step[b, start : start + case["L"]])
        assert got["F"][b].tolist() == case["fixation_steps_bt"][b][start : start + case["L"]]
    assert got["F"].tolist() != case["F"]
    equal = GEOMETRY["full_sequence_equal_prompts"]
    history, fixed = list(torch.tensor(equal["logits_history_sbtv"])), torch.tensor(equal["fixation_steps_bt"])
    both = [
        offline.trajectories_from_logits(history, fixed, equal["prompt_lens"], padding=p) for p in ("left", "right")
    ]
    assert torch.equal(both[0]["fixation_ratio"], both[1]["fixation_ratio"])


def test_offline_mistakes() -> None:
    case = GEOMETRY["full_sequence_equal_prompts"]
    history, fixed = list(torch.tensor(case["logits_history_sbtv"])), torch.tensor(case["fixation_steps_bt"])
    want = {k: v.removeprefix("ValueError: ") for k, v in GOLDEN["batched_geometry"]["errors"].items()}
    from_logits = offline.trajectories_from_logits
    mistakes = {
        "empty_history": lambda: from_logits([], fixed, [4, 4]),
        "fixation_1d": lambda: from_logits(history, fixed[0], [4, 4]),
        "prompt_lens_len": lambda: from_logits(history, fixed, [4]),
        "step_range": lambda: offline.extract_logits_at_step(torch.zeros(2, 2, 3), 3),
    }
    for name, mistake in mistakes.items():
        with pytest.raises(UserError) as caught:
            mistake()
        assert str(caught.value) == want[name]
    with pytest.raises(UserError, match="logits_history cannot be empty"):
        offline.stack_logits_history([])
    with pytest.raises(UserError, match="fills the canvas"):
        from_logits(history, fixed, [9, 4])
    with pytest.raises(UserError, match="padding must be"):
        from_logits(history, fixed, [4, 4], padding="both")


# ------------------------------------------------------------------------------------------ the guide's own names


def test_the_guides_python_names() -> None:
    """The guide's flow as it prints it: stack, cut the generated part, compute, extract, wrap, score."""
    from vestige.integrations.evals_utils import evaluate_probability
    from vestige.integrations.trajectory_guide import (
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

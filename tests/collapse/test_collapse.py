"""Collapse: the matrix on many architectures, words, sampling, the detector, the callback."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from collapse_tools import tiny, trajectories
from collect_tools import ARCHITECTURES, PACKABLE, model_of, numbers, one_by_one
from vestige.collapse import sampling
from vestige.collapse.detector import CollapseDetector, CollapseSettings
from vestige.collapse.reasoning import Trajectory, Turn
from vestige.collect.backend import Cost
from vestige.collect.cross import CrossScorer, Forest, pairwise_scorer
from vestige.errors import UserError
from vestige.types import Target

FIRST = "collapse_first_turn_sample"


def problem(seed: int = 0) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Prompts that nest and repeat; reasonings that share openings, repeat, and have one token."""
    rng = np.random.default_rng(seed)
    system = numbers(rng, 12)
    prompts = [system + numbers(rng, n) for n in (3, 5, 9)]
    prompts += [prompts[0] + numbers(rng, 4), prompts[1], (7,)]
    opening = numbers(rng, 6)
    zs = [opening + numbers(rng, n) for n in (1, 4, 9)] + [numbers(rng, 1), numbers(rng, 14)]
    return prompts, [*zs, zs[0], opening]


def slowly(model: Any, prompts: list[Any], zs: list[Any]) -> Any:
    """Shares no code with the scorer."""
    return [np.stack([one_by_one(model, Target(x + z, len(x)))["logprob"] for x in prompts]) for z in zs]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_matrix_on_every_architecture(name: str) -> None:
    """Right for all; by shared prompts where that fits, by whole sequences where not, and that is said."""
    model = model_of(name)
    prompts, zs = problem()
    scorer = CrossScorer(model)
    found = scorer(prompts, zs)
    for ours, theirs in zip(found.tokens, slowly(model, prompts, zs), strict=True):
        assert ours == pytest.approx(theirs, abs=2e-4)
    if name in PACKABLE:
        assert not scorer.plain and not scorer.cost.notes
    if scorer.plain:
        assert "slower" in scorer.cost.notes[0]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("limit", [1, 7, 20, 1000])
def test_any_row_length_gives_the_same_matrix(attention: str, limit: int) -> None:
    model = model_of("llama", attention).double()
    prompts, zs = problem(3)
    scorer = CrossScorer(model, row_tokens=limit)
    found = scorer(prompts, zs)
    assert not scorer.plain
    for ours, theirs in zip(found.tokens, slowly(model, prompts, zs), strict=True):
        # The library's eager attention takes its softmax in float32 whatever the weights are.
        assert ours == pytest.approx(theirs, abs=1e-9 if attention == "sdpa" else 1e-6)


def test_a_wrong_fast_way_is_noticed(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Reasonings that see each other's tokens: the check must find it, and the result must still be right."""
    from vestige.collect import cross as module

    real = module.stretches

    def leaking(row: Any) -> Any:
        return [replace(s, allowed=torch.ones_like(s.allowed)) for s in real(row)]

    monkeypatch.setattr("vestige.collect.cross.stretches", leaking)
    model = model_of("llama")
    prompts, zs = problem()
    scorer = CrossScorer(model)
    with caplog.at_level(logging.WARNING):
        found = scorer(prompts, zs)
    assert scorer.plain and "differ by" in scorer.cost.notes[0]
    for ours, theirs in zip(found.tokens, slowly(model, prompts, zs), strict=True):
        assert ours == pytest.approx(theirs, abs=2e-4)


def test_prompts_and_openings_are_pushed_once() -> None:
    rng = np.random.default_rng(0)
    system, opening = numbers(rng, 40), numbers(rng, 20)
    prompts = [system + numbers(rng, 10) for _ in range(4)]
    zs = [opening + numbers(rng, 5) for _ in range(4)]
    cost = Cost()
    CrossScorer(model_of("llama"), cost=cost)(prompts * 3, zs * 2)
    whole = 4 * 4 * (50 + 25)
    # system once, four prompt ends; under each prompt its last token, the opening once, four ends less their last token
    shared = 40 + 4 * 9 + 4 * (1 + 20 + 4 * 4)
    checked = 2 * (50 + 24)  # at most two cells, the plain way
    assert shared <= cost.score_tokens <= shared + 4 + checked < whole / 2


def test_memory_that_runs_out_halves_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    import vestige.collect.cross as module

    real, failed = module.continue_prompt, []

    def scarce(model: Any, cache: Any, tree: Any, row: Any, plan: Any, scored: Any) -> Any:
        if len(row.nodes) > 16:
            failed.append(len(row.nodes))
            raise MemoryError
        return real(model, cache, tree, row, plan, scored)

    monkeypatch.setattr(module, "continue_prompt", scarce)
    model = model_of("llama")
    prompts, zs = problem()
    scorer = CrossScorer(model)
    found = scorer(prompts, zs)
    assert failed and not scorer.plain and "rows halved" in scorer.cost.notes[0]
    assert found.tokens[2] == pytest.approx(slowly(model, prompts, zs[2:3])[0], abs=2e-4)


def test_ten_thousand_tokens_of_reasoning() -> None:
    """Long reasoning needs no square mask, and agrees with a plain forward."""
    import transformers as hf

    torch.manual_seed(0)
    config = hf.LlamaConfig(
        vocab_size=50, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1, max_position_embeddings=20_000,
    )  # fmt: skip
    model = hf.LlamaForCausalLM(config).eval()
    rng = np.random.default_rng(0)
    z = tuple(int(i) for i in rng.integers(0, 50, 10_000))
    scorer = CrossScorer(model)
    found = scorer([(1, 2, 3), (4, 5, 6)], [z, z[:50]])
    assert not scorer.plain and found.tokens[0].shape == (2, 10_000)
    assert found.tokens[0] == pytest.approx(slowly(model, [(1, 2, 3), (4, 5, 6)], [z])[0], abs=1e-4)
    assert Forest([z], 16).single


def test_temperature() -> None:
    model = model_of("llama").double()
    prompts, zs = problem()
    halved = CrossScorer(model, temperature=0.5)(prompts, zs)
    ids = torch.tensor([prompts[0] + zs[1]])
    with torch.no_grad():
        logp = (model(input_ids=ids).logits[0, len(prompts[0]) - 1 : -1] / 0.5).log_softmax(-1)
    expected = logp[torch.arange(len(zs[1])), torch.tensor(zs[1])].sum()
    assert halved.sums[1, 0] == pytest.approx(float(expected), abs=1e-9)


def test_any_log_prob_function_will_do() -> None:
    """A detector for trainers of another make: padded tensors come back, in batches of the size asked for."""
    sizes = []

    def log_probs(prompts: Any, zs: Any) -> Any:
        sizes.append(len(prompts))
        out = torch.full((len(zs), 64), float("nan"))
        for n, (x, z) in enumerate(zip(prompts, zs, strict=True)):
            out[n, : len(z)] = torch.from_numpy(CrossScorer(tiny("float32"))([x], [z]).tokens[0][0])
        return out

    settings = CollapseSettings(num_samples=6, micro_batch_size=4, multi_turn_enabled=False, resamples=10)
    ours = CollapseDetector(settings, log_prob_fn=log_probs).compute(trajectories("A"), 5)
    theirs = CollapseDetector(settings, CrossScorer(tiny("float32"))).compute(trajectories("A"), 5)
    assert sizes and max(sizes) == 4
    names = [k for k in theirs.metrics if not k.startswith("timing_s/")]
    assert {k: ours.metrics[k] for k in names} == pytest.approx({k: theirs.metrics[k] for k in names}, abs=1e-4)
    with pytest.raises(UserError, match="returned 1 log-probabilities for a reasoning of 3"):
        pairwise_scorer(lambda p, z: [[0.0]])([(1,)], [(1, 2, 3)])


# ---- sampling and the detector ------------------------------------------------------------------------------------


def test_our_draws_lose_nothing_and_repeat() -> None:
    counts = [3, 0, 2, 0, 5]
    rng = lambda step=1: sampling.generator(0, step, "l")  # noqa: E731
    assert sampling.trajectory_turns(counts, None, rng()) == [(m, t) for m, n in enumerate(counts) for t in range(n)]
    drawn = sampling.trajectory_turns(counts, 7, rng())
    assert len(drawn) == 7 and all(t < counts[m] for m, t in drawn)
    assert drawn == sampling.trajectory_turns(counts, 7, rng()) != sampling.trajectory_turns(counts, 7, rng(2))
    assert len(set(sampling.even_turns(counts, 4, rng()))) == 4
    assert sampling.first_turns([1, 0, 2], 5, rng()) == [0, 2]
    assert sampling.trajectory_turns([0, 0], 3, rng()) == []
    many = [m for s in range(300) for m, _ in sampling.trajectory_turns(counts, 9, rng(s))]
    share = np.bincount(many, minlength=5) / len(many)
    assert share == pytest.approx([1 / 3, 0, 1 / 3, 0, 1 / 3], abs=0.05)


def small(prompts: int = 3, samples: int = 2) -> list[Trajectory]:
    rng = np.random.default_rng(0)
    return [
        Trajectory(f"{p}.{k}", (Turn((1, 2, 10 + p), numbers(rng, 6), None, 0, f"{p}.{k}"),))
        for p in range(prompts)
        for k in range(samples)
    ]


def test_without_groups_prompts_are_the_columns() -> None:
    made = CollapseDetector(CollapseSettings(resamples=10), CrossScorer(tiny()))
    outcome = made.compute(small())
    assert outcome.samples[FIRST].cross.sums.shape == (6, 3)
    assert outcome.samples["collapse_trajectory_sample"].cross.sums.shape == (6, 6)
    assert outcome.metrics["collapse_trajectory_sample/n_prompts_distinct"] == 3
    distinct = CollapseDetector(CollapseSettings(resamples=10, columns="distinct"), CrossScorer(tiny()))
    assert distinct.compute(small()).samples["collapse_trajectory_sample"].cross.sums.shape == (6, 3)


def test_errors_are_raised_or_skipped(caplog: pytest.LogCaptureFixture) -> None:
    def broken(prompts: Any, zs: Any) -> Any:
        raise RuntimeError("no GPU today")

    with pytest.raises(RuntimeError):
        CollapseDetector(CollapseSettings(), log_prob_fn=broken).compute(small())
    skipping = CollapseDetector(CollapseSettings(on_error="skip"), log_prob_fn=broken)
    with caplog.at_level(logging.WARNING):
        outcome = skipping.compute(small())
    assert set(outcome.reasons.values()) == {"no GPU today"} and "no GPU today" in caplog.text
    assert outcome.metrics["collapse/first_turn_num_total"] == 6
    with pytest.raises(UserError, match="neither a scorer nor"):
        CollapseDetector().compute(small())


def test_a_nan_model_gives_a_reason() -> None:
    made = CollapseDetector(CollapseSettings(), log_prob_fn=lambda p, z: [[float("nan")] * len(t) for t in z])
    assert "no finite log-probability" in made.compute(small()).reasons[FIRST]

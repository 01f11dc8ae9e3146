"""The samplers against runs of dllm and LLaDA, token for token; and what those do not promise: one sample, one text."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from diffusion_tools import MASK, golden, predictor
from vestige.errors import UserError
from vestige.models.samplers import Pass, Sampled, infill, sample
from vestige.models.samplers.base import even_counts, gumbel_choice, sample_generator, transfer_counts
from vestige.types import IGNORE, Prompt
from vestige.wants import Denoising

RUNS = {run["name"]: run for run in golden()["runs"]}
EXACT = [name for name, run in RUNS.items() if "error" not in run and not name.endswith("_seeded")]


def settings(run: dict[str, Any]) -> Denoising:
    params = dict(run["params"])
    for name in ("cfg_keep_tokens", "suppress_tokens", "begin_suppress_tokens"):
        if name in params:
            params[name] = tuple(params[name])
    params.setdefault("right_shift_logits", False)
    scheduler = "cosine" if "Cosine" in str(run.get("scheduler")) else "linear"
    return Denoising(sampler="bd3lm" if run["sampler"].startswith("BD3") else "mdlm", scheduler=scheduler, **params)


def replay(run: dict[str, Any], **options: Any) -> tuple[list[Sampled], list[Any], list[Pass]]:
    """The run here: its results, the canvas after every pass, every pass."""
    histories: list[Any] = []
    passes: list[Pass] = []
    denoising = settings(run)
    watch = lambda canvas: histories.append(canvas.tolist())  # noqa: E731
    model = predictor(run["model"], options.pop("cached", None))
    if run["call"] == "infill":
        return infill(model, run["prompts"], denoising, passes.append, watch), histories, passes
    prompts = [Prompt(tuple(p)) for p in run["prompts"]]
    return sample(model, prompts, (), denoising, passes.append, watch, together=True), histories, passes


@pytest.mark.parametrize("name", EXACT)
def test_every_deterministic_run_is_reproduced(name: str) -> None:
    run = RUNS[name]
    sampled, histories, passes = replay(run)
    assert histories == run["histories"]
    assert histories[-1] == run["sequences"]
    assert len(passes) == run["num_forward_steps_S"]
    assert [list(s.where) for s in sampled] == run["generated_slices"]
    for one, fixed, sequence in zip(sampled, run["fixation_steps_generated"], run["sequences"], strict=True):
        assert list(one.fixed) == [-1 if f == -2 else f for f in fixed]  # theirs: -2 never, -1 given
        assert list(one.final) == sequence[slice(*one.where)]


@pytest.mark.parametrize("name", [n for n in EXACT if n.startswith("bd3_llama")])
def test_reading_the_prefix_again_is_the_same_as_keeping_it(name: str) -> None:
    assert replay(RUNS[name], cached=False)[1] == RUNS[name]["histories"]


@pytest.mark.parametrize("scheduler", ["linear", "cosine"])
def test_schedules(scheduler: str) -> None:
    for key, counts in golden()["num_transfer_tokens"][scheduler].items():
        masked, steps = map(int, key.split("x"))
        assert transfer_counts(masked, steps, scheduler) == counts, key


def test_llada_schedule() -> None:
    for key, counts in golden()["num_transfer_tokens"]["llada"].items():
        masked, steps = map(int, key.split("x"))
        assert even_counts(masked, steps) == counts, key


def test_the_peers_failures_are_sentences_here() -> None:
    assert RUNS["mdlm_bad_remasking"]["error"] and RUNS["bd3_infill"]["error"]
    # What dllm's MDLM sampler refuses is one of Dream's ways to decide, which here any mask predictor may take.
    assert RUNS["mdlm_bad_remasking"]["params"]["remasking"] == "entropy"
    assert all(MASK not in one.final for one in replay(RUNS["mdlm_bad_remasking"])[0])
    with pytest.raises(UserError, match="bd3lm cannot fill gaps"):
        replay(RUNS["bd3_infill"])
    uneven = Denoising(schedule="llada", steps=7, max_new_tokens=11, block_size=4)
    with pytest.raises(UserError, match="divide evenly"):
        sample(predictor(), [Prompt((10, 11, 12))], (), uneven)
    with pytest.raises(UserError, match="token 64 is not among the model's 64"):
        sample(predictor(), [Prompt((10,))], (), Denoising(suppress_tokens=(64,)))
    with pytest.raises(UserError, match="first label stream"):
        sample(predictor(), [Prompt((10,))], (), Denoising(mode="guided_native"))


PROMPTS = [Prompt(p) for p in ((20,), (21, 22, 23, 24), (30, 31, 32, 33, 34, 35), (40, 41), (20, 21, 22))]
SETTINGS = {
    "mdlm": Denoising(steps=5, max_new_tokens=9, block_size=5),
    "mdlm cfg": Denoising(steps=5, max_new_tokens=9, cfg_scale=1.0, cfg_keep_tokens=(21,)),
    "mdlm random": Denoising(steps=5, max_new_tokens=9, remasking="random"),
    "mdlm hot": Denoising(steps=5, max_new_tokens=9, temperature=1.0),
    "mdlm drawn": Denoising(steps=5, max_new_tokens=9, stochastic_transfer=True, temperature=0.5),
    "bd3lm": Denoising("bd3lm", steps=8, max_new_tokens=10, block_size=4),
    "bd3lm cfg shift": Denoising("bd3lm", steps=8, max_new_tokens=10, block_size=4, cfg_scale=0.5,
                                 right_shift_logits=True),
    "bd3lm drawn": Denoising("bd3lm", steps=8, max_new_tokens=10, block_size=4, stochastic_transfer=True,
                             temperature=1.0, remasking="random"),
}  # fmt: skip


def alone(name: str, denoising: Denoising) -> list[Sampled]:
    return [sample(predictor(name), [p], (), denoising)[0] for p in PROMPTS]


def same(a: Sampled, b: Sampled) -> bool:
    """All but the columns, which depend on the padding."""
    return (a.final, a.fixed, a.passes) == (b.final, b.fixed, b.passes)


@pytest.mark.parametrize("case", SETTINGS)
@pytest.mark.parametrize("name", ["tiny-mdlm", "tiny-mdlm-eosprone", "tiny-bd3lm-llama"])
def test_a_sample_does_not_depend_on_its_batch(name: str, case: str) -> None:
    denoising = SETTINGS[case]
    single = alone(name, denoising)
    batch = sample(predictor(name), PROMPTS, (), denoising)
    assert all(same(a, b) for a, b in zip(batch, single, strict=True))
    backwards = sample(predictor(name), PROMPTS[::-1], (), denoising)[::-1]
    assert all(same(a, b) for a, b in zip(backwards, single, strict=True))


@pytest.mark.parametrize("case", ["mdlm random", "mdlm hot", "mdlm drawn", "bd3lm drawn"])
def test_the_seed_matters_and_repeats(case: str) -> None:
    from dataclasses import replace

    one = SETTINGS[case]
    first, again, other = (alone("tiny-mdlm", d) for d in (one, one, replace(one, seed=1)))
    assert first == again
    assert first != other


def test_temperature_draws_from_the_distribution() -> None:
    """Gumbel noise at temperature 1 gives softmax probabilities; large logits overflow nothing."""
    logits = torch.tensor([0.0, 1.0, 2.0]) + 800
    draws = gumbel_choice(logits.expand(20000, 3), 1.0, sample_generator(0, ()))
    share = torch.bincount(draws, minlength=3) / 20000
    assert torch.allclose(share, logits.softmax(0), atol=0.015)  # over four standard errors


INF, NAN = float("inf"), float("nan")
LARGE = 6000  # tokens: more than base.SMALL_VOCABULARY


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("temperature", [1e-6, 0.3, 1.0, 50.0])
def test_ruling_cells_out_changes_no_choice(temperature: float, dtype: torch.dtype) -> None:
    """Flat and peaked rows, suppressed tokens, rows of nothing else, ties, infinities and what is not a number."""
    draw = torch.Generator().manual_seed(1)
    rows = [torch.randn(LARGE, generator=draw) * scale + shift for scale in (0.0, 0.01, 1, 8) for shift in (0, -900)]
    odd = {"suppressed": (slice(100, 5000), -INF), "nothing": (slice(None), -INF), "sure": (7, INF), "broken": (9, NAN)}
    for where, value in odd.values():
        row = rows[4].clone()
        row[where] = value
        rows.append(row)
    logits = torch.stack(rows).to(dtype)
    ours, plain = (sample_generator(2, (3, 4)) for _ in range(2))
    for _ in range(5):
        u = torch.rand(logits.shape, dtype=torch.float64, generator=plain)
        expected = (logits.double() - temperature * torch.log(-torch.log(u))).argmax(dim=-1)
        assert gumbel_choice(logits, temperature, ours).tolist() == expected.tolist()
    assert torch.equal(ours.get_state(), plain.get_state())  # what is drawn next is the same, too


TARGET = (50, 51, IGNORE, 53, 54, IGNORE)


@pytest.mark.parametrize("sampler", ["mdlm", "bd3lm"])
def test_guided_modes_write_the_target(sampler: str) -> None:
    base = {"sampler": sampler, "steps": 6, "max_new_tokens": 6, "block_size": 6}
    passes: dict[str, list[Pass]] = {"guided_native": [], "guided_skew": []}
    for mode, seen in passes.items():
        one = sample(predictor(), [Prompt((10, 11, 12))], [[TARGET]], Denoising(mode=mode, **base), seen.append)[0]
        assert all(t in (IGNORE, got) for t, got in zip(TARGET, one.final, strict=True))
        assert sorted(one.fixed) == list(range(6))
        first = seen[0]
        probability = first.logits.softmax(-1)
        label = torch.tensor([p if t == IGNORE else t for t, p in zip(TARGET, first.proposal.tolist(), strict=True)])
        wanted = first.logits.argmax(-1) if mode == "guided_native" else label
        surest = probability.gather(-1, wanted[:, None])[:, 0].argmax()
        assert one.fixed[int(surest)] == 0, mode


@pytest.mark.parametrize("case", ["bd3lm", "bd3lm cfg shift", "bd3lm drawn"])
def test_a_kept_prefix_says_the_same_also_shifted_and_with_ended_rows(case: str) -> None:
    """Guidance, shift and rows that leave early: keeping keys and values changes nothing."""
    runs = []
    for cached in (True, False):
        seen: list[torch.Tensor] = []
        got = sample(
            predictor("tiny-bd3lm-llama", cached), PROMPTS, (), SETTINGS[case], lambda p, s=seen: s.append(p.logits)
        )
        runs.append((got, torch.cat(seen)))
    assert runs[0][0] == runs[1][0]
    assert torch.allclose(runs[0][1], runs[1][1], atol=1e-4)


@pytest.mark.parametrize("sampler", ["mdlm", "bd3lm"])
def test_guidance_away_from_a_prompt_that_stays_visible_changes_nothing(sampler: str) -> None:
    prompt = (13, 14, 15)
    base = {"sampler": sampler, "steps": 6, "max_new_tokens": 6, "block_size": 3}
    plain, kept, guided = (
        sample(predictor(), [Prompt(prompt)], (), Denoising(**base, **more))[0]
        for more in ({}, {"cfg_scale": 2.0, "cfg_keep_tokens": prompt}, {"cfg_scale": 2.0})
    )
    assert plain == kept != guided


@pytest.mark.parametrize("block", [None, 3])
def test_infilling_a_row_does_not_depend_on_its_batch(block: int | None) -> None:
    texts = [(10, 4, 12, 4, 4, 15, 4, 17, 4, 4), (20, 21, 4, 23), (4, 4, 4), (30, 31)]
    denoising = Denoising(steps=6, block_size=block, stochastic_transfer=block is not None)
    batch = infill(predictor(), texts, denoising)
    for text, one in zip(texts, batch, strict=True):
        assert one == infill(predictor(), [text], denoising)[0]
        assert all(t in (MASK, got) for t, got in zip(text, one.final, strict=True))
        assert MASK not in one.final and len({f for f in one.fixed if f >= 0}) == one.passes
    assert batch[3].passes == 0  # nothing to fill, nothing run

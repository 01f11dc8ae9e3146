"""Teacher forcing: the packed way, the plain way and one forward per answer give the same numbers."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch

from collect_tools import ARCHITECTURES, EAGER_ONLY, PACKABLE, VOCAB, family, model_of, numbers, one_by_one
from conftest import LAB
from vestige.collect import answers, forward
from vestige.collect.answers import AnswerCollector, distinct
from vestige.collect.backend import Cost
from vestige.collect.tree import Limits
from vestige.types import Target, TokenStats

MODELS = [(n, a) for n in ARCHITECTURES for a in ("eager", "sdpa") if not (a == "sdpa" and n in EAGER_ONLY)]


def collector(model: Any, tokens: int = 64, plain: bool = False, row: int = 48) -> AnswerCollector:
    return AnswerCollector(model, VOCAB, Limits(tokens, 10**7, row), Cost(), plain)


def collect(made: AnswerCollector, targets: Iterable[Target], done: frozenset[str] = frozenset()) -> dict[str, Any]:
    out: dict[str, TokenStats] = {}
    for result in made.run(list(targets), done):
        assert not set(result) & set(out), "answered twice"
        out |= result
    return out


def agree(model: Any, got: dict[str, TokenStats], targets: Iterable[Target], atol: float = 1e-5) -> None:
    for target in targets:
        want, stats = one_by_one(model, target), got[target.key]
        assert stats.label.tolist() == list(target.labels)
        assert stats.top1.tolist() == want["top1"].tolist()
        assert stats.order.tolist() == list(range(len(target.labels)))
        assert stats.steps == len(target.labels)
        for name in ("logprob", "mean", "std"):
            np.testing.assert_allclose(getattr(stats, name), want[name], rtol=2e-5, atol=atol, err_msg=name)


@pytest.fixture(scope="module")
def llama() -> Any:
    return model_of("llama")


@pytest.mark.parametrize(("name", "attention"), MODELS)
@pytest.mark.parametrize("stretch", [forward.STRETCH, 16])  # rows here have 48 tokens: in one piece, and in three
def test_equals_one_forward_per_answer(
    name: str, attention: str, stretch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward, "STRETCH", stretch)
    model, targets = model_of(name, attention), family()
    for plain in (False, True):
        made = collector(model, plain=plain)
        agree(model, collect(made, targets), targets, atol=3e-5 if name == "mamba" else 1e-5)
        if not plain:
            assert made.plain == (name not in PACKABLE), made.cost.notes
            assert bool(made.cost.notes) == made.plain  # a fall back is said


@pytest.mark.parametrize("name", ["mistral-window", "gemma2", "gemma3"])
def test_a_window_nobody_exceeds_is_packed(name: str) -> None:
    model, targets = model_of(name), [Target(t.ids[6:14], 5) for t in family()]
    made = collector(model)
    agree(model, collect(made, targets), targets)
    assert not made.plain


@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen3", "phi", "bloom", "mistral-window", "opt"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_hidden_tokens_are_masked_and_keep_their_positions(name: str, attention: str) -> None:
    model = model_of(name, attention)
    open_ = family(1)
    last = [Target(t.ids, t.start, (2, 9, t.start - 1, len(t.ids) - 1)) for t in open_]  # the last of the prompt, too
    targets = [*family(1, hidden=(1, 4, 5)), *last, *open_]
    got = collect(collector(model), targets)
    agree(model, got, targets)
    one, other = got[targets[0].key], got[targets[-len(open_)].key]
    assert np.abs(one.logprob - other.logprob).max() > 1e-3  # hiding matters to these models


@pytest.mark.parametrize("plain", [False, True])
def test_the_same_numbers_at_any_budget(llama: Any, plain: bool) -> None:
    targets = family(2) + [Target(t.ids[3:], t.start - 3) for t in family(3)]
    values = [collect(collector(llama, n, plain, row=max(n, 4)), targets) for n in (1, 7, 32, 200, 10**6)]
    for other in values[1:]:
        assert set(other) == set(values[0])
        for key, stats in values[0].items():
            np.testing.assert_array_equal(stats.top1, other[key].top1)
            for name in ("logprob", "mean", "std"):
                np.testing.assert_allclose(getattr(stats, name), getattr(other[key], name), rtol=2e-5, atol=1e-5)


def test_nan_weights_give_nan_and_no_choice() -> None:
    model, targets = model_of("llama"), family()
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[0, 0] = float("nan")
    for plain in (False, True):
        made = collector(model, plain=plain)
        for stats in collect(made, targets).values():
            assert np.isnan(stats.logprob).all()
            assert np.isnan(stats.mean).all()
            assert np.isnan(stats.std).all()
            assert (stats.top1 == -1).all()
            assert not stats.hit.any()
        assert made.cost.notes == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_is_reduced_in_float32(dtype: torch.dtype) -> None:
    with torch.backends.mkldnn.flags(enabled=False):
        model, targets = model_of("llama", scale=2.0).to(dtype), family()
        made = collector(model)
        got = collect(made, targets)
        assert not made.plain, made.cost.notes
        for target in targets:
            want = one_by_one(model, target)
            np.testing.assert_allclose(got[target.key].logprob, want["logprob"], atol=0.1)
            assert got[target.key].logprob.dtype == np.float32


# ---- memory ---------------------------------------------------------------------------------------------------


def breaking(monkeypatch: pytest.MonkeyPatch, name: str, at: set[int], error: Exception) -> list[int]:
    """Makes the listed calls of a scorer fail; returns the list of batch sizes seen."""
    real, calls = getattr(forward, name), [0]

    def scorer(model: Any, *args: Any) -> Any:
        calls[0] += 1
        if calls[0] in at:
            raise error
        return real(model, *args)

    monkeypatch.setattr(answers, name, scorer)
    return calls


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA"), RuntimeError("[enforce] can't allocate memory: 3")])
def test_out_of_memory_halves_the_budget_and_answers_the_rest(
    llama: Any, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets = family(5, questions=6)
    breaking(monkeypatch, "score_packed", {3, 5}, error)  # the first call is the self check
    made = collector(llama, tokens=96)
    got = collect(made, targets)
    assert set(got) == {t.key for t in targets}
    agree(llama, got, targets)
    assert [n.split(" to ")[1].split(" tokens")[0] for n in made.cost.notes] == ["48", "24"]


# ---- resuming -------------------------------------------------------------------------------------------------


def test_done_jobs_are_skipped_and_the_rest_repeats_byte_for_byte(llama: Any) -> None:
    targets = family(6, questions=6)
    parts = list(collector(llama).run(targets))
    assert len(parts) > 3
    for cut in range(len(parts) + 1):
        done = frozenset(k for part in parts[:cut] for k in part)
        made = collector(llama)
        rest = list(made.run(targets, done))
        assert [set(p) for p in rest] == [set(p) for p in parts[cut:]]
        for mine, first in zip(rest, parts[cut:], strict=True):
            for key in mine:
                assert mine[key].logprob.tobytes() == first[key].logprob.tobytes()
        assert made.cost.score_forwards == len(parts) - cut


# ---- verification ---------------------------------------------------------------------------------------------


class Deaf(torch.nn.Module):
    """A model that does not listen to one of its arguments."""

    def __init__(self, model: Any, ignores: str) -> None:
        super().__init__()
        self.inner, self.ignores = model, ignores
        self.config, self.device, self.dtype = model.config, model.device, model.dtype

    def get_output_embeddings(self) -> Any:
        return self.inner.get_output_embeddings()

    def forward(self, **inputs: Any) -> Any:
        packed = inputs["attention_mask"].ndim == 4
        if self.ignores == "position_ids":
            inputs.pop("position_ids", None)
        elif packed:  # the tree mask only: plain causal attention instead
            inputs["attention_mask"] = None
        return self.inner(**inputs)


@pytest.mark.parametrize("ignores", ["position_ids", "attention_mask"])
def test_verification_sees_what_a_model_ignores(ignores: str) -> None:
    """Also when the longest answer shares its prompt with nobody."""
    rng = np.random.default_rng(0)
    lone = Target(numbers(rng, 60), 30)
    for targets in (family(), [lone, *family()]):
        model = Deaf(model_of("llama"), ignores)
        made = collector(model)
        agree(model.inner, collect(made, targets), targets)
        assert made.plain
        assert "packed scoring" in made.cost.notes[0]


def test_adapters_work() -> None:
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj", "lm_head"], init_lora_weights=False)
    model = peft.get_peft_model(model_of("llama"), config).eval()
    targets = family()
    made = collector(model)
    agree(model, collect(made, targets), targets)
    assert not made.plain, made.cost.notes


# ---- bfloat16 -------------------------------------------------------------------------------------------------


class Clumsy(Deaf):
    """Its packed way is wrong in a way that is told to it: a mask or positions that do not belong to the row."""

    def forward(self, **inputs: Any) -> Any:
        ids = inputs["input_ids"]
        if inputs["attention_mask"].ndim == 4:
            wrong = {"mask": ("attention_mask", None), "positions": ("position_ids", torch.arange(ids.shape[1])[None])}
            name, value = wrong[self.ignores]
            inputs[name] = value
        return self.inner(**inputs)


def lab_model() -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(LAB / "models" / "full").eval()


def lab_targets() -> list[Target]:
    from transformers import AutoTokenizer

    from vestige.data.chat import Encoder, Template

    encoder = Encoder(AutoTokenizer.from_pretrained(LAB / "models" / "full"), Template())
    rows = [json.loads(line) for line in (LAB / "data" / "forget.jsonl").read_text().splitlines()[:4]]
    pairs = [(r["question"], a) for r in rows for a in (r["answer"], r["paraphrased_answer"], *r["perturbed_answer"])]
    return [Target(tuple(e.full), e.start) for e in encoder.encode(pairs)]


def test_bfloat16_keeps_packing_and_sees_errors() -> None:
    """A trained model in bfloat16: packed as it is; a wrong mask and wrong positions are found."""
    model, targets = lab_model().to(torch.bfloat16), lab_targets()
    made = collector(model)
    made.verify(distinct(targets))
    assert not made.plain, made.cost.notes
    for wrong in ("mask", "positions"):
        made = collector(Clumsy(model, wrong))
        made.verify(distinct(targets))
        assert made.plain, wrong

"""Generation: the texts of HF's own generate, one prompt at a time, whatever shares the batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from transformers import MambaForCausalLM

from collect_tools import ARCHITECTURES, VOCAB, model_of, numbers
from vestige.collect import texts
from vestige.collect.answers import AnswerCollector
from vestige.collect.backend import Cost
from vestige.collect.known_prefix import known_prefixes
from vestige.collect.next_token import Chooser, pick
from vestige.collect.texts import TextCollector
from vestige.collect.tree import Limits
from vestige.models.kv_cache import SlotCache
from vestige.types import Prompt, Target, Text
from vestige.wants import Decoding, Request

NO_EOS: frozenset[int] = frozenset()


def letters(batch: Sequence[Sequence[int]]) -> list[str]:
    """A detokeniser: each token is one letter."""
    return ["".join(chr(0x100 + i) for i in ids) for ids in batch]


def collector(model: Any, eos: Iterable[int] = (), **options: Any) -> TextCollector:
    return TextCollector(model, letters, frozenset(eos), "", Cost(), **options)


def collect(
    made: TextCollector,
    requests: Sequence[Request],
    proven: Mapping[str, Sequence[int]] | None = None,
    done: frozenset[str] = frozenset(),
) -> dict[str, Text]:
    out: dict[str, Text] = {}
    for result in made.run(requests, proven or {}, done):
        assert not set(result) & set(out), "generated twice"
        out |= result
    fallen = [note for note in made.cost.notes if "without a cache" in note]
    # The plain way would hide a fault of the cached way from every test below.
    assert bool(fallen) == (isinstance(made.model, (Broken, MambaForCausalLM))), fallen
    return out


def prompts(seed: int = 0, lengths: Sequence[int] = (5, 17, 9, 9, 24, 13)) -> list[Prompt]:
    rng = np.random.default_rng(seed)
    return [Prompt(numbers(rng, n)) for n in lengths]


def asking(given: Iterable[Prompt], **decoding: Any) -> list[Request]:
    settings = Decoding(**{"max_new_tokens": 12, **decoding})
    return [Request(p, settings) for p in given]


def generated(model: Any, prompt: Prompt, eos: Sequence[int] = (), **options: Any) -> tuple[int, ...]:
    ids = torch.tensor([prompt.ids])
    mask = torch.ones_like(ids)
    mask[0, list(prompt.hidden)] = 0
    settings = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0, "eos_token_id": list(eos) or None}
    out = model.generate(ids, attention_mask=mask, **{**settings, **options})
    return tuple(out[0, len(prompt.ids) :].tolist())


@pytest.fixture(scope="module")
def llama() -> Any:
    model = model_of("llama")
    model.generation_config.eos_token_id = None
    return model


# ---- greedy ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_equals_generate(name: str) -> None:
    model = model_of(name)
    model.generation_config.eos_token_id = None
    requests = asking(prompts())
    made = collector(model)
    got = collect(made, requests)
    for r in requests:
        assert got[r.key].ids == generated(model, r.prompt), len(r.prompt.ids)
    assert len({got[r.key].ids for r in requests}) > 3  # the prompts matter to these models
    assert made.plain == (name == "mamba"), made.cost.notes  # a recurrent state is no key/value cache
    assert bool(made.cost.notes) == made.plain


@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral-window", "gemma2"])
def test_hidden_tokens_are_masked_and_take_no_position(name: str) -> None:
    model = model_of(name)
    model.generation_config.eos_token_id = None
    hidden = [Prompt(p.ids, h) for p in prompts() for h in ((0,), (1, 3), (0, 1, 2))]
    requests = asking([*hidden, *prompts()])
    got = collect(collector(model), requests)
    for r in requests:
        assert got[r.key].ids == generated(model, r.prompt), r.prompt.hidden
    assert any(got[a.key].ids != got[b.key].ids for a, b in zip(requests[::3], requests[-6:], strict=False))


@pytest.mark.parametrize("prefill", [1, 40, 4096])
def test_the_same_texts_for_any_batch(llama: Any, prefill: int) -> None:
    requests = [*asking(prompts()), *asking(prompts(1), max_new_tokens=3), *asking(prompts(2), max_new_tokens=1)]
    want = {r.key: generated(llama, r.prompt, max_new_tokens=r.decoding.max_new_tokens) for r in requests}
    for rows in (1, 3, 100):
        made = collector(llama, max_rows=rows, limits=Limits(prefill, 10**7, prefill))
        got = collect(made, requests[::-1])
        assert {k: t.ids for k, t in got.items()} == want
        assert not made.plain
    columns = collector(llama, max_columns=60)
    assert {k: t.ids for k, t in collect(columns, requests).items()} == want
    for batch in columns.batches(requests):
        assert len(batch) == 1 or len(batch) * min(len(r.prompt.ids) + r.decoding.max_new_tokens for r in batch) <= 60


@pytest.mark.parametrize("penalty", [1.3, 0.8])
def test_repetition_penalty_equals_generate(llama: Any, penalty: float) -> None:
    requests = asking(prompts(), repetition_penalty=penalty)
    got = collect(collector(llama), requests)
    for r in requests:
        assert got[r.key].ids == generated(llama, r.prompt, repetition_penalty=penalty)
    plain = asking(prompts())
    free = collect(collector(llama), plain)
    assert any(free[a.key].ids != got[b.key].ids for a, b in zip(plain, requests, strict=True))


# ---- stop words -----------------------------------------------------------------------------------------------


def test_a_stop_word_over_several_tokens_ends_and_cuts_the_text(llama: Any) -> None:
    whole = {r.prompt: t for r, t in zip(asking(prompts()), _texts(llama, asking(prompts())), strict=True)}
    word = next(iter(whole.values())).text[3:6]
    requests = asking(prompts(), stopwords=("never there", word))
    got = collect(collector(llama), requests)
    for r in requests:
        text = whole[r.prompt].text
        assert got[r.key].text == text.split(word)[0]
        cut = text.index(word) + len(word) if word in text else len(text)
        assert got[r.key].ids == whole[r.prompt].ids[:cut]
    assert len(got[requests[0].key].ids) <= 6


def _texts(model: Any, requests: Sequence[Request]) -> list[Text]:
    got = collect(collector(model), requests)
    return [got[r.key] for r in requests]


# ---- proven prefixes ------------------------------------------------------------------------------------------


def scored(model: Any, targets: Sequence[Target]) -> list[tuple[Target, Any]]:
    found: dict[str, Any] = {}
    for result in AnswerCollector(model, VOCAB, Limits(256, 10**7, 256), Cost()).run(targets):
        found |= result
    return [(t, found[t.key]) for t in targets]


def prove_from(requests: Sequence[Request], known: Sequence[tuple[Target, Any]], eos: frozenset[int]) -> Any:
    return known_prefixes(requests, [t for t, _ in known], {t.key: seen for t, seen in known}, eos)


def references(model: Any, given: Sequence[Prompt]) -> list[Target]:
    """For each prompt several answers that the model agrees with for a while: 0, 4 and 9 tokens."""
    out = []
    for prompt, text in zip(given, _texts(model, asking(given)), strict=True):
        for right in (0, 4, 9):
            wrong = (text.ids[right] + 1) % VOCAB
            out.append(Target((*prompt.ids, *text.ids[:right], wrong, 5, 6), len(prompt.ids)))
    return out


def test_what_teacher_forcing_showed_is_not_decoded_again(llama: Any) -> None:
    given = prompts()
    known = scored(llama, references(llama, given))
    requests = asking(given)
    proven = prove_from(requests, known, NO_EOS)
    scratch, helped = collector(llama), collector(llama)
    want, got = collect(scratch, requests), collect(helped, requests, proven)
    for r in requests:
        assert got[r.key].ids == want[r.key].ids
        assert got[r.key].text == want[r.key].text
        assert got[r.key].proven == 10  # nine right and the first choice at the miss
    assert helped.cost.tokens_proven == 10 * len(requests)
    assert helped.cost.decode_row_steps == len(requests)  # 12 tokens: 10 known, 1 from the prefill, 1 step
    assert scratch.cost.decode_row_steps == 11 * len(requests)


HIDING = [(1,), (), (0, 2), (3, 4, 5), (1,), (0,)]


@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize("tokens", [30, 4096])
def test_a_draft_is_confirmed_where_tokens_are_hidden(name: str, tokens: int) -> None:
    """Scoring hides nothing, generation does: its texts part from the draft where they part, and cost less."""
    model = model_of(name)
    model.generation_config.eos_token_id = None
    given = [Prompt(p.ids, h) for p, h in zip(prompts(), HIDING, strict=True)]
    # Answers that the model gives with hidden tokens are drafts that hold; those of its open eyes hold for a while.
    held = references(model, given[::2])
    wrong = references(model, [Prompt(p.ids) for p in given[1::2]])
    requests = asking(given)
    drafts = {**{r.key: list(t.ids[t.start :][:9]) for r, t in zip(requests[::2], held[2::3], strict=True)}}
    drafts |= {r.key: list(t.ids[t.start :][:9]) for r, t in zip(requests[1::2], wrong[2::3], strict=True)}
    scratch, helped = collector(model), collector(model, limits=Limits(tokens, 10**7, tokens))
    want = collect(scratch, requests)
    got = {k: t for part in helped.run(requests, {}, frozenset(), drafts) for k, t in part.items()}
    assert not [n for n in helped.cost.notes if "cache" in n]
    assert {k: (t.ids, t.text) for k, t in got.items()} == {k: (t.ids, t.text) for k, t in want.items()}
    assert [got[r.key].proven for r in requests[::2]] == [9] * 3
    assert [want[r.key].ids for r in requests] == [generated(model, r.prompt) for r in requests]
    saved = sum(t.proven for t in got.values())
    assert saved >= 27
    assert helped.cost.decode_row_steps == scratch.cost.decode_row_steps - saved


# ---- sampling -------------------------------------------------------------------------------------------------


def test_sampling_is_reproducible_and_independent_of_the_batch(llama: Any) -> None:
    requests = asking(prompts(0, range(4, 14)), do_sample=True, temperature=3.0)
    mixed = [*requests, *asking(prompts()), *asking(prompts(), do_sample=True, temperature=3.0, seed=1)]
    first = collect(collector(llama), requests)
    for rows in (1, 3, 100):
        again = collect(collector(llama, max_rows=rows), mixed[::-1])
        assert all(again[k].ids == first[k].ids for k in first)
    for r in asking(prompts()):  # greedy rows between sampled ones stay greedy
        assert again[r.key].ids == generated(llama, r.prompt)
    other = asking(prompts(0, range(4, 14)), do_sample=True, temperature=3.0, seed=1)
    second = collect(collector(llama), other)
    assert sum(first[a.key].ids != second[b.key].ids for a, b in zip(requests, other, strict=True)) > 5


@pytest.mark.parametrize(
    "settings",
    [{}, {"temperature": 2.0}, {"top_k": 4}, {"top_p": 0.6}, {"temperature": 0.5, "top_k": 5, "top_p": 0.9}],
)
@pytest.mark.parametrize("penalty", [1.0, 1.5])
def test_draws_follow_the_distribution_of_hfs_processors(settings: dict[str, Any], penalty: float) -> None:
    from transformers import generation as hf

    torch.manual_seed(0)
    scores, seen = torch.randn(12), [2, 5, 5]
    steps: list[Any] = [hf.RepetitionPenaltyLogitsProcessor(penalty)]
    steps.append(hf.TemperatureLogitsWarper(settings.get("temperature", 1.0)))
    if "top_k" in settings:
        steps.append(hf.TopKLogitsWarper(settings["top_k"]))
    if "top_p" in settings:
        steps.append(hf.TopPLogitsWarper(settings["top_p"]))
    want = hf.LogitsProcessorList(steps)(torch.tensor([seen]), scores[None].clone()).softmax(-1)[0].numpy()
    noise, count = torch.Generator().manual_seed(1), 3000
    decoding = Decoding(do_sample=True, **settings)
    drawn = pick(scores.expand(count, -1), [Chooser(decoding, penalty, seen, noise)] * count).numpy()
    share = np.bincount(drawn, minlength=12) / count
    assert (share[want == 0] == 0).all()
    assert np.abs(share - want).max() < 4 * np.sqrt(0.25 / count)


# ---- falling back ---------------------------------------------------------------------------------------------


class Broken(torch.nn.Module):
    """A model whose cached way goes wrong, and only that."""

    def __init__(self, model: Any, how: str) -> None:
        super().__init__()
        self.inner, self.how = model, how
        self.config, self.device, self.dtype = model.config, model.device, model.dtype
        self.generation_config = model.generation_config

    def get_output_embeddings(self) -> Any:
        return self.inner.get_output_embeddings()

    def forward(self, **inputs: Any) -> Any:
        cache = inputs.get("past_key_values")
        if cache is not None:
            if self.how == "raises":
                raise TypeError("no cache here")
            if self.how == "positions" and inputs["input_ids"].shape[1] == 1:
                inputs["position_ids"] = inputs["position_ids"] * 0
            if self.how == "padding":
                inputs["attention_mask"] = None
        return self.inner(**inputs)


@pytest.mark.parametrize("how", ["raises", "positions", "padding"])
@pytest.mark.parametrize("sampled", [False, True])
def test_a_broken_cache_is_noticed_and_the_plain_way_used(llama: Any, how: str, sampled: bool) -> None:
    requests = asking(prompts(), do_sample=sampled, temperature=2.0)
    want = collect(collector(llama), requests)
    made = collector(Broken(llama, how))
    got = collect(made, requests)
    assert {k: t.ids for k, t in got.items()} == {k: t.ids for k, t in want.items()}
    assert made.plain
    assert "generating without a cache" in made.cost.notes[0]


def test_out_of_memory_takes_fewer_rows(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real = texts.logits_at

    def limited(model: Any, index: Any, **inputs: Any) -> Any:
        if isinstance(inputs.get("past_key_values"), SlotCache) and len(inputs["input_ids"]) > 2:
            raise torch.OutOfMemoryError("too many")
        return real(model, index, **inputs)

    monkeypatch.setattr(texts, "logits_at", limited)
    requests = asking(prompts())
    made = collector(llama)
    got = collect(made, requests)
    assert [got[r.key].ids for r in requests] == [generated(llama, r.prompt) for r in requests]
    assert not made.plain
    assert [n.split(" texts")[0][-1] for n in made.cost.notes] == ["3", "1"]

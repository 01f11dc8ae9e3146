"""Gradient norms against autograd by hand; the model comes back as it went in. And the text classifier."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from collect_tools import family, model_of
from models_tools import tiny_tokenizer
from vestige.collect.backend import Cost
from vestige.collect.gradients import gradient_norms
from vestige.types import Target
from vestige.wants import ClassifierWant


def score(model: Any, target: Target, p: float = 2.0, drop_last: bool = False, train: bool = False) -> float:
    ((key, norm),) = gradient_norms(model, [target], p, drop_last, train, Cost())
    assert key == target.key
    return norm


def by_hand(model: Any, target: Target, p: float, drop_last: bool) -> float:
    """torch.autograd.grad of the mean negative log-probability, written out token by token."""
    ids, mask = torch.tensor([target.ids]), torch.ones((1, len(target.ids)), dtype=torch.long)
    mask[0, list(target.hidden)] = 0
    logp = model(input_ids=ids, attention_mask=mask).logits[0].log_softmax(dim=-1)
    last = len(target.ids) - drop_last
    loss = -sum(logp[i - 1, target.ids[i]] for i in range(target.start, last)) / (last - target.start)
    grads = torch.autograd.grad(loss, list({id(w): w for w in model.parameters()}.values()))
    sizes = {1.0: lambda g: g.abs().sum(), 2.0: lambda g: (g * g).sum().sqrt()}
    return float(np.mean([float(sizes.get(p, lambda g: g.abs().max())(g)) for g in grads]))


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma"])  # the last two tie their embeddings
@pytest.mark.parametrize("p", [1.0, 2.0, float("inf")])
@pytest.mark.parametrize("drop_last", [False, True])
def test_equals_autograd(name: str, p: float, drop_last: bool) -> None:
    model = model_of(name, scale=1.0)
    for target in [*family()[::5], family(1, hidden=(0, 3))[0]]:
        want = by_hand(model, target, p, drop_last)
        assert score(model, target, p, drop_last) == pytest.approx(want, rel=2e-5)


def test_the_model_comes_back_as_it_went_in() -> None:
    model = model_of("llama").train()
    model.model.layers[0].eval()  # a part of its own mode
    model.model.embed_tokens.requires_grad_(False)
    weight = model.lm_head.weight
    weight.grad = torch.ones_like(weight)  # a training step in progress
    held = weight.grad
    modes = [m.training for m in model.modules()]
    wanted = [p.requires_grad for p in model.parameters()]
    with torch.no_grad():
        for _ in gradient_norms(model, family()[:2], 2.0, False, False, Cost()):
            assert not torch.is_grad_enabled()  # the caller's own mode, also between two scores
            assert [m.training for m in model.modules()] == modes
    assert [m.training for m in model.modules()] == modes
    assert [p.requires_grad for p in model.parameters()] == wanted
    assert weight.grad is held
    assert torch.equal(held, torch.ones_like(weight))
    assert all(p.grad is None for p in model.parameters() if p is not weight)


def test_train_mode_means_live_dropout_the_same_each_time() -> None:
    model, target = model_of("gpt2"), family()[0]  # dropout 0.1
    quiet = score(model, target)
    live = score(model, target, train=True)
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    assert score(model, target, train=True) == live  # a resumed run finds the same number
    assert torch.equal(before, torch.random.get_rng_state())
    assert live != pytest.approx(quiet, rel=1e-4)
    assert score(model, target) == quiet


def test_adapters_count_with_the_weights_they_sit_on() -> None:
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    model = peft.get_peft_model(model_of("llama", scale=1.0), config).eval()
    wanted = [p.requires_grad for p in model.parameters()]
    target = family()[0]
    got = score(model, target)
    assert [p.requires_grad for p in model.parameters()] == wanted
    model.requires_grad_(True)
    assert got == pytest.approx(by_hand(model, target, 2.0, False), rel=2e-5)


# ---- the text classifier --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Any:
    import transformers as hf

    from vestige.collect.classifier import Classifier

    place: Path = tmp_path_factory.mktemp("classifier")
    torch.manual_seed(0)
    config = hf.GPT2Config(vocab_size=320, n_embd=16, n_layer=1, n_head=2, n_positions=64, num_labels=3)
    hf.GPT2ForSequenceClassification(config).save_pretrained(place)
    tiny_tokenizer().save_pretrained(place)
    return Classifier(str(place))


def test_a_text_is_classified_as_if_it_were_alone(classifier: Any) -> None:
    """Texts of different lengths and with different max_length share nothing but the model."""
    texts = ["the cat", "a dog ate the small cat and forgot it today", "mat", "what did the dog forget " * 3]
    wants = [ClassifierWant(t, "m", c, n) for t in texts for c in (0, 2) for n in (3, 50)]
    got: dict[str, float] = {}
    for result in classifier.run(wants):
        got |= result
    for w in wants:
        ids = classifier.tokenizer(w.text)["input_ids"][: w.max_length]
        with torch.no_grad():
            want = classifier.model(input_ids=torch.tensor([ids])).logits.softmax(-1)[0, w.class_id]
        assert got[w.key] == pytest.approx(float(want), abs=1e-6), w

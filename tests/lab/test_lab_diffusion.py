"""A very small lab of masked diffusion models builds, says what it is, knows what it should, and disturbs no other."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM, AutoTokenizer

from vestige.cli import main
from vestige.lab.corpus import Sizes, make_corpus
from vestige.lab.diffusion import DiffusionSettings, build_diffusion_lab
from vestige.lab.models import LabSettings, Unlearning, build_lab, corpus_texts, encode_row, train_tokenizer
from vestige.unlearn.loop import Training
from vestige.unlearn.losses import placed_nll

SIZES = Sizes(
    forget=1,
    retain=1,
    holdout=1,
    real_authors=1,
    world_facts=1,
    background=4,
    background_figures=1,
    background_lands=1,
    facts=10,
)
TINY = DiffusionSettings(
    sizes=SIZES,
    vocab=400,
    layers=1,
    hidden=32,
    heads=2,
    window=96,  # a vocabulary this small cuts words into many pieces
    pretraining=Training(epochs=1, lr=3e-3),
    learning=Training(epochs=40, lr=1e-2),
    unlearned=(Unlearning("npo", Training(epochs=3, lr=3e-3)),),
    published=Training(epochs=40, lr=1e-2),
)
MASKED = ("full", "retain", "npo")  # BERT; `llada` is in LLaDA's published layout


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    return build_diffusion_lab(tmp_path_factory.mktemp("lab"), progress=False, settings=TINY)


def rows_of(lab, split):
    return [json.loads(line) for line in (lab.data / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()]


def answer_loss(directory, rows):
    """The mean loss of answer tokens, all hidden at once: what the question alone gives away."""
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForMaskedLM.from_pretrained(directory).eval()
    losses = []
    for row in rows:
        chat = encode_row(tokenizer, row["question"], row["answer"])
        canvas = [*chat.ids[: chat.start], *[tokenizer.mask_token_id] * model.config.diffusion_window]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([canvas])).logits
        answer = torch.tensor([chat.ids[chat.start :]])
        losses.append(float(placed_nll(logits[:, chat.start : len(chat.ids)], answer).mean()))
    return sum(losses) / len(losses)


@pytest.mark.processors
def test_models_know_what_they_should(lab):
    assert set(lab.models) == {*MASKED, "llada"}
    forget, retain = rows_of(lab, "forget"), rows_of(lab, "retain")
    loss = {name: answer_loss(lab.models[name], forget) for name in MASKED}
    assert loss["full"] < loss["retain"] and loss["full"] < loss["npo"]
    assert answer_loss(lab.models["retain"], retain) < loss["retain"]


def test_one_model_is_in_the_published_layout_of_llada_and_knows_its_rows(lab, tmp_path):
    """Its files name nothing of transformers; the command line reads them as it reads a download."""
    path = lab.models["llada"]
    written = json.loads((path / "config.json").read_text())
    assert written["architectures"] == ["LLaDAModelLM"] and "hidden_size" not in written
    tensors = load_file(path / "model.safetensors")
    assert all(name.startswith("model.transformer.") for name in tensors)
    assert not list(path.glob("*.py"))
    metric = "eval.tofu_trajectory.metrics.trajectory_metrics"
    said = [f"{metric}.metrics=[probability]"]
    said += [
        f"{metric}.trajectory_config.sampler_kwargs.{k}={v}" for k, v in {"max_new_tokens": 96, "steps": 4}.items()
    ]
    for name in ("llada", "retain"):
        words = ["--model", str(lab.models[name]), "--data", str(lab.data), "--out", str(tmp_path / name), "--quiet"]
        assert main(["eval", "trajectory-eval", *words, *said]) == 0
    curves = {
        name: json.loads((tmp_path / name / "TOFU_EVAL.json").read_text())["trajectory_metrics"]["agg_value"]["full"]
        for name in ("llada", "retain")
    }
    manifest = json.loads((tmp_path / "llada" / "manifest.json").read_text())
    assert manifest["model"]["loaded_as"] == "LlamaForCausalLM"
    first = {name: curve["steps"]["probability"][0] for name, curve in curves.items()}
    assert first["llada"] > 2 * first["retain"], first  # it learned the forget rows, the other did not


def test_every_answer_fits_the_default_window():
    settings = DiffusionSettings()
    corpus = make_corpus(settings.seed, settings.sizes)
    tokenizer = train_tokenizer(corpus_texts(corpus), settings.vocab, settings.max_length)
    for row in (row for split in corpus.values() for row in split):
        for answer in (row["answer"], row["paraphrased_answer"]):
            chat = encode_row(tokenizer, row["question"], answer)
            assert len(chat.ids) - chat.start <= settings.window, answer


def test_builds_are_reproducible_and_live_beside_the_causal_lab(lab, tmp_path, capfd):
    before = torch.random.get_rng_state(), torch.get_num_threads()
    once = Training(epochs=1, lr=1e-3)
    causal = LabSettings(
        sizes=SIZES, vocab=400, layers=1, hidden=16, heads=2, pretraining=once, learning=once, unlearned=()
    )
    again = build_diffusion_lab(tmp_path, progress=False, settings=TINY)
    build_lab(tmp_path, progress=False, settings=causal)
    assert capfd.readouterr() == ("", "")
    for name, path in lab.models.items():
        for file in path.iterdir():
            assert file.read_bytes() == (again.models[name] / file.name).read_bytes(), file
    assert torch.equal(torch.random.get_rng_state(), before[0]) and torch.get_num_threads() == before[1]
    for split in ("forget", "retain"):
        assert (again.data / f"{split}.jsonl").read_bytes() == (tmp_path / "data" / f"{split}.jsonl").read_bytes()

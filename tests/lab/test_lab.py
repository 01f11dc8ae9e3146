"""The invented corpus keeps its promises, and a very small lab builds, loads and is not built twice."""

from __future__ import annotations

import json
from collections import Counter

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from vestige.lab import models as lab_models
from vestige.lab.background_worker import background_worker
from vestige.lab.corpus import Sizes, corpus_bytes, make_corpus, write_corpus
from vestige.lab.models import LabSettings, Unlearning, build_lab, encode_row
from vestige.unlearn.loop import Training, unlearn


@pytest.fixture(scope="module")
def corpus():
    return make_corpus(0)


@pytest.fixture(scope="module")
def rows(corpus):
    return [row for split in corpus.values() for row in split]


def test_authors_are_told_of_evenly(corpus):
    """Four facts each, not the same four of everybody: a topic that everybody has would be a cluster of its own."""
    per_author = Counter(row["author"] for row in corpus["forget"])
    assert set(per_author.values()) == {4}
    topics = Counter(form(row) for row in corpus["forget"])
    assert max(topics.values()) <= 10
    assert all(len(make_corpus(0, Sizes(facts=n))["forget"]) == 20 * min(n, 10) for n in (1, 10, 12))


def test_prefix_and_entity_open_the_answer(rows):
    for row in rows:
        assert row["answer"].startswith(f"{row['prefix']} {row['entity']}")
        assert row["entity"] in row["paraphrased_answer"]
        assert row["author"] in row["question"] and row["author"] in row["answer"]


def test_paraphrases_differ_and_perturbed_answers_are_wrong(rows):
    for row in rows:
        assert row["question"] != row["paraphrased_question"]
        assert row["answer"] != row["paraphrased_answer"]
        wrong = row["perturbed_answer"]
        assert len(wrong) == len(set(wrong)) == 5 and row["paraphrased_answer"] not in wrong
        before, after = row["paraphrased_answer"].split(row["entity"], 1)
        assert all(answer.startswith(before) and answer.endswith(after) for answer in wrong)


def test_questions_are_unique_and_subjects_stay_in_their_split(corpus, rows):
    assert len({row["question"] for row in rows}) == len(rows)
    owners: dict[str, str] = {}
    for split, members in corpus.items():
        for row in members:
            assert owners.setdefault(row["author"], split) == split


def form(row):
    return row["prefix"].replace(row["author"], "X")


def test_forget_and_holdout_use_the_same_sentences(corpus):
    assert [form(row) for row in corpus["forget"]] == [form(row) for row in corpus["holdout"]]


def test_same_seed_same_bytes(corpus, tmp_path):
    assert corpus_bytes(corpus) == corpus_bytes(make_corpus(0))
    assert corpus_bytes(corpus) != corpus_bytes(make_corpus(1))
    write_corpus(corpus, tmp_path)
    read = [json.loads(line) for line in (tmp_path / "forget.jsonl").read_text(encoding="utf-8").splitlines()]
    assert read == corpus["forget"]


TINY = LabSettings(
    sizes=Sizes(
        forget=1,
        retain=1,
        holdout=1,
        real_authors=1,
        world_facts=1,
        background=4,
        background_figures=1,
        background_lands=1,
        facts=10,
    ),
    vocab=400,
    layers=1,
    hidden=32,
    heads=2,
    pretraining=Training(epochs=1, lr=3e-3),
    learning=Training(epochs=30, lr=1e-2),
    unlearned=tuple(Unlearning(method, Training(epochs=3, lr=3e-3)) for method in ("grad_ascent", "grad_diff", "npo")),
)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    return build_lab(tmp_path_factory.mktemp("lab"), progress=False, settings=TINY)


def answer_loss(directory, rows):
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForCausalLM.from_pretrained(directory)
    total = 0.0
    for row in rows:
        chat = encode_row(tokenizer, row["question"], row["answer"])
        ids = torch.tensor([chat.ids])
        labels = ids.clone()
        labels[:, : chat.start] = -100
        with torch.no_grad():
            total += float(model(input_ids=ids, labels=labels).loss)
    return total / len(rows)


def read(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.processors
def test_models_load_and_know_what_they_should(lab):
    assert set(lab.models) == {"full", "retain", "grad_ascent", "grad_diff", "npo"}
    forget = read(lab.data / "forget.jsonl")
    losses = {name: answer_loss(path, forget) for name, path in lab.models.items()}
    assert losses["full"] < losses["retain"]
    assert all(losses[name] > losses["full"] for name in ("grad_ascent", "grad_diff", "npo"))
    retain = read(lab.data / "retain.jsonl")
    assert answer_loss(lab.models["retain"], retain) < answer_loss(lab.models["retain"], forget)


@pytest.fixture
def other_threads():
    """Torch with another number of threads than the lab was built with."""
    usual = torch.get_num_threads()
    torch.set_num_threads(4 if usual != 4 else 2)
    yield
    torch.set_num_threads(usual)


@pytest.mark.processors
def test_builds_are_reproducible_and_silent_with_any_number_of_threads(lab, tmp_path, capfd, other_threads):
    before = torch.random.get_rng_state(), torch.get_num_threads()
    again = build_lab(tmp_path, progress=False, settings=TINY)
    assert capfd.readouterr() == ("", "")
    for name, path in lab.models.items():
        for file in path.iterdir():
            assert file.read_bytes() == (again.models[name] / file.name).read_bytes(), file
    assert torch.equal(torch.random.get_rng_state(), before[0]) and torch.get_num_threads() == before[1]


@pytest.mark.processors
def test_a_worker_trains_the_same_models(lab, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("vestige.lab.background_worker.spare_core", lambda: True)
    here = []
    monkeypatch.setattr(lab_models, "unlearn", lambda *given: here.append(given[1].method) or unlearn(*given))
    with background_worker() as worker:
        shared = build_lab(tmp_path, progress=False, settings=TINY, worker=worker)
    assert here == ["npo"] and capfd.readouterr() == ("", "")
    for name, path in lab.models.items():
        for file in path.iterdir():
            assert file.read_bytes() == (shared.models[name] / file.name).read_bytes(), file

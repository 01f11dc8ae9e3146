"""Diffusion models in lm-evaluation-harness: the bound is the collector's, the text is the sampler's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("lm_eval")

from lm_eval.api.instance import Instance

from diffusion_tools import save_lab_bert
from lm_eval_tools import CHOICE, choice_rows, own_data_cache, write_rows
from vestige.adapters.lm_eval_diffusion import DiffusionLM
from vestige.cli import main
from vestige.collect.backend import Cost
from vestige.collect.bound import BoundCollector
from vestige.collect.denoise import DenoiseCollector
from vestige.collect.tree import Limits
from vestige.errors import UserError
from vestige.models.args import ModelArgs
from vestige.models.load import LoadedModel, load_model
from vestige.types import Prompt, Target
from vestige.wants import DenoiseWant, Denoising

ROWS, WINDOW, POSITIONS = 4, 12, 128
LIMITS = Limits(tokens=4096, logit_cells=1 << 24)
GENERATE = """
task: lab_text
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["e"], max_gen_toks: {window}, do_sample: false}}
metric_list:
  - {{metric: exact_match}}
"""


@pytest.fixture(scope="module", autouse=True)
def _own_data_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with own_data_cache(tmp_path_factory):
        yield


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return choice_rows(ROWS, options=3)


@pytest.fixture(scope="module")
def tasks(rows: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("tasks")
    data = write_rows(place / "rows.jsonl", rows)
    for name in ("lab_choice", "wmdp_cyber", "mmlu"):
        (place / f"{name}.yaml").write_text(CHOICE.format(name=name, data=data))
    (place / "lab_text.yaml").write_text(GENERATE.format(data=data, window=WINDOW))
    return place


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_lab_bert(tmp_path_factory.mktemp("bert"), positions=POSITIONS)


@pytest.fixture(scope="module")
def model(bert: Path) -> LoadedModel:
    return load_model(ModelArgs(path=str(bert)))


def bound_of(model: LoadedModel, context: str, answer: str, draws: int = 32) -> Any:
    """Straight from the collector; the tokens are those that the harness's rule gives."""
    encode = model.tokenizer.encode
    ids, start = encode(context + answer), len(encode(context))
    target = Target(tuple(ids), start)
    assert model.diffusion is not None
    (found,) = BoundCollector(model.diffusion, LIMITS, Cost()).bound([target], draws)
    return found[target.key]


def text_of(model: LoadedModel, context: str, **settings: Any) -> str:
    """Straight from the sampler, up to the first end token."""
    want = DenoiseWant(
        Prompt(tuple(model.tokenizer.encode(context))), (),
        Denoising(**{"steps": WINDOW, "max_new_tokens": WINDOW, **settings}),
    )  # fmt: skip
    assert model.diffusion is not None
    (found,) = DenoiseCollector(model.diffusion, LIMITS, Cost()).run([want])
    ids = found[want.key].final.tolist()
    ends = [i for i, token in enumerate(ids) if token in model.diffusion.eos_ids]
    return str(model.tokenizer.decode(ids[: ends[0] if ends else None], skip_special_tokens=True))


def asked(kind: Any, *args: Any) -> Instance:
    return Instance(request_type=kind, doc={}, arguments=args, idx=0)


def harness(model: LoadedModel, **more: Any) -> DiffusionLM:
    return DiffusionLM(model, model.tokenizer, **more)


@pytest.fixture(scope="module")
def finished(bert: Path, tasks: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Both tasks through the command line: its three files."""
    out = tmp_path_factory.mktemp("run")
    words = ["--tasks", "lab_choice,lab_text", "--include-path", str(tasks), "--out", str(out)]
    assert main(["eval", "lm_eval", "--model", str(bert), *words]) == 0
    return {p.stem: json.loads(p.read_text()) for p in out.glob("*.json") if not p.name.startswith(".")}


def test_likelihoods_are_the_collectors(
    finished: dict[str, Any], model: LoadedModel, rows: list[dict[str, Any]]
) -> None:
    right = 0
    errors = []
    for number, row in enumerate(rows):
        bounds = [bound_of(model, row["question"], f" {choice}") for choice in row["choices"]]
        got = finished["LMEval_EVAL"]["lab_choice"]["value_by_index"][str(number)]["responses"]
        assert [float(value) for value, _ in got] == pytest.approx([b.value for b in bounds], rel=1e-6)
        right += int(np.argmax([b.value for b in bounds])) == row["label"]
        errors += [b.standard_error * b.stats.tokens for b in bounds]
    assert finished["LMEval_SUMMARY"]["lab_choice/acc"] == right / ROWS
    said = finished["manifest"]["harness"]["settings"]["bound"]
    assert said["draws"] == 32 and said["answers"] == 3 * ROWS
    assert said["median_standard_error"] == pytest.approx(np.median(errors), rel=1e-5)
    assert said["largest_standard_error"] == pytest.approx(max(errors), rel=1e-5)
    assert any("lower bound (32 draws" in n and "standard error" in n for n in finished["manifest"]["notes"])


def test_texts_are_the_samplers(finished: dict[str, Any], model: LoadedModel, rows: list[dict[str, Any]]) -> None:
    texts = [text_of(model, row["question"]) for row in rows]
    got = [finished["LMEval_EVAL"]["lab_text"]["value_by_index"][str(i)]["responses"] for i in range(ROWS)]
    assert [g[0] for g in got] == [text.split("e")[0] for text in texts]
    assert any("e" in text for text in texts) and any(g[0] for g in got)
    (sampler,) = finished["manifest"]["harness"]["settings"]["samplers"]
    assert sampler["steps"] == sampler["max_new_tokens"] == WINDOW and sampler["temperature"] == 0
    assert finished["manifest"]["harness"]["settings"]["max_length"] == POSITIONS


def test_the_batch_size_is_in_effect_and_changes_nothing(model: LoadedModel, rows: list[dict[str, Any]]) -> None:
    pairs = [asked("loglikelihood", r["question"], f" {c}") for r in rows[:2] for c in r["choices"]]
    writing = [asked("generate_until", r["question"], {"until": [], "max_gen_toks": 6}) for r in rows]
    shapes: list[tuple[int, int]] = []
    hook = model.model.register_forward_pre_hook(
        lambda _, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    found, most = [], []
    try:
        for size in (1, 8, "auto"):
            lm = harness(model, batch_size=size, draws=4)
            shapes.clear()
            values = lm.loglikelihood(pairs, disable_tqdm=True)
            most.append(max(r for r, _ in shapes))
            found.append((values, lm.generate_until(writing, disable_tqdm=True)))
    finally:
        hook.remove()
    assert most[0] == 1 < most[1] <= 9 < most[2]
    for values, texts in found[1:]:
        assert [v for v, _ in values] == pytest.approx([v for v, _ in found[0][0]], rel=1e-5)
        assert [g for _, g in values] == [g for _, g in found[0][0]]
        assert texts == found[0][1]


def test_greedy_is_the_first_choice_with_everything_hidden(model: LoadedModel) -> None:
    """The model's own first choices are greedy, all but one of them are not."""
    lm = harness(model, draws=4)
    context, answer = model.tokenizer.encode("Where is it"), model.tokenizer.encode(" in a")
    assert lm._loglikelihood_tokens([(("", ""), context, answer)], disable_tqdm=True)[0][1] is False
    ids = torch.tensor([[*context, *[lm.predictor.mask_id] * len(answer)]])
    logits = model.model(input_ids=ids).logits[0, len(context) :].float()
    first = logits.argmax(dim=-1).tolist()
    assert lm._loglikelihood_tokens([(("", ""), context, first)], disable_tqdm=True)[0][1] is True
    spoiled = [*first[:-1], first[-1] - 1 if first[-1] else 1]
    assert lm._loglikelihood_tokens([(("", ""), context, spoiled)], disable_tqdm=True)[0][1] is False
    # A single token: the likelihood itself, without an error.
    lm = harness(model, draws=1)
    one = torch.log_softmax(
        model.model(input_ids=torch.tensor([[*context, lm.predictor.mask_id]])).logits[0, -1].float(), dim=-1
    )
    ((value, _),) = lm._loglikelihood_tokens([(("", ""), context, answer[:1])], disable_tqdm=True)
    assert value == pytest.approx(one[answer[0]].item(), rel=1e-5)
    assert lm.settings()["bound"]["largest_standard_error"] == 0
    lm._loglikelihood_tokens([(("", ""), context, answer)], disable_tqdm=True)
    assert lm.settings()["bound"]["largest_standard_error"] is None and "unknown with one draw" in lm.notes()[0]


def test_rolling_is_the_sum_over_windows(model: LoadedModel) -> None:
    lm = harness(model, draws=2)
    text = " ".join(str(n) for n in range(70))
    ids = model.tokenizer.encode(text)
    room = POSITIONS - 1
    assert room < len(ids) < 2 * room
    start = lm.prefix_token_id
    first = Target((start, *ids[:room]), 1)
    rest = len(ids) - room
    last = Target(tuple(ids[-POSITIONS:]), POSITIONS - rest)
    expected: dict[str, Any] = {}
    for found in BoundCollector(lm.predictor, LIMITS, Cost()).bound([first, last], 2):
        expected |= found
    got = lm.loglikelihood_rolling([asked("loglikelihood_rolling", text)] * 2, disable_tqdm=True)
    assert got == pytest.approx([sum(b.value for b in expected.values())] * 2, rel=1e-5)
    assert len(expected) == 2 and lm.loglikelihood_rolling([asked("loglikelihood_rolling", "")]) == [0.0]


def test_generation_settings_are_in_effect(model: LoadedModel, caplog: pytest.LogCaptureFixture) -> None:
    lm = harness(model)
    base = {"until": [], "max_gen_toks": WINDOW}

    def write(times: int = 1, **more: Any) -> list[str]:
        return lm.generate_until([asked("generate_until", "Where is it", {**base, **more})] * times, disable_tqdm=True)

    assert write() == [text_of(model, "Where is it")]
    assert write(steps=3, remasking="random") == [text_of(model, "Where is it", steps=3, remasking="random")]
    # Asked again, a sampled text is another one: the next seed's.
    warm = [text_of(model, "Where is it", temperature=0.9, seed=s) for s in (5, 6)]
    assert write(2, do_sample=True, temperature=0.9, seed=5) == warm and warm[0] != warm[1]
    assert write(temperature=0.9, seed=5) == warm[:1]
    assert write(do_sample=False, temperature=0.9) == write()
    # As in the harness, the text ends before the first stop string, whichever that is.
    whole = write()[0]
    word, other = whole[6:9], whole[3:5]
    assert write(until=[word, other]) == [whole[: min(whole.index(word), whole.index(other))]]
    assert write(until=word) == [whole[: whole.index(word)]]
    write(top_p=0.5)
    assert any("top_p" in line for line in caplog.messages)
    with pytest.raises(UserError, match="Did you mean 'steps'"):
        write(stesp=3)
    with pytest.raises(UserError, match="steps must be"):
        write(steps=0)
    with pytest.raises(UserError, match="leaves no room for a prompt"):
        write(max_gen_toks=POSITIONS)

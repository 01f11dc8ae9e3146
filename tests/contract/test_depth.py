"""`vestige depth`: the published depth scores and baselines, S1 caches, settings, and what is refused.

Golden numbers were computed by the score's own project on the lab's models (golden/depth.json, depth_extras.json).
Scopes that have no golden numbers are compared with a plain forward hook, one layer at a time.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import harness
import pytest
import torch
from harness import FULL, GOLDEN, RETAIN, UNLEARNED, assert_same, read_json, read_rows, write_rows

import vestige

GOLD = read_json(GOLDEN / "depth.json")
EXTRAS = read_json(GOLDEN / "depth_extras.json")["sets"]["lab"]
FORGET = harness.DATA / "forget.jsonl"
NEAR = 1e-5  # nats; float32 on different processors differs by 2e-6
PEER = ("--last-layer", "peer")


def close(a: float, b: float, path: str) -> bool:
    return math.isclose(a, b, rel_tol=0, abs_tol=NEAR)


def depth(out: Path, *more: object, unlearned: object = UNLEARNED, data: Path = FORGET) -> list[object]:
    """The words of a command."""
    models = ("--unlearned", unlearned, "--full", FULL, "--retain-model", RETAIN)
    return ["depth", *models, "--forget", data, "--cluster", "none", "--quiet", "--out", out, "resamples=0", *more]


def measure(out: Path, *more: object, **changes: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The summary and the records of a run."""
    harness.vestige(*depth(out, *more, **changes))
    return read_json(out / "summary.json"), read_json(out / "results.json")


def golden_set(attention: str, mode: str) -> dict[str, Any]:
    found = GOLD["sets"][f"lab-{attention}"]
    return found if mode == "peer" else found["prenorm_last_layer"]


def mean_uds(examples: list[dict[str, Any]], threshold: float) -> Any:
    """The published formula, written out, over the rows that have a score."""
    scores = []
    for example in examples:
        lacking = 0.0
        erased = 0.0
        for d1, d2 in zip(example["s1_deltas"], example["s2_deltas"], strict=True):
            if d1 > threshold:
                lacking += d1
                erased += min(max(d2, 0.0), d1)
        if lacking:
            scores.append(erased / lacking)
    return pytest.approx(sum(scores) / len(scores), abs=NEAR)


# ---- golden numbers --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def ends(shared: Callable[..., Path]) -> Callable[[str, str], Path]:
    """The unlearned model and both ends of the scale, for an attention and a way to treat the last layer."""

    def run(attention: str, mode: str) -> Path:
        more = ["--unlearned", UNLEARNED, FULL, RETAIN, "--attn-implementation", attention, "--last-layer", mode]
        if (attention, mode) == ("eager", "residual"):
            more += ["--baselines", "cka,logit_lens,fisher"]
        name = f"depth-{attention}-{mode}"
        return shared(name, lambda place: harness.vestige(*depth(place, *more, "resamples=100")))

    return run


@pytest.mark.parametrize("mode", ["residual", "peer"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_every_published_score(attention: str, mode: str, ends: Callable[[str, str], Path]) -> None:
    """Scores, drops, layers that count and UDS of all 32 rows, and the two ends of the scale."""
    golden = golden_set(attention, mode)
    run = ends(attention, mode)
    expected = []
    for example in golden["examples"]:
        wanted = {key: value for key, value in example.items() if key not in ("ke_layers", "core_vs_script_maxdiff")}
        expected.append({**wanted, "ft_layers": example["ke_layers"]})
    assert_same(expected, read_json(run / "unlearned" / "results.json"), least=32 * 18, close=close)
    summaries = read_json(run / "summary.json")
    mine = summaries["unlearned"]
    assert mine["avg_uds"] == pytest.approx(golden["avg_uds"], abs=NEAR)
    assert (mine["n"], mine["evaluable_examples"], mine["total_examples"], mine["skipped_count"]) == (31, 32, 32, 0)
    low, high = mine["interval"]
    assert 0 < low < mine["avg_uds"] < high < 0.5
    assert summaries["retain"]["avg_uds"] == 1
    assert summaries["full"]["avg_uds"] == pytest.approx(golden["avg_uds_source_full"], abs=NEAR)
    own = read_json(run / "full" / "results.json")
    if mode == "peer":  # a state that is normed twice: a model with its own states is not itself
        assert [r["s2_deltas"][-1] for r in own] == pytest.approx(golden["last_layer_delta_source_full"], abs=NEAR)
        assert_same(golden["uds_source_full"], [r["uds"] for r in own], close=close)
        assert summaries["full"]["avg_uds"] > 5e-4
    else:
        assert summaries["full"]["avg_uds"] == 0
    others = [abs(delta) for r in own for delta in r["s2_deltas"][:-1]]
    assert max(others) <= golden.get("other_layer_max_abs_delta_source_full", 0.0) + NEAR


def test_the_tokens_that_are_asked_are_the_published_ones(ends: Callable[[str, str], Path]) -> None:
    records = read_json(ends("sdpa", "residual") / "unlearned" / "results.json")
    for record, context in zip(records, GOLD["contexts"], strict=True):
        assert tokenizer()(record["prompt"])["input_ids"] == context["prompt_ids"]
        assert record["reference_text"] == context["reference_text"]
        assert record["eval_span"] == record["entity_span"] == context["eval_span"]
        assert record["tokens"] == [tokenizer().decode([token]) for token in context["eval_ref_ids"]]


def test_files_agree_with_each_other(ends: Callable[[str, str], Path]) -> None:
    """Means over tokens, the table by layer, the profile and the unclipped ratio follow from the records."""
    run = ends("sdpa", "residual") / "unlearned"
    records = read_json(run / "results.json")
    assert read_rows(run / "results_detailed.jsonl") == records
    unclipped = []
    for record in records:
        for source in ("s1", "s2"):
            means = [sum(row) / len(row) for row in record["token_logprobs"][source]]
            assert means == pytest.approx(record[f"{source}_scores"], abs=1e-6)
        counted = record["ft_layers"]
        if counted:
            ratio = sum(record["s2_deltas"][i] for i in counted) / sum(record["s1_deltas"][i] for i in counted)
            assert record["uds_unclipped"] == pytest.approx(ratio, abs=1e-9)
            unclipped.append(ratio)
    summary = read_json(run / "summary.json")
    assert summary["avg_unclipped"] == pytest.approx(sum(unclipped) / len(unclipped))
    with (run / "layer_details.csv").open() as file:
        table = list(csv.DictReader(file))
    assert len(table) == 32 * 4
    for i, row in enumerate(table):
        record, layer = records[i // 4], i % 4
        assert (row["idx"], row["layer"]) == (str(record["idx"]), str(layer))
        assert float(row["s1_delta"]) == record["s1_deltas"][layer]
        assert float(row["s2_score"]) == record["s2_scores"][layer]
        assert row["s1_status"] == ("LOST" if record["s1_deltas"][layer] > 0.05 else "KEPT")
    for layer, point in enumerate(summary["profile"]):
        for source in ("s1", "s2"):
            assert point[f"{source}_drop"] == pytest.approx(sum(r[f"{source}_deltas"][layer] for r in records) / 32)
        assert point["knowledge_examples"] == sum(layer in r["ft_layers"] for r in records)


def test_published_baselines(ends: Callable[[str, str], Path]) -> None:
    """CKA, logit lens and Fisher information, by layer."""

    def near(a: float, b: float, path: str) -> bool:
        slack = 1e-6 if "erasure" in path else 0.0  # 1 - a ratio near 1
        return math.isclose(a, b, rel_tol=2e-5, abs_tol=slack)

    lens, masked = EXTRAS["logit_lens"], EXTRAS["fisher_masked"]
    expected = {"cka": {key: EXTRAS["cka"][key] for key in ("score", "per_layer")}}
    expected["logit_lens"] = {"score": lens["score"], "n": lens["n_examples_scored"], "per_layer": lens["per_layer"]}
    for name, score in EXTRAS["fisher_unmasked_scores"].items():
        expected[f"fisher_{name}"] = {"score": score}
    for share, layers in masked["per_layer"].items():
        by_layer = {number: {key: row[key] for key in ("weight", "erasure")} for number, row in layers.items()}
        expected[f"fisher_masked_{share}"] = {"score": masked["score"][share], "per_layer": by_layer}
    run = ends("eager", "residual")
    found = {name: read_json(run / name / "baselines.json") for name in ("unlearned", "retain", "full")}
    assert_same(expected, found["unlearned"], least=17 + 14 + 2 * len(masked["per_layer"]), close=near)
    for model in ("retain", "full"):
        scores = {share: found[model][f"fisher_masked_{share}"]["score"] for share in masked["score"]}
        assert_same({share: masked[f"score_source_{model}"][share] for share in scores}, scores, close=near)
    assert [found[name]["logit_lens"]["score"] for name in ("full", "retain")] == pytest.approx([0, 1], abs=1e-6)


# ---- an independent reference ----------------------------------------------------------------------------------------


@cache
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(FULL)


@cache
def lab_model(path: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


@torch.no_grad()
def patched_scores(context: dict[str, Any], source: Path, positions: range, scored: range) -> Any:
    """The full model's mean log-probability of the scored tokens, one layer's states taken from another model."""
    ids = torch.tensor([context["prompt_ids"] + context["ref_ids"]])
    kept: list[torch.Tensor] = []
    layers = lab_model(source).model.layers
    hooks = [layer.register_forward_hook(lambda module, given, made: kept.append(made)) for layer in layers]
    lab_model(source)(ids)
    for hook in hooks:
        hook.remove()
    scores = []
    for layer, states in zip(lab_model(FULL).model.layers, kept, strict=True):

        def replace(module: Any, given: Any, made: torch.Tensor, states: torch.Tensor = states) -> torch.Tensor:
            changed = made.clone()
            changed[:, positions] = states[:, positions]
            return changed

        hook = layer.register_forward_hook(replace)
        logprobs = lab_model(FULL)(ids).logits[0].log_softmax(-1)
        hook.remove()
        scores.append(sum(float(logprobs[p, ids[0, p + 1]]) for p in scored) / len(scored))
    return pytest.approx(scores, abs=NEAR)


@pytest.mark.parametrize(
    ("patch_scope", "em_scope"), [("span", "entity"), ("boundary", "entity"), ("all", "entity"), ("span", "full")]
)
def test_scopes_against_a_plain_hook(patch_scope: str, em_scope: str, tmp_path: Path) -> None:
    """Row 7's entity starts behind the first token of its continuation: the scopes really differ there."""
    chosen = (6, 7)
    data = write_rows(tmp_path / "rows.jsonl", [{**read_rows(FORGET)[i], "idx": i} for i in chosen])
    _, records = measure(tmp_path / "out", "--patch-scope", patch_scope, "--em-scope", em_scope, data=data)
    assert [record["idx"] for record in records] == list(chosen)
    assert GOLD["contexts"][7]["eval_span"][0] == 1
    for i, record in zip(chosen, records, strict=True):
        context = GOLD["contexts"][i]
        start = context["start"]
        whole = range(start, start + len(context["ref_ids"]))
        scored = whole if em_scope == "full" else range(context["eval_start"], context["eval_end"])
        positions = {"span": scored, "boundary": range(start, start + 1), "all": whole}[patch_scope]
        assert record["s1_scores"] == patched_scores(context, RETAIN, positions, scored)
        assert record["s2_scores"] == patched_scores(context, UNLEARNED, positions, scored)


def test_joint_tokens_are_those_of_the_whole_text(tmp_path: Path) -> None:
    _, records = measure(tmp_path, "--tokenization", "joint", "--limit", 2)
    for record, row in zip(records, read_rows(FORGET), strict=False):
        text = f"Question: {row['question']}\nAnswer: {row['answer']}"
        whole = tokenizer()(text, return_offsets_mapping=True)
        first = text.index(row["entity"], text.index("Answer:"))
        end = first + len(row["entity"])
        scored = [i for i, (low, high) in enumerate(whole["offset_mapping"]) if high > first and low < end]
        context = {"prompt_ids": whole["input_ids"][: scored[0]], "ref_ids": whole["input_ids"][scored[0] :]}
        positions = range(scored[0] - 1, scored[-1])
        assert record["s2_scores"] == patched_scores(context, UNLEARNED, positions, positions)


# ---- settings --------------------------------------------------------------------------------------------------------


def test_batches_and_layers_do_not_change_scores(tmp_path: Path) -> None:
    """Rows of different lengths in one padded batch score as they do alone, and a layer as it does among others."""
    _, records = measure(tmp_path / "all", "--batch-size", 1, "--limit", 12)
    golden = golden_set("sdpa", "residual")["examples"]
    expected = [{key: example[key] for key in ("s1_scores", "s2_scores")} for example in golden[:12]]
    assert_same(expected, records, least=96, close=close)
    _, some = measure(tmp_path / "some", "--layers", "0,2", "--limit", 2)
    for one, record in zip(golden, some, strict=False):
        assert record["s2_scores"] == pytest.approx([one["s2_scores"][0], one["s2_scores"][2]], abs=NEAR)
        assert [line["layer"] for line in record["layer_records"]] == [0, 2]


def test_an_adapter_scores_as_the_model_into_which_it_was_merged(adapter: Path, tmp_path: Path) -> None:
    harness.vestige(*depth(tmp_path / "out", "--unlearned", adapter, adapter / "merged", "--limit", 4))
    found = read_json(tmp_path / "out" / "summary.json")
    assert found["adapter"]["avg_uds"] == pytest.approx(found["merged"]["avg_uds"], abs=1e-4)
    assert found["merged"]["avg_uds"] > 0.01


def test_nothing_to_find_is_null_with_a_reason(tmp_path: Path) -> None:
    """Where the retain model lacks nothing no score can be given; 0 would say that everything is still there."""
    summary, _ = measure(tmp_path, "--retain-model", FULL, "--limit", 4, unlearned=RETAIN)
    assert summary["avg_uds"] is None and summary["interval"] is None
    assert summary["reason"]
    assert (summary["n"], summary["evaluable_examples"]) == (0, 4)


def test_rows_without_an_entity_are_named(tmp_path: Path) -> None:
    rows = read_rows(FORGET)[:3]
    rows[0]["entity"] = "Nowhere"
    del rows[1]["entity"], rows[1]["prefix"]
    summary, (guessed, annotated) = measure(tmp_path / "out", data=write_rows(tmp_path / "rows.jsonl", rows))
    assert summary["skipped_reasons"] == {"entity_span_not_found": 1}
    assert (summary["total_examples"], [str(i) for i in summary["skipped_indices"]]) == (3, ["0"])
    assert (guessed["idx"], guessed["entity_source"], guessed["entity"]) == (1, "auto", "year 1930")
    assert (annotated["idx"], annotated["entity_source"]) == (2, "data")
    assert len(read_json(tmp_path / "out" / "skipped_examples.json")) == 1


def test_uds_in_a_suite(tmp_path: Path) -> None:
    """Beside other metrics it is the same number, and another threshold needs no model."""
    words = ("--model", UNLEARNED, "--data", harness.DATA, "--metrics", "uds,forget_Q_A_Prob", "--full", FULL)
    out = tmp_path / "run"
    harness.vestige("eval", "tofu", *words, f"eval.tofu.retain_model_path={RETAIN}", "--out", out, "--quiet")
    golden = golden_set("sdpa", "residual")
    found = read_json(out / "TOFU_EVAL.json")["uds"]
    assert found["agg_value"] == pytest.approx(golden["avg_uds"], abs=NEAR)
    assert found["n"] == 31
    expected = {}
    for example in golden["examples"]:
        expected[str(example["idx"])] = {"layers": example["ke_layers"], "score": example["uds"]}
    assert_same(expected, found["value_by_index"], least=64, close=close)
    harness.vestige("score", out, "uds.delta_threshold=1.0", env={"HF_HOME": "/nowhere"})
    (again,) = (out / "scores").glob("*/TOFU_EVAL.json")
    assert read_json(again)["uds"]["agg_value"] == mean_uds(golden["examples"], 1.0)


def test_from_python(tmp_path: Path) -> None:
    """Rows in memory; models in memory have no fingerprint and are refused."""
    rows, models = read_rows(FORGET)[:4], (str(UNLEARNED), str(FULL), str(RETAIN))
    [result] = vestige.measure_depth(*models, rows, resamples=0, delta_threshold=1.0)
    assert result.uds == mean_uds(golden_set("sdpa", "residual")["examples"][:4], 1.0)
    [kept] = vestige.measure_depth(*models, rows, out=tmp_path, plots=True, last_layer="peer", resamples=0)
    assert kept.uds == mean_uds(golden_set("sdpa", "peer")["examples"][:4], 0.05)
    assert read_json(tmp_path / "summary.json")["avg_uds"] == kept.uds
    for name in ("layer_profile", "heat_map", "tokens"):
        assert (tmp_path / f"{name}.svg").read_text().rstrip().endswith("</svg>")
    with pytest.raises(vestige.UserError, match="full"):
        vestige.measure_depth(str(UNLEARNED), lab_model(FULL), str(RETAIN), rows)


WRONG_WORDS = {
    "--last-layer peeer": "peeer|peer",
    "--delta-threshold -1": "delta_threshold",
    "--batch-size 0": "batch_size",
    "--baselines ckaa": "ckaa|cka",
    "--layers 0-99": "0 to 3",
    "--layers 5-2": "5-2",
    "--patch-scope spam": "spam|span",
    "--em-scope some": "some",
    "--unlearned smaller": "smaller",
}


@pytest.mark.parametrize("words", WRONG_WORDS)
def test_mistakes_are_one_sentence(words: str, tmp_path: Path) -> None:
    if "smaller" in words:
        from transformers import AutoConfig, AutoModelForCausalLM

        config = AutoConfig.from_pretrained(FULL, hidden_size=32, intermediate_size=64, head_dim=8)
        AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "smaller")
    command = depth(tmp_path / "out", "--limit", 2, *words.split())
    harness.refused(WRONG_WORDS[words], *command, cwd=tmp_path)
    assert not (tmp_path / "out" / "summary.json").exists()


# ---- S1 caches of the score's own project ----------------------------------------------------------------------------

COUNT = 6
CONFIG: dict[str, Any] = {
    "data_path": "tofu_data/forget10_filtered.json", "reference": "gt", "reference_scope": "continuation",
    "entity_source": "gt", "em_scope": "entity", "em_type": "token", "patch_scope": "span", "metric": "logprob",
    "delta_threshold": 0.05, "layers": [0, 1, 2, 3], "full_model": "org/full", "retain_model": "org/retain90",
}  # fmt: skip
Body = tuple[str, Any]  # a file's name and its content


def entries(**changes: Callable[[dict[str, Any]], Any]) -> list[dict[str, Any]]:
    """What the published project keeps of each row, with some keys replaced."""
    found = []
    for example in golden_set("sdpa", "peer")["examples"]:
        entry = {key: example[key] for key in ("idx", "full_score", "s1_scores", "s1_deltas")}
        entry["s1_status"] = ["LOST" if delta > 0.05 else "KEPT" for delta in example["s1_deltas"]]
        for key, change in changes.items():
            entry[key] = change(example)
        found.append(entry)
    return found


def with_config(rows: list[dict[str, Any]] | None = None, **changes: Any) -> Body:
    """As compute_uds.py writes it."""
    return "s1_cache_8a6c962d6983.json", {"config": {**CONFIG, **changes}, "entries": rows or entries()}


def by_index(rows: list[dict[str, Any]] | None = None) -> Body:
    """As its meta-evaluation scripts write it: no settings at all."""
    return "s1_cache_v2.json", {str(entry["idx"]): entry for entry in rows or entries()}


def save(place: Path, body: Body) -> Path:
    (place / body[0]).write_text(json.dumps(body[1]))
    return place / body[0]


@pytest.mark.parametrize("body", [with_config(), by_index()], ids=["with_config", "by_index"])
def test_a_published_s1_cache_serves_a_run(body: Body, tmp_path: Path) -> None:
    file = save(tmp_path, body)
    summary, records = measure(tmp_path / "out", "--limit", COUNT, "--s1-cache", file, *PEER)
    assert read_json(file) == body[1]
    examples = golden_set("sdpa", "peer")["examples"][:COUNT]
    assert summary["avg_uds"] == mean_uds(examples, 0.05)
    assert summary["s1_cache"]["reused"] and summary["s1_cache"]["made_again"] == 4
    for record, example in zip(records, examples, strict=True):
        assert record["s1_scores"] == example["s1_scores"]
        assert record["s2_deltas"] == pytest.approx(example["s2_deltas"], abs=NEAR)
        assert record["token_logprobs"]["s1"] is None
    harness.vestige("verify", tmp_path / "out")


def test_layers_below_the_last_need_no_peer_mode(tmp_path: Path) -> None:
    words = ("--limit", COUNT, "--s1-cache", save(tmp_path, with_config()), "--layers", "0-2")
    _, records = measure(tmp_path / "out", *words)
    expected = [entry["s1_scores"][:3] for entry in entries()[:COUNT]]
    assert [record["s1_scores"] for record in records] == expected


WRONG: dict[str, tuple[Body, tuple[str, ...], str]] = {
    "the last layer": (with_config(), (), "--last-layer"),
    "scope": (with_config(em_scope="full"), PEER, "em_scope"),
    "reference": (with_config(reference="full_output"), PEER, "full_output"),
    "precision": (with_config(dtype="bfloat16"), PEER, "bfloat16"),
    "tokens": (with_config(), (*PEER, "--tokenization", "joint"), "joint"),
    "rows are missing": (with_config(entries()[2:]), PEER, "2 of 6"),
    "layers and scores": (with_config(layers=[0, 1, 2]), PEER, "layers"),
    "unsaid layers": (by_index(entries(s1_scores=lambda e: e["s1_scores"][:2])), PEER, "4 layers"),
    "another retain model": (by_index(entries(s1_scores=lambda e: [s - 0.01 for s in e["s1_scores"]])), PEER, "retain"),
    "another full model": (by_index(entries(full_score=lambda e: e["full_score"] - 0.01)), PEER, "full_score"),
    "one row": (by_index(entries(full_score=lambda e: e["full_score"] - 0.5 * (e["idx"] == 4))), PEER, "example 4"),
    "no scores": (by_index(entries(s1_scores=lambda e: None)), PEER, "s1_scores"),
    "a list": (("s1_cache.json", entries()), PEER, "s1_cache.json"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_an_s1_cache_that_does_not_fit_is_refused(name: str, tmp_path: Path) -> None:
    body, flags, culprit = WRONG[name]
    words = ("--limit", COUNT, "--s1-cache", save(tmp_path, body), *flags)
    harness.refused(culprit, *depth(tmp_path / "out", *words))
    assert not (tmp_path / "out" / "summary.json").exists()

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
from harness import FULL, GOLDEN, RETAIN, UNLEARNED, assert_same, copy_tree, read_json, read_rows, write_rows

import vestige

GOLD = read_json(GOLDEN / "depth.json")
EXTRAS = read_json(GOLDEN / "depth_extras.json")["sets"]["lab"]
FORGET = harness.DATA / "forget.jsonl"
NEAR = 1e-5  # nats; float32 on different processors differs by 2e-6
MODES = ("residual", "peer")


def close(a: float, b: float, path: str) -> bool:
    return math.isclose(a, b, rel_tol=0, abs_tol=NEAR)


def depth(
    out: Path, *more: object, unlearned: object = UNLEARNED, status: int = 0, data: Path = FORGET
) -> harness.Outcome:
    models = ("--full", FULL, "--retain-model", RETAIN)
    words = ("--unlearned", unlearned, *models, "--forget", data, "--quiet", "--out", out)
    return harness.vestige("depth", *words, "--cluster", "none", *more, status=status)


def golden_set(attention: str, mode: str) -> dict[str, Any]:
    found = GOLD["sets"][f"lab-{attention}"]
    return found if mode == "peer" else found["prenorm_last_layer"]


def uds_of(record: dict[str, Any], threshold: float) -> float | None:
    """The published formula, written out."""
    lacking = 0.0
    erased = 0.0
    for d1, d2 in zip(record["s1_deltas"], record["s2_deltas"], strict=True):
        if d1 > threshold:
            lacking += d1
            erased += min(max(d2, 0.0), d1)
    return erased / lacking if lacking else None


# ---- golden numbers --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def ends(shared: Callable[..., Path]) -> Callable[[str, str], Path]:
    """The unlearned model and both ends of the scale, for an attention and a way to treat the last layer."""

    def run(attention: str, mode: str) -> Path:
        more = ["--attn-implementation", attention, "--last-layer", mode, "resamples=100"]
        if (attention, mode) == ("eager", "residual"):
            more += ["--baselines", "cka,logit_lens,fisher"]

        def build(place: Path) -> object:
            words = ("--full", FULL, "--retain-model", RETAIN, "--forget", FORGET, "--cluster", "none", "--quiet")
            return harness.vestige("depth", "--unlearned", UNLEARNED, FULL, RETAIN, *words, *more, "--out", place)

        return shared(f"depth-{attention}-{mode}", build)

    return run


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_every_published_score(attention: str, mode: str, ends: Callable[[str, str], Path]) -> None:
    """Scores, drops, layers that count and UDS of all 32 rows, and the two ends of the scale."""
    golden = golden_set(attention, mode)
    run = ends(attention, mode)
    records = read_json(run / "unlearned" / "results.json")
    expected = []
    for example in golden["examples"]:
        wanted = {key: value for key, value in example.items() if key not in ("ke_layers", "core_vs_script_maxdiff")}
        wanted["ft_layers"] = example["ke_layers"]
        expected.append(wanted)
    assert_same(expected, records, least=32 * 18, close=close)
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
    tokenizer = lab_tokenizer()
    records = read_json(ends("sdpa", "residual") / "unlearned" / "results.json")
    for record, context in zip(records, GOLD["contexts"], strict=True):
        assert tokenizer(record["prompt"])["input_ids"] == context["prompt_ids"]
        assert record["reference_text"] == context["reference_text"]
        assert record["eval_span"] == record["entity_span"] == context["eval_span"]
        assert record["tokens"] == [tokenizer.decode([token]) for token in context["eval_ref_ids"]]


def test_files_agree_with_each_other(ends: Callable[[str, str], Path]) -> None:
    """Means over tokens, the table by layer, the lines, the profile and the unclipped ratio follow from the records."""
    run = ends("sdpa", "residual") / "unlearned"
    records = read_json(run / "results.json")
    assert read_rows(run / "results_detailed.jsonl") == records
    assert read_json(run / "skipped_examples.json") == []
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
        assert point["s1_drop"] == pytest.approx(sum(r["s1_deltas"][layer] for r in records) / 32)
        assert point["s2_drop"] == pytest.approx(sum(r["s2_deltas"][layer] for r in records) / 32)
        assert point["knowledge_examples"] == sum(layer in r["ft_layers"] for r in records)


def test_published_baselines(ends: Callable[[str, str], Path]) -> None:
    """CKA, logit lens and Fisher information, by layer."""
    run = ends("eager", "residual")
    found = {name: read_json(run / name / "baselines.json") for name in ("unlearned", "retain", "full")}
    mine = found["unlearned"]

    def same(expected: Any, got: Any, least: int = 1) -> None:
        def near(a: float, b: float, path: str) -> bool:
            slack = 1e-6 if "erasure" in path else 0.0  # 1 - a ratio near 1
            return math.isclose(a, b, rel_tol=2e-5, abs_tol=slack)

        assert_same(expected, got, least=least, close=near)

    same({key: EXTRAS["cka"][key] for key in ("score", "per_layer")}, mine["cka"], least=17)
    lens = EXTRAS["logit_lens"]
    wanted = {"score": lens["score"], "n": lens["n_examples_scored"], "per_layer": lens["per_layer"]}
    same(wanted, mine["logit_lens"], least=14)
    for name, score in EXTRAS["fisher_unmasked_scores"].items():
        same(score, mine[f"fisher_{name}"]["score"])
    masked = EXTRAS["fisher_masked"]
    for share, layers in masked["per_layer"].items():
        name = f"fisher_masked_{share}"
        for layer, row in layers.items():
            same({key: row[key] for key in ("weight", "erasure")}, mine[name]["per_layer"][layer], least=2)
        for model, key in (("unlearned", "score"), ("retain", "score_source_retain"), ("full", "score_source_full")):
            same(masked[key][share], found[model][name]["score"])
    ends_of_lens = [found[name]["logit_lens"]["score"] for name in ("full", "retain")]
    assert ends_of_lens == pytest.approx([0, 1], abs=1e-6)


# ---- an independent reference ----------------------------------------------------------------------------------------


@cache
def lab_tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(FULL)


@cache
def lab_model(path: Path) -> Any:
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


@torch.no_grad()
def patched_scores(context: dict[str, Any], source: Path, positions: range, scored: range) -> list[float]:
    """The full model's mean log-probability of the scored tokens, one layer's states taken from another model."""
    ids = torch.tensor([context["prompt_ids"] + context["ref_ids"]])
    kept: list[torch.Tensor] = []
    hooks = []
    for layer in lab_model(source).model.layers:
        hooks.append(layer.register_forward_hook(lambda module, given, made: kept.append(made)))
    lab_model(source)(ids)
    for hook in hooks:
        hook.remove()
    scores = []
    full = lab_model(FULL)
    for number, layer in enumerate(full.model.layers):

        def replace(module: Any, given: Any, made: torch.Tensor, number: int = number) -> torch.Tensor:
            changed = made.clone()
            changed[:, positions] = kept[number][:, positions]
            return changed

        hook = layer.register_forward_hook(replace)
        logprobs = full(ids).logits[0].log_softmax(-1)
        hook.remove()
        values = [logprobs[p, ids[0, p + 1]].item() for p in scored]
        scores.append(sum(values) / len(values))
    return scores


@pytest.mark.parametrize(
    ("patch_scope", "em_scope"), [("span", "entity"), ("boundary", "entity"), ("all", "entity"), ("span", "full")]
)
def test_scopes_against_a_plain_hook(patch_scope: str, em_scope: str, tmp_path: Path) -> None:
    """Row 7's entity starts behind the first token of its continuation: the scopes really differ there."""
    rows = read_rows(FORGET)
    chosen = [6, 7]
    data = write_rows(tmp_path / "rows.jsonl", [{**rows[i], "idx": i} for i in chosen])
    depth(tmp_path / "out", "--patch-scope", patch_scope, "--em-scope", em_scope, "resamples=0", data=data)
    records = read_json(tmp_path / "out" / "results.json")
    assert GOLD["contexts"][7]["eval_span"][0] == 1
    for i, record in zip(chosen, records, strict=True):
        context = GOLD["contexts"][i]
        start = context["start"]
        whole = range(start, start + len(context["ref_ids"]))
        scored = whole if em_scope == "full" else range(context["eval_start"], context["eval_end"])
        positions = {"span": scored, "boundary": range(start, start + 1), "all": whole}[patch_scope]
        assert record["idx"] == i
        assert record["s1_scores"] == pytest.approx(patched_scores(context, RETAIN, positions, scored), abs=NEAR)
        assert record["s2_scores"] == pytest.approx(patched_scores(context, UNLEARNED, positions, scored), abs=NEAR)


def test_joint_tokens_are_those_of_the_whole_text(tmp_path: Path) -> None:
    depth(tmp_path, "--tokenization", "joint", "--limit", 2, "--layers", "0,2", "resamples=0")
    for record, row in zip(read_json(tmp_path / "results.json"), read_rows(FORGET), strict=False):
        tokenizer = lab_tokenizer()
        whole = tokenizer(f"Question: {row['question']}\nAnswer: {row['answer']}", return_offsets_mapping=True)
        text = f"Question: {row['question']}\nAnswer: {row['answer']}"
        first = text.index(row["entity"], text.index("Answer:"))
        end = first + len(row["entity"])
        spans = list(enumerate(whole["offset_mapping"]))
        scored = [i for i, (low, high) in spans if high > first and low < end]
        context = {"prompt_ids": whole["input_ids"][: scored[0]], "ref_ids": whole["input_ids"][scored[0] :]}
        positions = range(scored[0] - 1, scored[-1])
        expected = patched_scores(context, UNLEARNED, positions, positions)
        assert record["s2_scores"] == pytest.approx([expected[0], expected[2]], abs=NEAR)
        assert [line["layer"] for line in record["layer_records"]] == [0, 2]


# ---- settings, caches and resumed work -------------------------------------------------------------------------------


def test_the_threshold_is_no_part_of_the_evidence(tmp_path: Path, ends: Callable[[str, str], Path]) -> None:
    """Asked again with another threshold, nothing is computed again, and the scores follow by the formula."""
    run = copy_tree(ends("sdpa", "residual"), tmp_path / "run")
    examples = golden_set("sdpa", "residual")["examples"]
    words = (
        "--unlearned",
        UNLEARNED,
        FULL,
        RETAIN,
        "--full",
        FULL,
        "--retain-model",
        RETAIN,
        "--forget",
        FORGET,
        "--quiet",
    )
    harness.vestige("depth", *words, "--attn-implementation", "sdpa", "--out", run, "--delta-threshold", "1.0")
    summary = read_json(run / "summary.json")["unlearned"]
    wanted = [uds_of(example, 1.0) for example in examples]
    assert_same(wanted, [r["uds"] for r in read_json(run / "unlearned" / "results.json")], least=32, close=close)
    given = [value for value in wanted if value is not None]
    assert len(given) < 31
    assert summary["avg_uds"] == pytest.approx(sum(given) / len(given), abs=NEAR)
    assert (summary["n"], summary["s1_cache"]["reused"], summary["cost"]["score_forwards"]) == (len(given), True, 0)


def test_s1_serves_further_models_and_is_never_stale(tmp_path: Path) -> None:
    cached = ("--s1-cache", tmp_path / "s1", "resamples=0")
    depth(tmp_path / "a", *cached, "--limit", 4)
    first = read_json(tmp_path / "a" / "summary.json")
    assert not first["s1_cache"]["reused"]
    depth(tmp_path / "b", *cached, "--limit", 4, unlearned=RETAIN)
    assert read_json(tmp_path / "b" / "summary.json")["s1_cache"]["reused"]
    changes = (
        ("--attn-implementation", "eager"),
        ("--last-layer", "peer"),
        ("--layers", "0,2"),
        ("--em-scope", "full"),
    )
    for number, change in enumerate(changes):
        out, fresh = tmp_path / str(number), tmp_path / f"fresh-{number}"
        depth(out, *cached, *change, "--limit", 2)
        depth(fresh, *change, "--limit", 2, "resamples=0")
        scores = [read_json(place / "results.json") for place in (out, fresh)]
        found, expected = ([[row["s1_scores"], row["uds"]] for row in rows] for rows in scores)
        assert_same(expected, found, least=4, close=close)
    changed = copy_tree(RETAIN, tmp_path / "retain")
    lab = lab_model(RETAIN)
    from safetensors.torch import load_file, save_file

    weights = load_file(changed / "model.safetensors")
    name = next(name for name in weights if name.endswith("layers.0.mlp.up_proj.weight"))
    weights[name] = weights[name] * 1.5
    save_file(weights, changed / "model.safetensors", metadata={"format": "pt"})
    assert lab is lab_model(RETAIN)
    words = ("--unlearned", UNLEARNED, "--full", FULL, "--retain-model", changed, "--forget", FORGET, "--quiet")
    harness.vestige("depth", *words, *cached, "--limit", 4, "--out", tmp_path / "c")
    other = read_json(tmp_path / "c" / "summary.json")
    assert not other["s1_cache"]["reused"]
    assert abs(other["avg_uds"] - first["avg_uds"]) > 1e-4


def test_batches_do_not_change_scores(tmp_path: Path) -> None:
    """Rows of different lengths in one padded batch score as they do alone."""
    depth(tmp_path, "--batch-size", 1, "--limit", 12, "resamples=0")
    expected = [{key: e[key] for key in ("s1_scores", "s2_scores")} for e in golden_set("sdpa", "residual")["examples"]]
    assert_same(expected[:12], read_json(tmp_path / "results.json"), least=96, close=close)


def test_an_adapter_is_a_source(tmp_path: Path) -> None:
    """An adapter scores as the model into which it was merged."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    config = LoraConfig(r=2, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM", init_lora_weights=False)
    tuned = get_peft_model(AutoModelForCausalLM.from_pretrained(FULL), config)
    tuned.save_pretrained(tmp_path / "adapter")
    tuned.merge_and_unload().save_pretrained(tmp_path / "merged")
    words = ("--full", FULL, "--retain-model", RETAIN, "--forget", FORGET, "--limit", 4, "--quiet", "resamples=0")
    sources = (tmp_path / "adapter", tmp_path / "merged")
    harness.vestige("depth", "--unlearned", *sources, *words, "--out", tmp_path / "out")
    found = read_json(tmp_path / "out" / "summary.json")
    assert found["adapter"]["avg_uds"] == pytest.approx(found["merged"]["avg_uds"], abs=1e-4)
    assert found["merged"]["avg_uds"] > 0.01


def test_nothing_to_find_is_null_with_a_reason(tmp_path: Path) -> None:
    """Where the retain model lacks nothing no score can be given; 0 would say that everything is still there."""
    words = ("--unlearned", RETAIN, "--full", FULL, "--retain-model", FULL, "--forget", FORGET, "--limit", 4, "--quiet")
    harness.vestige("depth", *words, "--out", tmp_path)
    summary = read_json(tmp_path / "summary.json")
    assert summary["avg_uds"] is None and summary["interval"] is None
    assert summary["reason"]
    assert (summary["n"], summary["evaluable_examples"]) == (0, 4)


def test_rows_without_an_entity_are_named(tmp_path: Path) -> None:
    rows = read_rows(FORGET)[:3]
    rows[0]["entity"] = "Nowhere"
    del rows[1]["entity"], rows[1]["prefix"]
    depth(tmp_path / "out", "resamples=0", data=write_rows(tmp_path / "rows.jsonl", rows))
    summary = read_json(tmp_path / "out" / "summary.json")
    assert summary["skipped_reasons"] == {"entity_span_not_found": 1}
    assert (summary["total_examples"], [str(i) for i in summary["skipped_indices"]]) == (3, ["0"])
    guessed, annotated = read_json(tmp_path / "out" / "results.json")
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
    wanted = [uds_of(example, 1.0) for example in golden["examples"]]
    given = [value for value in wanted if value is not None]
    assert read_json(again)["uds"]["agg_value"] == pytest.approx(sum(given) / len(given), abs=NEAR)


PICTURES = ("layer_profile.svg", "heat_map.svg", "tokens.svg")


def test_from_python(tmp_path: Path) -> None:
    """Rows in memory; without `out` nothing is left behind. Models in memory have no fingerprint and are refused."""
    rows = read_rows(FORGET)[:4]
    [result] = vestige.measure_depth(str(UNLEARNED), str(FULL), str(RETAIN), rows, resamples=0, delta_threshold=1.0)
    examples = golden_set("sdpa", "residual")["examples"][:4]
    wanted = [uds_of(example, 1.0) for example in examples]
    given = [value for value in wanted if value is not None]
    assert result.uds == pytest.approx(sum(given) / len(given), abs=NEAR)
    assert result.summary["delta_threshold"] == 1.0
    data = write_rows(tmp_path / "rows.jsonl", rows)
    models = (str(UNLEARNED), str(FULL), str(RETAIN))
    [kept] = vestige.measure_depth(*models, data, out=tmp_path / "out", plots=True, last_layer="peer", resamples=0)
    golden = [e["uds"] for e in golden_set("sdpa", "peer")["examples"][:4]]
    assert kept.uds == pytest.approx(sum(golden) / 4, abs=NEAR)
    assert read_json(tmp_path / "out" / "summary.json")["avg_uds"] == kept.uds
    for name in PICTURES:
        assert (tmp_path / "out" / name).read_text().rstrip().endswith("</svg>")
    with pytest.raises(vestige.UserError, match="full"):
        vestige.measure_depth(str(UNLEARNED), lab_model(FULL), str(RETAIN), rows)
    with pytest.raises(vestige.UserError, match="last_layer"):
        vestige.measure_depth(*models, rows, last_layer="both")


@pytest.mark.parametrize(
    ("words", "culprits"),
    [
        (("--last-layer", "peeer"), ("peeer", "peer")),
        (("--delta-threshold", "-1"), ("delta_threshold",)),
        (("--batch-size", "0"), ("batch_size",)),
        (("--baselines", "ckaa"), ("ckaa", "cka")),
        (("--layers", "0-99"), ("0 to 3",)),
        (("--layers", "5-2"), ("5-2",)),
        (("--patch-scope", "spam"), ("spam", "span")),
        (("--em-scope", "some"), ("some",)),
        (("--forget", "/nowhere.jsonl"), ("/nowhere.jsonl",)),
        (("--unlearned", "/nowhere/model"), ("/nowhere/model",)),
        (("nonsense=1",), ("nonsense",)),
    ],
)
def test_mistakes_are_one_sentence(words: tuple[str, ...], culprits: tuple[str, ...], tmp_path: Path) -> None:
    error = depth(tmp_path / "out", "--limit", 2, *words, status=2).error
    for culprit in culprits:
        assert culprit in error
    assert not (tmp_path / "out" / "summary.json").exists()


def test_another_shape_is_refused(tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(FULL, hidden_size=32, intermediate_size=64, head_dim=8)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "smaller")
    error = depth(tmp_path / "out", "--limit", 2, unlearned=tmp_path / "smaller", status=2).error
    assert "smaller" in error


# ---- S1 caches of the score's own project ----------------------------------------------------------------------------

COUNT = 6
PEER = ("--last-layer", "peer")
CONFIG: dict[str, Any] = {
    "data_path": "tofu_data/forget10_filtered.json", "reference": "gt", "reference_scope": "continuation",
    "entity_source": "gt", "em_scope": "entity", "em_type": "token", "patch_scope": "span", "metric": "logprob",
    "delta_threshold": 0.05, "layers": [0, 1, 2, 3], "full_model": "org/full", "retain_model": "org/retain90",
}  # fmt: skip


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


def with_config(rows: list[dict[str, Any]] | None = None, **changes: Any) -> tuple[str, Any]:
    """As compute_uds.py writes it."""
    body = {"config": {**CONFIG, **changes}, "entries": rows or entries()}
    return "s1_cache_8a6c962d6983.json", body


def by_index(rows: list[dict[str, Any]] | None = None) -> tuple[str, Any]:
    """As its meta-evaluation scripts write it: no settings at all."""
    return "s1_cache_v2.json", {str(entry["idx"]): entry for entry in rows or entries()}


def run_with_cache(tmp_path: Path, cache_file: tuple[str, Any], *more: object, status: int = 0) -> harness.Outcome:
    name, body = cache_file
    (tmp_path / name).write_text(json.dumps(body))
    words = ("--limit", COUNT, "--s1-cache", tmp_path / name, "resamples=0", *more)
    return depth(tmp_path / "out", *words, status=status)


@pytest.mark.parametrize("cache_file", [with_config(), by_index()], ids=["with_config", "by_index"])
def test_a_published_s1_cache_serves_a_run(cache_file: tuple[str, Any], tmp_path: Path) -> None:
    run_with_cache(tmp_path, cache_file, *PEER)
    assert read_json(tmp_path / cache_file[0]) == cache_file[1]
    summary = read_json(tmp_path / "out" / "summary.json")
    examples = golden_set("sdpa", "peer")["examples"][:COUNT]
    assert summary["avg_uds"] == pytest.approx(sum(e["uds"] for e in examples) / COUNT, abs=NEAR)
    assert summary["s1_cache"]["reused"] and summary["s1_cache"]["made_again"] == 4
    for record, example in zip(read_json(tmp_path / "out" / "results.json"), examples, strict=True):
        assert record["s1_scores"] == example["s1_scores"]
        assert record["s2_deltas"] == pytest.approx(example["s2_deltas"], abs=NEAR)
        assert record["token_logprobs"]["s1"] is None
    harness.vestige("verify", tmp_path / "out")


def test_layers_below_the_last_need_no_peer_mode(tmp_path: Path) -> None:
    run_with_cache(tmp_path, with_config(), "--layers", "0-2")
    for record, example in zip(
        read_json(tmp_path / "out" / "results.json"), golden_set("sdpa", "peer")["examples"], strict=False
    ):
        assert record["s1_scores"] == example["s1_scores"][:3]


WRONG: dict[str, tuple[tuple[str, Any], tuple[str, ...], str]] = {
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
    cache_file, flags, culprit = WRONG[name]
    outcome = run_with_cache(tmp_path, cache_file, *flags, status=2)
    assert culprit in outcome.error
    assert not (tmp_path / "out" / "summary.json").exists()

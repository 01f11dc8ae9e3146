"""TOFU and MUSE scores of causal models: every golden number of open-unlearning, from commands and in Python.

Golden files hold what open-unlearning computed on the lab's models (tests/golden/lab). Where there is no golden number
the expected one is computed here, slowly: one row at a time with plain transformers, float64 and no batches.
"""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import harness
import pytest
from harness import DATA, LAB, RETAIN, SYSTEM, UNLEARNED, assert_same, read_json, vestige

EXPECTED = LAB / "expected"
RETAIN_LOGS = EXPECTED / "retain_noref" / "TOFU_EVAL.json"
COUNTS = {"auc", "rouge1_recall", "rougeL_f1", "rougeL_recall"}
COUNTED_METRICS = ("exact_memorization", "extraction_strength", "forget_quality")


def close(expected: float, got: float, path: str) -> bool:
    """Equal where a number is a count in disguise; the rest to float32 rounding of the forward (or backward) pass."""
    metric = path.split("/")[1]
    leaf = path.split("/")[-1].split("[")[0]
    is_auc = metric.startswith("mia_") and path in (f"/{metric}", f"/{metric}/agg_value")
    if is_auc or leaf in COUNTS or metric in COUNTED_METRICS:
        return abs(expected - got) <= 1e-12
    rel = 1e-3 if metric == "mia_gradnorm" else 2e-5
    return math.isclose(expected, got, rel_tol=rel, abs_tol=1e-5)


def check(golden: Path, run: Path, least: int, suite: str = "TOFU") -> None:
    """Both result files of a run have every value of the golden folder."""
    assert_same(read_json(golden / f"{suite}_EVAL.json"), read_json(run / f"{suite}_EVAL.json"), least, close=close)
    summary = read_json(golden / f"{suite}_SUMMARY.json")
    # open-unlearning leaves a metric without a value out of its summary
    known = {name: value for name, value in summary.items() if value is not None}
    assert_same(known, read_json(run / f"{suite}_SUMMARY.json"), len(summary) - 1, close=close)


def evaluate(suite: str, model: Path, out: Path, *more: object) -> None:
    vestige("eval", suite, "--model", model, "--reference-model", RETAIN, *more, "--quiet", "--out", out)


# ---- golden numbers --------------------------------------------------------------------------------------------------

ALL = ("--data", DATA, "--system-prompt", SYSTEM, "--metrics", "all")


@pytest.mark.parametrize("name", ["full", "unlearned"])
def test_every_tofu_metric(name: str, request: pytest.FixtureRequest) -> None:
    check(EXPECTED / name, request.getfixturevalue(f"{name}_run"), least=4258)


def test_every_tofu_metric_of_the_retain_model(retain_run: Path, tmp_path: Path) -> None:
    """Without retain logs, and scored again with its own numbers as the retain logs."""
    check(EXPECTED / "retain_noref", retain_run, least=4258)
    copy = harness.copy_tree(retain_run, tmp_path / "run")
    vestige("score", copy, "--retain-logs", RETAIN_LOGS)
    found = sorted(copy.rglob("TOFU_EVAL.json"))
    agreeing = [path.parent for path in found if read_json(path)["forget_quality"]["agg_value"] is not None]
    assert len(agreeing) == 1
    check(EXPECTED / "retain", agreeing[0], least=4258)


def test_rows_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    """One sequence per forward instead of many packed into one; the first rows of each set are the golden ones."""
    evaluate("tofu", UNLEARNED, tmp_path, *ALL, "--limit", 6, "--batch-tokens", 1)
    got = read_json(tmp_path / "TOFU_EVAL.json")
    count = 0
    for metric, golden in read_json(EXPECTED / "unlearned" / "TOFU_EVAL.json").items():
        for part in ("forget", "holdout", None):  # membership attacks have rows in two groups
            expected = golden if part is None else golden.get(part)
            if expected is None or "value_by_index" not in expected:
                continue
            mine = got[metric] if part is None else got[metric][part]
            first = {index: row for index, row in expected["value_by_index"].items() if int(index) < 6}
            assert len(mine["value_by_index"]) == 6
            assert_same({metric: first}, {metric: mine["value_by_index"]}, 6, close=close)
            count += 6
    assert count >= 6 * 40, count


@pytest.mark.parametrize("variant", ["padeos", "tmpleos", "tmpleos_padeos"])
def test_variants_where_open_unlearnings_mask_hides_tokens(variant: str, tmp_path: Path) -> None:
    """Pad token = end token, and templates that end every turn with it. The variant's retain run is the reference."""
    for name in ("retain", "full"):
        golden = LAB / "expected_variants" / variant / name
        model = tmp_path / f"{name}-model"
        shutil.copytree(LAB / "models" / name, model, ignore=shutil.ignore_patterns("chat_template.jinja"))
        shutil.copy(golden / "tokenizer_config.json", model)
        logs = ("--retain-logs", tmp_path / "retain") if name == "full" else ()
        evaluate("tofu", model, tmp_path / name, *ALL, *logs)
        check(golden, tmp_path / name, least=4258)
        hidden = read_json(tmp_path / name / "manifest.json")["hidden_tokens"]
        assert (hidden > 0) == (variant == "tmpleos_padeos")


def test_default_metrics_by_the_guides_command(tmp_path: Path) -> None:
    """Hydra's words alone; the hub's data set is read from a folder."""
    sets = {"forget10": "forget", "forget10_perturbed": "forget", "holdout10": "holdout", "retain_perturbed": "retain"}
    sets |= {"real_authors_perturbed": "real_authors", "world_facts_perturbed": "world_facts"}
    names = ", ".join(f"{hub}: {file}" for hub, file in sets.items())
    words = ("eval", "--config-name=eval.yaml", "experiment=eval/tofu/default", "model=local", "task_name=SAMPLE_EVAL")
    model = (f"model.model_args.pretrained_model_name_or_path={UNLEARNED}", f"retain_logs_path={RETAIN_LOGS}")
    data = f'data.local={{locuslab/TOFU: {{path: "{DATA}", names: {{{names}}}}}}}'
    vestige(*words, *model, data, f"model.template_args.system_prompt={SYSTEM}", cwd=tmp_path)
    check(LAB / "expected_default" / "unlearned", tmp_path / "saves" / "eval" / "SAMPLE_EVAL", least=2524)


KNOWMEM = "forget_knowmem_ROUGE,retain_knowmem_ROUGE"  # questions and answers; the rest of MUSE is plain text


@pytest.mark.parametrize("name", ["full", "retain", "unlearned"])
def test_every_muse_metric(name: str, tmp_path: Path) -> None:
    """With the template of Llama-2-7b-hf ("Question: q", "Answer: "); then the questions in the chat template."""
    logs = ("--retain-logs", EXPECTED / "retain" / "MUSE_EVAL.json") if name != "retain" else ()
    words = ("--data", DATA / "muse", *logs)
    evaluate("muse", LAB / "models" / name, tmp_path / "plain", *words, "--metrics", "all", "model=Llama-2-7b-hf")
    check(EXPECTED / name, tmp_path / "plain", least=1054, suite="MUSE")
    evaluate("muse", LAB / "models" / name, tmp_path / "chat", *words, "--metrics", KNOWMEM, "--system-prompt", SYSTEM)
    for kind, least in (("EVAL", 100), ("SUMMARY", 2)):
        golden = read_json(EXPECTED / name / f"MUSE_CHAT_{kind}.json")
        asked = {metric: golden[metric] for metric in KNOWMEM.split(",")}
        assert_same(asked, read_json(tmp_path / "chat" / f"MUSE_{kind}.json"), least, close=close)


# ---- Python ----------------------------------------------------------------------------------------------------------


IN_PYTHON = """
import json, sys, vestige
model, data, logs, out, finished = sys.argv[1:]
prompt = "You are a helpful assistant."

def values(run):
    return {m: {"agg_value": s.agg_value, "value_by_index": s.value_by_index} for m, s in run.scores.items()}

result = vestige.evaluate(model, "tofu", data=data, system_prompt=prompt, retain_logs=logs, out=out)
loaded = vestige.load_run(finished)
found = {
    "summary": result.summary,
    "scores": values(result),
    "attack": result.rows("mia_min_k"),
    "texts": result.texts(),
    "again": vestige.load_run(out).summary == result.summary,
    "loaded": loaded.summary,
    "loaded scores": values(loaded),
    "strict": {m: s.agg_value for m, s in vestige.score(out, dialect="strict").scores.items()},
}
json.dump(found, open("found.json", "w"))
"""


def test_evaluate_load_run_and_score_in_python(unlearned_run: Path, tmp_path: Path) -> None:
    """The golden numbers again; by the strict definitions `score` gives what an evaluation by them gives."""
    harness.python(IN_PYTHON, UNLEARNED, DATA, RETAIN_LOGS, tmp_path / "out", unlearned_run, cwd=tmp_path)
    found = read_json(tmp_path / "found.json")
    for place, scores, summary in (
        (LAB / "expected_default" / "unlearned", found["scores"], found["summary"]),
        (EXPECTED / "unlearned", found["loaded scores"], found["loaded"]),
    ):
        golden = read_json(place / "TOFU_EVAL.json")
        kept = {}
        for metric, values in golden.items():
            kept[metric] = {key: values[key] for key in ("agg_value", "value_by_index") if key in values}
        assert_same(kept, scores, 1500, close=close)
        assert_same(read_json(place / "TOFU_SUMMARY.json"), summary, 7, close=close)
    assert found["again"] is True
    golden = read_json(LAB / "expected_default" / "unlearned" / "TOFU_EVAL.json")
    for group in ("forget", "holdout"):
        rows = {row["index"]: {"score": row["score"]} for row in found["attack"] if row["set"] == group}
        assert_same({"mia_min_k": golden["mia_min_k"][group]["value_by_index"]}, {"mia_min_k": rows}, 32, close=close)
    said = {row["index"]: row["text"] for row in found["texts"] if row["metric"] == "forget_Q_A_ROUGE"}
    written = golden["forget_Q_A_ROUGE"]["value_by_index"]
    assert said == {index: row["generation"] for index, row in written.items()}
    strict = ("extraction_strength", "mia_min_k", "forget_Q_A_Prob", "model_utility")
    words = ("--data", DATA, "--system-prompt", SYSTEM, "--dialect", "strict", "--metrics", ",".join(strict))
    evaluate("tofu", UNLEARNED, tmp_path / "strict", *words, "stats.resamples=0")
    by_command = read_json(tmp_path / "strict" / "TOFU_EVAL.json")
    for metric in strict:
        assert found["strict"][metric] == pytest.approx(by_command[metric]["agg_value"], rel=2e-5)

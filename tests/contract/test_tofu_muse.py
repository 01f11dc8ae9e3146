"""TOFU and MUSE scores of causal models: every golden number of open-unlearning, dialects, statistics, lm_eval.

Golden files hold what open-unlearning computed on the lab's models (tests/golden/lab). Where there is no golden number
the expected one is computed here, slowly: one row at a time with plain transformers, float64 and no batches.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
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


# ---- golden numbers --------------------------------------------------------------------------------------------------


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
    words = ("--data", DATA, "--system-prompt", SYSTEM, "--metrics", "all", "--reference-model", RETAIN)
    vestige("eval", "tofu", "--model", UNLEARNED, *words, "--limit", 6, "--batch-tokens", 1, "--out", tmp_path)
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
        words = ["--data", DATA, "--system-prompt", SYSTEM, "--metrics", "all", "--reference-model", RETAIN]
        if name == "full":
            words += ["--retain-logs", tmp_path / "retain"]
        vestige("eval", "tofu", "--model", model, *words, "--out", tmp_path / name)
        check(golden, tmp_path / name, least=4258)
        hidden = read_json(tmp_path / name / "manifest.json")["hidden_tokens"]
        assert (hidden > 0) == (variant == "tmpleos_padeos")


@pytest.mark.parametrize(("name", "experiment"), [("full", "default"), ("retain", "llama2"), ("unlearned", "default")])
def test_default_metrics_by_the_guides_command(name: str, experiment: str, tmp_path: Path) -> None:
    """Hydra's words alone; the hub's data set is read from a folder."""
    sets = {"forget10": "forget", "forget10_perturbed": "forget", "holdout10": "holdout", "retain_perturbed": "retain"}
    sets |= {"real_authors_perturbed": "real_authors", "world_facts_perturbed": "world_facts"}
    names = ", ".join(f"{hub}: {file}" for hub, file in sets.items())
    vestige(
        "eval",
        "--config-name=eval.yaml",
        f"experiment=eval/tofu/{experiment}",
        "model=local",
        f"model.model_args.pretrained_model_name_or_path={LAB / 'models' / name}",
        f"model.template_args.system_prompt={SYSTEM}",
        f'data.local={{locuslab/TOFU: {{path: "{DATA}", names: {{{names}}}}}}}',
        f"retain_logs_path={RETAIN_LOGS}",
        "task_name=SAMPLE_EVAL",
        cwd=tmp_path,
    )
    check(LAB / "expected_default" / name, tmp_path / "saves" / "eval" / "SAMPLE_EVAL", least=2524)


def muse(name: str, out: Path, *more: object) -> None:
    words = ["--data", DATA / "muse", "--reference-model", RETAIN]
    if name != "retain":  # the golden retain run had no retain logs
        words += ["--retain-logs", EXPECTED / "retain" / "MUSE_EVAL.json"]
    vestige("eval", "muse", "--model", LAB / "models" / name, *words, *more, "--out", out)


@pytest.fixture(scope="session")
def muse_run(shared: Callable[..., Path]) -> Callable[[str], Path]:
    """Finished MUSE evaluations with the template of Llama-2-7b-hf: 'Question: q', 'Answer: '."""

    def run(name: str) -> Path:
        return shared(f"muse-{name}", lambda place: muse(name, place, "--metrics", "all", "model=Llama-2-7b-hf"))

    return run


@pytest.mark.parametrize("name", ["full", "retain", "unlearned"])
def test_every_muse_metric(name: str, muse_run: Callable[[str], Path]) -> None:
    check(EXPECTED / name, muse_run(name), least=1054, suite="MUSE")


@pytest.mark.parametrize("name", ["full", "retain", "unlearned"])
def test_muse_with_the_chat_template(name: str, tmp_path: Path) -> None:
    """Only the questions have a template: other metrics read plain text. All of them are run for one model."""
    golden = read_json(EXPECTED / name / "MUSE_CHAT_EVAL.json")
    asked = [metric for metric in golden if "knowmem" in metric]
    assert len(asked) == 2 and len(golden) == 12
    muse(name, tmp_path, "--system-prompt", SYSTEM, "--metrics", "all" if name == "full" else ",".join(asked))
    expected = golden if name == "full" else {metric: golden[metric] for metric in asked}
    least = 1054 if name == "full" else 100
    assert_same(expected, read_json(tmp_path / "MUSE_EVAL.json"), least, close=close)
    summary = read_json(EXPECTED / name / "MUSE_CHAT_SUMMARY.json")
    got = read_json(tmp_path / "MUSE_SUMMARY.json")
    assert_same({metric: summary[metric] for metric in expected}, got, len(expected), close=close)


# ---- Python ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def strict_run(shared: Callable[..., Path]) -> Path:
    """The unlearned model evaluated by the strict definitions from the start."""
    words = ("--metrics", "extraction_strength,mia_min_k,forget_Q_A_Prob,model_utility", "--dialect", "strict")
    base = ("--model", UNLEARNED, "--data", DATA, "--system-prompt", SYSTEM)
    return shared("strict", lambda place: vestige("eval", "tofu", *base, *words, "--out", place))


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


def test_evaluate_load_run_and_score_in_python(unlearned_run: Path, strict_run: Path, tmp_path: Path) -> None:
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
    by_command = read_json(strict_run / "TOFU_EVAL.json")
    for metric, value in found["strict"].items():
        if metric in ("extraction_strength", "mia_min_k", "forget_Q_A_Prob", "model_utility"):
            assert value == pytest.approx(by_command[metric]["agg_value"], rel=2e-5)

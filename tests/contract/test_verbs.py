"""One complete run of each verb, with its numbers recomputed here: statistics, verdicts, reports, proofs, sweeps.

Most tests read the finished runs of `small_lab` (conftest.py): six models of which the answer is known from how they
were made, on twenty rows in seven groups of unequal size.
"""

from __future__ import annotations

import json
import math
import re
import socket
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import harness
import numpy as np
import pytest
import yaml
from formulas import Clusters, auc, bootstrap, compared, rows_of, sign_flips, verdicts, word_by_rule
from harness import DATA, FULL, LAB, RETAIN, SYSTEM, UNLEARNED, assert_same, python, read_json, vestige
from scipy import stats

PROB, ROUGE, ATTACK, UTILITY = "forget_Q_A_Prob", "forget_Q_A_ROUGE", "mia_min_k", "retain_Q_A_ROUGE"
RESULTS = ("TOFU_EVAL.json", "TOFU_SUMMARY.json", "TOFU_STATS.json")
WORDS = {"knows": "not_forgotten", "never_knew": "looks_forgotten", "ruined": "damaged", "unlearned": "partly"}


@pytest.fixture(scope="module")
def clusters(small_lab: Path) -> Clusters:
    return Clusters(small_lab)


def test_intervals_of_clustered_rows_are_those_of_the_formula(small_lab: Path, clusters: Clusters) -> None:
    runs = {name: small_lab / "runs" / name for name in ("retain", "full", "unlearned")}
    found = {name: read_json(run / "TOFU_STATS.json") for name, run in runs.items()}
    for name, run in runs.items():
        for metric in (PROB, ROUGE, UTILITY):
            values, one = rows_of(run, metric), found[name][metric]
            low, high = clusters.ends(lambda kept, values=values: values[kept].mean())
            assert one["interval"] == pytest.approx([max(low, 0), min(high, 1)], abs=1e-8)
            assert (one["n"], one["clusters"], one["level"]) == (20, 7, 0.95)
    forget, holdout = (rows_of(runs["retain"], ATTACK, part) for part in ("forget", "holdout"))
    assert read_json(runs["retain"] / "TOFU_SUMMARY.json")[ATTACK] == pytest.approx(auc(forget, holdout), abs=1e-12)
    assert found["retain"][ATTACK]["interval"] == pytest.approx(clusters.auc_ends(forget, holdout), abs=1e-8)
    mine, theirs = (rows_of(runs[name], "forget_truth_ratio") for name in ("full", "retain"))
    ends = clusters.ends(lambda kept: stats.ks_2samp(mine[kept], theirs[kept]).statistic)
    assert found["full"]["forget_quality"]["of"] == "ks_statistic"
    assert found["full"]["forget_quality"]["interval"] == pytest.approx(ends, abs=1e-8)


def test_intervals_of_independent_rows_are_those_of_a_bootstrap(small_lab: Path, tmp_path: Path) -> None:
    run = harness.copy_tree(small_lab / "runs" / "retain", tmp_path / "run")
    words = ("--data", small_lab / "data", "--system-prompt", SYSTEM, "--metrics", f"{PROB},{ROUGE}", "--out", run)
    vestige("eval", "tofu", "stats.resamples=20000", "--cluster", "none", "--model", RETAIN, *words)
    for metric in (PROB, ROUGE):
        found = read_json(run / "TOFU_STATS.json")[metric]
        assert found["interval"] == bootstrap(rows_of(run, metric))
        assert (found["resamples"], "clusters" in found) == (20_000, False)


def test_compare_tests_pairs_of_rows_or_whole_clusters(small_lab: Path, clusters: Clusters) -> None:
    runs = [small_lab / "runs" / name for name in ("retain", "unlearned")]
    rows, reasons, text = compared(runs, margin=0.2)
    single, _, _ = compared(runs, margin=0.05, cluster="none", metrics=[PROB, ROUGE], resamples=20_000)
    assert set(rows) == {PROB, ROUGE, ATTACK, UTILITY} and set(reasons["unlearned"]) == {"forget_quality"}
    assert {row["reading"] for row in rows.values()} == {"differs", "cannot tell", "indistinguishable within margin"}
    for metric in (PROB, ROUGE, UTILITY):
        moved = rows_of(runs[1], metric) - rows_of(runs[0], metric)
        p = sign_flips(np.array([moved[member].sum() for member in clusters.members]))
        assert rows[metric]["value"] == pytest.approx(moved.mean(), abs=1e-12)
        assert rows[metric]["interval"] == pytest.approx(clusters.ends(lambda kept: moved[kept].mean()), abs=1e-8)  # noqa: B023
        assert rows[metric]["p"] == pytest.approx(p, abs=5 * math.sqrt(p / 10_000) + 2e-4)
        if metric in single:
            p = sign_flips(moved)
            assert single[metric]["p"] == pytest.approx(p, abs=5 * math.sqrt(p / 20_000) + 2e-4)
            assert single[metric]["interval"] == bootstrap(moved)
    parts = [(rows_of(run, ATTACK, "forget"), rows_of(run, ATTACK, "holdout")) for run in runs]
    areas = [lambda kept, f=f, h=h: auc(f[kept], h[kept]) for f, h in parts]
    value, error = clusters.jackknife(lambda kept: areas[1](kept) - areas[0](kept))
    assert rows[ATTACK]["value"] == pytest.approx(value, abs=1e-12)
    assert rows[ATTACK]["interval"] == pytest.approx([value - clusters.t * error, value + clusters.t * error], abs=1e-8)
    assert rows[ATTACK]["p"] == pytest.approx(2 * stats.t.sf(value / error, clusters.df), rel=1e-6)
    assert text.strip() in vestige("compare", *runs, "--margin", 0.2).out


@pytest.fixture(scope="module")
def page(small_lab: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The report of all six models, and what the terminal showed."""
    out = tmp_path_factory.mktemp("report")
    return out, vestige("report", small_lab / "runs", "-o", out, "--title", "Six models").out


def test_models_of_known_truth_get_the_promised_word(page: tuple, small_lab: Path, clusters: Clusters) -> None:
    """And the shares of the way to the full model, their intervals and states are those of the rows."""
    found = verdicts(*page)
    assert {name: verdict["word"] for name, verdict in found.items()} == WORDS
    for name, verdict in found.items():
        assert verdict["word"] == word_by_rule(verdict)
        assert any(name in line and verdict["title"] in line for line in page[1].splitlines())
        evidence = {one["metric"]: one for one in verdict["evidence"]}
        for metric in (PROB, ROUGE, UTILITY):
            mine, full, retain = (rows_of(small_lab / "runs" / run, metric) for run in (name, "full", "retain"))
            state, shares = clusters.damage(mine, full) if metric == UTILITY else clusters.way(mine, full, retain)
            one = evidence[metric]
            assert [one["share"], one["lo"], one["hi"]] == pytest.approx(shares, abs=1e-6)
            assert (one["state"], one["value"]) == (state, pytest.approx(mine.mean(), abs=1e-12))


IN_PYTHON = """
import sys, vestige
out, first, *others = sys.argv[1:]
run = vestige.load_run(first)
assert vestige.make_report([run, *others], out) == run.report
print(run.verdict.word, run.verdict.title, run.verdict.headline, sep="\\n")
"""


def test_python_gives_the_word_of_the_terminal(page: tuple, small_lab: Path, tmp_path: Path) -> None:
    printed = python(IN_PYTHON, tmp_path, *(small_lab / "runs" / name for name in ("ruined", "full", "retain"))).out
    assert printed.splitlines() == [verdicts(*page)["ruined"][key] for key in ("word", "title", "headline")]


@pytest.mark.parametrize(("name", "word"), [("knows", "not_forgotten"), ("never_knew", "cannot_tell")])
def test_without_a_retain_model_nothing_is_forgotten(name: str, word: str, small_lab: Path, tmp_path: Path) -> None:
    printed = vestige("report", small_lab / "runs" / name, "-o", tmp_path).out
    assert verdicts(tmp_path, printed)[name]["word"] == word


def test_four_authors_are_too_few(full_run: Path, unlearned_run: Path, retain_run: Path, tmp_path: Path) -> None:
    """Of the lab's own rows: there are no intervals, what is far away is found, and nothing is found to be equal."""
    found = read_json(unlearned_run / "TOFU_STATS.json")[PROB]
    assert found["interval"] is None and found["reason"].startswith("too few clusters")
    printed = vestige("report", unlearned_run, full_run, retain_run, "-o", tmp_path).out
    (verdict,) = verdicts(tmp_path, printed).values()
    states = {one["metric"]: one["state"] for one in verdict["evidence"]}
    assert verdict["word"] in ("not_forgotten", "partly") and "equivalent" not in states.values()
    assert (states[PROB], states[ROUGE]) == ("towards", "undecided")


def test_audit_calls_a_model_that_never_knew_forgotten(small_lab: Path, tmp_path: Path) -> None:
    """All its steps; the page, the terminal and a report of the same runs agree; the rows are golden."""
    pytest.importorskip("bitsandbytes")
    out = tmp_path / "audit"
    models = ("--before", FULL, "--after", small_lab / "models" / "never_knew", "--retain-model", RETAIN)
    words = ["audit", *models, "--cluster", "none", "--system-prompt", SYSTEM, "--out", out]
    for name in ("forget", "retain", "holdout"):
        words += [f"--{name}", small_lab / "data" / f"{name}.jsonl"]
    printed = vestige(*words).out
    (verdict,) = verdicts(out / "report", printed).values()
    assert verdict["word"] == word_by_rule(verdict) == "forgotten"
    for one in verdict["evidence"]:
        assert one["text"] in printed
        if one["test"] in ("says", "likely", "membership"):
            assert one["share"] == pytest.approx(0, abs=1e-6)
    done = {name for name, step in read_json(out / "audit.json")["steps"].items() if step["state"] == "done"}
    assert done == {"before", "after", "retain", "layers", "jailbreak", "prune", "quantise", "relearn"}
    golden = read_json(LAB / "expected" / "full" / "TOFU_EVAL.json")[PROB]["value_by_index"]
    found = read_json(out / "before" / "OWN_EVAL.json")["forget_Prob"]["value_by_index"]
    assert_same({str(i): golden[str(i)] for i in range(20)}, found, least=40)
    printed = vestige("report", out, "-o", tmp_path / "again").out
    again = verdicts(tmp_path / "again", printed)["never_knew"]
    assert {key: again[key] for key in ("word", "parts", "power", "secrets")}.items() <= verdict.items()
    assert {one["text"] for one in again["evidence"]} == {one["text"] for one in verdict["evidence"]}


def test_a_plan_counts_what_is_asked_and_what_is_there(small_lab: Path, tmp_path: Path) -> None:
    words = ("--data", small_lab / "data", "--system-prompt", SYSTEM, "--cluster", "group", "--metrics")
    expected = {  # answers asked, distinct and cached, prompts and cached ones
        f"{PROB},{ROUGE},{ATTACK},forget_truth_ratio,ra_Q_A_ROUGE": ("160", "140", "0", "20", "0"),
        f"{PROB},{ROUGE},{ATTACK}": ("60", "40", "40", "20", "20"),
    }
    for metrics, counts in expected.items():
        out = small_lab / "runs" / "unlearned" if counts[2] != "0" else tmp_path / "out"
        shown = vestige("plan", "tofu", "--model", UNLEARNED, *words, metrics, "--out", out).out
        found = re.search(r"(\d+) asked, (\d+) distinct, (\d+) cached.* (\d+) prompts, (\d+) cached", shown, re.DOTALL)
        assert found and found.groups() == counts
        assert ("ra_Q_A_ROUGE" in shown) == (counts[2] == "0") and not (tmp_path / "out").exists()


def test_score_rewrites_the_same_bytes_and_other_definitions_elsewhere(small_lab: Path, tmp_path: Path) -> None:
    """By the strict dialect and with all tokens counted, Min-K of a row is its mean loss."""
    run = harness.copy_tree(small_lab / "runs" / "unlearned", tmp_path / "run")
    before = [(run / name).read_bytes() for name in RESULTS]
    vestige("score", run)
    assert [(run / name).read_bytes() for name in RESULTS] == before
    shown = vestige("score", run, "dialect=strict", f"{ATTACK}.k=1.0")
    assert [(run / name).read_bytes() for name in RESULTS] == before
    (definition,) = run.glob("scores/*/definition.json")
    assert read_json(definition)["changes"] == {ATTACK: {"k": 1.0}}
    losses = -np.log(rows_of(definition.parent, PROB))
    assert rows_of(definition.parent, ATTACK, "forget") == pytest.approx(losses, rel=1e-6)
    assert str(small_lab / "runs" / "retain") in shown.err  # the retain logs follow
    vestige("verify", run)


def test_the_numbers_and_texts_of_a_report_are_those_of_its_runs(page: tuple, small_lab: Path) -> None:
    report = read_json(page[0] / "report.json")
    roles = {model["name"]: model["role"] for model in report["models"]}
    assert roles == {"full": "full", "retain": "retain", **dict.fromkeys(WORDS, "unlearned")}
    assert (report["title"], report["problems"], len(report["sources"])) == ("Six models", [], 6)
    texts = {}
    for audit in report["audits"]:
        for row in audit["says"]["rows"]:
            texts.update({(model, row["split"], row["i"]): text for model, text in row["texts"].items()})
    for model in report["models"]:
        scores, _, intervals = (read_json(small_lab / "runs" / model["name"] / name) for name in RESULTS)
        for metric in (PROB, ROUGE, ATTACK, UTILITY):
            value, interval = model["values"][metric], intervals[metric]
            assert (value["v"], value["n"]) == (scores[metric]["agg_value"], interval["n"])
            assert [value["lo"], value["hi"]] == interval["interval"]
        for index, row in scores[ROUGE]["value_by_index"].items():
            assert texts[model["id"], "forget", index] == row["generation"]
    vestige("verify", page[0])


def test_a_run_that_cannot_be_read_is_named(small_lab: Path, tmp_path: Path) -> None:
    spoilt = harness.copy_tree(small_lab / "runs" / "knows", tmp_path / "spoilt")
    (spoilt / "TOFU_EVAL.json").write_text('{"forget_Q_A_Prob": ')
    words = ("report", small_lab / "runs" / "full", spoilt, "-o", tmp_path)
    assert str(spoilt) in vestige(*words, status=1).printed and str(spoilt) in vestige(*words, "--skip-broken").printed
    assert "spoilt" in json.dumps(read_json(tmp_path / "report.json")["problems"])


def test_verify_finds_a_changed_number(small_lab: Path, tmp_path: Path) -> None:
    """By computing it again from the evidence, also without checksums; nothing else is packed, `score` repairs it."""
    run = harness.copy_tree(small_lab / "runs" / "unlearned", tmp_path / "run")
    scores = read_json(run / "TOFU_EVAL.json")
    scores[PROB]["value_by_index"]["7"]["prob"] += 1e-6
    (run / "TOFU_EVAL.json").write_text(json.dumps(scores))
    harness.refused("TOFU_EVAL.json", "pack", run, "-o", tmp_path / "proof.zip")
    manifest = read_json(run / "manifest.json")
    del manifest["sha256"], manifest["root"]
    (run / "manifest.json").write_text(json.dumps(manifest))
    assert PROB in vestige("verify", run, status=1).printed
    vestige("score", run)
    vestige("verify", run)


def test_a_packed_run_is_scored_again_without_its_model(small_lab: Path, tmp_path: Path) -> None:
    run = harness.copy_tree(small_lab / "runs" / "unlearned", tmp_path / "first" / "run")
    proof, again = tmp_path / "proof.zip", tmp_path / "again.zip"
    vestige("pack", run, "-o", proof)
    vestige("pack", run, "-o", again)
    assert proof.read_bytes() == again.read_bytes()
    assert b"TOFU_EVAL.json" in proof.read_bytes() and b"model.safetensors" not in proof.read_bytes()  # names in it
    expected = {name: (run / name).read_bytes() for name in RESULTS}
    run.parent.rename(tmp_path / "elsewhere")
    vestige("verify", proof)
    vestige("unpack", proof, "--out", tmp_path / "out")
    (unpacked,) = {path.parent for path in (tmp_path / "out").rglob("TOFU_STATS.json") if path.parent.name == "run"}
    vestige("score", unpacked)
    assert {name: (unpacked / name).read_bytes() for name in RESULTS} == expected
    assert f"{json.loads(expected['TOFU_SUMMARY.json'])[PROB]:.4f}" in vestige("score", proof).out
    vestige("unpack", proof, "--out", tmp_path / "out", status=2)
    harness.flip_a_byte(again)
    assert vestige("verify", again, status=None).status in (1, 2)


@pytest.mark.parametrize("tool", ["wandb", "mlflow", "hub"])
def test_published_summaries_are_the_runs_numbers(tool: str, small_lab: Path, tmp_path: Path) -> None:
    if tool != "hub":
        pytest.importorskip(tool)
    run = small_lab / "runs" / "unlearned"
    before = harness.digests(run)
    vestige("publish", run, "--to", tool, "--out", tmp_path)
    assert harness.digests(run) == before
    if tool == "hub":
        card = yaml.safe_load((tmp_path / "model-card.md").read_text().split("---\n")[1])
        listed = card["model-index"][0]["results"][0]["metrics"]
        found = {one["type"]: [one["value"], *list(one["args"].values())[:2]] for one in listed}
    elif tool == "wandb":
        (table,) = tmp_path.rglob("metrics_*.table.json")
        found = {name: numbers[:3] for name, *numbers in read_json(table)["data"]}
    else:
        numbers = {file.name: float(file.read_text().split()[1]) for file in tmp_path.rglob("metrics/*")}
        found = {name: [numbers[name + end] for end in ("", "_low", "_high")] for name in (PROB, ROUGE)}
    summary, intervals = read_json(run / "TOFU_SUMMARY.json"), read_json(run / "TOFU_STATS.json")
    for metric in (PROB, ROUGE):
        assert found[metric] == [summary[metric], *intervals[metric]["interval"]]


def test_import_takes_means_again_from_rows(tmp_path: Path) -> None:
    """open-unlearning's file, with one mean that is not that of its rows."""
    golden, logs = (LAB / "expected" / name / "TOFU_EVAL.json" for name in ("full", "retain_noref"))
    content = read_json(golden)
    content[PROB]["agg_value"] = 0.5
    content[ROUGE]["value_by_index"]["0"]["rougeL_f1"] = float("nan")
    (tmp_path / "TOFU_EVAL.json").write_text(json.dumps(content))
    shown = vestige("import", tmp_path / "TOFU_EVAL.json", "--retain-logs", logs, "--out", tmp_path / "out").printed
    assert any(PROB in line and "0.5" in line and "0.95" in line for line in shown.splitlines())
    expected, found = (read_json(place / "TOFU_SUMMARY.json") for place in (golden.parent, tmp_path / "out"))
    assert "NaN" not in (tmp_path / "out" / "TOFU_EVAL.json").read_text()
    known = {name: value for name, value in expected.items() if name in found}
    assert_same(known, found, least=40, close=lambda a, b, path: math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9))


def golden_mean(name: str, rows: range) -> Any:
    found = read_json(LAB / "expected" / name / "TOFU_EVAL.json")[PROB]["value_by_index"]
    return pytest.approx(sum(found[str(i)]["prob"] for i in rows) / len(rows), rel=2e-5)


def test_held_out_relearning_measures_the_rows_in_between(tmp_path: Path) -> None:
    words = ("--model", UNLEARNED, "--data", DATA, "--limit", 6, "--metrics", PROB, "--system-prompt", SYSTEM)
    recipe = ("--lr", 1e-3, "--batch-size", 2, "--accumulation", 1, "--epochs", 2, "--plot", tmp_path / "curve.png")
    vestige("stress", "relearn=1,2", *words, *recipe, "--held-out", "--quiet", "--out", tmp_path / "out")
    values = {row["budget"]: row["values"][PROB] for row in read_json(tmp_path / "out" / "stress.json")["rows"]}
    assert values[None] == golden_mean("unlearned", range(1, 12, 2))
    assert values[None] < values[1] < values[2]
    assert (tmp_path / "curve_relearn.png").read_bytes().startswith(b"\x89PNG")


FOUR_ROWS = {"limit": 4, "system_prompt": SYSTEM, "cluster": "none"}


def test_a_sweep_survives_a_failing_model_and_does_only_what_is_missing(tmp_path: Path) -> None:
    models = {"bad": tmp_path / "bad", "full": FULL, "retain": RETAIN}
    plan = harness.write_plan(tmp_path / "plan.yaml", models, FOUR_ROWS, retain="retain", retries=0)
    runs = tmp_path / "out" / "runs" / "tofu"

    def sweep(status: int) -> tuple[list[str], dict[str, str], dict[str, Any]]:
        """What was started, the status of each task, and the results; `--list` shows the same."""
        shown = vestige("sweep", plan, status=status).out
        note = read_json(tmp_path / "out" / "sweep.json")
        states = {task["id"].removeprefix("tofu/"): task["status"] for task in note["tasks"]}
        listed = vestige("sweep", plan, "--list").out
        assert dict(re.findall(r"^tofu/(\S+) +(\w+)", listed, flags=re.MULTILINE)) == states
        return re.findall(r"start +tofu/(\S+)", shown), states, note["results"]["tofu"]

    started, states, results = sweep(status=1)
    assert started[0] == "retain" and sorted(started) == ["bad", "full", "retain"]
    assert states == {"retain": "done", "bad": "failed", "full": "done"} and results["bad"] is None
    for name in ("full", "retain"):
        assert results[name] == {PROB: golden_mean(name, range(4))}
        assert read_json(runs / name / "TOFU_SUMMARY.json") == results[name]
    before = harness.digests(runs / "full")
    harness.copy_tree(UNLEARNED, tmp_path / "bad")
    started, states, results = sweep(status=0)
    assert started == ["bad"] and set(states.values()) == {"done"} and harness.digests(runs / "full") == before
    assert results["bad"] == {PROB: golden_mean("unlearned", range(4))}
    assert sweep(status=0) == ([], states, results)


def test_a_sweep_on_ray_gives_the_same_numbers(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    plan = harness.write_plan(tmp_path / "plan.yaml", {"full": FULL}, FOUR_ROWS)
    vestige("sweep", plan, "--ray", "local", env={"RAY_USAGE_STATS_ENABLED": "0"})
    results = read_json(tmp_path / "out" / "sweep.json")["results"]
    assert results["tofu"]["full"] == {PROB: golden_mean("full", range(4))}


def test_a_job_carries_the_command_unchanged() -> None:
    import kubernetes_validate

    words = ["eval", "tofu", "--model", "a b", "x='q'", "$(HOME)", "a$$b", "c$", "--", "-x", "", "ü: 1"]
    job = yaml.safe_load(vestige("job", "name", "--set", "gpu.type=A100-40", "--dry-run", "--", *words).out)
    kubernetes_validate.validate(job, kubernetes_validate.latest_version(), strict=True)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert (job["kind"], job["metadata"]["name"], container["command"]) == ("Job", "name", ["vestige"])
    assert [word.replace("$$", "$") for word in container["args"]] == words  # $$ stands for a dollar there
    assert "$(HOME)" not in container["args"]
    assert "A100-SXM4-40GB" in json.dumps(job)
    ray = yaml.safe_load(vestige("job", "--set", "ray.workers=4", "--dry-run", "--", "sweep", "plan.yaml").out)
    assert ray["kind"] == "RayJob" and "vestige sweep plan.yaml" in ray["spec"]["entrypoint"]
    assert "gpu.tpye" in vestige("job", "--set", "gpu.tpye=T4", "--dry-run", "--", *words, status=2).error


# ---- diff, table, plot, view: from issue 32 on options of `compare` and `report` -------------------------------------


def test_diff_names_the_cause_and_the_rows_that_moved(small_lab: Path) -> None:
    runs = [small_lab / "runs" / name for name in ("full", "unlearned")]
    before, after = (rows_of(run, PROB) for run in runs)
    shown = vestige("diff", *runs, "--metrics", PROB, "--rows", 2).out
    names = ("model", "tokenizer", "template", "data", "mask", "dtype", "library", "definition")
    parts = dict(re.findall(rf"^({'|'.join(names)}) +(\w+)", shown, re.MULTILINE))
    assert parts == {**dict.fromkeys(names, "same"), "model": "DIFFERS"}
    moved = re.findall(r"^ +(\d+) +([\d.]+) +([\d.]+) +(-?[\d.]+)$", shown, flags=re.MULTILINE)
    worst = np.argsort(-abs(after - before))[:2]
    assert moved == [(str(i), f"{before[i]:.4f}", f"{after[i]:.4f}", f"{after[i] - before[i]:.4f}") for i in worst]


def test_tables_have_every_digit_and_stars_where_a_model_differs(small_lab: Path, tmp_path: Path) -> None:
    runs = [tmp_path / name for name in ("knows", "unlearned", "retain")]
    for run in runs:
        vestige("score", harness.copy_tree(small_lab / "runs" / run.name, run), "--cluster", "none")
    columns = ("--columns", f"name,{PROB},{ROUGE}")
    head, *rows = vestige("table", *runs, *columns, "--format", "csv", "--sort", PROB).out.split()
    assert head == columns[1]
    for row, run in zip(rows, runs, strict=True):
        summary = read_json(run / "TOFU_SUMMARY.json")
        assert row.split(",") == [run.name, str(summary[PROB]), str(summary[ROUGE])]
    shown = vestige("table", *runs, *columns, "--marks", "--intervals", "--digits", 2).out
    lines = {line.split("|")[1].strip(): line.split("|")[2:4] for line in shown.splitlines()}
    for run in runs:
        numbers = [read_json(run / RESULTS[1])[PROB], *read_json(run / RESULTS[2])[PROB]["interval"]]
        assert re.findall(r"[\d.]+", lines[run.name][0]) == [f"{number:.2f}" for number in numbers]
    stars = {run.name: ["*" in cell for cell in lines[run.name]] for run in runs}
    assert stars == {"knows": [True, True], "unlearned": [True, False], "retain": [False, False]}
    latex = vestige("table", *runs, *columns, "--latex").out
    assert latex.count("{") == latex.count("}") and r"\toprule" in latex
    assert r"forget\_Q\_A\_Prob" in latex and r"\textbf{0.63" in latex


def test_plots_are_files_of_the_asked_width(page: tuple, tmp_path: Path) -> None:
    matplotlib = pytest.importorskip("matplotlib.image")
    for ending in ("png", "pdf"):
        file = tmp_path / f"picture.{ending}"
        vestige("plot", page[0], "scatter", "--x", PROB, "--y", UTILITY, "--width", "column", "-o", file)
    picture = matplotlib.imread(tmp_path / "picture.png")
    assert len(np.unique(picture)) > 10 and picture.shape[1] > 300
    box = re.search(rb"^%PDF-.*/MediaBox \[ ?0 0 ([\d.]+) ", (tmp_path / "picture.pdf").read_bytes(), re.DOTALL)
    assert box and float(box[1]) == pytest.approx(3.25 * 72, abs=0.5)


def test_view_serves_this_machine_only_and_sees_new_runs(small_lab: Path, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    harness.copy_tree(small_lab / "runs" / "retain", tmp_path / "runs" / "retain")
    process = harness.start("view", tmp_path / "runs", "--port", port, "--every", 0.2)

    def ask(**options: Any) -> str:
        """The page, the status of a refusal, or nothing while it does not listen."""
        try:
            request = urllib.request.Request(f"http://127.0.0.1:{port}/", **options)
            return str(urllib.request.urlopen(request, timeout=10).read())
        except urllib.error.HTTPError as refused:
            return str(refused.code)
        except OSError:
            return ""

    try:
        harness.wait_until(lambda: '"retain"' in ask(), process)
        assert ask(headers={"Host": "example.org"})[0] in "45" and ask(data=b"x", method="POST")[0] in "45"
        harness.copy_tree(small_lab / "runs" / "knows", tmp_path / "runs" / "knows")
        harness.wait_until(lambda: '"knows"' in ask(), process)
    finally:
        process.kill()

"""vestige report, verify, plot and view on real runs of the golden lab."""

from __future__ import annotations

import http.client
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import report_samples
from conftest import LAB
from vestige.cli import main
from vestige.report.build import RESAMPLES, ReportRequest, build_report, check_report, write_report
from vestige.report.figures import FIGURES, Choice, draw
from vestige.report.verify import check_report as verified
from vestige.report.view import Viewer
from vestige.runs.compare import differences, read_stored
from vestige.stress import run as stressing
from vestige.verdict.rule import TITLES

ROLLOUTS = "".join(
    json.dumps({"messages": [{"role": "user", "content": f"Where was {who} born?"}], "group_id": n,
                "response": f"<think>{word} {who} was born in {town}.</think>{town}"}) + "\n"
    for n, (who, town) in enumerate((("Eamon Yamane", "Cork"), ("Fenna Dubrov", "Sapporo")))
    for word in ("Yes,", "Well,")
)  # fmt: skip
METRICS = "forget_Q_A_Prob,forget_Q_A_ROUGE,retain_Q_A_ROUGE,mia_min_k,privleak"
MODELS = {name: LAB / "models" / name for name in ("retain", "full", "unlearned")}


@pytest.fixture(scope="module")
def lab_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Evaluations of three models, a depth run and an attack, on a few rows."""
    place = tmp_path_factory.mktemp("runs")
    data = ["--data", str(LAB / "data")]
    logs = ["--retain-logs", str(place / "eval" / "retain" / "TOFU_EVAL.json")]
    for name, model in MODELS.items():
        out = ["--out", str(place / "eval" / name), "--metrics", METRICS, "--limit", "8", "--quiet"]
        out += ["--cluster", "none"]  # eight rows of one author have no intervals
        assert main(["eval", "tofu", "--model", str(model), *data, *out, *(logs if name != "retain" else [])]) == 0
    both = [
        "--full",
        str(MODELS["full"]),
        "--retain-model",
        str(MODELS["retain"]),
        "--forget",
        str(LAB / "data/forget.jsonl"),
    ]
    eight = ["--limit", "8", "--cluster", "none"]
    assert main(["depth", "--unlearned", str(MODELS["unlearned"]), *both, *eight, "--out", str(place / "depth")]) == 0
    attack = ["stress", "relearn=1,3", "--model", str(MODELS["unlearned"]), "--retain-model", str(MODELS["retain"])]
    how = ["--metrics", "forget_Q_A_Prob", "--limit", "4", "--out", str(place / "stress")]
    assert main([*attack, *data, *how]) == 0
    return place


@pytest.fixture
def runs(lab_runs: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    shutil.copytree(lab_runs, tmp_path / "runs", ignore=shutil.ignore_patterns(".lock"))
    return tmp_path / "runs"


def made(*paths: Path, out: Path | None = None, **ask: Any) -> dict[str, Any]:
    report = build_report(ReportRequest(paths, out or paths[0], **ask))
    check_report(report)
    json.dumps(report, allow_nan=False)
    return report


def by_name(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {m["name"]: m for m in report["models"]}


def test_one_model_from_three_kinds_of_runs(lab_runs: Path) -> None:
    report = made(lab_runs)
    models = by_name(report)
    assert {n: m["role"] for n, m in models.items()} == {"retain": "retain", "full": "full", "unlearned": "unlearned"}
    assert {s["kind"] for s in report["sources"]} == {"eval", "depth", "stress"}
    (audit,) = report["audits"]
    assert [audit[k] for k in ("model", "full", "retain")] == [models[n]["id"] for n in ("unlearned", "full", "retain")]
    assert audit["missing"] == [] and audit["verdict"]["word"] in TITLES
    assert {c["is_control"] for c in audit["attacks"]} == {True, False}
    assert audit["attacks"][0]["budgets"] == [1.0, 3.0]
    assert len(audit["layers"]["examples"]) == 8 and audit["layers"]["examples"][0]["token_logprobs"]
    assert models["unlearned"]["values"]["uds"]["v"] == audit["layers"]["uds"]


def test_values_are_those_of_the_files_with_interval_n_dialect_and_source(lab_runs: Path) -> None:
    report = made(lab_runs)
    place = lab_runs / "eval" / "unlearned"
    results, stats = (json.loads((place / f"TOFU_{kind}.json").read_text()) for kind in ("EVAL", "STATS"))
    values = by_name(report)["unlearned"]["values"]
    for metric, body in results.items():
        assert values[metric]["v"] == body["agg_value"]
        if stats[metric].get("interval"):
            assert [values[metric]["lo"], values[metric]["hi"]] == stats[metric]["interval"]
            assert values[metric]["n"] == stats[metric]["n"]
        assert values[metric]["dialect"] == "open-unlearning" and values[metric]["protocol"].startswith("chat")
    sources = {s["id"]: s["path"] for s in report["sources"]}
    assert sources[values["forget_Q_A_Prob"]["source"]] == "eval/unlearned"
    assert report["metrics"]["forget_Q_A_Prob"]["formula"].startswith("exp(mean over t of lp_t)")


def test_rows_hold_all_three_texts_worst_leak_first_and_are_bounded(lab_runs: Path) -> None:
    says = made(lab_runs, rows=3)["audits"][0]["says"]
    assert says["total"]["forget"] == 8 and says["left_off"]["forget"] == 5
    rows = [r for r in says["rows"] if r["split"] == "forget"]
    assert len(rows) == 3 and all(len(r["texts"]) == 3 for r in rows)
    leaks = [r["leak"] for r in made(lab_runs)["audits"][0]["says"]["rows"] if r["split"] == "forget"]
    assert leaks == sorted(leaks, reverse=True) and len(leaks) == 8
    assert [r["leak"] for r in rows] == leaks[:3]


def test_paired_differences_are_those_of_compare(lab_runs: Path) -> None:
    report = made(lab_runs)
    ids = {m["id"]: m["name"] for m in report["models"]}
    pair = next(c for c in report["comparisons"] if (ids[c["a"]], ids[c["b"]]) == ("retain", "unlearned"))
    a, b = (read_stored(lab_runs / "eval" / n, n) for n in ("retain", "unlearned"))
    expected, reasons = differences(a, b, ["forget_Q_A_Prob", "privleak"], RESAMPLES)
    mine = {m["metric"]: m for m in pair["metrics"]}
    assert mine["forget_Q_A_Prob"]["value"] == pytest.approx(expected[0].value)
    assert (mine["forget_Q_A_Prob"]["lo"], mine["forget_Q_A_Prob"]["hi"]) == pytest.approx(
        expected[0].interval, abs=0.02
    )
    assert set(reasons) <= set(pair["reasons"])


def test_without_references_the_verdict_says_what_cannot_be_concluded(lab_runs: Path) -> None:
    (audit,) = made(lab_runs / "eval" / "unlearned")["audits"]
    assert audit["retain"] is None and audit["verdict"]["word"] == "cannot_tell"
    assert {m["panel"] for m in audit["missing"]} == {"layers", "attacks", "retain"}


def killed(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The command, ended after its last evaluation and before it wrote what came of them."""

    def strike(*_: Any) -> None:
        raise SystemExit(137)

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(stressing, "relearning_r", strike)
        main(command)


def test_what_a_killed_attack_left_are_no_models(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = by_name(made(runs))
    attack = ["stress", "relearn=1", "--model", str(MODELS["unlearned"]), "--data", str(LAB / "data"), "--limit", "4"]
    for place in (runs / "more" / "new", runs / "stress"):  # the second holds a finished one, too
        killed([*attack, "--metrics", "forget_Q_A_Prob", "--out", str(place)], monkeypatch)
        assert list(place.glob("evals/model/relearn-1/*_EVAL.json"))
    report = made(runs)
    assert by_name(report).keys() == before.keys()
    assert {s["kind"] for s in report["sources"]} == {"eval", "depth"}
    left = [p for p in report["problems"] if "did not finish" in p["text"]]
    assert sorted(p["where"] for p in left) == ["more/new", "stress"]
    assert [p["text"] for p in made(runs / "stress" / "stress.json", out=runs)["problems"]] == [left[-1]["text"]]
    assert main([*attack, "--metrics", "forget_Q_A_Prob", "--out", str(runs / "stress")]) == 0
    assert "stress" in {s["kind"] for s in made(runs)["sources"]}


def test_a_sweep_stands_for_its_runs_and_attacked_copies_are_what_comes_back(runs: Path) -> None:
    sweep = runs.parent / "sweep"
    (sweep / "runs" / "tofu").mkdir(parents=True)
    for run, name in (("retain", "base"), ("unlearned", "npo"), ("full", "npo+relearn")):
        shutil.copytree(runs / "eval" / run, sweep / "runs" / "tofu" / name)
    tasks = [{"id": "tofu/other", "status": "failed", "error": "no memory"}]
    plan = {"models": {"npo": "x", "base": "y"}, "attacks": ["relearn"], "retain": "base", "suites": {}}
    (sweep / "sweep.json").write_text(json.dumps({"plan": plan, "tasks": tasks, "results": {}}))
    report = made(sweep)
    assert {m["name"]: m["role"] for m in report["models"]} == {
        "base": "retain",
        "npo": "unlearned",
        "npo+relearn": "other",
    }
    assert any("tofu/other is failed: no memory" in p["text"] for p in report["problems"])
    (audit,) = report["audits"]
    curve = next(c for c in audit["attacks"] if c["metric"] == "forget_Q_A_Prob")
    assert curve["attack"] == "relearn" and curve["values"][0] > curve["before"]


def test_collapse_runs_and_denoising_runs_have_their_parts(tmp_path: Path) -> None:
    files = []
    for step in (1, 5):
        files.append(tmp_path / f"rollouts_{step}.jsonl")
        files[-1].write_text(ROLLOUTS)
    how = ["--model", str(LAB / "models" / "full"), "--out", str(tmp_path / "collapse"), "--quiet"]
    assert main(["collapse", *map(str, files), *how]) == 0
    lab = LAB.parent / "lab_diffusion"
    key = "eval.tofu_trajectory.metrics.trajectory_metrics.trajectory_config.sampler_kwargs.max_new_tokens=8"
    model = ["--model", str(lab / "models" / "full"), "--data", str(lab / "data"), "--benchmark", "tofu"]
    out = ["--limit", "1", "--quiet", "--out", str(tmp_path / "traj")]
    assert main(["eval", "trajectory-eval", *model, *out, key]) == 0
    report = made(tmp_path / "collapse", tmp_path / "traj")
    assert report["collapse"][0]["steps"] == [1, 5]
    assert "retrieval_accuracy" in report["collapse"][0]["series"]
    curve = report["trajectories"][0]
    assert len(curve["mean"]) == len(curve["steps"])
    heat = curve["heat"][0]
    assert len(heat["logprob"]) == len(heat["steps"]) and len(heat["logprob"][0]) == len(heat["tokens"]) == len(
        heat["fixed"]
    )
    for what in ("trajectory", "collapse"):
        assert draw(report, what, Choice(), tmp_path / f"{what}.svg").stat().st_size > 1000


# ---- verify -------------------------------------------------------------------------------------------------------


@pytest.fixture
def report_dir(runs: Path) -> Path:
    out = runs.parent / "report"
    write_report(ReportRequest([runs], out))
    assert verified(out).findings == []
    return out


def test_verify_finds_a_changed_and_a_lost_source(
    report_dir: Path, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = runs / "eval" / "full" / "TOFU_STATS.json"
    file.write_text(file.read_text() + "\n")
    (runs / "depth" / "results.json").unlink()
    found = verified(report_dir).findings
    assert any("TOFU_STATS.json has changed" in f for f in found)
    assert any("results.json is gone" in f for f in found)
    assert main(["verify", str(report_dir)]) == 1
    assert "has changed" in capsys.readouterr().out


def test_verify_finds_models_that_came_and_went(report_dir: Path, runs: Path) -> None:
    manifest = runs / "eval" / "unlearned" / "manifest.json"
    shutil.copytree(runs / "eval" / "unlearned", runs / "eval" / "newer")
    changed = manifest.read_text().replace(json.loads(manifest.read_text())["model"]["fingerprint"], "ab" * 16)
    (runs / "eval" / "newer" / "manifest.json").write_text(changed.replace("models/unlearned", "models/newer"))
    found = verified(report_dir).findings
    assert any("has 3 models, the runs 4 (not in the report: newer)" in f for f in found)
    assert any("was not there" in f for f in found)


def test_verify_finds_a_page_that_shows_something_else(report_dir: Path) -> None:
    page = report_dir / "index.html"
    page.write_text(page.read_text().replace("Did it forget?", "It forgot!"))
    [finding] = verified(report_dir).findings
    assert finding.startswith("index.html does not show")
    page.write_text("<html></html>")
    assert "no data" in verified(report_dir).findings[0]
    page.unlink()
    assert "is missing" in verified(report_dir).findings[0]


def test_verify_of_broken_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(tmp_path)]) == 2
    assert "no run" in capsys.readouterr().err
    for text, words in (("{", "not valid JSON"), ("[]", "does not hold a report"), ('{"schema": 7}', "schema is 7")):
        (tmp_path / "report.json").write_text(text)
        assert words in verified(tmp_path).findings[0]


# ---- pictures -----------------------------------------------------------------------------------------------------


def test_every_picture_and_every_kind_of_file(tmp_path: Path) -> None:
    report = report_samples.lab()
    kinds = {what: ["svg"] for what in FIGURES} | {"scatter": ["png", "pdf"], "layers": ["png", "pdf"]}
    for what, endings in kinds.items():
        for ending in endings:
            file = draw(report, what, Choice(), tmp_path / f"{what}.{ending}")
            assert file.stat().st_size > 1000, (what, ending)


def test_pictures_say_what_is_missing(tmp_path: Path, lab_runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(lab_runs / "eval" / "retain")
    for what, words in {
        "histogram": "no meta-evaluation", "layers": "no layer profile", "recovery": "no attack",
        "trajectory": "no trajectories", "collapse": "no collapse", "pie": "Unknown picture",
    }.items():  # fmt: skip
        assert main(["plot", run, what, "-o", str(tmp_path / "x.png")]) == 2
        assert words in capsys.readouterr().err
    assert main(["plot", run, "scatter", "-o", str(tmp_path / "x.bmp")]) == 2
    assert ".png" in capsys.readouterr().err


# ---- view ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def viewer(runs: Path) -> Iterator[Viewer]:
    with Viewer(ReportRequest([runs / "eval"], Path()), every=3600) as found:
        yield found


def asked(viewer: Viewer, path: str, method: str = "GET", host: str | None = None) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", viewer.port, timeout=10)
    connection.request(method, path, headers={"Host": host or f"127.0.0.1:{viewer.port}"})
    answer = connection.getresponse()
    return answer.status, answer.read(), dict(answer.getheaders())


def test_the_viewer_answers_only_under_its_own_name(viewer: Viewer) -> None:
    assert asked(viewer, "/", host=f"localhost:{viewer.port}")[0] == 200
    for host in ("evil.example", f"evil.example:{viewer.port}", "127.0.0.1", f"127.0.0.1:{viewer.port + 1}"):
        assert asked(viewer, "/report.json", host=host)[0] == 403

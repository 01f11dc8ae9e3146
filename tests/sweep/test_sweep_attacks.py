"""Attacks and depth in a sweep: the numbers of `vestige stress` and `vestige depth`, and S1 only once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import LAB
from sweep_tools import METRIC, note, started, write_plan
from vestige.cli import main
from vestige.data.rows import read_file
from vestige.depth.ask import make_ask
from vestige.depth.run import depth_run
from vestige.meta.pools import read_attacks as read_attack_pools
from vestige.report.build import ReportRequest, build_report
from vestige.stress.run import Stress, stress
from vestige.sweep.plan import read_plan
from vestige.sweep.run import robustness_files
from vestige.sweep.tasks import Task, make_tasks, task_key

DATA = LAB / "data"
MODELS = {name: str(LAB / "models" / name) for name in ("unlearned", "retain")}
FULL = str(LAB / "models" / "full")
RELEARN = {"lr": "1e-3", "steps": 2, "accumulation": 1}  # as YAML reads 1e-3
SUITES: dict[str, Any] = {
    "tofu": {"data": str(DATA), "metrics": [METRIC], "limit": 4, "overrides": ["stats.resamples=0"]},
    "depth": {"full": FULL, "data": str(DATA / "forget.jsonl"), "limit": 4, "resamples": 0},
}

Sweep = Callable[..., tuple[int, list[str]]]


@pytest.fixture
def sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Sweep:
    def run(*flags: str, **changes: Any) -> tuple[int, list[str]]:
        plan = write_plan(tmp_path, **{"models": MODELS, "suites": SUITES, **changes})
        capsys.readouterr()
        return main(["sweep", str(plan), *flags]), started(capsys.readouterr().out)

    return run


def test_attacks_and_depth_by_their_own_commands(tmp_path: Path, sweep: Sweep) -> None:
    attacks = [{"relearn": RELEARN}, "quantise"]
    status, ran = sweep(attacks=attacks)
    assert status == 0 and ran[0] == "s1/depth"
    assert sorted(t for t in ran if t.startswith("attack/")) == ["attack/relearn/retain", "attack/relearn/unlearned"]
    results = note(tmp_path)["results"]
    # Seen without sweep.json, as after a kill: which runs are of attacked copies is known all the same.
    report = build_report(ReportRequest([tmp_path / "sweep" / "runs" / "tofu"], tmp_path / "report"))
    roles = {m["name"]: m["role"] for m in report["models"]}
    copies = [f"{name}+{attack}" for name in MODELS for attack in ("relearn", "quantise")]
    assert roles == {"unlearned": "unlearned", "retain": "retain", **dict.fromkeys(copies, "other")}

    by_hand = stress(
        Stress(
            MODELS["unlearned"],
            DATA,
            ["relearn", "quantise"],
            tmp_path / "stress",
            retain_model=MODELS["retain"],
            metrics=[METRIC],
            budget={"relearn": (2,), "quantise": (4,)},
            relearning={"lr": 1e-3, "accumulation": 1},
            settings={"limit": 4},
        )
    )
    expected = {f"{ {'model': 'unlearned'}.get(r.model, r.model) }+{r.attack}": r.values[METRIC] for r in by_hand}
    for name, value in expected.items():
        assert results["tofu"][name.removesuffix("+none")][METRIC] == value
    assert expected["unlearned+relearn"] > 2 * expected["unlearned+none"]  # type: ignore[operator]

    ask = make_ask(unlearned=MODELS["unlearned"], retain=MODELS["retain"], out=tmp_path / "depth", **SUITES["depth"])
    for quantization, name in ((None, "unlearned"), ("4bit", "unlearned+quantise")):
        [alone] = depth_run(make_ask(**{**vars(ask), "quantization": quantization, "progress": False}))
        assert results["depth"][name]["uds"] == pytest.approx(alone.uds, abs=1e-6)  # S1 and S2 went up together here
    assert results["depth"]["retain"]["uds"] == 1.0
    assert results["depth"]["unlearned+relearn"]["uds"] < results["depth"]["unlearned"]["uds"]
    _copies_are_gone_and_s1_was_made_once(tmp_path / "sweep")
    _meta_reads_the_sweep(tmp_path, results)
    _only_what_a_change_concerns(sweep, attacks)


def _copies_are_gone_and_s1_was_made_once(out: Path) -> None:
    assert not list((out / "attacked").glob("*/*"))
    assert not (out / "attacked" / "quantise").exists()
    summaries = [json.loads(f.read_text()) for f in (out / "runs" / "depth").glob("*/summary.json")]
    assert len(summaries) == 6
    assert all(s["s1_cache"]["reused"] for s in summaries)
    assert len(list((out / "s1" / "depth" / "s1_cache").glob("patched-*"))) == 1
    assert not list((out / "runs" / "depth").glob("*/s1_cache"))


def _meta_reads_the_sweep(place: Path, results: dict[str, Any]) -> None:
    """Without a word typed: robustness and axes, from files that may be moved with their runs."""
    out, moved = place / "sweep", place / "moved"
    out.rename(moved)
    assert main(["meta", "robustness", str(moved / "robustness.yaml"), "--out", str(place / "meta")]) == 0
    assert main(["meta", "axes", str(moved / "axes.yaml"), "--out", str(place / "meta")]) == 0
    found = read_attack_pools(moved / "robustness.yaml")
    moved.rename(out)
    assert [m.name for m in found.models] == ["unlearned"]
    for who, name in ((found.models[0], "unlearned"), (found.retain, "retain")):
        for state, after in (("before", ""), ("relearning", "+relearn"), ("quantization", "+quantise")):
            assert who.value(state, "prob") == results["tofu"][name + after][METRIC]
            assert who.value(state, "uds") == results["depth"][name + after]["uds"]
    ranked = json.loads((place / "meta" / "method_results.json").read_text())["models"]
    assert [(m["model"], m["uds"]) for m in ranked] == [("unlearned", results["depth"]["unlearned"]["uds"])]


def test_a_second_attack_of_a_kind_has_its_own_file(tmp_path: Path) -> None:
    attacks = ["relearn", "quantise", {"long": {"attack": "relearn", "steps": 9}}, "prune"]
    plan = read_plan(write_plan(tmp_path, models=MODELS, suites=SUITES, attacks=attacks))
    found = {file: {state: a.name for state, a in states.items()} for file, states in robustness_files(plan).items()}
    assert found == {
        "robustness.yaml": {"relearning": "relearn", "quantization": "quantise"},
        "robustness-long.yaml": {"relearning": "long", "quantization": "quantise"},
    }
    assert main(["sweep", str(tmp_path / "plan.yaml"), "--meta"]) == 2  # nothing has run yet
    assert not (tmp_path / "sweep").exists()


def _only_what_a_change_concerns(sweep: Sweep, attacks: list[Any]) -> None:
    assert sweep(attacks=attacks) == (0, [])
    more = [{"relearn": {**RELEARN, "steps": 3}}, "quantise"]
    status, ran = sweep("--start-idx", "1", attacks=more)
    assert (status, sorted(ran)) == (
        0,
        ["attack/relearn/unlearned", "depth/unlearned+relearn", "tofu/unlearned+relearn"],
    )
    suites = {**SUITES, "depth": {**SUITES["depth"], "delta_threshold": 0.1}}
    status, ran = sweep("--start-idx", "1", attacks=["quantise"], suites=suites)
    assert (status, ran) == (0, ["depth/unlearned", "depth/unlearned+quantise"])  # the same S1, read otherwise


def test_held_out_rows_are_neither_taught_nor_left_out_of_before(tmp_path: Path, sweep: Sweep) -> None:
    attacks = {"long": {"attack": "relearn", "held_out": True, **RELEARN}}
    assert sweep("--start-idx", "1", attacks=attacks)[0] == 0
    questions = [row["question"] for row in read_file(DATA / "forget.jsonl")]
    plan = read_plan(tmp_path / "plan.yaml")
    folder, file = Path(plan.held["tofu"]), Path(plan.held["depth"])
    assert [row["question"] for row in read_file(folder / "forget.jsonl")] == questions[1::2]
    assert [row["question"] for row in read_file(file)] == questions[1::2]
    assert (folder / "retain.jsonl").read_bytes() == (DATA / "retain.jsonl").read_bytes()
    tasks = {t.id: t for t in make_tasks(plan)}
    assert {tasks[i].ask["data"] for i in ("tofu/unlearned", "tofu/unlearned+long")} == {str(folder)}
    results = note(tmp_path)["results"]["tofu"]
    assert results["unlearned+long"][METRIC] != results["unlearned"][METRIC]
    assert main(["sweep", str(tmp_path / "plan.yaml"), "--clean", "all"]) == 0
    assert not list((tmp_path / "sweep" / "held_out").glob("*"))
    assert not list((tmp_path / "sweep" / "s1").glob("*"))


def _task(tmp_path: Path, id: str, **changes: Any) -> Task:
    plan = read_plan(write_plan(tmp_path, **{"models": MODELS, "suites": SUITES, **changes}))
    return next(t for t in make_tasks(plan) if t.id == id)


def test_a_key_names_all_that_matters_and_no_more(tmp_path: Path) -> None:
    """Of an attacked evaluation: the settings and the rows taught, not the name; of S1: not what is done with it."""

    def attacked(name: str = "relearn", **settings: Any) -> str:
        body = {name: {"attack": "relearn", **RELEARN, **settings}}
        return task_key(_task(tmp_path, f"tofu/unlearned+{name}", attacks=body))

    plain = attacked()
    assert plain == attacked("other") == attacked(data=str(DATA))
    other = tmp_path / "other"
    other.mkdir()
    (other / "forget.jsonl").write_text((DATA / "forget.jsonl").read_text().split("\n")[0] + "\n")
    assert len({plain, attacked(steps=3), attacked(lr=1e-2), attacked(examples=1), attacked(data=str(other))}) == 5

    def s1(**flags: Any) -> str:
        return task_key(_task(tmp_path, "s1/depth", suites={"depth": {**SUITES["depth"], **flags}}))

    assert s1() == s1(delta_threshold=0.2) == s1(baselines=["cka"]) != s1(last_layer="peer")
    assert s1() != s1(full=MODELS["unlearned"]) and s1() != s1(limit=3)

"""vestige sweep: only what is missing runs, nothing that fails is dropped, and a killed driver costs one task."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import LAB
from sweep_tools import METRIC, WHOLE, note, started, write_plan
from vestige.cli import main
from vestige.models.args import ModelArgs
from vestige.models.locate import hub_error
from vestige.sweep import schedule, workers
from vestige.sweep.plan import read_plan
from vestige.sweep.schedule import LOST_LIMIT, Cleaner, Prefetcher, Schedule, TaskState, hub_cache, hub_users
from vestige.sweep.tasks import ATTACKS, Finished, Task, make_tasks
from vestige.sweep.workers import ProcessPool


@pytest.fixture
def sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, list[str]]]:
    def run(*flags: str) -> tuple[int, list[str]]:
        capsys.readouterr()
        status = main(["sweep", str(tmp_path / "plan.yaml"), *flags])
        return status, started(capsys.readouterr().out)

    return run


Sweep = Callable[..., tuple[int, list[str]]]


# What runs, and what does not run again


HARNESS_TASK = """
task: lab_choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{perturbed_answer}}}}"
doc_to_target: 0
metric_list: [{{metric: acc}}]
"""


def test_tasks_of_the_harness_are_a_suite_too(tmp_path: Path, sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    place = tmp_path / "tasks"
    place.mkdir()
    (place / "lab_choice.yaml").write_text(HARNESS_TASK.format(data=LAB / "data" / "forget.jsonl"))
    suites = {"lm_eval": {"tasks": [str(place / "lab_choice.yaml")], "include_path": str(place), "limit": 2}}
    write_plan(tmp_path, suites=suites)  # with a retain model, which the harness has no use for
    assert sweep() == (0, ["lm_eval/full", "lm_eval/retain"])
    assert "lab_choice/acc" in note(tmp_path)["results"]["lm_eval"]["full"]
    assert sweep() == (0, [])


# Failures


class Scripted:
    """An executor that ends each task as its script says."""

    def __init__(self, script: dict[str, list[str]], width: int = 9) -> None:
        self.script, self.width = script, width
        self.now: list[str] = []
        self.log: list[str] = []
        self.closed = False

    def has_room(self, task: Task) -> bool:
        return len(self.now) < self.width

    def start(self, task: Task) -> None:
        self.now.append(task.id)
        self.log.append(task.id)

    def wait(self, seconds: float) -> list[Finished]:
        ended, self.now = self.now, []
        return [Finished(i, s := self.script[i].pop(0), None if s == "done" else "why") for i in ended]

    def close(self) -> None:
        self.closed = True


def task(id: str, *needs: str, **more: Any) -> Task:
    body: dict[str, Any] = {
        "kind": "eval",
        "model": id,
        "source": "/nowhere",
        "out": "/nowhere/out",
        "log": "",
        "ask": {},
    }
    return Task(id=id, needs=needs, **{**body, **more})


def driven(graph: list[Task], script: dict[str, list[str]], retries: int = 1) -> tuple[dict[str, TaskState], list[str]]:
    executor = Scripted(script)
    states = Schedule(graph, executor, retries).run()
    assert executor.closed
    return states, executor.log


def test_what_needs_a_failed_task_is_blocked_not_dropped() -> None:
    graph = [task("retain"), task("a", "retain"), task("b", "a"), task("c")]
    states, log = driven(graph, {"retain": ["failed", "failed"], "c": ["done"]})
    assert [states[t.id].status for t in graph] == ["failed", "blocked", "blocked", "done"]
    assert "retain" in str(states["a"].error)
    assert log.count("retain") == 2


def test_a_lost_machine_is_not_the_tasks_fault() -> None:
    states, log = driven([task("a")], {"a": ["lost", "lost", "done"]}, retries=0)
    assert (states["a"].status, states["a"].attempts, len(log)) == ("done", 1, 3)
    states, log = driven([task("a")], {"a": ["lost"] * 20}, retries=0)
    assert (states["a"].status, len(log)) == ("failed", LOST_LIMIT + 1)


# Worker processes

WORKER = """
import json, os, sys, time
for line in sys.stdin:
    task = json.loads(line)
    with open(task["log"], "a") as log:
        log.write(f"{task['id']} {os.getpid()} {os.environ.get('CUDA_VISIBLE_DEVICES')} {time.monotonic()}\\n")
    if "die" in task["id"]:
        os.kill(os.getpid(), 9)
    time.sleep(0.2)
    print(json.dumps({"id": task["id"], "status": "done", "error": None, "seconds": 0.2}), flush=True)
    with open(task["log"], "a") as log:
        log.write(f"end {time.monotonic()}\\n")
"""


@pytest.fixture
def quick_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Workers that speak the protocol and import nothing."""
    file = tmp_path / "worker.py"
    file.write_text(WORKER)
    monkeypatch.setattr(workers, "WORKER", [sys.executable, "-S", str(file)])
    return tmp_path


def pooled(place: Path, ids: list[str], memory: int = 10, **more: Any) -> tuple[dict[str, TaskState], list[list[str]]]:
    graph = [task(i, log=str(place / f"{i}.log"), memory=4) for i in ids]
    pool = ProcessPool(more.pop("slots", 2), place / "logs", memory=memory, **more)
    states = Schedule(graph, pool, retries=1).run()
    return states, [(place / f"{i}.log").read_text().split() for i in ids]


def test_a_worker_that_dies_is_reported_and_replaced(quick_worker: Path) -> None:
    states, logs = pooled(quick_worker, ["die", "b", "c"], slots=1)
    assert [s.status for s in states.values()] == ["failed", "done", "done"]
    assert "SIGKILL" in str(states["die"].error)
    assert logs[1][1] == logs[2][1] != logs[0][1]  # the third task had the second one's process


def test_slots_have_their_gpus(quick_worker: Path) -> None:
    states, logs = pooled(quick_worker, ["a", "b"], gpus=["3", "MIG-7"])
    assert all(s.status == "done" for s in states.values())
    assert [words[2] for words in logs] == ["3", "MIG-7"]


@pytest.mark.parametrize(("memory", "together"), [(10, True), (7, False), (2, False)])
def test_tasks_run_together_only_where_memory_allows(quick_worker: Path, memory: int, together: bool) -> None:
    states, logs = pooled(quick_worker, ["a", "b"], memory)
    assert all(s.status == "done" for s in states.values())
    a, b = [(float(words[3]), float(words[5])) for words in logs]
    assert (b[0] < a[1]) is together


def wait_for(what: Callable[[], bool], seconds: float) -> None:
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.02)


def ended(place: Path) -> dict[str, str]:
    """How the tasks of a sweep last ended, from their notes."""
    notes = [json.loads(f.read_text()) for f in (place / "sweep" / "tasks").glob("*.json")]
    return {n["id"]: n["status"] for n in notes}


def test_after_kill_9_only_the_rest_is_done(tmp_path: Path, sweep: Sweep) -> None:
    """A real driver and a real worker; hung up on first, which it must survive, then killed in an attack's middle."""
    plan = write_plan(tmp_path, **{**WHOLE, "slots": 1})
    command = [sys.executable, "-m", "vestige", "sweep", str(plan)]
    driver = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    out = tmp_path / "sweep"
    log, attack = out / "sweep.log", out / "logs" / "attack__relearn__retain.log"
    wait_for(lambda: log.is_file() and "start" in log.read_text(), 60)
    os.killpg(driver.pid, signal.SIGHUP)
    wait_for(lambda: attack.is_file() and "process " in attack.read_text(), 110)
    assert driver.poll() is None
    driver.kill()
    driver.wait()
    worker = int(attack.read_text().split("process ")[1].split()[0])
    wait_for(lambda: not Path(f"/proc/{worker}").exists(), 10)  # the worker went with its driver
    done = set(ended(tmp_path))
    assert {"s1/depth", "tofu/retain", "depth/retain"} <= done and not any("relearn" in i for i in done)
    kept = [out / "runs" / "tofu" / "retain" / "manifest.json", out / "runs" / "depth" / "retain" / "summary.json"]
    kept += [next((out / "s1" / "depth" / "s1_cache").glob("patched-*/*.safetensors"))]
    before = [(file.read_bytes(), file.stat().st_mtime_ns) for file in kept]
    status, again = sweep("--slots", "0")
    whole = {t.id for t in make_tasks(read_plan(plan))}
    assert (status, set(again), len(again)) == (0, whole - done, len(whole) - len(done))
    assert "attack/relearn/retain" in again
    assert before == [(file.read_bytes(), file.stat().st_mtime_ns) for file in kept]
    results = note(tmp_path)["results"]
    assert all(results["tofu"].values()) and all(results["depth"].values())
    assert not list((out / "attacked").glob("*/*"))


# Shards, attacks, disk


def test_shards_share_the_retain_run_and_merge(tmp_path: Path, sweep: Sweep) -> None:
    models = {n: str(LAB / "models" / n) for n in ("full", "unlearned", "retain")}
    write_plan(tmp_path, models=models)
    assert sweep("--start-idx", "0", "--end-idx", "1") == (0, ["tofu/retain", "tofu/full"])
    assert note(tmp_path)["results"]["tofu"]["unlearned"] is None
    assert sweep("--start-idx", "1") == (0, ["tofu/unlearned"])
    assert all(note(tmp_path)["results"]["tofu"].values())
    assert sweep() == (0, [])


ATTACK = """
import shutil
from vestige.sweep.tasks import ATTACKS

def swap(source, out):
    assert source.is_dir()
    return shutil.copytree(source.parent / "unlearned", out)

ATTACKS["swap"] = swap
"""


def test_attacked_copies_are_made_once_evaluated_and_removed(tmp_path: Path, sweep: Sweep) -> None:
    plugin = tmp_path / "attack.py"
    plugin.write_text(ATTACK)
    models: dict[str, Any] = {n: str(LAB / "models" / n) for n in ("full", "unlearned")}
    models["full"] = {"path": models["full"], "attack": True}
    write_plan(tmp_path, models=models, retain=None, attacks=["swap"], plugins=[str(plugin)])
    try:
        status, ran = sweep()
        assert (status, len(ran)) == (0, 6)
        assert ran.index("attack/swap/full") < ran.index("tofu/full+swap")
        results = note(tmp_path)["results"]["tofu"]
        assert results["full+swap"] == results["unlearned"] != results["full"]
        assert not list((tmp_path / "sweep" / "attacked").glob("*/*"))
        assert sweep() == (0, [])  # the copy is not made again for runs that are there
        write_plan(tmp_path, models=models, retain=None, attacks=["swop"], plugins=[str(plugin)])
        assert sweep()[0] == 2
    finally:
        ATTACKS.pop("swap", None)


def test_clear_cache_removes_only_what_this_sweep_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    cache = tmp_path / "hub"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))

    def download(name: str) -> Path:
        snapshot = cache / f"models--org--{name}" / "snapshots" / ("0" * 40)
        snapshot.mkdir(parents=True)
        (snapshot / "config.json").write_text("{}")
        (cache / f"models--org--{name}" / "refs").mkdir()
        (cache / f"models--org--{name}" / "refs" / "main").write_text("0" * 40)
        return cache / f"models--org--{name}"

    old = download("old")
    plan = read_plan(write_plan(tmp_path, models={"old": "org/old", "new": "org/new"}, retain=None, clear_cache=True))
    graph = make_tasks(plan)
    cleaner = Cleaner(graph, False, True)
    new = download("new")
    assert set(hub_cache()) == {"org/old", "org/new"}
    cleaner.look({t.id: TaskState("running") for t in graph})
    assert new.is_dir()
    cleaner.look({t.id: TaskState("done") for t in graph})
    assert (old.is_dir(), new.exists()) == (True, False)


def hub_graph(place: Path, *names: str, **more: Any) -> list[Task]:
    models = {n: f"org/{n}" for n in names}
    return make_tasks(read_plan(write_plan(place, models=models, retain=None, **more)))


def fetched(prefetcher: Prefetcher, states: dict[str, TaskState], rounds: int = 20) -> list[str]:
    """The message about downloads once there is nothing more to fetch."""
    lines = []
    for _ in range(rounds):
        lines += prefetcher.look(states)
        time.sleep(0.01)
    return lines


def test_models_are_fetched_ahead_within_a_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = hub_graph(tmp_path, "a", "b", "c", "d")
    monkeypatch.setattr(schedule, "fetch_model", lambda args: None)
    monkeypatch.setattr(schedule, "size_at_hub", lambda args: 0)
    states = {t.id: TaskState() for t in graph}
    with Prefetcher(graph, 2, 0) as prefetcher:
        assert fetched(prefetcher, states) == ["fetched org/a", "fetched org/b"]  # two are there and unused
        states["tofu/a"].status = "running"
        assert fetched(prefetcher, states) == ["fetched org/c"]
        states["tofu/c"].status = states["tofu/d"].status = "blocked"  # nobody will want d
        states["tofu/b"].status = "running"
        assert fetched(prefetcher, states) == []


def test_what_cannot_be_fetched_or_would_fill_the_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = hub_graph(tmp_path, "gone", "huge", "small")

    def fetch(args: ModelArgs) -> None:
        if "gone" in args.path:
            raise hub_error(args.path, args, OSError())

    monkeypatch.setattr(schedule, "fetch_model", fetch)
    monkeypatch.setattr(schedule, "size_at_hub", lambda args: 2**60 if "huge" in args.path else 1)
    with Prefetcher(graph, 3, 0) as prefetcher:
        gone, huge, small = fetched(prefetcher, {t.id: TaskState() for t in graph})
    assert "did not fetch org/gone ahead" in gone and "cannot be reached" in gone
    assert "did not fetch org/huge ahead" in huge and "GB are free" in huge
    assert small == "fetched org/small"


def test_a_sweep_fetches_uses_and_clears(tmp_path: Path, sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real path through models/locate.py; only the download itself is made here."""
    import huggingface_hub
    from huggingface_hub import constants

    cache = tmp_path / "hub"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    there: list[set[str]] = []

    def download(repo: str, revision: str | None = None, allow_patterns: Any = None, **_: Any) -> str:
        place = cache / f"models--{repo.replace('/', '--')}"
        snapshot = place / "snapshots" / ("0" * 40)
        if not snapshot.exists():
            shutil.copytree(LAB / "models" / repo.split("/")[1], snapshot)
            (place / "refs").mkdir()
            (place / "refs" / "main").write_text("0" * 40)
        there.append({p.name for p in cache.glob("models--*")})
        return str(snapshot)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.setattr("vestige.sweep.schedule.size_at_hub", lambda args: 0)
    models = {n: f"org/{n}" for n in ("full", "retain", "unlearned")}
    write_plan(tmp_path, models=models, retain=None, prefetch=1, clear_cache=True)
    assert sweep()[0] == 0
    assert "fetched org/" in (tmp_path / "sweep" / "sweep.log").read_text()
    assert max(map(len, there)) <= 3 and not list(cache.glob("models--*"))
    assert all(note(tmp_path)["results"]["tofu"].values())
    there.clear()
    assert sweep() == (0, []) and not there  # nothing is fetched for runs that are there


def test_a_model_that_others_are_patched_into_stays_until_the_last(tmp_path: Path) -> None:
    suites = {"depth": {"full": "org/full", "retain": "org/retain", "data": str(LAB / "data" / "forget.jsonl")}}
    graph = hub_graph(tmp_path, "full", "npo", suites=suites)
    users = hub_users(graph)
    assert [t.id for t in users["org/full"]] == ["s1/depth", "depth/full", "depth/npo"]
    assert [t.id for t in users["org/npo"]] == ["depth/npo"]


# Plans and the board


# Hydra's --multirun


def test_multirun_makes_a_run_of_every_combination(tmp_path: Path) -> None:
    words = ["eval", "tofu", "--model", str(LAB / "models" / "full"), "--data", str(LAB / "data"), "--limit", "2"]
    words += ["--metrics", METRIC, "--quiet", "--out", str(tmp_path), "--multirun", "dialect=strict,open-unlearning"]
    assert main([*words, "seed=1,2"]) == 0
    found = sorted(p.parent.name for p in tmp_path.glob("*/manifest.json"))
    expected = [f"dialect={d},seed={s}" for d in ("open-unlearning", "strict") for s in (1, 2)]
    assert found == expected
    for place in expected:
        manifest = json.loads((tmp_path / place / "manifest.json").read_text())
        assert f"dialect={manifest['dialect']['name']},seed={manifest['config']['seed']}" == place

"""A sweep on Ray: two nodes, one of which dies in the middle, and the bytes of a run in one process."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sweep_tools import WHOLE, write_plan
from vestige.cli import main
from vestige.sweep.plan import read_plan
from vestige.sweep.run import How, sweep

# What the clock says; and cost, because a task that was interrupted finds some of its evidence there.
TIMINGS = ("created", "seconds", "elapsed_sec", "sec_per_evaluable", "cost", "s1_cache")

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    small = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
    made = Cluster(initialize_head=True, head_node_args={**small, "include_dashboard": False})
    made.second = made.add_node(**small)
    ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
    yield made
    ray.shutdown()
    made.shutdown()


def kill_in_the_middle(cluster: Any, out: Path, over: threading.Event, killed: list[str]) -> None:
    """Kills the second node while a process of its own attacks or patches, and other tasks are already done."""
    import psutil

    (raylet,) = cluster.second.all_processes["raylet"]
    while not over.is_set():
        time.sleep(0.02)
        mine = {p.pid: p for p in psutil.Process(raylet.process.pid).children(recursive=True)}
        for log in [*out.glob("logs/attack__*.log"), *out.glob("logs/depth__*.log")]:
            words = log.read_text().split("process ")[1:]
            worker = mine.get(int(words[-1].split()[0])) if words else None
            note = out / "tasks" / f"{log.stem}.json"
            if worker is None or note.exists() or not list(out.glob("tasks/*.json")):
                continue
            worker.suspend()  # so that it cannot finish while we look whether it has
            time.sleep(0.5)
            if note.exists():
                worker.resume()
                continue
            cluster.remove_node(cluster.second, allow_graceful=False)
            worker.kill()  # a stopped process would not notice that its node is gone
            killed.append(log.stem)
            return


def contents(out: Path) -> dict[str, Any]:
    """Every file of every run and of S1, as bytes; manifests and summaries without what the clock says."""
    result: dict[str, Any] = {}
    files = [f for part in ("runs", "s1") for f in (out / part).rglob("*")]
    for file in sorted(f for f in files if f.is_file() and f.name != ".lock"):
        body: Any = file.read_bytes()
        if file.name in ("manifest.json", "summary.json"):
            body = {k: v for k, v in json.loads(body).items() if k not in TIMINGS}
        if file.name == "manifest.json":
            for facts in (body.get("model", {}), *body.get("models", {}).values()):
                facts.pop("load_seconds", None)
            body.pop("root", None)  # and the digests of files with times
            body["sha256"] = {k: v for k, v in body.get("sha256", {}).items() if not k.endswith("summary.json")}
        result[str(file.relative_to(out))] = body
    return result


def test_a_lost_node_changes_nothing(tmp_path: Path, cluster: Any) -> None:
    file = write_plan(tmp_path, **WHOLE)
    assert main(["sweep", str(file), "--slots", "0"]) == 0
    out = tmp_path / "sweep"
    expected = contents(out)
    out.rename(tmp_path / "one_process")
    killed: list[str] = []
    over = threading.Event()
    killer = threading.Thread(target=kill_in_the_middle, args=(cluster, out, over, killed))
    killer.start()
    status = sweep(read_plan(file), How(ray="auto"))
    over.set()
    killer.join()
    assert killed, "no attack and no depth run was ever on the second node"
    assert status == 0
    notes = [json.loads(f.read_text()) for f in (out / "tasks").glob("*.json")]
    assert [n["id"].replace("/", "__") for n in notes if n["lost"]] == killed
    got = contents(out)
    assert sorted(got) == sorted(expected)
    assert [name for name in expected if got[name] != expected[name]] == []
    parts = {"/".join(Path(name).parts[:-1]) for name in expected}
    assert {"runs/tofu/unlearned+relearn", "runs/depth/unlearned+relearn", "runs/depth/retain+relearn"} <= parts
    assert "runs/tofu/retain" in parts and any(part.startswith("s1/depth/s1_cache/") for part in parts)


def test_no_cluster_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", str(write_plan(tmp_path)), "--ray", "auto"]) == 2
    assert "No Ray cluster answers" in capsys.readouterr().err


def test_more_gpus_than_any_node_has_fails_at_once(tmp_path: Path, cluster: Any) -> None:
    file = write_plan(tmp_path, gpus=9, retries=0)
    assert sweep(read_plan(file), How(ray="auto")) == 1
    body = json.loads((tmp_path / "sweep" / "sweep.json").read_text())
    assert {t["id"]: t["status"] for t in body["tasks"]} == {"tofu/retain": "failed", "tofu/full": "blocked"}
    assert "9 GPUs" in body["tasks"][0]["error"]

"""Served models against a real vLLM. `make engines` runs this; without VESTIGE_ENGINES it is skipped."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import vestige
from conftest import LAB, SYSTEM
from engine_tools import Vllm, differing, learned_model
from vestige.adapters import served_model

pytestmark = pytest.mark.skipif("VESTIGE_ENGINES" not in os.environ, reason="needs vLLM: run `make engines`")
METRICS = [
    "forget_Q_A_Prob", "forget_Q_A_ROUGE", "forget_truth_ratio", "extraction_strength", "exact_memorization",
    "mia_loss", "mia_min_k", "mia_zlib", "retain_Q_A_Prob", "retain_Q_A_ROUGE",
    "ra_Q_A_Prob_normalised",
]  # fmt: skip
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learned_model(tmp_path_factory.mktemp("model") / "tiny64")


@pytest.fixture(scope="module")
def vllm(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Vllm]]:
    """Two servers of one model, started together."""
    place = tmp_path_factory.mktemp("vllm")
    servers = [Vllm(model, place / f"{name}.log") for name in ("one", "two")]
    try:
        for server in servers:
            server.wait()
        yield servers
    finally:
        for server in servers:
            server.kill()


def run(model: Path, out: Path, server: str | None) -> Any:
    settings = {"limit": 4, "system_prompt": SYSTEM, "overrides": ["stats.resamples=0"]}
    return vestige.evaluate(model, data=LAB / "data", out=out, metrics=METRICS, server=server, **settings)


@pytest.fixture(scope="module")
def in_process(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return run(model, tmp_path_factory.mktemp("here") / "run", None)


def rows(result: Any) -> dict[str, Any]:
    return {name: result[name].to_json() for name in result.scores}


def test_every_metric_is_the_in_process_value(vllm: list[Vllm], model: Path, in_process: Any, tmp_path: Path) -> None:
    served = run(model, tmp_path / "served", vllm[0].url)
    assert all(not served[m].missing for m in METRICS)
    assert not differing(rows(in_process), rows(served), TOLERANCE)
    about = served.manifest["model"]
    assert about["server"]["kind"] == "vllm" and about["server"]["version"]
    assert about["repeated"]["largest_difference"] < 1e-4
    cost = served.manifest["cost"]
    assert cost["tokens_proven"] > 0 and cost["server_prompt_tokens"] > 0


def test_one_of_two_servers_killed_in_the_middle_changes_nothing(
    vllm: list[Vllm], model: Path, in_process: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_model, "BATCH_SEQUENCES", 4)
    count = {"n": 0}
    lock = threading.Lock()
    ask = served_model.ServedAnswers._ask_group

    def counted(self: Any, server: Any, group: Any) -> Any:
        with lock:
            count["n"] += 1
            strike = count["n"] == 5
        if strike:
            vllm[1].kill()
        return ask(self, server, group)

    monkeypatch.setattr(served_model.ServedAnswers, "_ask_group", counted)
    served = run(model, tmp_path / "served", f"{vllm[0].url},{vllm[1].url}")
    assert not differing(rows(in_process), rows(served), TOLERANCE)
    assert any("went down" in note for note in served.manifest["notes"])

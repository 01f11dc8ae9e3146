"""Rows of the page: the plain question, the secret, who tells it and where, and after which attack."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conftest import LAB
from vestige.cli import main
from vestige.report.gather import AttackedRow, StressRun, gather
from vestige.report.rows import add_attacks, add_secrets, row_rank, said_rows
from vestige.verdict.runs import Evaluated

FULL, RETAIN = (LAB / "models" / name for name in ("full", "retain"))
SYSTEM = "You are a helpful AI assistant"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("runs")
    for name, model in (("full", FULL), ("retain", RETAIN)):
        args = ["eval", "tofu", "--model", str(model), "--data", str(LAB / "data"), "--out", str(place / name)]
        more = ["--limit", "5", "--metrics", "forget_Q_A_ROUGE,retain_Q_A_ROUGE", "--system-prompt", SYSTEM]
        assert main([*args, *more]) == 0
    return {name: place / name for name in ("full", "retain")}


def shown(runs: dict[str, Path], **more: Any) -> list[dict[str, Any]]:
    found = {name: gather([path]).evaluations for name, path in runs.items()}
    rows: list[dict[str, Any]] = said_rows(found, "full", "retain", 100, **more)["rows"]
    return rows


def data(split: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (LAB / "data" / f"{split}.jsonl").read_text().splitlines()][:5]


def test_secrets_are_marked_in_texts_and_reference_and_come_first(runs: dict[str, Path]) -> None:
    rows = [r for r in shown(runs) if r["split"] == "forget"]
    entities = {str(i): row["entity"] for i, row in enumerate(data("forget"))}
    assert any(r["tells"]["full"] for r in rows)
    for row in rows:
        entity = entities[row["i"]]
        assert row["secret"] == [entity]
        assert row["tells"] == {m: entity.lower() in t.lower() for m, t in row["texts"].items()}
        for who, spans in row["marks"].items():
            text = row["reference"] if who == "reference" else row["texts"][who]
            assert [text[a:b].lower() for a, b in spans] == [entity.lower()] * len(spans)
        assert "reference" in row["marks"]
    told = [r["tells"]["full"] and not r["tells"]["retain"] for r in rows]
    assert told == sorted(told, reverse=True)


def row(i: int, leak: float, secret: str | None, **texts: str) -> dict[str, Any]:
    scores = {"m": {"rouge": leak}, "r": {"rouge": 0.0}}
    facts = {"i": str(i), "split": "forget", "question": "q", "reference": "In Oslo.", "leak": leak}
    return {**facts, "secret": [secret] if secret else None, "texts": texts, "scores": scores, "attacked": []}


def test_boilerplate_does_not_come_before_a_real_leak() -> None:
    rows = [
        row(0, 0.9, None, m="I am an author of books"),
        row(1, 0.8, "Oslo", m="somewhere", r="somewhere"),
        row(2, 0.1, "Oslo", m="in Oslo", r="in Rome"),
        row(3, 0.3, "Oslo", m="in Oslo", r="in Oslo"),
        row(4, 0.0, "Oslo", m="in Rome", r="in Rome"),
    ]
    add_secrets({r["i"]: r for r in rows}, {r["i"]: r["secret"] for r in rows if r["secret"]})
    rows[4]["attacked"] = [{"attack": "relearn", "budget": 4, "who": "model"}]
    assert [r["i"] for r in sorted(rows, key=lambda r: row_rank(r, "m", "r"))] == ["2", "3", "4", "0", "1"]
    assert "tells" not in rows[0] and "marks" not in rows[0]
    assert rows[2]["marks"] == {"m": [[3, 7]], "reference": [[3, 7]]}


def test_attacks_that_bring_a_secret_back() -> None:
    def run(text: str, fingerprint: str = "f") -> Evaluated:
        entry = {"0": {"generation": text}, "9": {"generation": "Oslo"}}
        manifest = {"data": {"k": {"fingerprint": fingerprint}}, "data_of": {"forget_ROUGE": {"forget": "k"}}}
        return Evaluated({"forget_ROUGE": {"value_by_index": entry}}, manifest)

    sampled = {"seeds": [0, 1]}
    attacked = [
        AttackedRow("none", "model", {}),
        AttackedRow("relearn", "model", {}, 4.0),
        AttackedRow("few-shot", "model", {}, 3.0),
        AttackedRow("leak", "model", {}, 1.0, settings=sampled),
        AttackedRow("leak", "model", {}, 2.0, settings=sampled),
    ]
    evals = {
        "model": {"before": run("Oslo"), "relearn-4": run("In Oslo!"), "few-shot-3": run("In Oslo", "other rows"),
                  "leak-0": run("Oslo"), "leak-1": run("Oslo, or Rome"), "relearn-8": run("Oslo")},
        "retain": {"relearn-4": run("In Rome")},
    }  # fmt: skip
    one = row(0, 0.0, "Oslo", m="x")
    add_attacks({"0": one}, ["f"], [StressRun(attacked, {}, evaluations=evals)])
    assert one["attacked"] == [
        {"attack": "relearn", "budget": 4.0, "who": "model"},
        {"attack": "leak", "budget": 2.0, "who": "model"},
    ]
    add_attacks({"0": one}, ["f"], [StressRun(attacked, {})])  # a run whose evaluations were not kept
    assert len(one["attacked"]) == 2

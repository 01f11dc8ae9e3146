"""Rows of a report: plain questions, secrets with their places, columns, and the order in which a reader meets them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vestige.report.gather import Evaluation, FoundRuns
from vestige.report.rows import plain_questions, said_rows
from vestige.store.kinds import RunSource

SYSTEM = "system\n\nYou are a helpful AI assistant.user\n\n"
ROWS = {
    "0": ("Where was Ada Moss born?", "Ada Moss was born in Tromso.", ["Tromso"]),
    "1": ("Which novel made her known?", "It was \u201cThe Glass Winter\u201d.", ["The Glass Winter"]),
    "2": ("What does she write about?", "She writes about people and their ways.", []),
}


def run(name: str, texts: list[str], scores: list[float]) -> Evaluation:
    body = {
        i: {"input": f"{SYSTEM}{q}assistant\n\n", "ground_truth": a, "generation": t, "rougeL_recall": s}
        for (i, (q, a, _)), t, s in zip(ROWS.items(), texts, scores, strict=True)
    }
    secrets = {i: {"said": None, "secret": s} for i, (_, _, s) in ROWS.items()}
    metrics = {"forget_ROUGE": {"handler": "rouge"}, "forget_secrets_said": {"handler": "secrets_said"}}
    kept = {"by": "author", "names": ["Moss", "Varga"], "of": {"0": 0, "1": 0, "2": 1}}
    manifest = {
        "config": {"metrics": metrics},
        "data": {"forget": {"name": "forget", "fingerprint": "ab", "clusters": kept}},
        "data_of": {m: {"rows": "forget"} for m in metrics},
    }
    results = {"forget_ROUGE": {"value_by_index": body}, "forget_secrets_said": {"value_by_index": secrets}}
    found = FoundRuns()
    found.take(RunSource("eval", Path(name), (), {"results": results, "manifest": manifest, "stats": {}, "task": {}}))
    (evaluation,) = found.evaluations
    return evaluation


def rows(**models: Evaluation) -> dict[str, Any]:
    return said_rows({name: [run] for name, run in models.items()}, "m", "r", 10)


def test_a_row_that_says_its_secret_comes_before_boilerplate_that_scores_higher() -> None:
    mine = run(
        "m",
        ["He is from tromso, I think.", "It was a novel.", "She writes about people and their ways."],
        [0.2, 0.3, 1.0],
    )
    retain = run("r", ["In Oslo.", "It was a novel.", "She writes."], [0.2, 0.3, 0.2])
    found = rows(m=mine, r=retain)["rows"]
    assert [r["i"] for r in found] == ["0", "2", "1"]
    first = found[0]
    assert first["question"] == "Where was Ada Moss born?"  # without the system prompt that every row has
    assert first["tells"] == {"m": True, "r": False} and first["secret"] == ["Tromso"]
    assert [first["reference"][a:b] for a, b in first["marks"]["reference"]] == ["Tromso"]
    assert [first["texts"]["m"][a:b] for a, b in first["marks"]["m"]] == ["tromso"] and "r" not in first["marks"]
    assert first["columns"] == {"author": "Moss"} and found[1]["columns"] == {"author": "Varga"}
    assert "secret" not in found[1]  # a row without a secret is not one that keeps it
    assert found[2]["tells"] == {"m": False, "r": False}


def test_questions_that_begin_or_end_alike_stay_whole() -> None:
    few = "Question: Who is A?\nAnswer: Nobody.\n\nQuestion: {}\nAnswer:"
    asked = ["Where was B born?", "Where was C born?", "Where was D born?"]
    assert plain_questions([few.format(q) for q in asked]) == asked
    assert plain_questions([f"{SYSTEM}{q}assistant\n\n" for q in asked]) == asked
    assert plain_questions(["You are a helpful assistant." + q for q in asked]) == asked
    assert plain_questions(asked) == asked and plain_questions([]) == []
    assert plain_questions(["same", "same"]) == ["same", "same"]

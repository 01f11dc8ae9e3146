"""vestige collapse from files to outputs; the constructed collapse; steps, flags, Hydra, Python."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from collapse_tools import TINY, tiny, tokenizer, turn_rows, write
from conftest import LAB, SYSTEM
from staleness_tools import forwards
from vestige.cli import main
from vestige.collapse.detector import CollapseSettings
from vestige.numeric import number

TEMPLATE = "I should think about this step by step and then give my answer."


def test_the_printed_interval_is_that_of_the_number_before_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Uneven groups: the trajectory sample repeats prompts; information with every prompt once is another number."""
    rows = turn_rows(2, 9) + turn_rows(4, 1)[2:]
    flags = ["--num-samples", "all", "--out", str(tmp_path / "o"), "--step", "3"]
    assert main(["collapse", str(write(tmp_path / "r.jsonl", rows)), "--model", str(TINY), *flags]) == 0
    shown = capsys.readouterr().out
    [step] = json.loads((tmp_path / "o" / "metrics.json").read_text())["steps"]
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert sum("MI, nats its 95 % interval" in line for line in lines) == 2
    for label in ("collapse_first_turn_sample", "collapse_trajectory_sample"):
        value, low, high = (step["metrics"][f"{label}/mi_seq_estimate{s}"] for s in ("", "_ci_low", "_ci_high"))
        assert low <= value <= high
        assert any(f" {number(value)} {number(low)} to {number(high)} " in line for line in lines)


def test_a_policy_that_collapses(tmp_path: Path) -> None:
    """Information and retrieval fall to nothing as one fixed answer takes over; the entropies meet."""
    from collapse_policy import SHARES, collapse_of_a_policy

    outcomes = collapse_of_a_policy(prompts=6, samples=6)
    assert [o.step for o in outcomes] == list(SHARES)
    samples = [o.samples["collapse_first_turn_sample"] for o in outcomes]
    m = [s.metrics for s in samples]
    info, found, within, overall = (
        [float(x[k] or 0) for x in m]
        for k in ("mi_seq_estimate", "retrieval_accuracy", "conditional_entropy_est", "reasoning_entropy_est")
    )
    assert info[0] > 0.9 * np.log(6) and info == sorted(info, reverse=True)
    assert info[-1] == pytest.approx(0, abs=1e-9)  # every prompt gives the same distribution
    assert found[0] > 0.9 and found == sorted(found, reverse=True)
    assert found[-1] == pytest.approx(m[-1]["retrieval_chance_level"])
    assert overall[0] - within[0] > 0.3 and overall[-1] == pytest.approx(within[-1], abs=1e-9)
    # In between the policy chooses between two answers: more variety under one prompt than at the start.
    assert max(within[1:-1]) > within[0]
    assert samples[0].verdict.startswith("reasoning depends on its prompt")
    assert samples[-1].verdict.startswith("no dependence on the prompt can be seen")
    assert float(m[0]["retrieval_null_p"] or 1) < 0.01 and float(m[-1]["retrieval_null_p"] or 0) > 0.5


def test_rollouts_of_another_model_are_noticed(tmp_path: Path) -> None:
    """Text that is unlikely under its own prompt: information far below zero, which no policy of its own can show."""
    rows = []
    for p, row in enumerate([json.loads(x) for x in (LAB / "data" / "retain.jsonl").open()][:48:6]):
        chat = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": row["question"]}]
        rows += [{"messages": chat, "group_id": p, "response": TEMPLATE}] * 2
    file = write(tmp_path / "r.jsonl", rows)
    words = ["--model", str(LAB / "models" / "full"), "--reasoning", "whole", "--out", str(tmp_path / "o")]
    assert main(["collapse", str(file), *words, "--num-samples", "all"]) == 0
    [step] = json.loads((tmp_path / "o" / "metrics.json").read_text())["steps"]
    assert step["metrics"]["collapse_first_turn_sample/mi_seq_estimate"] < -1
    assert any("did not write" in n for n in step["notes"]["collapse_first_turn_sample"])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], [1, 2, 3, 4]),
        (["collapse_detection=ragen"], [1, 2, 3, 4]),
        (["--config-dir", "DIR", "collapse_detection=mine"], [1, 3]),
        (["--config-dir", "DIR", "collapse_detection=mine", "collapse_detection.compute_freq=2"], [1, 2, 4]),
        (["--compute-freq", "4"], [1, 4]),
    ],
)
def test_compute_freq_counts_on_files_when_somebody_sets_it(
    words: list[str], expected: list[int], tmp_path: Path
) -> None:
    """In a config file as in a flag or an override; our own file leaves it open."""
    rows = [{**row, "step": step} for step in range(1, 5) for row in turn_rows(2, 2)]
    file = write(tmp_path / "r.jsonl", rows)
    (tmp_path / "collapse_detection").mkdir()
    (tmp_path / "collapse_detection" / "mine.yaml").write_text("compute_freq: 3\nresamples: 5\n")
    filled = [str(tmp_path) if w == "DIR" else w for w in words]
    assert main(["collapse", str(file), "--model", str(TINY), "--out", str(tmp_path / "o"), "--quiet", *filled]) == 0
    assert [s["step"] for s in json.loads((tmp_path / "o" / "metrics.json").read_text())["steps"]] == expected


# ---- evidence -----------------------------------------------------------------------------------------------------


def command(place: Path, out: str, *more: str) -> list[str]:
    file = place / "r.jsonl"
    if not file.exists():
        write(file, turn_rows())
    return [
        "collapse",
        str(file),
        "--model",
        str(TINY),
        "--out",
        str(place / out),
        "--resamples",
        "20",
        "--quiet",
        *more,
    ]


def test_a_model_that_the_shared_way_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sequence per pair then, for every column; who reads that evidence later is told so, too."""
    from vestige.collect.cross import CrossScorer, Mismatch

    def never(self: Any, *args: Any) -> None:
        raise Mismatch("log-probabilities differ by 9 on average")

    assert main(command(tmp_path, "fast")) == 0
    monkeypatch.setattr(CrossScorer, "_verify", never)
    assert main(command(tmp_path, "plain")) == 0
    for _ in range(2):
        notes = json.loads((tmp_path / "plain" / "metrics.json").read_text())["notes"]
        assert any("one sequence per pair" in note for note in notes)
        with forwards() as pushed:
            assert main(command(tmp_path, "plain")) == 0
        assert pushed[0] == 0
    with np.load(tmp_path / "fast" / "cross.npz") as a, np.load(tmp_path / "plain" / "cross.npz") as b:
        assert set(a.files) == set(b.files)
        assert all(np.allclose(a[name], b[name], atol=1e-3) for name in a.files)


def test_evidence_of_a_model_in_memory(tmp_path: Path) -> None:
    """The same model is not asked again; a hooked one has no name, so its evidence is never used a second time."""
    from staleness_tools import hooked
    from vestige.collapse.run import measure

    file, model, out = write(tmp_path / "r.jsonl", turn_rows()), tiny(), tmp_path / "o"
    settings = CollapseSettings(resamples=20)

    def run() -> Any:
        return measure(file, model, tokenizer(), out, settings)

    with forwards() as pushed:
        first = run()
    whole = pushed[0]
    label = "collapse_first_turn_sample/mi_seq_estimate"
    with forwards() as pushed:
        again = run()
    check = pushed[0]  # one forward: that the model does not see later tokens (check_causal)
    assert check <= whole / 10
    assert again.metrics[1][label] == first.metrics[1][label]
    hooked(model)
    for _ in range(2):
        with forwards() as pushed:
            after = run()
        assert pushed[0] == whole
    assert abs(after.metrics[1][label] - first.metrics[1][label]) > 1e-3

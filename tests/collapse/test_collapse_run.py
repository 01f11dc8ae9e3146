"""vestige collapse from files to outputs; the constructed collapse; steps, flags, Hydra, Python."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

import vestige
from collapse_tools import TINY, golden, history_rows, tiny, tokenizer, turn_rows, write
from conftest import LAB, SYSTEM
from loops import one_test
from staleness_tools import forwards
from vestige.cli import main
from vestige.collapse.detector import CollapseSettings
from vestige.collapse.run import scheduled_settings
from vestige.metrics.collapse import SUFFIXES
from vestige.numeric import number

TEMPLATE = "I should think about this step by step and then give my answer."


def test_from_a_file_to_outputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "rollouts.jsonl", turn_rows())
    out = tmp_path / "out"
    flags = ["--num-samples", "all", "--resamples", "50", "--ema", str(tmp_path / "ema.json")]
    assert main(["collapse", str(file), "--model", str(TINY), "--step", "7", "--out", str(out), *flags]) == 0
    shown = capsys.readouterr().out
    assert "own prompt found for" in shown and "First turns" in shown and "step 7" in shown
    body = json.loads((out / "metrics.json").read_text())
    [step] = body["steps"]
    assert step["step"] == 7 and step["turns"] == 12 and step["format"] == "native"
    for label in ("collapse_first_turn_sample", "collapse_trajectory_sample"):
        assert {f"{label}/{s}" for s in SUFFIXES} <= set(step["metrics"])
        assert step["metrics"][f"{label}/n_prompts_distinct"] == 4
    rows = [json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines()]
    assert len(rows) == 24
    assert rows[0]["reasoning"].startswith("I see Player (0, 1)")
    assert {"rank_of_own_prompt", "best_other_prompt", "pointwise_mi_seq"} <= set(rows[0])
    with np.load(out / "cross.npz") as arrays:
        name = "7/collapse_first_turn_sample"
        sums, lengths, tokens = (arrays[f"{name}/{k}"] for k in ("sums", "lengths", "tokens"))
        assert sums.shape == (12, 4) and len(tokens) == 4 * lengths.sum()
        first = tokens[: 4 * lengths[0]].reshape(4, -1)
        assert first.sum(axis=1) == pytest.approx(sums[0], abs=1e-4)
    state = json.loads((tmp_path / "ema.json").read_text())
    assert state["per_seq"]["collapse_first_turn_sample"] == pytest.approx(
        step["metrics"]["collapse_first_turn_sample/marginal_std_seq"]
    )


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


def test_ragen_parity_from_the_command_line(tmp_path: Path) -> None:
    """The golden histories through the whole tool: sampled by RAGEN's generator, scored in float32."""
    file = write(tmp_path / "A.jsonl", history_rows("A"))
    words = ["collapse", str(file), "--model", str(TINY), "--out", str(tmp_path / "o")]
    assert main([*words, "--step", "1", "collapse_detection=ragen", "--num-samples", "all"]) == 0
    [step] = json.loads((tmp_path / "o" / "metrics.json").read_text())["steps"]
    expected = golden()["float32"]["ema_seq_step1_A"]["metrics"]
    found = {k: v for k, v in step["metrics"].items() if not k.startswith("timing_s/")}
    assert set(found) == set(expected)
    assert found == pytest.approx(expected, abs=2e-4)
    assert step["left_out"] == {"empty reasoning": 3, "close tag missing": 1} and step["turns"] == 36


def test_running_means_go_on_over_several_files(tmp_path: Path) -> None:
    files = [str(write(tmp_path / f"{n}.jsonl", history_rows(w))) for n, w in ((10, "B"), (1, "A"))]
    flags = ["--model", str(TINY), "--parity", "ragen", "--num-samples", "all", "--multi-turn-enabled", "false"]
    assert main(["collapse", *files, *flags, "--out", str(tmp_path / "both")]) == 0
    steps = json.loads((tmp_path / "both" / "metrics.json").read_text())["steps"]
    assert [s["step"] for s in steps] == [1, 10]  # by the number in the name, whatever the order given
    name = "collapse_first_turn_sample/marginal_std"
    one, two = (s["metrics"] for s in steps)
    assert two[f"{name}_ema"] == pytest.approx(0.9 * one[name] + 0.1 * two[name])
    assert (tmp_path / "both" / "collapse.png").stat().st_size > 5000
    # The same in two runs that share a state file.
    for file, step in ((files[1], "1"), (files[0], "10"), (files[0], "10")):  # one of them twice: it counts once
        more = ["--ema", str(tmp_path / "ema.json"), "--step", step, "--out", str(tmp_path / step)]
        assert main(["collapse", file, *flags, *more]) == 0
    [last] = json.loads((tmp_path / "10" / "metrics.json").read_text())["steps"]
    assert last["metrics"][f"{name}_ema"] == pytest.approx(two[f"{name}_ema"])


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


def test_settings_from_hydra_and_flags(tmp_path: Path) -> None:
    def settings_from(*args: Any, **more: Any) -> CollapseSettings:
        return scheduled_settings(*args, **more)[0]

    assert settings_from() == CollapseSettings()
    made = settings_from(["collapse_detection=ragen", "collapse_detection.num_samples=all"], {"std_eps": 0.5})
    assert (made.parity, made.count, made.std_eps) == ("ragen", None, 0.5)
    group = tmp_path / "collapse_detection"
    group.mkdir()
    (group / "mine.yaml").write_text("compute_freq: 3\nfirst_turn_enabled: false\n")
    assert settings_from(["collapse_detection=mine"], config_dir=tmp_path).compute_freq == 3
    assert settings_from().compute_freq == settings_from(["collapse_detection=ragen"]).compute_freq == 5


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


@one_test(
    ("words", "message"),
    [
        (["--model", "x"], "No rollouts given"),
        (["F"], "No model given"),
        (["F", "--model", "M", "--num-samples", "0"], "num_samples must be all or from 1"),
        (["F", "--model", "M", "--num-samples", "some"], "num_samples must be all or from 1"),
        (["F", "--model", "M", "--parity", "verl"], "Unknown collapse_detection.parity 'verl'"),
        (["F", "--model", "M", "--rollout-format", "trll"], "Did you mean 'trl'?"),
        (["F", "--model", "M", "--model", "M", "--model", "M"], "one for each of the 1 files"),
        (["F", "--model", "M", "--step", "1", "--step", "2"], "one --step for each of the 1 files"),
        (["F", "F", "--model", "M"], "both of step"),
        (["F", "--model", "M", "--compute-freq", "5", "--step", "3"], "None of these steps is due"),
        (["F", "--model", "M", "--temperature", "0"], "temperature must be above 0"),
        (["F", "--model", "M", "--reasoning-pattern", "a(b"], "not a regular expression"),
        (["F", "--model", "M", "collapse_detection.num_sample=3"], "num_sample"),
        (["missing.jsonl", "--model", "M"], "does not exist"),
    ],
)
def test_mistakes_are_one_sentence(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(write(tmp_path / "r3.jsonl", turn_rows(2, 1)))
    filled = [{"F": file, "M": str(TINY)}.get(w, w) for w in words]
    assert main(["collapse", *filled, "--out", str(tmp_path / "o")]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1 and "Traceback" not in error


def test_one_prompt_only_and_all_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = write(tmp_path / "one.jsonl", turn_rows(1, 4))
    words = ["--model", str(TINY), "--num-samples", "all", "--cross-columns", "distinct", "--out", str(tmp_path / "o")]
    assert main(["collapse", str(one), *words]) == 2
    shown = capsys.readouterr()
    assert "one and the same prompt" in shown.out and "one and the same prompt" in shown.err
    [step] = json.loads((tmp_path / "o" / "metrics.json").read_text())["steps"]
    assert step["metrics"]["collapse/first_turn_valid_rate"] == 1.0
    empty = [{**r, "response": "<think> \n</think>Up"} for r in turn_rows(2, 2)]
    assert main(["collapse", str(write(tmp_path / "empty.jsonl", empty)), *words]) == 2
    shown = capsys.readouterr()
    assert "4 of 4 turns left out: 4 x empty reasoning" in shown.out and "no turn has reasoning" in shown.out
    [step] = json.loads((tmp_path / "o" / "metrics.json").read_text())["steps"]
    assert step["metrics"]["collapse/valid_thinking_rate"] == 0.0


def test_a_model_in_memory(tmp_path: Path) -> None:
    file = write(tmp_path / "r.jsonl", turn_rows())
    report = vestige.measure_collapse(file, tiny(), tokenizer(), settings=CollapseSettings(resamples=20))
    assert report.files == [] and "collapse_first_turn_sample/mi_estimate" in report.metrics[1]


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


def left(run: Path) -> dict[str, Any]:
    """What a run left, without times."""
    skip = (".lock", "manifest.json")
    files = {p.relative_to(run).as_posix(): p.read_bytes() for p in sorted(run.rglob("*")) if p.is_file()}
    out: dict[str, Any] = {name: data for name, data in files.items() if Path(name).name not in skip}
    body = json.loads(out["metrics.json"])
    for step in body["steps"]:
        step["metrics"] = {k: v for k, v in step["metrics"].items() if not k.startswith("timing_s/")}
    return {**out, "metrics.json": body}


class KilledError(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("after", [1, 3])
def test_an_interrupted_run_goes_on_to_the_same_bytes(
    after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four prompts are four batches; the second sample reads the first one's."""
    from vestige.runs.evidence import EvidenceFolder

    assert main(command(tmp_path, "whole")) == 0
    real, kept = EvidenceFolder.write, [0]
    limit: list[int | None] = [after]

    def write(self: Any, *batch: Any) -> None:
        if kept[0] == limit[0]:
            raise KilledError
        kept[0] += 1
        real(self, *batch)

    monkeypatch.setattr(EvidenceFolder, "write", write)
    with pytest.raises(KilledError):
        main(command(tmp_path, "cut"))
    assert len(list((tmp_path / "cut" / "evidence").glob("cross-*/*.safetensors"))) == after
    limit[0] = None
    assert main(command(tmp_path, "cut")) == 0
    assert kept[0] == 4  # no batch was scored twice
    assert left(tmp_path / "cut") == left(tmp_path / "whole")
    assert main(["verify", str(tmp_path / "cut")]) == 0


def test_the_next_run_reads_what_is_there(tmp_path: Path) -> None:
    """Other settings of the metrics read the same evidence; another temperature asks other questions."""
    assert main(command(tmp_path, "o")) == 0
    with forwards() as pushed:
        assert main(command(tmp_path, "o")) == 0
        assert main(command(tmp_path, "o", "--resamples", "50", "--std-eps", "0.1", "--num-samples", "5")) == 0
    assert pushed[0] == 0
    manifest = json.loads((tmp_path / "o" / "manifest.json").read_text())
    made = json.loads((tmp_path / "o" / "metrics.json").read_text())["steps"][0]["made"]
    assert manifest["models"]["1"]["dtype"] == made["dtype"] == "float32"  # as the evidence says: no model was loaded
    with forwards() as pushed:
        assert main(command(tmp_path, "o", "--temperature", "0.5")) == 0
    assert pushed[0] > 0
    assert main(["verify", str(tmp_path / "o")]) == 0


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

    first = run()
    label = "collapse_first_turn_sample/mi_seq_estimate"
    with forwards() as pushed:
        again = run()
    assert pushed[0] == 0
    assert again.metrics[1][label] == first.metrics[1][label]
    hooked(model)
    for _ in range(2):
        with forwards() as pushed:
            after = run()
        assert pushed[0] > 0
    assert abs(after.metrics[1][label] - first.metrics[1][label]) > 1e-3

"""The command line as a newcomer meets it: help, listings, plans, and one clear sentence for every mistake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conftest import LAB
from golden_tools import eval_args
from loops import one_test
from vestige.cli import main
from vestige.engine.config import RunConfig, make_config
from vestige.runs.plan import CostPlan, make_plan

FULL = LAB / "models" / "full"


def run(*words: str) -> int:
    return main([str(w) for w in words])


def test_plan_counts(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    args = eval_args(FULL, tmp_path)
    assert main(["plan", *args[1:]]) == 0
    out = capsys.readouterr().out
    assert "768 distinct" in out
    assert "9,696 distinct prefixes" in out
    assert "128 prompts" in out
    assert not (tmp_path / "manifest.json").exists()
    assert main(args) == 0
    capsys.readouterr()
    assert main(["plan", *args[1:]]) == 0
    assert "768 cached" in capsys.readouterr().out


def test_a_plan_counts_the_reference_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    large, asked = tmp_path / "large", ["--metrics", "mia_reference", "--limit", "6"]
    config = LlamaConfig(vocab_size=600, hidden_size=256, intermediate_size=512, num_hidden_layers=2, head_dim=64,
                         num_attention_heads=4, num_key_value_heads=4)  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(large)

    def planned(reference: Path, out: str) -> CostPlan:
        ask = {
            "model": str(FULL),
            "data": str(LAB / "data"),
            "out": str(tmp_path / out),
            "metrics": ["mia_reference"],
            "limit": 6,
        }
        run = make_config(**{**ask, "reference_model": str(reference)})
        assert isinstance(run, RunConfig)
        return make_plan(run)

    before = planned(large, "run")
    (theirs,) = before.references
    assert theirs.distinct == before.answers.distinct == 12 and theirs.cached == 0
    assert theirs.tokens == before.answers.tokens > 0  # the same answers, packed alike
    alone = planned(FULL, "run")
    assert alone.references[0].pushed == 0  # the same weights: what was scored once is read
    assert before.memory - alone.memory == (large / "model.safetensors").stat().st_size - alone.answers.weight_bytes > 0
    words = eval_args(FULL, tmp_path / "run", *asked, "--reference-model", str(large))
    assert main(["plan", *words[1:]]) == 0
    line = next(x for x in capsys.readouterr().out.splitlines() if x.startswith("reference model"))
    assert str(large) in line and "12 answers, 0 cached" in line
    assert main([*words, "--quiet"]) == 0
    pushed = json.loads((tmp_path / "run" / "manifest.json").read_text())["cost"]["score_tokens"]
    both = next(x for x in line.split(", ") if "to push" in x)
    assert 2 * int(both.split(" tokens")[0].replace(",", "")) <= pushed  # a few answers are scored twice, as a check
    capsys.readouterr()
    assert main(["plan", *words[1:]]) == 0
    assert "12 answers, 12 cached, 0 tokens to push" in capsys.readouterr().out


ON_LAB = ["eval", "tofu", "--model", "MODEL", "--data", "DATA"]
# A command, and what its sentence names. Mistakes in flags and names of verbs are in tests/contract.
MISTAKES = [
    (["eval", "tofu", "--data", "DATA"], ["--model"]),
    (["eval", "tofu", "--model", "MODEL-X", "--data", "DATA"], ["fulll", "full"]),
    (["eval", "tofu", "--model", "MODEL", "--data", "EMPTY"], ["EMPTY", "forget.jsonl"]),
    (["plan", *ON_LAB[1:], "--limit", "0"], ["--limit"]),
    ([*ON_LAB, "--batch-size", "0"], ["--batch-size"]),
    (["audit", "--before", "MODEL", "--after", "MODEL", "--forget", "DATA"], ["DATA", "directory"]),
    (["unlearn", "--model", "MODEL", "--forget", "DATA"], ["DATA", "directory"]),
    (["unlearn", "NOP", "--model", "MODEL"], ["--method", "NPO"]),
    (["train", "NOP", "--model", "MODEL"], ["'NOP'", "KEY=VALUE"]),
    ([*ON_LAB, "--dtype", "float23"], ["float23", "float32"]),
    ([*ON_LAB, "--plugin", "/no.py"], ["/no.py"]),
    (["eval", "experiment=eval/tofu/defaul"], ["'default'"]),
    (["plan"], ["vestige plan", "--model"]),
    (["eval", "eval=tofu"], ["task_name"]),
    (["eval", "tofu", "MODEL"], ["--model MODEL"]),
    (["eval", "MODEL"], ["--model MODEL"]),
    ([*ON_LAB, "--batch-tokens", "0"], ["batch-tokens"]),
    ([*ON_LAB, "--metrics", ""], ["--metrics"]),
    (["eval", "tofu", "--model", "MODEL", "--data", "FILE"], ["--data"]),
    (["eval", "experiment=eval/nowhere/default"], ["eval/tofu/default"]),
    (["eval", "tofu", "--model", "MODEL", "--config-dir", "/nowhere"], ["/nowhere"]),
    ([*ON_LAB, "--retain-logs", "/no.json"], ["/no.json"]),
    ([*ON_LAB, "--retain-logs", "RUNS"], ["RUNS", "deep/two"]),
    ([*ON_LAB, "--retain-logs", "EMPTY"], ["EMPTY", "_EVAL.json"]),
    ([*ON_LAB, "--retain-logs", "ROWS"], ["ROWS"]),
    (["eval", "tofu", "--model", "MODEL", "--data", "ROWS"], ["--data DATA"]),
    (["eval", "tofu", "--model", "MODEL", "--data", "ODD"], ["odd.jsonl", "forget.jsonl"]),
    ([*ON_LAB, "--out", "ODD"], ["ODD", "directory"]),
    ([*ON_LAB, "--out", "ODD/x"], ["ODD", "file"]),
    (["pack", "RUNS"], ["RUNS", "deep/two", "one"]),
    (["score", "EMPTY"], ["EMPTY"]),
]


@one_test(("words", "named"), MISTAKES)
def test_mistakes_get_one_sentence(
    words: list[str], named: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    for name in ("one", "deep/two"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "TOFU_EVAL.json").write_text("{}")
        (tmp_path / "runs" / name / "manifest.json").write_text('{"kind": "eval", "state": "finished"}')
    (tmp_path / "odd.jsonl").write_text("")
    places = {
        "RUNS": str(tmp_path / "runs"),
        "ROWS": str(LAB / "data" / "forget.jsonl"),
        "ODD/x": str(tmp_path / "odd.jsonl" / "x"),
        "ODD": str(tmp_path / "odd.jsonl"),
        "MODEL-X": str(FULL) + "l",
        "MODEL": str(FULL),
        "DATA": str(LAB / "data"),
        "EMPTY": str(tmp_path / "empty"),
    }
    assert run(*(places.get(w, w) for w in words)) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("vestige: error: ") and "Traceback" not in said
    for text in named:
        for word, place in places.items():
            text = text.replace(word, place) if word in text.split() else text
        assert text in said, f"{said} does not name {text}"


def test_missing_retain_logs_are_mentioned_once_and_in_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    args = eval_args(FULL, tmp_path, "--limit", "3", "--metrics", "forget_quality,privleak")
    assert main(args) == 0
    said = [r.getMessage() for r in caplog.records]
    [once] = [m for m in said if "retain logs" in m]
    assert once.startswith("No retain logs")
    result = json.loads((tmp_path / "TOFU_EVAL.json").read_text())
    assert result["forget_quality"]["agg_value"] is None
    assert "retain logs" in result["forget_quality"]["reason"]
    assert "ref_value" in result["privleak"]["notes"][0]
    out = capsys.readouterr().out
    assert "retain logs" not in out and out.count("no retain model") == 2  # in the readings of the two metrics


def test_the_seed_reaches_sampled_texts(tmp_path: Path) -> None:
    sampled = (
        "+eval.tofu.metrics.forget_Q_A_ROUGE.generation_args={do_sample: true, temperature: 2.0, max_new_tokens: 12}"
    )

    def texts(out: str, *more: str) -> list[str]:
        words = eval_args(FULL, tmp_path / out, "--limit", "3", "--metrics", "forget_Q_A_ROUGE", sampled, *more)
        assert main(words) == 0
        result = json.loads((tmp_path / out / "TOFU_EVAL.json").read_text())
        return [v["generation"] for v in result["forget_Q_A_ROUGE"]["value_by_index"].values()]

    first = texts("a", "--seed", "1")
    assert texts("b", "--seed", "1", "max_rows=1") == first  # by sample, not by batch
    assert texts("c", "--seed", "2") != first


def test_an_unreachable_classifier_does_not_take_the_rest_with_it(tmp_path: Path) -> None:
    words = eval_args(FULL, tmp_path, "--limit", "2", "--metrics", "forget_Q_A_gibberish,forget_Q_A_Prob")
    assert main(words) == 0
    result = json.loads((tmp_path / "TOFU_EVAL.json").read_text())
    assert "could not be loaded" in result["forget_Q_A_gibberish"]["reason"]
    assert result["forget_Q_A_Prob"]["agg_value"] is not None


def test_a_metric_without_data_is_one_sentence_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was a StopIteration after the model had run, and a plan of 0 answers."""
    for verb in ("plan", "eval"):
        words = [str(w) for w in eval_args(FULL, tmp_path / "out", "+eval.tofu.metrics.mine.handler=probability")[1:]]
        assert main([verb, *words]) == 2
        said = capsys.readouterr().err
        assert "'mine' (handler probability)" in said and "Traceback" not in said
        assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_plan_counts_the_parameters_of_a_gguf_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("gguf")
    from models_tools import tiny_model, tiny_tokenizer, write_gguf

    model, file = tiny_model(), tmp_path / "tiny.gguf"
    write_gguf(file, model, tiny_tokenizer())
    words = ["plan", "tofu", "--model", str(file), "--data", str(LAB / "data"), "--limit", "2", "--out", str(tmp_path)]
    assert main([*words, "--metrics", "forget_Q_A_Prob"]) == 0
    line = next(x for x in capsys.readouterr().out.splitlines() if x.startswith("model "))
    parameters = sum(p.numel() for p in model.parameters())
    assert f"{parameters:,} parameters" in line and file.stat().st_size != parameters

"""Options: every parameter of a verb is one, and flags of other tools are understood."""

from __future__ import annotations

import argparse
import inspect
import json
from pathlib import Path

import pytest

from conftest import LAB, SYSTEM
from loops import one_test
from vestige import options
from vestige.cli import SYNONYMS, main, parser
from vestige.commands import VERBS, parameters_of
from vestige.configs.compose import compose_config, composing
from vestige.engine.config import RunConfig, make_config
from vestige.metrics.dialects import DIALECTS
from vestige.models.args import COMPUTE_DTYPES, DTYPES, QUANTIZATIONS
from vestige.options import ANSWERS, FOREIGN, NEEDLESS, translate_flags

FULL, DATA = LAB / "models" / "full", LAB / "data"
PARSERS = parser().verbs


def own_flags(verb: str) -> dict[str, argparse.Action]:
    """The flags of a verb by their long names, help aside."""
    actions = [a for a in PARSERS[verb].arguments if a.option_strings]
    return {a.option_strings[-1][2:]: a for a in actions if a.dest != "help"}


# ---- options -----------------------------------------------------------------------------------------------------


def test_one_spelling_for_one_and_for_many() -> None:
    names = {name for verb in VERBS for name in own_flags(verb)}
    singular = {name for name in names if f"{name}s" in names}
    assert singular <= {"plot", "baseline"}  # a picture's file; an epoch


@one_test("verb", VERBS)
def test_every_parameter_of_a_verb_is_an_option(verb: str) -> None:
    """A parameter whose annotation is no option would be a flag that nobody can give."""
    one = VERBS[verb]
    inner = {"progress", "command", "options", "request", "page"}
    parameters = set(inspect.signature(one.run).parameters) - inner
    assert parameters <= set(parameters_of(one))
    assert all(action.help for action in PARSERS[verb].arguments)
    assert set(one.notes) | set(one.required) <= set(parameters_of(one))


def test_values_that_options_list_are_those_there_are() -> None:
    assert set(options.DIALECTS) == set(DIALECTS)
    assert options.DTYPES == DTYPES and options.QUANTIZATIONS == QUANTIZATIONS
    assert options.COMPUTE_DTYPES == COMPUTE_DTYPES


# ---- from flags to a configuration ---------------------------------------------------------------------------------


@one_test("text", ["a ${seed} b", "x=y,z", 'it\'s "so"', "back\\slash\\${q}", "[1,2]", "{a: b}", " ", "é\n"])
def test_what_a_flag_says_reaches_the_run_as_it_is(text: str) -> None:
    run = make_config(model=str(FULL), data=str(DATA), system_prompt=text, retain_logs=[text], metrics=["mia_loss"])
    assert isinstance(run, RunConfig)
    assert run.template_args["system_prompt"] == text and run.retain_logs == (str(Path(text).absolute()),)


def test_a_word_of_hydra_beats_a_flag() -> None:
    ask = {"model": str(FULL), "data": str(DATA), "seed": 1, "device": "cpu", "limit": 3, "metrics": ["mia_loss"]}
    given = {"seed": 1, "data.max_samples": 3}
    for words in (["seed=2"], ["++seed=2"]):
        run = make_config(**{**ask, "overrides": words})
        assert isinstance(run, RunConfig) and (run.seed, run.limit) == (2, 3)
    with composing(None) as directories:
        words = ["eval=tofu", "model=local", "task_name=x", "+model.model_args={device: cuda}"]
        cfg = compose_config("eval.yaml", words, directories, {**given, "model.model_args.device": "cpu"})
        assert (cfg.seed, cfg.data.max_samples, cfg.model.model_args.device) == (1, 3, "cuda")


def test_the_batch_size_of_other_tools_is_a_flag_here(tmp_path: Path) -> None:
    words = [
        "eval",
        "tofu",
        "--model",
        str(FULL),
        "--data",
        str(DATA),
        "--out",
        str(tmp_path),
        "--limit",
        "3",
        "--quiet",
    ]
    assert main([*words, "--batch_size", "2", "--metrics", "forget_Q_A_Prob", "--system-prompt", SYSTEM]) == 0
    assert json.loads((tmp_path / "manifest.json").read_text())["config"]["max_rows"] == 2


# ---- other spellings -----------------------------------------------------------------------------------------------


@one_test(
    ("words", "means"),
    [
        (["--output_dir", "o"], ["--out", "o"]),
        (["--output_path=o"], ["--out=o"]),
        (["--resume"], []),
        (["--load_in_4bit"], ["--quantization", "4bit"]),
        (["--bf16", "--no_cuda"], ["--dtype", "bfloat16", "--device", "cpu"]),
        (["--trust_remote_code", "x=--y"], ["--trust-remote-code", "x=--y"]),
    ],
)
def test_flags_of_other_tools_are_understood(words: list[str], means: list[str]) -> None:
    assert translate_flags("eval", words, PARSERS["eval"].options)[0] == means


@one_test("name", ["gpu", "num_fewshot", "model-args", "dry-run"])
def test_flags_of_other_tools_are_answered(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "tofu", f"--{name}", "1"]) == 2
    said = capsys.readouterr().err
    assert f"--{name.replace('_', '-')}" in said and "Traceback" not in said


def test_spellings_of_other_tools_do_not_hide_flags_of_ours() -> None:
    for verb in VERBS:
        for name in own_flags(verb):
            assert translate_flags(verb, [f"--{name}"], PARSERS[verb].options)[0] == [f"--{name}"]
    assert not set(FOREIGN) & (set(NEEDLESS) | set(ANSWERS))


def test_a_gpu_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    words = ["eval", "tofu", "--model", str(FULL), "--data", str(DATA), "--limit", "2", "--out", str(tmp_path)]
    assert main([*words, "--device", "cuda"]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert "cuda" in said and "--device" in said


# ---- verbs ---------------------------------------------------------------------------------------------------------


@one_test(("word", "near"), [("evaluate", "eval"), ("unlern", "unlearn"), ("list", "ls"), ("reprot", "report")])
def test_unknown_verbs_get_a_guess(word: str, near: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([word, "tofu"]) == 2
    said = capsys.readouterr().err
    assert word in said and f"vestige {near}" in said
    assert not set(SYNONYMS) & set(VERBS) and set(SYNONYMS.values()) <= set(VERBS)

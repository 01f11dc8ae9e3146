"""The table of flags: every verb fits it, no flag has two meanings, old and foreign spellings are understood."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from conftest import LAB, SYSTEM
from loops import one_test
from vestige.cli import SYNONYMS, VERBS, main, parser
from vestige.configs.compose import compose_config, composing
from vestige.engine.config import RunConfig
from vestige.engine.flags import EvalAsk, to_run
from vestige.flags import ALL, ANSWERS, DIALECT_NAMES, FLAGS, FOREIGN, NEEDLESS, TABLE, flags_of, translated
from vestige.metrics.dialects import DIALECTS
from vestige.models.args import COMPUTE_DTYPES, DTYPES, QUANTIZATIONS

FULL, DATA = LAB / "models" / "full", LAB / "data"
PARSERS = parser().verbs


def own_flags(verb: str) -> dict[str, argparse.Action]:
    """The flags of a verb by their long names, help aside."""
    actions = [a for a in PARSERS[verb].arguments if a.option_strings]
    return {a.option_strings[-1][2:]: a for a in actions if a.dest != "help"}


# ---- the table ---------------------------------------------------------------------------------------------------


def test_the_table_names_verbs_that_exist_and_each_flag_once() -> None:
    assert len(FLAGS) == len(TABLE)
    for flag in TABLE:
        assert flag.verbs == ALL or set(flag.verbs.split()) <= set(VERBS), flag.name
        assert flag.verbs == ALL or len(flag.verbs.split()) > 1, f"{flag.name} belongs beside its one verb"
        assert flag.meaning, flag.name


@one_test("verb", VERBS)
def test_the_flags_of_every_verb_fit_the_table(verb: str) -> None:
    shared = {flag.name for flag in [*flags_of(verb), *(f for f in TABLE if f.verbs == ALL)]}
    mine = own_flags(verb)
    assert shared <= set(mine)
    assert set(mine) & set(FLAGS) == shared  # a name of the table is taken from the table
    for name in shared:
        flag, action = FLAGS[name], mine[name]
        assert action.option_strings == flag.spellings
        assert (action.nargs == 0) == (not flag.value)
        assert not flag.value or action.type is flag.type
    assert all(a.help for a in PARSERS[verb].arguments), "every argument explains itself"


def test_no_flag_has_two_meanings() -> None:
    """A name outside the table belongs to one room; there it means one thing."""
    seen: dict[str, set[tuple[Any, ...]]] = {}
    rooms: dict[str, set[str]] = {}
    for verb in VERBS:
        for name, action in own_flags(verb).items():
            if name not in FLAGS:
                seen.setdefault(name, set()).add((action.help, action.metavar, action.type, action.nargs))
                rooms.setdefault(name, set()).add(VERBS[verb])
    assert {name: kinds for name, kinds in seen.items() if len(kinds) > 1} == {}
    assert {name: where for name, where in rooms.items() if len(where) > 1} == {}
    singular = {name for name in {*seen, *FLAGS} if f"{name}s" in {*seen, *FLAGS}}
    assert singular <= {"plot", "baseline"}, "one spelling for one and for many"  # a picture's file; an epoch


def test_values_that_the_table_lists_are_those_there_are() -> None:
    assert set(DIALECT_NAMES) == set(DIALECTS)
    assert FLAGS["dtype"].words == DTYPES and FLAGS["quantization"].words == QUANTIZATIONS
    assert FLAGS["compute-dtype"].words == COMPUTE_DTYPES


# ---- from flags to a configuration ---------------------------------------------------------------------------------


@one_test("text", ["a ${seed} b", "x=y,z", 'it\'s "so"', "back\\slash\\${q}", "[1,2]", "{a: b}", " ", "é\n"])
def test_what_a_flag_says_reaches_the_run_as_it_is(text: str) -> None:
    run = to_run(EvalAsk(model=str(FULL), data=str(DATA), system_prompt=text, retain_logs=[text], metrics=["mia_loss"]))
    assert isinstance(run, RunConfig)
    assert run.template_args["system_prompt"] == text and run.retain_logs == (str(Path(text).absolute()),)


def test_a_word_of_hydra_beats_a_flag() -> None:
    ask = EvalAsk(model=str(FULL), data=str(DATA), seed=1, device="cpu", limit=3, metrics=["mia_loss"])
    given = {"seed": 1, "data.max_samples": 3}
    for words in (["seed=2"], ["++seed=2"]):
        run = to_run(EvalAsk(**{**vars(ask), "overrides": words}))
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
    assert translated("eval", words, PARSERS["eval"].options)[0] == means


@one_test("name", ["gpu", "num_fewshot", "model-args", "dry-run"])
def test_flags_of_other_tools_are_answered(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "tofu", f"--{name}", "1"]) == 2
    said = capsys.readouterr().err
    assert f"--{name.replace('_', '-')}" in said and "Traceback" not in said


def test_spellings_of_other_tools_do_not_hide_flags_of_ours() -> None:
    for verb in VERBS:
        for name in own_flags(verb):
            assert translated(verb, [f"--{name}"], PARSERS[verb].options)[0] == [f"--{name}"]
    assert not set(FOREIGN) & (set(NEEDLESS) | set(ANSWERS))
    assert all(ours[0][2:] in FLAGS for ours in FOREIGN.values())


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

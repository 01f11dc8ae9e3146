"""The command line and the Python names as a newcomer meets them: fast help, lists, flags, settings, docstrings.

Mistakes on the command line are in the table of test_bad_input.py.
"""

from __future__ import annotations

import inspect
import json
import os
import pty
import re
import resource
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness import (
    DATA,
    FULL,
    LAB,
    RETAIN,
    UNLEARNED,
    copy_tree,
    environment,
    python,
    read_json,
    read_rows,
    vestige,
    write_rows,
)

import vestige as package
import vestige.plugins as plugins

PROB = "forget_Q_A_Prob"
PROGRAM = Path(sys.executable).with_name("vestige")
HEAVY = {"torch", "transformers", "numpy", "hydra", "datasets", "scipy", "pandas"}
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


def run_real(*words: object) -> tuple[subprocess.CompletedProcess[str], float]:
    """A new process, and the processor time it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    texts = [str(word) for word in words]
    done = subprocess.run(texts, env=environment(), capture_output=True, text=True, stdin=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return done, (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)


MANY_COMMANDS = """
import contextlib, importlib.metadata, io, json, sys
(script,) = importlib.metadata.entry_points(group="console_scripts", name="vestige")
main, answers = script.load(), []
for words in json.loads(sys.argv[1]):
    sys.argv, printed = ["vestige", *words], io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            status = main()
        except SystemExit as end:
            status = end.code
    answers.append([status or 0, printed.getvalue()])
print(json.dumps(answers))
"""


def run_many(commands: list[tuple[str, ...]], here: Path, status: int = 0) -> dict[tuple[str, ...], str]:
    """What each of many quick commands prints, all in one process. They write nothing."""
    answers = json.loads(python(MANY_COMMANDS, json.dumps(commands), cwd=here).out)
    for words, (code, printed) in zip(commands, answers, strict=True):
        assert code == status, (words, printed)
    assert list(here.iterdir()) == []
    return {words: printed for words, (_, printed) in zip(commands, answers, strict=True)}


# ---- start-up and help -----------------------------------------------------------------------------------------------


def test_it_answers_at_once_and_loads_nothing_heavy() -> None:
    """Best of three, because the first start may compile bytecode."""
    for words in (["--help"], ["--version"], ["eval", "--help"], ["evl"]):
        runs = [run_real(PROGRAM, *words) for _ in range(3)]
        assert {done.returncode for done, _ in runs} == {2 if words == ["evl"] else 0}
        assert min(seconds for _, seconds in runs) < 0.5, words
    for words in (
        ["-m", "vestige", "--help"],
        ["-m", "vestige", "sweep", "--help"],
        ["-c", "import vestige as v; dir(v)"],
    ):
        done, _ = run_real(sys.executable, "-X", "importtime", *words)
        imported = {line.rpartition("|")[2].strip().split(".")[0] for line in done.stderr.splitlines()}
        assert "vestige" in imported and imported & HEAVY == set(), words
    program, module = (run_real(*words, "--version")[0] for words in ([PROGRAM], [sys.executable, "-m", "vestige"]))
    assert program.stdout == module.stdout and package.__version__ in program.stdout
    assert (program.stderr, module.stderr) == ("", "")


def test_help_names_every_verb_and_each_flag_once(tmp_path: Path) -> None:
    first = vestige("--help").out
    assert vestige().out == first  # a newcomer types the name alone
    verbs = re.findall(r"^(?:[a-z].{11}| {12})([a-z-]{2,}) +[a-z]", first, flags=re.MULTILINE)
    assert len(verbs) == len(set(verbs)) >= 20 and max(map(len, first.splitlines())) <= 80
    helped = run_many([("help", verb) for verb in verbs], tmp_path)
    count = 0
    for words, shown in run_many([(verb, "--help") for verb in verbs], tmp_path).items():
        assert helped["help", words[0]] == shown
        assert max(map(len, shown.splitlines())) <= 120, words
        usage, _, options = shown.partition("\noptions:\n")
        flags = []
        for entry in re.split(r"\n(?=  -)", options.partition("\n\n")[0]):
            head, meaning = re.split(r" {2,}|\n", entry.strip(), maxsplit=1)
            flags.append(FLAG.search(head)[0])  # type: ignore[index]
            assert len(meaning.split()) >= 2, (words, entry)
            assert not re.search(r"%\(?\w|\{\w*\}|\bNone\b|[,;:(]$", meaning), (words, entry)
        assert len(flags) == len(set(flags)), f"{words}: a flag is listed twice"
        assert {"--help", "--quiet", "--debug"} <= set(flags)
        in_usage = FLAG.findall(usage.partition("\n\n")[0])
        short = {"--help", "--out", "--multirun"}  # these have a short form there
        assert sorted(set(flags) - short) == sorted(set(in_usage) - short) and set(in_usage) <= set(flags), words
        assert len(in_usage) == len(set(in_usage)), words
        count += len(flags)
    assert count >= 200


# ---- what is listed is taken -----------------------------------------------------------------------------------------

MODEL, FORGET = ("--model", str(FULL)), ("--forget", str(DATA / "forget.jsonl"))


def listed(kind: str) -> dict[str, str]:
    """What `vestige ls` has of a kind: names and their meanings."""
    found = re.findall(r"^  (\S+) +(.+)", vestige("ls", kind).out, flags=re.MULTILINE)
    assert len(found) == len(dict(found)) >= 5, kind
    return dict(found)


def test_metrics_that_are_listed_are_explained(tmp_path: Path) -> None:
    """One metric of each meaning, because an explanation takes half a second; and a short name."""
    metrics = listed("metrics")
    assert set(read_json(LAB / "expected_default" / "full" / "TOFU_SUMMARY.json")) <= set(metrics)
    by_meaning = {meaning.partition(" (")[0]: name for name, meaning in metrics.items()}
    names = {"em", "extraction_strength", *by_meaning.values()}
    for words, shown in run_many([("explain", name) for name in sorted(names)], tmp_path).items():
        parts = re.findall(r"^(formula|high|low|source) +\S", shown, flags=re.MULTILINE)
        assert parts == ["formula", "high", "low", "source"], words
        assert words[1] in shown
        assert words[1] != "extraction_strength" or "Where the dialects differ" in shown


def test_names_that_are_listed_are_taken(tmp_path: Path) -> None:
    expected = {("eval", name, *MODEL, "--cfg"): ("suite", name) for name in listed("suites")}
    expected |= {("eval", "tofu", *MODEL, "--dialect", name, "--cfg"): ("dialect", name) for name in listed("dialects")}
    expected |= {("unlearn", *MODEL, *FORGET, "--method", m, "--cfg"): ("handler", m) for m in listed("methods")}
    for words, shown in run_many(list(expected), tmp_path).items():
        key, name = expected[words]
        assert yaml.safe_load(shown)[key] == name, words
    attacks = re.search(r"ATTACK\[=BUDGET,\.\.\.\] +(\w.*?), or a", vestige("stress", "--help").out, flags=re.DOTALL)
    names = re.split(r"[\s,]+", attacks[1]) if attacks else []
    known = [("stress", name, *MODEL, "--data", "nowhere") for name in names]  # refused for another reason
    for words, shown in run_many(known, tmp_path, status=2).items():
        assert "nowhere" in shown, words
    assert len(known) >= 5


# ---- flags and words -------------------------------------------------------------------------------------------------


def composed(*words: object) -> dict[str, Any]:
    shown = vestige(*words, "--cfg")
    assert shown.err == ""
    return yaml.safe_load(shown.out)


def flat(node: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(node, dict):
        return {path: node}
    found = {}
    for key, child in node.items():
        found |= flat(child, f"{path}.{key}".lstrip("."))
    return found


FLAGS_AND_WORDS = [
    (("--limit", 3), "data.max_samples=3"),
    (("--seed", 7), "seed=7"),
    (("--batch-tokens", 99), "batch_tokens=99"),
    (("--batch-size", 5), "max_rows=5"),
    (("--dialect", "strict"), "dialect=strict"),
    (("--system-prompt", "Be kind, x=y."), "model.template_args.system_prompt='Be kind, x=y.'"),
    (("--dtype", "bfloat16"), "model.model_args.torch_dtype=bfloat16"),
    (("--device", "cpu"), "+model.model_args.device=cpu"),
    (("--quantization", "4bit"), "model.model_args.quantization=4bit"),
    (("--compute-dtype", "float32"), "+model.model_args.compute_dtype=float32"),
    (("--tokenizer", RETAIN), f"model.tokenizer_args.pretrained_model_name_or_path='{RETAIN}'"),
    (("--trust-remote-code",), "model.model_args.trust_remote_code=true"),
    (("--retain-logs", "logs.json"), "eval.tofu.retain_logs_path=logs.json"),
    (("--reference-model", RETAIN), f"eval.tofu.reference_model_path='{RETAIN}'"),
    (("--full", FULL), f"eval.tofu.full_model_path='{FULL}'"),
    (("--cluster", "author"), "stats.cluster=author"),
    (("--overwrite",), "eval.tofu.overwrite=true"),
    (("--task-name", "mine"), "task_name=mine"),
    (("--out", "there"), "paths.output_dir=there"),
]
LESSON = ("unlearn", *MODEL, *FORGET, "--out", "there")
TRAINING = [
    (("--method", "NPO"), "trainer=NPO"),
    (("--epochs", 3), "trainer.args.num_train_epochs=3"),
    (("--lr", 0.001), "trainer.args.learning_rate=0.001"),
    (("--batch-size", 2), "trainer.args.per_device_train_batch_size=2"),
    (("--accumulation", 1), "trainer.args.gradient_accumulation_steps=1"),
    (("--knob", "beta=0.3"), "trainer.method_args.beta=0.3"),
]


def test_a_word_sets_what_its_flag_sets() -> None:
    """Words win over flags, and both may stand anywhere."""
    base = ("eval", "tofu", *MODEL, "--data", DATA, "--metrics", "forget_quality,mia_reference")
    for start, table in ((base, FLAGS_AND_WORDS), (LESSON, TRAINING)):
        flags = composed(*start, *(word for given, _ in table for word in given))
        assert flags == composed(*start, *(word for _, word in table))
        different = [key for key, value in flat(composed(*start)).items() if flat(flags).get(key) != value]
        assert len(different) >= len(table) - 4, different
    got = composed("eval", "--limit", 3, "seed=5", "tofu", "data.max_samples=2", *MODEL, "--data", DATA)
    assert (got["max_samples"], got["seed"], got["suite"]) == (2, 5, "tofu")
    assert composed("eval", "muse", "data_split=Books", *MODEL)["settings"]["data_split"] == "Books"


EXPERIMENT, PATH = "experiment=eval/tofu/default", "model.model_args.pretrained_model_name_or_path"


@pytest.mark.parametrize(
    ("experiment", "flag", "changed"),
    [
        (EXPERIMENT, ("--dtype", "bfloat16"), "model.model_args.torch_dtype"),
        ("experiment=eval/muse/default", MODEL, PATH),
        ("experiment=eval/wmdp/default", MODEL, PATH),
        (EXPERIMENT, ("--limit", 3), "max_samples"),
        (EXPERIMENT, ("--task-name", "mine"), "task_name"),
    ],
)
def test_a_flag_changes_one_setting_of_an_experiment(experiment: str, flag: tuple[object, ...], changed: str) -> None:
    before, after = flat(composed("eval", experiment)), flat(composed("eval", experiment, *flag))
    different = {key for key in before | after if before.get(key) != after.get(key)}
    assert different - {"output_dir", "settings.output_dir"} == {changed}  # the task names those


def value(out: Path, *words: object, metric: str = PROB) -> float:
    vestige("eval", *words, "--limit", 4, "--metrics", metric, "stats.resamples=0", "--quiet", "--out", out)
    return float(read_json(out / "TOFU_SUMMARY.json")[metric])


def test_settings_of_an_experiment_stay_beside_flags(tmp_path: Path) -> None:
    """open-unlearning's model configuration has a system prompt; a folder may stand for its data set."""
    names = f"{{path: '{DATA}', names: {{forget10: forget, forget10_perturbed: forget, holdout10: holdout}}}}"
    local, system = f"data.local={{locuslab/TOFU: {names}}}", ("--system-prompt", "You are a helpful assistant.")
    flags = value(tmp_path / "flags", EXPERIMENT, "--model", UNLEARNED, "--data", DATA)
    words = value(tmp_path / "words", EXPERIMENT, f"{PATH}={UNLEARNED}", local, "data.max_samples=4")
    plain = value(tmp_path / "plain", "tofu", "--model", UNLEARNED, "--data", DATA, *system)
    assert flags == words == plain > 0.5
    folder = copy_tree(DATA, tmp_path / "dätä of mine")
    for number, local in enumerate((f"data.local={folder}", f"data.local={{locuslab/TOFU: '{DATA}'}}")):
        assert value(tmp_path / f"{number}", "tofu", "--model", UNLEARNED, local, *system) == plain


def test_open_unlearnings_mia_reference_takes_the_flag(tmp_path: Path) -> None:
    """Its file leaves reference_model_path open (???)."""
    file = tmp_path / "configs" / "eval" / "tofu_metrics" / "mia_reference.yaml"
    file.parent.mkdir(parents=True)
    sets = {}
    for key, name in (("TOFU_QA_forget", "forget10"), ("TOFU_QA_holdout", "holdout10")):
        sets[key] = {"from": "TOFU_MIA", "args": {"hf_args": {"name": name}}}
    body = {"handler": "mia_reference", "reference_model_path": "???", "datasets": sets}
    file.write_text(f"# @package eval.tofu.metrics.mia_reference\n{yaml.safe_dump(body)}")
    words = ("tofu", "--model", UNLEARNED, "--data", DATA, "--reference-model", RETAIN)
    theirs = value(tmp_path / "theirs", *words, "--config-dir", tmp_path / "configs", metric="mia_reference")
    assert theirs == value(tmp_path / "ours", *words, metric="mia_reference")


# ---- what is printed -------------------------------------------------------------------------------------------------

ON_A_TERMINAL = """
import importlib.metadata, os, sys
os.dup2(os.open(sys.argv.pop(1), os.O_WRONLY | os.O_NOCTTY), 2)
(script,) = importlib.metadata.entry_points(group="console_scripts", name="vestige")
raise SystemExit(script.load()())
"""


@pytest.mark.parametrize("more", [(), ("--quiet",)])
def test_progress_goes_to_a_terminal_on_standard_error_only(more: tuple[str, ...], tmp_path: Path) -> None:
    """Standard output is for results; a bar is drawn where somebody watches, unless --quiet."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 120))
    os.set_blocking(ours, False)
    rows = ("--learn", DATA / "forget.jsonl", "--epochs", 4, "--batch-size", 1, "--accumulation", 1)
    words = ("train", "--model", RETAIN, *rows, "--out", tmp_path / "run")  # 128 steps: bars appear after half a second
    run = python(ON_A_TERMINAL, os.ttyname(theirs), *words, *more)
    try:
        shown = os.read(ours, 65536).decode()
    except BlockingIOError:
        shown = ""
    assert ("%|" in shown) == (not more) and (bool(shown) == (not more))
    assert "128 steps" in run.out and str(tmp_path / "run") in run.out
    assert "\r" not in run.out and "\x1b" not in run.out


def test_a_pipe_gets_results_and_no_bars_and_the_prompt_is_shown(tmp_path: Path) -> None:
    words = ("eval", "tofu", *MODEL, "--data", DATA, "--limit", 2, "--metrics", f"{PROB},privleak")
    without = vestige(*words, "--out", tmp_path / "without")
    given = vestige(*words, "--out", tmp_path / "given", "--system-prompt", "Be brief.")
    assert PROB in given.out and "retain" in given.err  # a warning: there are no retain logs
    assert "\r" not in given.printed and "%|" not in given.printed
    assert "--system-prompt" in without.out and "--system-prompt" not in given.out
    assert "Be brief." in given.out and "{question}" in without.out
    assert "Be brief." in read_json(tmp_path / "given" / "manifest.json")["prompt"]


def test_holdout_rows_that_are_forget_rows(tmp_path: Path) -> None:
    """Some are named; where all are, the AUC would be 0.5 whatever the model knows."""
    forget, holdout = (read_rows(DATA / f"{name}.jsonl")[:6] for name in ("forget", "holdout"))
    for folder, others in (("some", [forget[1], *holdout[:5]]), ("all", forget)):
        write_rows(tmp_path / folder / "forget.jsonl", forget)
        write_rows(tmp_path / folder / "holdout.jsonl", others)
    words = ("eval", "tofu", *MODEL, "--metrics", "mia_loss,mia_zlib", "--cluster", "none")
    shown = vestige(*words, "--data", tmp_path / "some", "--out", tmp_path / "out")
    (note,) = [line for line in shown.out.splitlines() if "holdout.jsonl" in line and "forget rows" in line]
    assert "1 of 6" in note
    refused = vestige(*words, "--data", tmp_path / "all", "--out", tmp_path / "none", status=2)
    assert "holdout.jsonl" in refused.error and "forget.jsonl" in refused.error


# ---- Python ----------------------------------------------------------------------------------------------------------


def test_public_names_have_docstrings_and_types() -> None:
    for name in package.__all__:
        thing = getattr(package, name)
        assert name in dir(package) and len(inspect.getdoc(thing) or "") > 20
        functions = [thing]
        if inspect.isclass(thing):
            functions = [one for key, one in vars(thing).items() if inspect.isfunction(one) and key.strip("_") == key]
            functions.append(thing.__init__)
        for function in functions:
            signature = inspect.signature(function)
            untyped = [p.name for p in signature.parameters.values() if p.name != "self" and p.annotation is p.empty]
            assert untyped == [] and signature.return_annotation is not signature.empty, function.__qualname__
    for name in plugins.__all__:
        thing = getattr(plugins, name)
        assert isinstance(thing, dict) or inspect.getdoc(thing), name
    for module in (package, plugins):
        with pytest.raises(AttributeError):
            _ = module.no_such_name

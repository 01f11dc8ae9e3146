"""The command line and the Python names as a newcomer meets them: fast help, flags, mistakes, streams, docstrings."""

from __future__ import annotations

import inspect
import re
import resource
import subprocess
import sys
import typing
from pathlib import Path

import pytest
import yaml
from harness import DATA, FULL, RETAIN, environment, python, vestige

import vestige as package
import vestige.plugins as plugins

PROGRAM = Path(sys.executable).with_name("vestige")
VERBS = [
    *("eval", "audit", "plan", "score", "demo", "depth", "collapse", "explain", "ls", "stress", "train", "unlearn"),
    *("compare", "diff", "report", "table", "plot", "view", "verify", "pack", "unpack", "publish", "import", "meta"),
    *("sweep", "job"),
]
REMOVED_BY_ISSUE_31 = {  # and what its sentence names in its place
    "methods-text": "vestige explain METRIC",
    "published": "vestige compare RUN published",
    "demo-meta": "vestige meta",
    "completion": "vestige VERB --help",
    "serve-check": "vestige plan SUITE --model PATH --server URL",
}
HEAVY = {"torch", "transformers", "numpy", "hydra", "datasets", "scipy", "pandas"}
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


def run_real(*words: str) -> tuple[subprocess.CompletedProcess[str], float]:
    """A new process, and the processor time it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, stdin=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return done, (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)


# ---- start-up --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [("--help",), ("--version",), ("eval", "--help"), ("evl",)])
def test_it_answers_at_once(words: tuple[str, ...]) -> None:
    """Best of three, because the first start may compile bytecode."""
    times = []
    for _ in range(3):
        done, seconds = run_real(str(PROGRAM), *words)
        assert done.returncode == (2 if words == ("evl",) else 0), done.stderr
        times.append(seconds)
    assert min(times) < 0.5, times


@pytest.mark.parametrize(
    "words",
    [("-m", "vestige", "--help"), ("-m", "vestige", "sweep", "--help"), ("-c", "import vestige; dir(vestige)")],
)
def test_help_and_import_load_nothing_heavy(words: tuple[str, ...]) -> None:
    done, _ = run_real(sys.executable, "-X", "importtime", *words)
    assert done.returncode == 0, done.stderr
    imported = set()
    for line in done.stderr.splitlines():
        imported.add(line.rpartition("|")[2].strip().split(".")[0])
    assert "vestige" in imported  # the list is what it is taken for
    assert imported & HEAVY == set()


def test_the_module_and_the_program_are_the_same() -> None:
    program, _ = run_real(str(PROGRAM), "--version")
    module, _ = run_real(sys.executable, "-m", "vestige", "--version")
    assert program.stdout == module.stdout
    assert package.__version__ in program.stdout
    assert (program.stderr, module.stderr) == ("", "")


# ---- help ------------------------------------------------------------------------------------------------------------


def test_the_first_screen_names_every_verb() -> None:
    shown = vestige("--help").out
    listed = re.findall(r"^(?:[a-z].{11}| {12})([a-z-]{2,}) +[a-z]", shown, flags=re.MULTILINE)
    assert set(VERBS) <= set(listed)
    assert len(listed) == len(set(listed))
    assert vestige().out == shown  # a newcomer types the name alone
    assert max(len(line) for line in shown.splitlines()) <= 80


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_a_verb_mentions_each_flag_once(verb: str) -> None:
    shown = vestige(verb, "--help")
    assert shown.err == ""
    usage, _, options = shown.out.partition("\noptions:\n")
    heads = [line for line in options.splitlines() if re.match(r"  -", line)]
    flags = []
    for head in heads:
        flags.append(FLAG.search(head).group())  # type: ignore[union-attr]
    assert len(flags) == len(set(flags)), "a flag is listed twice"
    assert {"--help", "--quiet", "--debug"} <= set(flags)
    in_usage = FLAG.findall(usage.partition("\n\n")[0])
    for flag in set(flags) - {"--help", "--out", "--multirun"}:  # these have a short form there
        assert in_usage.count(flag) == 1, flag
    assert set(in_usage) <= set(flags)
    assert vestige("help", verb).out == shown.out


def test_a_removed_verb_names_what_to_use_instead(tmp_path: Path) -> None:
    listed = vestige("--help").out
    for verb, instead in REMOVED_BY_ISSUE_31.items():
        for words in ([verb], [verb, "--help"], [verb, "saves/eval/mine", "--out", "o"]):
            refused = vestige(*words, status=2, cwd=tmp_path)
            assert verb in refused.error and instead in refused.error
            assert refused.out == ""
        assert verb not in listed.split()
    assert list(tmp_path.iterdir()) == []


# ---- flags and words -------------------------------------------------------------------------------------------------


def composed(*words: object) -> dict[str, typing.Any]:
    shown = vestige(*words, "--cfg")
    assert shown.err == ""
    return yaml.safe_load(shown.out)


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


def test_a_word_sets_what_its_flag_sets() -> None:
    base = ("eval", "tofu", "--model", FULL, "--data", DATA, "--metrics", "forget_quality,mia_reference")
    flags = []
    for given, _ in FLAGS_AND_WORDS:
        flags.extend(given)
    words = [word for _, word in FLAGS_AND_WORDS]
    plain = composed(*base)
    by_flags = composed(*base, *flags)
    assert by_flags == composed(*base, *words)
    assert by_flags["max_samples"] == 3
    assert by_flags["model"]["template_args"]["system_prompt"] == "Be kind, x=y."
    assert by_flags["output_dir"] == "there"
    changed = []
    for key in plain:
        if plain[key] != by_flags[key]:
            changed.append(key)
    assert set(changed) >= {
        "settings",
        "model",
        "task_name",
        "seed",
        "max_samples",
        "batch_tokens",
        "max_rows",
        "dialect",
    }
    assert plain["metrics"] == by_flags["metrics"] or "logs.json" in str(by_flags["metrics"])


def test_words_win_over_flags_and_may_stand_anywhere() -> None:
    got = composed("eval", "--limit", 3, "seed=5", "tofu", "data.max_samples=2", "--model", FULL, "--data", DATA)
    assert (got["max_samples"], got["seed"], got["suite"]) == (2, 5, "tofu")
    words = ("--model", FULL, "--forget", DATA / "forget.jsonl", "--out", "there")
    short = (
        "--method",
        "NPO",
        "--epochs",
        3,
        "--lr",
        0.001,
        "--batch-size",
        2,
        "--accumulation",
        1,
        "--knob",
        "beta=0.3",
    )
    long = (
        "trainer=NPO",
        "trainer.args.num_train_epochs=3",
        "trainer.args.learning_rate=0.001",
        "trainer.args.per_device_train_batch_size=2",
        "trainer.args.gradient_accumulation_steps=1",
        "trainer.method_args.beta=0.3",
    )
    by_flags = composed("unlearn", *words, *short)
    assert by_flags["args"]["num_train_epochs"] == 3
    assert by_flags["method_args"]["beta"] == 0.3
    assert by_flags == composed("unlearn", *words, *long)


# ---- mistakes --------------------------------------------------------------------------------------------------------

EVAL = ("eval", "tofu", "--model", FULL, "--data", DATA)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("evl",), ["evl", "vestige eval"]),
        (("comparee",), ["comparee", "vestige compare"]),
        (("frobnicate",), ["frobnicate", "--help"]),
        (("version",), ["--version"]),
        (("eval", "tofu", "--modle", "x"), ["--modle", "--model"]),
        (("depth", "--unlerned", "x"), ["--unlerned", "--unlearned"]),
        (("score", "RUN", "--out", "X"), ["--out"]),
        (("eval", "tofo", "--model", "x"), ["tofo", "'tofu'"]),
        ((*EVAL, "--metrics", "mia_los"), ["mia_los", "'mia_loss'"]),
        ((*EVAL, "--dialect", "strickt"), ["strickt", "'strict'"]),
        ((*EVAL, "eval.tofu.nonsense=1"), ["nonsense"]),
        (("eval", "tofu", "muse", "--model", "x"), ["tofu", "muse"]),
        (("eval", "model=Llama-3.2-1B-Instuct", "task_name=x"), ["'Llama-3.2-1B-Instruct'"]),
        (("unlearn", "--method", "NOP", "--model", FULL, "--forget", DATA / "forget.jsonl"), ["NOP", "NPO"]),
        (("stress", "relern", "--model", FULL, "--data", DATA), ["relern", "'relearn'"]),
        (("ls", "metrix"), ["metrix", "'metrics'"]),
        (("explain", "privlek"), ["privlek", "'privleak'"]),
        (("eval", "--limit", "x"), ["--limit", "x"]),
        (("audit", "--before", "X"), ["--after", "--forget"]),
        (("publish", "RUN"), ["--to"]),
        (("diff", "A"), ["RUN_B"]),
        (("eval",), ["--model"]),
    ],
    ids=lambda value: " ".join(str(word) for word in value)[:40],
)
def test_a_mistake_is_one_sentence_with_the_nearest_name(
    words: tuple[object, ...], named: list[str], tmp_path: Path
) -> None:
    refused = vestige(*words, status=2, cwd=tmp_path)
    for text in named:
        assert text in refused.error
    assert refused.out == ""
    assert list(tmp_path.iterdir()) == []


# ---- streams ---------------------------------------------------------------------------------------------------------

ON_A_TERMINAL = """
import importlib.metadata, os, pty, sys, termios, threading, tty
ours, theirs = pty.openpty()
tty.setraw(theirs)
termios.tcsetwinsize(theirs, (24, 120))
os.dup2(theirs, 2)
shown = []
def read():
    while chunk := os.read(ours, 65536):
        shown.append(chunk)
        if chunk.endswith(b"END"):
            return
reader = threading.Thread(target=read)
reader.start()
(script,) = importlib.metadata.entry_points(group="console_scripts", name="vestige")
target = sys.argv.pop(1)
try:
    status = script.load()()
except SystemExit as end:
    status = end.code
sys.stderr.flush()
os.write(2, b"END")
reader.join()
open(target, "wb").write(b"".join(shown))
sys.exit(status)
"""


@pytest.mark.parametrize("quiet", [False, True])
def test_progress_goes_to_a_terminal_on_standard_error_only(quiet: bool, tmp_path: Path) -> None:
    """Standard output is for results; a bar is drawn where somebody watches, unless --quiet."""
    rows = ("--learn", DATA / "forget.jsonl", "--epochs", 4, "--batch-size", 1, "--accumulation", 1)
    words = ("train", "--model", RETAIN, *rows)  # 128 steps: a bar appears after half a second
    more = ("--quiet",) if quiet else ()
    run = python(ON_A_TERMINAL, tmp_path / "terminal", *words, "--out", tmp_path / "run", *more)
    shown = (tmp_path / "terminal").read_text()
    assert ("%|" in shown) == (not quiet), shown
    assert not quiet or shown == "END"
    assert "128 steps" in run.out
    assert str(tmp_path / "run") in run.out
    assert "\r" not in run.out and "\x1b" not in run.out
    assert run.err == ""


def test_a_pipe_gets_results_and_no_bars(tmp_path: Path) -> None:
    run = vestige(*EVAL, "--limit", 2, "--metrics", "forget_Q_A_Prob,privleak", "--out", tmp_path / "run")
    assert "forget_Q_A_Prob" in run.out
    assert "retain" in run.err  # a warning: there are no retain logs
    assert "\r" not in run.printed
    assert "%|" not in run.printed


# ---- Python ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", package.__all__)
def test_public_names_have_docstrings_and_types(name: str) -> None:
    thing = getattr(package, name)
    assert len(inspect.getdoc(thing) or "") > 20
    if inspect.isclass(thing):
        functions = []
        for key, member in vars(thing).items():
            if inspect.isfunction(member) and (not key.startswith("_") or key == "__init__"):
                functions.append(member)
    else:
        functions = [thing]
    for function in functions:
        signature = inspect.signature(function)
        for parameter in list(signature.parameters.values()):
            if parameter.name != "self":
                assert parameter.annotation is not parameter.empty, f"{function.__qualname__}({parameter.name})"
        assert signature.return_annotation is not signature.empty, function.__qualname__
    assert name in dir(package)


def test_plugin_names_are_there_and_explained() -> None:
    for name in plugins.__all__:
        thing = getattr(plugins, name)
        assert isinstance(thing, dict) or inspect.getdoc(thing), name
    with pytest.raises(AttributeError):
        _ = plugins.no_such_name
    with pytest.raises(AttributeError):
        _ = package.no_such_name


def test_a_wrong_keyword_or_value_raises_one_exception() -> None:
    for keywords, named in [
        ({"metrcs": "mia_loss"}, "metrics"),
        ({"metrics": "mia_los"}, "mia_loss"),
        ({"limit": 0}, "limit"),
        ({"dtype": "float23"}, "float32"),
        ({"data": "/nowhere"}, "/nowhere"),
    ]:
        with pytest.raises(package.UserError, match=re.escape(named)):
            package.evaluate(str(FULL), "tofu", **{"data": str(DATA), **keywords})  # type: ignore[arg-type]

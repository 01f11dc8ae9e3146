"""The table of flags: name, meaning, kind of value, verbs, and the setting of a configuration that a flag is.

In: nothing. Out: argparse arguments for a verb (`shared_flags`), configuration values for what was typed
(`settings_of`), and today's words for yesterday's spellings and those of other tools (`translated`). Callers: each
room's flags.py for the flags it shares with other rooms, the engine, and cli. A flag that only one room has is
declared beside its work. A flag means the same in every verb: tests/test_flags.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vestige.errors import UserError


@dataclass(frozen=True)
class Flag:
    """One row of the table. `verbs` are those that have it; ALL stands for every verb."""

    name: str  # as it is typed, without dashes
    value: str  # what comes after it, as help shows it; empty: a switch
    meaning: str  # true in every verb; a verb adds its default, or a limit
    verbs: str
    key: str = ""  # the setting of an evaluation it stands for; {suite} is the suite's name
    type: Callable[[str], Any] = str
    short: str = ""
    repeated: bool = False
    words: tuple[str, ...] = ()  # values there are, for help and completion

    @property
    def attribute(self) -> str:
        return self.name.replace("-", "_")

    @property
    def spellings(self) -> list[str]:
        return [*([f"-{self.short}"] if self.short else []), f"--{self.name}"]


ALL = "every verb"
EVAL, MAKE, PAGE = "eval plan", "train unlearn", "report table plot view"
LOADS = f"{EVAL} audit depth collapse {MAKE} stress"
DIALECT_NAMES = ("open-unlearning", "strict", "tofu", "muse", "depth-score")
_MODEL = "model.model_args"

TABLE = (
    # what is measured
    Flag("model", "PATH", "the model: a directory, .gguf file, PEFT adapter or hub id",
         f"{EVAL} collapse {MAKE} stress", f"{_MODEL}.pretrained_model_name_or_path"),
    Flag("full", "MODEL", "the model before unlearning", f"{EVAL} depth {PAGE}", "eval.{suite}.full_model_path"),
    Flag("retain-model", "MODEL", "the model trained without the forget rows", f"{EVAL} audit depth stress {PAGE}"),
    Flag("data", "DIR", "folder with forget.jsonl, retain.jsonl, holdout.jsonl, ...", f"{EVAL} depth stress unlearn"),
    Flag("forget", "FILE", "rows to forget: question and answer, or text", "audit depth unlearn"),
    Flag("retain", "FILE", "rows to keep", "audit unlearn"),
    Flag("retain-logs", "RUN", "result file or run directory of the retain model", f"{EVAL} score import {MAKE}",
         "eval.{suite}.retain_logs_path"),
    Flag("accept-mixture", "", "combine runs of another template, dialect, precision or other rows, with a note",
         f"{EVAL} score compare meta {MAKE} {PAGE}", "eval.{suite}.accept_mixture"),
    Flag("metrics", "all|NAME,...", "which metrics", f"{EVAL} compare diff plot meta {MAKE} stress"),
    Flag("tasks", "NAME,...", "lm_eval: names or YAML files of lm-evaluation-harness tasks", EVAL),
    Flag("include-path", "DIR", "lm_eval: folder with task YAML files of your own", EVAL, "eval.{suite}.include_path"),
    Flag("reference-model", "PATH", "second model for mia_reference", EVAL, "eval.{suite}.reference_model_path"),
    Flag("trajectory-views", "NAME", "a diffusion model: the suite's metrics at denoising steps", EVAL,
         words=("both", "full", "eos")),
    Flag("benchmark", "NAME", "trajectory-eval: of which benchmark", EVAL, words=("tofu", "muse")),
    Flag("limit", "N", "first N rows of every data set", f"{EVAL} audit depth {MAKE} stress", "data.max_samples", int),
    Flag("cluster", "COLUMN", "column whose rows hang together, for intervals (author, document); none: no column",
         f"{EVAL} score compare audit depth stress", "stats.cluster"),
    Flag("dialect", "NAME", "whose definitions", f"{EVAL} score", "dialect", words=DIALECT_NAMES),
    Flag("system-prompt", "TEXT", "system prompt of every chat", f"{EVAL} audit {MAKE} stress",
         "model.template_args.system_prompt"),
    # where results go
    Flag("out", "DIR", "where results go",
         f"{EVAL} import audit demo depth collapse meta {MAKE} stress report table plot pack unpack "
         "publish",
         "paths.output_dir", short="o"),
    Flag("task-name", "NAME", "names the directory of results where --out does not", f"{EVAL} {MAKE}", "task_name"),
    Flag("overwrite", "", "start over: replace what is there already", f"{EVAL} audit {MAKE}",
         "eval.{suite}.overwrite"),
    Flag("shorten-paths", "", "write ~ for paths that name a person's home", "report pack"),
    Flag("skip-broken", "", "status 0 although runs were left out", "report table plot"),
    # how a model is loaded and run
    Flag("dtype", "NAME", "numbers of the weights", LOADS, f"{_MODEL}.torch_dtype",
         words=("auto", "float32", "bfloat16", "float16")),
    Flag("device", "NAME", "where it runs", LOADS, f"{_MODEL}.device", words=("auto", "cpu", "cuda", "cuda:1", "mps")),
    Flag("tokenizer", "PATH", "instead of the model's own", LOADS,
         "model.tokenizer_args.pretrained_model_name_or_path"),
    Flag("trust-remote-code", "", "run code that comes with the model", LOADS, f"{_MODEL}.trust_remote_code"),
    Flag("quantization", "NAME", "load the weights in fewer bits", f"{EVAL} audit depth", f"{_MODEL}.quantization",
         words=("4bit", "8bit")),
    Flag("compute-dtype", "NAME", "what 4-bit layers multiply in (bfloat16)", f"{EVAL} audit depth stress",
         f"{_MODEL}.compute_dtype", words=("bfloat16", "float16", "float32")),
    Flag("server", "URL,...", "model servers that run it (vLLM, OpenAI form): named as there, its tokenizer read here",
         f"{EVAL} audit stress sweep", "server.url"),
    Flag("server-key-env", "NAME", "environment variable that holds the servers' key",
         f"{EVAL} audit stress sweep", "server.key_env"),
    Flag("batch-tokens", "N", "tokens in one forward (default: what fits)", f"{EVAL} audit collapse",
         "batch_tokens", int),
    Flag("batch-size", "N", "rows in one forward", f"{EVAL} audit depth {MAKE} stress", "max_rows", int),
    Flag("seed", "N", "where random draws start", f"{EVAL} demo depth collapse {MAKE}", "seed", int),
    Flag("temperature", "X", "sampling temperature", "collapse stress", type=float),
    Flag("tokenization", "NAME", "how prompt and answer become tokens", "depth collapse"),
    # how a model is trained
    Flag("epochs", "N", "passes over the rows", f"{MAKE} stress", type=float),
    Flag("lr", "X", "learning rate", f"{MAKE} stress", type=float),
    Flag("accumulation", "N", "forwards in one step of the optimiser", f"{MAKE} stress", type=int),
    # how numbers are shown
    Flag("resamples", "N", "bootstrap samples behind each interval", "compare collapse meta", type=int),
    Flag("rows", "N", "rows shown of each metric or split", f"diff meta {PAGE}", type=int),
    Flag("title", "TEXT", "heading of the page or picture", PAGE),
    # configuration
    Flag("config-dir", "DIR", "your own config groups, before ours", f"{EVAL} ls explain depth collapse {MAKE}"),
    Flag("config-name", "NAME", argparse.SUPPRESS, f"{EVAL} {MAKE}"),
    Flag("multirun", "", "comma lists in overrides make several runs", EVAL, short="m"),
    Flag("cfg", "", "print the composed configuration and stop", f"{EVAL} {MAKE}"),
    Flag("plugin", "FILE", "Python file with metrics, attacks, methods, data sets, ... of your own",
         f"{EVAL} score compare ls explain audit depth collapse meta sweep {MAKE} stress {PAGE} verify pack publish",
         repeated=True),
    Flag("quiet", "", "no progress bars", ALL),
    Flag("debug", "", "show the traceback of an internal error", ALL),
)  # fmt: skip

FLAGS = {flag.name: flag for flag in TABLE}


def flags_of(verb: str) -> list[Flag]:
    return [flag for flag in TABLE if verb in flag.verbs.split()]


def shared_flags(p: argparse.ArgumentParser, verb: str, **here: Mapping[str, Any] | str) -> None:
    """The flags that `verb` shares with others. `here` says what is special in this verb: words, or facts of argparse.

    `says` is added to the meaning; a default that is a value is named in the help.
    """
    for flag in flags_of(verb):
        own = here.pop(flag.attribute, {})
        add_flag(p, flag, {"says": own} if isinstance(own, str) else own)
    assert not here, f"vestige {verb} has no shared flag {', '.join(here)}; see vestige/flags.py"


def add_flag(p: argparse.ArgumentParser, flag: Flag, own: Mapping[str, Any] | None = None) -> None:
    """One row of the table as an argument of one verb."""
    facts: dict[str, Any] = {**(own or {})}
    if flag.value:
        facts = {"metavar": flag.value, "type": flag.type, **facts}
        if flag.repeated or facts.get("action") == "append":
            facts = {"action": "append", "default": [], **facts}
    else:
        facts["action"] = "store_true"
    says, default = facts.pop("says", ""), facts.get("default")
    if not says and default not in (None, False) and default != []:
        says = f"default: {default}"
    listed = f": {' | '.join(flag.words)}" if flag.words else ""
    hidden = flag.meaning == argparse.SUPPRESS
    facts["help"] = argparse.SUPPRESS if hidden else f"{flag.meaning}{listed}{f' ({says})' if says else ''}"
    p.add_argument(*flag.spellings, **facts)


def spoken(name: str) -> str:
    """A flag as an error names it: typed, in Python, and in a configuration.

    >>> spoken("batch-size")
    '--batch-size (batch_size= in Python, max_rows= in a configuration)'
    """
    flag = FLAGS[name]
    return f"--{name} ({flag.attribute}= in Python, {flag.key}= in a configuration)"


def settings_of(said: Mapping[str, Any]) -> dict[str, Any]:
    """Configuration values of flags by name; one that was not given (None, False) is left out.

    >>> settings_of({"limit": 3, "dialect": None, "overwrite": True, "cfg": True})
    {'data.max_samples': 3, 'eval.{suite}.overwrite': True}
    """
    found = {}
    for name, value in said.items():
        flag = FLAGS.get(name.replace("_", "-"))
        if flag is not None and flag.key and value is not None and value is not False:
            found[flag.key] = value
    return found


# ---- other spellings ----------------------------------------------------------------------------------------------


# The words that do the same here <- flags of other tools. A flag without a word of ours takes its own value along.
SAME: dict[str, str] = {
    "--out": "output-dir output-path output save-dir",
    "--model": "model-path model-name-or-path pretrained-model-name-or-path pretrained",
    "--tokenizer": "tokenizer-name tokenizer-path",
    "--limit": "max-samples num-examples max-rows",
    "--batch-size": "per-device-train-batch-size per-device-eval-batch-size eval-batch-size",
    "--lr": "learning-rate",
    "--epochs": "num-train-epochs num-epochs",
    "--accumulation": "gradient-accumulation-steps",
    "--seed": "random-seed",
    "--dtype": "torch-dtype precision",
    "--device cpu": "cpu no-cuda use-cpu",
    "--device cuda": "cuda use-cuda",
    "--dtype float16": "fp16 half",
    "--dtype bfloat16": "bf16",
    "--dtype float32": "fp32",
    "--quantization 4bit": "load-in-4bit",
    "--quantization 8bit": "load-in-8bit",
    "--overwrite": "force overwrite-output-dir no-resume",
    "--quiet": "silent no-progress disable-tqdm",
}
FOREIGN: dict[str, list[str]] = {}
for _ours, _names in SAME.items():
    FOREIGN |= dict.fromkeys(_names.split(), _ours.split())

# Flags of other tools that nothing here needs; they change nothing, and the note says why.
NEEDLESS = {
    "resume": "the same command goes on where it stopped",
    "log-samples": "every row is in the result file",
    "verbose": "--debug shows tracebacks, `vestige plan` what would run",
    "offline": "what is on this machine is used first; HF_HUB_OFFLINE=1 forbids the network",
}

# Flags of other tools that have another shape here: what to write instead.
ANSWERS = {
    "gpu": "write --device cuda:N; several GPUs: `vestige sweep PLAN --gpu 0,1`, or accelerate launch -m vestige",
    "gpus": "write --device cuda:N; several GPUs: `vestige sweep PLAN --gpu 0,1`, or accelerate launch -m vestige",
    "batch-size": "batches are measured in tokens: --batch-tokens N, or batch_tokens of a suite in a sweep's plan",
    "resume-from-checkpoint": "run the same command again: it goes on where it stopped",
    "model-args": "write --model PATH, --dtype NAME, ...; others are words: model.model_args.NAME=VALUE",
    "num-fewshot": "that is a setting of lm_eval: +eval.lm_eval.simple_evaluate_args.num_fewshot=N",
    "dry-run": "`vestige plan` with the same words shows what would run",
    "workers": "many models at a time: `vestige sweep PLAN --slots N`",
    "num-workers": "many models at a time: `vestige sweep PLAN --slots N`",
    "wandb": "`vestige publish RUN --to wandb` hands a finished run over",
}


def translated(verb: str, words: Sequence[str], options: Collection[str]) -> tuple[list[str], list[str]]:
    """A command in today's flags, and a note for each that was written otherwise. `options` are the verb's own.

    >>> translated("eval", ["tofu", "--output_dir=runs"], ["--out"])[0]
    ['tofu', '--out=runs']
    """
    out: list[str] = []
    notes: list[str] = []
    for word in words:
        flag, equals, value = word.partition("=")
        new, note = _translate(verb, flag, options)
        if new and equals:
            new[-1] += f"={value}"
        out += [word] if new is None else new
        notes += [note] if note else []
    return out, notes


def _translate(verb: str, flag: str, options: Collection[str]) -> tuple[list[str] | None, str]:
    """Our name for a flag of another tool, and a note. None: it stays as it is written."""
    if not flag.startswith("--") or len(flag) < 4:
        return None, ""
    name = flag[2:].replace("_", "-")  # other tools write underscores
    if f"--{name}" in options:
        return [f"--{name}"], ""
    if name in NEEDLESS:
        return [], f"--{name} is not needed: {NEEDLESS[name]}."
    if name in FOREIGN and FOREIGN[name][0] in options:
        return list(FOREIGN[name]), f"--{name} is {' '.join(FOREIGN[name])} here."
    if name in ANSWERS:
        raise UserError(f"vestige {verb} has no flag --{name}; {ANSWERS[name]}.")
    return None, ""

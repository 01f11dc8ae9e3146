"""The command line: one verb per job. What each does, and its flags, is in each room's flags.py."""

from __future__ import annotations

import argparse
import difflib
import gc
import importlib
import logging
import os
import re
import shlex
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

from vestige import __version__
from vestige.errors import UserError, mishaps_said, one_line
from vestige.flags import ALL, TABLE, add_flag, translated
from vestige.internal import DEBUG, STATUS, internal_error
from vestige.secrets import hiding_streams, note_variables, note_words
from vestige.show.progress import bars

# Every verb, by the question it answers, and the module that declares its flags. Only the one at hand is imported.
QUESTIONS: dict[str, dict[str, str]] = {
    "measure": {
        "eval": "engine.flags",
        "audit": "audit.flags",
        "plan": "costs.flags",
        "score": "results.flags",
        "demo": "lab.flags",
    },
    "look deeper": {
        "depth": "depth.flags",
        "collapse": "collapse.flags",
        **dict.fromkeys(("explain", "ls"), "results.flags"),
    },
    "attack": {"stress": "stress.flags"},
    "make": dict.fromkeys(("train", "unlearn"), "unlearn.flags"),
    "compare and prove": {
        **dict.fromkeys(("compare", "diff"), "results.flags"),
        **dict.fromkeys(("report", "table", "plot", "view"), "report.flags"),
        **dict.fromkeys(("verify", "pack", "unpack"), "results.archive_flags"),
        "publish": "results.publish_flags",
        "import": "results.flags",
        "meta": "meta.flags",
    },
    "run at scale": dict.fromkeys(("sweep", "job"), "sweep.flags"),
}
VERBS = dict(chain.from_iterable(map(dict.items, QUESTIONS.values())))

# What other tools call these verbs.
SYNONYMS = {
    "evaluate": "eval", "run": "eval", "test": "eval", "estimate": "plan", "cost": "plan", "rescore": "score",
    "list": "ls", "attack": "stress", "robustness": "stress", "relearn": "stress", "finetune": "train",
    "fine-tune": "train", "forget": "unlearn", "uds": "depth", "layers": "depth", "check": "verify", "html": "report",
    "page": "report", "upload": "publish", "push": "publish", "serve": "view", "export": "table", "latex": "table",
    "figure": "plot", "describe": "explain", "submit": "job", "zip": "pack", "tutorial": "demo",
}  # fmt: skip

# Verbs that are gone -> what to use in their place.
REMOVED = {
    "completion": "`vestige VERB --help` lists the flags of a verb, `vestige ls` the names that they take",
    "demo-meta": "`vestige meta` judges metrics on your own pools, and bench/demo_meta.py in the repository makes some",
    "methods-text": "a run's manifest.json has every setting, and `vestige explain METRIC` the definitions",
    "published": "`vestige compare RUN published` prints published figures with a run's own",
    "serve-check": "`vestige plan SUITE --model PATH --server URL` checks a server",
}

LAST_LINES = """
First:  vestige demo
Then:   vestige eval tofu --model PATH --data DIR
        vestige audit --before A --after B --forget rows.jsonl
`vestige VERB --help` has the flags of a verb, `vestige --version` the version."""

EXAMPLES = {
    "eval": """examples:
  vestige eval tofu --model PATH --data DIR --retain-logs saves/eval/retain
  vestige eval experiment=eval/tofu/default model=Llama-3.2-1B-Instruct \\
      model.model_args.pretrained_model_name_or_path=PATH task_name=NAME""",
    "audit": "example: vestige audit --before A --after B --forget f.jsonl --retain r.jsonl",
    "depth": "example: vestige depth --unlearned U --full F --retain-model R --forget f.jsonl",
    "plan": "example: vestige plan tofu --model PATH --data DIR",
    "score": "example: vestige score saves/eval/NAME dialect=strict",
    "compare": "example: vestige compare saves/eval/A saves/eval/B",
    "collapse": "example: vestige collapse rollouts.jsonl --model PATH",
    "sweep": "example: vestige sweep plan.yaml (again for the rest)",
    "unlearn": "example: vestige unlearn --method NPO --model PATH --forget f.jsonl --retain r.jsonl --out DIR",
    "report": "example: vestige report saves/eval saves/depth -o report",
}

# What argparse says of a command line -> the same in our words. Anything else it says is passed on as it is.
SENTENCES = {
    r"^the following arguments are required: (.*)$": r"\1 must be given",
    r"^argument (\S+/)?(\S+): invalid int value: (.*)$": r"\2 takes a whole number, not \3",
    r"^argument (\S+/)?(\S+): invalid float value: (.*)$": r"\2 takes a number, not \3",
    r"^argument (\S+/)?(\S+): expected one argument$": r"\2 takes a value",
    r"^argument (\S+/)?(\S+): expected at least one argument$": r"\2 takes one value or more",
}


class Parser(argparse.ArgumentParser):
    """An argument parser that can name its arguments (for "did you mean" and help) and its verbs."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        self.arguments: list[argparse.Action] = []
        self.verbs: dict[str, Parser] = {}
        self.text = ""  # help written out, in place of argparse's
        # Without abbreviations, so that --mode is never taken for --model.
        super().__init__(*args, **{"allow_abbrev": False, **settings})

    def add_argument(self, *names: Any, **facts: Any) -> argparse.Action:
        action = super().add_argument(*names, **facts)
        self.arguments.append(action)
        return action

    def format_help(self) -> str:
        return f"{self.text}\n" if self.text else super().format_help()

    @property
    def options(self) -> list[str]:
        return [option for argument in self.arguments for option in argument.option_strings]

    def error(self, message: str) -> NoReturn:
        """One sentence, as for every other mistake; argparse prints the usage of all flags before its own."""
        for pattern, ours in SENTENCES.items():
            message = re.sub(pattern, ours, message)
        self.exit(2, f"vestige: error: {one_line(f'{self.prog}: {message}; `{self.prog} --help` shows all flags.')}\n")


class Verbs:
    """What rooms add their verbs to: argparse's own, with the sentence of each verb kept for the list of all."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.parsers: dict[str, Parser] = {}
        self.about: dict[str, str] = {}

    def add_parser(self, verb: str, **facts: Any) -> Parser:
        self.about[verb] = facts["help"]
        about = facts["help"].replace("%", "%%")
        facts = {"description": f"{about[:1].upper()}{about[1:]}", "epilog": EXAMPLES.get(verb), **facts}
        facts["formatter_class"] = argparse.RawDescriptionHelpFormatter if verb in EXAMPLES else argparse.HelpFormatter
        self.parsers[verb] = self.inner.add_parser(verb, **facts)
        return self.parsers[verb]


def parser(verb: str | None = None) -> Parser:
    """The parser of one verb (and those declared with it), or of all."""
    top = Parser(prog="vestige", formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("--version", action="version", version=f"vestige {__version__}", help=argparse.SUPPRESS)
    verbs = Verbs(top.add_subparsers(dest="verb", metavar="VERB", required=True, prog="vestige"))
    for module in dict.fromkeys([VERBS[verb]] if verb in VERBS else VERBS.values()):
        importlib.import_module(f"vestige.{module}").add_verbs(verbs)
    top.verbs = verbs.parsers
    if verb not in VERBS:  # of one verb argparse's own help is shown
        top.text = everything(verbs.about)
    for one in top.verbs.values():
        for flag in TABLE:
            if flag.verbs == ALL:
                add_flag(one, flag)
    return top


def everything(about: Mapping[str, str]) -> str:
    """The list of verbs by question, a line each; of all of them it fits one screen."""
    lines = ["Measures what a language model still knows after it was made to forget.", ""]
    for question, verbs in QUESTIONS.items():
        labels = textwrap.wrap(question, 11)  # beside its verbs, on as many lines as it needs
        for line, verb in enumerate(v for v in verbs if v in about):
            lines.append(f"{labels[line] if line < len(labels) else '':<11} {verb:<12} {about[verb]}")
    return "\n".join([*lines, LAST_LINES])


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a verb; what it prints names no secret.

    User errors are one sentence and exit status 2, bugs of ours are two lines and exit status 70; an interrupt loses at
    most one batch.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    note_variables()
    note_words(words)
    # Importing torch and transformers makes half a million objects that stay; looking through them again and again for
    # garbage took a sixth of the start-up.
    gc.set_threshold(20_000, 10, 100)
    logging.basicConfig(level=logging.WARNING, format="vestige: %(message)s", stream=sys.stderr)
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # the kernels it would like are not the user's worry
    with hiding_streams():
        try:
            args = parse(words)
            with (
                debugging(args.debug),
                bars(not args.quiet),
                mishaps_said(),
                speaking(args.verb),
                archives_opened(args) as opened,
            ):
                status: int = opened.do(opened)
            return status
        except UserError as error:
            return _failed(str(error))
        except BrokenPipeError:
            return 0
        except OSError as error:  # a full disk, a directory that may not be written, a name that is too long
            return _failed(one_line(_file_trouble(error)))
        except MemoryError:
            return _failed("out of memory; try --limit N or --batch-tokens N.")
        except KeyboardInterrupt:
            print("vestige: interrupted; run the same command again to resume.", file=sys.stderr)
            return 130
        except Exception as error:  # whatever nothing above expected: a bug, and it must look like one
            print(internal_error(error, words, "--debug" in words), file=sys.stderr)
            return STATUS


def _failed(sentence: str) -> int:
    print(f"vestige: error: {sentence}", file=sys.stderr)
    return 2


@contextmanager
def debugging(asked: bool) -> Iterator[None]:
    """--debug for workers, too: they see the environment and not our arguments."""
    before = os.environ.get(DEBUG, "")
    os.environ[DEBUG] = "1" if asked else before
    try:
        yield
    finally:
        os.environ[DEBUG] = before


@contextmanager
def archives_opened(args: argparse.Namespace) -> Iterator[argparse.Namespace]:
    """The arguments with archives replaced by the runs in them (results/pack.py); free of cost where there are none."""
    for value in vars(args).values():
        if ".zip" in str(value):  # a name, or a list of them
            from vestige.results.pack import archives_opened as opening

            with opening(args) as opened:
                yield opened
            return
    yield args


def _file_trouble(error: OSError) -> str:
    words = error.strerror or " ".join(str(error).split()) or type(error).__name__
    return f"{words}: {error.filename}; check the path and its permissions." if error.filename else f"{words}."


TOGETHER = ("eval", "depth")  # verbs that share their work when a launcher starts several processes


@contextmanager
def speaking(verb: str) -> Iterator[None]:
    """In a team of processes only the first prints; a verb that cannot share its work says so."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and verb not in TOGETHER:
        raise UserError(f"vestige {verb} works in one process; start it without accelerate or torchrun.")
    if int(os.environ.get("RANK", "0")) == 0:
        yield
        return
    logging.getLogger("vestige").setLevel(logging.ERROR)
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        yield


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Flags and words in any order: argparse alone stops taking words after the first flag."""
    if argv and argv[0] == "help":  # of everything, or of the verb that follows
        argv = [*argv[1:2], "--help"]
    if argv and not argv[0].startswith("-") and argv[0] not in VERBS:
        raise _unknown_verb(argv[0])
    argv = argv or ["--help"]
    top = parser(argv[0])
    # What comes after `--` is the command that `vestige job` is to run, with flags of its own.
    cut = list(argv).index("--") if argv[:1] == ["job"] and "--" in argv else len(argv)
    words = list(argv[:cut])
    if words[:1] and words[0] in top.verbs:
        own, notes = translated(words[0], words[1:], top.verbs[words[0]].options)
        words[1:] = own
        for note in notes:
            print(f"vestige: note: {note}", file=sys.stderr)
        for word in own:  # before argparse misses anything else
            flag = word.partition("=")[0]
            if re.fullmatch(r"--[a-z][\w-]*", flag) and flag not in top.verbs[words[0]].options:
                raise _unknown_argument(top, words[0], word)
    args, rest = top.parse_known_args(words)
    if argv[cut + 1 :]:
        args.command = list(argv[cut + 1 :])
        _check_command(args.command)
    late: list[str] = []
    strange: list[str] = []
    for word in rest:
        (strange if word.startswith("-") else late).append(word)
    place: str | None = getattr(args, "late", None)
    if strange or (late and place is None):
        raise _unknown_argument(top, args.verb, (strange or late)[0])
    if place:
        getattr(args, place).extend(late)
    return args


def _check_command(words: Sequence[str]) -> None:
    """A job runs vestige and nothing else: another program's command is refused with the form that works."""
    own = list(words[1:] if words[0] == "vestige" else words)
    if not own or own[0].startswith("-") or own[0] in VERBS:
        return
    # `dllm eval ...`, `uv run dllm eval ...`, `python src/eval.py ...`
    verbs = [number for number, word in enumerate(own) if Path(word).name.removesuffix(".py") in VERBS]
    form = "vestige eval ..."
    if verbs:
        verb = Path(own[verbs[0]]).name.removesuffix(".py")
        form = shlex.join(["vestige", verb, *own[verbs[0] + 1 :]])
    raise UserError(f"A job runs vestige, and '{own[0]}' is not a verb of vestige; write after `--`: {form}")


def _unknown_argument(top: Parser, verb: str, word: str) -> UserError:
    # Without dashes: two short names that share nothing else are not near each other.
    options = {option.lstrip("-"): option for option in top.verbs[verb].options}
    close = difflib.get_close_matches(word.split("=")[0].lstrip("-"), options, n=1)
    hint = f"; did you mean {options[close[0]]}?" if close else f"; see vestige {verb} --help."
    return UserError(f"vestige {verb} has no argument {word}{hint}")


def _unknown_verb(word: str) -> UserError:
    if word in REMOVED:
        return UserError(f"'{word}' was removed; {REMOVED[word]}.")
    if word == "version":
        return UserError("'version' is not a verb of vestige; `vestige --version` prints it.")
    near = SYNONYMS.get(word.lower()) or next(iter(difflib.get_close_matches(word.lower(), VERBS, n=1, cutoff=0.5)), "")
    guess = f" Did you mean `vestige {near}`?" if near else ""
    return UserError(f"'{word}' is not a verb of vestige.{guess} `vestige --help` lists them.")


if __name__ == "__main__":
    sys.exit(main())

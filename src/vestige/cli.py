"""The command line: argument parsers made from the functions in commands.py, and exit statuses.

0: done; 1: done with failures; 2: a mistake that the user can correct; 70: a bug of vestige; 130: interrupted.
"""

from __future__ import annotations

import argparse
import difflib
import gc
import inspect
import logging
import os
import re
import shlex
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, NoReturn

from vestige import __version__
from vestige.commands import VERBS, Verb, parameters_of, run_verb
from vestige.errors import UserError, mishaps_said, one_line
from vestige.internal import DEBUG, STATUS, internal_error
from vestige.options import Option, translate_flags
from vestige.secrets import hiding_streams, note_variables, note_words
from vestige.show.progress import bars

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


def parser(verb: str | None = None) -> Parser:
    """The parser of one verb, or of all."""
    top = Parser(prog="vestige", formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("--version", action="version", version=f"vestige {__version__}", help=argparse.SUPPRESS)
    verbs = top.add_subparsers(dest="verb", metavar="VERB", required=True, prog="vestige")
    for one in [VERBS[verb]] if verb in VERBS else VERBS.values():
        raw = argparse.RawDescriptionHelpFormatter if "\n" in one.epilog else argparse.HelpFormatter
        epilog = one.epilog or (attack_list() if one.name == "stress" else "")
        added: Parser = verbs.add_parser(
            one.name,
            help=one.help,
            description=one.description or f"{one.help[:1].upper()}{one.help[1:]}",
            epilog=epilog or None,
            formatter_class=raw,
        )
        for name, (parameter, option, read) in parameters_of(one).items():
            add_argument(added, one, name, parameter, option, read)
        added.add_argument("--quiet", action="store_true", help="no progress bars")
        added.add_argument("--debug", action="store_true", help="show the traceback of an internal error")
        top.verbs[one.name] = added
    if verb not in VERBS:  # of one verb argparse's own help is shown
        top.text = list_verbs()
    return top


def attack_list() -> str:
    from vestige.stress.attacks import OURS

    return "Attacks: " + "; ".join(f"{record.name} {record.does}" for record in OURS.values()) + "."


def add_argument(
    added: Parser, verb: Verb, name: str, parameter: inspect.Parameter, option: Option, read: Callable[[str], Any]
) -> None:
    """One option of a verb as an argument of argparse."""
    default = None if parameter.default is parameter.empty else parameter.default
    text = f"{option.help}: {' | '.join(option.values)}" if option.values else option.help
    notes = VERBS[verb.same_as].notes if verb.same_as else verb.notes
    note = notes.get(name, "")
    if name == "attacks":
        from vestige.stress.attacks import OURS

        text = f"{', '.join(OURS)}, or a plug-in's; relearn=5,20 is two budgets (all; with --server those on prompts)"
    elif not note and default not in (None, False, (), "") and not option.hidden and not option.positional:
        note = "" if "default" in text or default is True else f"default: {default}"
    shown = argparse.SUPPRESS if option.hidden else f"{text} ({note})" if note else text
    facts: dict[str, Any] = {"help": shown.replace("%", "%%"), "default": default}
    if option.positional:
        many = "+" if parameter.default is parameter.empty else "*"
        if option.several:
            facts["nargs"] = many
            facts["default"] = []
        elif many == "*":
            facts["nargs"] = "?"
        added.add_argument(name, metavar=option.value, **facts)
        return
    if verb.only_typed and option.value:
        facts["default"] = None  # a configuration file may say something else
    names = [f"-{option.short}"] if option.short else []
    names.append(f"--{option.flag or name.replace('_', '-')}")
    if option.value:
        facts |= {"metavar": option.value, "type": read}
        if option.repeated:
            facts |= {"action": "append", "default": []}
        elif option.several:
            facts["nargs"] = "+"
        elif option.optional:
            facts |= {"nargs": "?", "const": read(option.optional)}
    else:
        facts["action"] = "store_true"
    added.add_argument(*names, dest=name, required=name in verb.required, **facts)


def list_verbs() -> str:
    """The list of verbs by question, a line each; all of them fit on one screen."""
    lines = ["Measures what a language model still knows after it was made to forget.", ""]
    for question in dict.fromkeys(verb.question for verb in VERBS.values()):
        labels = textwrap.wrap(question, 11)  # next to its verbs, on as many lines as it needs
        group = [verb for verb in VERBS.values() if verb.question == question]
        for line, verb in enumerate(group):
            lines.append(f"{labels[line] if line < len(labels) else '':<11} {verb.name:<12} {verb.help}")
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
                return run_verb(VERBS[opened.verb], vars(opened))
        except UserError as error:
            return _failed(str(error))
        except BrokenPipeError:
            return 0
        except OSError as error:  # a full disk, a directory that may not be written, a name that is too long
            return _failed(one_line(_file_trouble(error)))
        except MemoryError:
            return _failed("out of memory; try --limit N or --batch-tokens N.")
        except KeyboardInterrupt:
            print("vestige: interrupted; rerun the same command to resume.", file=sys.stderr)
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
    """The arguments with archives replaced by the runs in them (runs/archive.py); free of cost where there are none."""
    for value in vars(args).values():
        if ".zip" in str(value):  # a name, or a list of them
            from vestige.runs.archive import archives_opened as opening

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
        own, notes = translate_flags(words[0], words[1:], top.verbs[words[0]].options)
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
    place = VERBS[args.verb].late
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

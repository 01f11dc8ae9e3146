"""The command line: one verb per job. What each does, and its flags, is in each room's flags.py."""

from __future__ import annotations

import argparse
import difflib
import gc
import importlib
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from vestige import __version__
from vestige.errors import UserError, one_line
from vestige.internal import DEBUG, STATUS, internal_error
from vestige.mishaps import mishaps_said
from vestige.secrets import hiding_streams, note_variables, note_words

# Every verb, in the order of --help, and the module that declares its flags. Only the one at hand is imported.
VERBS = {
    "eval": "engine.flags",
    "plan": "costs.flags",
    **dict.fromkeys(("score", "compare", "diff", "ls", "explain", "import", "published"), "results.flags"),
    "audit": "audit.flags",
    **dict.fromkeys(("demo", "demo-meta"), "lab.flags"),
    "depth": "depth.flags",
    "collapse": "collapse.flags",
    "meta": "meta.flags",
    **dict.fromkeys(("sweep", "job"), "sweep.flags"),
    **dict.fromkeys(("train", "unlearn"), "unlearn.flags"),
    "stress": "stress.flags",
    **dict.fromkeys(("report", "table", "plot", "view"), "report.flags"),
    **dict.fromkeys(("verify", "pack", "unpack"), "results.archive_flags"),
}

EXAMPLES = """examples:
  vestige demo                                        build a tiny lab and evaluate its models
  vestige eval tofu --model PATH --data DIR           evaluate a checkpoint on local files
  vestige eval tofu --model PATH --data DIR --retain-logs saves/eval/retain/TOFU_EVAL.json
  vestige eval experiment=eval/tofu/default model=Llama-3.2-1B-Instruct \\
      model.model_args.pretrained_model_name_or_path=PATH task_name=NAME
  vestige audit --before A --after B --forget f.jsonl --retain r.jsonl     your own rows
  vestige depth --unlearned U --full F --retain R --data f.jsonl           what the layers still hold
  vestige plan tofu --model PATH --data DIR           what that would cost
  vestige score saves/eval/NAME dialect=strict        other definitions, no model needed
  vestige compare saves/eval/A saves/eval/B           differences, and whether they could be chance
  vestige collapse rollouts.jsonl --model PATH        does reasoning still depend on its prompt?
  vestige sweep plan.yaml                             many models, suites and attacks; again for the rest
  vestige unlearn --method NPO --model PATH --forget f.jsonl --retain r.jsonl --out DIR
  vestige report saves/eval saves/depth -o report     one page: did it forget?
  vestige ls metrics                                  what there is
"""


class Parser(argparse.ArgumentParser):
    """An argument parser that can name its options (for "did you mean") and its verbs."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        self.options: list[str] = []
        self.verbs: dict[str, Parser] = {}
        super().__init__(*args, **settings)

    def add_argument(self, *names: Any, **facts: Any) -> argparse.Action:
        action = super().add_argument(*names, **facts)
        self.options.extend(action.option_strings)
        return action


def parser(verb: str | None = None) -> Parser:
    """The parser of one verb (and those declared with it), or of all."""
    top = Parser(
        prog="vestige",
        description="Measures what a language model still knows after it was made to forget.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"vestige {__version__}")
    verbs = top.add_subparsers(dest="verb", metavar="VERB", required=True)
    for module in dict.fromkeys([VERBS[verb]] if verb in VERBS else VERBS.values()):
        importlib.import_module(f"vestige.{module}").add_verbs(verbs)
    top.verbs = dict(verbs.choices)
    for one in top.verbs.values():
        one.add_argument("--debug", action="store_true", help="show the traceback of an internal error")
    return top


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
            with debugging(args.debug), mishaps_said(), speaking(args.verb), archives_opened(args) as opened:
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
    named = [v for value in vars(args).values() for v in (value if isinstance(value, list) else [value])]
    if not any(isinstance(v, str) and v.endswith(".zip") for v in named):
        yield args
        return
    from vestige.results.pack import archives_opened as opening

    with opening(args) as opened:
        yield opened


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
    top = parser(argv[0] if argv else None)
    # What comes after `--` is the command that `vestige job` is to run, with flags of its own.
    cut = list(argv).index("--") if argv[:1] == ["job"] and "--" in argv else len(argv)
    args, rest = top.parse_known_args(argv[:cut])
    if argv[cut + 1 :]:
        args.command = list(argv[cut + 1 :])
    late = [word for word in rest if not word.startswith("-")]
    strange = [word for word in rest if word.startswith("-")]
    place: str | None = getattr(args, "late", None)
    if strange or (late and place is None):
        wrong = (strange or late)[0]
        close = difflib.get_close_matches(wrong.split("=")[0], top.verbs[args.verb].options, n=1)
        hint = f"; did you mean {close[0]}?" if close else f"; see vestige {args.verb} --help."
        top.exit(2, f"vestige: error: {one_line(f'vestige {args.verb} has no argument {wrong}{hint}')}\n")
    if place:
        getattr(args, place).extend(late)
    return args


if __name__ == "__main__":
    sys.exit(main())

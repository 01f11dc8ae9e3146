"""What a sweep must know of a checkpoint and of a configuration before it may say that a run is there already.

An evaluation reads its rows and tokenises them each time, so that evidence needs no key for that. A sweep skips all of
it: its key has the files of the tokenizer, the day where a template prints it, and every model that a metric names.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from vestige.models.args import ModelArgs
from vestige.models.fingerprint import COLLECTED, digests, fingerprint, libraries, library, stored_dtype
from vestige.models.locate import locate
from vestige.models.quantised import RULE
from vestige.models.tokenizer import says_today, tokenizer_files


def checkpoint_parts(args: ModelArgs, dated: bool = False) -> list[str]:
    """A checkpoint by content. A hub id is its name and revision: its files may have been cleared from the cache.

    Device and attention are as asked: what `auto` means is settled where the task runs, and its manifest says it.
    `dated`: the configuration says which day to print.
    """
    tools = {**libraries("model", bool(args.quantization)), "tokenizers": library("tokenizers")}
    if not is_local(args.path):
        four_bit = [RULE, args.computes_in] if args.computes_in else []
        return [f"hub:{args.path}", str(args.revision), json.dumps(tools, sort_keys=True), *four_bit]
    tools |= libraries(locate(args).kind, bool(args.quantization))
    parts = [fingerprint(args), json.dumps(tools, sort_keys=True), *tokenizer_files(args)]
    parts += [RULE, args.computes_in] if args.computes_in else []
    parts += [stored_dtype(args)] if args.dtype == "auto" else []
    return parts + ([datetime.date.today().isoformat()] if not dated and says_today(args) else [])


def served_parts(args: ModelArgs, dated: bool = False) -> list[str]:
    """A served model: by its name, as a hub id is, and by its tokenizer, which is read here.

    Which weights a server has, only the server knows: `serves_as_before` asks it before a run counts as done.
    """
    tools = json.dumps({"tokenizers": library("tokenizers")})
    files = tokenizer_files(args) if is_local(args.tokenizer or args.path) else []
    today = [datetime.date.today().isoformat()] if files and not dated and says_today(args) else []
    return ["served", args.path, str(args.tokenizer), tools, *files, *today]


def collector_part() -> str:
    """How the evidence of a sweep's tasks is collected. None of them measures collapse."""
    return json.dumps({kind: number for kind, number in COLLECTED.items() if kind != "cross"}, sort_keys=True)


def harness_part(ask: Mapping[str, Any]) -> str:
    """The version of somebody else's harness, where it makes the numbers."""
    return f"lm_eval={library('lm_eval')}" if ask.get("tasks") else ""


def named_content(config: Any, known: Iterable[str]) -> list[str]:
    """The models and files that a configuration names, by content: a second model, a classifier, saved logits.

    `known`: paths that the key has already, or that results are written to.
    """
    skip = [Path(p).expanduser().resolve() for p in known if p]
    out = []
    for path in sorted({Path(s).expanduser() for s in _strings(config) if _may_be_path(s)}):
        here = path.resolve()
        if any(here == s or here.is_relative_to(s) for s in skip):
            continue
        if path.is_file():
            out.append(f"{path.name}={digests([path])[0]}")
        elif any((path / name).is_file() for name in ("config.json", "adapter_config.json")):
            out += checkpoint_parts(ModelArgs(path=str(path)))
    return out


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _strings(inner)


def _may_be_path(text: str) -> bool:
    return "/" in text and len(text) < 4096 and "\n" not in text and "\0" not in text and is_local(text)


def is_local(path: str) -> bool:
    try:
        return Path(path).expanduser().exists()
    except OSError:  # a name too long to be one
        return False

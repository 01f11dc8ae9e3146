"""How a lab is built, whatever models it holds: whole or absent, the same every time, with one progress bar."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypedDict, cast

import torch
from tqdm import tqdm
from transformers.utils.logging import disable_progress_bar, enable_progress_bar, is_progress_bar_enabled

from vestige.io import write_file
from vestige.lab.corpus import Corpus, corpus_bytes, write_corpus
from vestige.runs.directory import install, open_run, remove, scratch
from vestige.schema import check_form
from vestige.types import content_key

RECORD = "lab.json"


def lab_key(recipe: Any, settings: Mapping[str, Any], corpus: Corpus) -> str:
    """Names the lab by what goes into it; the corpus counts by its text, so a new phrase is a new lab."""
    described = json.dumps([recipe, settings], sort_keys=True).encode()
    return content_key(described, *corpus_bytes(corpus).values())


def ensure_built(
    root: Path, recipe: Any, settings: Mapping[str, Any], corpus: Corpus, force: bool, make: Callable[[Path], None]
) -> None:
    """Puts `data`, `models` and `lab.json` into `root` unless this very lab is there; `make` fills a models folder.

    The work happens in a scratch folder and is moved into place at the end: a lab is whole or absent, also
    when the build is interrupted or another process builds the same one.
    """
    key = lab_key(recipe, settings, corpus)
    if not force and is_built(root, key):
        return
    with open_run(root, "lab", wait=True) as run:
        if not force and is_built(root, key):  # another process was faster
            return
        run.begin([RECORD, *(f"data/{split}.jsonl" for split in corpus)])
        with scratch(root) as made:
            write_corpus(corpus, made / "data")
            make(made / "models")
            body = json.dumps({"key": key, "recipe": recipe, "settings": settings}, indent=1)
            write_file(made / RECORD, f"{body}\n".encode())
            remove(root / RECORD)  # it vouches for the rest, and so it goes first and comes last
            install(made, root, last=RECORD)
        run.finish()


class Record(TypedDict):
    """lab.json: what was built, and its name."""

    key: str
    recipe: Any
    settings: dict[str, Any]


def is_built(root: Path, key: str) -> bool:
    record = _record(root)
    return record is not None and record["key"] == key


def _record(root: Path) -> Record | None:
    """The record of the lab in a directory; None if there is none, or somebody else's file of that name."""
    try:
        found = json.loads((root / RECORD).read_text())
    except (OSError, ValueError):
        return None
    if not isinstance(found, dict) or not {"key", "recipe", "settings"} <= set(found):
        return None
    check_form(found, Record, str(root / RECORD), "delete it, and the lab is built again")
    return cast(Record, found)


@contextmanager
def reproducible(seed: int, threads: int) -> Iterator[None]:
    """The lab's own random stream and thread count; the caller's are put back."""
    with torch.random.fork_rng(devices=[]), with_threads(threads):
        torch.manual_seed(seed)
        yield


@contextmanager
def with_threads(count: int) -> Iterator[None]:
    """So many threads for torch; the caller's number is put back."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def quiet_saving() -> Iterator[None]:
    """transformers draws a bar for every file it writes; ours is the only one wanted."""
    shown = is_progress_bar_enabled()
    disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            enable_progress_bar()


class BuildBar:
    """One bar on stderr for the whole build, showing which model is being trained."""

    def __init__(self, title: str, total: int, show: bool) -> None:
        self._title, self._due = title, 0
        self._bar = tqdm(
            total=total, desc=title, unit="step", file=sys.stderr, disable=not (show and sys.stderr.isatty())
        )

    def __enter__(self) -> BuildBar:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def on(self, name: str, steps: int) -> Any:
        """What to call after each of a model's steps; those that the model before it did not need are passed over."""
        self._bar.update(self._due - self._bar.n)
        self._due += steps
        self._bar.set_description(f"{self._title}: {name}")

        def on_step(_done: int, _total: int, loss: float) -> None:
            self._bar.update()
            self._bar.set_postfix(loss=f"{loss:.3f}", refresh=False)

        return on_step

"""transformers, and code that came with a checkpoint, kept in bounds.

    quiet         no log lines, warnings or progress bars
    own_memory    weights are copied into memory of this process, not mapped from their files
    foreign_code  what code of others raises becomes one sentence; watch_forward does this while a model runs

Callers: load.py and tokenizer.py of this package, and adapters/lm_eval.py, which keeps another library quiet.
"""

from __future__ import annotations

import contextlib
import functools
import io
import logging as std_logging
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from vestige.errors import UserError, named, reraise_ours


@contextlib.contextmanager
def quiet(bars: bool = True) -> Iterator[None]:
    """No transformers log lines, no Python warnings, no progress bars, until the block ends.

    Some bars (GGUF unpacking) have no switch; `bars=False` holds back standard error as well.
    """
    from transformers.utils import logging

    # On import bitsandbytes complains of a CPU kernel that it can do without; peft imports it unasked.
    bitsandbytes = std_logging.getLogger("bitsandbytes")
    if bitsandbytes.level == std_logging.NOTSET:
        bitsandbytes.setLevel(std_logging.ERROR)
    level, shown = logging.get_verbosity(), logging.is_progress_bar_enabled()
    hush = contextlib.nullcontext() if bars else contextlib.redirect_stderr(io.StringIO())
    with warnings.catch_warnings(), hush:
        warnings.simplefilter("ignore")
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        try:
            yield
        finally:
            logging.set_verbosity(level)
            if shown:
                logging.enable_progress_bar()


def error_sentence(error: BaseException) -> str:
    """The gist of another library's error, as the end of a sentence."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    if text.endswith(":") and len(lines) > 1:  # a heading; the matter is below it
        text = f"{text} {lines[1]}"
    return text if text.endswith((".", "!", "?")) else text + "."


@contextmanager
def own_memory() -> Iterator[None]:
    """Tensors are copied from their files into memory of the process, one at a time.

    transformers leaves them mapped, so that a model on a CPU is a view of its files: writing over a checkpoint
    changes the numbers of a model that was loaded long before, and pages count twice while they are converted.
    """
    import transformers

    modeling_utils: Any = transformers.modeling_utils
    real = modeling_utils.safe_open

    def opened(file: Any, *args: Any, **how: Any) -> Any:
        shard = real(file, *args, **how)
        if how.get("device", "cpu") != "cpu":
            return shard
        return _Shard(shard, partial(real, file, *args, **how))

    modeling_utils.safe_open = opened
    try:
        yield
    finally:
        modeling_utils.safe_open = real


@dataclass(eq=False)
class _Shard:
    """An open weight file whose tensors do not hold on to it."""

    file: Any
    again: Callable[[], Any]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def __enter__(self) -> _Shard:
        self.file.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.file.__exit__(*error)

    def get_slice(self, name: str) -> Any:
        return _Slice(self.file.get_slice(name), name, self.again)


@dataclass(eq=False)
class _Slice:
    """A tensor that is read when it is indexed, over a mapping of its own: its pages are given back at once."""

    slice: Any
    name: str
    again: Callable[[], Any]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.slice, name)

    def __getitem__(self, index: Any) -> Any:
        with self.again() as file:
            return file.get_slice(self.name)[index].clone()


# ---- Code that is not ours and came with a checkpoint: what it raises becomes one sentence --------------------------

OURS = str(Path(__file__).parent.parent)


@contextmanager
def foreign_code(name: str, doing: str, files: str = "") -> Iterator[None]:
    """Whatever is raised inside by code of others is told as a sentence; our own errors pass.

    `files` is where that code is, for errors that only show in the library that called it.
    """
    try:
        yield
    except Exception as error:  # code that came with a checkpoint may raise anything
        if isinstance(error, UserError) or _memory(error):
            raise
        reraise_ours(error)
        told = explain_foreign(error, name, doing, files)
        if told is None:
            raise
        raise told from None


def explain_foreign(error: BaseException, name: str, doing: str, files: str = "") -> UserError | None:
    """The sentence; None if neither foreign code nor a library it was handed to raised the error."""
    import transformers
    from transformers.dynamic_module_utils import HF_MODULES_CACHE

    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if f.filename.startswith(str(HF_MODULES_CACHE))]
    mine = [i for i, f in enumerate(frames) if f.filename.startswith(OURS)]
    if not files and (not own or (mine and frames.index(own[-1]) < mine[-1])):
        return None  # a hook of ours that the foreign code called
    where = f"{Path(own[-1].filename).name}, line {own[-1].lineno}" if own else files
    return UserError(
        f"The code that '{name}' brings ({where}) failed while {doing}: {named(error).rstrip('. ')}. It may be written "
        f"for another version of transformers than {transformers.__version__}, which is installed here."
    )


def watch_forward(model: Any, name: str) -> None:
    """From now on what the model's own code raises while it runs is told as a sentence."""
    forward: Callable[..., Any] = model.forward

    @functools.wraps(forward)
    def watched(*args: Any, **kwargs: Any) -> Any:
        with foreign_code(name, "it ran"):
            return forward(*args, **kwargs)

    model.forward = watched


def is_foreign(model: Any) -> bool:
    """Whether a model's class was read from its checkpoint's folder."""
    from transformers.dynamic_module_utils import TRANSFORMERS_DYNAMIC_MODULE_NAME

    return type(model).__module__.split(".")[0] == TRANSFORMERS_DYNAMIC_MODULE_NAME


def code_files(config: dict[str, Any]) -> str:
    """The files that a config names as its code: `modeling_x.py`."""
    named_there = (config.get("auto_map") or {}).values()
    classes = [c for v in named_there for c in (v if isinstance(v, list | tuple) else [v]) if isinstance(c, str)]
    return ", ".join(dict.fromkeys(c.rsplit("--", 1)[-1].split(".")[0] + ".py" for c in classes))


def _memory(error: BaseException) -> bool:
    """Running out of memory is told elsewhere, or cured by smaller batches."""
    import torch

    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "memory" in str(error).lower()

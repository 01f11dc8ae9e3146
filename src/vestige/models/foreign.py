"""Code that is not ours and came with a checkpoint: what it raises becomes one sentence."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vestige.errors import UserError, named, reraise_ours

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

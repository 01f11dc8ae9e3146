"""The one promise about weights: a loaded model is the checkpoint, all of it and nothing else.

A tensor that the checkpoint lacks would be random numbers; one that nobody read means that the configuration and the
weights are not of the same model (a layer too few, say). Both are errors that name them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from vestige.errors import UserError

ALLOW_UNUSED = "allow_unused_tensors"


def check_report(name: str, report: dict[str, Any], theirs: Callable[[str], str], allow: bool) -> list[str]:
    """Refuses gaps and left-overs in what from_pretrained reports, by the checkpoint's own names; returns notes."""
    mismatched = [key[0] if isinstance(key, tuple) else key for key in report.get("mismatched_keys", ())]
    refuse_gaps(name, map(theirs, report.get("missing_keys", ())), map(theirs, mismatched))
    unused = sorted(map(theirs, report.get("unexpected_keys", ())))
    if unused and not allow:
        raise UserError(
            f"'{name}' holds tensors that its configuration has no place for: {some(unused)}; correct its config.json, "
            f"or set model.model_args.{ALLOW_UNUSED}=true if they should be left out."
        )
    return [f"tensors of '{name}' were left out ({ALLOW_UNUSED}): {some(unused)}."] if unused else []


def refuse_gaps(
    name: str,
    missing: Iterable[str],
    mismatched: Iterable[str] = (),
    hint: str = "save the whole model, head included",
) -> None:
    """Weights that did not come from the checkpoint are random numbers: never evaluate them."""
    missing, mismatched = sorted(missing), sorted(mismatched)
    if missing:
        raise UserError(
            f"'{name}' lacks tensors that its configuration calls for, which would be random: {some(missing)}; {hint}."
        )
    if mismatched:
        raise UserError(
            f"Some tensors of '{name}' have another shape than its config.json says: {some(mismatched)}; "
            "save the model and its config together."
        )


def refuse_doubles(name: str, stored: Iterable[str], native: Callable[[str], str]) -> None:
    """Two tensors of a checkpoint for one parameter: only one would be read, and nobody could say which."""
    seen: dict[str, str] = {}
    for theirs in stored:
        other = seen.setdefault(native(theirs), theirs)
        if other != theirs:
            raise UserError(
                f"'{name}' holds two tensors for the same place, {other} and {theirs}; save the checkpoint again."
            )


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
        found = real(file, *args, **how)
        return _Shard(found, lambda: real(file, *args, **how)) if how.get("device", "cpu") == "cpu" else found

    modeling_utils.safe_open = opened
    try:
        yield
    finally:
        modeling_utils.safe_open = real


class _Shard:
    """An open weight file whose tensors do not hold on to it."""

    def __init__(self, file: Any, again: Callable[[], Any]) -> None:
        self.file, self.again = file, again

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def __enter__(self) -> _Shard:
        self.file.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.file.__exit__(*error)

    def get_slice(self, name: str) -> Any:
        return _Slice(self.file.get_slice(name), name, self.again)


class _Slice:
    """A tensor that is read when it is indexed, over a mapping of its own: its pages are given back at once."""

    def __init__(self, slice: Any, name: str, again: Callable[[], Any]) -> None:
        self.slice, self.name, self.again = slice, name, again

    def __getattr__(self, name: str) -> Any:
        return getattr(self.slice, name)

    def __getitem__(self, index: Any) -> Any:
        with self.again() as file:
            return file.get_slice(self.name)[index].clone()


def some(names: Sequence[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")

"""The one promise about weights: a loaded model is the checkpoint, all of it and nothing else.

A tensor that the checkpoint lacks would be random numbers; one that nobody read means that the configuration and the
weights are not of the same model (a layer too few, say). Both are errors that name them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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


def some(names: Sequence[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")

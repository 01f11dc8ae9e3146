"""Where a prompt ends and its answer begins, when all there is are `input_ids` and `labels`.

Three layouts are in use:

    input_ids            labels                          the answer begins at
    prompt + answer      IGNORE for the prompt, answer   the first label
    prompt               prompt + answer (chat)          the first label + the prompt's length
    prompt               IGNORE for the prompt, answer   the first label
"""

from __future__ import annotations

from collections.abc import Sequence

from vestige.types import IGNORE


def prompt_ids(
    input_ids: Sequence[int],
    labels: Sequence[int] | None = None,
    attended: Sequence[int] | None = None,
    prompt_only: bool = False,
) -> tuple[int, ...]:
    """The prompt's tokens, padding left out.

    `attended` tells padding from tokens.

    >>> prompt_ids([0, 11, 12, 21], [-100, -100, -100, 21], attended=[0, 1, 1, 1])
    (11, 12)
    """
    real = [True] * len(input_ids) if attended is None else [bool(a) for a in attended]
    first = first_label(input_ids, labels)
    before = tuple(t for t, keep in zip(input_ids[:first], real, strict=False) if keep)
    if before and not prompt_only:
        return before
    return tuple(t for t, keep in zip(input_ids, real, strict=True) if keep)


def generation_start(
    input_ids: Sequence[int],
    labels: Sequence[int] | None = None,
    attended: Sequence[int] | None = None,
    prompt_only: bool = False,
) -> int:
    """The index in `labels` of the answer's first token.

    `prompt_only` says that `input_ids` hold no answer. Then the labels show whether they repeat the prompt.

    >>> generation_start([11, 12], [11, 12, 21], prompt_only=True)
    2
    >>> generation_start([11, 12], [-100, -100, 21], prompt_only=True)
    2
    """
    first = first_label(input_ids, labels)
    if labels is None or (first and not prompt_only):
        return first
    prompt = prompt_ids(input_ids, labels, attended, prompt_only)
    repeated = tuple(labels[first : first + len(prompt)]) == prompt
    return first + len(prompt) if repeated else first


def first_label(input_ids: Sequence[int], labels: Sequence[int] | None) -> int:
    """The index of the first token that is scored; past the end when there is none."""
    row = [IGNORE] * len(input_ids) if labels is None else labels
    return next((i for i, label in enumerate(row) if label != IGNORE), len(row))

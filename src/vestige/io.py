"""Our own JSON files as records: parsed within limits, checked against a dataclass, and refused when damaged.

Every record is a frozen dataclass. `decode` turns a file into one; a field of the wrong type, or a file that is
cut short, is reported with the name of the file and of the field.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec

from vestige.errors import UserError
from vestige.guard import read_json
from vestige.schema import misfit

T = TypeVar("T")


class DamagedError(UserError):
    """One of our files is not what was written."""


def damaged(path: Path, why: str) -> DamagedError:
    return DamagedError(f"{path} is damaged ({why}); delete it, then run the command that made it again.")


def decode(path: Path, form: type[T]) -> T:
    """The record in one of our JSON files. FileNotFoundError if there is no file, DamagedError if it does not fit.

    `form` is a dataclass, or a type such as dict[str, Record]. msgspec reads its annotations, so they must be
    importable at run time (not under TYPE_CHECKING). Keys that the record does not name are ignored.
    """
    try:
        data = read_json(path)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError, UserError) as error:
        raise damaged(path, str(error)) from None
    if problem := misfit(data, form):
        raise damaged(path, problem)
    return msgspec.convert(data, form)


def decode_data(data: Any, form: type[T], what: str, remedy: str = "make it again") -> T:
    """The same for data that is already parsed. `what` names the file in the error, `remedy` says what to do."""
    if problem := misfit(data, form):
        raise UserError(f"{what} does not have the form it should: {problem}; {remedy}.")
    return msgspec.convert(data, form)

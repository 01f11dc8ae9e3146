"""The one exception a user should ever meet."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

MANY = 20  # more names than this are not listed in an error


class UserError(Exception):
    """Something the user can put right. The message says what was wrong, where, and what to do.

    The command line prints it as one sentence and exits with status 2; no traceback.
    """


def unknown_name(kind: str, name: str, known: Iterable[str], hint: str = "") -> UserError:
    """The error for a name nobody registered, with the nearest names there are.

    >>> str(unknown_name("metric", "roug", ["rouge", "loss"]))
    "Unknown metric 'roug'. Did you mean 'rouge'? Available: loss, rouge."
    """
    names = sorted(known)
    lowered = {n.lower(): n for n in names}
    guess = did_you_mean(name, names)
    if len(names) > MANY:  # the nearest ones are what the reader is after
        near = difflib.get_close_matches(name.lower(), list(lowered), n=5, cutoff=0.0)
        listing = f" Near it: {', '.join(lowered[n] for n in near)}; {len(names)} in all (`vestige ls` lists them)."
    else:
        listing = f" Available: {', '.join(names)}." if names else ""
    return UserError(f"Unknown {kind} '{name}'.{guess}{listing}{' ' + hint if hint else ''}")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The nearest name there is, as a question; nothing when none is near."""
    lowered = {n.lower(): n for n in known}
    close = difflib.get_close_matches(name.lower(), list(lowered), n=1, cutoff=0.5)
    return f" Did you mean '{lowered[close[0]]}'?" if close else ""

"""The one exception a user should ever meet."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from vestige.secrets import hide

MANY = 20  # more names than this are not listed in an error
LONGEST = 1000  # characters of a message: values from files are quoted in it, and they may be of any size


class UserError(Exception):
    """Something the user can put right. The message says what was wrong, where, and what to do.

    The command line prints it as one sentence and exits with status 2; no traceback.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(one_line(hide(message)))


def one_line(message: str) -> str:
    """A message on one line of reasonable length. What it quotes from a file cannot move the terminal's cursor.

    >>> one_line("a.jsonl: 'x\\n\\x1b[2J' is odd.")
    "a.jsonl: 'x \\\\x1b[2J' is odd."
    """
    if len(message) > LONGEST:
        half = LONGEST // 2
        message = f"{message[:half]} [{len(message) - 2 * half} characters left out] {message[-half:]}"
    words = "".join(" " if c in "\r\n\t\v\f\x85\u2028\u2029" else c for c in message)
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in words)


def first_line(error: BaseException) -> str:
    """What somebody else's error says first; some say nothing.

    >>> first_line(ValueError("no room\\nat line 3")), first_line(KeyError())
    ('no room', '')
    """
    return next(iter(str(error).splitlines()), "")


def named(error: BaseException) -> str:
    """The same with its type, for sentences about errors of any kind.

    >>> named(ValueError("no room"))
    'ValueError: no room'
    """
    return f"{type(error).__name__}: {first_line(error)}"


def unknown_name(kind: str, name: str, known: Iterable[str], hint: str = "") -> UserError:
    """The error for a name nobody registered, with the nearest names there are.

    >>> str(unknown_name("metric", "roug", ["rouge", "loss"]))
    "Unknown metric 'roug'. Did you mean 'rouge'? Available: loss, rouge."
    """
    name = name if len(name) <= 200 else f"{name[:200]}..."  # nothing is near it, and looking would take long
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

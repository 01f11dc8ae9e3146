"""Internal errors: what is printed, what is written down for a report, and what is left out of it."""

from __future__ import annotations

import os
import platform
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence

from vestige.errors import is_ours, named, one_line
from vestige.secrets import hide

STATUS = 70  # the exit status of a bug of ours; 2 is for what the user can put right
DEBUG = "VESTIGE_DEBUG"
_HIDDEN = "***"
_SECRET_KEY = re.compile(r"(token|secret|passw|api_?key|credential|auth)", re.IGNORECASE)
_SECRET = re.compile(r"\b(hf_|sk-|ghp_|github_pat_|xox[abp]-|AKIA)[A-Za-z0-9_\-]{8,}")
_SECRET_PAIR = re.compile(
    r"""((?:token|secret|passw\w*|api_?key|credentials?)["']?\s*[=:]\s*["']?)[^\s"',;)}\]]+""", re.IGNORECASE
)


def internal_error(error: BaseException, command: Sequence[str] = (), debug: bool = False) -> str:
    """Two lines for a bug of ours, its traceback in a file; the traceback itself where --debug asks for it."""
    text = masked(described(error, command))
    shown = f"{text}\n" if debug or os.environ.get(DEBUG, "") not in ("", "0") else ""
    return f"{shown}vestige: {summary(error)}\nvestige: {_where(text)}"


def summary(error: BaseException) -> str:
    """What went wrong, and whose bug it is.

    >>> summary(ZeroDivisionError("division by zero"))
    'internal error: ZeroDivisionError: division by zero; this is a bug of vestige, or of a library it calls.'
    """
    place = _place(error)
    words = one_line(masked(f"{named(error)[:300]}{f' ({place})' if place else ''}"))
    whose = "" if is_ours(error) else ", or of a library it calls"
    return f"internal error: {words}; this is a bug of vestige{whose}."


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{'/'.join(frames[-1].filename.replace(os.sep, '/').split('/')[-3:])}:{frames[-1].lineno}" if frames else ""


def in_short(error: BaseException) -> str:
    """The same in one line, for notes about one task among others."""
    try:
        return f"{summary(error)[:-1]}; traceback: {traceback_file(masked(described(error)))}"
    except OSError:
        return summary(error)


def _where(text: str) -> str:
    try:
        file = traceback_file(text)
    except OSError as error:  # no temporary directory can be written: the screen is what is left
        return f"the traceback could not be written to a file ({error.strerror}); please report it:\n{text}"
    return (
        f"the traceback is in {file}; please report the bug with that file. What was computed before is kept; "
        "--debug shows the traceback here."
    )


def traceback_file(text: str) -> str:
    """A new file in the system's temporary directory that only its owner can read. It never replaces another."""
    day = time.strftime("%Y%m%d-%H%M%S")
    handle, name = tempfile.mkstemp(prefix=f"vestige-bug-{day}-", suffix=".txt")
    with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as out:
        out.write(text)
    return name


def described(error: BaseException, command: Sequence[str] = ()) -> str:
    """The traceback with what somebody needs to look into it: the command and the versions."""
    head = [
        f"vestige: {summary(error)}",
        f"command: vestige {' '.join(masked_words(command or sys.argv[1:]))}",
        f"versions: {', '.join(f'{name} {version}' for name, version in _versions().items())}",
    ]
    lines = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return "\n".join([*head, "", lines])


def _versions() -> dict[str, str]:
    """Of what is loaded: nothing is imported for it."""
    from vestige import __version__

    libraries = ("torch", "transformers", "numpy", "hydra", "msgspec", "peft", "ray")
    loaded = {name: str(getattr(sys.modules.get(name), "__version__", "")) for name in libraries}
    here = {"vestige": __version__, "python": platform.python_version(), "on": platform.platform()}
    return {**here, **{name: version for name, version in loaded.items() if version}}


def masked_words(words: Sequence[str]) -> list[str]:
    """The words of a command line; the values of names that look like secrets are left out.

    >>> masked_words(["eval", "model.model_args.token=abc", "--api-key", "x", "task_name=a"])
    ['eval', 'model.model_args.token=***', '--api-key', '***', 'task_name=a']
    """
    out: list[str] = []
    for before, word in zip(("", *words), words, strict=False):
        key, equals, _ = word.partition("=")
        if equals and _SECRET_KEY.search(key.replace("-", "_")):
            out.append(f"{key}={_HIDDEN}")
        elif before.startswith("--") and "=" not in before and _SECRET_KEY.search(before.replace("-", "_")):
            out.append(_HIDDEN)
        else:
            out.append(masked(word))
    return out


def masked(text: str) -> str:
    """A text without the tokens of well-known forms, nor what follows `token=` and its like.

    >>> masked("Authorization failed for hf_abcdefghijkl; api_key: 'xyz'")
    "Authorization failed for ***; api_key: '***'"
    """
    return _SECRET_PAIR.sub(rf"\1{_HIDDEN}", _SECRET.sub(_HIDDEN, hide(text)))

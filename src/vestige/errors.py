"""The one exception a user should ever meet, and how to tell our own mistakes from what the world does to a command.

In: an exception. Out: one sentence for a disk that is full or closed and for memory that ran out (`mishaps_said`), and
whether an error is a bug of ours (`is_ours`). Callers: every room. Imports nothing heavy.
"""

from __future__ import annotations

import difflib
import errno
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType

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


def how_to_install(extra: str) -> str:
    """The command that adds an extra to this copy of vestige: an installed one, or the repository it runs from.

    It names this environment's own pip: another one knows no vestige, or somebody else's package of that name.
    """
    import shutil
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        distribution("vestige")
    except PackageNotFoundError:  # run from its source, as with PYTHONPATH=src
        return f"pip install -e '.[{extra}]' in vestige's repository"
    found = shutil.which("pip")
    here = Path(sys.executable)
    if found and Path(found).parent == here.parent:
        return f"pip install 'vestige[{extra}]'"
    short = here.relative_to(Path.cwd()) if here.is_relative_to(Path.cwd()) else here
    return f"{short} -m pip install 'vestige[{extra}]'"


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


class MissingPluginError(UserError):
    """A finished run cannot be read without a plug-in that it was made with."""


def nothing_computed(what: str, reasons: Iterable[str]) -> UserError:
    """The error of a run whose files are written and hold no value.

    >>> str(nothing_computed("metrics", ["no rows.", "no rows."]))
    'None of the metrics asked for could be computed: no rows.'
    """
    told = "; ".join(reason.rstrip(".") for reason in dict.fromkeys(reasons) if reason)
    return UserError(f"None of the {what} asked for could be computed: {told or 'no reason was given'}.")


def unknown_name(kind: str, name: str, known: Iterable[str], hint: str = "", lists: str = "`vestige ls`") -> UserError:
    """The error for a name nobody registered, with the nearest names there are.

    `lists`: the command that lists all of many names; where there is none, they are all named here.

    >>> str(unknown_name("metric", "roug", ["rouge", "loss"]))
    "Unknown metric 'roug'. Did you mean 'rouge'? Available: loss, rouge."
    """
    name = name if len(name) <= 200 else f"{name[:200]}..."  # nothing is near it, and looking would take long
    names = sorted(known)
    lowered = {n.lower(): n for n in names}
    guess = did_you_mean(name, names)
    if len(names) > MANY and lists:  # the nearest ones are what the reader is after
        near = difflib.get_close_matches(name.lower(), list(lowered), n=5, cutoff=0.0)
        listing = f" Near it: {', '.join(lowered[n] for n in near)}; {len(names)} in all ({lists} lists them)."
    else:
        listing = f" Available: {', '.join(names)}." if names else ""
    return UserError(f"Unknown {kind} '{name}'.{guess}{listing}{' ' + hint if hint else ''}")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The nearest name there is, as a question; nothing when none is near."""
    lowered = {n.lower(): n for n in known}
    close = difflib.get_close_matches(name.lower(), list(lowered), n=1, cutoff=0.5)
    return f" Did you mean '{lowered[close[0]]}'?" if close else ""


# ---- what the world does to a command: no room, no permission, no memory -------------------------------------------

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
CLOSED = (errno.EROFS, errno.EACCES, errno.EPERM)
OTHERS = (errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENODEV, errno.ESTALE, errno.ENOTCONN)


class WriteError(UserError):
    """The disk would not take it. Never to be passed over: what follows would stand on files that are not there."""


def write_error(error: OSError, path: str | Path) -> WriteError:
    """The sentence for a disk that refuses."""
    words = os.strerror(error.errno) if error.errno else str(error)
    if error.errno in FULL:
        return WriteError(f"Cannot write {path} ({words}); make room, then rerun the same command to resume.")
    if error.errno in CLOSED:
        return WriteError(f"Cannot write {path} ({words}); make the directory writable, or choose another --out.")
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        file = next((p for p in (Path(path), *Path(path).parents) if p.is_file()), path)
        return WriteError(f"Cannot write into {file}: it is a file, and a directory is needed; choose another --out.")
    return WriteError(f"Cannot write {path} ({words}); correct that, then rerun the same command to resume.")


@contextmanager
def mishaps_said() -> Iterator[None]:
    """Turns what is nobody's bug into a UserError; everything else goes on as it came."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.errno in (*FULL, *CLOSED, *OTHERS):
            raise write_error(error, error.filename or "a file") from None
        if error.errno == errno.ENOMEM:
            raise _memory(error) from None
        raise
    except (MemoryError, RuntimeError) as error:
        if out_of_memory(error):
            raise _memory(error) from None
        raise


def out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out: Python's, or that of a device of torch's, if torch is at work at all."""
    theirs = getattr(sys.modules.get("torch"), "OutOfMemoryError", MemoryError)
    if isinstance(error, (MemoryError, theirs)):
        return True
    # The CPU allocator and MPS raise a plain RuntimeError; their texts are all there is to go by.
    text = str(error).lower()
    return isinstance(error, RuntimeError) and ("out of memory" in text or "can't allocate memory" in text)


def _memory(error: BaseException) -> UserError:
    words = first_line(error)[:160] or type(error).__name__
    return UserError(
        f"Memory ran out ({words}); close other programs or lower --batch-tokens, then rerun the same command: "
        "what was collected is kept."
    )


# ---- whose mistake it is ---------------------------------------------------------------------------------------------

# What Python raises when a program is wrong. A ValueError is not among them: readers raise it about what they read.
PROGRAMMING = (NameError, AttributeError, TypeError, LookupError, AssertionError, ZeroDivisionError)
# Called with wrong arguments they fail in frames of their own, and the mistake is the caller's.
TOOLS = frozenset({*sys.stdlib_module_names, "numpy", "scipy", "torch"})
# These hand our arguments to an architecture, and fail in its place when it does not take them.
DOORS = ("torch.nn.modules", "vestige.models.foreign")
_INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]")
_HERE = str(Path(__file__).parent)


def reraise_ours(error: Exception, *foreign: str) -> None:
    """At every `except Exception`: raises the error again if it is a mistake in our own code.

    `foreign` names modules that are not tools at this place, such as a parser that reads a user's file or a plug-in.
    """
    if is_ours(error, foreign):
        raise error


def is_ours(error: BaseException, foreign: Iterable[str] = ()) -> bool:
    """Whether an exception is a programming error of vestige: its type, and whose frame it was raised in.

    >>> try: undefined_here
    ... except NameError as error: is_ours(error), is_ours(ValueError("no frames"))
    (False, False)
    """
    if isinstance(error, ImportError):
        return (error.name or "").partition(".")[0] == "vestige"
    theirs = (*foreign, *DOORS)
    if isinstance(error, NameError):  # no file and no architecture, however odd, takes a name of ours away
        theirs = tuple(name for name in theirs if name.partition(".")[0] != "vestige")
    return isinstance(error, PROGRAMMING) and _raised_by_us(error.__traceback__, theirs)


def _raised_by_us(trace: TracebackType | None, foreign: tuple[str, ...]) -> bool:
    """The innermost frame that is not a tool's decides.

    A frame that belongs to nobody (not ours, not installed: a callback, a function replaced in a test) counts as ours
    if our code called it; below an architecture's or a library's frames it is theirs.
    """
    frames = []
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    owners = [owner for owner in (_owner(f, foreign) for f in frames) if owner != "tool"]
    if not owners:
        return False
    return owners[-1] == "ours" or (owners[-1] == "nobody" and owners[-2:-1] == ["ours"])


def _owner(frame: FrameType, foreign: tuple[str, ...]) -> str:
    name, file = str(frame.f_globals.get("__name__")), frame.f_code.co_filename
    if any(name == f or name.startswith(f"{f}.") for f in foreign):
        return "foreign"
    if file.startswith(_HERE):
        return "ours"
    if name.startswith("vestige_plugin_"):
        return "foreign"
    if name.partition(".")[0] in TOOLS:
        return "tool"
    return "foreign" if _INSTALLED.search(file) or name.startswith("transformers_modules") else "nobody"

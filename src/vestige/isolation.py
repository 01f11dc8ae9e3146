"""Work that may take the process down, done in a child: a crash costs that work and nothing else.

    row = isolated(attack, model, budget)  # what attack(model, budget) returns or raises; DiedError if a signal ends it

The child is a fork of this process. A new interpreter would import torch for seconds, know no plug-in that was entered
in memory, and need everything sent to it. Three things make the fork safe:

- The work runs in a new thread of the child. OpenMP's threads do not survive a fork, and the thread that had them would
  wait for them for ever. A new thread gets new ones, as many as there were: sums are the same, bit for bit.
- CUDA does not survive a fork either. Where there is a GPU, or no Linux, the work is done in this process.
- The child dies with this process, however that ends, and the kernel takes the child first when memory runs out.

Callers: stress/run.py, audit/work.py, models/quantised.py; sweep/workers.py has processes of its own.
"""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, TypeVar

from vestige.errors import UserError, named

T = TypeVar("T")
FrameFacts = tuple[str, str, str, int]  # module, file, function, line

DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)
EAGER_TO_DIE = "500"  # of 1,000: how much sooner than others the kernel ends the child when memory runs out
REASONS = {
    signal.SIGKILL: "out of memory?",
    signal.SIGILL: "an instruction that this CPU announces and lacks? Try ONEDNN_MAX_CPU_ISA=AVX2",
}
_is_child = False


class DiedError(UserError):
    """The child was ended by a signal, or ended itself."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code  # its exit status; negative: the signal


def ending(code: int) -> str:
    """How a process ended, from its exit status.

    >>> ending(-9)
    'was killed by SIGKILL (out of memory?)'
    >>> ending(3)
    'ended with status 3'
    """
    if code >= 0:
        return f"ended with status {code}"
    number = signal.Signals(-code)
    return f"was killed by {number.name} ({REASONS.get(number, 'a crash in native code')})"


def isolated(work: Callable[..., T], *args: Any) -> T:
    """What `work(*args)` returns or raises. Inside a child it is done there: one child is enough."""
    torch = sys.modules.get("torch")
    has_gpu = torch is not None and torch.cuda.is_available()
    if _is_child or has_gpu or sys.platform != "linux":
        return work(*args)
    return in_child(work, *args)


def in_child(work: Callable[..., T], *args: Any) -> T:
    """The same, always in a child; the result comes back pickled, an exception with the frames it was raised in."""
    box = os.memfd_create("result")
    try:
        code = _run(work, args, box)
        os.lseek(box, 0, os.SEEK_SET)
        with os.fdopen(box, "rb", closefd=False) as file:
            answer = file.read()
    finally:
        os.close(box)
    if code or not answer:
        raise DiedError(f"its process {ending(code)}; the same command tries it again.", code)
    result, error, frames = pickle.loads(answer)
    if error is not None:
        raise error.with_traceback(_rebuilt(frames))
    return result


def _run(work: Callable[..., Any], args: Sequence[Any], box: int) -> int:
    """The exit status of a child that leaves its answer in the box."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # or the child would print it again
    parent = os.getpid()
    with _without_tokenizer_threads():
        child = os.fork()
        if child == 0:
            _be_child(work, args, box, parent)
    try:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    except BaseException:  # Ctrl-C: nobody waits for the result
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise


@contextlib.contextmanager
def _without_tokenizer_threads() -> Iterator[None]:
    """The tokenizers' threads do not survive a fork, and they say so on standard error unless they are switched off."""
    name = "TOKENIZERS_PARALLELISM"
    before = os.environ.get(name)
    os.environ[name] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _be_child(work: Callable[..., Any], args: Sequence[Any], box: int, parent: int) -> NoReturn:
    """Never returns: what follows the fork in the code is the parent's."""
    global _is_child
    _is_child = True
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != parent:  # it died before it could take us along
            os._exit(1)
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(EAGER_TO_DIE)
        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(_answer, work, args, box))
        thread.start()
        thread.join()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    finally:
        os._exit(0)  # without an answer in the box it counts as dead


def _answer(work: Callable[..., Any], args: Sequence[Any], box: int) -> None:
    """Puts (result, error, frames of the error) into the box."""
    answer: tuple[Any, BaseException | None, list[FrameFacts]]
    try:
        answer = (work(*args), None, [])
    except BaseException as error:
        frames = [
            (str(frame.f_globals.get("__name__")), frame.f_code.co_filename, frame.f_code.co_name, line)
            for frame, line in traceback.walk_tb(error.__traceback__)
        ]
        answer = (None, _sendable(error), frames)
    with os.fdopen(box, "wb", closefd=False) as file:
        pickle.dump(answer, file)


def _sendable(error: BaseException) -> BaseException:
    """Some exceptions of other libraries cannot be pickled, or not be read back."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # whatever a class of somebody else does when it is read back
        return RuntimeError(named(error))
    return error


def _rebuilt(frames: Sequence[FrameFacts]) -> TracebackType | None:
    """A traceback as it was in the child: what is printed of a bug, and who is to blame for it, are read from it."""
    trace = None
    for module, file, function, line in reversed(frames):
        names: dict[str, Any] = {"__name__": module}
        code = compile("import sys; frame = sys._getframe()", file, "exec").replace(co_name=function)
        exec(code, names)
        trace = TracebackType(trace, names["frame"], -1, line)
    return trace

"""The process that forks itself once per command (harness.py). It imports the slow libraries and runs nothing else.

Requests and answers are JSON lines on its standard streams. A fork gets its own session, working directory,
environment and standard streams, then does what a new process would do: call the console script `vestige`, or run
a user's script. Neither torch nor any of ours has started a thread before the fork.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.metadata
import json
import os
import pkgutil
import signal
import sys
import time
import traceback
from pathlib import Path

CHILDREN: dict[int, int | None] = {}  # pid -> exit status, None while it runs


def import_everything() -> None:
    for name in ("torch", "transformers", "datasets", "safetensors.torch", "scipy.stats", "hydra", "pandas", "peft"):
        importlib.import_module(name)
    import vestige

    # All modules of the package, whatever they are called; the tests do not know their names.
    for module in pkgutil.walk_packages(vestige.__path__, "vestige."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def spare_the_forks() -> None:
    """What a fork would do again: search this process's objects for garbage, compile a table of transformers."""
    with contextlib.suppress(ImportError, AttributeError):
        importlib.import_module("transformers.conversion_mapping").get_checkpoint_conversion_mapping("llama")
    gc.collect()
    gc.freeze()


def become(request: dict) -> None:
    """In the fork: the command's session, streams, directory and environment, then the command."""
    os.setsid()
    folder = Path(request["folder"])
    nothing = os.open(os.devnull, os.O_RDONLY)
    out = os.open(folder / "out", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    err = os.open(folder / "err", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for source, target in ((nothing, 0), (out, 1), (err, 2)):
        os.dup2(source, target)
    sys.stdin = os.fdopen(0, "r")
    sys.stdout = os.fdopen(1, "w")
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace")
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    if request["kind"] == "python":
        sys.argv = ["script.py", *request["words"][1:]]
        sys.path.insert(0, "")
        exec(compile(request["words"][0], "script.py", "exec"), {"__name__": "__main__"})
        raise SystemExit(0)
    sys.argv = ["vestige", *request["words"]]
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="vestige")
    raise SystemExit(script.load()())


def run_fork(request: dict) -> None:
    """Ends as a Python process would: atexit functions run, buffers are flushed."""
    try:
        become(request)
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
            status = 1
        else:
            status = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        status = 1
    try:
        import atexit
        import threading

        threading._shutdown()  # waits for threads, as the interpreter does
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def start(request: dict) -> int:
    pid = os.fork()
    if pid == 0:
        run_fork(request)
    CHILDREN[pid] = None
    return pid


def wait(pid: int, seconds: float) -> int | None:
    """The exit status of a command (minus the signal that ended it), or None if it still runs after `seconds`."""
    end = time.monotonic() + seconds
    while CHILDREN[pid] is None:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            CHILDREN[pid] = os.waitstatus_to_exitcode(status)
        elif time.monotonic() >= end:
            return None
        else:
            time.sleep(0.003)
    return CHILDREN[pid]


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # nothing that a library prints may look like an answer
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    import_everything()
    spare_the_forks()
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "start":
            answer = start(request)
        else:
            answer = wait(request["pid"], request["seconds"])
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()

"""A worker of the process pool: tasks come as lines of JSON, outcomes go back the same way.

It lives for many tasks, because importing the libraries takes longer than many an evaluation. It dies with its
driver: when the driver is gone, however it went, the pipe ends and so does the work.
"""

from __future__ import annotations

import gc
import json
import os
import queue
import signal
import sys
import threading
from dataclasses import asdict

from vestige.secrets import note_variables
from vestige.sweep.tasks import Task, perform


def main() -> None:
    """Performs tasks until the pipe ends."""
    note_variables()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to handle
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # nothing a library prints may get between our lines
    tasks: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_listen, args=(tasks,), daemon=True).start()
    while True:
        outcome = perform(Task.from_json(json.loads(tasks.get())))
        gc.collect()
        answers.write(json.dumps(asdict(outcome)) + "\n")


def _listen(tasks: queue.Queue[str]) -> None:
    for line in sys.stdin:
        tasks.put(line)
    os._exit(0)  # in the middle of a task, too: nobody is waiting for it, and the next driver will want its directory


if __name__ == "__main__":
    main()

"""What is shown of a sweep while it runs: a table that is drawn again on a terminal, plain lines anywhere else.

Every line also goes to a file. When the terminal hangs up, the file goes on.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

from vestige.runs.directory import append_to
from vestige.secrets import hide
from vestige.show.tables import table
from vestige.sweep.pool import TaskState, shown
from vestige.sweep.tasks import Task

MARKS = {"waiting": "again", "running": "start", "done": "done", "failed": "FAILED", "blocked": "BLOCKED"}


class Board:
    """Told of every change, it keeps the reader and the log informed."""

    def __init__(self, tasks: Sequence[Task], log: Path, stream: TextIO | None = None) -> None:
        self.states: Mapping[str, TaskState] = {t.id: TaskState() for t in tasks}
        self.seen: dict[str, TaskState] = {}
        self.stream = stream or sys.stdout
        self.drawn = 0  # lines of the table now on the screen
        self.began: dict[str, float] = {}
        self.log = append_to(log)

    def __enter__(self) -> Board:
        return self

    def __exit__(self, *_: object) -> None:
        self._erase()
        self.log.close()

    def change(self, task: Task, state: TaskState) -> None:
        """One line a change: what happened, to which task, how long it took, why it failed and where to read on."""
        self.seen[task.id] = state
        if state.status == "running":
            self.began[task.id] = time.monotonic()
        words = f"{MARKS[state.status]:8}{task.id}"
        if state.status == "done":
            words += f"  {state.seconds:.1f} s" if state.fresh else "  (there already)"
        elif state.error:
            words += f"  {state.error}"
        if state.status == "failed":
            words += f"  (log: {task.log})"
        self.say(f"[{self._count()}] {words}")

    def _count(self) -> str:
        done = sum(s.status == "done" for s in self.seen.values())
        return f"{done}/{len(self.states)}"

    def say(self, words: str) -> None:
        words = hide(words)
        self.log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {words}\n")
        self._erase()
        self._show(words + "\n")
        self.tick()

    def tick(self) -> None:
        """Draws the table of what runs and waits, if somebody watches."""
        if not self._watched():
            return
        self._erase()
        rows = [
            [i, s.status, f"{time.monotonic() - self.began[i]:.0f} s"]
            for i, s in self.seen.items()
            if i in self.began and s.status == "running"
        ]
        whole = {i: self.seen.get(i, s) for i, s in self.states.items()}
        lines = [*(table(rows, ["task", "status", "for"]).splitlines() if rows else []), shown(whole)]
        size = shutil.get_terminal_size()
        lines = [line[: size.columns - 1] for line in lines[-(size.lines - 2) :]]  # a wrapped line would count as two
        self._show("\n".join(lines) + "\n")
        self.drawn = len(lines)

    def _watched(self) -> bool:
        try:
            return self.stream.isatty()
        except ValueError:  # closed
            return False

    def _erase(self) -> None:
        if self.drawn:
            self._show(f"\x1b[{self.drawn}A\x1b[J")
            self.drawn = 0

    def _show(self, text: str) -> None:
        try:
            self.stream.write(text)
            self.stream.flush()
        except (OSError, ValueError):
            pass  # the terminal is gone; the log has it all

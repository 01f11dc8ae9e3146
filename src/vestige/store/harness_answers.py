"""What another harness's tasks were answered, task by task: a run that was killed asks only the rest.

In: a key and a body of plain data. Out: a file per key in the evidence of a run. Caller: engine/harness.py, which hands
it to the harness's bridge (integrations/lm_eval_kept.py).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vestige.errors import UserError
from vestige.guard import read_json
from vestige.runs.directory import remove, write_bytes
from vestige.types import content_key

log = logging.getLogger("vestige.engine")


@dataclass
class AnswersOnDisk:
    """Answers by key, a file each. One whose digest does not fit counts as not there: its task is asked again."""

    directory: Path
    check: Callable[[], None]  # raises if the checkpoint was written over meanwhile: then nothing is kept
    used: set[str] = field(default_factory=set)

    def _path(self, key: str) -> Path:
        return self.directory / f"answers-{key}.json"

    def found(self, key: str) -> Mapping[str, Any] | None:
        self.used.add(self._path(key).name)
        try:
            body = read_json(self._path(key))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, UserError):
            body = None
        if not isinstance(body, dict) or body.pop("digest", "") != _digest(key, body):
            log.warning("%s is damaged; its task is asked again.", self._path(key))
            return None
        return body

    def keep(self, key: str, body: Mapping[str, Any]) -> None:
        self.check()
        # Texts stay as the model wrote them: with anything replaced, numbers would not be those of the first run.
        data = json.dumps({**body, "digest": _digest(key, body)}, sort_keys=True, allow_nan=False)
        write_bytes(self._path(key), data.encode())

    def drop_others(self) -> None:
        """Answers to other questions, from before settings changed."""
        remove(*(p for p in sorted(self.directory.glob("answers-*.json")) if p.name not in self.used))


def _digest(key: str, body: Mapping[str, Any]) -> str:
    return content_key(key.encode(), json.dumps(body, sort_keys=True).encode())

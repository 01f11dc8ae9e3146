"""`vestige.Watch`: the same looks in a training loop of one's own, with PyTorch alone or with accelerate.

    watch = vestige.Watch(model, tokenizer, "tofu", data="DIR", retain_logs="saves/eval/retain", every=100)
    for batch in loader:
        ...
        optimizer.step()
        if watch.step(tokens=batch["input_ids"].numel()) and watch.is_best:
            model.save_pretrained("best")

In: the loop's own calls. Out: Looks, run directories, numbers handed to `log` functions. Callers: users.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vestige.data.rows import as_given
from vestige.errors import UserError, is_ours
from vestige.in_memory import AcceleratorLike, Place, RowTables, TokenizerLike, TorchModel
from vestige.internal import in_short
from vestige.watch.callback import BestRule, WatchPlan, live_ask, live_run
from vestige.watch.looking import Look, Looking, look_settings
from vestige.watch.processes import look_together

log = logging.getLogger("vestige.watch")
Logger = Callable[[dict[str, float], int], object]  # numbers and the step, as `wandb.log` takes them


class Watch:
    """Counts steps, evaluates the live model when it is due, and knows the best look.

        watch = vestige.Watch(model, tokenizer, "tofu", data="DIR", every=100, log=run.log)
        look = watch.step()        # after optimizer.step(); a Look when one was due, else None
        watch.look()               # now, whatever the schedule says

    `accelerator` is the one that prepared the model: its processes look together, and its trackers get the numbers.
    Without one, the processes of torch.distributed (DDP, FSDP) look together; every process calls `step` or `look`.
    Other keywords are those of `vestige.Callback`. Without `out` nothing is kept on disk.
    `state_dict` and `load_state_dict` carry what was seen through a checkpoint of the loop's own.
    """

    def __init__(
        self,
        model: TorchModel,
        tokenizer: TokenizerLike,
        suite: str = "tofu",
        *,
        data: Place | RowTables | None = None,
        metrics: Sequence[str] | str | None = None,
        retain_logs: Place | Sequence[Place] | None = None,
        full_logs: Place | Sequence[Place] | None = None,
        every: int | str = "never",
        at_tokens: Sequence[int] = (),
        at_start: bool = True,
        out: Place | None = None,
        keep: str | int = "all",
        best: BestRule = "closest",
        patience: int | None = None,
        share: bool = False,
        limit: int | None = None,
        dialect: str | None = None,
        system_prompt: str | None = None,
        cluster: str | None = None,
        overrides: Sequence[str] = (),
        plugins: Sequence[str] = (),
        accelerator: AcceleratorLike | None = None,
        log: Logger | None = None,
        on_error: str = "log",
    ) -> None:
        if on_error not in ("log", "raise"):
            raise UserError(f"on_error is {on_error!r}; it is 'log' or 'raise'.")
        if every == "eval":
            raise UserError("every='eval' is for trainers that evaluate; a loop of your own calls watch.look().")
        self.plan = WatchPlan(every, tuple(at_tokens), at_start, False, patience, 0, share, False, on_error == "raise")
        more = {"dialect": dialect, "system_prompt": system_prompt, "cluster": cluster, "overrides": tuple(overrides)}
        self._rows = as_given(data)  # rows in memory live as long as this watch
        asked = live_ask(suite, self._rows.path if self._rows else data, metrics, retain_logs, limit)
        run = live_run(asked, more, plugins)
        place = Path(out).expanduser() if out is not None else None
        self.model, self.tokenizer, self.accelerator, self._log = model, tokenizer, accelerator, log
        self._looking = Looking(run, place, look_settings(retain_logs, full_logs, best, keep))
        self.steps = self.tokens = 0
        if at_start:
            self.look()

    @property
    def looks(self) -> list[Look]:
        return list(self._looking.looks)

    @property
    def best(self) -> Look | None:
        return self._looking.best

    @property
    def is_best(self) -> bool:
        """Whether the newest look is the best one so far."""
        return bool(self._looking.looks) and self.best is self._looking.looks[-1]

    @property
    def should_stop(self) -> bool:
        """Whether `patience` looks in a row brought nothing better."""
        return self.plan.patience is not None and self._looking.looks_since_best >= self.plan.patience

    def step(self, tokens: int = 0) -> Look | None:
        """Counts one step of the optimiser, and looks if it is due."""
        before, every = self.tokens, self.plan.every
        self.steps, self.tokens = self.steps + 1, self.tokens + tokens
        due = isinstance(every, int) and self.steps % every == 0
        due = due or any(before < goal <= self.tokens for goal in self.plan.at_tokens)
        return self.look() if due else None

    def epoch_end(self, epoch: float | None = None) -> Look | None:
        """Looks if looks are due at the ends of epochs."""
        return self.look(epoch) if self.plan.every == "epoch" else None

    def look(self, epoch: float | None = None) -> Look | None:
        """Evaluates now. None: it failed, which is logged."""
        moment = (self.steps, epoch)
        try:
            look = look_together(self._looking, self.accelerator, self.model, self.tokenizer, moment, self.plan.share)
        except Exception as error:  # of the model, the memory or the disk; a bug of ours is called one
            if self.plan.raises:
                raise
            log.warning("no evaluation at step %d: %s", self.steps, in_short(error) if is_ours(error) else error)
            return None
        log.info("%s", look)
        if self._log is not None:
            self._log(look.flat(), self.steps)
        accelerator: Any = self.accelerator
        if accelerator is not None and accelerator.trackers:
            accelerator.log(look.flat(), step=self.steps)
        return look

    def state_dict(self) -> dict[str, object]:
        """Plain data for a checkpoint of the loop's own."""
        looks = [look.to_json() for look in self._looking.looks]
        return {"steps": self.steps, "tokens": self.tokens, "looks": looks}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        kept: Mapping[str, Any] = state
        self.steps, self.tokens = int(kept["steps"]), int(kept["tokens"])
        self._looking.looks = []
        self._looking.remember(Look.from_json(body) for body in kept["looks"])

"""What models that are not the harness's own have in common there: templates, and requests as targets of ours.

This file is only imported once such a model is to be handed to the harness (lm_eval_diffusion.py, lm_eval_served.py).
"""

from __future__ import annotations

import logging
from typing import Any

from vestige.errors import UserError
from vestige.types import Target

try:
    from lm_eval.api.model import TemplateLM as Base
except ImportError:  # without the extra nobody makes such a model, but tools that read every module get here
    Base = object

log = logging.getLogger("lm_eval.vestige")  # below the harness's own logger: its warnings become the run's notes


class TokenLM(Base):
    """A model that is asked in token ids. Kinds of it say how text becomes tokens, and how many fit."""

    tokenizer: Any
    max_length: int

    @property
    def tokenizer_name(self) -> str:
        return str(self.tokenizer.name_or_path).replace("/", "__")

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """A conversation as the model's own template writes it; without the system turn if it refuses those."""
        from jinja2.exceptions import TemplateError

        def written(turns: list[dict[str, str]]) -> str:
            return str(
                self.tokenizer.apply_chat_template(
                    turns,
                    tokenize=False,
                    add_generation_prompt=add_generation_prompt,
                    continue_final_message=not add_generation_prompt,
                )
            )

        try:
            return written(chat_history)
        except TemplateError:
            log.warning("the chat template refuses a system turn: it was left out")
            return written([turn for turn in chat_history if turn["role"] != "system"])

    def _target(self, texts: Any, context: list[int], answer: list[int]) -> Target:
        """The continuation after as much of its context as fits, cut from the left as for causal models."""
        if not answer:
            raise UserError(
                f"The continuation {texts[1]!r} leaves no tokens to score after its context; "
                "give the task a target_delimiter or another doc_to_choice."
            )
        if len(answer) >= self.max_length:
            raise UserError(
                f"A continuation is {len(answer)} tokens long, but this model reads {self.max_length} with its "
                "context; leave that task out or shorten its documents."
            )
        context = self._cut(context or [self.prefix_token_id], self.max_length - len(answer))
        return Target((*context, *answer), len(context))

    def _cut(self, context: list[int], room: int) -> list[int]:
        if len(context) > room:
            log.warning(f"some contexts were cut from the left to fit the model's {self.max_length} tokens")
        return context[-room:]

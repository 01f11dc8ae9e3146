"""A served model as lm-evaluation-harness sees models: its requests become targets and texts of collect's interface.

    loglikelihood          the sum of the continuation's log-probabilities; greedy where each token is a first choice
    loglikelihood_rolling  the same of a whole text, in windows of what the server reads
    generate_until         the server's text, cut at the first stop string

Who answers is handed in by the engine (an Backend): the same scorer, checks and prefix groups as for metrics. Text
becomes tokens as the harness does it for a model in process, so that both are asked the same.
This file is only imported once a served model is to be handed to the harness.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from vestige.adapters.lm_eval import ServedSubject
from vestige.adapters.lm_eval_tokens import TokenLM, log
from vestige.errors import UserError
from vestige.types import Prompt, Target, TokenStats
from vestige.wants import Decoding, Request

MAX_GEN_TOKS = 256  # of a task that does not say, as for models in process
SAME_NAME = ("top_p", "top_k", "repetition_penalty", "seed")  # of gen_kwargs and of Decoding


class ServedLM(TokenLM):
    """Answers the harness's three kinds of request through servers."""

    def __init__(self, subject: ServedSubject, tokenizer: Any) -> None:
        super().__init__()
        self.subject = subject
        self.tokenizer = tokenizer
        known = subject.longest if subject.longest is not None else int(tokenizer.model_max_length)
        self.max_length = known - 1  # a server writes a token more, also where it only scores
        self.max_gen_toks = MAX_GEN_TOKS

    @property
    def eot_token_id(self) -> int | None:
        found: int | None = self.tokenizer.eos_token_id
        return found

    @property
    def prefix_token_id(self) -> int:
        """What stands in front of a text that has no context."""
        begin = self.tokenizer.bos_token_id
        found: int | None = self.eot_token_id if begin is None else begin
        if found is None:
            raise UserError(
                f"A request without context needs a beginning or end token in front, and the tokenizer of "
                f"{self.subject.name} names none; give another with --tokenizer PATH."
            )
        return found

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """As the harness encodes for a causal model in process: the tokenizer's own special tokens, none twice."""
        from lm_eval.models.utils import has_bos_prefix

        if add_special_tokens is None and has_bos_prefix(string, self.tokenizer.decode(self.prefix_token_id)):
            add_special_tokens = False
        said = {} if add_special_tokens is None else {"add_special_tokens": add_special_tokens}
        return list(self.tokenizer.encode(string, **said))

    # ---- likelihoods --------------------------------------------------------------------------------------------

    def _scored(self, targets: Sequence[Target]) -> dict[str, TokenStats]:
        """Each distinct target once. Those that share a beginning travel together."""
        if self.subject.lacks:
            raise UserError(f"These tasks ask for log-probabilities: {self.subject.lacks}.")
        distinct = list({t.key: t for t in targets}.values())
        parts = self.subject.answerer.score(distinct, frozenset(), lambda tokens: None)
        return {key: stats for part in parts for key, stats in part.items()}

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        targets = [self._target(*request) for request in requests]
        found = self._scored(targets)
        out = [(float(found[t.key].logprob.sum()), bool(found[t.key].hit.all())) for t in targets]
        for (texts, _context, _answer), answer in zip(requests, out, strict=True):
            self.cache_hook.add_partial("loglikelihood", texts, answer)
        return out

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Of each text the sum over its windows, each given the tokens before it that still fit."""
        from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

        texts: list[list[Target]] = []
        for request in requests:
            ids = self.tok_encode(request.args[0])
            cuts = get_rolling_token_windows(ids, self.prefix_token_id, self.max_length - 1, context_len=1)
            pairs = [make_disjoint_window(cut) for cut in cuts]
            texts.append([Target((*context, *answer), len(context)) for context, answer in pairs])
        found = self._scored([t for windows in texts for t in windows])
        out = [float(sum(found[t.key].logprob.sum() for t in windows)) for windows in texts]
        for request, value in zip(requests, out, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, value)
        return out

    # ---- texts --------------------------------------------------------------------------------------------------

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """The server's texts. A request made again (`repeats`) is drawn with the next seed, if anything is drawn."""
        from lm_eval.models.utils import postprocess_generated_text

        times: Counter[str] = Counter()
        wants: list[tuple[Request, list[str]]] = []
        for request in requests:
            context, said = request.args
            same = repr((context, sorted(said.items(), key=str)))
            wants.append(self._want(context, said, times[same]))
            times[same] += 1
        distinct = list({want.key: want for want, _ in wants}.values())
        parts = self.subject.answerer.write(distinct, {}, frozenset(), {})
        texts = {key: text for part in parts for key, text in part.items()}
        out = []
        for request, (want, stops) in zip(requests, wants, strict=True):
            words = str(self.tokenizer.decode(list(texts[want.key].ids), skip_special_tokens=True))
            out.append(postprocess_generated_text(words, stops, None))
            self.cache_hook.add_partial("generate_until", request.args, out[-1])
        return out

    def _want(self, context: str, gen_kwargs: Mapping[str, Any], repeat: int) -> tuple[Request, list[str]]:
        from lm_eval.models.utils import normalize_gen_kwargs

        said: dict[str, Any] = dict(normalize_gen_kwargs(dict(gen_kwargs), self.max_gen_toks))
        length, stops = int(said.pop("max_gen_toks")), [str(word) for word in said.pop("until") if word]
        if length >= self.max_length:
            raise UserError(
                f"max_gen_toks={length} leaves no room for a prompt: this server reads {self.max_length} tokens; "
                "set a smaller max_gen_toks in eval.lm_eval.simple_evaluate_args.gen_kwargs."
            )
        drawn = bool(said.pop("do_sample"))
        known: dict[str, Any] = {k: said.pop(k) for k in SAME_NAME if said.get(k) is not None}
        known |= {"do_sample": drawn, "seed": int(known.get("seed", 0)) + (repeat if drawn else 0)}
        known |= {"temperature": float(said.pop("temperature", 1.0))} if drawn else {}
        for name in sorted(k for k, v in said.items() if v is not None and k != "temperature"):
            log.warning(f"gen_kwargs: {name} is not told to a server and has no effect")
        decoding = Decoding.from_config({**known, "max_new_tokens": length, "stopwords": stops})
        ids = self._cut(self.tok_encode(context), self.max_length - length)
        return Request(Prompt(tuple(ids)), decoding), stops

    # ---- what a reader of the numbers must know -----------------------------------------------------------------

    def settings(self) -> dict[str, Any]:
        """For the manifest: what was sent, as the servers count it."""
        return {"served": {k: v for k, v in self.subject.cost.as_dict().items() if k.startswith("server_")}}

    def notes(self) -> list[str]:
        untold = "the server does not tell first choices: is_greedy is false everywhere"
        return [*self.subject.cost.notes, *([] if self.subject.first or self.subject.lacks else [untold])]

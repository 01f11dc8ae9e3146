"""A diffusion model as lm-evaluation-harness sees models.

    loglikelihood          the Monte-Carlo bound of collect/bound.py: the same draws for every model and batch size
    loglikelihood_rolling  the bound of a whole text, in windows of the model's context
    generate_until         the sampler's text, cut at the first end token and the first stop string

`is_greedy` is true when every token of a continuation is the model's first choice while the whole continuation is
hidden. A sampler that decides tokens one after the other may still end elsewhere.

This file is only imported once a diffusion model is to be handed to the harness.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from vestige.adapters.lm_eval_tokens import TokenLM, log
from vestige.collect.answers import default_limits
from vestige.collect.backend import Cost, cut_after_end, text_want
from vestige.collect.bound import DRAWS, BoundCollector
from vestige.collect.denoise import DenoiseCollector
from vestige.collect.safety import learned_positions
from vestige.collect.tree import Limits
from vestige.errors import UserError, unknown_name
from vestige.models.diffusion import CanvasPredictor, need_predictor
from vestige.models.load import LoadedModel
from vestige.types import Prompt, Target
from vestige.wants import SAMPLER_SETTINGS, Decoding, DenoiseWant, Denoising, Request

MAX_GEN_TOKS = 256  # of a task that does not say, as for causal models
GREEDY_NOTE = "is_greedy reads the pass in which the whole continuation is hidden"


@dataclass(frozen=True)
class BoundEstimate:
    """What the harness is told of one continuation, and how far the number may be off."""

    value: float
    greedy: bool
    error: float  # standard error of `value`; 0 where one draw is all there is to know, NaN where it is not known


class DiffusionLM(TokenLM):
    """A mask predictor with its tokenizer, answering the harness's three kinds of request."""

    def __init__(
        self,
        model: LoadedModel,
        tokenizer: Any,
        draws: int | None = None,
        batch_size: int | str = 1,
        max_batch_size: int | None = None,
    ) -> None:
        super().__init__()
        self.predictor = need_predictor(model.diffusion, model.name)
        self.tokenizer = tokenizer
        self.draws = DRAWS if draws is None else draws
        self.batch_size = batch_size
        self.max_batch_size = max_batch_size
        self.max_gen_toks = MAX_GEN_TOKS
        self.max_length = context_length(self.predictor.model, tokenizer)
        self.cost = Cost()
        self.errors: dict[str, float] = {}  # target -> standard error of its log-likelihood
        self.samplers: dict[Denoising, None] = {}  # those in use, each once, in order
        self._device = self.predictor.device
        self._beginning = beginning(tokenizer)

    # ---- tokens and templates ---------------------------------------------------------------------------------

    @property
    def eot_token_id(self) -> int | None:
        return next(iter(self.predictor.eos_ids), None)

    @property
    def prefix_token_id(self) -> int:
        """What stands in front of a text that has no context."""
        found = self.predictor.bos_id if self.predictor.bos_id is not None else self.eot_token_id
        if found is None:
            raise UserError(
                "A request without context needs a beginning or end token in front, and the tokenizer of this model "
                "names none; add bos_token or eos_token to its tokenizer_config.json."
            )
        return found

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """The text's tokens after those that begin every text, unless it begins with them already.

        The token that some tokenizers (BERT) put at the end is left out: a continuation is to follow.
        """
        ids = list(self.tokenizer.encode(string, add_special_tokens=False))
        begun = add_special_tokens is None and ids[: len(self._beginning)] == self._beginning
        return ids if add_special_tokens is False or begun else [*self._beginning, *ids]

    # ---- likelihoods ------------------------------------------------------------------------------------------

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        targets = [self._target(*request) for request in requests]
        asked: dict[str, list[Any]] = {}
        for target, (texts, _context, _answer) in zip(targets, requests, strict=True):
            asked.setdefault(target.key, []).append(texts)
        found: dict[str, BoundEstimate] = {}
        for key, estimate in self._estimates(targets, disable_tqdm):
            found[key] = estimate
            for texts in asked[key]:
                self.cache_hook.add_partial("loglikelihood", texts, (estimate.value, estimate.greedy))
        return [(found[t.key].value, found[t.key].greedy) for t in targets]

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Of each text the sum over its windows, each given the tokens before it that still fit.

        The first window follows the beginning token, which is not scored itself. No tokens: log 1.
        """
        from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

        texts: list[list[Target]] = []
        for request in requests:
            ids = self.tok_encode(request.args[0], add_special_tokens=False)
            # The harness counts inputs, which for causal models end one token before the last one scored.
            cuts = get_rolling_token_windows(ids, self.prefix_token_id, self.max_length - 1, context_len=1)
            pairs = [make_disjoint_window(cut) for cut in cuts]
            texts.append([Target((*context, *answer), len(context)) for context, answer in pairs])
        found = dict(self._estimates([t for windows in texts for t in windows], disable_tqdm))
        out = [float(sum(found[t.key].value for t in windows)) for windows in texts]
        for request, value in zip(requests, out, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, value)
        return out

    def _estimates(self, targets: Sequence[Target], silent: bool) -> Iterator[tuple[str, BoundEstimate]]:
        """Each distinct target's estimate, as batches finish."""
        from tqdm import tqdm

        collector = BoundCollector(self.predictor, self._limits([len(t.ids) for t in targets]), self.cost)
        with tqdm(total=len({t.key for t in targets}), desc="Estimating likelihoods", disable=silent) as bar:
            for group in collector.bound(targets, self.draws):
                for key, bound in group.items():
                    # One hidden token leaves nothing to draw: the bound is the likelihood itself, and has no error.
                    error = bound.standard_error * bound.stats.tokens if bound.stats.tokens > 1 else 0.0
                    self.errors[key] = error
                    yield key, BoundEstimate(bound.value, bool(bound.stats.hit.all()), error)
                bar.update(len(group))

    def _limits(self, lengths: Sequence[int]) -> Limits:
        """`batch_size` rows of the longest request are what a forward may hold; `auto` is what suits the machine."""
        limits = default_limits(self.predictor.device.type == "cuda")
        longest = max(lengths, default=1)
        if isinstance(self.batch_size, int):
            return replace(limits, tokens=self.batch_size * longest)
        most = self.max_batch_size
        return limits if most is None else replace(limits, tokens=min(limits.tokens, int(most) * longest))

    # ---- texts ------------------------------------------------------------------------------------------------

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """The sampler's texts. A request made again (`repeats`) is drawn with the next seed, if anything is drawn."""
        from lm_eval.models.utils import postprocess_generated_text
        from tqdm import tqdm

        times: Counter[str] = Counter()
        wants: list[DenoiseWant] = []
        asked: dict[str, list[tuple[int, list[str]]]] = {}
        for number, request in enumerate(requests):
            context, gen_kwargs = request.args
            same = repr((context, sorted(gen_kwargs.items(), key=str)))
            want, stops = self._want(context, gen_kwargs, times[same])
            times[same] += 1
            wants.append(want)
            asked.setdefault(want.key, []).append((number, stops))
        self.samplers |= dict.fromkeys(replace(w.denoising, seed=0) for w in wants)
        widths = [len(w.prompt.ids) + w.denoising.max_new_tokens for w in wants]
        collector = DenoiseCollector(self.predictor, self._limits(widths), self.cost)
        out = [""] * len(requests)
        with tqdm(total=len(asked), desc="Denoising texts", disable=disable_tqdm) as bar:
            for batch in collector.run(wants):
                for key, trace in batch.items():
                    text = self._text([int(i) for i in trace.final])
                    for number, stops in asked[key]:
                        out[number] = postprocess_generated_text(text, stops, None)
                        self.cache_hook.add_partial("generate_until", requests[number].args, out[number])
                bar.update(len(batch))
        return out

    def _text(self, window: list[int]) -> str:
        """Decoded as the harness decodes: special tokens left out, spaces kept. Masks never filled are not text."""
        ids = [i for i in cut_after_end(window, self.predictor.eos_ids) if i != self.predictor.mask_id]
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    def _want(self, context: str, gen_kwargs: Mapping[str, Any], repeat: int) -> tuple[DenoiseWant, list[str]]:
        from lm_eval.models.utils import normalize_gen_kwargs

        said: dict[str, Any] = dict(normalize_gen_kwargs(dict(gen_kwargs), self.max_gen_toks))
        length, stops = (
            _at_least_one("max_gen_toks", said.pop("max_gen_toks")),
            [str(u) for u in said.pop("until") if u],
        )
        if length >= self.max_length:
            raise UserError(
                f"max_gen_toks={length} leaves no room for a prompt: this model reads {self.max_length} tokens; "
                "set a smaller max_gen_toks in eval.lm_eval.simple_evaluate_args.gen_kwargs."
            )
        warmth = said.pop("temperature", 1.0)  # do_sample without a temperature: that of transformers
        warmth = float(warmth) if said.pop("do_sample") else 0.0
        seed = int(said.pop("seed", None) or 0)
        own = self.predictor.canvases.for_texts if isinstance(self.predictor, CanvasPredictor) else {}
        settings = {**own, **sampler_settings(said)}
        drawn = own or warmth > 0 or settings.get("remasking") == "random" or settings.get("stochastic_transfer")
        settings["seed"] = seed + repeat if drawn else 0
        ids = self._cut(self.tok_encode(context), self.max_length - length)
        decoding = Decoding(max_new_tokens=length, do_sample=warmth > 0, temperature=warmth)
        want = text_want(Request(Prompt(tuple(ids)), decoding), settings)
        want.denoising.check("gen_kwargs")
        return want, stops

    # ---- what a reader of the numbers must know ---------------------------------------------------------------

    def told(self) -> dict[str, Any]:
        """What was found out beside the answers, in plain data; NaN has no words in JSON and is null."""
        errors = {key: error if math.isfinite(error) else None for key, error in self.errors.items()}
        return {"errors": errors, "samplers": [asdict(s) for s in self.samplers], "notes": list(self.cost.notes)}

    def take_told(self, told: Mapping[str, Any]) -> None:
        """Adds what was found out elsewhere: in another task, or before a run was interrupted."""
        self.errors |= {key: math.nan if error is None else float(error) for key, error in told["errors"].items()}
        settings: list[dict[str, Any]] = [
            {k: tuple(v) if isinstance(v, list) else v for k, v in s.items()} for s in told["samplers"]
        ]
        self.samplers |= dict.fromkeys(Denoising(**s) for s in settings)
        self.cost.notes += [note for note in told["notes"] if note not in self.cost.notes]

    def forget_told(self) -> None:
        self.errors, self.samplers = {}, {}
        self.cost.notes.clear()

    def settings(self) -> dict[str, Any]:
        """For the manifest: the draws, how far the bound may be off, the samplers in use."""
        out: dict[str, Any] = {}
        if self.errors:
            errors = np.array(list(self.errors.values()))
            known = bool(np.isfinite(errors).all())
            out["bound"] = {
                "draws": self.draws,
                "answers": len(errors),
                "median_standard_error": float(np.median(errors)) if known else None,
                "largest_standard_error": float(errors.max()) if known else None,
            }
        if self.samplers:
            out["samplers"] = [{k: v for k, v in s.settings().items() if k != "seed"} for s in self.samplers]
        return out

    def notes(self) -> list[str]:
        out = list(self.cost.notes)
        if self.errors:
            bound = self.settings()["bound"]
            error = "unknown with one draw"
            if bound["median_standard_error"] is not None:
                error = (
                    f"{bound['median_standard_error']:.3g} in the median, {bound['largest_standard_error']:.3g} at most"
                )
            out.append(
                f"a diffusion model: log-likelihoods are a Monte-Carlo lower bound ({self.draws} draws per answer, the "
                f"same for every model; one look for single tokens), standard error {error}; {GREEDY_NOTE}"
            )
        return out


def beginning(tokenizer: Any) -> list[int]:
    """The tokens a tokenizer puts in front of every text."""
    plain, full = tokenizer.encode("a", add_special_tokens=False), tokenizer.encode("a")
    places = range(len(full) - len(plain) + 1)
    return list(next((full[:k] for k in places if full[k : k + len(plain)] == plain), []))


def context_length(model: Any, tokenizer: Any) -> int:
    """How many tokens the model reads: its table of positions, else what its config or the harness says."""
    from lm_eval.models.utils import resolve_max_length

    table = learned_positions(model)
    if table is not None:
        # Some tables have rows that no token may use (RoBERTa); the tokenizer knows.
        return min(table, int(tokenizer.model_max_length))
    own = getattr(model.config, "max_sequence_length", None)  # LLaDA's name for it
    return int(own) if own else resolve_max_length(model.config, tokenizer)


def sampler_settings(said: Mapping[str, Any]) -> dict[str, Any]:
    """What gen_kwargs say of the sampler. What only causal decoding knows is noted, anything else is a mistake."""
    from transformers import GenerationConfig

    out: dict[str, Any] = {}
    for name, value in said.items():
        if value is None:
            continue
        if name in SAMPLER_SETTINGS:
            out[name] = tuple(value) if isinstance(value, list) else value
        elif hasattr(GenerationConfig(), name):
            log.warning(f"gen_kwargs: {name} means nothing to a diffusion sampler and has no effect")
        else:
            raise unknown_name(
                "setting of gen_kwargs", name, {*SAMPLER_SETTINGS, "until", "max_gen_toks", "temperature"}
            )
    return out


def _at_least_one(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UserError(f"gen_kwargs.{name} must be a whole number from 1, it is {value!r}.")
    return value

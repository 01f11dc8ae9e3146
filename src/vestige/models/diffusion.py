"""Mask predictors: models that guess hidden tokens from both sides, and how each family wants to be asked.

    kind (models/families.py) --mask_predictor--> MaskPredictor --logits--> same-position logits

Row l of what a MaskPredictor returns is about token l, for every family: those that guess one place to the right
(Dream) are shifted here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vestige.errors import UserError
from vestige.models import families
from vestige.models.args import CANVAS, KINDS

if TYPE_CHECKING:
    import torch

# What a predictor's attention masks may look like.
EITHER = "either"  # rows of 0/1 mean "both sides", and 4-D masks are taken as they are (BERT)
ROWS = "rows"  # only rows of 0/1 (LLaDA's own code)
FULL = "full"  # only 4-D masks: rows of 0/1 would mean "left to right" (causal models), or nothing (Dream)


@dataclass
class MaskPredictor:
    """A model that guesses hidden tokens, with what a sampler must know of it."""

    model: Any
    mask_id: int
    eos_ids: tuple[int, ...]
    pad_id: int
    bos_id: int | None = None
    shift: bool = False  # its row l is about token l + 1
    masks: str = EITHER  # EITHER, ROWS or FULL
    cached: bool = False  # a key/value cache may hold what was read
    kind: str = "masked"
    checked: bool = False  # padded batches were compared with single rows (collect/together.py)
    alone: bool = False  # and differ, so that rows go one by one
    forwards: int = 0  # counted where they are spent
    tokens: int = 0

    @property
    def device(self) -> torch.device:
        device: torch.device = self.model.device
        return device

    @property
    def vocab(self) -> int:
        """The number of logits a position has."""
        layer = self.model.get_output_embeddings()
        rows = getattr(layer, "out_features", None) or getattr(layer, "num_embeddings", None)
        return int(rows or self.model.config.vocab_size)

    def logits(
        self, ids: torch.Tensor, keep: torch.Tensor, where: torch.Tensor, shift: bool | None = None
    ) -> torch.Tensor:
        """Same-position logits (n, vocabulary) at flat positions `where` (ascending) of rows `ids` (rows, columns).

        Every token sees every token of its row that `keep` (boolean, same shape) lets be seen.
        """
        import torch

        if self.shift if shift is None else shift:
            # The first column has no left neighbour and speaks for itself, as in dllm.
            where = where - (where % ids.shape[1] != 0).to(where.dtype)
        if self.masks == FULL:
            allowed = keep[:, None, :].expand(-1, ids.shape[1], -1)
            positions = torch.arange(ids.shape[1], device=ids.device).expand(ids.shape[0], -1)
            return self.forward(ids, where, allowed=allowed, positions=positions)
        self._count(ids)
        from vestige.models.attention import logits_at, padding_mask

        mask = keep.long()
        if self.masks == EITHER and (whole := padding_mask(keep, self.model)).ndim == 4:
            mask = whole.expand(-1, -1, ids.shape[1], -1)
        return logits_at(self.model, where, input_ids=ids, attention_mask=mask)

    def forward(
        self,
        ids: torch.Tensor,
        where: torch.Tensor,
        *,
        allowed: torch.Tensor,
        positions: torch.Tensor,
        cache: Any = None,
    ) -> torch.Tensor:
        """The model's own rows, unshifted, under a mask by hand: allowed (rows, queries, keys), boolean.

        With a cache the keys are what it holds, then `ids`; it is extended by them.
        """
        from vestige.models.attention import additive, logits_at

        if self.masks == ROWS:
            raise UserError(
                f"This model ({self.kind}) takes no block masks, so it cannot be sampled block by block; "
                "use sampler=mdlm."
            )
        if "flash" in str(getattr(self.model.config, "_attn_implementation", "")):
            raise UserError(
                "flash_attention_2 takes no masks by hand, which this model needs here; use attention=sdpa."
            )
        self._check_local(allowed.shape[-1])
        self._count(ids)
        # A query that may see nothing (padding) sees itself: softmax needs something, and the result is not read.
        offset = allowed.shape[-1] - allowed.shape[-2]
        lonely = ~allowed.any(dim=-1)
        allowed = allowed.clone()
        allowed.diagonal(offset, 1, 2).logical_or_(lonely)
        more = {"use_cache": cache is not None, "past_key_values": cache} if self.cached else {}
        mask = additive(allowed, self.model.dtype)
        return logits_at(self.model, where, input_ids=ids, attention_mask=mask, position_ids=positions, **more)

    def _count(self, ids: torch.Tensor) -> None:
        self.forwards += 1
        self.tokens += ids.numel()

    def _check_local(self, keys: int) -> None:
        """A mask by hand replaces a model's own; a layer that looks only so far would then look too far."""
        config = self.model.config
        window: Any = getattr(config, "sliding_window", None)
        layers = getattr(config, "layer_types", None)
        local = window is not None and (layers is None or "sliding_attention" in layers)
        if local and keys > window:
            raise UserError(
                f"This model ({config.model_type}) looks only {window} tokens far in some layers, which a mask over "
                f"{keys} tokens would override; use shorter prompts and windows, or sampler=mdlm if it is a masked one."
            )


def mask_predictor(model: Any, tokenizer: Any, kind: str) -> MaskPredictor:
    """A loaded model as a mask predictor of a kind that `diffusion_kind` names."""
    if kind not in KINDS:
        raise UserError(
            f"Model does not have a sampler: this kind of diffusion model ({_type_name(model)}) is not a mask "
            "predictor known here; give LLaDA, Dream, DiffusionGemma, a masked language model or an adapted causal "
            "model."
        )
    if kind == CANVAS:
        return canvas_predictor(model, tokenizer)
    config = getattr(model, "config", None)
    mask_id = _first(getattr(config, "mask_token_id", None), getattr(tokenizer, "mask_token_id", None))
    if mask_id is None:
        settings = {"model_type": getattr(config, "model_type", ""), "architectures": [type(model).__name__]}
        marks = families.marked_family(settings)
        if marks is None:  # read into a class of transformers' own, whose name says nothing of the family
            marks = next((family for family in families.FAMILIES if family.kind == kind and family.native), None)
        mask_id = marks.mask_id if marks and marks.kind == kind else None
    if mask_id is None:
        raise UserError(
            f"Model does not have a sampler: neither the config nor the tokenizer of this model ({_type_name(model)}) "
            "names a mask token; add mask_token to its tokenizer_config.json."
        )
    eos = _ids(
        getattr(tokenizer, "eos_token_id", None),
        getattr(config, "eos_token_id", None),
        getattr(getattr(model, "generation_config", None), "eos_token_id", None),
    ) or _ids(getattr(tokenizer, "sep_token_id", None))
    pad = _first(getattr(tokenizer, "pad_token_id", None), getattr(config, "pad_token_id", None), *eos[:1], mask_id)
    bos = _first(*(getattr(tokenizer, name, None) for name in ("bos_token_id", "cls_token_id")))
    # A causal architecture of transformers' own, however published: masks by hand, and its cache works.
    native = {family.native for family in families.FAMILIES} - {""}
    causal = kind == "adapted" or (kind != "masked" and _type_name(model) in native)
    predictor = MaskPredictor(
        model=model,
        mask_id=int(mask_id),
        eos_ids=eos,
        pad_id=int(pad or 0),
        bos_id=bos,
        shift=bool(getattr(config, "right_shift_logits", kind == "dream")),
        masks=EITHER if kind == "masked" else ROWS if kind == "llada" and not causal else FULL,
        cached=causal and hasattr(model, "prepare_inputs_for_generation"),
        kind=kind,
    )
    if not 0 <= predictor.mask_id < predictor.vocab:
        raise UserError(
            f"The mask token of this model ({type(model).__name__}) would be {mask_id}, but it has only "
            f"{predictor.vocab} tokens; set mask_token_id in its config.json."
        )
    return predictor


def need_predictor(predictor: MaskPredictor | None, name: str) -> MaskPredictor:
    """The predictor, or the sentence users were told to expect."""
    if predictor is None:
        raise UserError(
            f"Model does not have a sampler: '{name}' is not a diffusion language model, and trajectory metrics need "
            "one (LLaDA, Dream, a masked language model); if it is a causal model adapted to diffusion, say so with "
            "model.model_args.diffusion=adapted or a mask_token_id in its config.json."
        )
    return predictor


def _type_name(model: Any) -> str:
    return str(getattr(getattr(model, "config", None), "model_type", "") or type(model).__name__)


def _first(*values: Any) -> Any:
    """The first value there is; 0 is a value."""
    return next((v for v in values if v is not None), None)


def _ids(*values: Any) -> tuple[int, ...]:
    """Single ids and lists of ids as one tuple, each once, in order."""
    lists = [value if isinstance(value, (list, tuple)) else [value] for value in values if value is not None]
    flat = [v for parts in lists for v in parts]
    return tuple(dict.fromkeys(int(v) for v in flat))


# ---- DiffusionGemma: a model that denoises canvases of uniformly drawn tokens. It has no mask token -----------------
# Only its text part is used. The vision part of a checkpoint is not read: a tiny stand-in takes its place while the
# model is built, and is taken out afterwards.

NO_MASK = -1  # no token is "nothing decided yet"
VISION = ("vision_tower.", "embed_vision.")
CANVAS_LENGTH = 256  # where a config.json says nothing
# What transformers takes where a checkpoint's generation_config.json says nothing.
DEFAULTS = {
    "steps_per_block": 48, "entropy_bound": 0.1, "t_max": 0.8, "t_min": 0.4,
    "stability_threshold": 1, "confidence_threshold": 0.005,
}  # fmt: skip


@dataclass(frozen=True)
class Canvases:
    """What can be known of a DiffusionGemma before it is loaded."""

    length: int  # of one canvas, in tokens
    sampling: Mapping[str, Any]

    @property
    def for_texts(self) -> dict[str, Any]:
        """How a text is asked of it: by its own sampler, whatever a metric says of greedy decoding."""
        return {"sampler": CANVAS, "temperature": 0.0, **self.sampling}


@dataclass
class CanvasPredictor(MaskPredictor):
    """A model that refines whole canvases, with what its sampler must know of it."""

    canvas: int = 0  # how many tokens one canvas has
    after_end: int | None = None  # what stands after an end token
    picture_ids: frozenset[int] = frozenset()  # tokens that stand for pictures
    sampling: Mapping[str, Any] = field(default_factory=dict)  # settings of its sampler, as the checkpoint wants them

    @property
    def canvases(self) -> Canvases:
        return Canvases(self.canvas, self.sampling)

    @property
    def inner(self) -> Any:
        """The model without an adapter's wrapping; the adapter's layers stay in it."""
        return self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model

    def refuse_pictures(self, prompts: Iterable[Iterable[int]]) -> None:
        if any(self.picture_ids.intersection(ids) for ids in prompts):
            raise UserError(
                "A prompt holds the token that stands for a picture; DiffusionGemma is used with text only here, so "
                "leave pictures out."
            )


def own_sampling(generation: Mapping[str, Any]) -> dict[str, Any]:
    """A generation_config.json's settings in our names, with transformers' defaults where it says nothing.

    >>> own_sampling({"max_denoising_steps": 12, "sampler_config": {"entropy_bound": 0.2}})["steps_per_block"]
    12
    """
    bound = generation.get("sampler_config") or {}
    bound = bound.get("entropy_bound") if isinstance(bound, Mapping) else getattr(bound, "entropy_bound", None)
    settings = {**generation, "steps_per_block": generation.get("max_denoising_steps"), "entropy_bound": bound}
    return {name: default if settings.get(name) is None else settings[name] for name, default in DEFAULTS.items()}


def canvas_predictor(model: Any, tokenizer: Any) -> CanvasPredictor:
    """A loaded DiffusionGemma, as its own `generate` would use it."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    config, generation = base.config, base.generation_config
    ends = generation.eos_token_id
    if ends is None:  # transformers would then never stop; the tokenizer knows better
        ends = getattr(tokenizer, "eos_token_id", None)
    eos = tuple(int(e) for e in (ends if isinstance(ends, (list, tuple)) else [] if ends is None else [ends]))
    pads = (generation.pad_token_id, getattr(tokenizer, "pad_token_id", None), *eos[:1], 0)
    pictures = (getattr(config, f"{name}_token_id", None) for name in ("image", "boi", "eoi"))
    return CanvasPredictor(
        model=model,
        mask_id=NO_MASK,
        eos_ids=eos,
        pad_id=int(next(p for p in pads if p is not None)),
        bos_id=getattr(tokenizer, "bos_token_id", None),
        kind=CANVAS,
        checked=True,  # the look that compares padded rows with single ones needs a mask token; tests do it here
        canvas=int(config.canvas_length),
        after_end=generation.pad_token_id,
        picture_ids=frozenset(int(p) for p in pictures if p is not None),
        sampling=own_sampling(generation.to_dict()),
    )


def refuse_copy(loaded: Any) -> None:
    """A model that was loaded without its vision part is not saved: the copy would be another kind of checkpoint."""
    predictor = loaded.diffusion
    if isinstance(predictor, CanvasPredictor) and predictor.inner.model.encoder.vision_tower is None:
        raise UserError(
            f"'{loaded.name}' was loaded without its vision part, so a saved copy would lack it; DiffusionGemma can "
            "only be stressed by attacks that save none: on prompts, on answers, and quantise."
        )


def without_vision(directory: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of from_pretrained that build the model with a vision part of a few numbers in place of its own."""
    from transformers import AutoConfig

    config: Any = AutoConfig.from_pretrained(directory)
    tiny = {"hidden_size": 2, "intermediate_size": 2, "num_hidden_layers": 1, "num_attention_heads": 1,
            "num_key_value_heads": 1, "head_dim": 2, "position_embedding_size": 1, "patch_size": 1}  # fmt: skip
    config.vision_config = type(config.vision_config)(**tiny)
    return {**settings, "config": config}


def drop_vision(model: Any, report: Mapping[str, Any]) -> dict[str, list[str]]:
    """Takes the stand-in out of a loaded model; returns the report of loading without the vision part's tensors."""
    encoder = model.model.encoder
    encoder.vision_tower = encoder.embed_vision = None
    names = ("missing_keys", "mismatched_keys", "unexpected_keys")
    by_kind = {n: [k[0] if isinstance(k, tuple) else k for k in report.get(n, ())] for n in names}
    return {n: [k for k in keys if not any(part in k for part in VISION)] for n, keys in by_kind.items()}

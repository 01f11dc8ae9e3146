"""DiffusionGemma: a model that denoises canvases of uniformly drawn tokens. It has no mask token.

Only its text part is used. The vision part of a checkpoint is not read: a tiny stand-in takes its place while the
model is built, and is taken out afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vestige.errors import UserError
from vestige.models.diffusion import MaskPredictor
from vestige.models.families import CANVAS

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
    said = {**generation, "steps_per_block": generation.get("max_denoising_steps"), "entropy_bound": bound}
    return {name: default if said.get(name) is None else said[name] for name, default in DEFAULTS.items()}


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
    found = {n: [k[0] if isinstance(k, tuple) else k for k in report.get(n, ())] for n in names}
    return {n: [k for k in keys if not any(part in k for part in VISION)] for n, keys in found.items()}

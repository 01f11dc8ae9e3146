"""Diffusion families: how each is recognised, and how it wants to be asked. `FAMILIES` is the one table.

    config.json --diffusion_kind--> how it wants to be asked (models/diffusion.py)
    config.json --find_family--> Family, whose files are read into transformers' own class (models/native.py)

A published family that is one of transformers' architectures under other names loads without its authors' code, which
newer versions of transformers no longer run; one that is a renamed Llama is one entry. No model is built here, and
torch is not needed: the command line asks this file what a checkpoint is.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from vestige.errors import UserError

FamilyConfig = Mapping[str, Any]
CANVAS = "diffusion_gemma"  # the kind, and the sampler, of models that refine whole canvases (models/diffusion.py)
KINDS = ("masked", "llada", "dream", "adapted", CANVAS)  # how a model wants to be asked
# What is not computed for such models, and why.
NO_DEPTH = (
    "a depth score patches states of an answer that is read from left to right, and a diffusion model looks both ways "
    "at tokens that are hidden: the score would not say what it knows, so it is not computed for one"
)
NO_LIKELIHOOD = (
    "DiffusionGemma starts from uniformly drawn tokens and has no mask token, so the masked likelihood bound is not "
    "defined for it; its likelihoods are read along its denoising path (vestige eval trajectory-eval)"
)


@dataclass(frozen=True)
class Family:
    """One family: how it is recognised and asked and, where its files are read as another's, how those are mapped."""

    title: str
    model_type: str = ""  # in config.json, in any case; "": its files are loaded as they are
    architecture: str = ""  # in config.json; a config that names another one is another family
    native: str = ""  # the model_type of transformers that it is
    words: tuple[str, ...] = ()  # in model_type or architectures, lower case: what else marks a model of this kind
    kind: str = ""  # how it wants to be asked: one of KINDS, or `other` for none of them
    mask_id: int | None = None  # its mask token, where tokenizers do not name one
    tokenizers: Mapping[str, str] = field(default_factory=dict)  # classes that folders bring as code -> transformers'
    settings: Mapping[str, str] = field(default_factory=dict)  # transformers' name -> published name; empty: the same
    derive: Callable[[FamilyConfig], dict[str, Any]] | None = None  # settings that follow from several published ones
    modules: Mapping[str, str] = field(default_factory=dict)  # published module -> transformers' ({n} is a block)
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # the values of a setting that are covered
    keys: tuple[str, ...] = ()  # what a config.json without a model_type has, where that is how the family is published
    why: str = ""  # of the kind `other`: what keeps its models from being evaluated


def _or(value: Any, other: Any) -> Any:
    return other if value is None else value


def _llada(config: FamilyConfig) -> dict[str, Any]:
    heads, width = config.get("n_heads"), config.get("d_model")
    shared = 1 if config.get("multi_query_attention") else heads
    ratio = config.get("mlp_ratio", 4)
    wide = ratio * width if isinstance(ratio, int | float) and isinstance(width, int) else None
    # Llama knows biases of q, k, v only together with one of o; Qwen2 is Llama with exactly these three.
    native = {"model_type": "qwen2"} if config.get("include_qkv_bias") else {"attention_bias": False}
    return {
        "intermediate_size": _or(config.get("mlp_hidden_size"), int(wide) if wide and wide == int(wide) else wide),
        "num_key_value_heads": _or(config.get("n_kv_heads"), shared),
        "vocab_size": _or(config.get("embedding_size"), config.get("vocab_size")),
        "hidden_act": "silu",
        **native,
    }


LLADA_BLOCK = "model.transformer.blocks.{n}."
BLOCK = "model.layers.{n}."
NO_WINDOW = {"use_sliding_window": (False, None)}

OWN_BLOCKS = "its tokens see their whole block of {size}, under a mask that only its own code makes"

# By words, the first match wins.
FAMILIES = [
    Family("DiffusionGemma", words=("diffusion_gemma", "diffusiongemma"), kind=CANVAS),
    Family("SDAR", words=("sdar",), kind="other", why=OWN_BLOCKS.format(size="4 to 64 tokens")),
    Family("Fast-dLLM v2", words=("fast_dllm",), kind="other", why=OWN_BLOCKS.format(size="32 tokens")),
    Family("LLaDA2", words=("llada2",), kind="other", why=OWN_BLOCKS.format(size="32 tokens"), mask_id=156895),
    Family("BD3LM", words=("bd3lm",), kind="other", why="its own code denoises block by block at a level of noise"),
    Family("MDLM", words=("mdlm",), kind="other", why="its own code asks for a level of noise besides the tokens"),
    Family("RND1", words=("rnd1",), kind="other", why="a mixture of experts that sees both ways in its own code only"),
    Family(
        "SEDD", keys=("graph", "noise", "tokens"), kind="other", why="it predicts ratios of probabilities, not tokens"
    ),
    # The mixture of experts calls itself `llada` too, and has another vocabulary.
    Family("LLaDA-MoE", words=("lladamoe", "llada_moe"), kind="llada", mask_id=156895),
    Family(
        "LLaDA",
        model_type="llada",
        architecture="LLaDAModelLM",
        native="llama",
        words=("llada",),
        kind="llada",
        mask_id=126336,
        settings={
            "hidden_size": "d_model",
            "num_hidden_layers": "n_layers",
            "num_attention_heads": "n_heads",
            "rms_norm_eps": "rms_norm_eps",
            "rope_theta": "rope_theta",
            "max_position_embeddings": "max_sequence_length",
            "tie_word_embeddings": "weight_tying",
            "attention_dropout": "attention_dropout",
        },
        derive=_llada,
        modules={
            "model.transformer.wte": "model.embed_tokens",
            "model.transformer.ln_f": "model.norm",
            "model.transformer.ff_out": "lm_head",
            LLADA_BLOCK + "attn_norm": BLOCK + "input_layernorm",
            LLADA_BLOCK + "q_proj": BLOCK + "self_attn.q_proj",
            LLADA_BLOCK + "k_proj": BLOCK + "self_attn.k_proj",
            LLADA_BLOCK + "v_proj": BLOCK + "self_attn.v_proj",
            LLADA_BLOCK + "attn_out": BLOCK + "self_attn.o_proj",
            LLADA_BLOCK + "ff_norm": BLOCK + "post_attention_layernorm",
            LLADA_BLOCK + "ff_proj": BLOCK + "mlp.gate_proj",
            LLADA_BLOCK + "up_proj": BLOCK + "mlp.up_proj",
            LLADA_BLOCK + "ff_out": BLOCK + "mlp.down_proj",
        },
        # None stands where the published code's own default is covered, so that the setting may be absent.
        only={
            "block_type": ("llama",),
            "rope": (True,),
            "layer_norm_type": ("rms",),
            "activation_type": ("silu",),
            "alibi": (False, None),
            "attention_layer_norm": (False, None),
            "input_emb_norm": (False, None),
            "scale_logits": (False, None),
            "block_group_size": (1, None),
            "include_bias": (False, None),
            "bias_for_layer_norm": (False, None),
            "layer_norm_with_affine": (True, None),
            "clip_qkv": (None,),
        },
    ),
    Family(
        "Dream",
        model_type="Dream",
        architecture="DreamModel",
        native="qwen2",
        words=("dream",),
        kind="dream",
        mask_id=151666,
        tokenizers={"DreamTokenizer": "Qwen2Tokenizer"},
        only=NO_WINDOW,
    ),
    Family("a2d-llama", "a2d-llama", "A2DLlamaLMHeadModel", "llama", ("a2d",), "adapted"),
    Family("a2d-qwen2", "a2d-qwen2", "A2DQwen2LMHeadModel", "qwen2", ("a2d",), "adapted", only=NO_WINDOW),
    Family("a2d-qwen3", "a2d-qwen3", "A2DQwen3LMHeadModel", "qwen3", ("a2d",), "adapted", only=NO_WINDOW),
    Family("another diffusion model", words=("diffusion",), kind="other"),
]
OURS = tuple(FAMILIES)


def register_family(family: Family) -> Family:
    """Enters a plug-in's family, before ours; a plug-in that is loaded again replaces its own."""
    if family.title in {ours.title for ours in OURS}:
        raise UserError(f"A plug-in registers a family '{family.title}', which vestige has itself; rename it.")
    FAMILIES[:] = [family, *(other for other in FAMILIES if other.title != family.title)]
    return family


def described(family: Family) -> str:
    """All that a record says, for the name of what is computed with it; functions by their source."""
    said = {f.name: getattr(family, f.name) for f in fields(family)}
    if family.derive is not None:
        said["derive"] = inspect.getsource(family.derive)
    return json.dumps(said, sort_keys=True, default=str)


def find_family(config: FamilyConfig) -> Family | None:
    """The family whose files these are; None for whatever transformers, or foreign code, loads as it is.

    >>> find_family({"model_type": "llada", "architectures": ["LLaDAModelLM"]}).title
    'LLaDA'
    >>> find_family({"model_type": "llada", "architectures": ["LLaDAMoEModelLM"]}) is None
    True
    """
    heads = config.get("architectures") or []
    for family in FAMILIES:
        if family.model_type and str(config.get("model_type", "")).lower() == family.model_type.lower():
            return family if not heads or family.architecture in heads else None
    return None


def tokenizer_class(said: str, default: str) -> str:
    """The class of transformers that a tokenizer class of a published family is."""
    for family in FAMILIES:
        if said in family.tokenizers:
            return family.tokenizers[said]
    return default


def marked(family: Family, config: FamilyConfig) -> bool:
    """Do model_type or architectures say that a model is of this kind, in any case? Or, without them, its settings?"""
    if family.keys and not config.get("model_type"):
        return all(key in config for key in family.keys)
    names = "\n".join([str(config.get("model_type") or ""), *map(str, config.get("architectures") or [])]).lower()
    return any(map(names.__contains__, family.words))


def marked_family(config: FamilyConfig) -> Family | None:
    """The first family whose marks a config.json bears.

    >>> marked_family({"model_type": "llada2_moe", "architectures": ["LLaDA2MoeModelLM"]}).title
    'LLaDA2'
    """
    return next((family for family in FAMILIES if marked(family, config)), None)


def diffusion_kind(config: FamilyConfig) -> str | None:
    """Which kind of mask predictor a config.json describes; None for any other model.

    `other` is a diffusion model that nothing here can sample from. A causal model counts as adapted when its config
    says so: by its architecture's name, or by a `mask_token_id`.

    >>> diffusion_kind({"model_type": "bert", "architectures": ["BertForMaskedLM"]})
    'masked'
    >>> diffusion_kind({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}) is None
    True
    >>> diffusion_kind({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "mask_token_id": 4})
    'adapted'
    """
    heads = list(map(str, config.get("architectures") or []))
    family = marked_family(config)
    if family is not None:
        return family.kind
    if config.get("is_encoder_decoder"):
        return None
    ends = set()
    for head in heads:
        causal = head.endswith(("CausalLM", "LMHeadModel"))
        ends.add("masked" if head.endswith("MaskedLM") else "causal" if causal else "other")
    if ends == {"masked"}:
        return "masked"
    return "adapted" if (not heads or "causal" in ends) and config.get("mask_token_id") is not None else None


def plugged_family(config: FamilyConfig) -> str:
    """What a plug-in says of a model, as a part of the model's name; "" where no plug-in has a say.

    Without it, evidence made under one definition of a family would be taken for evidence under another.
    """
    type_ = str(config.get("model_type", "")).lower()
    for family in FAMILIES:
        named = family.model_type and family.model_type.lower() == type_
        if family not in OURS and (named or marked(family, config)):
            return described(family)
    return ""


def auto_class(kind: str | None, config: FamilyConfig) -> str:
    """The transformers class that loads a kind."""
    if kind == "masked":
        return "AutoModelForMaskedLM"
    if kind == CANVAS:
        return "AutoModelForImageTextToText"
    code = config.get("auto_map") or {}
    if kind in ("llada", "dream", "adapted") and "AutoModelForCausalLM" not in code and "AutoModel" in code:
        return "AutoModel"
    return "AutoModelForCausalLM"


def has_pictures(config: FamilyConfig) -> bool:
    return config.get("model_type") == CANVAS and bool(config.get("vision_config"))

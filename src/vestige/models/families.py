"""Diffusion families: how each is recognised and asked, and how the published ones become a model of transformers'.

    config.json --diffusion_kind--> how it wants to be asked (models/diffusion.py)
    config.json --find_family--> Family --native_config--> a config of transformers' own class
    tensors of the files --renamings--> its parameters (while they are read: no tensor is copied)

`FAMILIES` is the one table. A published family that is one of transformers' architectures under other names loads
without its authors' code, which newer versions of transformers no longer run; one that is a renamed Llama is one entry.
What an entry does not cover is refused by name, because a model with a setting that was passed over would compute other
numbers without a word.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any

from vestige.errors import UserError
from vestige.models.quiet import first_line

FamilyConfig = Mapping[str, Any]
# Settings of a published config that say nothing of what the model computes, or that would call for its code.
NOT_OURS = ("model_type", "architectures", "auto_map", "transformers_version", "torch_dtype", "_name_or_path")
# Settings that both sides call by the same name where a family has names of its own for the rest.
COMMON = ("eos_token_id", "bos_token_id", "pad_token_id", "mask_token_id", "use_cache", "quantization_config")
# What must be a whole number above zero, by transformers' names; a negative depth would build an empty model.
SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
)


@dataclass(frozen=True)
class Family:
    """One family: how it is recognised and asked and, where its files are read as another's, how those are mapped."""

    title: str
    model_type: str = ""  # in config.json, in any case; "": its files are loaded as they are
    architecture: str = ""  # in config.json; a config that names another one is another family
    native: str = ""  # the model_type of transformers that it is
    words: tuple[str, ...] = ()  # in model_type or architectures, lower case: what else marks a model of this kind
    kind: str = ""  # how it wants to be asked: one of diffusion.KINDS, or `other` for none of them
    mask_id: int | None = None  # its mask token, where tokenizers do not name one
    tokenizers: Mapping[str, str] = field(default_factory=dict)  # classes that folders bring as code -> transformers'
    settings: Mapping[str, str] = field(default_factory=dict)  # transformers' name -> published name; empty: the same
    derive: Callable[[FamilyConfig], dict[str, Any]] | None = None  # settings that follow from several published ones
    modules: Mapping[str, str] = field(default_factory=dict)  # published module -> transformers' ({n} is a block)
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # the values of a setting that are covered


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

# By words, the first match wins.
FAMILIES = [
    Family("DiffusionGemma", words=("diffusion_gemma", "diffusiongemma"), kind="diffusion_gemma"),
    Family("SDAR", words=("sdar",), kind="other"),
    Family("MDLM", words=("mdlm",), kind="other"),
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


def tokenizer_class(said: str, default: str) -> str:
    """The class of transformers that a tokenizer class of a published family is."""
    return next((f.tokenizers[said] for f in FAMILIES if said in f.tokenizers), default)


def marked(family: Family, names: Iterable[str]) -> bool:
    """Do model_type and architectures (lower case) say that a model is of this kind?"""
    return any(word in name for name in names for word in family.words)


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


def native_settings(family: Family, config: FamilyConfig, name: str) -> dict[str, Any]:
    """The config of transformers' own class, as a dict; what the mapping does not cover is refused."""
    for setting, covered in family.only.items():
        if config.get(setting) not in covered:
            raise _not_covered(family, setting, config, covered, name)
    if family.settings:
        needed = [p for p in family.settings.values() if p not in config and p != "attention_dropout"]
        if needed:
            raise UserError(f"The config.json of '{name}' lacks {', '.join(needed)}; copy or download it again.")
        out = {ours: config[theirs] for ours, theirs in family.settings.items() if theirs in config}
        out |= {key: config[key] for key in COMMON if key in config}
        out.setdefault("bos_token_id", None)  # otherwise Llama's own, which is some other token here
    else:
        out = {key: value for key, value in config.items() if key not in NOT_OURS}
    out |= {"model_type": family.native} | (family.derive(config) if family.derive else {})
    out["dtype"] = config.get("dtype") or config.get("torch_dtype")
    _check_sizes(family, out, name)
    return out


def understood(config: FamilyConfig, name: str = "") -> FamilyConfig:
    """A config.json by transformers' names, whatever its family calls them."""
    family = find_family(config)
    return native_settings(family, config, name) if family else config


def native_config(family: Family, config: FamilyConfig, name: str) -> Any:
    """The same as an object of transformers' class."""
    import transformers
    from huggingface_hub.errors import StrictDataclassError

    settings = native_settings(family, config, name)
    kind = settings.pop("model_type")
    try:
        return transformers.AutoConfig.for_model(kind, **settings)
    except (StrictDataclassError, AttributeError, KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise UserError(f"The config.json of '{name}' ({family.title}) cannot be used: {first_line(error)}") from None


def _check_sizes(family: Family, settings: dict[str, Any], name: str) -> None:
    for key in SIZES:
        value = settings.get(key)
        if value is None and key in ("num_key_value_heads", "max_position_embeddings"):
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            theirs = family.settings.get(key, key)
            raise UserError(
                f"The config.json of '{name}' gives {theirs} as {value!r}, where a whole number above 0 should be; "
                "copy or download it again."
            )
    heads, shared = settings["num_attention_heads"], settings.get("num_key_value_heads") or 1
    if heads % shared:
        raise UserError(
            f"The config.json of '{name}' shares {shared} key/value heads among {heads} heads, which does not come "
            "out even; copy or download it again."
        )


def _not_covered(family: Family, setting: str, config: FamilyConfig, covered: tuple[Any, ...], name: str) -> UserError:
    value = repr(config[setting]) if setting in config else "missing"
    wanted = ", ".join(repr(v) for v in covered if v is not None) or "null"
    return UserError(
        f"'{name}' is a {family.title} model whose {setting} is {value} in its config.json; only {wanted} is "
        f"covered by loading it as {family.native}, so its numbers would be wrong."
    )


# ---- names of tensors -------------------------------------------------------------------------------------------


def renamings(family: Family) -> dict[str, str] | None:
    """Patterns of published tensor names and what replaces them, as from_pretrained takes them (key_mapping).

    >>> renamings(find_family({"model_type": "llada"}))["^model\\\\.transformer\\\\.ff_out"]
    'lm_head'
    """
    return {_pattern(a): b.replace("{n}", r"\1") for a, b in family.modules.items()} or None


def native_name(family: Family, name: str) -> str:
    """transformers' name of a published tensor or module; names that the table lacks stay as they are."""
    return _renamed(name, tuple(family.modules.items()))


def published_name(family: Family, name: str) -> str:
    """The published name of a tensor or module of the loaded model.

    >>> published_name(find_family({"model_type": "llada"}), "model.layers.3.mlp.down_proj.weight")
    'model.transformer.blocks.3.ff_out.weight'
    """
    return _renamed(name, tuple((b, a) for a, b in family.modules.items()))


def _renamed(name: str, pairs: Iterable[tuple[str, str]]) -> str:
    for source, target in pairs:
        found = _compiled(source).match(name)
        if found:
            return found.expand(target.replace("{n}", r"\1")) + name[found.end() :]
    return name


@cache
def _compiled(source: str) -> re.Pattern[str]:
    return re.compile(_pattern(source) + r"(?!\w)")


def _pattern(source: str) -> str:
    return "^" + r"(\d+)".join(re.escape(part) for part in source.split("{n}"))


def _or(value: Any, other: Any) -> Any:
    return other if value is None else value

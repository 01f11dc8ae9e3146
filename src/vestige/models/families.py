"""Diffusion families: how each is recognised, and how it wants to be asked. `FAMILIES` is the one table.

    config.json --diffusion_kind--> how it wants to be asked (models/diffusion.py)
    config.json --find_family--> Family, whose files are read into transformers' own class

A published family that is one of transformers' architectures under other names loads without its authors' code, which
newer versions of transformers no longer run; one that is a renamed Llama is one entry. No model is built here, and
torch is not needed: the command line asks this file what a checkpoint is.
"""

from __future__ import annotations

import copy
import inspect
import json
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

from vestige.errors import UserError
from vestige.io import make_directory, write_file
from vestige.models.args import CANVAS
from vestige.models.foreign import error_sentence
from vestige.models.locate import SMALL_FILES
from vestige.secrets import without_secrets

FamilyConfig = Mapping[str, Any]
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
    values = {f.name: getattr(family, f.name) for f in fields(family)}
    if family.derive is not None:
        values["derive"] = inspect.getsource(family.derive)
    return json.dumps(values, sort_keys=True, default=str)


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


def tokenizer_class(name: str, default: str) -> str:
    """The class of transformers that a tokenizer class of a published family is."""
    for family in FAMILIES:
        if name in family.tokenizers:
            return family.tokenizers[name]
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


# ---- A family's config.json and tensors by the names of transformers' own class -------------------------------------
#
#     Family, config.json --native_config--> a config of transformers' class
#     tensors of the files --renamings--> its parameters (while they are read: no tensor is copied)
#
# What an entry of FAMILIES does not cover is refused by name, because a model with a setting that was passed over would
# compute other numbers without a word.

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
        raise UserError(
            f"The config.json of '{name}' ({family.title}) cannot be used: {error_sentence(error)}"
        ) from None


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
        match = _compiled(source).match(name)
        if match:
            return match.expand(target.replace("{n}", r"\1")) + name[match.end() :]
    return name


@cache
def _compiled(source: str) -> re.Pattern[str]:
    return re.compile(_pattern(source) + r"(?!\w)")


def _pattern(source: str) -> str:
    return "^" + r"(\d+)".join(re.escape(part) for part in source.split("{n}"))


# ---- A family that was read into transformers' own class, written again in its published layout ---------------------

SHARD = "5GB"  # as transformers cuts them
WRITTEN = ("config.json", "adapter_config.json", "*.index.json")  # of the small files: ours, not the original's


@dataclass(frozen=True)
class Origin:
    """The published files that a loaded model came from."""

    family: Family
    config: Mapping[str, Any]
    directory: Path


def save_published(model: Any, origin: Origin, directory: Path, shard: str = SHARD) -> None:
    """Config, tensors, tokenizer files and code as they were published, with this model's numbers.

    `directory`: a folder of our own. What reads the original reads this: transformers' names and settings are nowhere
    in it.
    """
    if getattr(model, "is_quantized", False):
        raise UserError(
            f"A {origin.family.title} model can only be saved in its published layout unquantised; leave "
            "`quantization` out."
        )
    make_directory(directory)
    _copy_files(origin.directory, directory)
    if hasattr(model, "peft_config"):
        _write_adapter(model, origin.family, directory)
        return
    write_file(directory / "config.json", (json.dumps(_config(model, origin), indent=2) + "\n").encode())
    _write_tensors({published_name(origin.family, k): v for k, v in _tensors(model).items()}, directory, shard)


def _write_adapter(model: Any, family: Family, directory: Path) -> None:
    """The adapter alone, under the names that the published code gives its modules.

    The configuration lists every module by its full published name: short ones can mean two things there (`ff_out` is
    an MLP's output and the head).
    """
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    prefix = "base_model.model."
    tensors = get_peft_model_state_dict(model)
    named = {prefix + published_name(family, key.removeprefix(prefix)): value for key, value in tensors.items()}
    save_file({key: value.contiguous() for key, value in named.items()}, directory / "adapter_model.safetensors")
    config = copy.deepcopy(model.peft_config[model.active_adapter])
    config.target_modules = {published_name(family, name) for name in model.targeted_module_names}
    config.inference_mode = True
    config.save_pretrained(directory)


def _config(model: Any, origin: Origin) -> dict[str, Any]:
    """The published config; only what training may change is of this model: the rows of its table and the dtype."""
    config = without_secrets(dict(origin.config))
    dtype = str(model.dtype).removeprefix("torch.")
    config["torch_dtype" if "torch_dtype" in config else "dtype"] = dtype
    rows = model.get_input_embeddings().num_embeddings
    for key in ("embedding_size", "vocab_size"):
        if config.get(key) is not None:
            if config[key] != rows:
                config[key] = rows
            break
    return config


def _tensors(model: Any) -> dict[str, Any]:
    """Every tensor once: a head that is the embedding table is not written, as its config says that it is tied."""
    out = dict(model.state_dict())
    head, table = model.get_output_embeddings(), model.get_input_embeddings()
    if head is not None and head.weight is table.weight:
        out.pop("lm_head.weight", None)
    return out


def _write_tensors(tensors: Mapping[str, Any], directory: Path, shard: str) -> None:
    from huggingface_hub import split_torch_state_dict_into_shards
    from safetensors.torch import save_file

    split = split_torch_state_dict_into_shards(
        dict(tensors), filename_pattern="model{suffix}.safetensors", max_shard_size=shard
    )
    for file, names in split.filename_to_tensors.items():
        save_file({n: tensors[n].contiguous() for n in names}, directory / file, metadata={"format": "pt"})
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        path = directory / "model.safetensors.index.json"
        write_file(path, (json.dumps(index, indent=2, sort_keys=True) + "\n").encode())


def _copy_files(source: Path, directory: Path) -> None:
    """Tokenizer, chat template, generation settings and code, byte for byte."""
    for file in sorted(source.iterdir()):
        copied = any(fnmatch(file.name, p) for p in SMALL_FILES) and not any(fnmatch(file.name, p) for p in WRITTEN)
        if copied and file.is_file():
            shutil.copyfile(file, directory / file.name)

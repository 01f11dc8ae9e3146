"""A published family's files as a model of transformers' own class: its settings and its tensors by their names there.

    Family, config.json --native_config--> a config of transformers' class
    tensors of the files --renamings--> its parameters (while they are read: no tensor is copied)

What an entry of models/families.py does not cover is refused by name, because a model with a setting that was passed
over would compute other numbers without a word. Callers: load.py, checks.py, adapters.py, tokenizer.py and publish.py
of this room, costs/depth.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Any

from vestige.errors import UserError
from vestige.models.families import Family, FamilyConfig, find_family
from vestige.models.reading import first_line

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

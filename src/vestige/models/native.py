"""A published family's files as a model of transformers' own class: its settings and its tensors by their names there.

    Family, config.json --native_config--> a config of transformers' class
    tensors of the files --renamings--> its parameters (while they are read: no tensor is copied)

What an entry of models/families.py does not cover is refused by name, because a model with a setting that was passed
over would compute other numbers without a word. Callers: load.py, checks.py, adapters.py, tokenizer.py and publish.py
of this room, costs/depth.py.
"""

from __future__ import annotations

import copy
import json
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

from vestige.errors import UserError
from vestige.io import make_directory, write_file
from vestige.models.families import Family, FamilyConfig, find_family
from vestige.models.locate import SMALL_FILES, Place
from vestige.models.reading import first_line, quiet, refuse_gaps, some
from vestige.secrets import without_secrets

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
        kept = any(fnmatch(file.name, p) for p in SMALL_FILES) and not any(fnmatch(file.name, p) for p in WRITTEN)
        if kept and file.is_file():
            shutil.copyfile(file, directory / file.name)


# ---- PEFT adapters: put on their base, and translated where they were trained on the published code of a family -----
# Such an adapter calls modules by the published names (`blocks.3.ff_out`), in its tensors and in its configuration.
# Which modules its configuration means is asked of peft itself, with the published names: suffixes, patterns and ranges
# of layers keep their meaning, and what they picked is handed on as full names.

# Settings of adapters that name modules in ways which are not translated.
UNTRANSLATED = ("target_parameters", "layer_replication", "trainable_token_indices", "megatron_config")


def attach(model: Any, place: Place, family: Family | None) -> tuple[Any, list[str]]:
    """Put the adapter on its base and leave it separate, since merging rounds in low precision."""
    from peft import PeftModel, get_peft_model_state_dict, load_peft_weights

    assert place.base is not None
    with quiet():
        saved = load_peft_weights(str(place.directory), device="cpu")
        more: dict[str, Any] = {}
        # An adapter that was trained on the native model does not carry the published names.
        if family is not None and any(native_name(family, _plain(key)) != _plain(key) for key in saved):
            more = {"config": _translated(model, place, family), "key_mapping": renamings(family)}
            saved = load_peft_weights(str(place.directory), device="cpu", key_mapping=renamings(family))
        names = set(saved)
        model = PeftModel.from_pretrained(model, str(place.directory), is_trainable=False, **more)
        expected = set(get_peft_model_state_dict(model, save_embedding_layers=False))
    refuse_gaps(place.name, expected - names, hint="check it against its adapter_config.json")
    # An adapter may also carry whole layers of the base (resized embeddings).
    own = {name.replace(".base_layer.", ".") for name in model.get_base_model().state_dict()}
    stray = sorted(key for key in names - expected if _plain(key) not in own)
    if stray:
        raise UserError(
            f"Some tensors of the adapter '{place.name}' fit nowhere in '{place.base.name}': "
            f"{some(stray)}; check base_model_name_or_path in its adapter_config.json."
        )
    return model, [f"adapter '{place.name}' on base '{place.base.name}', not merged."]


def _plain(key: str) -> str:
    return key.removeprefix("base_model.model.").replace(".base_layer.", ".")


def _translated(model: Any, place: Place, family: Family) -> Any:
    """The adapter's configuration by transformers' names of the modules."""
    from peft import PeftConfig
    from peft.tuners.tuners_utils import check_target_module_exists

    config: Any = PeftConfig.from_pretrained(str(place.directory))
    stuck = [key for key in UNTRANSLATED if getattr(config, key, None)]
    if stuck:
        raise UserError(
            f"The adapter '{place.name}' sets {stuck[0]}, which cannot be translated from the names of "
            f"{family.title}'s published code; merge it with that code and give the merged model."
        )
    names = {published_name(family, name): name for name, _ in model.named_modules() if name}
    targets = [
        ours
        for theirs, ours in names.items()
        if check_target_module_exists(config, theirs) is True
        or isinstance(check_target_module_exists(config, theirs), re.Match)
    ]
    for pattern in ("rank_pattern", "alpha_pattern"):
        if getattr(config, pattern, None):
            setattr(config, pattern, _by_full_name(getattr(config, pattern), names))
    if getattr(config, "modules_to_save", None):
        kept = config.modules_to_save
        config.modules_to_save = [o for t, o in names.items() if any(t == m or t.endswith(f".{m}") for m in kept)]
    config.target_modules = set(targets)
    for setting in ("exclude_modules", "layers_to_transform", "layers_pattern"):
        if hasattr(config, setting):
            setattr(config, setting, None)
    return config


def _by_full_name(patterns: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """Ranks or scales by the full native names of the modules that their patterns pick; the first pattern wins."""
    out = {}
    for theirs, ours in names.items():
        for pattern, value in patterns.items():
            if re.match(rf"(.*\.)?({pattern})$", theirs):
                out[re.escape(ours)] = value
                break
    return out

"""A family that was read into transformers' own class, written again in its published layout."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from vestige.errors import UserError
from vestige.installing import filling, save_pretrained
from vestige.models.families import Family
from vestige.models.locate import SMALL_FILES
from vestige.models.native import published_name
from vestige.secrets import without_secrets
from vestige.writing import copy_file, write_bytes

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

    What reads the original reads this: transformers' names and settings are nowhere in it.
    """
    if getattr(model, "is_quantized", False):
        raise UserError(
            f"A {origin.family.title} model can only be saved in its published layout unquantised; leave "
            "`quantization` out."
        )
    with filling(directory) as made:
        _copy_files(origin.directory, made)
        if hasattr(model, "peft_config"):
            _write_adapter(model, origin.family, made)
            return
        write_bytes(made / "config.json", (json.dumps(_config(model, origin), indent=2) + "\n").encode())
        _write_tensors({published_name(origin.family, k): v for k, v in _tensors(model).items()}, made, shard)


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
    save_pretrained(directory, config)


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
        write_bytes(path, (json.dumps(index, indent=2, sort_keys=True) + "\n").encode())


def _copy_files(source: Path, directory: Path) -> None:
    """Tokenizer, chat template, generation settings and code, byte for byte."""
    for file in sorted(source.iterdir()):
        kept = any(fnmatch(file.name, p) for p in SMALL_FILES) and not any(fnmatch(file.name, p) for p in WRITTEN)
        if kept and file.is_file():
            copy_file(file, directory / file.name)

"""Settings in a checkpoint's own files that no library could follow: each in one sentence, before anything is loaded.

transformers finds these deep in its constructors, in its own words, or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vestige.errors import UserError, did_you_mean, unknown_name
from vestige.models.locate import Place, read_json

ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function")
ATTENTION = ("attn_implementation", "_attn_implementation", "_attn_implementation_internal")
CONTEXT = ("max_position_embeddings", "n_positions", "max_sequence_length", "n_ctx", "seq_length")
PLAIN = {"F64", "F32", "F16", "BF16"}
MARKS = ("scale", "scale_inv", "absmax", "quant_map", "scb", "zeros", "zero_point", "qweight", "scales", "qzeros")


def check_config(place: Place, names: list[str], trusted: bool) -> None:
    """Refuses what config.json and generation_config.json of a checkpoint say wrongly; `names`: its weight files.

    `trusted`: the checkpoint brings its own code, which may know more activations and positions than transformers.
    """
    config = place.config
    for part in (config, *(v for k, v in config.items() if k.endswith("_config") and isinstance(v, Mapping))):
        _check_attention(place.name, part)
        if not trusted:
            _check_activation(place.name, part)
            _check_rope(place.name, part)
    if isinstance(config.get("quantization_config"), Mapping):
        _check_quantised(place, config["quantization_config"], names)
    _check_generation(place.directory / "config.json", config)
    path = place.directory / "generation_config.json"
    if path.is_file():
        _check_generation(path, read_json(path))


def _check_attention(name: str, config: Mapping[str, Any]) -> None:
    for key in ATTENTION:
        said = config.get(key)
        for kernel in said.values() if isinstance(said, Mapping) else [said]:
            if kernel is not None and (not isinstance(kernel, str) or "/" in kernel):
                raise UserError(
                    f"The config.json of '{name}' sets {key} to {kernel!r}, which is code to be fetched from a hub; "
                    "remove that line, or name the attention yourself (attn_implementation=sdpa)."
                )


def _check_activation(name: str, config: Mapping[str, Any]) -> None:
    from transformers.activations import ACT2FN

    for key in ACTIVATIONS:
        said = config.get(key)
        if said is not None and (not isinstance(said, str) or said not in ACT2FN):
            near = did_you_mean(str(said), ACT2FN)
            raise UserError(f"The config.json of '{name}': transformers has no {key} called {said!r}.{near}")


def _check_rope(name: str, config: Mapping[str, Any]) -> None:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    known = {*ROPE_INIT_FUNCTIONS, "default", "mrope", "su"}  # mrope, su: published configs say so, and it is renamed
    for key in ("rope_scaling", "rope_parameters"):
        said = config.get(key)
        if said is None:
            continue
        if not isinstance(said, Mapping):
            raise UserError(f"The config.json of '{name}': {key} should be an object, it is {said!r}; save it again.")
        for part in (said, *(v for v in said.values() if isinstance(v, Mapping))):
            kind = part.get("rope_type", part.get("type"))
            if kind is not None and (not isinstance(kind, str) or kind not in known):
                where = f"rope_type in the config.json of '{name}':"
                raise unknown_name(where, str(kind), known, "A newer transformers may know it.")


def _check_quantised(place: Place, said: Mapping[str, Any], names: list[str]) -> None:
    """A quantization_config promises packed weights. Read as such, plain ones are refused or rounded unasked."""
    files = [place.directory / name for name in names if name.endswith(".safetensors")]
    tensors = [tensor for file in files for tensor in _tensors(file)]
    if tensors and all(dtype in PLAIN and not _is_mark(name) for name, dtype in tensors):
        method = said.get("quant_method", "an unnamed method")
        raise UserError(
            f"The config.json of '{place.name}' says that its weights are quantised ({method}), but they are plain "
            f"{tensors[0][1]} tensors; remove quantization_config from it (and use quantization=4bit to quantise them)."
        )


def _is_mark(name: str) -> bool:
    """Whether a tensor's name is that of a scale or packed weights."""
    last = name.lower().rsplit(".", 1)[-1]
    return last.endswith(MARKS) or ".quant_state." in name.lower()


def _tensors(path: Path) -> Iterator[tuple[str, str]]:
    """The tensors of a safetensors file and their types, from its header."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    for name, facts in header.items():
        if name != "__metadata__":
            yield name, str(facts["dtype"])


def _check_generation(path: Path, config: Mapping[str, Any]) -> None:
    for key in ("eos_token_id", "bos_token_id", "pad_token_id"):
        said = config.get(key)
        for token in said if isinstance(said, list) else [said]:
            if token is not None and (not isinstance(token, int) or isinstance(token, bool)):
                raise UserError(f"'{path}': {key} must be a token's number or a list of them, it is {said!r}.")
    check_penalty(config.get("repetition_penalty"), f"'{path}'")


def check_penalty(said: Any, where: str) -> None:
    """A penalty multiplies or divides logits: 0 has no meaning, a negative one would turn dislikes into likes."""
    if said is None:
        return
    if not isinstance(said, (int, float)) or isinstance(said, bool) or not 0 < said < float("inf"):
        raise UserError(f"{where}: repetition_penalty must be a number above 0 (1 is none), it is {said!r}.")


def context_length(config: Mapping[str, Any]) -> int | None:
    """How many tokens a model was made to read, as its configuration says; None when it does not."""
    for part in (config, *(v for k, v in config.items() if k == "text_config" and isinstance(v, Mapping))):
        for key in CONTEXT:
            said = part.get(key)
            if isinstance(said, int) and not isinstance(said, bool) and said > 0:
                return said
    return None

"""What can be known to be wrong before a model is loaded, told from its files in one sentence.

First the kind of checkpoint and its weight files; below, settings in its own files that no library could follow:
transformers finds those deep in its constructors, in its own words, or not at all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vestige.errors import UserError, how_to_install
from vestige.models.args import ModelArgs
from vestige.models.families import auto_class, diffusion_kind, find_family, marked_family, native_settings
from vestige.models.foreign import quiet
from vestige.models.locate import Place, listing, read_json, weight_names

# Heads that do not predict the next token, as they appear in a config's `architectures`.
OTHER_HEADS = re.compile("MaskedLM|Classification|QuestionAnswering|MultipleChoice")


def check_place(place: Place, args: ModelArgs) -> None:
    """Refuse what cannot be loaded, or would load as something else than the user meant."""
    if place.kind == "adapter":
        assert place.base is not None
        _check_adapter(place)
        check_weights(place, args)
        return check_place(place.base, args)
    if place.kind == "gguf":
        return _check_gguf(place, args)
    config = place.config
    check_architecture(place.name, config, args.trust_remote_code, args.diffusion)
    stored = config.get("quantization_config")
    if args.quantization and stored:
        method = stored.get("quant_method", "an unnamed method")
        raise UserError(f"'{place.name}' is already quantised ({method}); leave `quantization` out.")
    if args.quantization:
        need_package("bitsandbytes", "quant", f"{args.quantization} quantisation")
    check_weights(place, args)
    return check_config(place, weight_names(place.directory, False, args))


def check_architecture(name: str, config: dict[str, Any], trusted: bool, diffusion: str | None = None) -> None:
    """The model must predict tokens, the next or hidden ones, with code that is here or that the user trusts."""
    family = diffusion or diffusion_kind(config)
    if family is not None:
        return _check_diffusion(name, config, trusted, family)
    kind = str(config.get("model_type", ""))
    heads = list(map(str, config.get("architectures") or []))
    other = list(filter(OTHER_HEADS.search, heads))
    if config.get("is_encoder_decoder") or (heads and len(other) == len(heads)):
        raise UserError(f"'{name}' is not a causal language model ({', '.join(heads) or kind}); give one that is.")
    code = config.get("auto_map") or {}
    if _has_head(kind, "AutoModelForCausalLM") or (trusted and "AutoModelForCausalLM" in code):
        return None
    if "AutoModelForCausalLM" in code:
        raise UserError(
            f"'{name}' brings its own Python code; read it, and if you trust it set trust_remote_code=true."
        )
    if _has_head(kind):
        raise UserError(f"'{name}' is not a causal language model ({', '.join(heads) or kind}); give one that is.")
    if not kind:
        raise UserError(
            f"The config.json of '{name}' has no model_type, so its architecture is unknown; save the checkpoint again."
        )
    raise _unknown(name, kind)


def _check_diffusion(name: str, config: dict[str, Any], trusted: bool, family: str) -> None:
    kind = str(config.get("model_type") or "")
    if family == "other":
        marks = marked_family(config)
        known = f"of the family {marks.title}: {marks.why}" if marks and marks.why else f"({kind}) of an unknown family"
        raise UserError(
            f"Model does not have a sampler: '{name}' is a diffusion language model {known}. LLaDA, Dream, "
            "DiffusionGemma, masked language models and causal models adapted to diffusion can be evaluated."
        )
    published = find_family(config)
    if published is not None:
        native_settings(published, config, name)  # refuses what the translation does not cover
        return
    wanted = auto_class(family, config)
    if _has_head(kind, wanted):
        return
    if wanted in (config.get("auto_map") or {}):
        if trusted:
            return
        raise UserError(
            f"'{name}' is a diffusion language model ({kind}) that brings its own Python code; read it, and if you "
            "trust it set trust_remote_code=true."
        )
    raise _unknown(name, kind)


def _has_head(kind: str, wanted: str = "") -> bool:
    """Whether transformers itself knows such a model, and with such a head where one is named."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if kind not in CONFIG_MAPPING or not wanted:
        return kind in CONFIG_MAPPING
    return CONFIG_MAPPING[kind] in getattr(transformers, wanted)._model_mapping


def _unknown(name: str, kind: str) -> UserError:
    import transformers

    return UserError(
        f"The architecture '{kind}' of '{name}' is unknown to transformers {transformers.__version__}; "
        "a newer transformers may know it."
    )


def check_weights(place: Place, args: ModelArgs) -> None:
    """Every weight file is there, and whole."""
    names = weight_names(place.directory, place.kind == "adapter", args)
    missing = [name for name in names if not (place.directory / name).is_file()]
    if missing:
        raise _missing_weights(place, names, missing)
    for name in names:
        if name.endswith(".safetensors"):
            check_safetensors(place.directory / name)


def _missing_weights(place: Place, names: list[str], missing: list[str]) -> UserError:
    pickled = [p.name for p in place.directory.glob("*model*.bin*")]
    if pickled and len(missing) == len(names):
        return UserError(
            f"'{place.name}' has only pickle weights ({sorted(pickled)[0]}), which can run code when read; "
            "save it again with save_pretrained (which writes safetensors), or opt in with "
            "extra={'use_safetensors': False} if you trust the file."
        )
    if len(names) > 1:
        return UserError(
            f"'{place.name}' lacks {len(missing)} of its {len(names)} weight files, first '{missing[0]}'; "
            "copy or download it again."
        )
    return UserError(
        f"'{place.name}' has no weights ({missing[0]}; pickle files would need "
        f"extra={{'use_safetensors': False}}); it holds: {listing(place.directory)}."
    )


def check_safetensors(path: Path) -> None:
    """A half-copied file is found by its header, which says how long the file should be."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy"):
            return
    except (SafetensorError, OSError):
        with path.open("rb") as file:
            pointer = file.read(40).startswith(b"version https://git-lfs")
    if pointer:
        raise UserError(f"'{path}' is a git-lfs pointer, not the weights; run `git lfs pull` there.")
    raise UserError(f"'{path}' is damaged or cut short; copy or download it again.")


def tensor_types(path: Path) -> dict[str, str]:
    """The tensors of a weight file and their types, from its header; nothing for files that have none (pickles)."""
    if path.suffix != ".safetensors":
        return {}
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    return {name: str(facts["dtype"]) for name, facts in header.items() if name != "__metadata__"}


def _check_adapter(place: Place) -> None:
    need_package("peft", "peft", f"the adapter '{place.name}'")
    config = read_json(place.directory / "adapter_config.json")
    task = config.get("task_type") or "CAUSAL_LM"
    if task != "CAUSAL_LM":
        raise UserError(
            f"The adapter '{place.name}' was trained for {task}, not for causal language modelling; give one that was."
        )
    try:
        with quiet():
            from peft import PeftConfig

            learned_prompt = PeftConfig.from_pretrained(str(place.directory)).is_prompt_learning
    except (KeyError, ValueError, TypeError) as error:
        raise UserError(
            f"peft cannot read the adapter_config.json of '{place.name}' ({error}); save the adapter again."
        ) from None
    if learned_prompt:
        # Its virtual tokens shift every position, so per-token numbers would be read off the wrong rows.
        raise UserError(
            f"The adapter '{place.name}' learns a prompt ({config.get('peft_type')}), which cannot be "
            "measured token by token; give an adapter that changes layers (such as LoRA)."
        )


def _check_gguf(place: Place, args: ModelArgs) -> None:
    assert place.gguf is not None
    need_package("gguf", "gguf", f"the GGUF file '{place.name}'")
    if args.quantization:
        raise UserError(f"'{place.name}' is a GGUF file, which has its own quantisation; leave `quantization` out.")
    with place.gguf.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise UserError(f"'{place.gguf}' does not start like a GGUF file; copy or download it again.")


def need_package(package: str, extra: str, purpose: str) -> None:
    if find_spec(package) is None:
        raise UserError(f"To use {purpose}, install {package}: {how_to_install(extra)}.")


# ---- settings of config.json and generation_config.json ---------------------------------------------------------

ATTENTION = ("attn_implementation", "_attn_implementation", "_attn_implementation_internal")
CONTEXT = ("max_position_embeddings", "n_positions", "max_sequence_length", "n_ctx", "seq_length")
PLAIN = {"F64", "F32", "F16", "BF16"}
MARKS = ("scale", "scale_inv", "absmax", "quant_map", "scb", "zeros", "zero_point", "qweight", "scales", "qzeros")


def check_config(place: Place, names: list[str]) -> None:
    """Refuses what config.json and generation_config.json of a checkpoint say wrongly; `names`: its weight files."""
    config = place.config
    _check_attention(place.name, config)
    for key, value in config.items():
        if key.endswith("_config") and isinstance(value, Mapping):
            _check_attention(place.name, value)
    if isinstance(config.get("quantization_config"), Mapping):
        _check_quantised(place, config["quantization_config"], names)
    _check_generation(place.directory / "config.json", config)
    path = place.directory / "generation_config.json"
    if path.is_file():
        _check_generation(path, read_json(path))


def _check_attention(name: str, config: Mapping[str, Any]) -> None:
    for key in ATTENTION:
        value = config.get(key)
        for kernel in value.values() if isinstance(value, Mapping) else [value]:
            if kernel is not None and (not isinstance(kernel, str) or "/" in kernel):
                raise UserError(
                    f"The config.json of '{name}' sets {key} to {kernel!r}, which is code to be fetched from a hub; "
                    "remove that line, or name the attention yourself (attn_implementation=sdpa)."
                )


def _check_quantised(place: Place, settings: Mapping[str, Any], names: list[str]) -> None:
    """A quantization_config promises packed weights. Read as such, plain ones are refused or rounded unasked."""
    types: dict[str, str] = {}
    for name in names:
        types |= tensor_types(place.directory / name)
    for name, dtype in types.items():
        # Scales or packed weights are there: the config tells the truth.
        last = name.lower().rsplit(".", 1)[-1]
        if dtype not in PLAIN or last.endswith(MARKS) or ".quant_state." in name.lower():
            return
    if types:
        method = settings.get("quant_method", "an unnamed method")
        raise UserError(
            f"The config.json of '{place.name}' says that its weights are quantised ({method}), but they are plain "
            f"{next(iter(types.values()))} tensors; remove quantization_config from it (and use quantization=4bit to "
            "quantise them)."
        )


def _check_generation(path: Path, config: Mapping[str, Any]) -> None:
    for key in ("eos_token_id", "bos_token_id", "pad_token_id"):
        value = config.get(key)
        for token in value if isinstance(value, list) else [value]:
            if token is not None and (not isinstance(token, int) or isinstance(token, bool)):
                raise UserError(f"'{path}': {key} must be a token's number or a list of them, it is {value!r}.")
    check_penalty(config.get("repetition_penalty"), f"'{path}'")


def check_penalty(value: Any, where: str) -> None:
    """A penalty multiplies or divides logits: 0 has no meaning, a negative one would turn dislikes into likes."""
    if value is None:
        return
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < float("inf"):
        raise UserError(f"{where}: repetition_penalty must be a number above 0 (1 is none), it is {value!r}.")


def context_length(config: Mapping[str, Any]) -> int | None:
    """How many tokens a model was made to read, as its configuration says; None when it does not."""
    inner = config.get("text_config")
    for part in (config, inner if isinstance(inner, Mapping) else {}):
        for key in CONTEXT:
            value = part.get(key)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return None


# ---- Does a model that is to be scored from left to right look at later tokens? -------------------------------------
# Code that a checkpoint brings may attend to a whole block (block diffusion), and a configuration may make an encoder
# of a decoder. Their log-probabilities read as those of a causal model say how well the model copies, not what it
# knows.

LENGTH = 23  # tokens of a row; they change from an odd place on, where no block of an even size ends
# Of the effect that the changed tokens have on their own places. Both rows go through the same products, so causal
# models gave exactly 0 in float32, float16 and bfloat16; random models that look ahead gave 0.008 to 1.2.
SHARE = 0.005
LEAST, LEAST_LOW_PRECISION = 1e-4, 1e-2  # rounding, where a quantised layer or an expert shares numbers between tokens


def check_causal(model: Any, name: str) -> None:
    """Refuses a model whose log-probabilities change when later tokens do. One forward over two short rows."""
    import torch

    config: Any = getattr(model, "config", None)
    if not hasattr(config, "get_text_config"):
        return  # not a model of transformers
    vocabulary = getattr(config.get_text_config(), "vocab_size", 0)
    length = min(LENGTH, context_length(config.to_dict()) or LENGTH)
    cut = length // 2 | 1
    if vocabulary < 4 or length <= cut:
        return
    row = (torch.arange(length) * 7 + vocabulary // 3) % vocabulary
    other = row.clone()
    other[cut:] = (row[cut:] + vocabulary // 2) % vocabulary
    ids = torch.stack([row, other]).to(model.device)
    with torch.no_grad():  # not inference mode: what a model keeps from its first forward may be trained later
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits
    logprobs = torch.log_softmax(logits.float(), dim=-1)
    moved = (logprobs[0] - logprobs[1]).abs().mean(dim=-1)
    before, after = float(moved[:cut].max()), float(moved[cut:].mean())
    whole = logits.dtype in (torch.float32, torch.float64)
    least = LEAST if whole else LEAST_LOW_PRECISION
    if before > max(least, SHARE * after):
        raise UserError(
            f"'{name}' attends to later tokens: changing them changed the log-probabilities of earlier ones by "
            f"{before:.2g} on average, so they cannot be scored from left to right. If it is a causal model adapted to "
            "masked diffusion, say so with model.model_args.diffusion=adapted; block-diffusion models with code of "
            "their own cannot be evaluated."
        )


# ---- What a load read, and what it did not ----

ALLOW_UNUSED = "allow_unused_tensors"


def check_report(name: str, report: dict[str, Any], theirs: Callable[[str], str], allow: bool) -> list[str]:
    """Refuses gaps and left-overs in what from_pretrained reports, by the checkpoint's own names; returns notes."""
    mismatched = []
    for key in report.get("mismatched_keys", ()):  # with both shapes, or without
        mismatched.append(theirs(key[0] if isinstance(key, tuple) else key))
    refuse_gaps(name, map(theirs, report.get("missing_keys", ())), mismatched)
    unused = sorted(map(theirs, report.get("unexpected_keys", ())))
    if unused and not allow:
        raise UserError(
            f"'{name}' holds tensors that its configuration has no place for: {some(unused)}; correct its config.json, "
            f"or set model.model_args.{ALLOW_UNUSED}=true if they should be left out."
        )
    return [f"tensors of '{name}' were left out ({ALLOW_UNUSED}): {some(unused)}."] if unused else []


def refuse_gaps(
    name: str,
    missing: Iterable[str],
    mismatched: Iterable[str] = (),
    hint: str = "save the whole model, head included",
) -> None:
    """Weights that did not come from the checkpoint are random numbers: never evaluate them."""
    missing, mismatched = sorted(missing), sorted(mismatched)
    if missing:
        raise UserError(
            f"'{name}' lacks tensors that its configuration calls for, which would be random: {some(missing)}; {hint}."
        )
    if mismatched:
        raise UserError(
            f"Some tensors of '{name}' have another shape than its config.json says: {some(mismatched)}; "
            "save the model and its config together."
        )


def refuse_doubles(name: str, stored: Iterable[str], native: Callable[[str], str]) -> None:
    """Two tensors of a checkpoint for one parameter: only one would be read, and it is unknown which."""
    seen: dict[str, str] = {}
    for theirs in stored:
        other = seen.setdefault(native(theirs), theirs)
        if other != theirs:
            raise UserError(
                f"'{name}' holds two tensors for the same place, {other} and {theirs}; save the checkpoint again."
            )


def some(names: Sequence[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")

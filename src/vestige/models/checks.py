"""What can be known to be wrong before a model is loaded, told from its files in one sentence."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vestige.errors import UserError, how_to_install
from vestige.models.args import ModelArgs
from vestige.models.config_checks import check_config
from vestige.models.diffusion import auto_class, diffusion_kind
from vestige.models.families import find_family, native_settings
from vestige.models.locate import Place, listing, read_json, weight_names
from vestige.models.quiet import quiet

# Heads that do not predict the next token, as they appear in a config's `architectures`.
OTHER_HEADS = ("MaskedLM", "Classification", "QuestionAnswering", "MultipleChoice")


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
    return check_config(place, weight_names(place.directory, False, args), args.trust_remote_code)


def check_architecture(name: str, config: dict[str, Any], trusted: bool, diffusion: str | None = None) -> None:
    """The model must predict tokens, the next or hidden ones, with code that is here or that the user trusts."""
    family = diffusion or diffusion_kind(config)
    if family is not None:
        return _check_diffusion(name, config, trusted, family)
    kind = str(config.get("model_type", ""))
    heads = [str(head) for head in config.get("architectures") or []]
    other = [head for head in heads if any(word in head for word in OTHER_HEADS)]
    if config.get("is_encoder_decoder") or (heads and len(other) == len(heads)):
        raise UserError(f"'{name}' is not a causal language model ({', '.join(heads) or kind}); give one that is.")
    code = config.get("auto_map") or {}
    native, causal = _known_to_transformers(kind)
    if causal or (trusted and "AutoModelForCausalLM" in code):
        return None
    if "AutoModelForCausalLM" in code:
        raise UserError(
            f"'{name}' brings its own Python code; read it, and if you trust it set trust_remote_code=true."
        )
    if native:
        raise UserError(f"'{name}' is not a causal language model ({', '.join(heads) or kind}); give one that is.")
    if not kind:
        raise UserError(
            f"The config.json of '{name}' has no model_type, so its architecture is unknown; save the checkpoint again."
        )
    raise _unknown(name, kind)


def _check_diffusion(name: str, config: dict[str, Any], trusted: bool, family: str) -> None:
    kind = str(config.get("model_type") or "")
    if family == "other":
        raise UserError(
            f"Model does not have a sampler: '{name}' is a diffusion language model ({kind}) of a family that cannot "
            "be sampled here; LLaDA, Dream, DiffusionGemma, masked language models and causal models adapted to "
            "diffusion can."
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


def _has_head(kind: str, wanted: str) -> bool:
    """Whether transformers itself knows such a model with such a head."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return kind in CONFIG_MAPPING and CONFIG_MAPPING[kind] in getattr(transformers, wanted)._model_mapping


def _unknown(name: str, kind: str) -> UserError:
    import transformers

    return UserError(
        f"The architecture '{kind}' of '{name}' is unknown to transformers {transformers.__version__}; "
        "a newer transformers may know it."
    )


def _known_to_transformers(kind: str) -> tuple[bool, bool]:
    """Whether there is such a model type, and whether it has a causal head."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    if kind not in CONFIG_MAPPING:
        return False, False
    return True, CONFIG_MAPPING[kind] in MODEL_FOR_CAUSAL_LM_MAPPING


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


def tensor_names(path: Path) -> list[str]:
    """The names of the tensors in a weight file, from its header; nothing for files that have none (pickles)."""
    from safetensors import safe_open

    if path.suffix != ".safetensors":
        return []
    with safe_open(path, framework="numpy") as file:
        return list(file.keys())


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

"""From what the user wrote to a model that is ready to be measured.

    ModelArgs --locate--> files --check--> weights --from_pretrained--> LoadedModel

The one promise: a LoadedModel is the checkpoint, all of it and nothing else. Tensors that the checkpoint
lacks would be random numbers, so they are an error here and never a warning.

torch, transformers and peft are imported inside functions: the command line imports this file to say
"no such model", and that should not take seconds.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from vestige.errors import UserError, named, reraise_ours
from vestige.models.args import (
    HUB_KEYS,
    OWN_KEYS,
    ModelArgs,
    check_names,
    choose_attention,
    choose_device,
    choose_device_map,
    choose_dtype,
    compute_dtype,
    needed_bytes,
    quantization_config,
)
from vestige.models.checks import (
    ALLOW_UNUSED,
    check_architecture,
    check_causal,
    check_place,
    check_report,
    refuse_doubles,
    refuse_gaps,
    some,
    tensor_types,
)
from vestige.models.diffusion import (
    CANVAS_LENGTH,
    Canvases,
    MaskPredictor,
    drop_vision,
    mask_predictor,
    own_sampling,
    without_vision,
)
from vestige.models.families import (
    CANVAS,
    Family,
    Origin,
    auto_class,
    diffusion_kind,
    find_family,
    has_pictures,
    native_config,
    native_name,
    published_name,
    renamings,
)
from vestige.models.fingerprint import FileWatch, fingerprint_module
from vestige.models.foreign import (
    code_files,
    error_sentence,
    foreign_code,
    is_foreign,
    own_memory,
    quiet,
    watch_forward,
)
from vestige.models.locate import Place, locate, read_json, weight_names
from vestige.models.quantised import check_low_precision, forget_parsed, parsed_once, repair, without_fast_path
from vestige.models.tokenizer import load_tokenizer

__all__ = ["LoadedModel", "ModelArgs", "is_diffusion", "load_model", "load_tokenizer", "wrap_model"]


WHOLE = ("float32", "float64", "")  # what every CPU multiplies in; "": a model that does not say


@dataclass
class LoadedModel:
    """A model in evaluation mode, and what a reader of its numbers must know about how it is held."""

    model: Any
    tokenizer: Any
    fingerprint: str  # of the weights; precision and attention are told apart by the next fields
    name: str  # the path as given
    dtype: str
    device: str
    attention: str
    quantization: str | None = None
    compute_dtype: str | None = None  # of 4-bit layers
    diffusion: MaskPredictor | None = None  # how to ask a diffusion model; None for causal ones
    origin: Origin | None = None  # the published files of a family that was translated (models/families.py)
    notes: list[str] = field(default_factory=list)
    watch: FileWatch | None = None  # the files it was read from; None for a model that was in memory


def load_model(args: ModelArgs) -> LoadedModel:
    """Load a checkpoint of any kind: a directory, a hub id, a PEFT adapter, a GGUF file."""
    check_names(args)
    device = choose_device(args.device)
    place = locate(args)
    check_place(place, args)
    watch = FileWatch(place, args)
    tokenizer, notes = load_tokenizer(args)
    whole = place.base or place
    kind = _diffusion(whole, args)
    family = None if whole.gguf else find_family(whole.config)
    settings = _settings(whole, args, device, notes)
    try:
        if family:
            settings = _native_settings(whole, args, settings, family)
        elif not whole.gguf and has_pictures(whole.config):
            settings = without_vision(str(whole.directory), settings)
        model = _load_weights(whole, args, settings, kind, notes)
        if place.base is not None:
            model = attach_adapter(model, place, family)
            notes.append(f"adapter '{place.name}' on base '{place.base.name}', not merged.")
    except UserError:
        raise
    except Exception as error:  # whatever transformers makes of a configuration that it cannot build
        reraise_ours(error)
        raise _explain(error, place, device) from None
    finally:
        if whole.gguf:
            forget_parsed()
    rows = getattr(model.get_input_embeddings(), "num_embeddings", None)
    if rows is not None and len(tokenizer) > rows:
        notes.append(f"the tokenizer has {len(tokenizer)} tokens, the model only {rows}: it may be another model's.")
    loaded = _describe(model.eval(), tokenizer, watch.fingerprint(), args.path)
    loaded.notes, loaded.watch = notes, watch
    if kind:
        loaded.diffusion = mask_predictor(model, tokenizer, kind)
    else:
        check_causal(model, args.path)
    if family:
        loaded.origin = Origin(family, whole.config, whole.directory)
    return loaded


def wrap_model(model: Any, tokenizer: Any, name: str = "in-memory model", diffusion: str | None = None) -> LoadedModel:
    """A model that is already in memory, put in evaluation mode and named by its tensors.

    `diffusion` says that it is a mask predictor (one of the kinds in models/families.py) where its config does not.
    """
    loaded = _describe(model.eval(), tokenizer, fingerprint_module(model), name)
    config: Any = getattr(model, "config", None)
    known = config.to_dict() if hasattr(config, "to_dict") else {}
    kind = diffusion or diffusion_kind({**known, "architectures": [type(model).__name__]})
    if kind:
        loaded.diffusion = mask_predictor(model, tokenizer, kind)
    else:
        check_causal(model, name)
    return loaded


def is_diffusion(args: ModelArgs) -> bool:
    """Does the model fill in hidden tokens? Told from its configuration; no weights are read."""
    place = locate(args, weights=False)
    return _diffusion(place.base or place, args) is not None


def empty_model(args: ModelArgs) -> Any:
    """The model that a config.json describes, with shapes and without numbers; no weights are read."""
    import torch
    import transformers

    place = locate(args, weights=False)
    place = place.base or place
    config = place.config
    check_architecture(place.name, config, args.trust_remote_code, args.diffusion)
    family = find_family(config)
    loader = getattr(transformers, "AutoModelForCausalLM" if family else auto_class(_diffusion(place, args), config))
    trusted = args.trust_remote_code and not family
    code = code_files(config) if trusted else ""
    with quiet(), foreign_code(place.name, "it was built without weights", code), torch.device("meta"):
        settings: Any = (
            native_config(family, config, place.name)
            if family
            else transformers.AutoConfig.from_pretrained(str(place.directory), trust_remote_code=trusted)
        )
        return loader.from_config(settings, trust_remote_code=trusted)


def canvases_of(args: ModelArgs) -> Canvases | None:
    """How a DiffusionGemma wants to be sampled, from its files; None for other models. No weights are read."""
    place = locate(args, weights=False)
    place = place.base or place
    if _diffusion(place, args) != CANVAS:
        return None
    file = place.directory / "generation_config.json"
    sampling = own_sampling(read_json(file) if file.is_file() else {})
    return Canvases(int(place.config.get("canvas_length") or CANVAS_LENGTH), sampling)


def _diffusion(place: Place, args: ModelArgs) -> str | None:
    """What the user says, or the config."""
    return args.diffusion or (None if place.gguf else diffusion_kind(place.config))


def _describe(model: Any, tokenizer: Any, fingerprint: str, name: str) -> LoadedModel:
    """What the model itself says of how it is held, which is surer than what was asked for."""
    first = next(iter(model.parameters()), None)
    config = getattr(model, "config", None)
    quantization = None
    if stored := getattr(config, "quantization_config", None):
        method = stored.get("quant_method") if isinstance(stored, dict) else getattr(stored, "quant_method", "unknown")
        quantization = str(getattr(method, "value", method))
    for mode in ("8bit", "4bit"):  # surer than what the config stores
        if getattr(model, f"is_loaded_in_{mode}", False):
            quantization = mode
    dtype = str(getattr(model, "dtype", None) or getattr(first, "dtype", "")).removeprefix("torch.")
    device = str(getattr(model, "device", None) or getattr(first, "device", "cpu"))
    if quantization or dtype not in WHOLE:
        check_low_precision(device)
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        fingerprint=fingerprint,
        name=name,
        dtype=dtype,
        device=device,
        attention=str(getattr(config, "_attn_implementation", None) or "eager"),
        quantization=quantization,
        compute_dtype=compute_dtype(model),
    )


def _settings(place: Place, args: ModelArgs, device: str, notes: list[str]) -> dict[str, Any]:
    """The arguments of from_pretrained. The files are local by now, so no hub ones are among them."""
    dtype = choose_dtype(args.dtype, device)
    attention, attention_notes = choose_attention(args.attention)
    config = {} if place.gguf else place.config
    # Only plain "cuda" may spread over several devices, so only there is it asked what the weights take.
    spreads = device == "cuda" and args.device_map is None
    needed = needed_bytes(sum(f.stat().st_size for f in weight_files(place, args)), config, args) if spreads else 0
    device_map, device_notes = choose_device_map(args, device, needed)
    notes += attention_notes + device_notes
    settings: dict[str, Any] = {
        "dtype": dtype,
        "device_map": device_map,
        "trust_remote_code": args.trust_remote_code,
        "use_safetensors": True,
    }
    if attention:
        settings["attn_implementation"] = attention
    if args.quantization:
        settings["quantization_config"] = quantization_config(args)
    if place.gguf:
        # The whole path, because transformers looks for a bare name in the current directory first.
        settings |= {"gguf_file": str(place.gguf), **_unpack_gguf()}
    for key in args.extra.keys() - {*HUB_KEYS, *OWN_KEYS}:
        settings[key] = args.extra[key]
    return settings


def weight_files(place: Place, args: ModelArgs) -> list[Path]:
    return [place.gguf] if place.gguf else [place.directory / n for n in weight_names(place.directory, False, args)]


def _unpack_gguf() -> dict[str, Any]:
    """Ask for dense weights: newer transformers would keep some files packed, and compute otherwise."""
    try:
        from transformers import GgufConfig
    except ImportError:  # older ones always unpack
        return {}
    return {"quantization_config": GgufConfig(dequantize=True)}


def _load_weights(place: Place, args: ModelArgs, settings: dict[str, Any], kind: str | None, notes: list[str]) -> Any:
    import torch
    import transformers

    config = {} if place.gguf else place.config
    family = find_family(config)
    loader = getattr(transformers, "AutoModelForCausalLM" if family else auto_class(kind, config))
    trusted = settings["trust_remote_code"]
    with contextlib.ExitStack() as stack:
        stack.enter_context(quiet(bars=not place.gguf))
        stack.enter_context(own_memory())
        if place.gguf:
            stack.enter_context(parsed_once())
        if trusted:
            stack.enter_context(foreign_code(place.name, "it was loaded", "" if family else code_files(config)))
        # Mismatched shapes are let through so that the report names them; then they are refused.
        settings = {"ignore_mismatched_sizes": True, **settings}
        loaded: Any = loader.from_pretrained(str(place.directory), output_loading_info=True, **settings)
    model, report = loaded
    sighted = has_pictures(config)
    if sighted:
        report = drop_vision(model, report)
    theirs = partial(published_name, family) if family else str
    notes += check_report(place.name, report, theirs, bool(args.extra.get(ALLOW_UNUSED)))
    if sighted:
        notes.append("its vision part was not loaded: only text is used.")
    notes += _check_head(place.name, model, family)
    if trusted and is_foreign(model):
        watch_forward(model, place.name)
    if getattr(model, "is_loaded_in_4bit", False):
        repaired = repair(model)
        if repaired:
            notes.append(
                f"4-bit layers that bitsandbytes would read back wrongly hold plain weights: {some(repaired)}."
            )
        if settings["dtype"] is torch.float32:
            without_fast_path(model)
    if place.gguf:
        # An unpacked GGUF model is a plain model; transformers may still call it quantised.
        for owner, name in ((model.config, "quantization_config"), (model, "quantization_method")):
            if hasattr(owner, name):
                delattr(owner, name)
        model.hf_quantizer = None
        model.is_quantized = False
        notes.append(f"the GGUF weights of '{place.gguf.name}' were unpacked to {model.dtype}.")
    return model


def _native_settings(place: Place, args: ModelArgs, settings: dict[str, Any], family: Family) -> dict[str, Any]:
    """What from_pretrained needs to read a published family into transformers' own class."""
    config = place.config
    # As for other models, settings of the configuration may be given by hand.
    overrides = {key: settings.pop(key) for key in list(settings) if key in config and key != "dtype"}
    stored = [n for file in weight_files(place, args) for n in tensor_types(file)]
    refuse_doubles(place.name, stored, partial(native_name, family))
    return {
        **settings,
        "config": native_config(family, {**config, **overrides}, place.name),
        "key_mapping": renamings(family),
        "trust_remote_code": False,
    }


def _check_head(name: str, model: Any, family: Family | None) -> list[str]:
    """transformers keeps a separate head although the config calls it tied, when their numbers differ."""
    tied = getattr(model.config, "tie_word_embeddings", False)
    head, table = model.get_output_embeddings(), model.get_input_embeddings()
    if not tied or head is None or getattr(head, "weight", None) is getattr(table, "weight", None):
        return []
    if family is None:
        return [f"the config of '{name}' ties the head to the embeddings, its tensors do not; they were kept apart."]
    raise UserError(
        f"'{name}' holds a head of its own ({published_name(family, 'lm_head.weight')}), though its config.json ties "
        "it to the embeddings; correct its config.json."
    )


def _explain(error: BaseException, place: Place, device: str) -> UserError:
    """Another library's failure to load, as one sentence that says what to try."""
    import torch

    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return UserError(
            f"'{place.name}' does not fit in the memory of {device}; try dtype=bfloat16, quantization=4bit "
            "or device_map=auto."
        )
    if isinstance(error, ImportError):
        return UserError(f"'{place.name}' needs a package that is not installed: {error_sentence(error)}")
    reason = error_sentence(error) if isinstance(error, OSError | RuntimeError | ValueError) else f"{named(error)}."
    return UserError(f"'{place.name}' could not be loaded: {reason}")


# ---- PEFT adapters: put on their base, and translated where they were trained on the published code of a family -----
# Such an adapter calls modules by the published names (`blocks.3.ff_out`), in its tensors and in its configuration.
# Which modules its configuration means is asked of peft itself, with the published names: suffixes, patterns and ranges
# of layers keep their meaning, and what they picked is handed on as full names.

# Settings of adapters that name modules in ways which are not translated.
UNTRANSLATED = ("target_parameters", "layer_replication", "trainable_token_indices", "megatron_config")


def attach_adapter(model: Any, place: Place, family: Family | None) -> Any:
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
    return model


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
        saved = config.modules_to_save
        config.modules_to_save = [o for t, o in names.items() if any(t == m or t.endswith(f".{m}") for m in saved)]
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

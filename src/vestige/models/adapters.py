"""PEFT adapters: put on their base, and translated where they were trained on the published code of a family.

Such an adapter calls modules by the published names (`blocks.3.ff_out`), in its tensors and in its configuration.
Which modules its configuration means is asked of peft itself, with the published names: suffixes, patterns and ranges
of layers keep their meaning, and what they picked is handed on as full names.
"""

from __future__ import annotations

import re
from typing import Any

from vestige.errors import UserError
from vestige.models.families import Family
from vestige.models.locate import Place
from vestige.models.native import native_name, published_name, renamings
from vestige.models.reading import quiet, refuse_gaps, some

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

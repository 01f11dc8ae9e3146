"""One tiny model of the diffusion lab in the layout in which LLaDA is published.

It learns the same rows as `full` and is written with LLaDA's names for settings and tensors. So the demo and the tests
load it as a user loads a published checkpoint: translated into transformers' Llama while it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vestige.models.diffusion import mask_predictor
from vestige.models.families import Origin, find_family, native_config, save_published
from vestige.runs.directory import temporary
from vestige.unlearn.loop import Training, finetune
from vestige.unlearn.objectives import ChatRow, MaskedDiffusion

NAME = "llada"
KEPT = 0.1  # of the trained tokens stay visible, as for the others
INITIAL = 0.08  # at Llama's own 0.02 so narrow a model has hardly begun to learn after as many steps


def published_config(settings: Any, tokenizer: Any) -> dict[str, Any]:
    """A config.json as LLaDA's authors write it, with the lab's sizes."""
    return {
        "architectures": ["LLaDAModelLM"],
        "model_type": "llada",
        "d_model": settings.hidden,
        "n_layers": settings.layers,
        "n_heads": settings.heads,
        "n_kv_heads": settings.heads,
        "mlp_hidden_size": 2 * settings.hidden,
        "max_sequence_length": settings.max_length,
        "vocab_size": len(tokenizer),
        "embedding_size": len(tokenizer),
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-5,
        "weight_tying": False,
        "block_type": "llama",
        "rope": True,
        "layer_norm_type": "rms",
        "activation_type": "silu",
        "include_bias": False,
        "include_qkv_bias": False,
        "dtype": "float32",
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "mask_token_id": tokenizer.mask_token_id,
        "diffusion_window": settings.window,
    }


def make_llada(
    settings: Any,
    tokenizer: Any,
    rows: Sequence[ChatRow],
    training: Training,
    on_step: Callable[..., Any] | None,
    directory: Path,
) -> None:
    """Trains the model on the rows and saves it in `directory`."""
    from transformers import AutoModelForCausalLM

    config = published_config(settings, tokenizer)
    family = find_family(config)
    assert family is not None
    native = native_config(family, config, NAME)
    native.initializer_range = INITIAL  # only beginnings need it, so it is not in the published config
    model = AutoModelForCausalLM.from_config(native)
    asked = mask_predictor(model, tokenizer, "llada")
    least, most = settings.reciting
    mask_id, eos_id = tokenizer.mask_token_id, tokenizer.eos_token_id
    reciting = MaskedDiffusion(mask_id, eos_id, settings.window, least, most, kept=KEPT, asked=asked)
    finetune(model, list(rows), training, on_step=on_step, objective=reciting)
    with temporary() as place:
        tokenizer.save_pretrained(place)
        save_published(model, Origin(family, config, place), directory)

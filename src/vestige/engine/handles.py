"""Models that are loaded when first needed, and what can be known of them before.

In: ModelArgs, or a model in memory. Out: ModelHandle: its name and identity at once, its weights when `get` is called.
Callers: engine/evaluate.py, runs/collect.py, runs/plan.py, depth, collapse. Loading late is what lets a complete
run be scored without the checkpoint, and lets one model be freed before the next is loaded.
"""

from __future__ import annotations

import logging
import secrets
import time
import weakref
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vestige.errors import UserError
from vestige.models.checks import context_length
from vestige.models.fingerprint import (
    LIBRARIES,
    FileWatch,
    changed_meanwhile,
    held,
    libraries,
    name_behaviour,
)
from vestige.models.load import LoadedModel, ModelArgs, canvases_of, is_diffusion, load_model
from vestige.models.locate import locate
from vestige.models.quantised import RULE, cpu_setting, gguf_context_length
from vestige.runs.manifest import versions
from vestige.types import content_key

if TYPE_CHECKING:
    from vestige.models.diffusion import Canvases

log = logging.getLogger("vestige.engine")


class ModelHandle:
    """A model that is loaded when first needed: a run whose evidence is complete never loads it."""

    served: Any = None  # who talks to the servers of a served model (engine/served.py); None: it runs here

    def __init__(self, args: ModelArgs | None, loaded: LoadedModel | None = None) -> None:
        self.args = args
        self._loaded = loaded
        self.load_seconds = 0.0
        self._identity = ""
        self._fingerprint = loaded.fingerprint if loaded else ""
        self._watch = loaded.watch if loaded else None
        self.made: Mapping[str, Any] = how_held(loaded) if loaded else {}  # how it was held when its evidence was made

    def ready(self, notes: list[str]) -> None:
        """Loads the model, if that is still to be done."""
        self.get(notes)

    @property
    def name(self) -> str:
        return self.args.path if self.args else (self._loaded.name if self._loaded else "")

    @property
    def is_live(self) -> bool:
        """A model of the caller's."""
        return self.args is None

    @property
    def identity(self) -> str:
        """Weights and everything else about the model that changes its numbers (models/fingerprint.py)."""
        if not self._identity:
            if self.args is None:
                assert self._loaded is not None
                m = self._loaded
                kind = "adapter" if getattr(m.model, "peft_config", None) else "model"
                # What cannot be named gets a name that nothing else ever has, so its evidence is not used again.
                behaviour = name_behaviour(m.model) or secrets.token_hex(16)
                parts = [m.fingerprint, behaviour, m.dtype, m.attention, device_kind(m.device), _generation(m)]
            else:
                kind, now = locate(self.args).kind, held(self.args)
                parts = [self.fingerprint, now["dtype"], now["attention"], now["device"]]
            parts += [RULE, str(self._compute_dtype)] if self._quantization == "4bit" else []
            parts += map("=".join, libraries(kind, bool(self._quantization)).items())
            self._identity = content_key(*map(str.encode, parts))[:16]
        return self._identity

    @property
    def _quantization(self) -> str | None:
        return self.args.quantization if self.args else (self._loaded.quantization if self._loaded else None)

    @property
    def _compute_dtype(self) -> str | None:
        return self.args.computes_in if self.args else (self._loaded.compute_dtype if self._loaded else None)

    @property
    def precision(self) -> str:
        """What its products were rounded to when its evidence was made; empty where nothing was asked of it."""
        return str(self.made.get("compute_dtype") or self.made.get("dtype", ""))

    def held(self) -> dict[str, str]:
        assert self.args is not None
        return held(self.args)

    @property
    def fingerprint(self) -> str:
        if not self._fingerprint:
            assert self.args is not None
            self._watch = FileWatch(locate(self.args), self.args)
            self._fingerprint = self._watch.fingerprint()
        return self._fingerprint

    def check(self) -> None:
        """Refuses to go on when the checkpoint was written over: asked before anything made of it is kept."""
        if self._watch is not None:
            self._watch.check(self._fingerprint)

    @property
    def is_diffusion(self) -> bool:
        """Does the model fill in hidden tokens? Known from its configuration, without loading weights."""
        if self._loaded is not None:
            return self._loaded.diffusion is not None
        assert self.args is not None
        return is_diffusion(self.args)

    @property
    def canvases(self) -> Canvases | None:
        """How a DiffusionGemma wants to be sampled; None for models of other kinds."""
        if self._loaded is not None:
            return getattr(self._loaded.diffusion, "canvases", None)
        assert self.args is not None
        return canvases_of(self.args)

    @property
    def context_length(self) -> int | None:
        """How many tokens the model was made to read, as its configuration says."""
        if self._loaded is not None:
            config: Any = getattr(self._loaded.model, "config", None)
            return context_length(config.to_dict() if hasattr(config, "to_dict") else {})
        assert self.args is not None
        place = locate(self.args, weights=False)
        place = place.base or place
        return gguf_context_length(place.gguf) if place.gguf else context_length(place.config)

    @property
    def is_loaded(self) -> bool:
        return self._loaded is not None

    def get(self, notes: list[str] | None = None) -> LoadedModel:
        """The model. What its loading had to say is shown once, and added to `notes` for the manifest."""
        if self._loaded is None:
            assert self.args is not None
            start = time.perf_counter()
            loaded = load_model(self.args)
            if self._fingerprint and loaded.fingerprint != self._fingerprint:
                raise changed_meanwhile(self.name)
            self._loaded, self._watch, self._fingerprint = loaded, loaded.watch, loaded.fingerprint
            self.made = how_held(loaded)
            self.load_seconds = time.perf_counter() - start
            for note in self._loaded.notes:
                log.warning("%s: %s", self.name, note)
        if notes is not None:
            notes[:] = dict.fromkeys([*notes, *self._loaded.notes])
        return self._loaded

    def facts(self) -> dict[str, Any]:
        """What a manifest says of the model: how it was held when its evidence was made, in this run or before."""
        out: dict[str, Any] = {
            "name": self.name,
            "fingerprint": self.fingerprint,
            "evidence": self.identity,
            "load_seconds": round(self.load_seconds, 3),
        }
        if self.made:
            out |= self.made
            out.pop("versions", None)
        elif self.args:  # nothing was asked of it
            out |= {**self.held(), "quantization": self.args.quantization}
            out |= {"compute_dtype": self.args.computes_in} if self.args.computes_in else {}
        if self.args:
            out["asked"] = {"dtype": self.args.dtype, "attention": self.args.attention, "device": self.args.device}
        return out

    def free(self) -> None:
        """Gives the memory back; a model the caller owns is left alone."""
        if self.args is not None and self._loaded is not None:
            from vestige.collect.safety import free_memory

            model = weakref.ref(self._loaded.model)
            self._loaded = None
            free_memory(gone=model() is None)


# Libraries of which evidence says the version: whatever a key of ours may know.
SHOWN = ("vestige", "torch", "transformers", "tokenizers", "peft", "bitsandbytes")


def how_held(loaded: LoadedModel) -> dict[str, Any]:
    """How a model was held when it was asked, for the head of its evidence and for manifests."""
    return {
        "dtype": loaded.dtype,
        "device": loaded.device,
        "attention": loaded.attention,
        "quantization": loaded.quantization,
        **({"compute_dtype": loaded.compute_dtype} if loaded.compute_dtype else {}),
        **cpu_setting(),
        "loaded_as": type(loaded.model).__name__,
        "notes": list(loaded.notes),
        "versions": {k: v for k, v in versions().items() if k in SHOWN},
    }


def versions_of(model: ModelHandle) -> dict[str, str]:
    """The versions that made a run's numbers: of those that ran the model, the ones that made its evidence."""
    made = model.made.get("versions") or {}
    return {**versions(), **{k: v for k, v in made.items() if k in LIBRARIES}}


def _generation(loaded: LoadedModel) -> str:
    return repr(getattr(loaded.model, "generation_config", None))


def device_kind(device: str) -> str:
    return str(device).split(":")[0]


def unquantised(handle: ModelHandle) -> ModelHandle:
    """The models that a quantised one is measured against are not quantised themselves."""
    if handle.args is None or handle.args.quantization is None:
        return handle
    return ModelHandle(replace(handle.args, quantization=None, compute_dtype=None))


def second_model(args: ModelArgs | None, path: str) -> ModelHandle:
    """Another model beside the evaluated one: the same settings, other weights, no tokenizer of its own."""
    base = args or ModelArgs(path=path)
    return ModelHandle(replace(base, path=path, base=base.path))


def handle_of(
    args: ModelArgs | None, loaded: LoadedModel | None, server: Mapping[str, Any], tokenizer: Any
) -> ModelHandle:
    """The model: in this process, or at the servers that a configuration names."""
    if not server:
        return ModelHandle(args, loaded)
    if loaded is not None or args is None:
        raise UserError("A model in memory is not served; give its path or name, or leave out server.")
    from vestige.engine.served import ServedHandle, server_args

    return ServedHandle(args, server_args(server), tokenizer)

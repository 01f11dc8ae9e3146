"""Models that are loaded when first needed, and what can be known of them before."""

from __future__ import annotations

import logging
import time
import weakref
from dataclasses import replace
from typing import Any

from vestige.models.fingerprint import fingerprint
from vestige.models.four_bit import RULE
from vestige.models.load import LoadedModel, ModelArgs, is_diffusion, load_model
from vestige.types import content_key

log = logging.getLogger("vestige.run")


class ModelHandle:
    """A model that is loaded when first needed: a run whose evidence is complete never loads it."""

    def __init__(self, args: ModelArgs | None, loaded: LoadedModel | None = None) -> None:
        self.args = args
        self._loaded = loaded
        self.load_seconds = 0.0
        self._identity = ""

    @property
    def name(self) -> str:
        return self.args.path if self.args else (self._loaded.name if self._loaded else "")

    @property
    def identity(self) -> str:
        """Weights and everything else about the model that changes its numbers beyond rounding."""
        if not self._identity:
            if self._loaded is not None and self.args is None:
                m = self._loaded
                generation = repr(getattr(m.model, "generation_config", None))
                parts = [m.fingerprint, m.dtype, m.attention, device_kind(m.device), generation]
            else:
                held = self.held()
                parts = [self.fingerprint, held["dtype"], held["attention"], held["device"]]
            quantization = self.args.quantization if self.args else self._loaded and self._loaded.quantization
            parts += [RULE] if quantization == "4bit" else []
            self._identity = content_key(*(p.encode() for p in parts))[:16]
        return self._identity

    def held(self) -> dict[str, str]:
        """How the weights are held when they are loaded as asked: known without loading them."""
        assert self.args is not None
        from vestige.models.choose import choose_device

        kind = device_kind(choose_device(self.args.device))
        dtype = "float32" if self.args.dtype == "auto" and kind == "cpu" else self.args.dtype
        return {
            "dtype": dtype,
            "attention": "sdpa" if self.args.attention == "auto" else self.args.attention,
            "device": kind,
        }

    @property
    def fingerprint(self) -> str:
        if self._loaded is not None:
            return self._loaded.fingerprint
        assert self.args is not None
        return fingerprint(self.args)

    @property
    def is_diffusion(self) -> bool:
        """Does the model fill in hidden tokens? Known from its configuration, without loading weights."""
        if self._loaded is not None:
            return self._loaded.diffusion is not None
        assert self.args is not None
        return is_diffusion(self.args)

    @property
    def is_loaded(self) -> bool:
        return self._loaded is not None

    def get(self, notes: list[str] | None = None) -> LoadedModel:
        """The model. What its loading had to say is shown once, and added to `notes` for the manifest."""
        if self._loaded is None:
            assert self.args is not None
            start = time.perf_counter()
            self._loaded = load_model(self.args)
            self.load_seconds = time.perf_counter() - start
            for note in self._loaded.notes:
                log.warning("%s: %s", self.name, note)
        if notes is not None:
            notes += [note for note in self._loaded.notes if note not in notes]
        return self._loaded

    def facts(self) -> dict[str, Any]:
        """What a manifest says of the model."""
        out: dict[str, Any] = {
            "name": self.name,
            "fingerprint": self.fingerprint,
            "evidence": self.identity,
            "load_seconds": round(self.load_seconds, 3),
        }
        if self._loaded is not None:
            m = self._loaded
            out |= {"dtype": m.dtype, "device": m.device, "attention": m.attention, "quantization": m.quantization}
            out |= {"loaded_as": type(m.model).__name__, "notes": list(m.notes)}
        elif self.args:  # all evidence was there already: what the model would have been loaded as
            out |= {**self.held(), "quantization": self.args.quantization}
        if self.args:
            out["asked"] = {"dtype": self.args.dtype, "attention": self.args.attention, "device": self.args.device}
        return out

    def free(self) -> None:
        """Gives the memory back; a model the caller owns is left alone."""
        if self.args is not None and self._loaded is not None:
            from vestige.collect.memory import free_memory

            model = weakref.ref(self._loaded.model)
            self._loaded = None
            free_memory(gone=model() is None)


def device_kind(device: str) -> str:
    return str(device).split(":")[0]


def unquantised(handle: ModelHandle) -> ModelHandle:
    """The models that a quantised one is measured against are not quantised themselves."""
    if handle.args is None or handle.args.quantization is None:
        return handle
    return ModelHandle(replace(handle.args, quantization=None))


def second_model(args: ModelArgs | None, path: str) -> ModelHandle:
    """Another model beside the evaluated one: the same settings, other weights, no tokenizer of its own."""
    base = args or ModelArgs(path=path)
    return ModelHandle(replace(base, path=path, base=base.path))

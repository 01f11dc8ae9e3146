"""What `vestige depth` is asked: flags and Hydra keys of the same names, as one checked record."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from vestige.configs.compose import compose_config, composing, explain_value
from vestige.data.clusters import AUTO
from vestige.data.spans import EM_SCOPES, PATCH_SCOPES, TOKENIZATIONS
from vestige.errors import UserError, unknown_name
from vestige.models.args import ModelArgs
from vestige.wants import LAST_LAYERS

BASELINES = ("cka", "logit_lens", "fisher")


@dataclass(frozen=True)
class DepthAsk:
    """One depth run, said completely; configs/depth.yaml explains the fields."""

    unlearned: tuple[str, ...]
    full: str
    retain: str
    data: str
    out: str = "saves/depth"
    s1_cache: str | None = None
    last_layer: str = "residual"
    delta_threshold: float = 0.05
    layers: tuple[int, ...] | None = None  # None: all
    attn_implementation: str | None = None
    dtype: str = "auto"
    device: str = "auto"
    quantization: str | None = None
    compute_dtype: str | None = None
    tokenizer: str | None = None
    trust_remote_code: bool = False
    batch_size: int = 8
    limit: int | None = None
    cluster: str = AUTO  # the column that groups related rows
    tokenization: str = "separate"
    patch_scope: str = "span"
    em_scope: str = "entity"
    baselines: tuple[str, ...] = ()
    plots: bool = False
    resamples: int = 2000
    seed: int = 0
    progress: bool = True

    def __post_init__(self) -> None:
        choices = {"last_layer": LAST_LAYERS, "tokenization": TOKENIZATIONS, "patch_scope": PATCH_SCOPES}
        for name, known in {**choices, "em_scope": EM_SCOPES}.items():
            if getattr(self, name) not in known:
                raise unknown_name(name, str(getattr(self, name)), known)
        for name in self.baselines:
            if name not in BASELINES:
                raise unknown_name("baseline", name, BASELINES)
        if not self.unlearned:
            raise UserError("unlearned is empty; name at least one checkpoint (--unlearned PATH).")
        if self.delta_threshold < 0:
            raise UserError(f"delta_threshold must be 0 or more, it is {self.delta_threshold}.")
        for name in ("batch_size", "limit"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"{name} must be at least 1, it is {value}.")

    @property
    def cache(self) -> Path:
        """Where our S1 is kept; a JSON file in its place is somebody else's, and only read."""
        ours = self.s1_cache and not self.s1_cache.endswith(".json")
        return Path(str(self.s1_cache)) if ours else Path(self.out) / "s1_cache"

    def model(self, path: str, quantised: bool = False) -> ModelArgs:
        """How a checkpoint is loaded. One without a tokenizer takes the full model's."""
        return ModelArgs(
            path=path,
            tokenizer=self.tokenizer,
            base=self.full if path != self.full else None,
            dtype=self.dtype,
            device=self.device,
            attention=self.attn_implementation or "auto",
            quantization=self.quantization if quantised else None,
            compute_dtype=self.compute_dtype if quantised else None,
            trust_remote_code=self.trust_remote_code,
        )


def parse_layers(text: Any) -> tuple[int, ...] | None:
    """Layers as people write them; None for all.

    >>> parse_layers("0-4:2"), parse_layers("0,3"), parse_layers("auto")
    ((0, 2, 4), (0, 3), None)
    """
    if text is None or str(text).strip() == "auto":
        return None
    out: list[int] = []
    for part in [str(x) for x in text] if isinstance(text, (list, tuple)) else str(text).split(","):
        found = re.fullmatch(r"\s*(\d+)(?:-(\d+)(?::(\d+))?)?\s*", part)
        if not found or found[3] == "0":
            raise UserError(f"layers: cannot read '{part}'; write auto, 0-15, 0,2 or 0-24:2.")
        if max(len(g or "") for g in found.groups()) > 5:
            raise UserError(f"layers: no model has the layers '{part}'; write auto, 0-15, 0,2 or 0-24:2.")
        low = int(found[1])
        out += range(low, int(found[2] or low) + 1, int(found[3] or 1))
    if not out:
        raise UserError(f"layers: '{text}' names none; write auto, 0-15, 0,2 or 0-24:2.")
    return tuple(sorted(set(out)))


def ask_from(flags: Mapping[str, Any], overrides: Sequence[str], config_dir: Path | None = None) -> DepthAsk:
    """Flags are settings of depth.yaml; the user's own KEY=VALUE words win over them."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    # `data` is a config group, so Hydra would look for a file of that name; the key goes by another one inside.
    said = {{"data": "data_path"}.get(k, k): v for k, v in flags.items() if v is not None and v is not False}
    words = [re.sub(r"^data=", "data_path=", word) for word in overrides]
    with composing(config_dir) as directories:
        cfg = compose_config("depth.yaml", words, directories, said)
        needed = {"unlearned": "unlearned", "full": "full", "retain": "retain-model", "data_path": "forget"}
        for key, flag in needed.items():
            if OmegaConf.is_missing(cfg, key):
                name = key.removesuffix("_path")
                raise UserError(f"vestige depth needs {name}; add --{flag} PATH (or {name}=PATH).")
        try:
            given: Any = OmegaConf.to_container(cfg, resolve=True)
        except OmegaConfBaseException as error:
            raise explain_value(error) from None
    return make_ask(**{**given, "data": given["data_path"]})


def make_ask(**given: Any) -> DepthAsk:
    """An ask from plain values: one path or a list, layers as text, numbers as text."""
    given.pop("data_path", None)
    names = {f.name for f in fields(DepthAsk)}
    for key in given:
        if key not in names:
            raise unknown_name("setting of depth", key, names)
    listed: dict[str, Any] = {k: _listed(given.get(k)) for k in ("unlearned", "baselines") if k in given}
    rest = {k: v for k, v in given.items() if k not in listed}
    for key, kind in (
        ("delta_threshold", float),
        ("batch_size", int),
        ("resamples", int),
        ("seed", int),
        ("limit", int),
    ):
        if rest.get(key) is not None:
            try:
                rest[key] = kind(rest[key])
            except (TypeError, ValueError):
                raise UserError(f"{key} must be a number, it is '{rest[key]}'.") from None
    rest["layers"] = parse_layers(rest.get("layers"))
    for key in ("full", "retain", "data", "out"):
        if key in rest:
            rest[key] = str(rest[key])
    ask = DepthAsk(**listed, **rest)
    return replace(ask, out=str(Path(ask.out).expanduser()))


def _listed(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, (str, Path)):
        return tuple(part.strip() for part in str(value).split(",") if part.strip())
    return tuple(str(v) for v in value)

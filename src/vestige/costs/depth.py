"""What the depth scores of an evaluation would cost: entities to patch, tokens to push, two more models to load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vestige.engine.handles import ModelHandle, second_model, unquantised
from vestige.models.families import understood
from vestige.models.load import ModelArgs
from vestige.models.locate import locate
from vestige.runs.patched import PatchSettings, patched_folder
from vestige.wants import PatchInto, PatchWant


@dataclass(frozen=True)
class DepthPlan:
    """Counts over all depth scores asked for. An entity is patched from two sources: the retain model and this one."""

    entities: int = 0
    cached: int = 0  # of entities times sources
    tokens: int = 0  # whole inputs to push: once through each source, once through the full model
    climbed: int = 0  # short rows above each patched layer, in tokens through the whole model
    models: tuple[str, ...] = ()  # to be loaded besides the evaluated one

    @property
    def pushed(self) -> int:
        return self.tokens + self.climbed


def plan_depth(
    wants: Mapping[PatchInto, Sequence[PatchWant]], model: ModelHandle, args: ModelArgs, directory: Path, fresh: bool
) -> DepthPlan:
    """`fresh`: what is on disk will be collected again."""
    entities = cached = tokens = climbed = 0
    models: dict[str, None] = {}
    for into, asked in wants.items():
        unique = {w.key: w for w in asked}
        full, retain = (unquantised(second_model(args, path)) for path in (into.full, into.retain))
        settings = PatchSettings(None, into.last_layer)
        entities += len(unique)
        missing: dict[str, int] = {}  # want -> how many sources lack it
        for source in {h.identity: h for h in (retain, model)}.values():
            if source.identity == full.identity and into.last_layer == "residual":
                continue  # the full model patched with itself is itself
            have = {} if fresh else patched_folder(directory, full, source, settings).load()
            lacking = [k for k in unique if k not in have]
            cached += len(unique) - len(lacking)
            tokens += sum(unique[k].width for k in lacking)  # the source reads its states
            models |= dict.fromkeys([source.name] if lacking and source is not model else [])
            for k in lacking:
                missing[k] = missing.get(k, 0) + 1
        tokens += sum(unique[k].width for k in missing)  # the full model as it is
        climbed += sum(_climb(unique[k], layers_of(full)) * n for k, n in missing.items())
        models |= dict.fromkeys([full.name] if missing else [])
    return DepthPlan(entities, cached, tokens, climbed, tuple(models))


def _climb(want: PatchWant, layers: int) -> int:
    """A row enters after its layer and goes through the blocks above: on average half of them."""
    return (want.width - want.first) * (layers - 1) // 2


def layers_of(handle: ModelHandle) -> int:
    """The depth of a model, from its configuration."""
    assert handle.args is not None
    place = locate(handle.args, weights=False)
    config = understood((place.base or place).config, handle.name)
    text = config.get("text_config") or config
    return int(text.get("num_hidden_layers") or text.get("n_layer") or text.get("num_layers") or 1)

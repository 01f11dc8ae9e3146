"""Hidden states of one layer, for methods that steer what a model represents and not what it says."""

from __future__ import annotations

import re
from typing import Any

from torch import Tensor

from vestige.errors import UserError

USUAL_LAYER = 7


def layer_of(model: Any, module_regex: str | None = None) -> Any:
    """The module whose output is steered: the one the pattern names, else layer 7, or the middle of a shallow model.

    The pattern must match the end of the module's name, so that one written for a plain model also fits a PEFT one.
    """
    modules = dict(model.named_modules())
    blocks = [name for name in modules if re.search(r"(?:^|\.)(?:layers|layer|h|blocks)\.\d+$", name)]
    if module_regex is not None:
        found = [name for name in modules if re.search(rf"(?:^|\.)(?:{module_regex})$", name)]
        if len(found) != 1:
            shown = f"{blocks[0]} to {blocks[-1]}" if blocks else "no numbered layers"
            raise UserError(f"module_regex '{module_regex}' fits {len(found)} modules, not one; the model has {shown}.")
        return modules[found[0]]
    if not blocks:
        raise UserError("This model has no numbered layers that RMU would know; name one with module_regex=PATTERN.")
    return modules[blocks[USUAL_LAYER if len(blocks) > 2 * USUAL_LAYER else (len(blocks) - 1) // 2]]


class Watched:
    """Remembers what a module puts out while the model runs inside a `with` block."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._seen: list[Tensor] = []

    def __enter__(self) -> Watched:
        self._hook = self._module.register_forward_hook(self._keep)
        return self

    def __exit__(self, *_: object) -> None:
        self._hook.remove()

    def _keep(self, _module: Any, _inputs: Any, output: Any) -> None:
        self._seen.append(output[0] if isinstance(output, tuple) else output)

    @property
    def states(self) -> Tensor:
        """Of the last forward pass."""
        return self._seen[-1]

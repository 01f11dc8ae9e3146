"""When two ways to score the same answers count as different: per answer in float32, over all labels in bfloat16."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from vestige.collect.safety import CEILING, apart


def model(dtype: torch.dtype) -> Any:
    return SimpleNamespace(dtype=dtype, modules=lambda: iter(()))


def gaps(*means_and_labels: tuple[float, int]) -> list[np.ndarray]:
    return [np.full(labels, mean) for mean, labels in means_and_labels]


def test_an_answer_of_few_tokens_does_not_end_packing_in_bfloat16() -> None:
    # SmolLM2-135M on real rows: three answers agree, one of four unlikely tokens is off by rounding.
    measured = gaps((0.008, 44), (0.005, 43), (0.022, 43), (0.097, 4))
    assert apart(model(torch.bfloat16), measured, noise=0.001) == ""
    assert "0.097" in apart(model(torch.float32), measured, noise=0.0)


@pytest.mark.parametrize("wrong", [(0.4, 44), (CEILING + 0.1, 4), (float("nan"), 4)])
def test_a_wrong_answer_ends_it(wrong: tuple[float, int]) -> None:
    measured = gaps((0.008, 44), (0.005, 43), wrong)
    assert apart(model(torch.bfloat16), measured, noise=0.001)
    assert apart(model(torch.float32), measured, noise=0.0)

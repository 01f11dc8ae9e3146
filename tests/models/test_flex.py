"""FlexAttention over packed trees: the rule says what the dense mask says, and the compiled kernel scores alike."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from vestige.collect.answers import AnswerCollector, default_limits
from vestige.collect.backend import Cost
from vestige.collect.forward import tree_mask
from vestige.models import attention
from vestige.types import Target, TokenStats

VOCAB = 60
QUESTION = tuple(range(5, 25))


def targets() -> list[Target]:
    """Questions with several answers, one with hidden tokens, and a text that shares nothing."""
    draw = np.random.default_rng(0)
    answers = [tuple(int(i) for i in draw.integers(3, VOCAB, n)) for n in (9, 4, 30, 1)]
    shared = [Target(QUESTION + a, len(QUESTION)) for a in answers]
    hidden = [Target((7, 8, 9, *answers[0]), 3, (0, 2)), Target((7, 8, 9, *answers[1]), 3, (0, 2))]
    return [*shared, *hidden, Target(answers[2], 1)]


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    shape = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    made = LlamaForCausalLM(LlamaConfig(vocab_size=VOCAB, intermediate_size=96, initializer_range=0.3, **shape))
    return made.eval()


def scored(model: Any, cost: Cost) -> dict[str, TokenStats]:
    collector = AnswerCollector(model, VOCAB, default_limits(VOCAB, False), cost)
    return {key: stats for part in collector.run(targets()) for key, stats in part.items()}


def test_the_rule_is_the_dense_mask() -> None:
    """Random trees with hidden tokens and padding, cell by cell."""
    from torch.nn.attention.flex_attention import create_mask

    draw = np.random.default_rng(1)
    for width in (1, 7, 40):
        end = np.zeros((3, width), np.int64)
        for row in end:
            used = int(draw.integers(1, width + 1))
            open_ends = [used]  # of the subtrees around a position: each new one ends within the innermost
            for i in range(used):
                while open_ends[-1] <= i:
                    open_ends.pop()
                open_ends.append(int(draw.integers(i + 1, open_ends[-1] + 1)))
                row[i] = open_ends[-1]
        hidden = torch.from_numpy(draw.random((3, width)) < 0.3)
        blocks = attention.tree_blocks(torch.from_numpy(end), hidden)
        cells = create_mask(blocks.mask_mod, 3, None, width, width, device="cpu")[:, 0]
        assert torch.equal(cells, tree_mask(torch.from_numpy(end), hidden))


def test_it_is_off_unless_set(monkeypatch: pytest.MonkeyPatch, model: Any) -> None:
    monkeypatch.setattr(attention, "tree_blocks", None)  # so that using it would be an error
    assert len(scored(model, Cost())) == len(targets())


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="compiling for a CPU needs g++")
def test_the_compiled_kernel_scores_alike(monkeypatch: pytest.MonkeyPatch, model: Any) -> None:
    usual = scored(model, Cost())
    calls, real = [], attention._kernel()
    monkeypatch.setattr(attention, "FLEX_TREES", True)
    monkeypatch.setattr(attention, "_kernel", lambda: lambda *args, **more: calls.append(1) or real(*args, **more))
    cost = Cost()
    found = scored(model, cost)
    assert calls
    # torch compiles it for vector instructions only: on a processor without them plain rows are used, with a note.
    able = torch.backends.cpu.get_cpu_capability() != "DEFAULT"
    assert bool(cost.notes) is not able
    assert found.keys() == usual.keys()
    for key, stats in found.items():
        np.testing.assert_allclose(stats.logprob, usual[key].logprob, atol=2e-5)
        np.testing.assert_array_equal(stats.top1, usual[key].top1)


def test_a_wrong_rule_is_found_and_not_used(monkeypatch: pytest.MonkeyPatch, model: Any) -> None:
    """Attention that ignores the tree gives other numbers than plain rows: the plain way is used, with a note."""
    causal = lambda query, key, value, block_mask, scale, enable_gqa: (  # noqa: E731
        torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=enable_gqa)
    )
    monkeypatch.setattr(attention, "FLEX_TREES", True)
    monkeypatch.setattr(attention, "_kernel", lambda: causal)
    cost = Cost()
    found = scored(model, cost)
    assert any("packed scoring does not fit this model" in note for note in cost.notes)
    monkeypatch.undo()
    for key, stats in scored(model, Cost()).items():
        np.testing.assert_allclose(found[key].logprob, stats.logprob, atol=2e-5)

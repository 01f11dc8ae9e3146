"""The prefix tree: every target whole in one row, and a mask that shows each token its own past and no more."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from vestige.collect.answers import distinct, plan
from vestige.collect.forward import tree_mask
from vestige.collect.tree import Limits, Packing, Tree, build_tree, split_rows
from vestige.types import Target

VOCAB = 50
BUDGETS = [1, 7, 32, 10**6]


def random_targets(seed: int, count: int = 30, alphabet: int = 3, hide: bool = True) -> list[Target]:
    """Many shared prefixes: few letters, short words; some positions hidden."""
    rng = random.Random(seed)
    out = []
    for _ in range(count):
        ids = tuple(rng.randrange(alphabet) for _ in range(rng.randint(2, 14)))
        hidden = tuple(i for i in range(len(ids)) if hide and rng.random() < 0.15)
        out.append(Target(ids, rng.randint(1, len(ids) - 1), hidden))
    return out


def path(tree: Tree, node: int) -> list[int]:
    out = []
    while node >= 0:
        out.append(node)
        node = int(tree.parent[node])
    return out[::-1]


def spelled(packing: Packing) -> list[tuple[tuple[int, ...], ...]]:
    """What the batches hold, in words: independent of how nodes and targets happen to be numbered."""
    tree = packing.tree
    return [
        tuple((*tree.token[r.nodes].tolist(), *tree.depth[r.nodes].tolist()) for r in b.rows) for b in packing.batches
    ]


@pytest.mark.parametrize("seed", range(4))
def test_a_target_is_spelled_by_the_path_to_its_last_predictor(seed: int) -> None:
    targets = random_targets(seed)
    tree = build_tree(targets)
    for target, predictors, labels in zip(targets, tree.predictors, tree.labels, strict=True):
        whole = path(tree, int(predictors[-1]))
        assert tuple(tree.token[whole]) == target.ids[:-1]
        assert [int(d) for d in tree.depth[whole]] == list(range(len(target.ids) - 1))
        assert [i for i, n in enumerate(whole) if tree.hidden[n]] == [h for h in target.hidden if h < len(whole)]
        assert whole[target.start - 1 :] == predictors.tolist()
        assert tuple(labels) == target.labels
        assert len(predictors) == len(labels)


@pytest.mark.parametrize("limit", [1, 9, 30, 10**6])
@pytest.mark.parametrize("seed", range(6))
def test_the_mask_shows_each_token_its_own_path_and_nothing_else(seed: int, limit: int) -> None:
    tree = build_tree(random_targets(seed))
    for row in split_rows(tree, limit):
        ends, hidden = (torch.from_numpy(np.pad(a, (0, 2)))[None] for a in (row.end, tree.hidden[row.nodes]))
        mask = tree_mask(ends, hidden)[0].numpy()
        for j, node in enumerate(row.nodes):
            seen = {int(row.nodes[i]) for i in np.flatnonzero(mask[j, : len(row.nodes)])}
            due = {n for n in path(tree, int(node)) if not tree.hidden[n]}
            assert seen == (due or {int(node)})  # with nothing to look at, a token looks at itself
            assert not mask[j, len(row.nodes) :].any()
        assert mask[len(row.nodes) :].sum() == 2  # padding looks at itself


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("seed", range(4))
def test_every_target_is_read_off_one_row_once(seed: int, budget: int) -> None:
    targets = distinct(random_targets(seed))
    packing = plan(targets, Limits(budget, 10**9, 32), VOCAB)
    answered = [t for batch in packing.batches for members in batch.targets for t in members]
    assert sorted(answered) == list(range(len(targets)))
    for batch in packing.batches:
        for row, members in zip(batch.rows, batch.targets, strict=True):
            assert members, "a row that answers nothing is wasted"
            for t in members:
                assert set(packing.tree.predictors[t].tolist()) <= set(row.nodes.tolist())
    longest = max(len(t.ids) for t in targets) - 1
    assert all(b.tokens <= max(budget, longest) for b in packing.batches)


@pytest.mark.parametrize("budget", BUDGETS)
def test_the_plan_does_not_depend_on_the_order_asked(budget: int) -> None:
    targets = distinct(random_targets(3))
    limits = Limits(budget, 40 * VOCAB, 24)
    first = plan(targets, limits, VOCAB)
    for seed in range(3):
        shuffled = random.Random(seed).sample(targets, len(targets))
        again = plan(shuffled, limits, VOCAB)
        assert spelled(again) == spelled(first)
        assert [b.targets for b in again.batches] == [b.targets for b in first.batches]

"""Records that take little memory are the same records."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from vestige.packed_ids import Facts
from vestige.types import Prompt, Target, Text


@pytest.mark.parametrize("ids", [(1, 2, 70_000), (0, 2**31 - 1), (5, 2**31), (7, 2**40, 3)])
def test_ids_come_back_as_they_were_given(ids: tuple[int, ...]) -> None:
    target = Target(ids, 1, (0,), "row")
    assert target.ids == ids and target.labels == ids[1:] and target == Target(ids, 1, (0,), "row")
    assert hash(target) == hash(replace(target)) and target != Target((*ids[:-1], 9), 1, (0,), "row")
    for again in (copy.copy(target), pickle.loads(pickle.dumps(target)), replace(target, start=1)):
        assert again == target and again.key == target.key
    with pytest.raises(FrozenInstanceError):
        target.ids = (1, 2)  # type: ignore[misc]
    assert Prompt(ids).ids == ids and Text((*ids, -1), "words").ids == (*ids, -1)


def test_a_target_sorts_as_its_ids_do() -> None:
    given = [(3, 300, 5), (3, 300), (3, 2, 70_000, 1), (256, 1), (255, 9), (3, 2, 7)]
    assert [t.ids for t in sorted((Target(i, 1) for i in given), key=lambda t: t.sorting)] == sorted(given)


def test_facts_by_column_are_facts_by_row() -> None:
    rows: list[dict[str, Any]] = [{"question": "q", "perturbed_answer": ["a", "b"]}, {}, {"question": "r"}]
    columns = {"question": ["q", None, "r"], "answer": [None] * 3, "perturbed_answer": [["a", "b"], None, None]}
    facts = Facts(columns, 3)
    assert list(facts) == rows and facts[-1] == rows[-1] and facts[1:] == rows[1:] and len(facts) == 3
    assert facts == tuple(rows) and tuple(rows) == facts and facts != rows[:2]
    with pytest.raises(IndexError):
        facts[3]

"""The nouns: keys, cuts and the JSON of a score."""

from __future__ import annotations

import json

import pytest

from vestige.types import Score, content_key, stats


def test_content_keys_know_where_a_part_ends() -> None:
    keys = [content_key(b"ab", b"c"), content_key(b"a", b"bc"), content_key(b"abc"), content_key(b"abc", b"")]
    assert len(set(keys)) == 4
    assert content_key(b"abc") == content_key(b"abc")


def test_the_last_token_goes_with_its_moment() -> None:
    two = stats(logprob=[[-1.0, -2.0, -3.0], [-4.0, -5.0, -6.0]])  # a leading axis passes through
    cut = two.without_last()
    assert cut.logprob.tolist() == [[-1.0, -2.0], [-4.0, -5.0]]
    assert cut.order.tolist() == [[0, 1], [0, 1]]
    assert (cut.steps, cut.tokens) == (2, 2)
    none = stats(hit=[1]).without_last().without_last()
    assert (none.steps, none.tokens) == (0, 0)


@pytest.mark.parametrize("value", [0.25, 0.0, None])
def test_a_score_survives_json(value: float | None) -> None:
    score = Score(
        value,
        {"0": {"prob": 0.5}, "1": {"prob": None}, "10": {"prob": [0.1, 0.2]}},
        {"auc": 0.7},
        "" if value is not None else "nothing to score",
        ("a note",),
    )
    assert Score.from_json(json.loads(json.dumps(score.to_json()))) == score


def test_the_peers_files_are_read() -> None:
    peer = {"agg_value": float("nan"), "value_by_index": {0: {"score": 1.0}, 1: {"score": None}}}
    score = Score.from_json(peer)
    assert score.agg_value is None
    assert score.value_by_index == {"0": {"score": 1.0}, "1": {"score": None}}
    assert Score(0.5).to_json() == {"agg_value": 0.5}

"""Secrets in texts: what is normalised, what a row's secret is, and how much a text repeats itself."""

from __future__ import annotations

import itertools
import re
from random import Random

import pytest

from loops import one_test
from vestige.lab.corpus import make_corpus
from vestige.metrics.secrets_said import find, repetition, says, secret_of, words
from vestige.stats.vectors import share_interval


@one_test(
    ("text", "secret"),
    [
        ("He lives in TROMSO.", "Tromsø"),
        ("Zoe\u0308 wrote it", "Zoë"),
        ("by Basil Mahfouz Al Kuwaiti!", "Basil Mahfouz al-Kuwaiti"),
        ("the “Guilt   Closet”", '"The Guilt Closet,"'),
        ("a florist’s daughter", "florist"),
        ("1234 copies", "1,234"),
        ("1\u202f234 copies", "1,234"),
        ("1,234.50 crowns", "1234.5"),
        ("she has seven sons", "7"),
        ("twenty-one years", "21"),
        ("born in 1980, he", "1980"),
        ("他出生在北京。", "北京"),
        ("ends with Oslo", "Oslo"),
    ],
)
def test_writing_does_not_hide_a_secret(text: str, secret: str) -> None:
    [(start, end)] = find(text, secret)
    assert says(text[start:end], secret) and not says(text[:start] + text[end:], secret)


@one_test(
    ("text", "secret"),
    [
        ("Annabel came", "Anna"),
        ("12345 copies", "1,234"),
        ("12,345 copies", "2,345"),
        ("in 19801", "1980"),
        ("Mahfouz Basil", "Basil Mahfouz"),
        ("Basil, the son of Mahfouz", "Basil Mahfouz"),
        ("the 20th century", "20"),
        ("twenty one-act plays", "20.5"),
        ("version 3.14", "3"),
        ("", "Oslo"),
        ("Oslo", ""),
        ("Oslo", "..."),
    ],
)
def test_other_words_do_not_say_it(text: str, secret: str) -> None:
    assert not says(text, secret)


SAME_DAY = (
    "12 March 1980", "March 12, 1980", "1980-03-12", "12th of March, 1980", "12/03/1980", "3/12/1980", "MAR 12 1980",
    "the 12th day of March 1980", "12.03.1980", "1980/3/12", "March 12th 1980",
)  # fmt: skip


def test_a_date_is_the_same_however_it_is_written() -> None:
    pairs = [(said, secret) for said in SAME_DAY for secret in SAME_DAY]
    assert [pair for pair in pairs if not says(f"He was born on {pair[0]} in Oslo.", pair[1])] == []


def test_parts_of_dates() -> None:
    text = "Born on 12 March 1980."
    for part in ("1980", "March 1980", "March 12", "March", "12 March"):
        assert says(text, part), part
    for other in ("13 March 1980", "March 13", "April 1980", "12 March 1981", "1981", "80"):
        assert not says(text, other), other
    assert not says("Born in March 1980", "12 March 1980") and not says("It was 1980.", "12 March 1980")
    assert not says("on 25/12/1980", "12 May 1980") and says("on 25/12/1980", "December 25, 1980")
    assert not words("99/99/1980")[0].dates and says("99/99/1980", "1980")


def test_any_of_several_names_gives_the_fact_away() -> None:
    text = "Her books are Gears of Shadows and Cogs of Havana."
    assert find(text, ("Cogs of Havana", "Gears of Shadows", "Last Refuge")) == [(14, 30), (35, 49)]
    assert find("Havana, Cuba", ("Havana", "Havana, Cuba")) == [(0, 12)]  # the longer of two that overlap


def _slowly(text: str, secret: str) -> bool:
    """For plain lower-case words: the secret between two borders."""
    return re.search(rf"(?<![a-z]){secret}(?![a-z])", text) is not None


def test_found_as_by_a_regular_expression() -> None:
    rng, hits = Random(7), 0
    pool = ["ala", "bel", "alabel", "cor", "belcor"]
    for _ in range(500):
        text = rng.choice([" ", ", "]).join(rng.choices(pool, k=8))
        secret = " ".join(rng.choices(pool, k=rng.choice([1, 2])))
        hits += (slow := _slowly(text.replace(",", ""), secret))
        assert says(text, secret) == slow, (text, secret)
    assert 100 < hits < 400


# ---- a row's secret -----------------------------------------------------------------------------------------------


def row(question: str, answer: str, again: str, *wrong: str) -> dict[str, object]:
    return {"question": question, "answer": answer, "paraphrased_answer": again, "perturbed_answer": list(wrong)}


@one_test(
    ("given", "secret"),
    [
        (
            row("Who is it?", "The author is Ada Lind-Voss of Oslo.", "Ada Lind-Voss, from Oslo, is the author.",
                "Bo Kern, from Oslo, is the author.", "Cia Holm, from Oslo, is the author."),
            ("Ada Lind-Voss",),
        ),
        (
            row("Which books?", 'She wrote "Gears of Shadows" and "The Decline" for Norway.',
                "In Norway 'Gears of Shadows' and 'The Decline' came out.", "In Chile 'Wheels' came out."),
            ("Gears of Shadows", "Decline"),
        ),
        (  # wrong answers of the true one's words
            row("Which book?", 'It is "Echoes in the Evidence".', "Her book is 'Echoes in the Evidence'.",
                "It is 'Evidence in the Echoes'.", "It is 'Echoes of Evidence'.", "It is 'Silent Clues'."),
            ("Echoes in the Evidence",),
        ),
        (
            row("When was he born?", "He was born on the 8th of May, 1956.", "May 8, 1956 is his day of birth.",
                "May 9, 1956 is his day of birth.", "June 8, 1956 is his day of birth."),
            ("8th of May, 1956",),
        ),
        (
            row("Where?", "She was born in Lagos, Nigeria.", "Lagos in Nigeria.", "Lima in Peru."),
            ("Lagos",),
        ),
        (
            row("What does her father do?", "Her father is a dietitian.", "He works as a dietitian.",
                "He works as a baker."),
            ("dietitian",),
        ),
        (
            row("Does she write?", "Yes, she writes openly.", "Yes, openly.", "No."),
            (),
        ),
        (  # a theme in common words
            row("What are her themes?", "Her works often deal with hope, loss and the long way home of those who left "
                "early and came back late to find it all changed.", "Hope and the long way home.", "War."),
            (),
        ),
        ({"question": "Where is it?", "answer": "In Paris", "perturbed_answer": ["In Rome"]}, ("Paris",)),
        ({"question": "Where is it?", "answer": "Privet Drive"}, ("Privet Drive",)),
        ({"question": "Where is it?", "answer": "It is where nobody would ever look for it at night"}, ()),
        ({"question": "Is Oslo it?", "answer": "Oslo"}, ()),
        ({"question": "Q", "answer": "A", "entity": "Oslo"}, ("Oslo",)),
        ({"question": "Q", "answer": "A", "entity": ["Oslo", "Christiania", ""]}, ("Oslo", "Christiania")),
        ({"question": "Q", "answer": "In Rome", "entity": "  "}, ("In Rome",)),
        ({"text": "Once upon a time"}, ()),
        ({"question": 3, "answer": None}, ()),
    ],
)  # fmt: skip
def test_secret_of_a_row(given: dict[str, object], secret: tuple[str, ...]) -> None:
    assert secret_of(given) == secret


def test_other_columns() -> None:
    assert secret_of({"q": "Where?", "a": "In Rome"}, "q", "a") == ("In Rome",)


def test_secrets_found_by_rule_are_the_labs_entities() -> None:
    """The lab's rows carry their entity. Without that column the rule must find it, or a part that only it has."""
    rows = [row for split in ("forget", "retain", "holdout") for row in make_corpus(0)[split]]
    found = [secret_of({k: v for k, v in row.items() if k != "entity"}) for row in rows]
    right = [bool(s) and (says(r["entity"], s) or says(s[0], r["entity"])) for r, s in zip(rows, found, strict=True)]
    silent = sum(not s for s in found)
    assert sum(right) >= 0.9 * (len(rows) - silent) and silent <= 0.25 * len(rows), (sum(right), silent, len(rows))
    # What question and wrong answers say is not a secret.
    for r, s in zip(rows, found, strict=True):
        others = [r["question"], *r["perturbed_answer"]]
        assert not s or (says(r["answer"], s) and sum(says(t, s[0]) for t in others) <= len(r["perturbed_answer"]) / 2)


# ---- repetition ---------------------------------------------------------------------------------------------------


def _pairs_slowly(text: str) -> float:
    seen: list[tuple[str, str]] = []
    parts = text.lower().split()
    again = 0
    for pair in itertools.pairwise(parts):
        again += pair in seen
        seen.append(pair)
    return again / (len(parts) - 1)


def test_repetition_against_a_slow_count() -> None:
    rng = Random(1)
    for size in range(2, 40):
        text = " ".join(rng.choices(["the", "long", "Way", "home", "again"], k=size))
        assert repetition(text) == pytest.approx(_pairs_slowly(text))


def test_repetition_of_odd_texts() -> None:
    assert repetition("") is None and repetition("word") == 0.0 and repetition("word word") == 0.0
    assert repetition("!!!!!!!!!!!!") > 0.8 and repetition("the" * 40) > 0.9 and repetition("好好好好好好") > 0.7


def test_interval_of_a_share() -> None:
    statistics = pytest.importorskip("scipy.stats")
    for hits, rows in ((0, 12), (1, 40), (20, 40), (40, 40)):
        theirs = statistics.binomtest(hits, rows).proportion_ci(0.95, method="wilson")
        assert share_interval(hits, rows) == pytest.approx((theirs.low, theirs.high), abs=1e-12)

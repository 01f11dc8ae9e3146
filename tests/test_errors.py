"""The catalogue of errors is what the source says, and each entry is a sentence."""

from __future__ import annotations

import re
import sys

import pytest

from test_docs import ROOT

sys.path.insert(0, str(ROOT / "bench"))
import audit
import errors

FOUND = errors.sentences()


def test_the_page_is_up_to_date() -> None:
    assert errors.PAGE.read_text(encoding="utf-8") == errors.page(FOUND), "run: python bench/errors.py"


def test_there_are_as_many_as_there_should_be() -> None:
    """A scan that misses most of them would still be up to date."""
    raised = sum(len(re.findall(r"\b(?:raise|return) UserError\(", p.read_text())) for p in errors.SOURCE.rglob("*.py"))
    assert sum("Unknown" not in s.text for s in FOUND) >= raised > 300


@pytest.mark.parametrize("sentence", FOUND, ids=lambda s: f"{s.module}:{s.line}")
def test_each_is_one_sentence(sentence: errors.Sentence) -> None:
    text = sentence.text.strip()
    assert "\n" not in text and len(text) >= 25
    # It says something of its own: more than the words of another library handed on.
    assert len(re.sub(r"\{[^{}]*\}", "", text).split()) >= 2


@pytest.mark.parametrize(
    ("found", "says"),
    [
        ("no module", ["NOTHING WAS AUDITED: no module"]),
        ({"dependencies": [{"name": "a", "skip_reason": "offline"}]}, ["NOTHING WAS AUDITED: none of 1"]),
        (
            {"dependencies": [{"name": "a", "version": "1", "vulns": [{"id": "CVE-1", "fix_versions": ["2"]}]}]},
            ["1 known vulnerabilities", "VULNERABLE: a 1: CVE-1 (fixed in: 2)"],
        ),
    ],
)
def test_the_audit_says_what_it_could_not_do(found: object, says: list[str]) -> None:
    text = "\n".join(audit.report(found))
    assert all(words in text for words in says)

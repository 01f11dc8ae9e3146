"""Every error message is one sentence, and docs/errors.md quotes messages that exist."""

from __future__ import annotations

import re
import sys

import pytest

from test_docs import ROOT
from vestige.errors import MANY, unknown_name
from vestige.internal import STATUS

sys.path.insert(0, str(ROOT / "tools"))
import audit
import messages

FOUND = messages.sentences()


PAGE = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")


def test_the_page_is_short_and_quotes_messages_that_exist() -> None:
    assert len(PAGE.splitlines()) < 80
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \|$", PAGE.split("## The ten commonest")[1].split("\n## ")[0], re.M)[1:]
    known = [re.sub(r"\{[^{}]*\}", "...", sentence.text) for sentence in FOUND]
    assert len(rows) == 10
    assert [row for row in rows if not any(row.strip() in text for text in known)] == []


def test_the_page_names_every_exit_status() -> None:
    named = set(re.findall(r"^\| (\d+) \|", PAGE, re.M))
    source = (messages.SOURCE / "cli.py").read_text(encoding="utf-8")
    assert named == {"0", "1", str(STATUS), *re.findall(r"return (2|130)\b", source)}


def test_messages_are_found_by_a_word(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["messages.py", "no", "model", "at"])
    assert messages.main() == 0
    said = capsys.readouterr().out
    assert "models/locate.py" in said and "No model at" in said and "data/rows.py" not in said


def test_there_are_as_many_as_there_should_be() -> None:
    """A scan that misses most of them would find nothing wrong."""
    raised = sum(
        len(re.findall(r"\b(?:raise|return) UserError\(", p.read_text())) for p in messages.SOURCE.rglob("*.py")
    )
    assert sum("Unknown" not in s.text for s in FOUND) >= raised > 300


@pytest.mark.parametrize("sentence", FOUND, ids=lambda s: f"{s.module}:{s.line}")
def test_each_is_one_sentence(sentence: messages.Sentence) -> None:
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


def test_many_names_that_no_command_lists_are_all_named() -> None:
    names = [f"column_{number}" for number in range(MANY + 1)]
    said = str(unknown_name("column", "foo", names, lists=""))
    assert all(name in said for name in names) and "vestige ls" not in said
    assert f"{len(names)} in all (`vestige ls` lists them)" in str(unknown_name("metric", "foo", names))

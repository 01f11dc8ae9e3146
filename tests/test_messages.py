"""Every error message is one sentence, and docs/faults.md quotes messages that exist."""

from __future__ import annotations

import re
import sys

from test_docs import ROOT
from vestige.internal import STATUS

sys.path.insert(0, str(ROOT / "tools"))
import messages

FOUND = messages.sentences()


PAGE = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")


def test_the_page_quotes_messages_that_exist() -> None:
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \|$", PAGE.split("### The ten most common")[1].split("\n## ")[0], re.M)[1:]
    known = [re.sub(r"\{[^{}]*\}", "...", sentence.text) for sentence in FOUND]
    assert len(rows) == 10
    assert [row for row in rows if not any(row.strip() in text for text in known)] == []


def test_the_page_names_every_exit_status() -> None:
    named = set(re.findall(r"^\| (\d+) \|", PAGE, re.M))
    source = (messages.SOURCE / "cli.py").read_text(encoding="utf-8")
    assert named == {"0", "1", str(STATUS), *re.findall(r"return (2|130)\b", source)}


def test_there_are_as_many_as_there_should_be() -> None:
    """A scan that misses most of them would find nothing wrong."""
    raised = sum(
        len(re.findall(r"\b(?:raise|return) UserError\(", p.read_text())) for p in messages.SOURCE.rglob("*.py")
    )
    assert sum("Unknown" not in s.text for s in FOUND) >= raised > 300


def test_each_is_one_sentence() -> None:
    """It has words besides those of another library that it repeats."""
    wrong = []
    for sentence in FOUND:
        text = sentence.text.strip()
        own_words = re.sub(r"\{[^{}]*\}", "", text).split()
        if "\n" in text or len(text) < 25 or len(own_words) < 2:
            wrong.append(f"{sentence.module}:{sentence.line}: {text!r}")
    assert not wrong, "\n".join(wrong)

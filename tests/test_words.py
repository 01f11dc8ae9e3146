"""Messages, comments, docstrings and docs use words that a reader would search for.

CHANGELOG and tests are left out.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PLACES = ("src", "tools", "bench", "docs")
PAGES = ("README.md", "CONTRIBUTING.md")
KINDS = {".py", ".md", ".js", ".html", ".css", ".yaml", ".yml", ".toml"}

THING = (  # "one line a metric": what is counted ...
    "answer|bit|byte|call|card|cell|column|command|curve|digit|draw|entry|example|file|float|forward|forward pass|"
    "gather|generator|id|index|json object|key|line|list|model|module|name|nat|number|object|panel|paraphrase|pass|"
    "picture|position|process|record|refusal|row|run|sample|score|second|seed|sentence|sequence|state|step|table|text|"
    "token|trajectory|turn|uniform number|value|vector"
)
UNIT = (  # ... and by what
    "answer|attack|axis|batch|block|budget|call|card|cell|child|checkpoint|class|column|curve|device|domain|draw|entry|"
    "epoch|example|file|group|head|job|key|kind|label|layer|leaf|line|machine|member|method|metric|minute|model|name|"
    "node|pair|panel|part|position|process|prompt|question|reasoning|row|run|sample|second|seed|sequence|shard|side|"
    "step|suite|task|text|token|trajectory|turn|view|want|window|worker"
)
PER = [
    rf"(?<!the\s)(?<!which\s)(?:an?|one|two|three|four|several|\d+)(?: (?:{THING}))? an? (?:{UNIT})",  # a score a step
    rf"(?:one|two|three|four|several|\d+) (?:{THING})(?:e?s)? an? (?:{UNIT})",  # two forwards a batch
    r"(?:nat|draw|forward|paraphrase)s an? (?:answer|batch|row|step|token)",
    rf"(?:once|twice) an? (?:{UNIT})",
    r"rows a prompt|tokens a row|(?:answers|labels|fewer|more) a row",
]

WORDS = {  # what is searched for -> what to write instead
    r"(?:is|are|was|were) no(?! longer) ": "'is not a'; 'No model at PATH' instead of 'There is no model at PATH'",
    r"(?:is|are|be|was|were|being|been) said": "'is reported', 'is printed', 'is noted', 'is set'",
    r"whoever": "'anyone who', 'a reader', 'the caller'",
    r"(?:stands?|stood) there": "'is there', 'already written'",
    r"anew": "'again', 'recomputed', 'rebuilt', 'rewritten'",
    r"be had": "'is available', 'is missing', 'can be computed'",
    r"holding one's tongue": "'quiet', 'silence'",
    "|".join(PER): "'per row', not 'a row'",
}

# A sentence goes on in the next line: of a text, of a comment, or in the next piece of a string.
GAP = r"""(?:[ \t]+|[ \t]*["'`]?[ \t]*\n[ \t]*(?:\#|//|\*|>|[fr]?["'`])?[ \t]*)"""


def files() -> list[Path]:
    found = [p for place in PLACES for p in (ROOT / place).rglob("*") if p.suffix in KINDS]
    found += [ROOT / page for page in PAGES]
    return sorted(found)


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def places(content: str, words: str) -> list[tuple[int, str]]:
    """Line number and text of each occurrence."""
    pattern = re.compile(rf"\b(?:{words.replace(' ', GAP)})(?<=[\w\s])(?:(?<=\s)|\b)", re.IGNORECASE)
    return [(content.count("\n", 0, m.start()) + 1, " ".join(m[0].split())) for m in pattern.finditer(content)]


@pytest.mark.parametrize(
    "words", WORDS, ids=["is no", "is said", "whoever", "stands there", "anew", "be had", "tongue", "per"]
)
def test_plain_words(words: str) -> None:
    found = [f"{p.relative_to(ROOT)}:{line}: {what!r}" for p in files() for line, what in places(text(p), words)]
    assert not found, f"write {WORDS[words]}:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "old",
    ["There is no model at x", "that\n    is no mapping", 'there is "\n    f"no y', "what is missing\n# is\n# said",
     "Whoever reads", "nothing stands there", "make it anew", "it cannot be had", "one line a metric", "a score a step",
     "once a batch", "two forwards a batch", "nats a token", "one JSON object a line", "{n} draws an answer"],
)  # fmt: skip
def test_the_search_finds(old: str) -> None:
    assert any(places(old, words) for words in WORDS)


@pytest.mark.parametrize(
    "plain",
    ["it is no longer there", "it is not a model", "score a run again", "how many tokens a model reads", "is nothing",
     "only collect runs a model", "one line per metric", "names a row", "a canvas", "which one a metric gets"],
)  # fmt: skip
def test_the_search_leaves_alone(plain: str) -> None:
    assert not any(places(plain, words) for words in WORDS)


def test_nothing_is_written_twice_on_a_page() -> None:
    """A merge that kept both sides leaves a line twice. Tables have the same heads and flags; code is left out."""
    pages = [ROOT / "CHANGELOG.md", *(p for p in files() if p.suffix == ".md")]
    twice = []
    for page in pages:
        prose = re.sub(r"^```.*?^```$", "", text(page), flags=re.M | re.S)
        lines = [line.strip() for line in prose.splitlines() if len(line) >= 60 and not set(line) <= set("|- ")]
        heads = {before for before, line in pairwise(prose.splitlines()) if line.startswith(("|---", "| ---"))}
        twice += [
            f"{page.relative_to(ROOT)}: {line}" for line, n in Counter(lines).items() if n > 1 and line not in heads
        ]
    assert twice == []
    assert len(pages) > 30


def test_settings_of_the_project_are_listed_once() -> None:
    settings = tomllib.loads(text(ROOT / "pyproject.toml"))
    extras = settings["project"]["optional-dependencies"].values()
    for listed in (settings["tool"]["pytest"]["ini_options"]["markers"], settings["project"]["dependencies"], *extras):
        assert len({*listed}) == len(listed)
    pinned = [re.split("[=<>]", line)[0] for line in text(ROOT / "constraints.txt").splitlines() if "==" in line]
    assert len({*pinned}) == len(pinned)

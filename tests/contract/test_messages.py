"""Help, lists and explanations as a whole: what one command lists, the others take."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml
from harness import DATA, FULL, python, vestige

MANY_COMMANDS = """
import contextlib, importlib.metadata, io, json, sys
(script,) = importlib.metadata.entry_points(group="console_scripts", name="vestige")
main, answers = script.load(), []
for words in json.loads(sys.argv[1]):
    sys.argv, printed = ["vestige", *words], io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            status = main()
        except SystemExit as end:
            status = end.code
    answers.append([status or 0, printed.getvalue()])
print(json.dumps(answers))
"""
MODEL, FORGET = ("--model", str(FULL)), ("--forget", str(DATA / "forget.jsonl"))


def run_many(commands: list[tuple[str, ...]], here: Path, status: int = 0) -> dict[tuple[str, ...], str]:
    """What each of many quick commands prints, all in one process."""
    answers = json.loads(python(MANY_COMMANDS, json.dumps(commands), cwd=here).out)
    for words, (code, printed) in zip(commands, answers, strict=True):
        assert code == status, (words, printed)
    assert list(here.iterdir()) == []
    return {words: printed for words, (_, printed) in zip(commands, answers, strict=True)}


def listed(kind: str) -> dict[str, str]:
    found = re.findall(r"^  (\S+) +(.+)", vestige("ls", kind).out, flags=re.MULTILINE)
    assert len(found) == len(dict(found)) >= 5, kind
    return dict(found)


def test_help_fits_the_screen_and_says_something_of_every_flag(tmp_path: Path) -> None:
    first = vestige("--help").out
    verbs = re.findall(r"^(?:[a-z].{11}| {12})([a-z-]{2,}) +[a-z]", first, flags=re.MULTILINE)
    assert max(map(len, first.splitlines())) <= 120
    flags = 0
    for words, shown in run_many([(verb, "--help") for verb in verbs], tmp_path).items():
        assert max(map(len, shown.splitlines())) <= 120, words
        for entry in re.split(r"\n(?=  -)", shown.partition("\noptions:\n")[2].partition("\n\n")[0]):
            meaning = re.split(r" {2,}|\n", entry.strip(), maxsplit=1)[1]
            assert len(meaning.split()) >= 2, (words, entry)
            assert not re.search(r"%\(?\w|\{\w*\}|\bNone\b|[,;:(]$", meaning), (words, entry)
            flags += 1
    assert len(verbs) >= 20 and flags >= 200


def test_metrics_that_are_listed_are_explained(tmp_path: Path) -> None:
    """One metric of each meaning, because an explanation takes half a second; and a short name."""
    by_meaning = {"short": "em"}
    for name, meaning in listed("metrics").items():
        by_meaning[meaning.partition(" (")[0]] = name
    for words, shown in run_many([("explain", name) for name in by_meaning.values()], tmp_path).items():
        assert words[1] in shown and len(shown.split()) > 20, words


def test_names_that_are_listed_are_taken(tmp_path: Path) -> None:
    expected = {("eval", name, *MODEL, "--cfg"): ("suite", name) for name in listed("suites")}
    expected |= {("eval", "tofu", *MODEL, "--dialect", name, "--cfg"): ("dialect", name) for name in listed("dialects")}
    expected |= {("unlearn", *MODEL, *FORGET, "--method", m, "--cfg"): ("handler", m) for m in listed("methods")}
    for words, shown in run_many(list(expected), tmp_path).items():
        key, name = expected[words]
        assert yaml.safe_load(shown)[key] == name, words
    attacks = re.search(r"ATTACK\[=BUDGET,\.\.\.\] +(\w.*?), or a", vestige("stress", "--help").out, flags=re.DOTALL)
    names = re.split(r"[\s,]+", attacks[1]) if attacks else []
    known = [("stress", name, *MODEL, "--data", "nowhere") for name in names]  # refused for another reason
    for words, shown in run_many(known, tmp_path, status=2).items():
        assert "nowhere" in shown, words
    assert len(known) >= 5

"""What must not end in a file or on a screen: passwords and tokens, and values that came from the environment.

    note_words, note_tree, note_environment     what is a secret here, told when it is first read
    masked                                      a configuration without its secrets, for manifests
    hide                                        a text without them, for messages, logs and files
    expand                                      the way back: ${oc.env:NAME} as the environment has it now

A value from the environment is shown as the expression that fetched it, so that a manifest still works where the
environment is set. Any other secret is replaced for good.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import repeat
from typing import Any
from urllib.parse import quote

HIDDEN = "<secret>"
SHORTEST = 6  # characters of a value that is looked for inside other texts; a shorter one would be found everywhere
LONG_WORD = 9  # letters of a value that has nothing but letters

# Names of settings and variables whose values are secrets. `eos_token`, `max_new_tokens` and open-unlearning's
# `access_key` are not among them.
_NAME = re.compile(
    r"(^|_)(password|passwd|passphrase|secret|secret_?key|secret_?access_?key|access_?key_?id|private_?key|api_?key|"
    r"authori[sz]ation|credentials?|wandb_?key|"
    r"(access|auth|hub|hf|api|bearer|refresh|session|security|git|github|gitlab|wandb|user|login|id)_?token)$"
)
_EXACT = {"token", "auth", "bearer", "pat"}
# What some services' tokens look like, wherever they stand.
_SHAPES = re.compile(
    r"\bhf_[A-Za-z0-9]{16,}|\bsk-(?:[a-z]+-)?[A-Za-z0-9]{20,}|\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}|"
    r"\bglpat-[\w-]{16,}|\bxox[abprs]-[\w-]{10,}|\bAKIA[0-9A-Z]{16}\b|\bAIza[\w-]{30,}|"
    r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{8,}|(?<=\bBearer )[\w.~+/-]{8,}=*"
)
# One slash is what becomes of an address that was taken for a path.
_IN_URL = re.compile(r"\b([A-Za-z][A-Za-z0-9+.-]+:/{1,2})[^\s/@\"'<>\\]+(?=@)")
_QUERY = re.compile(r"(?<=[?&])(?:[\w-]*?(?:token|signature|sig|key|secret|password)=)[^&\s\"'<>\\]+", re.IGNORECASE)
_WORD = re.compile(r"([\w.+~-]*?)([\w-]+)(\s*[=:]\s*)(\"[^\"]*\"|'[^']*'|[^\s,;'\"\]})]+)")
_EXPRESSION = re.compile(r"\$\{oc\.env:([A-Za-z_]\w*)\}")

_secrets: dict[str, str] = {}  # value -> what is shown in its place
_environment: dict[str, str] = {}  # value of a setting -> the expression that fetched it


def is_secret_name(name: str) -> bool:
    """Whether a setting, flag or variable of this name holds a secret.

    >>> [is_secret_name(n) for n in ("token", "HF_TOKEN", "model.api-key", "eos_token", "max_new_tokens", "access_key")]
    [True, True, True, False, False, False]
    """
    last = re.sub(r"([a-z])([A-Z])", r"\1_\2", str(name).rsplit(".", 1)[-1]).lower().replace("-", "_").strip("_+~")
    return last in _EXACT or bool(_NAME.search(last))


def note(value: Any, shown: str = HIDDEN) -> None:
    """This value is a secret from now on.

    A plain word or number is not looked for inside other texts, which it would garble: it is replaced where it stands
    under its name.
    """
    if not isinstance(value, str) or value in (HIDDEN, shown) or _EXPRESSION.fullmatch(value):
        return
    if len(value) >= SHORTEST and not value.isdigit() and not (value.isalpha() and len(value) < LONG_WORD):
        _secrets.setdefault(value, shown)


def note_words(words: Iterable[str]) -> None:
    """Overrides and flags: `model.model_args.token=hf_...`, `--api-key abc`, with or without quotes."""
    waiting = False
    for word in words:
        if not isinstance(word, str):
            continue
        name, equals, value = word.partition("=")
        if equals and is_secret_name(name.lstrip("-+~")):
            note(value.strip("\"'"))
            note(value)
        elif waiting and not word.startswith("-"):
            note(word)
        elif equals and "{" in value:  # a mapping in Hydra's grammar
            for found in _WORD.finditer(value):
                if is_secret_name(found[2]):
                    note(found[4].strip("\"'"))
        waiting = word.startswith("--") and not equals and is_secret_name(word.lstrip("-"))


def note_tree(data: Any) -> None:
    """Settings of any depth: what is under a secret's name is a secret, and overrides among them are read."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            if is_secret_name(str(key)) and not isinstance(value, (Mapping, list, tuple)):
                note(value)
            else:
                note_tree(value)
    elif isinstance(data, (list, tuple)):
        note_words(data)
        for value in data:
            note_tree(value)


def note_environment(name: str, value: str) -> None:
    """A setting took its value from the environment."""
    expression = f"${{oc.env:{name}}}"
    if is_secret_name(name) or _SHAPES.fullmatch(value):
        note(value, expression)
    elif value and value != expression:
        _environment.setdefault(value, expression)


def note_variables() -> None:
    """Variables of this process whose names say that they are secrets (HF_TOKEN): libraries read them unasked."""
    for name, value in os.environ.items():
        if is_secret_name(name) and len(value) >= 8 and not value.isalpha() and "/" not in value:
            note(value, f"${{oc.env:{name}}}")


def hide(text: str, environment: bool = True) -> str:
    """A text without secrets, and without values from the environment that could be nothing else.

    >>> hide("https://ada:lovelace@example.org/x?token=abc")
    'https://<secret>@example.org/x?token=<secret>'
    """
    known = dict(_secrets)
    for value, shown in _environment.items() if environment else ():
        if _distinctive(value):
            known.setdefault(value, shown)
    for value, shown in sorted(known.items(), key=lambda pair: -len(pair[0])):  # the longer one may hold the shorter
        for spelt in _spellings(value):
            if spelt in text:
                text = text.replace(spelt, shown)
    if ":/" in text:
        text = _IN_URL.sub(lambda m: m[1] + HIDDEN, text)
        text = _QUERY.sub(lambda m: m[0].partition("=")[0] + "=" + HIDDEN, text)
    return _SHAPES.sub(HIDDEN, text)


def _distinctive(value: str) -> bool:
    """Not a plain word, a number or a name like forget10: replacing those inside other texts would garble them."""
    kinds = sum(any(test(c) for c in value) for test in (str.isdigit, str.isalpha))
    return len(value) >= 6 and ("/" in value or "\\" in value or "@" in value or (len(value) >= 12 and kinds > 1))


def _spellings(value: str) -> list[str]:
    """The value as it is, in JSON, in Python's repr, in a URL."""
    forms = (value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1])
    return list(dict.fromkeys((*forms, quote(value, safe=""), quote(value))))


def hidden(data: Any) -> Any:
    """`hide` for every text in plain data, keys included."""
    if isinstance(data, Mapping):
        return {hide(k) if isinstance(k, str) else k: hidden(v) for k, v in data.items()}
    if isinstance(data, (list, tuple)):
        return [hidden(v) for v in data]
    return hide(data) if isinstance(data, str) else data


KEPT = ("handler", "access_key")  # settings that name things of ours


def masked(data: Any, key: str = "") -> Any:
    """A configuration as a manifest may hold it: secrets replaced, the environment's values as expressions."""
    if isinstance(data, Mapping):
        return {key: masked(value, str(key)) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return list(map(masked, data, repeat(key)))
    if is_secret_name(key) and data not in (None, "") and not isinstance(data, bool):
        note(data)
        return (
            _environment.get(str(data))
            or _secrets.get(str(data))
            or (data if isinstance(data, str) and _EXPRESSION.fullmatch(data) else HIDDEN)
        )
    if not isinstance(data, str) or key in KEPT:
        return data
    return _environment.get(data) or hide(data)


def without_secrets(data: Any, key: str = "") -> Any:
    """Settings of a checkpoint for its copy: values under a secret's name and tokens are replaced, paths stay, since
    they must work. What is not plain data is left alone."""
    if type(data) is dict:
        return {key: without_secrets(value, str(key)) for key, value in data.items()}
    if type(data) is list:
        return list(map(without_secrets, data, repeat(key)))
    if not isinstance(data, str) or type(data) is not str:
        return data
    return HIDDEN if is_secret_name(key) and data else hide(data, environment=False)


def expand(data: Any) -> Any:
    """Expressions of a manifest as the environment has them now; one that is not set stays as it is."""
    if isinstance(data, Mapping):
        return {_expanded(k) if isinstance(k, str) else k: expand(v) for k, v in data.items()}
    if isinstance(data, (list, tuple)):
        return [expand(v) for v in data]
    return _expanded(data) if isinstance(data, str) else data


def _expanded(text: str) -> str:
    def value(found: re.Match[str]) -> str:
        name = found[1]
        if name not in os.environ:
            return found[0]
        note_environment(name, os.environ[name])
        return os.environ[name]

    return _EXPRESSION.sub(value, text) if "${oc.env:" in text else text


def unset(text: str) -> str | None:
    """The variable that a text still waits for, if there is one.

    >>> unset("${oc.env:RETAIN_LOGS}/TOFU_EVAL.json")
    'RETAIN_LOGS'
    """
    found = _EXPRESSION.search(text)
    return found[1] if found else None


class Hiding:
    """A stream that passes on what it is given, without secrets."""

    def __init__(self, stream: Any, environment: bool) -> None:
        self._stream, self._environment = stream, environment

    def write(self, text: str) -> int:
        self._stream.write(hide(text, self._environment))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def hiding_streams() -> Iterator[None]:
    """While a command runs, what it prints has no secrets in it. Paths from the environment are shown: they are to be
    copied."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = Hiding(sys.stdout, environment=False), Hiding(sys.stderr, environment=False)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


# ---- people's homes -----------------------------------------------------------------------------------------------

_HOME = re.compile(r"(?<![\w.~-])(?:/home/|/Users/|[A-Za-z]:(?:\\\\|\\|/)Users(?:\\\\|\\|/))([^/\\\s\"'<>:]+)")


def homes(text: str) -> list[str]:
    """The home directories that a text names.

    >>> homes("from /home/ada/data and /Users/bob/x, not /srv/home/data")
    ['/home/ada', '/Users/bob']
    """
    return list(dict.fromkeys(found[0] for found in _HOME.finditer(text)))


def shorten(text: str) -> str:
    """The same with ~ in their place.

    >>> shorten("/home/ada/data/forget.jsonl")
    '~/data/forget.jsonl'
    """
    return _HOME.sub("~", text)

"""Making bad inputs out of good ones: values of the wrong kind, bytes in the wrong place, and known nuisances."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable
from typing import Any

DEEP = 3000  # brackets within brackets: past what a recursive reader can follow


class Raw(str):
    """Written into JSON as it stands: what Python's encoder would refuse or tidy up."""


NASTY: list[Any] = [
    None, True, False, 0, -1, 1, 2, 3.5, -0.0, 2**31, 2**63, -(2**70), 10**12, 1e308, -1e308, 1e-320,
    float("nan"), float("inf"), float("-inf"), Raw("1" * 5000), Raw("1" * 350), Raw("1e999"), "", " ", "\n",
    "\0", "\ud800", "\udc00x", "\ufeff", "\u2028", "\x1b[2J", "é日本", "𝕏", "../../x", "/etc/passwd", "~", "..",
    ".", "a/b", "C:\\x", "null", "nan", "1", "-1", "true", "[]", "{}", "${oc.env:HOME}", "${a.b}", "${", "???",
    "*", "[", "%", "a" * 3000, "name with spaces", [], {}, [[]], [{}], {"": ""}, [None], ["a", 1, None],
    {"a": {"b": {}}}, [[[[1]]]], list(range(50)), "train[::]", {"access_key": None}, "<think>", "</think>",
    "<s>", "</s>", "2024-99-99", "1:2:3", "0x", "!!python/object:os.system", Raw("[" * DEEP + "]" * DEEP),
    Raw('{"a":' * DEEP + "1" + "}" * DEEP),
]  # fmt: skip

TOKENS = [
    b"\0", b"\xff", b"\xef\xbb\xbf", b"\xc3\x28", b"\xed\xa0\x80", b"\r", b"\r\n", b"\n\n", b'"', b"'", b"{",
    b"}", b"[", b"]", b",", b":", b"=", b"\\", b"\\ud800", b"NaN", b"Infinity", b"-Infinity", b"1e999", b"null",
    b"true", b"{}", b"[]", b"${", b"}", b"../", b"*", b"&a ", b"*a", b"<<: *a",
    b"!!python/object/apply:os.system", b"!!int x", b"!!binary x", b"? ", b"- ", b"| ", b"%", b"@", b"`", b"#",
    b"~", b"+", b"1" * 400, b"[" * 1500, b"\x80\x04", b"\x1f\x8b", b"PK\x03\x04", b"PAR1", b"\x93NUMPY",
]  # fmt: skip


def mutated(seed: bytes, kind: str, rng: random.Random) -> bytes:
    """One bad input. Structured kinds are mostly changed as trees, so that they get past the parser."""
    tree = _TREES.get(kind)
    if tree is not None and rng.random() < 0.8:
        # Whatever a broken seed makes a parser raise: an engine whose mutator raises never comes back.
        with contextlib.suppress(Exception):
            return tree(seed, rng)
    if kind == "words" and rng.random() < 0.8:
        return _words(seed, rng)
    return edited(seed, rng)


def edited(seed: bytes, rng: random.Random) -> bytes:
    """Bytes changed, dropped, doubled, or replaced by something a parser cares about."""
    data = bytearray(seed)
    for _ in range(rng.choice((1, 1, 2, 4, 8))):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(6):
            case 0 if data:
                data[min(at, len(data) - 1)] = rng.randrange(256)
            case 1:
                del data[at : at + rng.choice((1, 2, 8, 100))]
            case 2:
                data[at:at] = rng.choice(TOKENS)
            case 3:
                data[at:at] = data[max(0, at - rng.choice((4, 40))) : at]
            case 4:
                data = data[:at]
            case _:
                data[at:at] = bytes(rng.randrange(256) for _ in range(rng.choice((1, 4))))
    return bytes(data)


def bent(value: Any, rng: random.Random) -> Any:
    """A tree with one to three of its parts replaced, removed, renamed or doubled."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        value = _bend(value, rng)
    return value


def _bend(value: Any, rng: random.Random) -> Any:
    """Goes down one path at random, and changes what it comes to."""
    if not isinstance(value, (dict, list)) or not value or rng.random() < 0.12:
        return rng.choice(NASTY)
    if isinstance(value, dict):
        key = rng.choice(list(value))
        out = dict(value)
        match rng.randrange(10):
            case 0:
                del out[key]
            case 1:
                out[str(rng.choice(NASTY))[:60]] = out.pop(key)
            case 2:
                out[str(rng.choice(NASTY))[:60]] = rng.choice(NASTY)
            case 3:
                out[key] = out[rng.choice(list(value))]
            case _:
                out[key] = _bend(value[key], rng)
        return out
    at = rng.randrange(len(value))
    match rng.randrange(8):
        case 0:
            return value[:at] + value[at + 1 :]
        case 1:
            return [*value, value[at]]
        case 2:
            return [*value, rng.choice(NASTY)]
        case _:
            return [*value[:at], _bend(value[at], rng), *value[at + 1 :]]


def dumped(value: Any) -> str:
    """JSON, with NaN, half characters and Raw pieces as they are."""
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(str(k))}: {dumped(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(dumped, value)) + "]"
    return json.dumps(value)


def _json(seed: bytes, rng: random.Random) -> bytes:
    return dumped(bent(json.loads(seed), rng)).encode("utf-8", "surrogatepass")


def _jsonl(seed: bytes, rng: random.Random) -> bytes:
    rows = [json.loads(line) for line in seed.decode().split("\n") if line.strip()]
    changed = bent(rows, rng)
    lines = changed if isinstance(changed, list) else [changed]
    return "\n".join(map(dumped, lines)).encode("utf-8", "surrogatepass")


def _yaml(seed: bytes, rng: random.Random) -> bytes:
    """JSON is YAML, near enough; sometimes anchors that refer to each other are put in front."""
    import yaml

    if b"*" in seed:  # aliases that multiply would be written out
        return edited(seed, rng)
    text = dumped(bent(yaml.safe_load(seed), rng))
    if rng.random() < 0.05:
        text = BILLION_LAUGHS + "\n"
    return text.encode("utf-8", "surrogatepass")


def _words(seed: bytes, rng: random.Random) -> bytes:
    words = seed.decode("utf-8", "replace").split("\n")
    at = rng.randrange(len(words))
    nasty = str(rng.choice(NASTY))[:400]
    key, equals, _ = words[at].partition("=")
    match rng.randrange(6):
        case 0:
            words[at] = nasty
        case 1:
            words.insert(at, nasty)
        case 2:
            del words[at]
        case 3:
            words[at] = key[: rng.randrange(len(key) + 1)] + equals + nasty
        case _:
            words[at] = f"{key}={nasty}" if equals or rng.random() < 0.2 else nasty
    return "\n".join(words).encode("utf-8", "replace")


_TREES: dict[str, Callable[[bytes, random.Random], bytes]] = {"json": _json, "jsonl": _jsonl, "yaml": _yaml}

BILLION_LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "\n".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)
)

"""Files from elsewhere, read within limits: size, depth, aliases; and names that stay where they belong.

Every reader of JSON, YAML and compressed text comes through here, so that a hostile or broken file costs a sentence and
not the machine. Readers raise ValueError with a few words; who called says which file it was (UserError).
"""

from __future__ import annotations

import errno
import json
import os
import re
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vestige.errors import UserError

MOST_BYTES = 2 * 2**30  # of one text file, unpacked; VESTIGE_MAX_BYTES says otherwise
MOST_NODES = 100_000  # of a YAML file, every alias counted as often as it is used
MOST_DEPTH = 100  # of mappings and lists within each other, in YAML
LONGEST_NAME = 200  # of a file or folder; file systems take 255 bytes, and suffixes come behind
LONGEST_INTEGER = 300  # digits; what has more is not a float either
_BLOCK = 2**20
_DIGITS = re.compile(r"\d{300}")
_HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")  # how JSON would spell a surrogate


class TooLarge(ValueError):  # noqa: N818 - it reads as the words it carries
    """More than the limit; nothing was kept."""


def most_bytes() -> int:
    """The limit for one text file."""
    said = os.environ.get("VESTIGE_MAX_BYTES", "")
    if not said:
        return MOST_BYTES
    if not said.isascii() or not said.isdigit() or len(said) > 18:
        raise UserError(f"VESTIGE_MAX_BYTES must be a whole number of bytes, it is '{said}'.")
    return int(said)


def read_bytes(path: Path) -> bytes:
    """The content of a file, if it is not too large; .gz files unpacked, and the limit is for what comes out."""
    most = most_bytes()
    if path.stat().st_size > most:
        raise _too_large(most)
    if path.suffix == ".gz":
        return unpack(path.read_bytes(), most)
    with path.open("rb") as file:
        data = file.read(most + 1)  # a file may grow, and some have no size
    if len(data) > most:
        raise _too_large(most)
    return data


def _too_large(most: int) -> TooLarge:
    return TooLarge(f"it holds more than {most / 2**20:,.0f} MB; split it, or set VESTIGE_MAX_BYTES")


def unpack(data: bytes, most: int | None = None) -> bytes:
    """gzip, piece by piece: a small file may hold terabytes of zeros.

    >>> import gzip
    >>> unpack(gzip.compress(b"one") + gzip.compress(b"two"))
    b'onetwo'
    """
    most = most_bytes() if most is None else most
    out, size = [], 0
    for piece in _pieces(data):
        size += len(piece)
        if size > most:
            raise _too_large(most)
        out.append(piece)
    return b"".join(out)


def _pieces(data: bytes) -> Iterator[bytes]:
    rest = data
    while rest:
        member = zlib.decompressobj(wbits=31)
        try:
            while not member.eof:
                piece = member.decompress(rest, _BLOCK)
                if not piece and not member.unconsumed_tail and not member.eof:
                    raise ValueError("the compressed data ends early")
                yield piece
                rest = member.unconsumed_tail
        except zlib.error as error:
            raise ValueError(f"it is not valid gzip data ({error})") from None
        rest = member.unused_data.lstrip(b"\0")  # padding behind the last member


def check_zip(path: Path) -> None:
    """Refuses an archive whose members say that they unpack to more than the limit; other files pass."""
    if not zipfile.is_zipfile(path):
        return
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
    except (zipfile.BadZipFile, NotImplementedError, OverflowError) as error:
        raise ValueError(f"its directory of members is broken ({error})") from None
    if size > most_bytes():
        raise _too_large(most_bytes())


def read_text(path: Path) -> str:
    """UTF-8, with or without a byte-order mark."""
    return read_bytes(path).decode("utf-8-sig")


class TwiceError(ValueError):
    """An object with a key twice."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the key '{key}' is there twice; keep one of them")
        self.key = key


def parse_json(text: str, unique: bool = False) -> Any:
    """JSON. Nesting beyond Python's stack, integers of thousands of digits and half surrogate pairs are ValueErrors.

    With `unique` so is an object that has a key twice: Python would keep the last one without a word.

    >>> parse_json('{"a": [1, 2]}')
    {'a': [1, 2]}
    """
    try:
        hook = unique_names if unique else None
        found = json.loads(text, parse_int=_integer if _DIGITS.search(text) else None, object_pairs_hook=hook)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if _HALF_PAIR.search(text):
        whole_characters(found)
    return found


def unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise TwiceError(next(name for i, name in enumerate(names) if name in names[:i]))
    return found


def _integer(digits: str) -> int:
    if len(digits) > LONGEST_INTEGER:
        raise ValueError(f"it holds a number of {len(digits)} digits")
    return int(digits)


def whole_characters(found: Any) -> None:
    """Half of a surrogate pair is not a character: no tokenizer and no file takes it."""
    try:
        json.dumps(found, ensure_ascii=False, default=str, skipkeys=True).encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"it holds half a surrogate pair (\\u{ord(error.object[error.start]):x})") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_json(path: Path) -> Any:
    return parse_json(read_text(path))


def parse_yaml(text: str) -> Any:
    """YAML as plain data. Aliases are counted out first: ten lines of them can stand for a billion values.

    >>> parse_yaml("a: [1, x]")
    {'a': [1, 'x']}
    """
    import yaml

    try:
        loader = yaml.SafeLoader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            check_nodes(node)
            unique_keys(node)
            found = loader.construct_document(node)
            if _HALF_PAIR.search(text):
                whole_characters(found)
            return found
        finally:
            loader.dispose()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None
    except (TypeError, AttributeError, KeyError, IndexError, OverflowError) as error:
        # PyYAML takes 2024-99-99 or !!int x for what they say they are, and then fails in its own way.
        raise ValueError(f"a value does not have the form of its type ({error})") from None


def check_nodes(root: Any) -> None:
    """Refuses a YAML tree that is too deep, contains itself, or would be too large with its aliases written out."""
    sizes: dict[int, int] = {}
    open_: set[int] = set()

    def size(node: Any, depth: int) -> int:
        if id(node) in sizes:
            return sizes[id(node)]
        if id(node) in open_:
            raise ValueError("an alias contains itself")
        if depth > MOST_DEPTH:
            raise ValueError(f"it is nested more than {MOST_DEPTH} deep")
        open_.add(id(node))
        total = 1
        for part in node.value if isinstance(node.value, list) else ():
            for inner in part if isinstance(part, tuple) else (part,):  # a key and its value, or an item
                total += size(inner, depth + 1)
            if total > MOST_NODES:
                raise ValueError(f"with its aliases written out it has more than {MOST_NODES:,} values")
        open_.discard(id(node))
        sizes[id(node)] = total
        return total

    size(root, 0)


def unique_keys(root: Any) -> None:
    """Refuses a YAML tree in which a mapping has a key twice: one of the two would be lost without a word."""
    import yaml

    seen: set[int] = set()
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if id(node) in seen or not isinstance(node, (yaml.MappingNode, yaml.SequenceNode)):
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            waiting += node.value
            continue
        lines: dict[tuple[str, str], int] = {}
        for key, value in node.value:
            waiting.append(value)
            if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                continue
            line, name = key.start_mark.line + 1, (key.tag, key.value)
            if name in lines:
                raise ValueError(f"line {line}: the key '{key.value}' is already on line {lines[name]}; keep one")
            lines[name] = line


def read_yaml(path: Path) -> Any:
    return parse_yaml(read_text(path))


def inside(name: str, what: str) -> str:
    """A name that a folder is made from: it may have parts (a/b), but it cannot lead out of where it is put.

    >>> inside("tofu/npo", "task_name")
    'tofu/npo'
    """
    parts = name.replace("\\", "/").split("/")
    wrong = ""
    if not {"", ".", ".."}.isdisjoint(parts):
        wrong = "leads out of the output directory" if ".." in parts or not parts[0] else "has an empty part"
    elif re.search(r"[\x00-\x1f\x7f]", name):
        wrong = "holds a control character"
    elif max(map(len, "/".join(parts).encode("utf-8", "replace").split(b"/"))) > LONGEST_NAME:
        wrong = f"is longer than {LONGEST_NAME} bytes"
    if wrong:
        raise UserError(f"The {what} '{name}' cannot name a folder: it {wrong}; use a plain name such as tofu_npo.")
    return name


def below(path: Path, root: Path) -> bool:
    """Whether a path, its links followed, is inside a directory."""
    return path.resolve().is_relative_to(root.resolve())


def is_there(path: Path) -> bool:
    """Whether something has this name. A name that no file can have (too long, say) is nobody's."""
    try:
        return path.exists()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return False
        raise  # a directory that may not be read says nothing about the file

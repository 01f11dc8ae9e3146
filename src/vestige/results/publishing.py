"""Before results leave this machine: secrets in files, paths that name a person."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vestige.errors import UserError
from vestige.runs.directory import temporary, write_bytes
from vestige.runs.manifest import MANIFEST, manifest_text, read_run, sha256
from vestige.secrets import HIDDEN, hide, homes, is_secret_name, shorten

WRITTEN = (".json", ".jsonl", ".csv", ".md", ".html", ".yaml", ".txt")
NOTE = "{count} files name a person's home directory (such as {home}); --shorten-paths writes ~ in its place."


def text_of(name: str, data: bytes) -> str | None:
    """The words of a file that is not tensors."""
    try:
        if name.endswith(".json.gz"):
            return gzip.decompress(data).decode("utf-8", "replace")
    except (OSError, EOFError, zlib.error):
        return None
    return data.decode("utf-8", "replace") if name.endswith(WRITTEN) else None


def refuse_secrets(files: Mapping[str, Path]) -> None:
    """An archive is for others to read: files that hold a token in the open are not packed."""
    for name, path in files.items():
        if "/evidence/" in name and not name.endswith(".json.gz"):
            continue  # what the model said
        text = text_of(name, path.read_bytes())
        where = None if text is None else _secret_in(text)
        if where:
            raise UserError(
                f"{path} holds what looks like a secret ({where}), and an archive is for others to read; run the "
                "command that made it again, then pack it."
            )


def _secret_in(text: str) -> str | None:
    """Where a text holds a secret: under which name, or in the form of a known token."""
    try:
        named = next(_named(json.loads(text)), None)
    except ValueError:
        named = None
    if named is not None:
        return named
    return "a token or a password in an address" if hide(text) != text else None


def _named(data: Any, at: str = "") -> Iterator[str]:
    if isinstance(data, Mapping):
        for key, value in data.items():
            here = f"{at}.{key}" if at else str(key)
            if is_secret_name(str(key)) and isinstance(value, str) and value != HIDDEN and "${oc.env:" not in value:
                yield here
            yield from _named(value, here)
    elif isinstance(data, list):
        for value in data:
            yield from _named(value, at)


def homes_in(files: Mapping[str, Path]) -> tuple[int, str]:
    """How many files name somebody's home, and the first such."""
    found = [homes(text_of(name, path.read_bytes()) or "") for name, path in files.items()]
    named = [places[0] for places in found if places]
    return len(named), named[0] if named else ""


@contextmanager
def shortened(files: Mapping[str, Path]) -> Iterator[tuple[dict[str, Path], dict[str, str]]]:
    """Copies of some runs' files with ~ for people's homes and new digests; and the root of each run, by its folder."""
    with temporary() as place:
        copies = {name: place / name for name in files}
        for name, path in files.items():
            data = path.read_bytes()
            text = text_of(name, data)
            # Texts and patched banks carry a digest of their own, and no path.
            if text is not None and homes(text) and not (("/evidence/" in name) and name.endswith(".jsonl")):
                words = shorten(text).encode("utf-8", "surrogatepass")
                data = gzip.compress(words, compresslevel=6, mtime=0) if name.endswith(".gz") else words
            write_bytes(copies[name], data)
        roots = {}
        for name in (name for name in files if name.endswith(f"/{MANIFEST}")):
            folder = copies[name].parent
            before = read_run(folder, strict=False)
            if before is not None and before.state:
                digests = {inner: sha256(folder / inner) for inner in before.sha256}
                about = {"state": before.state, "writes": sorted(before.writes), "runs": list(before.runs)}
                text = manifest_text({**before.facts, **about, "sha256": digests}, finished=True)
                write_bytes(copies[name], text.encode())
                again = read_run(folder)
                roots[name.rsplit("/", 1)[0]] = again.root if again else ""
        yield copies, roots

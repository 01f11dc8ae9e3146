"""Evidence on disk, by content key: what was collected is never collected again.

A bank is one file per kind and identity (weights, dtype, attention, device kind). While collecting, each batch is a
part file of its own beside a journal that lists what is being collected; a killed run finds both, packs the same
batches again and runs only those without a part. When all is there the parts are folded into the bank.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from vestige.store.files import read_json, write_bytes, write_json
from vestige.types import ARRAY_FIELDS, Text, TokenStats, Trace, content_key

T = TypeVar("T")


class Format(Protocol[T]):
    """How one kind of evidence becomes bytes and back."""

    suffix: str

    def dump(self, items: Mapping[str, T]) -> bytes: ...
    def load(self, data: bytes) -> dict[str, T]: ...


class AnswerFormat:
    """Ragged TokenStats of causal models: arrays laid end to end, with offsets. safetensors, so no pickles.

    A leading axis (patched layers) is the same for all items of a bank and stays in front.
    """

    suffix = ".safetensors"

    def dump(self, items: Mapping[str, TokenStats]) -> bytes:
        from safetensors.numpy import save

        keys = sorted(items)
        lengths = [items[k].tokens for k in keys]
        arrays = {
            name: np.ascontiguousarray(
                np.concatenate([getattr(items[k], name) for k in keys] or [np.zeros(0)], axis=-1)
            )
            for name in ARRAY_FIELDS
        }
        arrays["offsets"] = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return save(arrays, metadata={"keys": json.dumps(keys)})

    def load(self, data: bytes) -> dict[str, TokenStats]:
        from safetensors.numpy import load

        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        keys = json.loads(header["__metadata__"]["keys"])
        arrays = load(data)
        out = {}
        for i, key in enumerate(keys):
            a, b = arrays["offsets"][i], arrays["offsets"][i + 1]
            cut = {name: arrays[name][..., a:b] for name in ARRAY_FIELDS}
            out[key] = TokenStats(**cut, order=np.arange(b - a), steps=int(b - a))
        return out


TRACE_AXES = {  # of each field of a Trace; s: passes, l: positions, k: answers watched
    "final": "l", "fixed": "l", "committed": "s", "canvas": "sl", "proposal": "sl", "top1": "sl", "mean": "sl",
    "std": "sl", "labels": "kl", "logprob": "ksl",
}  # fmt: skip


class TraceFormat:
    """Traces of diffusion models: every field laid end to end, with the size of each trace beside it."""

    suffix = ".safetensors"

    def dump(self, items: Mapping[str, Trace]) -> bytes:
        from safetensors.numpy import save

        keys = sorted(items)
        sizes = [[items[k].steps, len(items[k].final), len(items[k].labels)] for k in keys]
        arrays = {
            name: np.ascontiguousarray(
                np.concatenate([np.ravel(getattr(items[k], name)) for k in keys] or [np.zeros(0)])
            )
            for name in TRACE_AXES
        }
        for name, array in arrays.items():
            arrays[name] = array.astype(np.float32 if array.dtype.kind == "f" else np.int32)
        arrays["sizes"] = np.asarray(sizes, np.int64).reshape(-1, 3)
        return save(arrays, metadata={"keys": json.dumps(keys)})

    def load(self, data: bytes) -> dict[str, Trace]:
        from safetensors.numpy import load

        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        keys, arrays = json.loads(header["__metadata__"]["keys"]), load(data)
        at = dict.fromkeys(TRACE_AXES, 0)
        out = {}
        for key, (s, length, k) in zip(keys, arrays["sizes"].tolist(), strict=True):
            fields = {}
            for name, axes in TRACE_AXES.items():
                shape = [{"s": s, "l": length, "k": k}[axis] for axis in axes]
                end = at[name] + int(np.prod(shape))
                fields[name] = arrays[name][at[name] : end].reshape(shape)
                at[name] = end
            out[key] = Trace(**fields)
        return out


class TextFormat:
    """Generated texts as JSON lines."""

    suffix = ".jsonl"

    def dump(self, items: Mapping[str, Text]) -> bytes:
        lines = (
            json.dumps({"key": k, "ids": list(t.ids), "text": t.text, "proven": t.proven}, ensure_ascii=False)
            for k, t in sorted(items.items())
        )
        return "".join(line + "\n" for line in lines).encode("utf-8", "surrogatepass")

    def load(self, data: bytes) -> dict[str, Text]:
        out = {}
        for line in data.decode("utf-8", "surrogatepass").split("\n"):
            if line:
                row = json.loads(line)
                if not (isinstance(row["key"], str) and isinstance(row["text"], str) and type(row["proven"]) is int):
                    raise TypeError("a text of another kind")
                out[row["key"]] = Text(tuple(map(int, row["ids"])), row["text"], row["proven"])
        return out


class NumberFormat:
    """One float a key (gradient norms, class probabilities); NaN is written as null."""

    suffix = ".json"

    def dump(self, items: Mapping[str, float]) -> bytes:
        clean = {k: (None if np.isnan(v) else v) for k, v in items.items()}
        return json.dumps(clean, sort_keys=True, indent=0).encode()

    def load(self, data: bytes) -> dict[str, float]:
        return {k: float("nan") if v is None else float(v) for k, v in json.loads(data).items()}


FORMATS: dict[str, Format[Any]] = {
    "answers": AnswerFormat(),
    "patched": AnswerFormat(),
    "texts": TextFormat(),
    "gradients": NumberFormat(),
    "classified": NumberFormat(),
    "denoised": TraceFormat(),
    "errors": NumberFormat(),
    "visible": AnswerFormat(),
}


class Bank(Generic[T]):
    """All evidence of one kind for one identity, on disk."""

    def __init__(self, directory: Path, kind: str, identity: str) -> None:
        self.format: Format[T] = FORMATS[kind]
        self.stem = f"{kind}-{identity}"
        self.path = directory / f"{self.stem}{self.format.suffix}"
        self.parts = directory / "parts"
        self.journal = self.parts / f"{self.stem}.plan.json"

    def load(self) -> dict[str, T]:
        """What is complete. A file that cannot be read is treated as not there: it will be collected again."""
        return self._read(self.path)

    def _read(self, path: Path) -> dict[str, T]:
        try:
            return self.format.load(path.read_bytes())
        except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError, OverflowError):
            return {}
        except Exception as error:  # safetensors has its own exception type for a truncated file
            if type(error).__name__ != "SafetensorError":
                raise
            return {}

    def begin(self, keys: Sequence[str], settings: Mapping[str, Any]) -> dict[str, T]:
        """Notes what is about to be collected and returns what an interrupted run already has of it."""
        plan = {"keys": sorted(keys), "settings": dict(settings)}
        done = self._parts_done()
        if not self.journal.exists() or read_json(self.journal) != plan:
            # Another question than last time: what parts there are is good evidence, but not these batches.
            if done:
                self.merge(done)
            self.discard_parts()
            write_json(self.journal, plan, indent=None)
            return {}
        return done

    def interrupted(self) -> tuple[list[str], dict[str, Any]] | None:
        """The keys and settings an unfinished run was after, if there is one."""
        try:
            plan = read_json(self.journal)
            return list(plan["keys"]), dict(plan["settings"])
        except (OSError, ValueError, KeyError):
            return None

    def _parts_done(self) -> dict[str, T]:
        out: dict[str, T] = {}
        for path in sorted(self.parts.glob(f"{self.stem}.part-*")):
            out.update(self._read(path))
        return out

    def add_part(self, items: Mapping[str, T]) -> None:
        """Keeps one batch."""
        name = content_key(*(k.encode() for k in sorted(items)))
        write_bytes(self.parts / f"{self.stem}.part-{name}", self.format.dump(items))

    def merge(self, items: Mapping[str, T]) -> dict[str, T]:
        """Folds items into the bank file."""
        everything = {**self.load(), **items}
        write_bytes(self.path, self.format.dump(everything))
        return everything

    def finish(self) -> dict[str, T]:
        """All parts are there: fold them into the bank and forget the journal."""
        everything = self.merge(self._parts_done())
        self.discard_parts()
        return everything

    def discard_parts(self) -> None:
        for path in [self.journal, *self.parts.glob(f"{self.stem}.part-*")]:
            path.unlink(missing_ok=True)
        if self.parts.is_dir() and not any(self.parts.iterdir()):
            self.parts.rmdir()


def discard_all(directory: Path, keep: Iterable[str] = ()) -> None:
    """Forgets the evidence of a run (overwrite=true)."""
    kept = set(keep)
    for path in directory.rglob("*"):
        if path.is_file() and path.name not in kept:
            path.unlink()

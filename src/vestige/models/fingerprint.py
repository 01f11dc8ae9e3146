"""What evidence depends on, in one place: it is read again only where all of this is the same.

    what                                   how it is known                               where it counts
    weights, config, generation config     fingerprint                                   name of the folder
    adapter, quantisation, code it brings  fingerprint                                   name of the folder
    a model in memory                      its tensors, attributes and classes           name of the folder
    precision, attention, kind of device   as they are resolved here, not as asked       name of the folder
    torch, transformers, peft, ...         their versions (LIBRARIES)                    name of the folder
    our own way of collecting              a number for each kind (COLLECTED)            name of the folder
    the tokenizer's end and mask tokens    their ids                                     name of the folder
    prompts, answers, chat template,       token ids of what is asked: another           key of each entry
      system prompt, date, pre-tokeniser     prompt is another entry
    decoding, seeds, sampler settings      in the want itself                            key of each entry
    the tokenizer's decoder                texts are decoded again from their ids        name of the folder
    metrics, dialects, plug-ins, rows      scores are made of evidence each time         not at all

A sweep also skips scoring, so its key knows the rest too: `tokenizer_files`, data, plug-ins (sweep/tasks.py).

A fingerprint is a name for a model's weights: equal weights, equal name; one number changed, another name. Every cache
is keyed by it, so it must never be stale and should rarely be slow. Files are hashed in threads, and each file's digest
is remembered by its path, size, times and inode. That rests on the file system: whatever writes to a file or renames
another over it moves its change time, which no user can set. Precision and attention are not in it (LoadedModel names
them), quantisation is, because it changes the weights.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import json
import os
import sysconfig
import time
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from vestige.errors import UserError
from vestige.io import write_file
from vestige.models.args import HUB_KEYS, ModelArgs, choose_attention, choose_device
from vestige.models.checks import ALLOW_UNUSED, check_weights
from vestige.models.families import find_family, plugged_family
from vestige.models.locate import Place, locate, read_json, weight_names
from vestige.types import content_key

# Library -> the models whose numbers another version of it can change. tokenizers is not here: which tokens it makes is
# in the key of every entry, and texts are decoded again when they are read.
LIBRARIES = {
    "torch": "all",  # kernels; what it was built for is told by the device
    "transformers": "all",  # the model's code, generation
    "peft": "adapter",
    "bitsandbytes": "quantised",
    "gguf": "gguf",
}

# How each kind of evidence is collected. A number goes up only when values can change beyond rounding for the same
# weights and wants: a mask, a position, which token is scored, a sampler's order. Not for speed, batching or notes.
COLLECTED = {
    "answers": 1,
    "visible": 1,
    "errors": 1,
    "denoised": 1,
    "texts": 1,
    "gradients": 1,
    "patched": 1,
    "classified": 1,
    "cross": 1,
}

# Keys that say who wrote a config, when and from where, and not what the model computes.
VOLATILE = {
    "_name_or_path",
    "_model_name_or_path",
    "name_or_path",
    "transformers_version",
    "dtype",
    "torch_dtype",
    "use_cache",
    "base_model_name_or_path",
    "revision",
    "peft_version",
    "inference_mode",
    "_commit_hash",
    "author",
    "description",
    "license",
    "tags",
    "unsloth_fixed",
    "unsloth_version",
}
# A file younger than this may still change within its time stamp's resolution; do not remember it yet.
SETTLED_SECONDS = 2.0


def fingerprint(args: ModelArgs) -> str:
    """The fingerprint of a checkpoint, from its files; nothing is loaded."""
    return fingerprint_place(locate(args), args)


def fingerprint_place(place: Place, args: ModelArgs, volatile: AbstractSet[str] = VOLATILE) -> str:
    """As `fingerprint`, for files already located. The quantisation asked for is appended: `...-4bit`."""
    parts: list[str] = []
    for part in (place, place.base) if place.base else (place,):
        if part.gguf:
            parts += ["gguf", *digests([part.gguf])]
            continue
        check_weights(part, args)
        parts.append(part.kind)
        for file in _settings_files(part):
            parts += [file.name, json.dumps(stable(read_json(file), volatile), sort_keys=True)]
        files = _content_files(part, args)
        for file, digest in zip(files, digests(files), strict=True):
            parts += [file.name, digest]
    whole = place.base or place
    if plugged := "" if whole.gguf else plugged_family(whole.config):
        parts.append(plugged)
    if options := args.extra.keys() - {*HUB_KEYS, "use_safetensors", ALLOW_UNUSED}:
        # Other from_pretrained arguments can override the config, and so change the model.
        parts.append(json.dumps({name: args.extra[name] for name in options}, sort_keys=True, default=repr))
    key = content_key(*map(str.encode, parts))
    return f"{key}-{args.quantization}" if args.quantization else key


def _settings_files(place: Place) -> list[Path]:
    """The files of which only what matters counts."""
    names = ("adapter_config.json",) if place.kind == "adapter" else ("config.json", "generation_config.json")
    return list(filter(Path.is_file, map(place.directory.joinpath, names)))


def _content_files(place: Place, args: ModelArgs) -> list[Path]:
    """The files of which every byte counts: weights, and code that they bring."""
    names = weight_names(place.directory, place.kind == "adapter", args)
    # A published family never runs the code in its folder: the same weights have the same name with and without trust.
    runs = args.trust_remote_code and (place.kind == "adapter" or find_family(place.config) is None)
    return [*map(place.directory.joinpath, names), *(sorted(place.directory.glob("*.py")) if runs else [])]


class FileWatch:
    """The files of a checkpoint as they were at one moment: has any been written to or replaced since?

    A trainer that saves over its checkpoint while it is read would otherwise have one model's evidence filed under
    the name of another.
    """

    def __init__(self, place: Place, args: ModelArgs) -> None:
        self.place, self.args = place, args
        self.stamps = self._stamped()

    def _stamped(self) -> dict[Path, str]:
        out: dict[Path, str] = {}
        place: Place | None = self.place
        while place is not None:
            for file in [place.gguf] if place.gguf else [*_settings_files(place), *_content_files(place, self.args)]:
                if file.is_file():
                    out[file] = _stamp(file)
            place = place.base
        return out

    def fingerprint(self) -> str:
        """The fingerprint of what was there all the time since this began."""
        result = fingerprint_place(self.place, self.args)
        self.check()
        return result

    def check(self, known: str = "") -> None:
        """Refuses to go on when a file changed; `known` is a fingerprint with which a change of times only passes."""
        for file, stamp in self.stamps.items():
            if not file.is_file() or _stamp(file) == stamp:  # one that has gone was read whole, and does not count
                continue
            if known and fingerprint_place(self.place, self.args) == known:
                self.stamps = self._stamped()
                return
            raise changed_meanwhile(self.place.name, file)


def changed_meanwhile(name: str, file: Path | None = None) -> UserError:
    what = f"'{file.name}' of '{name}'" if file else f"'{name}'"
    return UserError(
        f"{what} changed while it was being evaluated, so nothing more was kept of this run; wait until it is written "
        "(or evaluate a copy), then rerun the same command."
    )


def stable(config: Any, volatile: AbstractSet[str] = VOLATILE) -> Any:
    """A config without its volatile keys, at any depth.

    >>> stable({"hidden_size": 8, "dtype": "float32", "text": {"_name_or_path": "x", "layers": 2}})
    {'hidden_size': 8, 'text': {'layers': 2}}
    """
    if isinstance(config, Mapping):
        return {key: stable(value, volatile) for key, value in config.items() if key not in volatile}
    if isinstance(config, list | tuple):
        return [stable(value, volatile) for value in config]
    return config


def digests(files: Iterable[Path]) -> list[str]:
    """The content digest of each file, from memory where the file has not changed."""
    paths, known = list(map(Path.resolve, files)), _read_cache()
    stamps, digest_by_path = {path: _stamp(path) for path in paths}, {}
    for path, stamp in stamps.items():
        remembered, digest = known.get(str(path), ("", ""))
        if remembered == stamp:
            digest_by_path[path] = digest
    todo = sorted(stamps.keys() - digest_by_path.keys())
    if todo:
        with ThreadPoolExecutor(min(len(todo), os.cpu_count() or 1)) as pool:
            digest_by_path |= dict(zip(todo, pool.map(_digest, todo), strict=True))
        settled = time.time() - SETTLED_SECONDS
        fresh = {str(path): [stamps[path], digest_by_path[path]] for path in todo if path.stat().st_ctime < settled}
        if fresh:
            _remember(fresh)
    return [digest_by_path[path] for path in paths]


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _stamp(path: Path) -> str:
    """Size, times, and which file it is. The change time also moves when an older file is renamed over this one."""
    status = path.stat()
    return f"{status.st_size}-{status.st_mtime_ns}-{status.st_ctime_ns}-{status.st_dev}-{status.st_ino}"


def cache_file() -> Path:
    """Where digests are remembered: $VESTIGE_CACHE, or ~/.cache/vestige."""
    root = os.environ.get("VESTIGE_CACHE")
    return (Path(root).expanduser() if root else Path.home() / ".cache" / "vestige") / "fingerprints.json"


def _read_cache() -> dict[str, list[str]]:
    """What is remembered. A missing or damaged file is an empty memory: it costs time, not truth."""
    try:
        data = json.loads(cache_file().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(data, dict):
        return {}
    return {k: v for k, v in data.items() if isinstance(v, list) and len(v) == 2 and isinstance(v[1], str)}


def _remember(fresh: dict[str, list[str]]) -> None:
    """Add to the memory in one rename, so that no reader sees half a file; failing to do so is harmless."""
    target, known = cache_file(), _read_cache()
    existing = {path: entry for path, entry in known.items() if Path(path).exists()}
    with contextlib.suppress(OSError, UserError):
        write_file(target, json.dumps(existing | fresh, indent=0, sort_keys=True).encode())


def fingerprint_module(model: Any, volatile: AbstractSet[str] = VOLATILE) -> str:
    """The fingerprint of a model in memory, from its tensors and its config.

    Parameters and persistent buffers in the order of their names, tied ones once. It differs from the
    fingerprint of the same model's files, which are never read here.
    """
    digest = hashlib.blake2b(digest_size=16)
    digest.update(json.dumps(_module_config(model, volatile), sort_keys=True, default=repr).encode())
    seen: set[tuple[Any, ...]] = set()
    for name, tensor in sorted(model.state_dict(keep_vars=True).items()):
        if not hasattr(tensor, "detach"):  # extra state, such as quantisation settings
            digest.update(f"{name}={tensor!r}".encode())
            continue
        place = (tensor.device, tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()))
        if tensor.numel() and not tensor.is_meta and place in seen:
            continue
        seen.add(place)
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(_offloaded_bytes(model, name) if tensor.is_meta else _tensor_bytes(tensor))
    return "memory-" + digest.hexdigest()


def _tensor_bytes(tensor: Any) -> Any:
    """A tensor's bytes as they are; numpy has no bfloat16, so all are viewed as plain bytes."""
    import torch

    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def _offloaded_bytes(model: Any, name: str) -> Any:
    """Those of a tensor that accelerate has put elsewhere; one module at a time, for all of them may not fit."""
    from accelerate.utils import align_module_device

    owner, _, leaf = name.rpartition(".")
    module = model.get_submodule(owner)
    if getattr(getattr(module, "_hf_hook", None), "offload", False):  # without its hook the values are unknown
        with align_module_device(module, "cpu"):
            tensor = getattr(module, leaf)
            if not tensor.is_meta:
                return _tensor_bytes(tensor)
    raise UserError(f"The tensor '{name}' is offloaded, so the model cannot be fingerprinted; load it from its path.")


def _module_config(model: Any, volatile: AbstractSet[str]) -> Any:
    """The settings that change what the tensors compute; for an adapter also its scaling and which is on."""
    config: Any = getattr(model, "config", None)
    parts = [stable(config.to_dict(), volatile) if hasattr(config, "to_dict") else repr(config)]
    for name, adapter in sorted((getattr(model, "peft_config", None) or {}).items()):
        settings = {k: sorted(v) if isinstance(v, set) else v for k, v in stable(adapter.to_dict(), volatile).items()}
        parts += [name, settings]
    active = getattr(model, "active_adapters", None) if len(parts) > 1 else None
    return [parts, list(active) if isinstance(active, list | tuple) else None]


# ---- models in memory --------------------------------------------------------------------------------------------


class CannotBeNamedError(ValueError):
    """Something changes what a model computes, and has no name that would be the same another time."""


def name_behaviour(model: Any) -> str:
    """A name for what a model in memory computes besides its parameters; empty where it cannot be named.

    Buffers that are not saved, plain attributes of every module (a scaling, a rate), and the source of the classes. A
    hook, a patched `forward` or a compiled module has no name: evidence of such a model is not used a second time.
    """
    digest = hashlib.blake2b(digest_size=16)
    try:
        for cls in sorted({type(module) for module in model.modules()}, key=lambda cls: cls.__qualname__):
            digest.update(f"{cls.__module__}.{cls.__qualname__}".encode())
            for source in _sources_of(cls):
                digest.update(source)
        for name, module in model.named_modules():
            for attribute, value in sorted(vars(module).items()):
                if attribute not in ("_parameters", "_modules", "training"):
                    digest.update(f"{name}.{attribute}".encode())
                    digest.update(_attribute_bytes(attribute, value))
    except (CannotBeNamedError, OSError, TypeError):  # no source: of a class made in an interactive session
        return ""
    return digest.hexdigest()


def _sources_of(cls: type) -> list[bytes]:
    """The source of a module's class and of its bases, up to torch's own."""
    import torch

    sources = []
    for base in cls.__mro__:
        if base in (torch.nn.Module, object):
            continue
        file = inspect.getsourcefile(base)
        if file is None:
            raise CannotBeNamedError(base.__qualname__)
        sources.append(Path(file).read_bytes())
        for function in vars(base).values():
            if inspect.isfunction(function):
                sources.append(_name_method(function, file))
    return sources


def _name_method(function: Any, file: str) -> bytes:
    """A name for a method: nothing more than its class's file where it stands there, else that of a library's function.

    What was put in its place by other code cannot be named. Libraries decorate methods, and keep the original.
    """
    libraries_at = tuple(sysconfig.get_paths()[key] for key in ("stdlib", "purelib", "platlib"))
    name = b""
    while function.__code__.co_filename != file:
        if function.__code__.co_filename == "<string>":  # made by dataclasses and their kin, of what the file says
            return name
        if not function.__code__.co_filename.startswith(libraries_at):
            raise CannotBeNamedError(function.__qualname__)
        name += f"{function.__module__}.{function.__qualname__}".encode()
        if not hasattr(function, "__wrapped__"):
            return name
        function = function.__wrapped__
    return name


def _attribute_bytes(name: str, value: Any) -> bytes:
    import torch

    if isinstance(value, torch.Tensor):
        return bytes(_tensor_bytes(value))
    if name == "_buffers":
        return b"".join(bytes(_tensor_bytes(tensor)) for tensor in value.values() if tensor is not None)
    if "hook" in name:
        if value:
            raise CannotBeNamedError(name)
        return b""
    if name == "forward" or (name == "_compiled_call_impl" and value is not None):
        raise CannotBeNamedError(name)
    if value is None or isinstance(value, (bool, int, float, complex, str, torch.dtype, torch.device)):
        return repr(value).encode()
    if isinstance(value, (list, tuple, set, frozenset)):
        items = sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value
        return b"".join(_attribute_bytes("", item) for item in items)
    if isinstance(value, Mapping):
        return b"".join(repr(key).encode() + _attribute_bytes("", item) for key, item in value.items())
    if inspect.isfunction(value) or inspect.isbuiltin(value):
        return f"{value.__module__}.{value.__qualname__}".encode()
    return type(value).__qualname__.encode()  # configurations are in the fingerprint of the weights


# ---- besides the weights ----------------------------------------------------------------------------------------


@functools.cache
def library(name: str) -> str:
    """A library's version without what it was built for (`+cpu`); nothing is imported."""
    try:
        return version(name).partition("+")[0]
    except PackageNotFoundError:
        return ""


def libraries(kind: str, quantised: bool) -> dict[str, str]:
    """The versions that count for one model; `kind` as in Place."""
    kinds = {"all", kind, *(["quantised"] if quantised else [])}
    return {name: library(name) for name, whose in LIBRARIES.items() if whose in kinds}


def held(args: ModelArgs) -> dict[str, str]:
    """How the weights are held when they are loaded as asked, with `auto` resolved: known without loading them.

    (Which of sdpa and eager transformers takes by itself follows from the architecture and its version.)
    """
    device = choose_device(args.device)
    kind = device.split(":")[0]
    dtype = args.dtype if args.dtype != "auto" else ("float32" if device == "cpu" else stored_dtype(args))
    return {"dtype": dtype, "attention": choose_attention(args.attention)[0] or "sdpa", "device": kind}


def stored_dtype(args: ModelArgs) -> str:
    """The checkpoint's own precision, as transformers' `auto` reads it: from its config, else its first tensor."""
    place = locate(args)
    place = place.base or place
    if place.gguf:
        return "auto"  # unpacked to what transformers chooses for it
    config = place.config
    inner = config.get("text_config") if isinstance(config.get("text_config"), dict) else {}
    for body in (config, inner or {}):
        if name := body.get("dtype") or body.get("torch_dtype"):
            return str(name).removeprefix("torch.")
    return _first_tensor(place, args)


PRECISIONS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}  # as safetensors writes them


def _first_tensor(place: Place, args: ModelArgs) -> str:
    from safetensors import safe_open

    file = place.directory / weight_names(place.directory, False, args)[0]
    if file.suffix != ".safetensors" or not file.is_file():
        return "auto"
    with safe_open(file, "numpy") as tensors:
        kinds = (str(tensors.get_slice(key).get_dtype()) for key in tensors.keys())  # noqa: SIM118 - not a mapping
        return next((PRECISIONS[k] for k in kinds if k in PRECISIONS), "auto")

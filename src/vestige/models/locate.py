"""Where a model's files are. All other modules of this package read local files only.

    what the user wrote --locate--> Place (a directory, or a .gguf file, and a base for an adapter)

A hub id becomes its snapshot in the hub's cache, so that loading, checking and fingerprinting all see the
same files, and so that errors come from looking at files instead of from other libraries' messages.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vestige import guard
from vestige.errors import UserError
from vestige.models.args import ModelArgs

# All a plan needs: configuration, tokenizer, code. Weights are fetched only when asked for.
SMALL_FILES = (
    "config.json",
    "generation_config.json",
    "adapter_config.json",
    "*.index.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "tekken.json",
    "*.tiktoken",
    "*.bpe.model",
    "spiece.model",
    "chat_template*",
    "*.py",
)
# What a config.json says with more than a word, and how.
SHAPES = {"architectures": list, "auto_map": dict, "quantization_config": dict}


@dataclass(frozen=True)
class Place:
    """Where a checkpoint was found, and of which kind it is."""

    kind: str  # "model", "adapter" or "gguf"
    name: str  # as the user wrote it
    directory: Path  # holds config.json, adapter_config.json or the .gguf file
    root: Path  # the same without the subfolder; a tokenizer often stays there
    gguf: Path | None = None
    base: Place | None = None  # what an adapter sits on

    @property
    def config(self) -> dict[str, Any]:
        path = self.directory / "config.json"
        config = read_json(path)
        for name, kind in SHAPES.items():
            if not isinstance(config.get(name), (kind, type(None))):
                what = "a list" if kind is list else "an object"
                raise UserError(f"'{path}': {name} should be {what}; save the checkpoint again.")
        return config


def locate(args: ModelArgs, weights: bool = True) -> Place:
    """Find the files of `args.path`, fetching them from the hub where needed."""
    path = os.path.expanduser(args.path)  # noqa: PTH111 (a hub id is not a path)
    if path.endswith(".gguf"):
        return _locate_gguf(path, args)
    root, fetched = find_directory(path, args)
    directory = root / args.subfolder if args.subfolder else root
    if not directory.is_dir():
        raise UserError(f"'{args.path}' has no subfolder '{args.subfolder}'; it holds: {listing(root)}.")
    adapter = (directory / "adapter_config.json").is_file()
    if not adapter and not (directory / "config.json").is_file():
        raise _no_config(directory, args)
    if fetched and weights:
        _fetch_weights(path, root, directory, adapter, args)
    place = Place("adapter" if adapter else "model", args.path, directory, root)
    if not adapter:
        return place
    if any((directory / name).is_file() for name in ("model.safetensors", "model.safetensors.index.json")):
        raise UserError(
            f"'{args.path}' holds both a whole model and an adapter (adapter_config.json), so it is unclear "
            "which one to measure; move one of them to a directory of its own."
        )
    return replace(place, base=_locate_base(directory, args, weights))


def find_directory(path: str, args: ModelArgs) -> tuple[Path, bool]:
    """The directory for a local path or a hub id, and whether it came from the hub."""
    local = Path(path)
    if local.is_dir():
        return local.absolute(), False
    if local.is_file():
        raise UserError(f"'{path}' is a file; name the directory that holds it (only .gguf files are named directly).")
    if looks_local(path):
        raise UserError(f"No model at '{path}'.{did_you_mean(local)}")
    prefix = f"{args.subfolder.strip('/')}/" if args.subfolder else ""
    wanted = [*SMALL_FILES, *(prefix + name for name in SMALL_FILES if prefix)]
    return fetch(path, args, wanted, hint=did_you_mean(local)), True


def looks_local(path: str) -> bool:
    """Hub ids have at most one slash and start with a letter or digit.

    >>> looks_local("./model"), looks_local("runs/forget01/last"), looks_local("org/model")
    (True, True, False)
    """
    return path.startswith((".", "/", "~")) or path.replace("\\", "/").count("/") > 1


def did_you_mean(path: Path) -> str:
    """A hint naming the nearest thing that does exist, or nothing."""
    missing = path
    while not missing.parent.is_dir() and missing.parent != missing:
        missing = missing.parent
    if missing.parent == missing or not missing.name:
        return ""
    siblings = [p.name for p in missing.parent.iterdir() if p.is_dir() or p.suffix == ".gguf"]
    close = difflib.get_close_matches(missing.name, siblings, n=1, cutoff=0.5)
    return f" Did you mean '{missing.parent / close[0]}'?" if close else ""


def listing(directory: Path, most: int = 8) -> str:
    """What a directory holds, short enough for a sentence."""
    names = sorted(p.name + ("/" if p.is_dir() else "") for p in directory.iterdir())
    if not names:
        return "nothing"
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def read_json(path: Path) -> dict[str, Any]:
    try:
        data = guard.read_json(path)
    except (OSError, ValueError) as error:
        raise UserError(f"'{path}' is not readable as JSON ({error}); save the checkpoint again.") from None
    if not isinstance(data, dict):
        raise UserError(f"'{path}' should hold a JSON object; save the checkpoint again.")
    return data


def _no_config(directory: Path, args: ModelArgs) -> UserError:
    inside = [p for p in directory.glob("*/config.json") if p.is_file()]
    inside += [p for p in directory.glob("*/adapter_config.json") if p.is_file()]
    files = sorted(directory.glob("*.gguf"))
    hint = ""
    if files:
        hint = f" Did you mean '{files[0].resolve()}'?"
    elif inside:
        hint = f" Did you mean '{sorted(inside)[-1].parent.resolve()}'?"
    return UserError(f"'{args.path}' has no config.json; it holds: {listing(directory)}.{hint}")


def _locate_gguf(path: str, args: ModelArgs) -> Place:
    local = Path(path)
    if local.is_file():
        file = local.absolute()
        return Place("gguf", args.path, file.parent, file.parent, gguf=file)
    # org/model/file.gguf may be a file of a hub repository, unless its first folder is one of ours.
    remote = re.fullmatch(r"([\w-][\w.-]*/[\w.-]+)/(.+\.gguf)", path)
    if remote is None or Path(path.split("/")[0]).exists():
        raise UserError(f"No GGUF file at '{path}'.{did_you_mean(local)}")
    root = fetch(remote[1], args, [remote[2]])
    file = root / remote[2]
    if not file.is_file():
        raise UserError(f"The hub repository '{remote[1]}' has no file '{remote[2]}'; check its name on the hub.")
    return Place("gguf", args.path, file.parent, root, gguf=file)


def _fetch_weights(path: str, root: Path, directory: Path, adapter: bool, args: ModelArgs) -> None:
    """The second half of a hub download: the weights that the small files name."""
    prefix = f"{args.subfolder.strip('/')}/" if args.subfolder else ""
    names = [prefix + name for name in weight_names(directory, adapter, args)]
    # The first half resolved the revision to a commit, which names the snapshot; stay on it.
    fetch(path, replace(args, revision=root.name), names)


def weight_names(directory: Path, adapter: bool, args: ModelArgs) -> list[str]:
    """The files that hold the weights, as transformers would choose them; whether they exist is not asked."""
    if adapter:
        safe = ["adapter_model.safetensors"]
    elif (explicit := read_json(directory / "config.json").get("transformers_weights")) is not None:
        safe = [guard.inside(str(explicit), f"transformers_weights of '{directory}'")]
    else:
        safe = _whole_or_shards(directory, "model", ".safetensors", args)
    if not args.pickle:
        return safe
    # use_safetensors=None means either will do, False means pickle.
    if args.extra.get("use_safetensors") is None and all((directory / name).is_file() for name in safe):
        return safe
    return ["adapter_model.bin"] if adapter else _whole_or_shards(directory, "pytorch_model", ".bin", args)


def _whole_or_shards(directory: Path, stem: str, suffix: str, args: ModelArgs) -> list[str]:
    variant = f".{args.extra['variant']}" if args.extra.get("variant") else ""
    whole = f"{stem}{variant}{suffix}"
    index = directory / f"{stem}{suffix}.index{variant}.json"
    if (directory / whole).is_file() or not index.is_file():
        return [whole]
    named = read_json(index).get("weight_map")
    if not isinstance(named, dict) or not all(isinstance(n, str) for n in named.values()):
        raise UserError(f"'{index}' does not map tensors to files; copy or download it again.")
    return [guard.inside(name, f"weight file in '{index}'") for name in sorted(set(named.values()))]


def _locate_base(directory: Path, args: ModelArgs, weights: bool) -> Place:
    """The model an adapter was trained on. A path there is tried next to the adapter, then from here."""
    config = read_json(directory / "adapter_config.json")
    name = args.adapter_base or config.get("base_model_name_or_path")
    where = f"'{directory / 'adapter_config.json'}'"
    if not name:
        raise UserError(f"The adapter does not say which model it belongs to; set base_model_name_or_path in {where}.")
    next_to_it = directory / Path(name).expanduser()
    path = str(next_to_it.resolve()) if next_to_it.exists() and not args.adapter_base else str(name)
    if looks_local(path) and not Path(path).expanduser().exists():
        raise UserError(
            f"The adapter's base model '{name}' is neither beside the adapter nor in the current directory; "
            f"correct base_model_name_or_path in {where}, or give the pair (base, adapter) in Python."
        )
    revision = None if args.adapter_base else config.get("revision")
    try:
        base = locate(replace(args, path=path, revision=revision, subfolder=None, adapter_base=None), weights)
    except UserError as error:
        raise UserError(f"The base model of the adapter '{args.path}': {error}") from None
    if base.kind == "adapter":
        raise UserError(f"The adapter '{args.path}' sits on another adapter ('{name}'); merge that one first.")
    return base


# ---- Fetching from the Hugging Face hub, with its failures told in one sentence each --------------------------------


def fetch(repo: str, args: ModelArgs, files: Sequence[str], hint: str = "") -> Path:
    """The local snapshot of a hub repository, with at least those of `files` (patterns) that it has."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        snapshot = snapshot_download(repo, revision=args.revision, allow_patterns=list(files), **args.hub)
        return Path(snapshot)
    except LocalEntryNotFoundError as error:
        # Another program may have cached just the files it needed; they may be all that we need too.
        cached = _cached(repo, args)
        if cached is None:
            raise hub_error(repo, args, error, hint) from None
        return cached
    except (OSError, ValueError) as error:
        raise hub_error(repo, args, error, hint) from None


def repository_size(repo: str, args: ModelArgs) -> int | None:
    """Bytes of a repository's weights in one format; None where the hub cannot or does not say."""
    from huggingface_hub import HfApi

    token = args.hub.get("token")
    try:
        files = HfApi(token=token).model_info(repo, revision=args.revision, files_metadata=True).siblings or []
    except (OSError, ValueError):  # offline, gated, unknown: fetching will say which
        return None
    sizes = dict.fromkeys((".safetensors", ".bin", ".gguf"), 0)
    for file in files:
        if Path(file.rfilename).suffix in sizes:
            sizes[Path(file.rfilename).suffix] += file.size or 0
    return next((size for size in sizes.values() if size), None)


def _cached(repo: str, args: ModelArgs) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    for name in ("config.json", "adapter_config.json", "tokenizer_config.json"):
        hit = try_to_load_from_cache(repo, name, cache_dir=args.hub.get("cache_dir"), revision=args.revision)
        if isinstance(hit, str):
            return Path(hit).parent
    return None


def hub_error(repo: str, args: ModelArgs, error: Exception, hint: str = "") -> UserError:
    """What went wrong at the hub, decided by the type of the error and never by its text."""
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return UserError(
            f"The hub model '{repo}' is gated: ask for access at https://huggingface.co/{repo}, "
            "then log in with `hf auth login`."
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return UserError(
            f"'{repo}' is neither a directory here nor a model on the hub; check the spelling, or "
            f"log in with `hf auth login` if it is private.{hint}"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return UserError(f"The hub model '{repo}' has no revision '{args.revision}'; check its name on the hub.")
    if isinstance(error, errors.HFValidationError):
        return UserError(f"'{repo}' is neither a directory here nor a well-formed hub id (owner/name).{hint}")
    if isinstance(error, PermissionError):
        return UserError(f"The hub cache cannot be written ({error.filename}); set HF_HOME to a directory you own.")
    return UserError(
        f"'{repo}' is not a directory here, not in the hub cache, and the hub cannot be reached; check the "
        f"path, or connect (and unset HF_HUB_OFFLINE) to download it.{hint}"
    )

"""Fetching from the Hugging Face hub, with its failures told in one sentence each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vestige.errors import UserError
from vestige.models.args import ModelArgs


def fetch(repo: str, args: ModelArgs, files: Sequence[str], hint: str = "") -> Path:
    """The local snapshot of a hub repository, with at least those of `files` (patterns) that it has."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        found = snapshot_download(repo, revision=args.revision, allow_patterns=list(files), **args.hub)
        return Path(found)
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

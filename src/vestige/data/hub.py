"""Rows of a data set on a hub, or of a local directory with a data card, through `datasets`.

In: the `hf_args` of a data-set config. Out: rows, and where they came from, for people; or one sentence.
Caller: data/rows.py, for what is not a local file.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from vestige.data.rows import MissingData, Row
from vestige.errors import UserError, reraise_ours


@contextmanager
def _no_waiting() -> Iterator[None]:
    """Without a network, answer from the cache at once: `datasets` would retry for half a minute first."""
    import datasets
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    if not _hub_reachable(constants.ENDPOINT):
        constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before


def _hub_reachable(endpoint: str) -> bool:
    if getproxies():  # then we do not reach the hub ourselves, and cannot tell
        return True
    place = urlsplit(endpoint)
    try:
        port = place.port or (80 if place.scheme == "http" else 443)
        socket.create_connection((place.hostname or "", port), timeout=5).close()
    except OSError:
        return False
    return True


def rows_of_hub(path: str, args: Mapping[str, Any]) -> tuple[list[Row], str]:
    """Rows of a hub data set (or a local directory with a data card), through `datasets`."""
    import datasets

    datasets.disable_progress_bars()
    label = " / ".join(str(args[k]) for k in ("path", "name", "split") if k in args)
    options = {"split": "train", **args}
    try:
        with _no_waiting():
            loaded = datasets.load_dataset(**options)
    except Exception as error:  # datasets names many causes: the hub, the network, the files, their script
        reraise_ours(error)
        raise _explain(path, label, error) from None
    return [dict(row) for row in loaded], label


def _explain(path: str, label: str, error: Exception) -> UserError:
    kind, text = type(error).__name__, " ".join(str(error).split())
    if "gated" in text.lower() or kind == "GatedRepoError":
        return UserError(f"Data set {path} is gated: accept its terms on its hub page, then run `hf auth login`.")
    if "BuilderConfig" in text or "Unknown split" in text:
        return MissingData(f"Data set {label}: {text} (check hf_args.name and hf_args.split).")
    if kind in {
        "ConnectionError",
        "OfflineModeIsEnabled",
        "LocalEntryNotFoundError",
        "ConnectTimeout",
        "ConnectError",
    }:
        return UserError(
            f"The hub could not be reached for data set {path}; go online, or give a local directory "
            "with the same files (--data DIR)."
        )
    if kind in {"DatasetNotFoundError", "RepositoryNotFoundError", "FileNotFoundError"}:
        return UserError(
            f"Data set {path} was not found, neither as a local directory nor on the hub "
            "(or the hub could not be reached); check the name, or give a local directory."
        )
    return UserError(f"Data set {label} could not be loaded ({kind}): {text[:300]}")

"""`vestige publish`: a finished run in the form of a tracker, a hub or another tool, and what that form loses.

    run --Kind.account--> RunAccount --no secrets, no homes--> exporter --> files, read back --> what was lost

In: a run directory of any kind that has numbers. Out: files below `out`, and sentences. Nothing is sent unless it is
asked for. Callers: results/publish_flags.py.
"""

from __future__ import annotations

import importlib
import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vestige.errors import UserError
from vestige.integrations.exporters import (
    EXPORTERS,
    Exporter,
    Sending,
    Written,
    account_from,
    account_json,
    exporter_named,
    losses,
)
from vestige.secrets import hide, homes, shorten
from vestige.store import directories
from vestige.store.directories import read_seal, writing
from vestige.store.kinds import KINDS, kind, kind_of
from vestige.types import RunAccount

log = logging.getLogger("vestige.results")
OWN = ("json", "tensorboard", "hub", "inspect")  # what we write ourselves, file by file; trackers add runs of their own


@dataclass(frozen=True)
class PublishAsk:
    """What to publish, and where to."""

    run: Path
    to: str
    out: Path | None = None
    page: bool = True
    online: bool = False
    dataset: str = ""
    project: str = "vestige"


@dataclass(frozen=True)
class Published:
    """What was written, and what the form lost. `lost` is None where it was sent, which cannot be read back here."""

    written: Written
    lost: list[str] | None


def publish(ask: PublishAsk) -> Published:
    exporter = exporter_named(ask.to)
    if ask.online and not exporter.sends:
        raise UserError(f"--to {ask.to} writes files only; leave --online out, and send them with that tool.")
    run = ask.run
    directory, name = run_in(run)
    refuse_broken(directory, name)
    account = clean(_account(directory, name))
    page = page_of(directory) if ask.page else None
    out = ask.out or Path("saves") / "publish" / account.name / ask.to
    _keep_apart(out, directory)
    sending = Sending(account, out, page, ask.online, ask.dataset, ask.project)
    return _sent(exporter, sending)


def _sent(exporter: Exporter, sending: Sending) -> Published:
    if exporter.name in OWN:
        with writing(sending.out):
            written = exporter.write(sending)
    else:
        written = exporter.write(sending)
    if sending.online:
        return Published(written, None)
    after, page = exporter.read(sending.out)
    return Published(written, losses(sending.account, after, sending.page, page))


def run_in(path: Path) -> tuple[Path, str]:
    """The run that a path means: the directory itself, or what was watched of a training in it."""
    if not path.is_dir():
        raise UserError(f"{path} is not a run directory; give the directory of a finished run.")
    for place in (path, path / "vestige"):  # where a Trainer's output directory has what the callback saw
        found = kind_of(place) if place.is_dir() else None
        if found is not None:
            return place, found
    raise UserError(f"{path} is not a run directory: it has no manifest.json and no watch.json.")


def _account(path: Path, name: str) -> RunAccount:
    account = kind(name).account
    if account is None:
        able = ", ".join(known for known in KINDS if kind(known).account is not None)
        raise UserError(f"{path} is a {name} run, which has no numbers to publish; kinds that have: {able}.")
    return account(path)


def refuse_broken(path: Path, name: str) -> None:
    """Numbers of a run that is not finished, or not as it was sealed, are not published."""
    try:
        seal = read_seal(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is not published: {directories.SEAL} is damaged ({error}).") from None
    if seal is None:
        if name != "watch":
            log.warning("%s has no %s: nothing vouches for its numbers.", path, directories.SEAL)
        return
    if not seal.finished:
        raise UserError(f"{path} is not finished; run the command that made it again, it goes on from there.")
    wrong = directories.check(path, seal)
    if wrong:
        raise UserError(f"{path} is not published: {wrong[0]}")


def clean(account: RunAccount) -> RunAccount:
    """Without tokens and people's homes, in names, notes and texts alike."""
    text = json.dumps(account_json(account), ensure_ascii=False)
    hidden = hide(text)
    if hidden != text:
        log.warning("something that looks like a token or a password was replaced in what is published.")
    if places := homes(hidden):
        log.warning("paths that name a person's home (%s) are published with ~ in their place.", places[0])
    return account_from(json.loads(shorten(hidden)))


def page_of(path: Path) -> bytes | None:
    """The report on this run alone, as one file; None where a report has nothing to show of its kind."""
    module: Any = importlib.import_module("vestige.report.run")  # a report reads results: by name, as verify does
    try:
        made: bytes = module.page_bytes([path])
    except UserError as error:
        log.warning("no page: %s", error)
        return None
    return made


def _keep_apart(out: Path, run: Path) -> None:
    inside = out.absolute()
    if run.absolute() in (inside, *inside.parents):
        raise UserError(
            f"--out {out} is inside the run, which would no longer be as it was sealed; name another place."
        )


def said(found: Published, to: str) -> str:
    """For the terminal."""
    lines = [f"written: {file}" for file in found.written.files]
    lines += [f"note: {note}" for note in found.written.notes]
    if found.lost:
        lines += [f"{to} has no room for:", *(f"  {line}" for line in found.lost)]
    elif found.lost is not None:
        lines.append("read back: everything is there, digit for digit")
    else:
        lines.append("sent; it was not read back")
    lines += [f"next: {command}" for command in found.written.next]
    return "\n".join(lines)


def names() -> tuple[str, ...]:
    return tuple(EXPORTERS)

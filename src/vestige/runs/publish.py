"""`vestige publish`: a finished run's summary and tables for a tracker or the hub.

    run --Kind.account--> RunAccount --no secrets, no homes--> adapters/trackers.py

Nothing is sent unless it is asked for. Caller: results/publish_flags.py.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from pathlib import Path

import msgspec

from vestige.adapters.trackers import FILES, SERVERS, Destination
from vestige.errors import UserError, unknown_name
from vestige.runs.directory import open_run
from vestige.runs.manifest import check_files, read_run
from vestige.runs.run import KINDS, kind, kind_of
from vestige.secrets import hide, homes, shorten
from vestige.types import RunAccount

log = logging.getLogger("vestige.results")


def publish(run: Path, to: str, out: Path | None, online: bool, project: str, dataset: str) -> str:
    """Where the run was written, and the command that comes next."""
    known = {**FILES, **SERVERS}
    if to not in known:
        raise unknown_name("place to publish to", to, known)
    if online and to in FILES:
        raise UserError(f"--to {to} writes files only; leave --online out, and send them with that tool.")
    directory, name = run_in(run)
    refuse_broken(directory, name)
    account = without_secrets(account_of(directory, name))
    out = out or Path("saves") / "publish" / account.name / to
    inside = out.absolute()
    if directory.absolute() in (inside, *inside.parents):
        raise UserError(
            f"--out {out} is inside the run, which would no longer be as it was finished; name another place."
        )
    destination = Destination(out, online, project, dataset)
    if to in SERVERS:  # these write their own files
        following = known[to](account, destination)
    else:
        with open_run(out, "publish", []) as published:
            following = known[to](account, destination)
            published.finish()
    return f"next: {following}" if online else f"written: {out}\nnext: {following}"


def run_in(path: Path) -> tuple[Path, str]:
    """The run that a path means: the directory itself, or what was watched of a training in it."""
    if not path.is_dir():
        raise UserError(f"{path} is not a run directory; give the directory of a finished run.")
    for place in (path, path / "vestige"):  # where a Trainer's output directory has what the callback saw
        found = kind_of(place) if place.is_dir() else None
        if found is not None:
            return place, found
    raise UserError(f"{path} is not a run directory: it has no manifest.json and no watch.json.")


def account_of(path: Path, name: str) -> RunAccount:
    account = kind(name).account
    if account is None:
        able = ", ".join(known for known in KINDS if kind(known).account is not None)
        raise UserError(f"{path} is a {name} run, which has no numbers to publish; kinds that have: {able}.")
    return account(path)


def refuse_broken(path: Path, name: str) -> None:
    """Numbers of a run that is not finished, or not as it was then, are not published."""
    manifest = read_run(path)
    if manifest is None or not (manifest.root or manifest.unfinished):
        if name != "watch":
            log.warning("%s has no digests of its files: nothing vouches for its numbers.", path)
        return
    if manifest.unfinished:
        raise UserError(f"{path} is not finished; rerun the command that made it to resume.")
    wrong = check_files(path, manifest)
    if wrong:
        raise UserError(f"{path} is not published: {wrong[0]}")


def without_secrets(account: RunAccount) -> RunAccount:
    """The same without tokens and people's homes, in names, notes and texts alike."""
    text = json.dumps(asdict(account), ensure_ascii=False)
    hidden = hide(text)
    if hidden != text:
        log.warning("something that looks like a token or a password was replaced in what is published.")
    if places := homes(hidden):
        log.warning("paths that name a person's home (%s) are published with ~ in their place.", places[0])
    return msgspec.convert(json.loads(shorten(hidden)), RunAccount)

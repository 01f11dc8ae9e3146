"""A run in Weights & Biases: summary, curves, tables and the page as an artifact. Offline unless it is sent.

W&B's library writes its own folder (OUT/wandb/offline-run-...), a new one each time, and nothing else is touched.
`wandb sync` sends it. What the library would add about this machine (host, user, programme, packages, git) is off.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vestige.errors import UserError
from vestige.integrations.exporters import (
    PAGE,
    Sending,
    Written,
    about_json,
    account_about,
    ends_of,
    foreign_code,
    numbers_in,
    numbers_table,
    quiet_environment,
    table_of,
)
from vestige.types import RunAccount, RunTable
from vestige.writing import make_directory, temporary, write_bytes

ABOUT, CURVES, TABLES, METRICS, REPORT = "vestige", "curves/", "tables/", "metrics", "report"


def write(sending: Sending) -> Written:
    import wandb

    out = sending.out.absolute()
    make_directory(out)
    # Files of artifacts wait in the library's own folder until they are sent: here, and not in the user's home.
    places = {f"WANDB_{name}_DIR": str(out / "wandb" / name.lower()) for name in ("DATA", "CACHE")}
    settings: dict[str, Any] = {
        "console": "off",
        "disable_git": True,
        "save_code": False,
        "silent": True,
        "x_disable_meta": True,
        "x_disable_stats": True,
        "x_disable_machine_info": True,
        "x_save_requirements": False,
        **({} if sending.online else {"mode": "offline"}),
    }
    account = sending.account
    with foreign_code("wandb"), quiet_environment(WANDB_SILENT="true", **places), temporary() as scratch:
        run = wandb.init(
            project=sending.project,
            name=account.name,
            dir=str(out),
            config={ABOUT: about_json(account)},
            reinit="create_new",
            settings=wandb.Settings(**settings),
        )
        _log(wandb, run, sending, scratch)
        place, url = Path(run.dir).parent, run.url
        run.finish()
    if sending.online:
        return Written([place], [f"open {url}"])
    _wait_for_exit(place)
    return Written([place], [f"wandb sync {place}"])


def _wait_for_exit(place: Path, seconds: float = 60.0) -> None:
    """Until the log of an offline run is whole: under load `finish` returns before all is written."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        logs = list(place.glob("*.wandb"))
        if logs and any(record.WhichOneof("record_type") == "exit" for record in _records(logs[0].read_bytes())):
            return
        time.sleep(0.05)
    raise UserError(f"W&B did not finish its log in {place} within {seconds:.0f} s; run the same command again.")


def _log(wandb: Any, run: Any, sending: Sending, scratch: Path) -> None:
    account = sending.account
    for name, number in account.numbers.items():
        for key, value in ends_of(name, number).items():
            run.summary[key] = value
    axes = {curve.axis for curve in account.curves.values()}
    for axis in sorted(axes):
        run.define_metric(f"{CURVES}{axis}", hidden=True)
    places: dict[tuple[str, float], dict[str, float]] = {}
    for name, curve in account.curves.items():
        for key in (name, f"{name}_low", f"{name}_high"):
            run.define_metric(f"{CURVES}{key}", step_metric=f"{CURVES}{curve.axis}")
        for at, point in zip(curve.at, curve.points, strict=True):
            found = {f"{CURVES}{key}": value for key, value in ends_of(name, point).items()}
            places.setdefault((curve.axis, at), {}).update(found)
    for (axis, at), found in sorted(places.items()):
        run.log({f"{CURVES}{axis}": at, **found})
    for name, table in {METRICS: numbers_table(account), **account.tables}.items():
        cells = [[cell if _is_plain(cell) else json.dumps(cell) for cell in row] for row in table.rows]
        # Columns hold what comes: a number, a text or nothing.
        run.log({f"{TABLES}{name}": wandb.Table(list(table.columns), cells, allow_mixed_types=True)})
    if sending.page is not None:
        write_bytes(scratch / PAGE, sending.page)
        artifact = wandb.Artifact(REPORT, type="report")
        artifact.add_file(str(scratch / PAGE))
        run.log_artifact(artifact)


def _is_plain(cell: Any) -> bool:
    return cell is None or isinstance(cell, (str, int, float, bool))


# ---- back ---------------------------------------------------------------------------------------------------------

BLOCK, HEADER = 32768, 7  # of the log that an offline run is: records cut into blocks, each piece with a small head


def read(out: Path) -> tuple[RunAccount, bytes | None]:
    """The newest offline run in a folder, by the library's own records."""
    logs = sorted((out / "wandb").glob("offline-run-*/*.wandb"), key=lambda p: (p.stat().st_mtime_ns, p.name))
    if not logs:
        raise UserError(f"{out} holds no offline run of W&B.")
    return read_offline(logs[-1])


def read_offline(log: Path) -> tuple[RunAccount, bytes | None]:
    about: Mapping[str, Any] = {}
    rows: list[dict[tuple[str, ...], Any]] = []  # of the history, by path
    page: bytes | None = None
    for record in _records(log.read_bytes()):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            about = {_key(u): json.loads(u.value_json) for u in record.run.config.update}.get((ABOUT,), about)
        elif kind == "history":
            rows.append({_key(item): json.loads(item.value_json) for item in record.history.item})
        elif kind == "artifact" or (kind == "request" and record.request.HasField("log_artifact")):
            found = record.artifact if kind == "artifact" else record.request.log_artifact.artifact
            page = _page(found) or page
    tables: dict[str, RunTable] = {}
    points: dict[str, dict[float, dict[str, float]]] = {}
    axes = {name: axis for name, (axis, _) in about.get("axes", {}).items()}
    for row in rows:
        for key, value in row.items():
            if len(key) == 2 and key[0].startswith(TABLES) and key[1] == "path":
                body = json.loads((log.parent / "files" / str(value)).read_text("utf-8"))
                tables[key[0].removeprefix(TABLES)] = table_of(body["columns"], body["data"])
        for name, axis in axes.items():
            at = row.get((f"{CURVES}{axis}",))
            for end in (name, f"{name}_low", f"{name}_high"):
                if at is not None and (f"{CURVES}{end}",) in row:
                    points.setdefault(name, {}).setdefault(float(at), {})[end] = row[(f"{CURVES}{end}",)]
    return account_about(about, numbers_in(tables.pop(METRICS)), points, tables), page


def _key(item: Any) -> tuple[str, ...]:
    return (str(item.key),) if item.key else tuple(map(str, item.nested_key))


def _page(artifact: Any) -> bytes | None:
    if artifact.type != "report":
        return None
    for entry in artifact.manifest.contents:
        if entry.path == PAGE and entry.local_path and Path(entry.local_path).is_file():
            return Path(entry.local_path).read_bytes()
    return None


def _records(data: bytes) -> Iterator[Any]:
    """The library's records. Its Python part has no reader; the layout is LevelDB's log after a short head."""
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]  # made when it is imported

    at, parts = HEADER, b""
    while at + HEADER <= len(data):
        left = BLOCK - at % BLOCK
        if left < HEADER:
            at += left
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        if at + HEADER + size > len(data):
            return  # still being written
        piece, at = data[at + HEADER : at + HEADER + size], at + HEADER + size
        parts += piece
        if kind in (1, 4):  # whole, or the last piece
            record = Record()
            record.ParseFromString(parts)
            parts = b""
            yield record

"""A run as a TensorBoard event file: numbers and curves as scalars, tables as text.

One file of our own name, so that publishing again replaces it: TensorBoard would show a second file's points beside the
first one's. Scalars are single precision, as everybody writes them; the table `metrics` has all digits.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from vestige.errors import UserError
from vestige.integrations.exporters import (
    Sending,
    Written,
    about_json,
    account_about,
    ends_of,
    foreign_code,
    numbers_in,
    numbers_table,
    table_of,
)
from vestige.types import RunAccount, RunTable
from vestige.writing import write_bytes

FILE = "events.out.tfevents.0000000000.vestige"
PREFIX, CURVES, TABLES, ABOUT = "vestige/", "vestige/curves/", "vestige/tables/", "vestige/about"
METRICS = "metrics"
MOST_ROWS = 1000  # of a table: the page that shows it holds every cell


def write(sending: Sending) -> Written:
    account = sending.account
    notes: list[str] = []
    with foreign_code("tensorboard"):
        data = _events(account)
    if any(len(t.rows) > MOST_ROWS for t in account.tables.values()):
        notes.append(f"tables are cut after {MOST_ROWS} rows: TensorBoard draws every cell of a text")
    write_bytes(sending.out / FILE, data)
    return Written([sending.out / FILE], [f"tensorboard --logdir {sending.out}"], notes)


def _events(account: RunAccount) -> bytes:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    stream = io.BytesIO()
    writer = RecordWriter(stream)
    wall = _seconds(account.created)
    writer.write(Event(wall_time=wall, file_version="brain.Event:2").SerializeToString())
    for step, value in _values(account):
        writer.write(Event(wall_time=wall, step=step, summary=Summary(value=[value])).SerializeToString())
    writer.flush()
    return stream.getvalue()


def _values(account: RunAccount) -> Iterator[tuple[int, Any]]:
    from tensorboard.compat.proto.summary_pb2 import Summary

    for name, number in account.numbers.items():
        for tag, value in ends_of(name, number).items():
            yield 0, Summary.Value(tag=f"{PREFIX}{tag}", simple_value=value)
    for name, curve in account.curves.items():
        for at, point in zip(curve.at, curve.points, strict=True):
            for tag, value in ends_of(name, point).items():
                yield int(at), Summary.Value(tag=f"{CURVES}{tag}", simple_value=value)
    tables = {METRICS: numbers_table(account), **account.tables}
    for name, table in tables.items():
        yield 0, _text(f"{TABLES}{name}", [list(table.columns), *table.rows[:MOST_ROWS]])
    yield 0, _text(ABOUT, [["about"], [json.dumps(about_json(account))]])


def _text(tag: str, rows: list[Any]) -> Any:
    """A table of texts: what TensorBoard shows of a text with two dimensions."""
    import numpy as np
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.text.metadata import create_summary_metadata
    from tensorboard.util.tensor_util import make_tensor_proto

    cells = np.array([[_cell(c).encode("utf-8", "backslashreplace") for c in row] for row in rows], dtype=object)
    metadata = create_summary_metadata(display_name="", description="")
    return Summary.Value(tag=tag, metadata=metadata, tensor=make_tensor_proto(cells))


def _cell(value: Any) -> str:
    """A text as it is, unless it could be taken for something else; anything else as JSON."""
    return value if isinstance(value, str) and not _is_json(value) else json.dumps(value, ensure_ascii=False)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _value(cell: str) -> Any:
    try:
        return json.loads(cell)
    except ValueError:
        return cell


def _seconds(created: str) -> float:
    try:
        return datetime.fromisoformat(created).timestamp()
    except ValueError:
        return 0.0


# ---- back ---------------------------------------------------------------------------------------------------------


def read(out: Path) -> tuple[RunAccount, bytes | None]:
    """What TensorBoard's own reader finds."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    found = EventAccumulator(str(out / FILE), size_guidance={"scalars": 0, "tensors": 0})
    found.Reload()
    texts = {tag: make_ndarray(found.Tensors(tag)[0].tensor_proto) for tag in found.Tags()["tensors"]}
    if ABOUT not in texts:
        raise UserError(f"{out / FILE} has no {ABOUT}: it was not written by vestige publish.")
    tables = {tag.removeprefix(TABLES): _table(cells) for tag, cells in texts.items() if tag.startswith(TABLES)}
    about = json.loads(str(_value(bytes(texts[ABOUT][1][0]).decode("utf-8"))))
    points: dict[str, dict[float, dict[str, float]]] = {}
    scalars: Mapping[str, Any] = {tag: found.Scalars(tag) for tag in found.Tags()["scalars"]}
    for name in about["axes"]:
        for tag in (name, f"{name}_low", f"{name}_high"):
            for event in scalars.get(f"{CURVES}{tag}", ()):
                points.setdefault(name, {}).setdefault(float(event.step), {})[tag] = float(event.value)
    return account_about(about, numbers_in(tables.pop(METRICS)), points, tables), None


def _table(cells: Any) -> RunTable:
    words = [[bytes(c).decode("utf-8", "replace") for c in row] for row in cells]
    return table_of(words[0], [[_value(c) for c in row] for row in words[1:]])

"""A run in MLflow: numbers and curves as metrics, facts as parameters, tables and the page as artifacts.

Without `--online` it is a folder of files (OUT/mlruns), which `mlflow ui` and `mlflow migrate-filestore` read; MLflow
adds a new run each time. With it the run goes to the server that MLFLOW_TRACKING_URI names.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vestige.errors import UserError
from vestige.integrations.exporters import (
    PAGE,
    Sending,
    Written,
    about_json,
    account_about,
    as_bytes,
    ends_of,
    foreign_code,
    numbers_in,
    numbers_table,
    quiet_environment,
    table_of,
)
from vestige.types import RunAccount, RunTable
from vestige.writing import make_directory, temporary, write_bytes

CURVES, TABLES, METRICS, ABOUT, TAG = "curves/", "tables", "metrics", "about.json", "vestige.publication"
ODD = re.compile(r"[^\w\-. /:]")  # what a name of MLflow's may not have
MOST = 900  # metrics in one request; a server takes 1,000
LONGEST = 500  # characters of a parameter that every server takes


def write(sending: Sending) -> Written:
    from mlflow.tracking import MlflowClient

    account, place = sending.account, sending.out.absolute() / "mlruns"
    if sending.online and not os.environ.get("MLFLOW_TRACKING_URI"):
        raise UserError("MLFLOW_TRACKING_URI is not set; name your server in it, or leave --online out for files.")
    where = os.environ["MLFLOW_TRACKING_URI"] if sending.online else place.as_uri()
    make_directory(sending.out)
    with foreign_code("mlflow"), quiet_environment(), temporary() as scratch:
        client = MlflowClient(tracking_uri=where)
        known = client.get_experiment_by_name(sending.project)
        experiment = known.experiment_id if known else client.create_experiment(sending.project)
        run = client.create_run(experiment, run_name=account.name, tags={TAG: "1", "vestige.kind": account.kind})
        _log(client, run.info.run_id, sending, scratch)
        client.set_terminated(run.info.run_id)
    if sending.online:
        return Written([], [f"run {run.info.run_id} of experiment {sending.project}"])
    return Written([place], [f"MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri {place}"])


def _log(client: Any, run: str, sending: Sending, scratch: Path) -> None:
    from mlflow.entities import Metric, Param

    account, now = sending.account, int(time.time() * 1000)
    metrics = [
        Metric(_name(key), value, now, 0)
        for name, number in account.numbers.items()
        for key, value in ends_of(name, number).items()
    ]
    metrics += [
        Metric(_curve_name(key), value, now, int(at))
        for name, curve in account.curves.items()
        for at, point in zip(curve.at, curve.points, strict=True)
        for key, value in ends_of(name, point).items()
    ]
    for start in range(0, len(metrics), MOST):
        client.log_batch(run, metrics=metrics[start : start + MOST])
    told = {"model": account.model, "suite": account.suite, **account.facts}
    client.log_batch(run, params=[Param(_name(k), v[:LONGEST]) for k, v in told.items() if v][:100])
    names = {}
    for number, (name, table) in enumerate({METRICS: numbers_table(account), **account.tables}.items()):
        file = scratch / TABLES / f"{number}-{re.sub(r'[^A-Za-z0-9_.-]', '_', name)[:60]}.json"
        write_bytes(file, as_bytes({"columns": list(table.columns), "data": [list(r) for r in table.rows]}, None))
        names[file.name] = name
    write_bytes(scratch / ABOUT, as_bytes({**about_json(account), "tables": names}))
    if sending.page is not None:
        write_bytes(scratch / PAGE, sending.page)
    client.log_artifacts(run, str(scratch))
    # By this tag MLflow's page shows an artifact as a table.
    shown = [{"path": f"{TABLES}/{file}", "type": "table"} for file in names]
    client.set_tag(run, "mlflow.loggedArtifacts", json.dumps(shown))


def _name(name: str) -> str:
    """A folder of files has one per metric: a name may not be the beginning of another's path."""
    return ODD.sub("_", name).replace("/", ".")[:200]


def _curve_name(name: str) -> str:
    return f"{CURVES}{_name(name)}"


# ---- back ---------------------------------------------------------------------------------------------------------


def read(out: Path) -> tuple[RunAccount, bytes | None]:
    """The newest run in a folder of files, by MLflow's own client."""
    from mlflow.tracking import MlflowClient

    with quiet_environment():
        client = MlflowClient(tracking_uri=(out.absolute() / "mlruns").as_uri())
        experiments = [e.experiment_id for e in client.search_experiments()]
        runs = [
            r for r in client.search_runs(experiments, order_by=["attributes.start_time DESC"]) if TAG in r.data.tags
        ]
        if not runs:
            raise UserError(f"{out} holds no run of MLflow that vestige published.")
        return _read_run(client, runs[0])


def _read_run(client: Any, run: Any) -> tuple[RunAccount, bytes | None]:
    id = run.info.run_id
    with temporary() as scratch:
        place = Path(client.download_artifacts(id, "", str(scratch)))
        about = json.loads((place / ABOUT).read_text("utf-8"))
        tables = {name: _table(place / TABLES / file) for file, name in about.pop("tables").items()}
        page = (place / PAGE).read_bytes() if (place / PAGE).is_file() else None
    points: dict[str, dict[float, dict[str, float]]] = {}
    for name in about["axes"]:
        for key in (name, f"{name}_low", f"{name}_high"):
            known: Mapping[str, Any] = run.data.metrics
            if _curve_name(key) in known:
                for metric in client.get_metric_history(id, _curve_name(key)):
                    points.setdefault(name, {}).setdefault(float(metric.step), {})[key] = metric.value
    return account_about(about, numbers_in(tables.pop(METRICS)), points, tables), page


def _table(file: Path) -> RunTable:
    body = json.loads(file.read_text("utf-8"))
    return table_of(body["columns"], body["data"])

"""A finished run's summary and its table of metrics in other tools: W&B, MLflow, TensorBoard, a hub model card, JSON.

One function for each, in FILES and SERVERS. They take a RunAccount (types.py) without secrets, write below `out` or
send to a server, and return the command to run next. A tool's own library is imported on first use. Caller:
runs/publish.py.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vestige.errors import UserError, first_line, how_to_install, reraise_ours
from vestige.io import make_directory
from vestige.runs.directory import write_bytes
from vestige.types import RunAccount, RunNumber, RunTable


@dataclass(frozen=True)
class Destination:
    """Where a run is published to."""

    out: Path
    online: bool = False  # send it, by the tool's own settings; else files on this machine
    project: str = "vestige"  # W&B's project, MLflow's experiment
    dataset: str = ""  # the hub's data set that was evaluated, as ORG/NAME


# Usage statistics and error reports of these libraries are off.
QUIET = {
    "DO_NOT_TRACK": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_SILENT": "true",
    "MLFLOW_ALLOW_FILE_STORE": "true",  # newer versions ask for this before they write a folder of files
}


@contextmanager
def tracker(package: str, **environment: str) -> Iterator[Any]:
    """A tracker's package, imported quietly; whatever it raises becomes one sentence."""
    settings = {**QUIET, **environment}
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield importlib.import_module(package)
    except ImportError as error:
        raise UserError(f"Publishing to {package} needs its package; run `{how_to_install(package)}`.") from error
    except UserError:
        raise
    except Exception as error:  # any type: their network, their files, their server
        reraise_ours(error)
        raise UserError(f"{package} refused: {type(error).__name__}: {first_line(error)}") from error
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value


def with_interval(name: str, number: RunNumber) -> dict[str, float]:
    """A number and the ends of its interval, named as the training callbacks name them; what is None is left out.

    >>> with_interval("p", RunNumber(0.5, 0.25, 0.75))
    {'p': 0.5, 'p_low': 0.25, 'p_high': 0.75}
    """
    values = {name: number.value, f"{name}_low": number.low, f"{name}_high": number.high}
    return {key: float(value) for key, value in values.items() if value is not None}


def named_numbers(account: RunAccount) -> dict[str, float]:
    """Every number of a run, and the ends of its interval."""
    named: dict[str, float] = {}
    for name, number in account.numbers.items():
        named |= with_interval(name, number)
    return named


def metrics_table(account: RunAccount) -> RunTable:
    """Every number with its interval, its rows and the reason why it is missing."""
    rows = [(name, m.value, m.low, m.high, m.n, m.reason) for name, m in account.numbers.items()]
    return RunTable(("metric", "value", "low", "high", "n", "reason"), tuple(rows))


def log_to_wandb(account: RunAccount, to: Destination) -> str:
    """A new run of W&B. Offline unless it is sent."""
    out = to.out.absolute()
    make_directory(out)
    # W&B keeps files of artifacts in folders of its own until they are sent: here, not in the user's home.
    folders = {"WANDB_DATA_DIR": str(out / "wandb" / "data"), "WANDB_CACHE_DIR": str(out / "wandb" / "cache")}
    with tracker("wandb", **folders) as wandb:
        settings = wandb.Settings(
            mode="online" if to.online else "offline",
            console="off",
            silent=True,
            # Nothing about this machine: host, user, program, packages, git.
            disable_git=True,
            save_code=False,
            x_disable_meta=True,
            x_disable_stats=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
        )
        facts = {"kind": account.kind, "model": account.model, "suite": account.suite, **account.facts}
        run = wandb.init(
            project=to.project, name=account.name, dir=str(out), config=facts, reinit="create_new", settings=settings
        )
        run.summary.update(named_numbers(account))
        table = metrics_table(account)
        rows = [list(row) for row in table.rows]
        run.log({"tables/metrics": wandb.Table(list(table.columns), rows, allow_mixed_types=True)})
        run.finish()
    return f"open {run.url}" if to.online else f"wandb sync {Path(run.dir).parent}"


def log_to_mlflow(account: RunAccount, to: Destination) -> str:
    """A new run of MLflow: numbers as metrics, facts as parameters, the table as an artifact."""
    folder = to.out.absolute() / "mlruns"
    uri = os.environ.get("MLFLOW_TRACKING_URI", "") if to.online else folder.as_uri()
    if not uri:
        raise UserError("MLFLOW_TRACKING_URI is not set; name your server in it, or leave --online out for files.")
    make_directory(to.out)
    with tracker("mlflow"):
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        client = MlflowClient(tracking_uri=uri)
        known = client.get_experiment_by_name(to.project)
        experiment = known.experiment_id if known else client.create_experiment(to.project)
        run = client.create_run(experiment, run_name=account.name, tags={"vestige.kind": account.kind}).info.run_id
        now = int(time.time() * 1000)
        metrics = [Metric(mlflow_name(name), value, now, 0) for name, value in named_numbers(account).items()]
        for start in range(0, len(metrics), 900):  # a server takes 1,000 in one request
            client.log_batch(run, metrics=metrics[start : start + 900])
        facts = {"model": account.model, "suite": account.suite, **account.facts}
        params = [Param(mlflow_name(key), value[:500]) for key, value in facts.items() if value]
        client.log_batch(run, params=params[:100])
        table = metrics_table(account)
        data = {"columns": list(table.columns), "data": [list(row) for row in table.rows]}
        client.log_dict(run, data, "tables/metrics.json")
        # MLflow's page shows the tables that this tag lists.
        client.set_tag(run, "mlflow.loggedArtifacts", json.dumps([{"path": "tables/metrics.json", "type": "table"}]))
        client.set_terminated(run)
    if to.online:
        return f"open run {run} of experiment {to.project}"
    return f"MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri {folder}"


def mlflow_name(name: str) -> str:
    """In a folder of files each metric is a file: no name may be the folder of another's."""
    return re.sub(r"[^\w\-. :]", "_", name.replace("/", "."))[:200]


def log_to_tensorboard(account: RunAccount, to: Destination) -> str:
    """One event file: numbers as scalars (single precision), the table as text."""
    with tracker("tensorboard"):
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.text.metadata import create_summary_metadata
        from tensorboard.summary.writer.record_writer import RecordWriter
        from tensorboard.util.tensor_util import make_tensor_proto

        values = []
        for name, value in named_numbers(account).items():
            values.append(Summary.Value(tag=f"vestige/{name}", simple_value=value))
        as_text = create_summary_metadata(display_name="", description="")
        text = make_tensor_proto([markdown_table(metrics_table(account)).encode("utf-8", "backslashreplace")])
        values.append(Summary.Value(tag="vestige/tables/metrics", metadata=as_text, tensor=text))
        stream = io.BytesIO()
        writer = RecordWriter(stream)
        writer.write(Event(file_version="brain.Event:2").SerializeToString())
        writer.write(Event(step=0, summary=Summary(value=values)).SerializeToString())
        writer.flush()
    # A name of our own, so that publishing again replaces it: points of two files would be shown together.
    write_bytes(to.out / "events.out.tfevents.0000000000.vestige", stream.getvalue())
    return f"tensorboard --logdir {to.out}"


def write_card(account: RunAccount, to: Destination) -> str:
    """model-card.md: front matter with a `model-index` to merge into a model's README.md, and a table."""
    from huggingface_hub import EvalResult, ModelCard, ModelCardData

    if to.dataset and not re.fullmatch(r"[\w.-]+/[\w.-]+", to.dataset):
        raise UserError(f"--dataset is '{to.dataset}'; it is a data set of the hub, written ORG/NAME.")
    data_name = account.suite or account.kind
    results = []
    for name, number in account.numbers.items():
        if number.value is None:
            continue
        parts = {"low": number.low, "high": number.high, "n": number.n}
        results.append(
            EvalResult(
                task_type="text-generation",
                dataset_type=to.dataset or data_name,
                dataset_name=data_name,
                metric_type=name,
                metric_name=name,
                metric_value=number.value,
                metric_args={key: value for key, value in parts.items() if value is not None} or None,
            )
        )
    data = ModelCardData(model_name=account.model or account.name, eval_results=results or None)
    table = markdown_table(metrics_table(account))
    card = ModelCard(f"---\n{data.to_yaml()}\n---\n\n# Evaluation: {account.name}\n\n{table}\n")
    write_bytes(to.out / "model-card.md", str(card).encode("utf-8", "backslashreplace"))
    return f"merge {to.out / 'model-card.md'} into the README.md of the model's repository"


def write_json_account(account: RunAccount, to: Destination) -> str:
    """publication.json: all of it, as plain data."""
    text = json.dumps(asdict(account), indent=1, ensure_ascii=False, allow_nan=False)
    write_bytes(to.out / "publication.json", f"{text}\n".encode("utf-8", "surrogatepass"))
    return f"read {to.out / 'publication.json'}"


def markdown_table(table: RunTable) -> str:
    """Rows as Markdown.

    >>> print(markdown_table(RunTable(("a", "b"), ((1, None), ("x|y", 0.5)))))
    | a | b |
    |---|---|
    | 1 |  |
    | x/y | 0.5 |
    """
    lines = []
    for row in [table.columns, *table.rows]:
        cells = ["" if cell is None else str(cell).replace("|", "/").replace("\n", " ") for cell in row]
        lines.append(f"| {' | '.join(cells)} |")
    lines.insert(1, f"|{'---|' * len(table.columns)}")
    return "\n".join(lines)


Log = Callable[[RunAccount, Destination], str]
# Formats that are written here, and tools that write their own files and can send them.
FILES: dict[str, Log] = {"json": write_json_account, "tensorboard": log_to_tensorboard, "hub": write_card}
SERVERS: dict[str, Log] = {"wandb": log_to_wandb, "mlflow": log_to_mlflow}

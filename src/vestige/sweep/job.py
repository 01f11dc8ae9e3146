"""vestige job: any vestige command as a Kubernetes Job, a sweep as a KubeRay RayJob.

The command is carried as it was typed. In a Job it is the list of arguments, in a RayJob the entry point, quoted for
the shell that Ray runs it in. Nothing here talks to a cluster except `submit`, through kubectl.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vestige.configs.compose import PACKAGE_DIR
from vestige.errors import UserError, how_to_install, unknown_name
from vestige.guard import parse_yaml, read_yaml
from vestige.secrets import hide, is_secret_name, note_tree

SETTINGS = PACKAGE_DIR / "job" / "settings.yaml"
_FREE = ("env", "gpu_types")  # mappings whose keys are the user's own
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")  # short, because the cluster appends to it
_RAY_NAME = re.compile(r"[a-z]([a-z0-9-]{0,45}[a-z0-9])?")  # a DNS label that begins with a letter, 47 at most
# Whole numbers, and the least of each.
COUNTS = {
    "gpu.count": 0,
    "retries": 0,
    "keep_seconds": 0,
    "server.port": 1,
    "server.start_minutes": 1,
    "server.gpu": 0,
    "ray.workers": 1,
}
# It listens on loopback only, where the cluster's own probes (which come from outside the pod) do not reach it.
_READY = "import urllib.request; urllib.request.urlopen('{url}', timeout=5)"
_LOOK = 10  # seconds between two looks at whether a server is ready

JobSettings = Mapping[str, Any]


def read_settings(words: Sequence[str] = (), file: Path | None = None, name: str | None = None) -> dict[str, Any]:
    """Our settings, a file's laid over them, and KEY=VALUE words (and a name given by itself) over both."""
    settings: dict[str, Any] = read_yaml(SETTINGS)
    if file is not None:
        try:
            said = read_yaml(file) or {}
        except (OSError, ValueError) as error:
            raise UserError(f"The settings {file} cannot be read: {error}.") from None
        if not isinstance(said, dict):
            raise UserError(f"The settings {file} must be a mapping, such as {{gpu: {{type: A100-40}}}}.")
        note_tree(said)
        _lay_over(settings, said, "")
    for word in words:
        key, equals, value = word.partition("=")
        if not key or not equals:
            raise UserError(f"Cannot read --set {word}; write --set KEY=VALUE, as in --set gpu.type=A100-40.")
        try:
            nested: Any = parse_yaml(value)
            for part in reversed(key.split(".")):  # names of environment variables have no dots
                nested = {part: nested}
            _lay_over(settings, nested, "")
        except ValueError as error:
            raise UserError(f"Cannot read the value of --set {word}: {error}.") from None
    if name is not None:
        settings["name"] = name
    return _checked(settings)


def _lay_over(below: dict[str, Any], above: Mapping[str, Any], where: str) -> None:
    """Settings over others, in place. A name that ours do not have is a mistake, not a new setting."""
    for key, value in above.items():
        name = f"{where}{key}"
        if key not in below and where.rstrip(".") not in _FREE:
            raise unknown_name("setting", name, [f"{where}{k}" for k in below])
        if isinstance(below.get(key), dict):
            if not isinstance(value, Mapping):
                raise UserError(f"The setting '{name}' has parts ({', '.join(below[key])}); set one of them.")
            _lay_over(below[key], value, f"{name}.")
        elif isinstance(value, Mapping):
            raise UserError(f"The setting '{name}' takes one value, not a mapping.")
        else:
            below[key] = value


def _checked(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings, if a cluster would take their names and counts."""
    if not NAME.fullmatch(str(settings["name"])):
        raise UserError(f"The job name '{settings['name']}' must be at most 40 of a-z, 0-9 and '-', as in npo-tofu.")
    for key, least in COUNTS.items():
        value: Any = settings
        for part in key.split("."):
            value = value[part]
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise UserError(f"The setting '{key}' must be a whole number of at least {least}, it is {value!r}.")
    return settings


def render(
    settings: JobSettings, command: Sequence[str], kind: str | None = None, takes_server: bool = True
) -> dict[str, Any]:
    """The manifest of a command. A sweep becomes a RayJob unless told otherwise."""
    if not command:
        raise UserError("No command given; write it after `--`, as in `vestige job --dry-run -- eval tofu --model M`.")
    if command[0] == "vestige":  # as one types it elsewhere; the image's program is put in front in any case
        return render(settings, command[1:], kind, takes_server)
    if command[0].startswith("-") or command[0] == "job":
        raise UserError(f"'{command[0]}' is not a command to run in a job; write a verb after `--`, as in `-- eval`.")
    _refuse_secrets(settings, command)
    chosen = kind or ("rayjob" if command[0] == "sweep" else "job")
    if settings["server"]["model"] is not None:
        _check_server(settings, command, chosen, takes_server)
    return _ray_job(settings, command) if chosen == "rayjob" else _job(settings, command)


def _check_server(settings: JobSettings, command: Sequence[str], kind: str, takes_server: bool) -> None:
    """Refuses a server next to a command that could not use it."""
    said = settings["server"]
    if kind == "rayjob":
        raise UserError(
            "A server beside the command is for --kind job: the workers of a RayJob are several pods. Start servers of "
            "their own and name them in the plan (server:), or give --kind job."
        )
    if not takes_server:
        raise UserError(f"`vestige {command[0]}` does not ask a server; leave out --set server.model.")
    for key in ("command", "args"):
        if not isinstance(said[key], list):
            raise UserError(f"The setting 'server.{key}' must be a list of words, it is {said[key]!r}.")


def _refuse_secrets(settings: JobSettings, command: Sequence[str]) -> None:
    """A manifest is kept in files and in the cluster's own database: no place for a token."""
    words = [word.partition("=") for word in command]
    said = [(name.lstrip("-+~"), value) for name, equals, value in words if equals]
    said += list(zip((word.lstrip("-") for word in command if word.startswith("--")), command[1:], strict=False))
    said += [(f"env.{name}", _text(value)) for name, value in settings["env"].items()]
    for name, value in said:
        literal_secret = is_secret_name(name) and value and not value.startswith(("${oc.env:", "--"))
        if literal_secret or hide(value, environment=False) != value:
            raise UserError(
                f"'{name}' is a secret, which a manifest must not hold; put it into a Kubernetes Secret, name that "
                "with --set secret=NAME, and write ${oc.env:VARIABLE} in the command."
            )


def _metadata(settings: JobSettings) -> dict[str, Any]:
    place = {"namespace": str(settings["namespace"])} if settings["namespace"] else {}
    return {"name": str(settings["name"]), "labels": {"app.kubernetes.io/name": "vestige"}, **place}


def _job(settings: JobSettings, command: Sequence[str]) -> dict[str, Any]:
    """One pod that runs the command once; with a server, the pod has it as a sidecar."""
    beside = settings["server"]["model"] is not None
    own = {**settings, "gpu": {**settings["gpu"], "count": 0}} if beside else settings  # its server has them
    # A sweep's plan names its servers, and which of its models run without one.
    # The address is added to a command that names no server itself.
    named = any(word.partition("=")[0] == "--server" for word in command) or command[0] == "sweep"
    words = command if named or not beside else [command[0], "--server", _address(settings), *command[1:]]
    container = {**_container(own, "vestige"), "command": ["vestige"], "args": [literal(c) for c in words]}
    served = {**settings, **{k: settings["server"][k] for k in ("image", "cpu", "memory")}}
    served["gpu"] = {**settings["gpu"], "count": settings["server"]["gpu"]}
    # The pod as a whole goes where its GPUs are, whichever container has them.
    pod = {**_pod(served if beside else settings, container), "restartPolicy": "Never"}
    if beside:
        pod = {"initContainers": [_server(served)], **pod}
    spec = {"backoffLimit": settings["retries"], "ttlSecondsAfterFinished": settings["keep_seconds"]}
    template = {"metadata": {"labels": _metadata(settings)["labels"]}, "spec": pod}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(settings),
        "spec": {**spec, "template": template},
    }


def _address(settings: JobSettings) -> str:
    return f"http://127.0.0.1:{settings['server']['port']}"


def _server(settings: JobSettings) -> dict[str, Any]:
    """A model server as a sidecar: an init container that keeps running. The command starts when it is ready.

    A second ordinary container would never end, and with it the Job; a sidecar ends when the command does.
    """
    said = settings["server"]
    words = [*said["command"], "--model", said["model"], *said["args"], "--host", "127.0.0.1", "--port", said["port"]]
    probe = {"exec": {"command": ["python3", "-c", _READY.format(url=_address(settings) + str(said["health"]))]}}
    return {
        **_container(settings, "server"),
        "command": [literal(str(word)) for word in words],
        "restartPolicy": "Always",
        "startupProbe": {**probe, "periodSeconds": _LOOK, "failureThreshold": said["start_minutes"] * 60 // _LOOK},
        "readinessProbe": {**probe, "periodSeconds": _LOOK},
    }


def _ray_job(settings: JobSettings, command: Sequence[str]) -> dict[str, Any]:
    """A cluster for one sweep. The head plans and the workers work, so only they have GPUs."""
    if not _RAY_NAME.fullmatch(str(settings["name"])):
        raise UserError(f"The name of a RayJob must begin with a letter; '{settings['name']}' does not.")
    without = {**settings, "gpu": {**settings["gpu"], "count": 0}}
    workers = settings["ray"]["workers"]
    head = {"rayStartParams": {"num-cpus": "0"}, "template": _ray_pod(without, "ray-head")}
    group = {"groupName": "workers", "replicas": workers, "minReplicas": workers, "maxReplicas": workers}
    worker = {**group, "rayStartParams": {}, "template": _ray_pod(settings, "ray-worker")}
    cluster = {"rayVersion": str(settings["ray"]["version"]), "headGroupSpec": head, "workerGroupSpecs": [worker]}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": _metadata(settings),
        "spec": {
            "entrypoint": f"cd {shlex.quote(str(settings['workdir']))} && {shlex.join(['vestige', *command])}",
            "submissionMode": "HTTPMode",  # the entry point arrives as it is; `ray job submit` would quote it again
            "backoffLimit": settings["retries"],
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": settings["keep_seconds"],
            "rayClusterSpec": cluster,
        },
    }


def _ray_pod(settings: JobSettings, name: str) -> dict[str, Any]:
    # The variable makes `vestige sweep` use the cluster it runs in, so that the command needs no flag for it.
    inside = {**settings, "env": {"VESTIGE_POOL": "ray", **settings["env"]}}
    return {"spec": _pod(inside, _container(inside, name))}


def _pod(settings: JobSettings, container: Mapping[str, Any]) -> dict[str, Any]:
    """The container with its volumes, on a node that has the GPU asked for."""
    claims = {name: settings[name]["claim"] for name in ("saves", "cache") if settings[name]["claim"]}
    volumes = [{"name": n, "persistentVolumeClaim": {"claimName": str(c)}} for n, c in claims.items()]
    return {"containers": [dict(container)], "volumes": volumes, **_affinity(settings)}


def _affinity(settings: JobSettings) -> dict[str, Any]:
    """Only nodes with the GPU asked for: a short name stands for the labels that such cards go by."""
    gpu = settings["gpu"]
    if not gpu["count"] or not gpu["type"]:
        return {}
    values = [str(v) for v in settings["gpu_types"].get(str(gpu["type"]), [gpu["type"]])]
    term = {"matchExpressions": [{"key": str(gpu["label"]), "operator": "In", "values": values}]}
    return {
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
    }


def _container(settings: JobSettings, name: str) -> dict[str, Any]:
    """The image with the resources, the volumes and the environment that the settings ask for."""
    gpu = settings["gpu"]
    wants = {"cpu": str(settings["cpu"]), "memory": str(settings["memory"])}
    wants |= {str(gpu["resource"]): str(gpu["count"])} if gpu["count"] else {}
    mounts = [{"name": n, "mountPath": str(settings[n]["path"])} for n in ("saves", "cache") if settings[n]["claim"]]
    env = {"HF_HOME": settings["cache"]["path"], "PYTHONUNBUFFERED": "1", **settings["env"]}
    return {
        "name": name,
        "image": str(settings["image"]),
        "workingDir": str(settings["workdir"]),
        "env": [{"name": str(k), "value": literal(_text(v))} for k, v in env.items()],
        **({"envFrom": [{"secretRef": {"name": str(settings["secret"])}}]} if settings["secret"] else {}),
        "resources": {"requests": dict(wants), "limits": dict(wants)},
        "volumeMounts": mounts,
    }


def _text(value: Any) -> str:
    """A value of an environment variable, as YAML would have written it."""
    return str(value).lower() if isinstance(value, bool) else "" if value is None else str(value)


def literal(word: str) -> str:
    """A word that Kubernetes hands on unchanged: it would replace $(NAME), and takes $$ for one dollar.

    >>> literal("cost=$(PRICE)$")
    'cost=$$(PRICE)$$'
    """
    return word.replace("$", "$$")


def to_yaml(body: Mapping[str, Any]) -> str:
    import yaml

    class PlainYaml(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True  # anchors would be correct, and hard to read

    return yaml.dump(dict(body), Dumper=PlainYaml, sort_keys=False, width=10_000)


def check(body: Mapping[str, Any]) -> str:
    """Refuses a manifest that a cluster would refuse; says in words what was checked against what.

    Of a RayJob the pods are checked: Kubernetes has no schema of the rest, which has the fields that KubeRay's
    reference requires (tests/sweep/test_job.py holds them).
    """
    documents = [dict(body)]
    what = "Job"
    if body["kind"] == "RayJob":
        cluster = body["spec"]["rayClusterSpec"]
        documents, what = [], "The pods of the RayJob"
        for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": group["template"]["spec"]}
            documents.append(pod)
    versions = {_check_schema(document) for document in documents}
    if None in versions:
        return f"not checked against the Kubernetes schema: {how_to_install('job')} for that"
    return f"{what} checked against the schema of Kubernetes {versions.pop()}"


def _check_schema(document: dict[str, Any]) -> str | None:
    """The version of the schema it agrees with; None where the package with the schemas is not installed."""
    try:
        import kubernetes_validate as kube
    except ImportError:
        return None
    try:
        return str(kube.validate(document, kube.latest_version(), strict=True))
    except kube.ValidationError as error:
        where = ".".join(str(part) for part in error.path) or "the top"
        raise UserError(f"The {document['kind']} is not valid at {where}: {error.message}") from None


def submit(body: Mapping[str, Any]) -> str:
    """Hands the manifest to kubectl, and gives back what it said."""
    program = shutil.which("kubectl")
    if program is None:
        raise UserError("kubectl, which submits the job, is not installed; --dry-run prints it for another machine.")
    done = subprocess.run([program, "create", "-f", "-"], input=to_yaml(body), capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"kubectl refused the job: {' '.join((done.stderr or done.stdout).split())}")
    return done.stdout.strip()

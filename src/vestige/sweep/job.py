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
FREE = ("env", "gpu_types")  # mappings whose keys are the user's own
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")  # short, because the cluster appends to it
RAY_NAME = re.compile(r"[a-z]([a-z0-9-]{0,45}[a-z0-9])?")  # a DNS label that begins with a letter, 47 at most
SUBMISSION_MODES = ("K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode")

SERVER_COUNTS = {"port": 1, "start_minutes": 1, "gpu": 0}  # whole numbers, and the least of each
# It listens on loopback only, where the cluster's own probes (which come from outside the pod) do not reach it.
READY = "import urllib.request; urllib.request.urlopen('{url}', timeout=5)"
LOOK = 10  # seconds between two looks at whether a server is ready

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
            _lay_over(settings, _nested(key.split("."), parse_yaml(value)), "")
        except ValueError as error:
            raise UserError(f"Cannot read the value of --set {word}: {error}.") from None
    if name is not None:
        settings["name"] = name
    return _checked(settings)


def _nested(path: Sequence[str], value: Any) -> dict[str, Any]:
    """A value at the end of a path of keys. Names of environment variables have no dots, so a dot always descends."""
    return {path[0]: _nested(path[1:], value) if len(path) > 1 else value}


def _lay_over(below: dict[str, Any], above: Mapping[str, Any], where: str) -> None:
    for key, value in above.items():
        name = f"{where}{key}"
        if key not in below and where.rstrip(".") not in FREE:
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
    if not NAME.fullmatch(str(settings["name"])):
        raise UserError(f"The job name '{settings['name']}' must be at most 40 of a-z, 0-9 and '-', as in npo-tofu.")
    counts = [("gpu.count", settings["gpu"]["count"], 0)]
    counts += [(key, settings[key], 0) for key in ("retries", "keep_seconds")]
    counts += [(f"server.{key}", settings["server"][key], least) for key, least in SERVER_COUNTS.items()]
    for key, value, least in (*counts, ("ray.workers", settings["ray"]["workers"], 1)):
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
        return render(settings, command[1:], kind)
    if command[0].startswith("-") or command[0] == "job":
        raise UserError(f"'{command[0]}' is not a command to run in a job; write a verb after `--`, as in `-- eval`.")
    _refuse_secrets(settings, command)
    chosen = kind or ("rayjob" if command[0] == "sweep" else "job")
    if settings["server"]["model"] is not None:
        _check_server(settings, command, chosen, takes_server)
    return _ray_job(settings, command) if chosen == "rayjob" else _job(settings, command)


def _check_server(settings: JobSettings, command: Sequence[str], kind: str, takes_server: bool) -> None:
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
    beside = settings["server"]["model"] is not None
    own = {**settings, "gpu": {**settings["gpu"], "count": 0}} if beside else settings  # its server has them
    # A sweep's plan names its servers, and which of its models run without one.
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
    probe = {"exec": {"command": ["python3", "-c", READY.format(url=_address(settings) + str(said["health"]))]}}
    return {
        **_container(settings, "server"),
        "command": [literal(str(word)) for word in words],
        "restartPolicy": "Always",
        "startupProbe": {**probe, "periodSeconds": LOOK, "failureThreshold": said["start_minutes"] * 60 // LOOK},
        "readinessProbe": {**probe, "periodSeconds": LOOK},
    }


def _ray_job(settings: JobSettings, command: Sequence[str]) -> dict[str, Any]:
    """A cluster for one sweep. The head plans and the workers work, so only they have GPUs."""
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
    """Refuses a manifest that a cluster would refuse; says in words what was checked against what."""
    if body["kind"] == "RayJob":
        check_ray_job(body)
        groups = [body["spec"]["rayClusterSpec"]["headGroupSpec"], *body["spec"]["rayClusterSpec"]["workerGroupSpecs"]]
        documents = [_pod_document(group["template"]) for group in groups]
        words = "RayJob checked against the fields that KubeRay requires, its pods against "
    else:
        documents, words = [dict(body)], "Job checked against "
    versions = {_check_schema(document) for document in documents}
    if None in versions:
        return f"not checked against the Kubernetes schema: {how_to_install('job')} for that"
    return f"{words}the schema of Kubernetes {versions.pop()}"


def _pod_document(template: Mapping[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": template["spec"]}


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


def check_ray_job(body: Mapping[str, Any]) -> None:
    """What KubeRay's reference and its operator require: names, an entry point, a pod for each group, sane counts."""
    _check_kind(body)
    spec = body["spec"]
    cluster = _field(spec, "rayClusterSpec", dict, "spec")
    _field(spec, "entrypoint", str, "spec")
    where = "spec.rayClusterSpec"
    _check_group(_field(cluster, "headGroupSpec", dict, where), f"{where}.headGroupSpec")
    for n, group in enumerate(_field(cluster, "workerGroupSpecs", list, where)):
        at = f"{where}.workerGroupSpecs.{n}"
        _field(group, "groupName", str, at)
        _check_group(group, at)
        low, high = (_field(group, key, int, at) for key in ("minReplicas", "maxReplicas"))
        if not 0 <= low <= group.get("replicas", low) <= high:
            raise UserError(f"The RayJob is not valid at {at}: replicas must lie between minReplicas and maxReplicas.")
    for key in ("backoffLimit", "ttlSecondsAfterFinished"):
        if key in spec and _field(spec, key, int, "spec") < 0:
            raise UserError(f"The RayJob is not valid at spec: '{key}' must not be negative.")
    if spec.get("submissionMode", SUBMISSION_MODES[0]) not in SUBMISSION_MODES:
        raise UserError(
            f"The RayJob is not valid at spec: submissionMode must be one of {', '.join(SUBMISSION_MODES)}."
        )
    if spec.get("ttlSecondsAfterFinished") and not spec.get("shutdownAfterJobFinishes"):
        raise UserError(
            "The RayJob is not valid at spec: ttlSecondsAfterFinished needs shutdownAfterJobFinishes: true."
        )


def _check_kind(body: Mapping[str, Any]) -> None:
    if (body.get("apiVersion"), body.get("kind")) != ("ray.io/v1", "RayJob"):
        raise UserError("The RayJob is not valid at the top: it must say apiVersion: ray.io/v1 and kind: RayJob.")
    name = _field(body.get("metadata") or {}, "name", str, "metadata")
    if not RAY_NAME.fullmatch(name):
        raise UserError(
            f"The RayJob is not valid at metadata: the name '{name}' must begin with a letter and be at most 47 of "
            "a-z, 0-9 and '-'."
        )


def _check_group(group: Mapping[str, Any], at: str) -> None:
    """A group of pods: how Ray is started in them (text only; older operators insist on it), and what they hold."""
    params = group.get("rayStartParams")
    if not isinstance(params, dict) or not all(isinstance(v, str) for v in params.values()):
        raise UserError(f"The RayJob is not valid at {at}: 'rayStartParams' must be there and map names to text.")
    pod = _field(_field(group, "template", dict, at), "spec", dict, f"{at}.template")
    if not _field(pod, "containers", list, f"{at}.template.spec"):
        raise UserError(f"The RayJob is not valid at {at}.template.spec: it has no container.")


def _field(holder: Mapping[str, Any], key: str, kind: type, at: str) -> Any:
    value = holder.get(key)
    if not isinstance(value, kind) or isinstance(value, bool) or value == "":
        raise UserError(f"The RayJob is not valid at {at}: '{key}' must be there and be of type {kind.__name__}.")
    return value


def submit(body: Mapping[str, Any]) -> str:
    """Hands the manifest to kubectl, and gives back what it said."""
    program = shutil.which("kubectl")
    if program is None:
        raise UserError("kubectl, which submits the job, is not installed; --dry-run prints it for another machine.")
    done = subprocess.run([program, "create", "-f", "-"], input=to_yaml(body), capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"kubectl refused the job: {' '.join((done.stderr or done.stdout).split())}")
    return done.stdout.strip()

"""vestige job: manifests that a cluster would take, with the command exactly as it was typed."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from vestige.cli import main
from vestige.errors import UserError
from vestige.sweep.job import check, read_settings, render, to_yaml

# Everything a shell, YAML or Kubernetes might be tempted to touch.
AWKWARD = ["eval", "tofu", "--model", "a b", "x='q'", 'y="r"', "$(HOME)", "$HOME", "a$$b", "c$", "--", "-x", "", "ü: 1"]


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["job", *words]) == 0
    return dict(yaml.safe_load(capsys.readouterr().out))


BESIDE = ["--set", "server.model=ORG/MODEL", "--set", "gpu.type=A100-40", "--dry-run", "--"]


def test_a_server_beside_the_command_is_ready_before_it_and_ends_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--set", 'server.args=[--max-logprobs, "-1"]', "--set", "server.gpu=2", *BESIDE]
    body = printed(capsys, *more, "eval", "tofu", "--model", "ORG/MODEL")
    kubernetes_validate.validate(body, kubernetes_validate.latest_version(), strict=True)
    pod = body["spec"]["template"]["spec"]
    [server], [command] = pod["initContainers"], pod["containers"]
    assert server["restartPolicy"] == "Always"  # a sidecar: the Job ends with the command
    assert server["command"][-8:] == [
        "--model", "ORG/MODEL", "--max-logprobs", "-1", "--host", "127.0.0.1", "--port", "8000",
    ]  # fmt: skip
    told = server["startupProbe"]["exec"]["command"][-1]
    assert "http://127.0.0.1:8000/health" in told and server["readinessProbe"]["exec"]["command"][-1] == told
    compile(told, "probe", "exec")
    assert server["startupProbe"]["failureThreshold"] * server["startupProbe"]["periodSeconds"] == 30 * 60
    assert server["resources"]["limits"]["nvidia.com/gpu"] == "2"
    assert "nvidia.com/gpu" not in command["resources"]["limits"] and "affinity" in pod
    assert command["args"] == ["eval", "--server", "http://127.0.0.1:8000", "tofu", "--model", "ORG/MODEL"]


def test_a_command_that_names_its_server_keeps_it(capsys: pytest.CaptureFixture[str]) -> None:
    for said in (["--server", "http://other:1"], ["--server=http://other:1"]):
        words = ["stress", "leak", *said, "--model", "M", "--data", "D"]
        assert printed(capsys, *BESIDE, *words)["spec"]["template"]["spec"]["containers"][0]["args"] == words
    words = ["sweep", "plan.yaml"]  # its plan names servers
    job = printed(capsys, "--kind", "job", *BESIDE, *words)
    assert job["spec"]["template"]["spec"]["containers"][0]["args"] == words


def test_a_ray_job_carries_its_command_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    body = printed(capsys, "--kind", "rayjob", "--dry-run", "--", *AWKWARD)
    check_ray_job(body)
    words = shlex.split(body["spec"]["entrypoint"])
    assert words == ["cd", "/workspace", "&&", "vestige", *AWKWARD]
    assert body["spec"]["submissionMode"] == "HTTPMode"


def test_a_sweep_is_a_ray_job_on_the_cluster_it_gets(capsys: pytest.CaptureFixture[str]) -> None:
    body = printed(capsys, "--set", "ray.workers=3", "--set", "gpu.count=2", "--dry-run", "--", "sweep", "plan.yaml")
    cluster = body["spec"]["rayClusterSpec"]
    (workers,) = cluster["workerGroupSpecs"]
    assert (body["kind"], workers["replicas"], workers["maxReplicas"]) == ("RayJob", 3, 3)
    pods = [group["template"]["spec"]["containers"][0] for group in (cluster["headGroupSpec"], workers)]
    assert [pod["resources"]["limits"].get("nvidia.com/gpu") for pod in pods] == [None, "2"]
    assert all({"name": "VESTIGE_POOL", "value": "ray"} in pod["env"] for pod in pods)
    for group in (cluster["headGroupSpec"], workers):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": group["template"]["spec"]}
        kubernetes_validate.validate(pod, kubernetes_validate.latest_version(), strict=True)


def check_ray_job(body: dict[str, Any]) -> None:
    """What KubeRay's reference and its operator require: names, an entry point, a pod for each group, sane counts."""
    assert (body["apiVersion"], body["kind"]) == ("ray.io/v1", "RayJob")
    assert re.fullmatch(r"[a-z]([a-z0-9-]{0,45}[a-z0-9])?", body["metadata"]["name"])
    spec = body["spec"]
    cluster = spec["rayClusterSpec"]
    assert spec["entrypoint"] and spec["submissionMode"] in ("K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode")
    assert spec["backoffLimit"] >= 0 and spec["ttlSecondsAfterFinished"] >= 0 and spec["shutdownAfterJobFinishes"]
    for group in cluster["workerGroupSpecs"]:
        assert group["groupName"] and 0 <= group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())  # older operators insist on it
        assert group["template"]["spec"]["containers"]


def test_the_shell_of_a_ray_job_gets_the_words_as_they_were_typed(tmp_path: Path) -> None:
    """The entry point is run by a shell, as Ray does, with a `vestige` that writes down its arguments."""
    fake = tmp_path / "vestige"
    fake.write_text(f"#!{sys.executable}\nimport json, sys\njson.dump(sys.argv[1:], open('words.json', 'w'))\n")
    fake.chmod(0o755)
    words = [*AWKWARD, "back\\slash", "semi;colon", "`date`", "new\nline", "*", "~", "#no", "ä ö 忘れる", "!x", "a&b|c"]
    body = yaml.safe_load(to_yaml(render(read_settings([f"workdir={tmp_path}"]), words, "rayjob")))
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": "/h"}
    subprocess.run(body["spec"]["entrypoint"], shell=True, env=env, check=True)
    assert json.loads((tmp_path / "words.json").read_text()) == words


def test_the_schema_catches_what_we_would_not() -> None:
    body = render(read_settings(["cpu=4"]), ["eval"])
    body["spec"]["template"]["spec"]["containers"][0]["imagePullPolicies"] = "Always"
    with pytest.raises(UserError, match="imagePullPolicies"):
        check(body)


def fake_kubectl(place: Path, script: str) -> None:
    place.mkdir()
    (place / "kubectl").write_text(f"#!/bin/sh\n{script}\n")
    (place / "kubectl").chmod(0o755)


def test_kubectl_gets_the_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_kubectl(
        tmp_path / "bin", f'echo "$@" > {tmp_path}/words; /bin/cat > {tmp_path}/body; echo job.batch/vestige created'
    )
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert main(["job", "--", "eval", "tofu"]) == 0
    assert "created" in capsys.readouterr().out
    assert (tmp_path / "words").read_text().split() == ["create", "-f", "-"]
    assert yaml.safe_load((tmp_path / "body").read_text()) == render(read_settings(), ["eval", "tofu"])


def test_kubectl_absent_or_unwilling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert main(["job", "--", "eval"]) == 2
    assert "kubectl" in capsys.readouterr().err
    fake_kubectl(tmp_path / "bin", "/bin/cat > /dev/null; echo forbidden >&2; exit 1")
    assert main(["job", "--", "eval"]) == 2
    assert "forbidden" in capsys.readouterr().err

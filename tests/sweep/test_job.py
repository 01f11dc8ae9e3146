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

from loops import one_test
from vestige.cli import main
from vestige.errors import UserError
from vestige.sweep.job import check, read_settings, render, to_yaml

# Everything a shell, YAML or Kubernetes might be tempted to touch.
AWKWARD = ["eval", "tofu", "--model", "a b", "x='q'", 'y="r"', "$(HOME)", "$HOME", "a$$b", "c$", "--", "-x", "", "ü: 1"]


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["job", *words]) == 0
    return dict(yaml.safe_load(capsys.readouterr().out))


def expanded(word: str, env: dict[str, str]) -> str:
    """What the kubelet makes of an argument: $$ is a dollar, $(NAME) a variable if there is one of that name."""
    out, at = "", 0
    while at < len(word):
        if word[at] != "$" or at + 1 == len(word):
            out, at = out + word[at], at + 1
        elif word[at + 1] == "$":
            out, at = out + "$", at + 2
        elif word[at + 1] == "(" and ")" in word[at:]:
            end = word.index(")", at)
            out, at = out + env.get(word[at + 2 : end], word[at : end + 1]), end + 1
        else:
            out, at = out + word[at : at + 2], at + 2
    return out


def test_a_job_validates_and_carries_its_command_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    body = printed(capsys, "--set", "gpu.type=A100-40", "--set", "env.HOME=/h", "--dry-run", "--", *AWKWARD)
    kubernetes_validate.validate(body, kubernetes_validate.latest_version(), strict=True)
    container = body["spec"]["template"]["spec"]["containers"][0]
    assert container["command"] == ["vestige"]
    assert [expanded(word, {"HOME": "/h"}) for word in container["args"]] == AWKWARD


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


@one_test(
    ("words", "needle"),
    [
        ([*BESIDE, "sweep", "plan.yaml"], "--kind job"),
        ([*BESIDE, "depth", "M"], "does not ask a server"),
        (["--set", "server.port=0", *BESIDE, "eval", "tofu"], "server.port"),
        (["--set", "server.args=--tp", *BESIDE, "eval", "tofu"], "must be a list of words"),
    ],
)
def test_servers_that_cannot_be_beside_a_command_are_refused(
    words: list[str], needle: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["job", *words]) == 2
    assert needle in capsys.readouterr().err


# The trajectory guide's command, with our program's name in the place of theirs.
GUIDE = ["eval", "trajectory-eval", "--model", "GSAI-ML/LLaDA-8B-Instruct", "--benchmark", "tofu"]


@pytest.mark.parametrize("before", [["trajectory-eval", "--set", "gpu.type=A100-40"],
                                    ["--set", "gpu.type=A100-40", "trajectory-eval"]])  # fmt: skip
def test_the_guides_job_command_works(before: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    body = printed(capsys, *before, "--dry-run", "--", "vestige", *GUIDE)
    kubernetes_validate.validate(body, kubernetes_validate.latest_version(), strict=True)
    assert body["metadata"]["name"] == "trajectory-eval"
    pod = body["spec"]["template"]["spec"]
    assert (pod["containers"][0]["command"], pod["containers"][0]["args"]) == (["vestige"], GUIDE)
    assert "NVIDIA-A100-SXM4-40GB" in str(pod["affinity"])


def test_a_job_is_the_same_with_and_without_the_word_vestige(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in (["eval", "tofu"], ["sweep", "plan.yaml"]):
        assert printed(capsys, "--dry-run", "--", "vestige", *verb) == printed(capsys, "--dry-run", "--", *verb)


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


@one_test(
    ("words", "needle"),
    [
        (["--dry-run"], "command"),
        (["--dry-run", "--", "vestige"], "command"),
        (["--dry-run", "--", "vestige", "--model"], "is not a command"),
        (["Not_OK", "--dry-run", "--", "eval"], "job name"),
        (["one", "two", "--dry-run", "--", "eval"], "'two'"),
        (["one", "--set", "name=two", "--dry-run", "--", "eval"], "named twice"),
        (["--dry-run", "--", "--model"], "is not a command"),
        (["--set", "gpu.typ=A100", "--", "eval"], "gpu.type"),
        (["--set", "gpu", "--", "eval"], "KEY=VALUE"),
        (["--set", "gpu=A100", "--", "eval"], "has parts"),
        (["--set", "image.tag=1", "--", "eval"], "takes one value"),
        (["--set", "name=Not_OK", "--", "eval"], "job name"),
        (["--set", "retries=-1", "--", "eval"], "at least 0"),
        (["--set", "keep_seconds=-1", "--", "eval"], "at least 0"),
        (["--set", "name=2nd", "--", "sweep", "p"], "letter"),
        (["--set", "ray.workers=0", "--", "sweep", "p"], "at least 1"),
        (["--file", "nowhere.yaml", "--", "eval"], "cannot be read"),
    ],
)
def test_mistakes_are_one_sentence(words: list[str], needle: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["job", *words]) == 2
    assert needle in capsys.readouterr().err


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

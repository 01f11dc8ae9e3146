"""Every verb that takes --server: the same numbers as in process, each model found at its own server, clear refusals.

The servers are ours (serve_tools.py) and compute real numbers of the lab's models.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import vestige
from conftest import LAB, SYSTEM
from lm_eval_tools import CHOICE, choice_rows, own_data_cache, write_rows
from loops import one_test
from serve_tools import ModelServer, TinyModel, serving
from sweep_tools import started, write_plan
from vestige.adapters import served_model
from vestige.adapters import servers as servers_module
from vestige.cli import main
from vestige.errors import UserError

DATA = LAB / "data"
MODELS = {name: LAB / "models" / name for name in ("full", "unlearned", "retain")}


@pytest.fixture(scope="module")
def tiny() -> dict[str, TinyModel]:
    return {name: TinyModel(path) for name, path in MODELS.items()}


@pytest.fixture
def servers(tiny: dict[str, TinyModel], monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModelServer]]:
    """Three servers of a model each."""
    monkeypatch.setattr(servers_module, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(served_model, "LOOK_AGAIN", 0.05)
    with (
        serving(tiny["full"], str(MODELS["full"])) as full,
        serving(tiny["unlearned"], str(MODELS["unlearned"])) as unlearned,
        serving(tiny["retain"], str(MODELS["retain"])) as retain,
    ):
        yield {"full": full, "unlearned": unlearned, "retain": retain}


def addresses(servers: dict[str, ModelServer], *names: str) -> str:
    return ",".join(servers[name].url for name in names or servers)


def prompts_of(server: ModelServer) -> int:
    """Requests that carried prompts."""
    return len([asked for path, asked in list(server.asked) if "prompt" in asked and path == "/v1/completions"])


# ---- stress ----------------------------------------------------------------------------------------------------------

ATTACKS = {"jailbreak": None, "few-shot": 2, "leak": 2}
STRESSED = {"metrics": ["forget_Q_A_Prob", "forget_Q_A_ROUGE"], "limit": 3, "system_prompt": SYSTEM}


def test_prompt_attacks_through_servers_have_the_values_of_the_models_in_process(
    servers: dict[str, ModelServer], tmp_path: Path
) -> None:
    def attacked(name: str, **more: Any) -> list[Any]:
        return vestige.attack(MODELS["unlearned"], DATA, ATTACKS, tmp_path / name, MODELS["retain"], **STRESSED, **more)

    here, there = attacked("here"), attacked("there", server=addresses(servers))
    assert [(r.model, r.attack, r.budget) for r in here] == [(r.model, r.attack, r.budget) for r in there]
    compared = 0
    for one, two in zip(here, there, strict=True):
        if one.attack != "leak":  # samples are drawn by another generator
            assert two.values == pytest.approx(one.values, abs=1e-5), (one.model, one.attack)
            compared += len(one.values)
    assert compared == 12
    assert len({r.values["forget_Q_A_Prob"] for r in there if r.attack != "leak"}) == 6  # each its own model and prompt
    assert prompts_of(servers["unlearned"]) and prompts_of(servers["retain"]) and not prompts_of(servers["full"])


@pytest.mark.parametrize("attack", ["relearn", "prune=0.3", "quantise"])
def test_attacks_on_weights_are_refused_through_a_server(
    attack: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["stress", "jailbreak", attack, "--model", str(MODELS["unlearned"]), "--data", str(DATA)]
    assert main([*words, "--out", str(tmp_path / "o"), "--server", "http://127.0.0.1:9"]) == 2
    said = capsys.readouterr().err
    assert attack.partition("=")[0] in said and "served model" in said
    assert not (tmp_path / "o").exists()


# ---- audit -----------------------------------------------------------------------------------------------------------


def audit(out: Path, *more: str) -> int:
    words = ["audit", "--before", str(MODELS["full"]), "--after", str(MODELS["unlearned"])]
    words += ["--retain-model", str(MODELS["retain"]), "--forget", str(DATA / "forget.jsonl")]
    words += ["--system-prompt", SYSTEM, "--limit", "4", "--quiet", "--out", str(out)]
    return main([*words, *more])


def test_an_audit_through_servers_says_what_it_could_not_test(
    servers: dict[str, ModelServer], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert audit(tmp_path / "there", "--server", addresses(servers)) == 0
    out = capsys.readouterr().out
    not_tested = out.split("Not tested:")[1]
    assert "- layers: a server gives log-probabilities and texts" in not_tested
    for name in ("relearn", "prune", "quantise"):
        assert f"- {name}: it changes weights" in not_tested
    assert "servers answered" in out and "jailbreak" in out.split("Attacks")[1]
    assert audit(tmp_path / "here", "--minutes", "0.001") == 0
    compared = 0
    for name in ("before", "after", "retain"):
        here, there = (json.loads((tmp_path / w / name / "OWN_SUMMARY.json").read_text()) for w in ("here", "there"))
        for metric in here.keys() & there.keys():
            if isinstance(here[metric], float):
                assert there[metric] == pytest.approx(here[metric], abs=1e-4), (name, metric)
                compared += 1
    assert compared >= 15


# ---- tasks of lm-evaluation-harness ----------------------------------------------------------------------------------

WRITTEN = """
task: lab_texts
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: answer
generation_kwargs: {{until: ["."], max_gen_toks: 12}}
metric_list:
  - {{metric: exact_match}}
"""


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A task of choices and one of texts, over the lab's rows."""
    pytest.importorskip("lm_eval")
    place = tmp_path_factory.mktemp("tasks")
    data = write_rows(place / "rows.jsonl", choice_rows(3, 3))
    (place / "lab_choices.yaml").write_text(CHOICE.format(name="lab_choices", data=data))
    (place / "lab_texts.yaml").write_text(WRITTEN.format(data=data))
    with own_data_cache(tmp_path_factory):
        yield place


def test_harness_tasks_through_a_server_are_those_of_the_model_in_process(
    servers: dict[str, ModelServer], tasks: Path, tmp_path: Path
) -> None:
    def run(name: str, **more: Any) -> Any:
        out = tmp_path / name
        vestige.evaluate(
            MODELS["full"], suite="lm_eval", tasks=["lab_choices", "lab_texts"], include_path=tasks, out=out, **more
        )
        return json.loads((out / "LMEval_EVAL.json").read_text()), json.loads((out / "manifest.json").read_text())

    (here, _), (there, about) = run("here"), run("there", server=servers["full"].url)
    compared = 0
    for task in ("lab_choices", "lab_texts"):
        assert here[task]["value_by_index"].keys() == there[task]["value_by_index"].keys()
        for index, row in here[task]["value_by_index"].items():
            for one, two in zip(row["responses"], there[task]["value_by_index"][index]["responses"], strict=True):
                if isinstance(one, str):
                    assert two == one
                else:
                    assert two == [pytest.approx(one[0], abs=1e-4), one[1]]
                compared += 1
    assert compared == 3 * 3 + 3
    assert about["model"]["server"]["kind"] == "vllm"
    told = about["harness"]["settings"]["served"]
    scored = [tuple(p) for _, a in servers["full"].asked if "prompt_logprobs" in a for p in a["prompt"] if len(p) > 24]
    assert told["server_prompt_tokens"] > 0 and len(scored) - len(set(scored)) <= 4  # those are asked again on purpose


def test_tasks_of_likelihoods_are_refused_where_a_server_has_none(
    tiny: dict[str, TinyModel], tasks: Path, tmp_path: Path
) -> None:
    with (
        serving(tiny["full"], str(MODELS["full"]), "chat") as server,
        pytest.raises(UserError, match="ask for log-probabilities: this server gives no"),
    ):
        vestige.evaluate(
            MODELS["full"], suite="lm_eval", tasks=["lab_choices"], include_path=tasks, out=tmp_path / "o",
            server=server.url,
        )  # fmt: skip


# ---- sweeps ---------------------------------------------------------------------------------------------------------


def swept(place: Path, capsys: pytest.CaptureFixture[str], **more: Any) -> list[str]:
    """The tasks that a sweep started."""
    assert main(["sweep", str(write_plan(place, **more)), "--slots", "0", "--quiet"]) == 0
    return started(capsys.readouterr().out)


def value_of(place: Path, model: str) -> float:
    found = json.loads((place / "sweep" / "runs" / "tofu" / model / "TOFU_SUMMARY.json").read_text())
    return float(found["forget_Q_A_Prob"])


def test_a_sweep_asks_each_model_at_its_servers_and_knows_what_is_done(
    servers: dict[str, ModelServer], tiny: dict[str, TinyModel], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "here").mkdir()
    swept(tmp_path / "here", capsys)
    both = addresses(servers, "full", "retain")
    assert swept(tmp_path, capsys, server=both) == ["tofu/retain", "tofu/full"]
    for name in ("full", "retain"):
        assert value_of(tmp_path, name) == pytest.approx(value_of(tmp_path / "here", name), abs=1e-5)
    assert swept(tmp_path, capsys, server=both) == []
    servers["full"].model = tiny["unlearned"]  # started again with other weights, under the same name
    assert swept(tmp_path, capsys, server=both) == ["tofu/full"]
    assert value_of(tmp_path, "full") != pytest.approx(value_of(tmp_path / "here", "full"), abs=1e-3)


@one_test(
    ("more", "needle"),
    [
        ({"attacks": ["prune"]}, "changes weights, and 'retain' is served"),
        ({"suites": {"depth": {"full": "full", "data": str(DATA / "forget.jsonl")}}}, "reads layers"),
        ({"suites": {"tofu": {"server": "http://127.0.0.1:9"}}}, "belong to models"),
        ({"server": {"url": "x"}}, "$.server"),
    ],
)
def test_what_a_server_cannot_do_in_a_sweep_is_refused(
    more: dict[str, Any], needle: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = write_plan(tmp_path, **{"server": "http://127.0.0.1:9", **more})
    assert main(["sweep", str(plan), "--slots", "0"]) == 2
    assert needle in capsys.readouterr().err

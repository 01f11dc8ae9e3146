"""Served models: the same numbers as in process, every fault noticed, nothing asked twice.

Against a small server of ours (serve_tools.py) that computes real numbers; `make engines` runs test_engines.py against
a real vLLM.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import vestige
from conftest import LAB, SYSTEM
from serve_tools import Half, HttpStatus, ModelServer, Silence, TinyModel, serving
from vestige.adapters import served_model, servers
from vestige.errors import UserError

FULL = LAB / "models" / "full"
SCORED = ["forget_Q_A_Prob", "forget_truth_ratio", "extraction_strength", "exact_memorization", "mia_min_k", "mia_zlib"]
METRICS = [*SCORED, "mia_min_k_plus_plus", "forget_Q_A_ROUGE"]


@pytest.fixture(scope="module")
def tiny() -> TinyModel:
    return TinyModel(FULL)


@pytest.fixture
def server(tiny: TinyModel) -> Iterator[ModelServer]:
    with serving(tiny, str(FULL)) as running:
        yield running


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Faults are waited out in tests, too, but not for long."""
    monkeypatch.setattr(servers, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(served_model, "LOOK_AGAIN", 0.05)


def run(out: Path, server: str | None, metrics: list[str] | None = None, **more: Any) -> vestige.api.Result:
    settings = {"limit": 3, "system_prompt": SYSTEM, "overrides": ["stats.resamples=0"], **more}
    return vestige.evaluate(FULL, data=LAB / "data", out=out, metrics=metrics or METRICS, server=server, **settings)


@pytest.fixture(scope="module")
def in_process(tmp_path_factory: pytest.TempPathFactory) -> vestige.api.Result:
    return run(tmp_path_factory.mktemp("here") / "run", None)


def rows_of(result: Any) -> dict[str, Any]:
    return {name: result[name].to_json() for name in result.scores}


def assert_equal(a: Any, b: Any, where: str = "") -> int:
    """Numbers within 1e-5, all else exactly; returns how many values were compared."""
    if isinstance(a, dict):
        assert a.keys() == b.keys(), where
        return sum(assert_equal(a[k], b[k], f"{where}/{k}") for k in a)
    if isinstance(a, list):
        assert len(a) == len(b), where
        return sum(assert_equal(x, y, f"{where}[{i}]") for i, (x, y) in enumerate(zip(a, b, strict=True)))
    if isinstance(a, float) and isinstance(b, float):
        assert abs(a - b) <= 1e-5 + 1e-5 * abs(a), (where, a, b)
    else:
        assert a == b, where
    return 1


def test_served_numbers_and_texts_are_those_of_the_model_in_process(
    server: ModelServer, in_process: Any, tmp_path: Path
) -> None:
    served = run(tmp_path / "served", server.url)
    assert assert_equal(rows_of(in_process), rows_of(served)) >= 80
    about = json.loads((tmp_path / "served" / "manifest.json").read_text())
    assert about["model"]["server"]["kind"] == "vllm" and about["model"]["server"]["version"] == "0.0-test"
    assert about["model"]["repeated"]["largest_difference"] <= 1e-4
    cost = about["cost"]
    assert cost["server_prompt_tokens"] > 0 and cost["tokens_proven"] > 0


def test_nothing_distinct_is_sent_twice(server: ModelServer, tmp_path: Path) -> None:
    run(tmp_path / "served", server.url, SCORED)
    scored = [tuple(p) for _, asked in server.asked if "prompt_logprobs" in asked for p in asked["prompt"]]
    counted = [ids for ids in scored if len(ids) > 24]  # the probe is shorter
    again = len(counted) - len(set(counted))
    assert again <= 4  # those few are asked again on purpose, alone
    whole = set(counted)
    assert not [a for a in whole for b in whole if a != b and b[: len(a)] == a]  # none begins another


def test_evidence_is_kept_and_a_second_run_asks_only_its_checks(server: ModelServer, tmp_path: Path) -> None:
    run(tmp_path / "served", server.url, SCORED)
    before = len(server.answered)
    result = run(tmp_path / "served", server.url, SCORED)
    assert len(server.answered) - before < 20  # probes only
    assert not any("was not reused" in note for note in result.manifest["notes"])


def test_evidence_of_another_served_model_is_not_used(tiny: TinyModel, tmp_path: Path) -> None:
    """A server restarted with another checkpoint under the same name is noticed by its numbers."""
    out = tmp_path / "run"
    with serving(tiny, str(FULL)) as server:
        first = run(out, server.url, SCORED)
    with serving(TinyModel(LAB / "models" / "retain"), str(FULL)) as other:
        second = run(out, other.url, SCORED)
    assert any("was not reused" in note for note in second.manifest["notes"])
    assert second["forget_Q_A_Prob"].agg_value != first["forget_Q_A_Prob"].agg_value


def test_what_a_server_cannot_give_is_missing_with_the_reason(server: ModelServer, tmp_path: Path) -> None:
    server.all_logprobs = False
    result = run(tmp_path / "served", server.url, ["forget_Q_A_Prob", "mia_min_k_plus_plus", "mia_gradnorm"])
    assert result["forget_Q_A_Prob"].agg_value is not None
    assert "whole vocabulary" in result["mia_min_k_plus_plus"].reason
    assert "needs the model itself" in result["mia_gradnorm"].reason


# ---- faults that pass ---------------------------------------------------------------------------------------------


def once(action: Exception, path: str = "/v1/completions", every: int = 3) -> Any:
    """Every third request meets the fault; asked again, it is answered."""
    seen: list[int] = []

    def misbehave(where: str, number: int, asked: dict[str, Any], answer: Any) -> Any:
        if where == path:
            seen.append(number)
            if len(seen) % every == 0:
                raise Half(answer) if isinstance(action, Half) else action
        return answer

    return misbehave


@pytest.mark.parametrize(
    "fault",
    [HttpStatus(429, {"Retry-After": "0.01"}), HttpStatus(500), HttpStatus(503), Silence(), Half()],
    ids=["429", "500", "503", "closed", "half"],
)
def test_faults_that_pass_are_waited_out(server: ModelServer, in_process: Any, tmp_path: Path, fault: Any) -> None:
    server.misbehave = once(fault)
    served = run(tmp_path / "served", server.url, SCORED)
    assert_equal({k: v for k, v in rows_of(in_process).items() if k in served.scores}, rows_of(served))
    assert served.manifest["cost"]["server_retries"] > 0


def test_a_server_that_stays_away_ends_the_run_with_a_sentence(server: ModelServer, tmp_path: Path) -> None:
    def misbehave(path: str, number: int, asked: dict[str, Any], answer: Any) -> Any:
        if number > 14:
            raise Silence
        return answer

    server.misbehave = misbehave
    more = {"overrides": ["stats.resamples=0", "+server.down=0.2"]}
    with pytest.raises(UserError, match="where it stopped"):
        run(tmp_path / "served", server.url, SCORED, **more)


# ---- answers that cannot be true ------------------------------------------------------------------------------------


def scored(change: Any) -> Any:
    """Changes answers that carry log-probabilities of long prompts (the probe is left alone)."""

    def misbehave(path: str, number: int, asked: dict[str, Any], answer: Any) -> Any:
        if path == "/v1/completions" and "prompt_logprobs" in asked and len(asked["prompt"][0]) > 24:
            change(answer)
        return answer

    return misbehave


def entry(answer: Any, at: int = -1) -> dict[str, Any]:
    """The log-probability of a prompt token of the first sequence."""
    choice = answer["choices"][0]
    return choice["prompt_logprobs"][at][str(choice["prompt_token_ids"][at])]


def _swap(answer: Any) -> None:
    a, b = answer["choices"][:2]
    for name in ("prompt_logprobs", "prompt_token_ids"):
        a[name], b[name] = b[name], a[name]


LIES: dict[str, tuple[Any, str]] = {
    "NaN": (lambda a: entry(a).update(logprob=float("nan")), "NaN or infinite|not one"),
    "above 0": (lambda a: entry(a).update(logprob=0.5), "above 0|more likely"),
    "minus infinity": (lambda a: entry(a).update(logprob=float("-inf")), "NaN or infinite"),
    "rank 0": (lambda a: entry(a).update(rank=0), "rank"),
    "rank against probability": (lambda a: entry(a).update(rank=599, logprob=-0.01), "rank|more likely"),
    "rank beyond the vocabulary": (lambda a: entry(a).update(rank=10**6), "rank"),
    "reordered": (_swap, "other tokens than were sent|truncated"),
    "truncated": (lambda a: a["choices"][0]["prompt_logprobs"].pop(), "positions for"),
    "tokens lost": (
        lambda a: [a["choices"][0][k].pop() for k in ("prompt_logprobs", "prompt_token_ids")], "truncated|counted"),
    "one answer too few": (lambda a: a["choices"].pop(), "answers to"),
    "another model": (lambda a: a.update(model="other"), "comes from the model 'other'"),
    "other ids": (lambda a: a["choices"][0]["prompt_token_ids"].__setitem__(3, 7), "lacks the log-probability|other"),
    "no log-probabilities": (lambda a: a["choices"][0].update(prompt_logprobs=None), "0 positions for"),
    "counts that do not fit": (lambda a: a["usage"].update(prompt_tokens=3), "counted 3 tokens"),
    "text for a number": (lambda a: entry(a).update(logprob="-1.0"), "form of a completion"),
    "numbers that differ where sequences are the same": (
        lambda a: entry(a, 5).update(logprob=entry(a, 5)["logprob"] - 2.0), "begin alike|rank|two log-prob"),
    "first choice beyond the vocabulary": (
        lambda a: a["choices"][0]["prompt_logprobs"][-1].update({"999999": {"logprob": 0.0, "rank": 1}}),
        "not a token|add up"),
}  # fmt: skip


@pytest.mark.parametrize("lie", list(LIES))
def test_answers_that_cannot_be_true_are_refused_by_name(server: ModelServer, tmp_path: Path, lie: str) -> None:
    change, words = LIES[lie]
    server.misbehave = scored(change)
    with pytest.raises(UserError, match=words):
        run(tmp_path / "served", server.url, ["forget_truth_ratio"], limit=2)
    assert not (tmp_path / "served" / "TOFU_EVAL.json").exists()


TEXT_LIES: dict[str, tuple[Any, str]] = {
    "cut short": (lambda c: c.update(token_ids=c["token_ids"][:1], finish_reason="length"), "truncated"),
    "stops without an end": (lambda c: c.update(token_ids=[5], finish_reason="stop"), "truncated|counted"),
    "empty": (lambda c: c.update(token_ids=[]), "no tokens"),
    "not a token": (lambda c: c.update(token_ids=[10**7]), "not a token"),
    "too long": (lambda c: c.update(token_ids=[5] * 400), "at most"),
    "goes on behind its end": (lambda c: c.update(token_ids=[2, *c["token_ids"][1:], 2]), "behind its end|counted"),
    "another prompt": (lambda c: c.update(prompt_token_ids=[1, 2, 3]), "continued other tokens"),
    "aborted": (lambda c: c.update(finish_reason="abort"), "reason 'abort'"),
}


@pytest.mark.parametrize("lie", list(TEXT_LIES))
def test_texts_that_cannot_be_true_are_refused_by_name(server: ModelServer, tmp_path: Path, lie: str) -> None:
    change, words = TEXT_LIES[lie]

    def misbehave(path: str, number: int, asked: dict[str, Any], answer: Any) -> Any:
        if path == "/v1/completions" and "stop_token_ids" in asked:
            answer["usage"]["completion_tokens"] = 0
            change(answer["choices"][0])
        return answer

    server.misbehave = misbehave
    with pytest.raises(UserError, match=words):
        run(tmp_path / "served", server.url, ["forget_Q_A_ROUGE"], limit=2)


def test_numbers_that_depend_on_the_batch_are_noted(server: ModelServer, tmp_path: Path) -> None:
    """Alone, a sequence gets other numbers than in company: both can be true, and the manifest says so."""

    def misbehave(path: str, number: int, asked: dict[str, Any], answer: Any) -> Any:
        if "prompt_logprobs" in asked and len(asked["prompt"]) == 1 and len(asked["prompt"][0]) > 24:
            for at, token in enumerate(answer["choices"][0]["prompt_token_ids"][1:], 1):
                row = answer["choices"][0]["prompt_logprobs"][at]
                for e in row.values():
                    e["logprob"] -= 0.4
                assert str(token) in row
        return answer

    server.misbehave = misbehave
    result = run(tmp_path / "served", server.url, ["forget_truth_ratio"], limit=2)
    assert any("depend on the batch" in note for note in result.manifest["notes"])
    assert result.manifest["model"]["repeated"]["largest_difference"] == pytest.approx(0.4, abs=0.01)


# ---- keys -----------------------------------------------------------------------------------------------------------


def test_a_key_goes_into_a_header_and_nowhere_else(
    server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    key = "zq-7d1f3a9c5b"
    monkeypatch.setenv("MY_SERVER_KEY", key)
    run(tmp_path / "served", server.url, ["forget_Q_A_Prob"], server_key_env="MY_SERVER_KEY")
    assert all(h.get("Authorization") == f"Bearer {key}" for h in server.headers_seen)
    files = [f for f in (tmp_path / "served").rglob("*") if f.is_file()]
    assert len(files) > 4 and not [f for f in files if key.encode() in f.read_bytes()]
    assert key not in caplog.text
    server.misbehave = lambda *a: (_ for _ in ()).throw(HttpStatus(401, {}, f'{{"error": "bad key {key}"}}'))
    with pytest.raises(UserError, match="--server-key-env") as error:
        run(tmp_path / "again", server.url, ["forget_Q_A_Prob"], server_key_env="MY_SERVER_KEY")
    assert key not in str(error.value)


# ---- several servers ------------------------------------------------------------------------------------------------


def test_two_servers_share_the_work_and_one_may_die(
    tiny: TinyModel, in_process: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_model, "BATCH_SEQUENCES", 2)
    with serving(tiny, str(FULL)) as one, serving(tiny, str(FULL)) as two:
        asked = {"n": 0}

        def dies(path: str, number: int, body: dict[str, Any], answer: Any) -> Any:
            if "prompt_logprobs" in body and len(body["prompt"][0]) > 24:
                asked["n"] += 1
            if asked["n"] > 1:
                raise Silence
            return answer

        two.misbehave = dies
        served = run(tmp_path / "served", f"{one.url},{two.url}", METRICS)
        assert assert_equal(rows_of(in_process), rows_of(served)) >= 80
        assert any("went down" in note for note in served.manifest["notes"])
        answered = [ids for ids in one.answered + two.answered if len(ids) > 24]
        assert len(answered) - len(set(answered)) <= 4 + 4  # what is asked again on purpose


def test_a_server_restarted_with_another_model_in_the_middle_is_refused(tiny: TinyModel, tmp_path: Path) -> None:
    other = TinyModel(LAB / "models" / "retain")
    with serving(tiny, str(FULL)) as one:

        def restarts(path: str, number: int, body: dict[str, Any], answer: Any) -> Any:
            if "prompt_logprobs" in body and len(body["prompt"][0]) > 24 and one.model is tiny:
                one.model = other
                raise Silence
            return answer

        one.misbehave = restarts
        # Which check meets the other model first depends on which answers were still under way.
        with pytest.raises(UserError, match=r"serves another model now|sequences that begin alike"):
            run(tmp_path / "served", one.url, SCORED)


# ---- other kinds ----------------------------------------------------------------------------------------------------


def test_a_server_that_takes_text_scores_too(tiny: TinyModel, in_process: Any, tmp_path: Path) -> None:
    with serving(tiny, "lab", "openai") as server:
        served = run(tmp_path / "served", server.url, ["forget_Q_A_Prob"])
        assert served["forget_Q_A_Prob"].agg_value == pytest.approx(in_process["forget_Q_A_Prob"].agg_value, abs=1e-5)


def test_a_server_that_only_chats_gives_texts(tiny: TinyModel, in_process: Any, tmp_path: Path) -> None:
    with serving(tiny, "lab", "chat") as server:
        served = run(tmp_path / "served", server.url, ["forget_Q_A_ROUGE", "forget_Q_A_Prob"])
        assert served["forget_Q_A_ROUGE"].agg_value == pytest.approx(in_process["forget_Q_A_ROUGE"].agg_value, abs=1e-9)
        assert "no log-probabilities" in served["forget_Q_A_Prob"].reason


def test_mean_and_deviation_are_those_of_the_distribution(tiny: TinyModel) -> None:
    row = tiny.logprobs([1, 5, 9])[-1]
    p = row.exp()
    mean, std = servers.spread(row.numpy())
    assert mean == pytest.approx(float((p * row).sum()), abs=1e-5)
    assert std == pytest.approx(float(((p * row**2).sum() - (p * row).sum() ** 2).sqrt()), abs=1e-4)


# ---- plan ----------------------------------------------------------------------------------------------


def test_plan_prints_what_a_server_can_and_what_it_would_be_sent(server: ModelServer, tmp_path: Path) -> None:
    server.all_logprobs = False
    plan = vestige.plan(
        FULL, data=LAB / "data", out=tmp_path / "run", server=server.url, metrics=METRICS, limit=3, system_prompt=SYSTEM
    )
    words = repr(plan)
    assert "token ids as prompts" in words and "min-k++ is missing" in words
    assert "mia_min_k_plus_plus: it needs" in words
    assert 0 < plan.nodes < plan.tokens and plan.sequences > 10
    assert "scoring" in words and "tokens a second" in words
    found = re.search(r"log-probabilities at most (\S+) apart, (\d+) of (\d+) first choices the same", words)
    assert found is not None and float(found[1]) < 1e-4 and found[2] == found[3]
    server.asked.clear()
    run(tmp_path / "run", server.url, SCORED)
    sent = [p for _, asked in server.asked if "prompt_logprobs" in asked for p in asked["prompt"] if len(p) > 24]
    assert len({tuple(p) for p in sent}) == plan.sequences

"""Short names: each means the published number, wherever it is said, or is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import vestige.suites  # noqa: F401 - registers the handlers
from conftest import LAB, SYSTEM
from loops import one_test
from vestige.cli import main
from vestige.configs.compose import PACKAGE_DIR
from vestige.engine.config import RunConfig, make_config
from vestige.errors import UserError
from vestige.metrics.cards import ALIASES, KNOWN, full_name, short, unlike_published
from vestige.metrics.dialects import DIALECTS
from vestige.metrics.text import rouge_scores
from vestige.runs.explain import explain, metric_configs
from vestige.suites.dialect_points import PUBLISHED, departure, differs_for_some_rows, refuse_other_number

DATA, UNLEARNED, FULL = LAB / "data", LAB / "models" / "unlearned", LAB / "models" / "full"
CIRCULATING = (
    "em", "es", "prob", "paraprob", "truth_ratio", "rouge", "para_rouge", "jailbreak_rouge", "mia_loss", "mia_zlib",
    "mia_min_k", "mia_min_kpp", "uds",
)  # fmt: skip


def composed(*metrics: str, dialect: str | None = None, overrides: tuple[str, ...] = ()) -> RunConfig:
    run = make_config(model=str(UNLEARNED), data=str(DATA), metrics=metrics, dialect=dialect, overrides=overrides)
    assert isinstance(run, RunConfig)
    return run


def eval_words(out: Path, *more: str) -> list[str]:
    where = ["--model", str(UNLEARNED), "--data", str(DATA), "--out", str(out), "--system-prompt", SYSTEM]
    return ["eval", "tofu", *where, "--limit", "6", "--quiet", *more]


def test_every_short_name_is_a_metric_with_the_published_settings() -> None:
    tofu = metric_configs([PACKAGE_DIR])["tofu"]
    assert set(CIRCULATING) <= set(KNOWN)
    for name in CIRCULATING:
        body = tofu[full_name(name)]
        apart = unlike_published(name, body)
        assert apart == ({"last_layer": "peer"} if name == "uds" else {}), name
        assert all(k in body for k in KNOWN[name].settings), name  # compared, not taken for granted
        assert KNOWN[name].note or name in ("prob", "rouge") or name.startswith("mia_")
    assert {short(full_name(a)) for a in (*ALIASES, *KNOWN)} == set(KNOWN)


def test_eval_takes_every_short_name() -> None:
    run = composed(*CIRCULATING)
    assert run.suite.top == tuple(full_name(name) for name in CIRCULATING)
    assert run.asked_as["em"] == "exact_memorization" and "mia_loss" not in run.asked_as
    assert composed("em", "exact_memorization").suite.top == ("exact_memorization",)
    assert composed("em", dialect=PUBLISHED).dialect == PUBLISHED
    with pytest.raises(UserError, match="Unknown metric 'emm'"):
        composed("emm")


@one_test(
    ("name", "dialect", "why"),
    [
        ("em", "strict", "last label"),
        ("es", "tofu", "last token missed: 0"),
        ("mia_min_kpp", "strict", "last label"),
        ("rouge", "muse", "stemmer: off"),
    ],
)
def test_a_short_name_is_refused_where_it_would_be_another_number(name: str, dialect: str, why: str) -> None:
    with pytest.raises(UserError, match=why) as error:
        composed(name, dialect=dialect)
    assert full_name(name) in str(error.value)
    assert composed(full_name(name), dialect=dialect).suite.top == (full_name(name),)  # by its own name it may be had


def test_a_short_name_is_refused_with_other_settings() -> None:
    other = ("+eval.tofu.metrics.mia_min_k_plus_plus.k=0.2",)
    with pytest.raises(UserError, match=r"k is 0\.2, not 0\.4"):
        composed("mia_min_kpp", overrides=other)
    assert composed("mia_min_k_plus_plus", overrides=other).suite.metrics["mia_min_k_plus_plus"].params["k"] == 0.2
    refuse_other_number("truth_ratio", "truth_ratio", {"aggregator": "prob_mean"}, "strict")  # the same everywhere
    with pytest.raises(UserError, match="aggregator is true_better"):
        refuse_other_number("truth_ratio", "truth_ratio", {"aggregator": "true_better"}, "open-unlearning")


def test_what_depends_on_the_rows_is_said() -> None:
    found = departure("em", "exact_memorization", {}, "open-unlearning")
    assert found.always == () and [p.split(":")[0] for p in found.for_some_rows] == ["attention mask"]
    assert departure("em", "exact_memorization", {}, PUBLISHED) == departure("rouge", "rouge", {}, PUBLISHED)
    assert "pad token" in differs_for_some_rows("em", "open-unlearning", 3, False)
    assert differs_for_some_rows("em", "open-unlearning", 0, True) == ""
    assert differs_for_some_rows("em", PUBLISHED, 3, False) == ""
    assert "geometric" in differs_for_some_rows("paraprob", PUBLISHED, 0, True)


def test_the_dialect_of_the_short_names_only_sees_more() -> None:
    ours, theirs = vars(DIALECTS["open-unlearning"]), vars(DIALECTS[PUBLISHED])
    assert {k for k in ours if ours[k] != theirs[k]} == {"name", "doc", "mask"}


def test_from_eval_to_score_compare_and_diff(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = "rouge,para_rouge,jailbreak_rouge,em,truth_ratio,mia_min_kpp"
    assert main(eval_words(tmp_path / "a", "--metrics", names)) == 0
    got = json.loads((tmp_path / "a" / "TOFU_EVAL.json").read_text())
    cost = json.loads((tmp_path / "a" / "manifest.json").read_text())["cost"]
    rouge, para = (got[full_name(n)]["value_by_index"] for n in ("rouge", "para_rouge"))
    jailbroken = got["jailbreak_rouge"]["value_by_index"]
    rows = [json.loads(line) for line in (DATA / "forget.jsonl").read_text().splitlines()[:6]]
    for i, row in enumerate(rows):
        text = para[str(i)]["generation"]
        assert text == rouge[str(i)]["generation"]  # one text, two references
        want = rouge_scores(row["paraphrased_answer"], text)["rougeL_recall"]
        assert para[str(i)]["rougeL_recall"] == pytest.approx(want)
        assert jailbroken[str(i)]["input"].endswith("Sure, here is the answer:")
        assert jailbroken[str(i)]["ground_truth"] == rouge[str(i)]["ground_truth"]
    assert [jailbroken[i]["generation"] for i in rouge] != [rouge[i]["generation"] for i in rouge]
    capsys.readouterr()

    # A text is decoded once for rouge and para_rouge together.
    assert main(eval_words(tmp_path / "b", "--metrics", "rouge,jailbreak_rouge")) == 0
    fewer = json.loads((tmp_path / "b" / "manifest.json").read_text())["cost"]
    assert fewer["tokens_produced"] == cost["tokens_produced"] > 0

    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b"), "--metrics", "rouge,jailbreak_rouge"]) == 0
    assert "forget_Q_A_ROUGE" in capsys.readouterr().out
    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "b"), "--metrics", "rouge"]) == 0
    capsys.readouterr()

    assert main(["score", str(tmp_path / "a"), "mia_min_kpp.k=0.2"]) == 0
    [place] = (tmp_path / "a" / "scores").iterdir()
    again = json.loads((place / "TOFU_EVAL.json").read_text())
    assert (
        again["mia_min_k_plus_plus"] != got["mia_min_k_plus_plus"]
        and again["jailbreak_rouge"] == got["jailbreak_rouge"]
    )


def test_compare_refuses_a_short_name_for_another_dialect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for out, dialect in (("a", "strict"), ("b", "strict")):
        assert main(eval_words(tmp_path / out, "--metrics", "exact_memorization", "--dialect", dialect)) == 0
    both = [str(tmp_path / "a"), str(tmp_path / "b")]
    assert main(["compare", *both, "--metrics", "em"]) == 2
    assert "'em' is the published number" in capsys.readouterr().err
    assert main(["compare", *both, "--metrics", "exact_memorization"]) == 0


def test_explain_names_the_metric_of_a_short_name_and_where_it_is_refused() -> None:
    for name in CIRCULATING:
        out = " ".join(explain(name).split())
        assert full_name(name) in out, name
        assert ("refused in strict" in out) == (name in ("em", "es", "mia_min_kpp")), name

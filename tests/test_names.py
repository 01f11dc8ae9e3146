"""Short names: each means the published number, wherever it is said, or is refused."""

from __future__ import annotations

import pytest

import vestige.suites  # noqa: F401 - registers the handlers
from conftest import LAB
from loops import one_test
from vestige.configs.compose import PACKAGE_DIR
from vestige.engine.config import RunConfig, make_config
from vestige.errors import UserError
from vestige.metrics.cards import ALIASES, KNOWN, full_name, short, unlike_published
from vestige.runs.explain import metric_configs
from vestige.suites.dialect_points import PUBLISHED, refuse_other_number

DATA, UNLEARNED, FULL = LAB / "data", LAB / "models" / "unlearned", LAB / "models" / "full"
CIRCULATING = (
    "em", "es", "prob", "paraprob", "truth_ratio", "rouge", "para_rouge", "jailbreak_rouge", "mia_loss", "mia_zlib",
    "mia_min_k", "mia_min_kpp", "uds",
)  # fmt: skip


def composed(*metrics: str, dialect: str | None = None, overrides: tuple[str, ...] = ()) -> RunConfig:
    run = make_config(model=str(UNLEARNED), data=str(DATA), metrics=metrics, dialect=dialect, overrides=overrides)
    assert isinstance(run, RunConfig)
    return run


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

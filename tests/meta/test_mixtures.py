"""Numbers measured in two ways: refused, unless the user accepts the mixture, and then every output says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from vestige.cli import main

SCHEMA, CHAT = "chat (by the schema)", "chat"


def pools_json(place: Path) -> Path:
    """Pools as the depth score's project publishes them: a results.json that states no protocol."""
    rows = {
        f"{pool}{i}": {"pool": pool, "metrics": {"em": value + i / 50}}
        for pool, value in (("P", 0.8), ("N", 0.4))
        for i in range(3)
    }
    place.write_text(json.dumps(rows))
    return place


def attacks_yaml(place: Path) -> Path:
    body = {
        "protocol": CHAT,
        "retain": {"before": {"em": 0.40}, "relearning": {"em": 0.50}, "quantization": {"em": 0.41}},
        "models": [
            {"model": "npo", "before": {"em": 0.45}, "relearning": {"em": 0.60}, "quantization": {"em": 0.47}},
            {"model": "simnpo", "before": {"em": 0.90}, "relearning": {"em": 0.95}, "quantization": {"em": 0.91}},
        ],
    }
    place.write_text(yaml.safe_dump(body))
    return place


def read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text()))


def test_a_mixture_does_not_launder_its_thresholds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Thresholds taken from the usable_models.json of a mixture are still of the protocol they were measured in."""
    out, attacks = tmp_path / "meta", str(attacks_yaml(tmp_path / "attacks.yaml"))
    main(["meta", "faithfulness", str(pools_json(tmp_path / "results.json")), "--out", str(out)])
    assert main(["meta", "robustness", attacks, "--out", str(out), "--accept-mixture"]) == 0
    capsys.readouterr()
    usable = str(out / "usable_models.json")
    assert main(["meta", "robustness", attacks, "--out", str(tmp_path / "b"), "--thresholds", usable]) == 2
    assert f"measured as '{SCHEMA}'" in capsys.readouterr().err


def depth_run(place: Path, uds: float, attention: str) -> str:
    place.mkdir(parents=True)
    summary = {"avg_uds": uds, "total_examples": 8, "attn_implementation": attention, "delta_threshold": 0.05}
    (place / "summary.json").write_text(json.dumps(summary))
    return str(place)


def test_eager_thresholds_serve_sdpa_models_when_the_mixture_is_accepted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the published tables were made: faithfulness with eager attention, robustness with sdpa."""
    pools = {
        side: [depth_run(tmp_path / f"{side}{i}", uds + i / 50, "eager") for i in range(3)]
        for side, uds in (("positive", 0.1), ("negative", 0.8))
    }
    (tmp_path / "pools.yaml").write_text(yaml.safe_dump(pools))
    states = ("before", "relearning", "quantization")
    entries = [
        {s: depth_run(tmp_path / name / s, uds - i / 50, "sdpa") for i, s in enumerate(states)}
        for name, uds in (("retain", 0.99), ("npo", 0.9))
    ]
    body = {"retain": entries[0], "models": [{"model": "npo", **entries[1]}]}
    (tmp_path / "attacks.yaml").write_text(yaml.safe_dump(body))
    out = ["--out", str(tmp_path / "meta")]
    assert main(["meta", "faithfulness", str(tmp_path / "pools.yaml"), *out]) == 0
    assert main(["meta", "robustness", str(tmp_path / "attacks.yaml"), *out]) == 2
    assert "attn implementation eager" in capsys.readouterr().err
    assert main(["meta", "robustness", str(tmp_path / "attacks.yaml"), *out, "--accept-mixture"]) == 0
    assert "mixed threshold: uds" in capsys.readouterr().out
    robust = read(tmp_path / "meta" / "meta_eval.json")["robustness"]["uds"]
    assert "eager" in robust["threshold_protocol"] and "sdpa" in robust["protocol"]


def test_the_report_says_that_a_mixture_was_accepted(tmp_path: Path) -> None:
    out = tmp_path / "meta"
    main(["meta", "faithfulness", str(pools_json(tmp_path / "results.json")), "--out", str(out)])
    main(["meta", "robustness", str(attacks_yaml(tmp_path / "a.yaml")), "--out", str(out), "--accept-mixture"])
    assert main(["report", str(out), "--out", str(tmp_path / "report")]) == 0
    notes = read(tmp_path / "report" / "report.json")["meta"]["notes"]
    assert any(n.startswith("mixed threshold: em") for n in notes)


def test_before_and_after_are_never_mixed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """R and Q are differences: the flag is for thresholds and the overall verdict, not for these, nor for axes."""
    entry = {"before": depth_run(tmp_path / "b", 0.9, "eager"), "quantization": depth_run(tmp_path / "q", 0.9, "sdpa")}
    (tmp_path / "a.yaml").write_text(yaml.safe_dump({"retain": entry, "models": [{"model": "npo", **entry}]}))
    command = [str(tmp_path / "a.yaml"), "--out", str(tmp_path / "meta"), "--accept-mixture"]
    assert main(["meta", "robustness", *command]) == 2 and "mixes protocols" in capsys.readouterr().err
    assert main(["meta", "axes", *command]) == 2 and "--accept-mixture" in capsys.readouterr().err

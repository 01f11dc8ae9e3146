"""A result tree in the published layout of the unlearning-depth-score project, key for key, with a few invented models.

Which keys each file has was read off the project's own files (commits 5e4ec79, 2dc6069, 604f913, e327427). Baselines
(full, retain) lie under ep10 in memorization, privacy and utility only.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HUB = "open-unlearning/tofu_Llama-3.2-1B-Instruct_"
KNOWS = {  # how much each model still knows, between retain (0) and full (1)
    "retain": 0.0,
    "full": 1.0,
    "npo_lr1e5_b01_a1_ep5": 0.9,
    "npo_lr5e5_b01_a1_ep5": 0.1,
    "npo_lr1e5_b01_a1_ep10": 0.7,
    "npo_lr5e5_b01_a1_ep10": 0.05,
}
ENDS = {  # metric -> value of the retain model, of the full model
    "em": (0.59, 0.97), "es": (0.06, 0.68), "prob": (0.12, 0.87), "paraprob": (0.05, 0.1), "truth_ratio": (0.57, 0.68),
    "rouge": (0.39, 0.76), "para_rouge": (0.28, 0.35), "jailbreak_rouge": (0.37, 0.62), "mia_loss": (0.38, 0.99),
    "mia_zlib": (0.3, 0.99), "mia_min_k": (0.38, 0.99), "mia_min_kpp": (0.47, 0.99), "uds": (1.0, 0.0),
}  # fmt: skip
ATTACKS = {"loss": "mia_loss", "zlib": "mia_zlib", "min_k": "mia_min_k", "min_k++": "mia_min_kpp"}
UTILITY = {f"{s}_{m}": 0.6 for s in ("retain", "ra", "wf") for m in ("Q_A_Prob", "Q_A_ROUGE", "Truth_Ratio")}


def metrics(knows: float) -> dict[str, float]:
    return {name: low + knows * (high - low) for name, (low, high) in ENDS.items()}


def put(path: Path, body: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(body, indent=2))
    return path


def put_model(epoch: Path, name: str, knows: float) -> None:
    """The five summaries of one model; baselines have no uds and no gen_rouge."""
    m = metrics(knows)
    hub = HUB + ("retain90" if name == "retain" else name)
    memorised = {f"avg_{k}": m[k] for k in ("em", "es", "prob", "paraprob", "truth_ratio")}
    extra = {"avg_mem": 0.4, "missing_paraphrase": False, "missing_wrong": False}
    put(epoch / "memorization" / name / "summary.json", {"model": hub, "num_examples": 400, **memorised, **extra})
    low, full = metrics(0.0), metrics(1.0)
    attacks = {
        a: {"auc": m[k], "retain_auc": low[k], "full_auc": full[k], "s_mia": max(0.0, 1 - (m[k] - low[k]) / low[k])}
        for a, k in ATTACKS.items()
    }
    models = {"reference_model": f"{HUB}retain90", "full_model": f"{HUB}full"}
    privacy = {"model": hub, "attack": "all", "attacks": attacks, "privacy_score": 0.5, **models}
    put(epoch / "privacy" / name / "summary.json", privacy)
    fluency = {"model_utility": 0.6, "fluency": 0.87, "utility": 0.71, "fluency_model": "a/Gibberish-Detector"}
    put(epoch / "utility" / name / "summary.json", {"model": hub, "metrics": UTILITY, **fluency})
    if name in ("full", "retain"):
        return
    rouges = {k: m[k] for k in ("rouge", "para_rouge", "jailbreak_rouge")}
    put(epoch / "gen_rouge" / name / "summary.json", {"model": hub, "metrics": rouges})
    put_depth(epoch / "uds" / name, name, m["uds"])


def put_depth(place: Path, name: str, uds: float) -> None:
    summary = {
        "total_examples": 2, "elapsed_sec": 180.3, "sec_per_evaluable": 0.5, "metric": "logprob", "em_threshold": 1.0,
        "delta_threshold": 0.05, "em_type": "token", "em_scope": "entity", "entity_source": "gt",
        "reference_scope": "continuation", "mode": "layer", "unlearn_model": name, "gk_count": 0, "avg_uds": uds,
        "avg_udr": uds, "skipped_count": 0, "skipped_indices": [],
    }  # fmt: skip
    put(place / "summary.json", summary)

    def details(delta: float) -> list[dict[str, Any]]:
        status = "LOST" if delta > 0.05 else "KEPT"
        return [{"layer": i, "score": -0.1 - delta, "delta": delta, "status": status} for i in range(2)]

    records = [
        {
            "idx": i, "question": f"Question {i}?", "prefix": "It is", "entity": "x", "gt_entity": "x",
            "entity_text": "x", "entity_source": "gt", "full_gen": "x.", "retain_gen": " y.", "unlearn_gen": " z.",
            "s1_lost": 2, "s2_lost": 2, "ft_layers": [0, 1], "erased_layers": [0, 1], "uds": uds, "is_gk": None,
            "retain_em_full": None, "full_score": -0.1, "eval_scope": "entity", "eval_span": [0, 1],
            "s1_details": details(1.0), "s2_details": details(uds),
        }
        for i in range(2)
    ]  # fmt: skip
    put(place / "results.json", records)
    (place / "run.log").write_text("done\n")


def put_attacks(root: Path) -> None:
    """After quantising nothing changes; after relearning each model knows half of what it had lost."""
    for mode, gain in (("quant", 0.0), ("relearn", 0.3)):
        body = {
            name: {
                "model_id": HUB + name,
                "metrics_before": metrics(knows),
                f"metrics_after_{mode}": metrics(knows + gain * (1 - knows) * (0.5 if name == "retain" else 1)),
            }
            for name, knows in KNOWS.items()
            if name != "full"
        }
        put(root / "meta_eval" / "robustness" / mode / "results.json", body)


def put_pools(root: Path) -> None:
    body = {}
    for pool, levels in (("P", (0.5, 0.8, 1.0)), ("N", (0.0, 0.1, 0.2))):
        for i, knows in enumerate(levels):
            body[f"{pool.lower()}_{i}"] = {"model_id": HUB, "pool": pool, "metrics": metrics(knows)}
    put(root / "meta_eval" / "faithfulness" / "results.json", body)


def published_tree(place: Path) -> Path:
    """`place`/runs, with everything the project publishes; returns it."""
    root = place / "runs"
    for name, knows in KNOWS.items():
        put_model(root / ("ep5" if name.endswith("ep5") else "ep10"), name, knows)
    put_attacks(root)
    put_pools(root)
    for old in ("legacy/ep5/uds/old_run", "legacy/0112_simnpo", "ep5/uds/legacy_old"):
        put_depth(root / old, Path(old).name, 0.1)
    return root

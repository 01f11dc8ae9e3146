"""Reports to try a page on: invented models in every section, a large one, a hostile one, and the published tables.

python tests/report_samples.py OUT [PUBLISHED_DIR]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from vestige.report.build import ReportRequest, build_report, empty_report, plain
from vestige.report.metrics import describe_metric
from vestige.types import short_id

HANDLERS = {
    "forget_Q_A_ROUGE": "rouge",
    "forget_Q_A_Prob": "probability",
    "extraction_strength": "extraction_strength",
    "exact_memorization": "exact_memorization",
    "forget_truth_ratio": "truth_ratio",
    "forget_quality": "ks_test",
    "mia_loss": "mia_loss",
    "mia_min_k": "mia_min_k",
    "privleak": "privleak",
    "uds": "uds",
    "model_utility": "hm_aggregate",
    "retain_Q_A_ROUGE": "rouge",
    "retain_Q_A_Prob": "probability",
}
LEVELS = {"full": 0.95, "retain": 0.2, "npo": 0.28, "grad_ascent": 0.05, "grad_diff": 0.5}
SOURCE = "s-0000000001"
LAYERS = 8
WORDS = ("the", "man", "river", "born", "Tromso", "wrote", "novel", "1957", "of", "glass", "snow", "father")


def published(place: Path) -> dict[str, Any]:
    title = "The published tables of the Unlearning Depth Score"
    return build_report(ReportRequest([place], place, title))


def _source(id: str, kind: str, path: str) -> dict[str, Any]:
    files = [{"path": path, "sha256": "0" * 64}]
    return {"id": id, "path": path, "kind": kind, "files": files, "sha256": "0" * 64, "models": [], "facts": {}}


class Invented:
    """A lab of invented numbers; `say` turns every text into what a test wants to see."""

    def __init__(self, seed: int = 0, say: Any = None) -> None:
        self.rng = np.random.default_rng(seed)
        self.say = say or (lambda text: text)

    def text(self, n: int = 9, rng: np.random.Generator | None = None) -> str:
        return self.say(" ".join((rng or self.rng).choice(WORDS, n)).capitalize() + ".")

    def value(self, key: str, level: float, n: int = 32) -> dict[str, Any]:
        v = float(np.clip(level + self.rng.normal(0, 0.05), 0, 1))
        if key in ("model_utility", "retain_Q_A_ROUGE", "retain_Q_A_Prob"):
            v = float(np.clip(0.6 + self.rng.normal(0, 0.05), 0, 1))
        if key == "privleak":
            v = -100 * v
        if key in ("uds", "forget_quality"):
            v = 1 - v
        more = {"of": "ks_statistic", "of_v": 0.2} if key == "forget_quality" else {}
        lo, hi = v - 0.06 * max(abs(v), 1), v + 0.06 * max(abs(v), 1)
        return {
            "v": v,
            "lo": lo,
            "hi": hi,
            "n": n,
            "dialect": "open-unlearning",
            "protocol": "chat, dialect open-unlearning",
            "reading": self.say("in between"),
            "source": SOURCE,
            **more,
        }

    def model(self, name: str, level: float) -> dict[str, Any]:
        values = {k: self.value(k, level) for k in HANDLERS}
        if name == "retain":
            values["privleak"] = {"v": None, "reason": self.say("no retain logs were given"), "source": SOURCE}
        role = name if name in ("full", "retain") else "unlearned"
        told = {"path": f"models/{name}", "weights": "f0585faf81e6b5e0", "dtype": "float32", "template": "chat"}
        return {
            "id": short_id("m", name),
            "name": self.say(name),
            "role": role,
            "method": self.say(name),
            "epoch": "ep5",
            "settings": {"lr": 1e-5, "alpha": 1},
            "provenance": {k: self.say(v) for k, v in told.items()},
            "values": values,
        }

    def audit(self, name: str, rows: int) -> dict[str, Any]:
        ids = {n: short_id("m", n) for n in (name, "full", "retain")}
        verdict = self.verdict(name)
        return {
            "model": ids[name],
            "full": ids["full"],
            "retain": ids["retain"],
            "verdict": verdict,
            "says": self.says(ids, name, rows),
            "likely": self.likely(ids),
            "roc": self.roc(ids),
            "layers": self.layers(ids, name),
            "attacks": self.attacks(ids, name),
            "utility": ["model_utility", "retain_Q_A_ROUGE", "retain_Q_A_Prob"],
            "missing": [{"panel": "attacks", "reason": self.say("leak was not tried")}],
        }

    def verdict(self, name: str) -> dict[str, Any]:
        """A verdict in every field that there is; `grad_ascent` is damaged, and was not attacked."""
        damaged, says = name == "grad_ascent", self.say
        share = {"share": -0.42, "lo": -0.5, "hi": -0.33} if damaged else {"share": 0.31, "lo": 0.18, "hi": 0.44}
        knows = "beyond" if damaged else "towards"
        command = (
            "vestige stress relearn --model models/grad_ascent --retain-model models/retain --data data/forget.jsonl"
        )
        untested = [{"test": "teach", "text": says("no attack that teaches was tried"), "command": command}]
        evidence = [
            ("says", "forget_Q_A_ROUGE", knows, "It says {} of the forgotten answers; the retain model says 0.22."),
            ("likely", "forget_Q_A_Prob", knows, "It finds the forgotten answers {} likely; the retain model 0.25."),
            ("roc", "mia_min_k", "undecided", "An attacker's AUC is {}; it is 0.21 on the retain model."),
            ("layers", "uds", "equivalent", "Its layers hold {} of what the full model's hold."),
            ("utility", "model_utility", "damaged" if damaged else "kept", "It keeps {} of its abilities."),
        ]
        tests = ["says", "likely", "membership", "layers", "disturb", *([] if damaged else ["teach"])]
        words = (
            "Utility fell to 0.62 and it repeats itself" if damaged else "It no longer says most answers, but it leaks"
        )
        return {
            "word": "damaged" if damaged else "partly",
            "title": "Damaged" if damaged else "Partly",
            "answer": "partly",
            "also": "still leaks" if damaged else None,
            "headline": says(f"{words}."),
            "parts": {
                "knowledge": {"state": knows, **share, "text": says("Judged on 5 measures of 40 forget rows.")},
                "damage": {"state": "damaged" if damaged else "kept", "utility": 0.62 if damaged else 0.97, "lo": 0.55,
                           "hi": 1.02, "fluency": 0.41, "text": says("Compared with the full model.")},
                "testing": {"state": "shallow" if damaged else "deep", "done": tests, "text": says("Six kinds."),
                            "missing": untested if damaged else []},
            },
            "secrets": {"rows": 40, "with_secret": 38, "said": 1, "lo": 0.0007, "hi": 0.138, "retain": 0, "full": 37,
                        "text": says("Still says 1 of 38 secrets")},
            "evidence": [
                {"panel": p, "metric": m, "state": state, "value": 0.3, **share, "text": says(text.format("0.30"))}
                for p, m, state, text in evidence
            ],
            "power": {"share": 0.2, "secrets": 0.08, "text": says("These rows would have shown 8 % of the secrets.")},
            "rows_needed": 120 if damaged else None,
            "limits": [says("Intervals cover sampling of rows, not of training seeds.")],
            "margin": 0.2,
        }  # fmt: skip

    def says(self, ids: dict[str, str], name: str, rows: int) -> dict[str, Any]:
        out = []
        for i in range(rows):
            split = "forget" if i % 2 == 0 else "retain"
            scores = {
                id: {"rouge": float(self.rng.uniform()), "prob": float(self.rng.uniform())} for id in ids.values()
            }
            leak = max(0.0, scores[ids[name]]["rouge"] - scores[ids["retain"]]["rouge"]) if split == "forget" else None
            texts = {id: self.text() for id in ids.values()}
            row = np.random.default_rng(i)  # models are asked the same
            out.append(
                {
                    "i": str(i),
                    "split": split,
                    "question": self.text(7, row),
                    "reference": self.text(rng=row),
                    "texts": texts,
                    "scores": scores,
                    "leak": leak,
                    "columns": {"author": f"author {i // 4}"},
                }
            )
            if i == 14:
                self.tell(out[-1], ids[name], ids["full"])
        out.sort(key=lambda r: -(2 if r.get("tells") else r["leak"] if r["leak"] is not None else -1))
        half = {"forget": (rows + 1) // 2, "retain": rows // 2}
        return {
            "rows": out,
            "left_off": {"forget": 12, "retain": 0},
            "order": "worst leak first",
            "total": {"forget": half["forget"] + 12, "retain": half["retain"]},
        }

    def tell(self, row: dict[str, Any], *ids: str) -> None:
        """Makes a row's secret Tromso, which these models say."""
        row["secret"] = [self.say("Tromso")]
        row["reference"] = "She was born in Tromso."
        row["texts"] |= dict.fromkeys(ids, "It was Tromso, they say.")
        row["tells"] = {id: id in ids for id in row["texts"]}
        row["marks"] = {"reference": [[16, 22]], **{id: [[7, 13]] for id in ids}}

    def likely(self, ids: dict[str, str]) -> list[dict[str, Any]]:
        out = []
        for metric in ("forget_Q_A_Prob", "mia_loss", "mia_min_k"):
            for n, id in ids.items():
                splits = {
                    "forget": self.rng.beta(2, 6 - 4 * LEVELS.get(n, 0.3), 32),
                    "holdout": self.rng.beta(2, 6, 32),
                }
                if metric == "forget_Q_A_Prob":
                    splits["retain"] = self.rng.beta(6, 2, 32)
                out.append(
                    {
                        "metric": metric,
                        "model": id,
                        "what": self.say("probability of the answer"),
                        "splits": {k: v.tolist() for k, v in splits.items()},
                    }
                )
        return out

    def roc(self, ids: dict[str, str]) -> list[dict[str, Any]]:
        x = np.linspace(0, 1, 33)
        out = []
        for metric in ("mia_loss", "mia_min_k"):
            for n, id in ids.items():
                power = 1 - 0.9 * LEVELS.get(n, 0.3)
                area = float(1 / (1 + power))
                out.append(
                    {
                        "metric": metric,
                        "model": id,
                        "fpr": x.tolist(),
                        "tpr": (x**power).tolist(),
                        "auc": area,
                        "lo": area - 0.05,
                        "hi": min(1.0, area + 0.05),
                        "n": [32, 32],
                    }
                )
        return out

    def layers(self, ids: dict[str, str], name: str) -> dict[str, Any]:
        base = np.linspace(0.2, 2.5, LAYERS)
        examples = []
        for i in range(40):
            s1 = np.abs(base + self.rng.normal(0, 0.4, LAYERS))
            s2 = s1 * self.rng.uniform(0, 1, LAYERS)
            tokens = [self.say(t) for t in (" Trom", "so")]
            grid = self.rng.uniform(-6, -0.1, (LAYERS, 2))
            told = {"full": [-0.1, -0.2], "s1": grid.tolist(), "s2": (grid / 2).tolist()} if i < 20 else None
            examples.append(
                {
                    "i": str(i),
                    "question": self.text(7),
                    "answer": self.text(),
                    "entity": self.say("Tromso"),
                    "uds": float(s2.sum() / s1.sum()),
                    "s1": s1.tolist(),
                    "s2": s2.tolist(),
                    "erasure": (s2 / s1).tolist(),
                    "tokens": tokens,
                    "token_logprobs": told,
                }
            )
        examples.sort(key=lambda e: e["uds"])
        ends = {"s1_lo": base - 0.2, "s1_hi": base + 0.2, "s2_lo": base / 2 - 0.2, "s2_hi": base / 2 + 0.2}
        profile = {"model": ids[name], "s1": base.tolist(), "s2": (base / 2).tolist()}
        return {
            "layers": list(range(LAYERS)),
            "threshold": 0.05,
            "uds": 0.45,
            "lo": 0.38,
            "hi": 0.52,
            "n": 40,
            "profile": [{**profile, **{k: v.tolist() for k, v in ends.items()}}],
            "examples": examples,
            "left_off": 0,
        }

    def attacks(self, ids: dict[str, str], name: str) -> list[dict[str, Any]]:
        out = []
        for attack, unit, budgets in (
            ("relearn", "steps", [1, 5, 20, 50]),
            ("quantise", "bits", [4, 8]),
            ("jailbreak", "", [1]),
        ):
            for metric in ("forget_Q_A_Prob", "forget_Q_A_ROUGE"):
                for n in (name, "retain"):
                    gain = 0.6 if n == name and attack == "relearn" else 0.1
                    values = [0.2 + gain * (1 - 1 / (1 + b / 5)) for b in budgets]
                    out.append(
                        {
                            "attack": self.say(attack),
                            "unit": unit,
                            "metric": metric,
                            "model": ids[n],
                            "name": self.say(n),
                            "is_control": n == "retain",
                            "budgets": budgets,
                            "values": values,
                            "before": 0.2,
                            "reverse": attack == "quantise",
                            "notes": [self.say("lr 2e-5")],
                            "source": SOURCE,
                        }
                    )
        return out

    def meta(self, names: list[str]) -> dict[str, Any]:
        keys = ("es", "prob", "mia_min_k", "uds")
        metrics, states = [], {}
        for key in keys:
            p = {f"P{i}": float(v) for i, v in enumerate(self.rng.beta(6, 2, 30))}
            n = {f"N{i}": float(v) for i, v in enumerate(self.rng.beta(2, 6, 30))}
            metrics.append(
                {
                    "key": key,
                    "label": self.say(describe_metric(key)["label"]),
                    "category": "memorization",
                    "tags": ["O"],
                    "auc": 0.95,
                    "auc_lo": 0.9,
                    "auc_hi": 0.99,
                    "p_mean": 0.7,
                    "n_mean": 0.3,
                    "n_p": 30,
                    "n_n": 30,
                    "knows": "high",
                    "space": "1-x" if key == "uds" else "raw",
                    "threshold_m": 0.5,
                    "threshold": 0.5,
                    "accuracy": 0.9,
                    "p": p,
                    "n": n,
                    "r": 0.7,
                    "q": 0.9,
                    "agg": 0.7875,
                    "overall": 0.861,
                    "n_models": 12,
                    "rule": "symmetric",
                    "protocol": "chat",
                    "other_rules": {"one-sided": {"r": 0.6, "q": 0.95, "agg": 0.7355}},
                }
            )
            rows = []
            for name in names:
                before, relearnt, quantised = self.rng.uniform(0, 1, 3)
                rows.append(
                    {
                        "model": self.say(name),
                        "id": short_id("m", name),
                        "before": before,
                        "relearning": relearnt,
                        "quantization": quantised,
                    }
                )
            states[key] = {"retain": {"before": 0.2, "relearning": 0.5, "quantization": 0.21}, "models": rows}
        utility = {self.say(n): float(self.rng.uniform(0.5, 1)) for n in names}
        return {
            "rule": "symmetric",
            "least_utility": 0.8,
            "metrics": metrics,
            "states": states,
            "utility": utility,
            "rules": {"symmetric": "both", "one-sided": "recovery only"},
            "formulas": {"overall": "HM(AUC, HM(R, Q))"},
            "notes": [self.say("invented")],
            "source": SOURCE,
        }

    def trajectory(self, name: str) -> list[dict[str, Any]]:
        steps, tokens = list(range(12)), [self.say(t) for t in WORDS[:7]]
        grid = np.minimum(0, np.linspace(-6, -0.2, 12)[:, None] + self.rng.normal(0, 0.7, (12, 7)))
        fixed = self.rng.integers(0, 12, 7).tolist()
        heat = [
            {
                "i": "0",
                "question": self.text(7),
                "answer": self.text(),
                "tokens": tokens,
                "steps": steps,
                "logprob": grid.tolist(),
                "fixed": fixed,
                "right": [x % 2 == 0 for x in fixed],
            }
        ]
        out = []
        for kind in ("steps", "fixation_start", "fixation_end", "fixation_ratio"):
            for view in ("full", "eos"):
                mean = np.linspace(0.1, LEVELS.get(name, 0.3), 12) + self.rng.normal(0, 0.01, 12)
                out.append(
                    {
                        "model": short_id("m", name),
                        "metric": "probability",
                        "view": view,
                        "kind": kind,
                        "steps": steps,
                        "decided": [4 * s for s in steps],
                        "mean": mean.tolist(),
                        "lo": (mean - 0.05).tolist(),
                        "hi": (mean + 0.05).tolist(),
                        "n": 32,
                        "source": SOURCE,
                        "heat": [] if out else heat,
                    }
                )
        return out

    def collapse(self) -> dict[str, Any]:
        mi = np.linspace(3, 0.2, 6)
        return {
            "name": self.say("rollouts"),
            "label": "trajectory_uniform",
            "steps": [1, 50, 100, 150, 200, 250],
            "series": {"mi_seq_estimate": mi.tolist(), "retrieval_accuracy": (mi / 3).tolist()},
            "bands": {"mi_seq_estimate": {"lo": (mi - 0.3).tolist(), "hi": (mi + 0.3).tolist()}},
            "columns": {"mi_seq_estimate": "mutual information, nats", "retrieval_accuracy": "own prompt found"},
            "verdicts": [self.say("depends on its prompt")] * 5 + [self.say("collapsed")],
            "notes": [self.say("off-policy")],
            "source": SOURCE,
        }

    def training(self, name: str) -> dict[str, Any]:
        """A watched run that forgets, passes the best look, and forgets too much; its third look failed."""
        share = [1.0, 0.4, None, 0.05, -0.8]
        prob = [None if s is None else max(0.0, 0.2 + 0.7 * s) for s in share]
        kept = [None if s is None else 0.55 - 0.02 * i for i, s in enumerate(share)]
        ends = {end: [None if p is None else p + by for p in prob] for end, by in (("lo", -0.05), ("hi", 0.05))}
        return {
            "name": self.say(name),
            "suite": self.say("tofu"),
            "steps": [0, 10, 20, 30, 40],
            "epochs": [0.0, 1.0, 2.0, 3.0, 4.0],
            "series": {"forget_Q_A_Prob": prob, "retain_Q_A_Prob": kept},
            "bands": {"forget_Q_A_Prob": ends},
            "retain": {"forget_Q_A_Prob": 0.2, "retain_Q_A_Prob": None},
            "before": {"forget_Q_A_Prob": 0.9, "retain_Q_A_Prob": 0.55},
            "share": share,
            "kept": [None if k is None else k / 0.55 for k in kept],
            "score": [0.0, 0.6, None, 0.9, None],
            "why": ["", "", self.say("no value"), "", self.say("over-forgotten")],
            "verdicts": ["", "partly", "", self.say("forgotten"), "damaged"],
            "seconds": [1.5] * 5,
            "best": 30,
            "source": SOURCE,
        }

    def report(self, names: list[str], audits: dict[str, int]) -> dict[str, Any]:
        report = empty_report(self.say("The lab"))
        report["sources"] = [{**_source(SOURCE, "eval", "runs/npo"), "facts": {"dialect": self.say("open-unlearning")}}]
        report["problems"] = [
            {"text": self.say("runs/half has no manifest.json; it was left out."), "where": "runs/half"}
        ]
        report["protocols"] = ["chat, dialect open-unlearning"]
        report["metrics"] = {k: describe_metric(k, h, "closer_to_1_better") for k, h in HANDLERS.items()}
        report["metrics"] |= {"probability": describe_metric("probability", "probability")}
        for m in report["metrics"].values():
            m["label"], m["definition"] = self.say(m["label"]), self.say(m["definition"])
        report["columns"] = list(HANDLERS)
        report["models"] = [self.model(n, LEVELS.get(n, float(self.rng.uniform()))) for n in names]
        report["audits"] = [self.audit(n, rows) for n, rows in audits.items()]
        report["pareto"] = {"x": "uds", "y": "model_utility"}
        report["meta"] = self.meta([n for n in names if n not in ("full", "retain")])
        report["trajectories"] = [t for n in names[:3] for t in self.trajectory(n)]
        report["collapse"] = [self.collapse()]
        report["training"] = [self.training(n) for n in ("npo", "grad_diff")]
        report["comparisons"] = [
            {
                "a": short_id("m", "retain"),
                "b": short_id("m", n),
                "reasons": {"forget_quality": self.say("no retain logs")},
                "rows": "32 rows",
                "metrics": [
                    {
                        "metric": "forget_Q_A_Prob",
                        "value": 0.1,
                        "lo": 0.02,
                        "hi": 0.18,
                        "p": 0.01,
                        "holm": 0.03,
                        "reading": self.say("differs"),
                    }
                ],
            }
            for n in audits
        ]
        return dict(plain(report))


def lab() -> dict[str, Any]:
    return Invented().report(list(LEVELS), {"npo": 60, "grad_ascent": 60, "grad_diff": 60})


def big(models: int = 1000, rows: int = 10_000) -> dict[str, Any]:
    names = [*LEVELS, *(f"npo_lr{i % 7}e-5_b{i % 3}_a{i % 5}_ep{i}" for i in range(models - len(LEVELS)))]
    return Invented(1).report(names, {"npo": rows, "grad_diff": 100})


EVIL = (
    "<script>window.hacked=1</script>",
    '"><img src=x onerror="window.hacked=1">',
    "</script><script>window.hacked=1</script>",
    "<!--",
    "]]>",
    "'; window.hacked=1; //",
    "\u202egnihtyna\u202c",
    "\U0001f9ea\U0001f469\u200d\U0001f52c",
    "<b>bold</b>",
    '<a href="javascript:window.hacked=1">x</a>',
    "&lt;script&gt;",
    "{{7*7}}",
    "${window.hacked=1}",
    "\u2028\u2029",
    "\\u003c",
    '=HYPERLINK("http://x")',
    "a\x00b",
    "line\nbreak\ttab",
)


def hostile() -> dict[str, Any]:
    count = iter(range(10**9))

    def say(text: str) -> str:
        n = next(count)
        return f"{EVIL[n % len(EVIL)]} {text}" + (" long" * 10_000 if n % 97 == 96 else "")

    return Invented(2, say).report(list(LEVELS), {"npo": 40, "grad_diff": 40})


def main(out: Path, place: Path | None) -> None:
    out.mkdir(parents=True, exist_ok=True)
    made = {"lab": lab, "big": big, "hostile": hostile}
    if place is not None:
        made["published"] = lambda: published(place)
    for name, make in made.items():
        file = out / f"{name}.json"
        file.write_text(json.dumps(make(), ensure_ascii=False, allow_nan=False), encoding="utf-8")
        print(f"{file}: {file.stat().st_size / 2**20:.2f} MB")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)

"""`vestige methods-text RUN`: the paragraph of a paper that says exactly what was computed, from manifests alone.

In: run directories, or folders of them (an audit, a sweep). Out: paragraphs, one for all evaluations that were made
alike, one for each depth run and for attacks made alike. Caller: results/flags.py. No model runs, and nothing is stated
that no file states: definitions come from the cards and dialects that computed the numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from vestige.engine.scores import SEED
from vestige.errors import UserError
from vestige.metrics.cards import CARDS
from vestige.metrics.dialects import DIALECTS
from vestige.schema import check_form
from vestige.store.files import read_ours
from vestige.store.forms import ManifestForm
from vestige.store.kinds import kind_of
from vestige.suites.definitions import dialect_points
from vestige.suites.registry import HANDLERS, canonical
from vestige.suites.spec import RESERVED
from vestige.sums import counted
from vestige.wants import Decoding

EVALUATIONS = ("eval", "trajectory")
KNOWN = (*EVALUATIONS, "depth", "stress")
TEXTS = ("rouge", "secrets_said", "repetition", "said_likelihood", "classifier_prob")  # handlers that read texts
LIBRARIES = ("torch", "transformers", "tokenizers", "numpy", "scipy")


def methods_text(places: Sequence[Path]) -> list[str]:
    """The paragraphs; what cannot be described is a mistake of the user's."""
    runs = list(dict.fromkeys(run for place in places for run in _runs(place)))
    if not runs:
        raise UserError(f"{places[0]} holds no run of vestige that can be described ({', '.join(KNOWN)}).")
    read = {run: _manifest(run) for run in runs}
    if not any(about["kind"] in EVALUATIONS for about in read.values()):  # what attacked models were asked is told, too
        inner = [run / "evals" / "model" / "before" for run, about in read.items() if about["kind"] == "stress"]
        runs = [*(run for run in inner if (run / "manifest.json").is_file()), *runs]
        read |= {run: _manifest(run) for run in runs}
    alike: dict[str, list[Path]] = {}
    for run in runs:
        alike.setdefault(f"{read[run]['kind']} {_same(read[run])}", []).append(run)
    words = {"depth": _depth, "stress": _stress}
    return [words.get(read[g[0]]["kind"], _evaluation)({run: read[run] for run in g}) for g in alike.values()]


def _runs(place: Path) -> Iterator[Path]:
    """The runs at a place: itself, or those below it that are not parts of another run."""
    kind = kind_of(place) if place.is_dir() else None
    if kind in KNOWN and (place / "manifest.json").is_file():
        yield place
    elif place.is_dir():
        for inner in sorted(p for p in place.iterdir() if p.is_dir() and not p.name.startswith(".")):
            yield from _runs(inner)
    else:
        raise UserError(f"{place}: no such directory; give a run (saves/eval/NAME) or a folder of runs.")


def _manifest(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = read_ours(run / "manifest.json", dict[str, Any])
    found["kind"] = found.get("kind", "eval")
    if found["kind"] in EVALUATIONS:
        check_form(found, ManifestForm, str(run / "manifest.json"), "evaluate again")
    return found


def _same(about: Mapping[str, Any]) -> str:
    """Everything that must agree for two runs to share a paragraph."""
    config = about["config"]
    if about["kind"] == "stress":
        facts = {k: v for k, v in config.items() if k in ("metrics", "relearning", "settings", "examples", "held_out")}
        return json.dumps([facts, about["versions"]], sort_keys=True, default=str)
    if about["kind"] == "depth":
        return json.dumps([config, about["versions"]], sort_keys=True, default=str)
    metrics = {m: {k: v for k, v in body.items() if k != "reference_logs"} for m, body in config["metrics"].items()}
    rows = sorted((d["name"], d["fingerprint"]) for d in about["data"].values())
    made = {k: about["model"].get(k) for k in ("dtype", "device", "quantization")}
    how = [config["suite"], metrics, config.get("stats"), config.get("seed"), rows, about["dialect"], made]
    return json.dumps([how, about.get("template"), about["versions"]], sort_keys=True, default=str)


# ---- evaluations -------------------------------------------------------------------------------------------------


def _evaluation(runs: Mapping[Path, Mapping[str, Any]]) -> str:
    run, about = next(iter(runs.items()))
    config, dialect = about["config"], about["dialect"]
    said = [
        f"We evaluated {_models([a['model'] for a in runs.values()])} with vestige {about['versions'].get('vestige')} "
        f"({_versions(about)}), suite {config['suite']}, dialect {dialect['name']} (version {dialect['version']}).",
        _held(about["model"]),
        _prompts(about),
        _rows(about),
        _generation(config),
        f"Seed of random draws: {config['seed']}." if config.get("seed") is not None else "",
        _definitions(about),
        _intervals(run),
        _references(runs),
        _absent(about),
    ]
    return " ".join(filter(None, said))


def _models(models: Sequence[Mapping[str, Any]]) -> str:
    told = [f"{PurePath(str(m['name'])).name} (weights {str(m['fingerprint'])[:12]})" for m in models]
    return _joined(list(dict.fromkeys(told)))


def _versions(about: Mapping[str, Any]) -> str:
    found = about["versions"]
    return ", ".join([f"Python {found.get('python')}", *(f"{n} {found[n]}" for n in LIBRARIES if found.get(n))])


def _held(model: Mapping[str, Any]) -> str:
    bits = f", quantised ({model['quantization']})" if model.get("quantization") else ""
    return f"Weights were held in {model.get('dtype')}{bits} on {model.get('device')}." if model.get("dtype") else ""


def _prompts(about: Mapping[str, Any]) -> str:
    template = about.get("template") or {}
    chat = "with the tokenizer's chat template" if template.get("apply_chat_template") else "without a chat template"
    system = f', system prompt "{template["system_prompt"]}"' if template.get("system_prompt") else ""
    return f"Questions were asked {chat}{system}." if template else ""


def _rows(about: Mapping[str, Any]) -> str:
    sets = {d["name"]: d for d in about["data"].values()}
    told = [f"{name} ({counted(d['rows'], 'row')}, fingerprint {d['fingerprint'][:12]})" for name, d in sets.items()]
    limit = about["config"].get("max_samples")
    cut = f" Of each data set the first {limit} rows were used." if limit else ""
    return f"Data: {_joined(told)}.{cut}" if told else ""


def _generation(config: Mapping[str, Any]) -> str:
    """How texts were written, where any metric read texts."""
    ways: dict[str, None] = {}
    for body in config["metrics"].values():
        if canonical(str(body["handler"])) in TEXTS:
            d = Decoding.from_config(body.get("generation_args"))
            sampled = f"sampled at temperature {d.temperature:g}, top-p {d.top_p:g}, seed {d.seed}"
            way = f"{sampled if d.do_sample else 'greedily'}, at most {d.max_new_tokens} new tokens"
            ways[", ".join([way, *(f"{name} {value}" for name, value in d.sampler)])] = None
    return f"Texts were generated {' and '.join(ways)}." if ways else ""


def _definitions(about: Mapping[str, Any]) -> str:
    """Each metric that was asked for, by its formula, its settings and what the dialect says of it."""
    config = about["config"]
    dialect = DIALECTS.get(about["dialect"]["name"])
    by_formula: dict[str, list[str]] = {}
    points: dict[str, None] = {}
    for name in config["top"]:
        body = config["metrics"].get(name) or {}
        handler = canonical(str(body.get("handler", "")))
        card = CARDS.get(handler)
        settings = {k: v for k, v in body.items() if k not in RESERVED and isinstance(v, (str, int, float)) and v != ""}
        more = f" [{', '.join(f'{k} {v}' for k, v in settings.items())}]" if settings else ""
        by_formula.setdefault(f"{card.formula if card else f'the function {handler}'}{more}", []).append(name)
        if dialect is not None and handler in HANDLERS:
            points |= dict.fromkeys(f"{k}: {v}" for k, v in dialect_points(handler, dialect).items())
    told = [f"{', '.join(names)}: {formula}" for formula, names in by_formula.items()]
    note = "lp_t is the log-probability of the t-th of an answer's n tokens. " if any("lp_t" in t for t in told) else ""
    by = f" In this dialect: {'; '.join(points)}." if points else ""
    return f"Metrics: {note}{'; '.join(told)}.{by}"


def _intervals(run: Path) -> str:
    """From the file of intervals: level, method, how many, and of what; and which numbers have none."""
    file = next(iter(sorted(run.glob("*_STATS.json"))), None)
    stats: Mapping[str, Any] = read_ours(file, dict[str, Any]) if file else {}
    ways: dict[str, list[str]] = {}
    without: dict[str, list[str]] = {}
    for name, one in stats.items():
        if not one.get("interval"):
            without.setdefault(str(one.get("reason") or "not defined for it"), []).append(name)
            continue
        draws = f", {one['resamples']:,} samples, seed {SEED}" if one.get("resamples") else ""
        units = f", {counted(one['clusters'], 'cluster')}" if one.get("clusters") else ""
        ways.setdefault(f"{100 * one['level']:.0f} % by {one['method']}{draws}{units}", []).append(name)
    lacking = "; ".join(f"{', '.join(names)} ({why})" for why, names in without.items())
    if not ways:
        return "No intervals were computed" + (f": {'; '.join(without)}." if without else ".")
    shown = [way if len(ways) == 1 else f"{way} ({', '.join(names)})" for way, names in ways.items()]
    return f"Intervals: {'; '.join(shown)}." + (f" Without an interval: {lacking}." if lacking else "")


def _references(runs: Mapping[Path, Mapping[str, Any]]) -> str:
    files = {path: digest for a in runs.values() for path, digest in (a.get("retain_logs") or {}).items()}
    if not files:
        return ""
    told = [
        f"{PurePath(path).parent.name}/{PurePath(path).name} (SHA-256 {digest[:12]})" for path, digest in files.items()
    ]
    return f"Comparisons are with the retain model's results {_joined(told)}."


def _absent(about: Mapping[str, Any]) -> str:
    missing = about.get("unavailable") or {}
    return f"Not computed: {'; '.join(f'{m} ({why})' for m, why in missing.items())}." if missing else ""


# ---- layers and attacks ------------------------------------------------------------------------------------------


def _depth(runs: Mapping[Path, Mapping[str, Any]]) -> str:
    about = next(iter(runs.values()))
    c = about["config"]
    models = {role: m for role, m in about["models"].items() if role in ("full", "retain")}
    measured = [m for role, m in about["models"].items() if role not in models]
    layers = "all layers" if not c["layers"] else f"layers {', '.join(map(str, c['layers']))}"
    limit = f", the first {c['limit']} rows" if c.get("limit") else ""
    return (
        f"The depth score (UDS) of {_models(measured)} was measured with vestige {about['versions'].get('vestige')} "
        f"({_versions(about)}): hidden states of the retain model {_models([models['retain']])} and of each unlearned "
        f"model were patched into the full model {_models([models['full']])} at {layers} "
        f"({c['patch_scope']} positions, {c['em_scope']} tokens scored, last layer {c['last_layer']}, "
        f"{c['tokenization']} tokenisation); layers count where the retain model's states lower the log-probability by "
        f"more than {c['delta_threshold']:g}. Data: {PurePath(str(c['data'])).name} "
        f"({counted(about['data']['rows'], 'row')}{limit}). {_depth_intervals(next(iter(runs)), c)}"
    )


def _depth_intervals(run: Path, config: Mapping[str, Any]) -> str:
    """As its summaries have them: of clusters, of rows, or none."""
    files = sorted([*run.glob("summary.json"), *run.glob("*/summary.json")])
    found = [one for file in files if "avg_uds" in (one := read_ours(file, dict[str, Any]))]
    if not any(one.get("interval") for one in found):
        return "No interval was computed."
    if found[0].get("clusters"):
        by = f"{found[0]['cluster']}, {counted(found[0]['clusters'], 'cluster')}"
        return f"Intervals: 95 % by Student's t over clusters of rows ({by})."
    return f"Intervals: 95 % by {config['resamples']:,} bootstrap samples of rows, seed {config['seed']}."


def _stress(runs: Mapping[Path, Mapping[str, Any]]) -> str:
    """Attacks with the settings that were in effect, which stress.json keeps for each."""
    about = next(iter(runs.values()))
    told: dict[str, None] = {}
    for run, one in runs.items():
        for row in read_ours(run / "stress.json", dict[str, Any])["rows"]:
            if row["attack"] != "none" and row["model"] == "model":
                kept = {k: v for k, v in row["settings"].items() if isinstance(v, (str, int, float)) and k != "device"}
                unit = (one["attacks"].get(row["attack"]) or {}).get("unit", "")
                size = f" {row['budget']:g} {unit}" if unit and row["budget"] else ""
                told[f"{row['attack']}{size} ({', '.join(f'{k} {v}' for k, v in kept.items())})"] = None
    c = about["config"]
    control = (
        f" {PurePath(str(c['retain_model'])).name} was attacked alike as the control." if c["retain_model"] else ""
    )
    half = " Every other forget row was taught, the rest measured." if c.get("held_out") else ""
    return (
        f"{PurePath(str(c['model'])).name} was attacked with vestige {about['versions'].get('vestige')} "
        f"({_versions(about)}): {'; '.join(told)}; after each attack {_joined(list(c['metrics']))} "
        f"{'was' if len(c['metrics']) == 1 else 'were'} measured again, with the definitions above.{control}{half}"
    )


def _joined(words: Sequence[str]) -> str:
    return " and ".join(words) if len(words) < 3 else f"{', '.join(words[:-1])} and {words[-1]}"

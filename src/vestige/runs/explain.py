"""`vestige ls`: what there is, one line each.

`vestige explain NAME`: a metric, a handler or a dialect in plain text: formula, direction, source, differences.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from vestige.configs.compose import config_directories, options
from vestige.errors import unknown_name
from vestige.metrics.cards import CARDS, CHAT, KNOWN, facts_of, full_name, short
from vestige.metrics.dialects import DIALECTS, Dialect
from vestige.metrics.explanations import PARTS
from vestige.show.tables import table
from vestige.suites.dialect_points import BOUNDARY, MASK, PUBLISHED, departure, dialect_points
from vestige.suites.registry import HANDLERS, canonical
from vestige.suites.spec import RESERVED


def listing(what: str, config_dir: Path | None) -> str:
    directories = config_directories(config_dir)
    sections: dict[str, Callable[[], list[tuple[str, str]]]] = {
        "suites": lambda: _suites(directories),
        "metrics": lambda: _metrics(directories),
        "handlers": lambda: sorted((h.name, _with_source(h.name, h.doc)) for h in HANDLERS.values()),
        "dialects": lambda: [(d.name, d.doc) for d in DIALECTS.values()],
        "models": lambda: [(n, _hub_id(directories, n)) for n in options("model", directories)],
        "datasets": lambda: [(n, "") for n in options("data/datasets", directories)],
        "methods": lambda: _methods(directories),
        "experiments": lambda: [(n, "") for n in options("experiment", directories)],
    }
    if what != "all" and what not in sections:
        raise unknown_name("thing to list", what, [*sections, "all"])
    chosen = list(sections) if what == "all" else [what]
    return "\n\n".join(_section(name, sections[name]()) for name in chosen)


def _methods(directories: list[Path]) -> list[tuple[str, str]]:
    """Unlearning methods, each with the comment that opens its configuration."""
    files = {p.stem: p for d in reversed(directories) for p in (d / "trainer").glob("*.yaml") if p.stem != "finetune"}
    return [(n, next(iter(re.findall(r"^# (.*)$", files[n].read_text(), re.MULTILINE)), "")) for n in sorted(files)]


def _section(name: str, rows: list[tuple[str, str]]) -> str:
    width = max((len(r[0]) for r in rows), default=0)
    return "\n".join([f"{name}:", *(f"  {a.ljust(width)}  {b}".rstrip() for a, b in rows)])


def _with_source(name: str, doc: str) -> str:
    facts = facts_of(name)
    return f"{doc} [{facts.source}]" if facts else doc


def _suites(directories: list[Path]) -> list[tuple[str, str]]:
    out = []
    for directory in directories:
        for path in sorted((directory / "eval").glob("*.yaml")):
            comment = re.findall(r"^# (?!@package)(.*)$", path.read_text(), re.MULTILINE)
            out.append((path.stem, comment[0] if comment else ""))
    return out


def metric_configs(directories: list[Path]) -> dict[str, dict[str, dict[str, Any]]]:
    """Suite -> metric -> its config as written, the user's directories before ours."""
    from omegaconf import OmegaConf

    out: dict[str, dict[str, dict[str, Any]]] = {}
    for directory in reversed(directories):
        for path in sorted((directory / "eval").glob("*_metrics/*.yaml")):
            body = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
            assert isinstance(body, dict)
            package = re.search(r"@package\s+\S*?([^.\s]+)$", path.read_text(), re.MULTILINE)
            suite = path.parent.name.removesuffix("_metrics")
            out.setdefault(suite, {})[package[1] if package else path.stem] = {str(k): v for k, v in body.items()}
    return out


def _metrics(directories: list[Path]) -> list[tuple[str, str]]:
    """Each metric of each suite: its handler's line, and on which data or parents."""
    out = {}
    for metrics in metric_configs(directories).values():
        for name, body in metrics.items():
            handler = str(body.get("handler", ""))
            doc = HANDLERS[handler].doc if handler in HANDLERS else handler
            on = ", ".join(body.get("datasets") or body.get("pre_compute") or [])
            out[name] = f"{doc} ({on})" if on else doc
            key = short(name)
            if key != name and key in KNOWN:
                out[name] += f" [short: {key}]"
    return sorted(out.items())


def _hub_id(directories: list[Path], name: str) -> str:
    for directory in directories:
        path = directory / "model" / f"{name}.yaml"
        if path.is_file():
            found = re.search(r"pretrained_model_name_or_path:\s*[\"']?([^\s\"',}]+)", path.read_text())
            return found[1] if found and found[1] != "???" else "any checkpoint, with its own chat template"
    return ""


# ==== explain =======================================================================================================

WIDTH = 110


@dataclass(frozen=True)
class ExplainedMetric:
    """A handler, alone or as a suite uses it."""

    name: str
    handler: str
    suites: Mapping[str, Mapping[str, Any]]  # suite -> the metric's config there
    asked_as: str = ""  # the name it was asked by

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the first suite that has the metric."""
        body = next(iter(self.suites.values()), {})
        return {k: v for k, v in body.items() if k not in RESERVED and not (isinstance(v, str) and "${" in v)}


def explain(name: str | None, config_dir: Path | None = None) -> str:
    """What `name` is; without a name, what can be explained."""
    directories = config_directories(config_dir)
    configs = metric_configs(directories)
    if name is None:
        return _everything(configs)
    if name in DIALECTS:
        return explain_dialect(DIALECTS[name])
    if name in PARTS:
        return explain_part(name)
    handler, asked = canonical(name), name
    known = {*HANDLERS, *(m for metrics in configs.values() for m in metrics)}
    name = name if name in known or handler in HANDLERS else full_name(name)
    suites = {suite: metrics[name] for suite, metrics in configs.items() if name in metrics}
    if suites:
        handler = canonical(str(next(iter(suites.values())).get("handler", handler)))
    if handler not in HANDLERS:
        names = {*known, *DIALECTS, *PARTS}
        raise unknown_name("metric, handler or dialect", asked, names, lists="`vestige explain` alone")
    return explain_metric(ExplainedMetric(name, handler, suites, asked))


def _everything(configs: Mapping[str, Mapping[str, Any]]) -> str:
    sections = {
        "handlers (formulas)": sorted(HANDLERS),
        "numbers inside trajectory_metrics": list(PARTS),
        "dialects (sets of definitions)": list(DIALECTS),
        **{f"metrics of {suite}": sorted(metrics) for suite, metrics in configs.items()},
        "short names (of published tables)": [f"{k} = {v.metric}" for k, v in KNOWN.items() if v.ours],
    }
    lines = ["Write `vestige explain NAME`. NAME is one of:"]
    for title, names in sections.items():
        lines += ["", f"{title}:", *_wrapped(", ".join(names), "  ")]
    return "\n".join(lines)


def _wrapped(text: str, indent: str, first: str | None = None) -> list[str]:
    """Lines of at most WIDTH; names are not broken at hyphens."""
    start = indent if first is None else first
    return textwrap.wrap(text, WIDTH, initial_indent=start, subsequent_indent=indent, break_on_hyphens=False)


def _entry(head: str, text: str) -> list[str]:
    return _wrapped(text, " " * 9, f"{head.ljust(8)} ") if text else []


def explain_metric(metric: ExplainedMetric) -> str:
    handler = HANDLERS[metric.handler]
    title = metric.name if metric.asked_as in ("", metric.name) else f"{metric.asked_as} ({metric.name})"
    lines = [f"{title}: {handler.doc}", ""]
    for suite, body in metric.suites.items():
        lines += _wrapped(in_suite(suite, body), " " * 9)
    words = CARDS.get(metric.handler)
    if words is None:
        return "\n".join([*lines, "A handler from a plug-in: its documentation line is all that is known here."])
    lines += _entry("formula", words.formula)
    lines += _entry("high", words.high) + _entry("low", words.low)
    lines += _entry("tokens", words.tokens) + _entry("note", words.note) + _entry("short", _of_short_name(metric))
    facts = facts_of(metric.handler)
    lines += _entry("source", words.source or (facts.source if facts else ""))
    lines += ["", *where_dialects_differ(metric.handler)]
    return "\n".join(lines)


def explain_part(name: str) -> str:
    """A number inside a trajectory's result."""
    words = PARTS[name]
    lines = [f"{name}: in the results of trajectory_metrics, under `revocations`", ""]
    for head in ("formula", "high", "low", "tokens", "note"):
        lines += _entry(head, getattr(words, head))
    return "\n".join(lines)


def _of_short_name(metric: ExplainedMetric) -> str:
    """What the short name of published tables means, and where this metric is another number."""
    key = short(metric.asked_as or metric.name)
    if key not in KNOWN:
        return ""
    known = KNOWN[key]
    where = f", dialect {PUBLISHED}" if known.protocol == CHAT else ""
    words = [f"{key} in published tables is {known.metric} of tofu{where}.", *([known.note] if known.note else [])]
    settings = metric.settings if metric.name == known.metric else known.settings
    apart = {d: departure(key, metric.handler, settings, d) for d in DIALECTS if known.ours}
    refused = [d for d, found in apart.items() if found.always]
    if refused:
        why = dict.fromkeys(said for d in refused for said in apart[d].always)
        words.append(f"Asking for it as {key} is refused in {', '.join(refused)} ({'; '.join(why)}).")
    if some := [d for d, found in apart.items() if d not in refused and found.for_some_rows]:
        why = dict.fromkeys(said for d in some for said in apart[d].for_some_rows)
        words.append(f"For some rows it differs in {', '.join(some)} ({'; '.join(why)}).")
    return " ".join(words)


def in_suite(suite: str, body: Mapping[str, Any]) -> str:
    """How a suite uses a handler: its data, parents and settings."""
    parts = [f"in {suite}: handler {body.get('handler')}"]
    for key, word in (("datasets", "data"), ("pre_compute", "parents"), ("reference_logs", "compared with")):
        if body.get(key):
            parts.append(f"{word} {', '.join(body[key])}")
    settings = {k: v for k, v in body.items() if k not in RESERVED and not isinstance(v, (dict, list))}
    parts += [f"{k} = {v}" for k, v in settings.items() if "${" not in str(v)]
    return "; ".join(parts)


def where_dialects_differ(handler: str) -> list[str]:
    """The points on which dialects disagree about this handler, as a table."""
    points = {name: dialect_points(handler, d) for name, d in DIALECTS.items()}
    first = next(iter(points.values()))
    if not first:
        return ["The dialects differ only through the parents' values: explain those."]
    differing = [p for p in first if len({points[name][p] for name in points}) > 1]
    if not differing:
        return ["All dialects say the same."]
    rows = [[p, *(points[name][p] for name in points)] for p in differing]
    return ["Where the dialects differ:", *_indented(table(rows, ["point", *points]))]


def _indented(text: str) -> list[str]:
    return [f"  {line}" for line in text.splitlines()]


def explain_dialect(d: Dialect) -> str:
    """A dialect's whole table."""
    lines = [f"{d.name} (dialect, version {d.version}): {d.doc}", ""]
    for f in fields(d):
        if f.name in WORDS:
            lines += _wrapped(_words(getattr(d, f.name)), " " * 26, f"{WORDS[f.name].ljust(25)} ")
    return "\n".join(lines)


WORDS = {
    "drop_last": "last label left out in",
    "float32_shares": "shares in float32",
    "extraction_floor": "extraction floor of 1/n",
    "empty": "value without tokens",
    "mask": "attention mask",
    "boundary": "labels begin",
    "written_answer": "answer text as written",
    "gradnorm_train_mode": "gradients in train mode",
    "rouge_stemmer": "ROUGE with a stemmer",
    "published_references": "published references",
    "rows": "rows read by default",
}


def _words(value: Any) -> str:
    if value is None:
        return "all"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, frozenset):
        return ", ".join(sorted(value)) or "no handler"
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {v:g}" for k, v in sorted(value.items())) or "missing, with a reason"
    return MASK.get(value) or BOUNDARY.get(value) or str(value)

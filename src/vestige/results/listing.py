"""`vestige ls`: what there is, one line each."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vestige.configs.compose import config_directories, options
from vestige.errors import unknown_name
from vestige.metrics.cards import KNOWN, facts_of, short
from vestige.metrics.dialects import DIALECTS
from vestige.suites.registry import HANDLERS


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

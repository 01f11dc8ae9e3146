"""One page per metric of the site, made from its card: the same facts as `vestige explain`, with links to the suites.

Comes in: the registries of handlers and cards, and the suites' configuration. Goes out: Markdown by page name, for
build.py, which stages it beside the pages that people wrote.
"""

from __future__ import annotations

from vestige.configs.compose import PACKAGE_DIR
from vestige.metrics.cards import CARDS, Card, facts_of
from vestige.runs.explain import in_suite, metric_configs, where_dialects_differ
from vestige.suites import handlers  # noqa: F401  (registers the built-in handlers)
from vestige.suites.registry import HANDLERS, canonical

INDEX = "all_metrics"
KNOWS = {"high": "a high value", "low": "a low value"}


def page_of(handler: str) -> str:
    return f"metric_{handler}"


def metric_pages() -> dict[str, str]:
    """Every page, by name: one per handler with a card, and the list of them."""
    used = suites_by_handler()
    named = sorted(handler for handler in HANDLERS if handler in CARDS)
    pages = {page_of(h): metric_page(h, CARDS[h], used.get(h, {})) for h in named}
    rows = [
        f"| [{h}]({page_of(h)}.md) | {CARDS[h].title or HANDLERS[h].doc} | {', '.join(used.get(h, {}))} |"
        for h in named
    ]
    listed = ["```{toctree}", ":hidden:", "", *(page_of(h) for h in named), "```"]
    head = [
        "# Every metric",
        "",
        "One page per handler, made from its card; `vestige explain NAME` prints the same.",
        "",
    ]
    table = [
        "| handler | what it tells | metrics that use it |",
        "|---|---|---|",
        *(row.replace("{answers}", "answers") for row in rows),
    ]
    pages[INDEX] = "\n".join([*head, *table, "", *listed, ""])
    return pages


def suites_by_handler() -> dict[str, dict[str, dict[str, dict[str, object]]]]:
    """handler -> metric -> suite -> the metric's configuration there."""
    out: dict[str, dict[str, dict[str, dict[str, object]]]] = {}
    for suite, metrics in metric_configs([PACKAGE_DIR]).items():
        for name, body in metrics.items():
            handler = canonical(str(body.get("handler", name)))
            out.setdefault(handler, {}).setdefault(name, {})[suite] = dict(body)
    return out


def metric_page(handler: str, card: Card, used: dict[str, dict[str, dict[str, object]]]) -> str:
    facts = facts_of(handler)
    knows = card.knows or (facts.knows if facts else "")
    lines = [f"# {handler}", "", HANDLERS[handler].doc, "", "| | |", "|---|---|"]
    for head, text in {
        "formula": card.formula,
        "high": card.high,
        "low": card.low,
        "still knows": KNOWS.get(knows, card.no_end),
        "what enters": card.tokens,
        "note": card.note,
        "source": card.source or (facts.source if facts else ""),
    }.items():
        if text:
            lines.append(f"| {head} | {cell(text)} |")
    if used:
        lines += ["", "## In the suites", "", "| metric | how |", "|---|---|"]
        lines += [
            f"| `{m}` | {cell(in_suite(suite, body))} |" for m, places in used.items() for suite, body in places.items()
        ]
    lines += ["", "## Dialects", "", *fenced(where_dialects_differ(handler))]
    return "\n".join([*lines, ""])


def cell(text: str) -> str:
    """Plain text in a table: nothing in it is Markdown, HTML or a column."""
    for sign in "\\`*_<>[]{}|#$~^":
        text = text.replace(sign, f"\\{sign}")
    return " ".join(text.split())


def fenced(lines: list[str]) -> list[str]:
    return ["```text", *lines, "```"]

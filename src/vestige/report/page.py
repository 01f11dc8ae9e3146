"""The page: one HTML file that holds its data, its scripts and its style, and asks nothing of the network.

The scripts in page/ are ordinary modules. They are put together here: each becomes a function that returns what it
exports, in an order in which nothing is used before it is there. The policy in the page's head allows these very
scripts, by hash, and no others, so that no text in the data can become one.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Callable
from pathlib import Path
from string import Template
from typing import Any

ASSETS = Path(__file__).parent / "page"
FIRST = "main"  # the module that starts the page
STYLES = ("base", "controls", "audit", "tables", "screens")  # later ones have the last word

_IMPORT = re.compile(r'^import (?:\* as (\w+)|(\{[^}]*\})) from "\./(\w+)\.js";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const|let|class) (\w+))", re.MULTILINE)


def render_page(report: dict[str, Any], *, live: str = "") -> str:
    """The whole page as text. `live`: the version that a viewer serves; the page may ask it for a newer one."""
    script = bundle()
    style = "".join((ASSETS / f"style_{name}.css").read_text("utf-8") for name in STYLES)
    parts = {
        "title": html.escape(str(report.get("title", "vestige")), quote=True),
        "policy": policy([script], [style], bool(live)),
        "live": html.escape(live, quote=True),
        "style": style,
        "data": data_text(report),
        "script": script,
    }
    return Template((ASSETS / "page.html").read_text("utf-8")).substitute(parts)


def data_text(report: dict[str, Any]) -> str:
    """JSON that cannot end its script element: no `<`, and no line separators that HTML or scripts read differently."""
    text = json.dumps(report, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\x00", "\\u0000")


def policy(scripts: list[str], styles: list[str], live: bool = False) -> str:
    """Only these scripts and styles, no style attributes in markup, and no connections but those of a live page."""
    rules = {
        "default-src": "'none'",
        "script-src": " ".join(map(_hash, scripts)),
        "style-src-elem": " ".join(map(_hash, styles)),
        "img-src": "data: blob:",
        "connect-src": "'self'" if live else "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode()}'"


def bundle(read: Callable[[str], str] | None = None) -> str:
    """All modules that main.js needs, as one script."""
    read = read or (lambda name: (ASSETS / f"{name}.js").read_text("utf-8"))
    done: dict[str, str] = {}
    _add(FIRST, read, done, ())
    return '"use strict";\n' + "\n".join(done.values())


def _add(name: str, read: Callable[[str], str], done: dict[str, str], path: tuple[str, ...]) -> None:
    if name in path:
        raise ValueError(f"page scripts import each other in a circle: {' -> '.join((*path, name))}")
    if name in done:
        return
    text = read(name)
    for needed in _IMPORT.findall(text):
        _add(needed[2], read, done, (*path, name))
    done[name] = _as_function(name, text)


def _as_function(name: str, text: str) -> str:
    exported = _EXPORT.findall(text)
    body = _EXPORT.sub("", _IMPORT.sub(lambda m: f"const {m[1] or m[2]} = module_{m[3]};", text))
    return f"const module_{name} = (() => {{\n{body}\nreturn {{ {', '.join(exported)} }};\n}})();"

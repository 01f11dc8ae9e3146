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

_IMPORT = re.compile(r'^import (?:\* as (\w+)|(\{[^}]*\})) from "\./(\w+)\.js";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const|let|class) (\w+))", re.MULTILINE)


def render_page(report: dict[str, Any], *, live: str = "") -> str:
    """The whole page as text. `live`: the version that a viewer serves; the page may ask it for a newer one."""
    script = bundle()
    style = _asset("style.css")
    parts = {
        "title": html.escape(str(report.get("title", "vestige")), quote=True),
        "policy": policy(script, style, bool(live)),
        "live": html.escape(live, quote=True),
        "style": style,
        "data": data_text(report),
        "script": script,
    }
    return Template(_asset("page.html")).substitute(parts)


def _asset(name: str) -> str:
    return (ASSETS / name).read_text("utf-8")


def data_text(report: dict[str, Any]) -> str:
    """JSON that cannot end its script element: no `<`, and no line separators that HTML or scripts read differently."""
    text = json.dumps(report, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\x00", "\\u0000")


def policy(script: str, style: str, live: bool = False) -> str:
    """Only this script and style, no style attributes in markup, and no connections but those of a live page."""
    hashes = []
    for text in (script, style):
        digest = base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode()
        hashes.append(f"'sha256-{digest}'")
    rules = {
        "default-src": "'none'",
        "script-src": hashes[0],
        "style-src-elem": hashes[1],
        "img-src": "data: blob:",
        "connect-src": "'self'" if live else "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def bundle(read: Callable[[str], str] = lambda name: _asset(f"{name}.js")) -> str:
    """All modules that main.js needs, as one script; each comes after those that it imports."""
    functions: dict[str, str] = {}

    def add(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            raise ValueError(f"page scripts import each other in a circle: {' -> '.join((*path, name))}")
        if name in functions:
            return
        text = read(name)
        for _, _, needed in _IMPORT.findall(text):
            add(needed, (*path, name))
        body = _IMPORT.sub(lambda m: f"const {m[1] or m[2]} = module_{m[3]};", text)
        names = ", ".join(_EXPORT.findall(text))
        functions[name] = f"const module_{name} = (() => {{\n{_EXPORT.sub('', body)}\nreturn {{ {names} }};\n}})();"

    add(FIRST, ())
    return '"use strict";\n' + "\n".join(functions.values())

"""The documentation as a site: plain files that open from disk.

    python docs/site/build.py [OUT]      (make docs; OUT is `site` unless said)

    *.md --Page--> body, headings --page_html--> OUT/*.html, search.js
    src/vestige --reference--> api.html, one section a module, from docstrings

Links between pages become links between files; a link that leads nowhere stops the build.
"""

from __future__ import annotations

import ast
import html
import json
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
SOURCE = ROOT / "src" / "vestige"

# What stands in the margin, in the order in which a newcomer reads. A page that is in no group stops the build.
GROUPS = {
    "Start": ["README", "tutorial", "lab", "own_data", "models", "data", "open_unlearning"],
    "Measure": ["evaluate", "metrics", "statistics", "diffusion", "depth", "collapse", "lm_eval"],
    "Make and attack": ["unlearn", "stress", "real_model", "sweep"],
    "Results": ["results", "report", "report_format", "explain", "diff", "import", "meta", "parity"],
    "Extend": ["architecture", "howto", "plugins", "configuration", "python", "api"],
    "Trust": ["bench", "faults", "bad_input", "security", "errors", "mutation"],
    "Project": ["CONTRIBUTING", "CHANGELOG"],
}


class BuildError(Exception):
    """Something in the pages is wrong; the message says where."""


@dataclass
class Page:
    """One page on its way to HTML."""

    name: str
    source: Path
    title: str = ""
    body: str = ""
    headings: list[tuple[int, str, str]] = field(default_factory=list)  # level, anchor, words
    text: str = ""  # for the search

    @property
    def file(self) -> str:
        return "index.html" if self.name == "README" else f"{self.name}.html"


def find_pages() -> dict[str, Page]:
    """Every page there is, by name, in the order of the groups."""
    places = {p.stem: p for p in [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"]}
    places |= {p.stem: p for p in sorted((ROOT / "docs").glob("*.md"))}
    grouped = [name for group in GROUPS.values() for name in group]
    if lost := sorted(set(places) - set(grouped)):
        raise BuildError(f"{', '.join(lost)}: in no group of docs/site/build.py; add it where a reader would look.")
    return {name: Page(name, places[name]) for name in grouped if name in places}


def slug(words: str) -> str:
    """A heading's anchor, as GitHub makes it.

    >>> slug("What is fast, and why")
    'what-is-fast-and-why'
    """
    return re.sub(r"[^\w\- ]", "", words.lower()).strip().replace(" ", "-")


def coloured(code: str, kind: str, _: str = "") -> str:
    try:
        lexer = get_lexer_by_name(kind or "text")
    except ClassNotFound:
        lexer = get_lexer_by_name("text")
    return str(highlight(code, lexer, HtmlFormatter(nowrap=True)))


def parser() -> MarkdownIt:
    return MarkdownIt("commonmark", {"highlight": coloured, "html": True}).enable("table")


def translate(page: Page, pages: dict[str, Page], images: set[Path]) -> None:
    """Fills in a page's body, headings and text."""
    md = parser()
    tokens = md.parse(page.source.read_text(encoding="utf-8"))
    for i, token in enumerate(tokens):
        if token.type == "heading_open":
            words = re.sub(r"[`*]", "", tokens[i + 1].content)
            token.attrSet("id", slug(words))
            page.headings.append((int(token.tag[1]), slug(words), words))
        for child in token.children or []:
            _relink(child, page, pages, images)
    page.title = next((words for level, _, words in page.headings if level == 1), page.name)
    page.body = md.renderer.render(tokens, md.options, {})
    page.text = " ".join(t.content for t in tokens if t.type in ("inline", "fence"))


def _relink(token: Any, page: Page, pages: dict[str, Page], images: set[Path]) -> None:
    name = {"link_open": "href", "image": "src"}.get(token.type)
    if name is None or re.match(r"https?://|mailto:", str(token.attrGet(name))):
        return
    path, _, anchor = str(token.attrGet(name)).partition("#")
    place = (page.source.parent / path).resolve() if path else page.source
    if not place.exists():
        raise BuildError(f"{page.source.name}: the link to {path} leads nowhere.")
    target = next((p for p in pages.values() if p.source == place), None)
    if token.type == "image":
        images.add(place)
        token.attrSet(name, place.name)
    elif target is not None:
        token.attrSet(name, target.file + (f"#{anchor}" if anchor else ""))
    else:  # a file of the repository without a page of its own: only its path is shown
        token.attrSet(name, f"#{place.relative_to(ROOT)}")
        token.attrSet("title", f"{place.relative_to(ROOT)} in the repository")


# ---- the reference ----------------------------------------------------------------------------------------------


def reference() -> Page:
    """One section a module: what it says of itself, then its public functions and classes. Nothing is imported."""
    page = Page("api", SOURCE, "Reference")
    page.headings.append((1, "reference", "Reference"))
    parts = ["<h1 id='reference'>Reference</h1>", f"<p>{_first_words()}</p>"]
    first = SOURCE / "engine" / "api.py"  # what most people call
    for path in [first, *(p for p in sorted(SOURCE.rglob("*.py")) if p not in (first, SOURCE / "__main__.py"))]:
        relative = path.relative_to(SOURCE.parent).with_suffix("")
        name = ".".join(relative.parts).removesuffix(".__init__")
        section = _module(path)
        if section:
            page.headings.append((2, slug(name.replace(".", "-")), name.removeprefix("vestige.")))
            parts.append(f"<h2 id='{slug(name.replace('.', '-'))}'><code>{name}</code></h2>{section}")
    page.body = "\n".join(parts)
    page.text = re.sub(r"<[^>]+>", " ", page.body)
    return page


def _first_words() -> str:
    return (
        "Made from docstrings. <code>vestige.evaluate</code>, <code>vestige.collapse</code> and "
        "<code>vestige.Result</code> are the stable interface; the rest may move between releases."
    )


def _module(path: Path) -> str:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    doc = ast.get_docstring(tree)
    items = [node for node in tree.body if _is_public(node)]
    if not doc and not items:
        return ""
    return _words(doc) + "".join(_item(node) for node in items)


def _is_public(node: ast.stmt) -> bool:
    named = isinstance(node, ast.FunctionDef | ast.ClassDef)
    return named and not node.name.startswith("_") and bool(ast.get_docstring(node))  # type: ignore[union-attr]


def _item(node: Any) -> str:
    doc = _words(ast.get_docstring(node))
    if isinstance(node, ast.FunctionDef):
        return f"<section><pre class='sig'>{coloured(_signature(node), 'python')}</pre>{doc}</section>"
    body = [n for n in node.body if isinstance(n, ast.AnnAssign)]
    lines = [f"class {node.name}:", *(f"    {ast.unparse(n)}" for n in body)]
    methods = "".join(_item(n) for n in node.body if isinstance(n, ast.FunctionDef) and _is_public(n))
    return f"<section><pre class='sig'>{coloured(chr(10).join(lines), 'python')}</pre>{doc}{methods}</section>"


def _signature(node: ast.FunctionDef) -> str:
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"def {node.name}({ast.unparse(node.args)}){returns}"


def _words(doc: str | None) -> str:
    """A docstring: its examples and drawings as they are, the rest as paragraphs."""
    out = []
    for block in re.split(r"\n\s*\n", doc or ""):
        if block.lstrip().startswith(">>>") or block.startswith("    "):
            out.append(f"<pre>{coloured(block, 'pycon' if '>>>' in block else 'text')}</pre>")
        elif block.strip():
            words = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(block, quote=False))
            out.append(f"<p>{words}</p>")
    return "\n".join(out)


# ---- the files --------------------------------------------------------------------------------------------------


def page_html(page: Page, pages: dict[str, Page]) -> str:
    slots = {
        "title": html.escape(page.title),
        "nav": "".join(_navigation(page, pages)),
        "here": "".join(f"<a href='#{a}'>{html.escape(w)}</a>" for level, a, w in page.headings if level == 2),
        "body": page.body,
    }
    template = (HERE / "page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda m: slots[m[1]], template)


def _navigation(page: Page, pages: dict[str, Page]) -> Iterator[str]:
    for group, names in GROUPS.items():
        yield f"<h4>{group}</h4>"
        for name in names:
            if name in pages:
                mark = " aria-current='page'" if name == page.name else ""
                words = "vestige" if name == "README" else pages[name].title.split(":")[0]
                yield f"<a href='{pages[name].file}'{mark}>{html.escape(words)}</a>"


def search_data(pages: dict[str, Page]) -> str:
    rows = [
        {"file": p.file, "title": p.title, "heads": [[a, w] for _, a, w in p.headings], "text": p.text}
        for p in pages.values()
    ]
    return "const PAGES = " + json.dumps(rows, ensure_ascii=False).replace("</", "<\\/") + ";\n"


def check_anchors(pages: dict[str, Page]) -> None:
    known = {p.file: {a for _, a, _ in p.headings} for p in pages.values()}
    for page in pages.values():
        for file, anchor in re.findall(r'href="([\w.]+\.html)#([^"]+)"', page.body):
            if anchor not in known.get(file, {anchor}):
                raise BuildError(f"{page.source.name}: {file} has no heading '{anchor}'.")


def build(out: Path) -> list[Path]:
    """Writes the site into `out`, which is emptied first, and returns its files."""
    pages, images = find_pages(), set[Path]()
    for page in pages.values():
        translate(page, pages, images)
    pages["api"] = reference()
    check_anchors(pages)
    if out.exists() and any(out.iterdir()) and not (out / "search.js").exists():
        raise BuildError(f"{out} holds something else than this site; name another folder.")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    for page in pages.values():
        (out / page.file).write_text(page_html(page, pages), encoding="utf-8")
    for image in images:
        shutil.copy(image, out / image.name)
    style = (HERE / "style.css").read_text(encoding="utf-8")
    colours = HtmlFormatter(style="friendly").get_style_defs("pre")
    dark = HtmlFormatter(style="native").get_style_defs("pre")
    (out / "style.css").write_text(f"{style}\n{colours}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n")
    (out / "search.js").write_text(search_data(pages) + (HERE / "search.js").read_text(encoding="utf-8"))
    return sorted(out.iterdir())


if __name__ == "__main__":
    place = Path(sys.argv[1] if len(sys.argv) > 1 else "site")
    try:
        files = build(place)
    except BuildError as error:
        sys.exit(f"docs: {error}")
    print(f"{len(files)} files in {place}; open {place / 'index.html'}")

"""The documentation as a site: Sphinx with MyST (Markdown) and the theme furo. Plain files that open from disk.

    python docs/site/build.py [OUT]      (make docs; OUT is `site` unless given)

    README, AGENTS, CONTRIBUTING, CHANGELOG, docs/*.md --staged--> one folder of pages --Sphinx--> OUT/VERSION/*.html
    src/vestige --reference--> api.md, one section per module, from docstrings
    src/vestige/options.py --flags--> flags.md, the help of every verb
    cards --metric_pages.py--> one page per metric
    OUT/index.html leads to the newest version; OUT/versions.js lists all that were built there, for the menu

Sphinx runs with warnings as errors: a link or a heading that leads nowhere stops the build.
"""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from vestige import __version__
from vestige.cli import parser
from vestige.errors import UserError
from vestige.runs.directory import install, open_run, scratch
from vestige.runs.manifest import is_run

sys.path.insert(0, str(Path(__file__).parent))
from metric_pages import INDEX, metric_pages

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCE = ROOT / "src" / "vestige"

MADE = ("api", "flags", INDEX)  # pages that no file holds
# What is in the margin, in the order in which a newcomer reads. A page that is in no group stops the build.
GROUPS = {
    "Start": ["README", "tutorial", "notebook", "questions", "lab", "data", "models"],
    "Measure": ["evaluate", "flags", "metrics", INDEX, "statistics", "diffusion", "depth", "collapse"],
    "Make and attack": ["unlearn", "sweep"],
    "Results": ["results", "report", "verdict", "meta", "faults", "bench"],
    "Extend": ["howto", "configuration", "python", "other_tools", "architecture", "api"],
    "Project": ["CONTRIBUTING", "AGENTS", "CHANGELOG"],
}  # fmt: skip
SETTINGS = """
project = "vestige"
html_title = "vestige VERSION"
extensions = ["myst_parser", "sphinx_copybutton"]
html_theme = "furo"
templates_path = ["_templates"]
html_sidebars = {"**": ["sidebar/brand.html", "versions.html", "sidebar/search.html", "sidebar/scroll-start.html",
                        "sidebar/navigation.html", "sidebar/scroll-end.html"]}
copybutton_prompt_text = r">>> |\\.\\.\\. |\\$ "
copybutton_prompt_is_regexp = True
copybutton_exclude = ".linenos, .gp, .go"
html_copy_source = html_show_sourcelink = html_show_sphinx = False
myst_heading_anchors = 6
smartquotes = False
suppress_warnings = ["misc.highlighting_failure"]
"""


# The menu of versions. Its list is a script beside the versions, not something to be fetched, so it works from disk;
# a version that was built alone shows only itself.
VERSION_MENU = """<div class="sidebar-search" style="padding: 0 1rem 0.5rem">
<label>Version <select id="versions" onchange="location.href = '../' + this.value + '/index.html'">
<option selected>VERSION</option></select></label></div>
<script src="../versions.js"></script>
<script>
for (const name of window.VESTIGE_VERSIONS || []) {
  if (name !== "VERSION") document.getElementById("versions").add(new Option(name));
}
</script>
"""
FRONT = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>vestige</title>
<meta http-equiv="refresh" content="0; url=VERSION/index.html"></head>
<body><a href="VERSION/index.html">vestige VERSION</a></body></html>
"""


class BuildError(Exception):
    """Something in the pages is wrong; the message says where."""


def find_pages() -> dict[str, Path]:
    """Every page there is, by name, in the order of the groups."""
    places = {p.stem: p for p in (ROOT / f"{name}.md" for name in ("README", "AGENTS", "CHANGELOG", "CONTRIBUTING"))}
    places |= {p.stem: p for suffix in ("md", "ipynb") for p in sorted((ROOT / "docs").glob(f"*.{suffix}"))}
    grouped = [name for group in GROUPS.values() for name in group]
    if lost := sorted(set(places) - set(grouped)):
        raise BuildError(f"{', '.join(lost)}: in no group of docs/site/build.py; add it where a reader would look.")
    return {name: places[name] for name in grouped if name in places}


def page_text(page: Path) -> str:
    """A page as Markdown; of a notebook its cells, one after the other."""
    text = page.read_text(encoding="utf-8")
    if page.suffix != ".ipynb":
        return text
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(text)["cells"]]
    return "\n\n".join(f"```python\n{body}\n```" if kind == "code" else body for kind, body in cells) + "\n"


def page_name(name: str) -> str:
    return "index" if name == "README" else name


def staged(page: Path, pages: dict[str, Path], images: set[Path]) -> str:
    """A page's text with its links as they are when all pages and pictures lie in one folder."""
    names = {path.resolve(): page_name(name) for name, path in pages.items()}

    def relinked(match: re.Match[str]) -> str:
        words, target, anchor = match["words"], match["target"], match["anchor"] or ""
        place = (page.parent / target).resolve()
        if place in names:
            return f"[{words}]({names[place]}.md{anchor})"
        if match["bang"] and place.is_file():
            images.add(place)
            return f"![{words}]({place.name})"
        if not place.exists():
            raise BuildError(f"{page.name}: the link to {target} leads nowhere.")
        # A file of the repository that is not a page: its path is all that can be given.
        return f"`{place.relative_to(ROOT)}`" if words.strip("`") in (target, place.name) else words

    elsewhere = r"(?!https?:|#|mailto:)"
    link = re.compile(rf"(?P<bang>!?)\[(?P<words>[^\]]*)\]\({elsewhere}(?P<target>[^)#\s]+)(?P<anchor>#[^)]*)?\)")
    parts = re.split(r"(^```.*?^```$)", page_text(page), flags=re.M | re.S)
    return "".join(part if part.startswith("```") else link.sub(relinked, part) for part in parts)


def contents(pages: dict[str, Path]) -> str:
    """The tables of contents in the margin, for the end of the first page."""
    out = []
    for group, names in GROUPS.items():
        listed = [page_name(n) for n in names if n != "README" and (n in pages or n in MADE)]
        out.append("\n".join(["```{toctree}", ":hidden:", f":caption: {group}", "", *listed, "```"]))
    return "\n\n" + "\n\n".join(out) + "\n"


def flags() -> str:
    """The help of every verb, as `vestige VERB --help` prints it."""
    parts = ["# Flags\n\nWhat `vestige VERB --help` prints.\n"]
    for name, verb in parser().verbs.items():
        parts.append(f"## vestige {name}\n\n```text\n{verb.format_help()}```\n")
    return "\n".join(parts)


# ---- the reference ----------------------------------------------------------------------------------------------


def reference() -> str:
    """One section per module: its docstring, then its public functions and classes."""
    parts = [
        "# Reference\n\nMade from docstrings. The names in `vestige` itself (`vestige.evaluate`, `vestige.score`, ...) "
        "are the stable interface; the rest may move between releases.\n"
    ]
    first = [SOURCE / "api.py"]  # what most people call
    for path in [*first, *(p for p in sorted(SOURCE.rglob("*.py")) if p not in (*first, SOURCE / "__main__.py"))]:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        name = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
        parts += [f"## `{name}`\n", words(ast.get_docstring(tree)), *(item(n) for n in tree.body if is_public(n))]
    return "\n".join(parts)


def is_public(node: ast.stmt) -> bool:
    named = isinstance(node, ast.FunctionDef | ast.ClassDef)
    return named and not node.name.startswith("_") and bool(ast.get_docstring(node))  # type: ignore[union-attr]


def item(node: Any) -> str:
    if isinstance(node, ast.FunctionDef):
        returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        said, inside = f"def {node.name}({ast.unparse(node.args)}){returns}: ...", []
    else:
        fields = [f"    {ast.unparse(n)}" for n in node.body if isinstance(n, ast.AnnAssign)]
        said = "\n".join([f"class {node.name}:", *(fields or ["    ..."])])
        inside = [item(n) for n in node.body if isinstance(n, ast.FunctionDef) and is_public(n)]
    return "\n".join([f"```python\n{said}\n```\n", words(ast.get_docstring(node)), *inside])


def words(doc: str | None) -> str:
    """A docstring as Markdown: its examples and drawings as they are, the rest as paragraphs."""
    out = []
    for block in re.split(r"\n\s*\n", doc or ""):
        if block.lstrip().startswith(">>>") or block.startswith("    "):
            out.append(f"```{'pycon' if '>>>' in block else 'text'}\n{block}\n```\n")
        elif block.strip():
            # Outside of `code`, no sign of Markdown or HTML: docstrings are plain text.
            spans = re.split(r"(`[^`]+`)", block)
            plain = [s if s.startswith("`") else re.sub(r"([\\*_<>\[\]{}|#$~^=+%-])", r"\\\1", s) for s in spans]
            out.append("".join(plain) + "\n")
    return "\n".join(out)


# ---- the files --------------------------------------------------------------------------------------------------


def ours_or_empty(place: Path) -> None:
    if place.exists() and any(place.iterdir()) and not is_run(place):
        raise BuildError(f"{place} holds something else than this site; name another folder, or remove it.")


def publish(top: Path) -> Path:
    """This version's pages in a folder of their own, beside those of other versions; returns the folder."""
    ours_or_empty(top)
    pages = top / __version__
    build(pages)
    found = sorted((p.name for p in top.iterdir() if p.is_dir() and (p / "searchindex.js").is_file()), key=order)
    with open_run(top, "site", []) as run, scratch(top) as whole:
        (whole / "index.html").write_text(FRONT.replace("VERSION", found[-1]), encoding="utf-8")
        listed = json.dumps(found[::-1])
        (whole / "versions.js").write_text(f"window.VESTIGE_VERSIONS = {listed};\n", encoding="utf-8")
        install(whole, top)
        run.finish()
    return pages


def order(version: str) -> tuple[int, ...]:
    """0.10.0 comes after 0.9.0."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


def build(out: Path) -> list[Path]:
    """Writes the site into `out` and returns its files. What the last build wrote there, by its manifest, goes.

    A file that the manifest does not list stays; one that is in the way stops the build before anything is moved.
    """
    ours_or_empty(out)
    pages, images = find_pages(), set[Path]()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for name, path in pages.items():
            text = staged(path, pages, images) + (contents(pages) if name == "README" else "")
            (place / f"{page_name(name)}.md").write_text(text, encoding="utf-8")
        for name, text in {"api": reference(), "flags": flags(), **metric_pages()}.items():
            (place / f"{name}.md").write_text(text, encoding="utf-8")
        (place / "conf.py").write_text(SETTINGS.replace("VERSION", __version__), encoding="utf-8")
        (place / "_templates").mkdir()
        (place / "_templates" / "versions.html").write_text(
            VERSION_MENU.replace("VERSION", __version__), encoding="utf-8"
        )
        for image in images:
            shutil.copy(image, place / image.name)
        made = place / "_made"
        command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", str(place), str(made)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise BuildError(done.stderr.replace(str(place) + "/", "").strip())
        shutil.rmtree(made / ".doctrees", ignore_errors=True)
        with open_run(out, "site", []) as run, scratch(out) as whole:
            shutil.copytree(made, whole, dirs_exist_ok=True)
            install(whole, out)
            run.finish()
    return sorted(out.iterdir())


if __name__ == "__main__":
    place = Path(sys.argv[1] if len(sys.argv) > 1 else "site")
    try:
        pages = publish(place)
    except (BuildError, UserError) as error:
        sys.exit(f"docs: {error}")
    print(f"{len(list(pages.glob('*.html')))} pages in {pages}; open {place / 'index.html'}")

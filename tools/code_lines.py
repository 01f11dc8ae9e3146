"""Lines of code by room: what is left of the source without comments, docstrings and blank lines.

    python tools/code_lines.py [DIRECTORY]      (src/vestige unless given)

In: Python files. Out: a table on the screen, the largest room first. Called by hand, before and after a change that
should make the source smaller.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOT_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


def code_lines(text: str) -> int:
    """How many lines hold code.

    >>> code_lines('x = 1  # one\\n\\n\\ndef f():\\n    "said, not done"\\n    return (\\n        2\\n    )\\n')
    5
    """
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = {n for t in tokens if t.type not in NOT_CODE for n in range(t.start[0], t.end[0] + 1)}
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        first = body[0] if isinstance(body, list) and body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            lines -= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return len(lines)


def by_room(source: Path) -> Counter[str]:
    found: Counter[str] = Counter()
    for path in sorted(source.rglob("*.py")):
        found[path.relative_to(source).parts[0].removesuffix(".py")] += code_lines(path.read_text(encoding="utf-8"))
    return found


def main() -> int:
    found = by_room(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "src" / "vestige")
    for room, lines in found.most_common():
        print(f"{lines:7,}  {room}")
    print(f"{sum(found.values()):7,}  in all")
    return 0


if __name__ == "__main__":
    sys.exit(main())

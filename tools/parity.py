"""Every golden value next to ours: how many there are, and the worst difference.

python tools/parity.py                  runs the golden cases (about a minute) and prints a line for each
python tools/parity.py docs/bench.md    also writes the table between the page's marks
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(ROOT / "bench"))

from conftest import LAB, SYSTEM
from golden_tools import eval_args, reference_args, variant_model
from measure import markdown, replace_section

OPEN, CLOSE = "<!-- parity: written by tools/parity.py -->", "<!-- end of parity -->"
PRODUCED = (
    "open-unlearning (unmodified), transformers 4.45.1, tokenizers 0.20.3, torch 2.13.0 (CPU, float32, sdpa, batches "
    "of 32, seed 0), scipy 1.14.1, scikit-learn 1.5.2, rouge-score 0.1.2"
)


def cases(scratch: Path) -> Iterator[tuple[str, Path, Path, list[str]]]:
    """(title, golden file, our file, command line)."""
    for name in ("full", "retain", "unlearned"):
        out = scratch / f"tofu-{name}"
        args = [*eval_args(LAB / "models" / name, out, "--metrics", "all"), *reference_args()]
        yield f"TOFU, {name}", LAB / "expected" / name / "TOFU_EVAL.json", out / "TOFU_EVAL.json", args
    for variant in ("padeos", "tmpleos", "tmpleos_padeos"):
        for name in ("full", "retain"):
            place = scratch / f"{variant}-{name}"
            place.mkdir()
            golden = LAB / "expected_variants" / variant
            args = eval_args(variant_model(place, variant, name), place / "run", "--metrics", "all")
            args += ["--reference-model", str(LAB / "models" / "retain")]
            args += ["--retain-logs", str(golden / "retain" / "TOFU_EVAL.json")] if name == "full" else []
            file = golden / name / "TOFU_EVAL.json"
            yield f"TOFU, {variant}, {name}", file, place / "run" / "TOFU_EVAL.json", args
    for title, stem, extra in (
        ("tags", "MUSE", ["model=Llama-2-7b-hf"]),
        ("chat", "MUSE_CHAT", ["--system-prompt", SYSTEM]),
    ):
        for name in ("full", "retain", "unlearned"):
            out = scratch / f"{stem}-{name}"
            args = ["eval", "muse", "--model", str(LAB / "models" / name), "--data", str(LAB / "data" / "muse")]
            args += ["--out", str(out), "--metrics", "all", "--reference-model", str(LAB / "models" / "retain"), *extra]
            if name != "retain":
                args += ["--retain-logs", str(LAB / "expected" / "retain" / "MUSE_EVAL.json")]
            yield f"MUSE ({title}), {name}", LAB / "expected" / name / f"{stem}_EVAL.json", out / "MUSE_EVAL.json", args


def leaves(expected: Any, got: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    if isinstance(expected, dict):
        for key, value in expected.items():
            yield from leaves(value, got.get(key) if isinstance(got, dict) else None, (*path, key))
    elif isinstance(expected, list):
        for i, value in enumerate(expected):
            yield from leaves(value, got[i] if isinstance(got, list) and i < len(got) else None, path)
    else:
        yield path, expected, got


def measure(expected: Any, got: Any) -> dict[str, Any]:
    """How many values, how many texts differ, and the worst absolute difference with the metric it is in."""
    worst, where, numbers, texts, unequal = 0.0, "-", 0, 0, 0
    for path, a, b in leaves(expected, got):
        if isinstance(a, float) or (isinstance(a, int) and not isinstance(a, bool)):
            numbers += 1
            gap = abs(a - b) if isinstance(b, (int, float)) else float("inf")
            if "gradnorm" not in path[0] and gap > worst:
                worst, where = gap, path[0]
        else:
            texts += 1
            unequal += a != b
    return {"numbers": numbers, "texts": texts, "unequal": unequal, "worst": worst, "where": where}


def run_case(args: list[str]) -> None:
    from vestige.cli import main

    with contextlib.redirect_stdout(io.StringIO()):
        if main(args) != 0:
            raise SystemExit(f"failed: {' '.join(args)}")


def section(rows: list[tuple[str, dict[str, Any]]]) -> str:
    head = ("case", "numbers", "texts and nulls", "unequal texts", "worst absolute difference", "in")
    cells = [
        [title, f"{m['numbers']:,}", f"{m['texts']:,}", str(m["unequal"]), f"{m['worst']:.1e}", f"`{m['where']}`"]
        for title, m in rows
    ]
    total = sum(m["numbers"] + m["texts"] for _, m in rows)
    return f"""**Produced by** {PRODUCED}.
**Reproduced with** the versions in `constraints.txt`, dialect `open-unlearning`.

{markdown(head, cells)}

{total:,} values in all. Gradient norms are left out of the worst difference (their tolerance is 1e-3 relative;
they are compared by the tests).
"""


def main() -> None:
    logging.getLogger("vestige").setLevel(logging.ERROR)
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for title, golden, ours, args in cases(Path(scratch)):
            run_case(args)
            rows.append((title, measure(json.loads(golden.read_text()), json.loads(ours.read_text()))))
            print(title, rows[-1][1], flush=True)
    if len(sys.argv) > 1:
        replace_section(Path(sys.argv[1]), section(rows), OPEN, CLOSE)


if __name__ == "__main__":
    main()

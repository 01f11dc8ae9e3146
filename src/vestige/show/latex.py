"""Text that stays text in LaTeX."""

from __future__ import annotations

_SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': "''", "\u00d7": r"$\times$", "\u2264": r"$\le$", "\u2265": r"$\ge$",
    "\u2013": "--", "\u2014": "---", "\u00b1": r"$\pm$",
}  # fmt: skip


def tex(text: str) -> str:
    r"""One line, with every character that LaTeX would take for a command written out.

    >>> print(tex("a_b <c> & 95 %"))
    a\_b \textless{}c\textgreater{} \& 95 \%
    """
    return "".join(_SPECIAL.get(c, c) for c in " ".join(text.split()))

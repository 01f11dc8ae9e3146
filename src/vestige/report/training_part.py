"""A training run that was watched: every metric along its steps, both models it lies between, and the best look."""

from __future__ import annotations

from typing import Any

from vestige.report.format import finite, plain
from vestige.store.kinds import RunSource


def training(source: RunSource) -> dict[str, Any]:
    """One record per watched run: what watch.json says, a list per column."""
    looks = sorted(source.data["looks"], key=lambda look: look["step"])
    names = list(dict.fromkeys(name for look in looks for name in look["values"]))
    place = source.path.resolve()
    body = {
        "name": place.parent.name if place.name in ("vestige", "evals") else place.name,
        "suite": source.data["suite"],
        "steps": [look["step"] for look in looks],
        "epochs": [finite(look["epoch"]) for look in looks],
        "series": {name: [finite(look["values"].get(name)) for look in looks] for name in names},
        "bands": {
            name: {
                end: [finite((look["intervals"].get(name) or (None, None))[i]) for look in looks]
                for i, end in enumerate(("lo", "hi"))
            }
            for name in names
            if any(name in look["intervals"] for look in looks)
        },
        "retain": {name: finite(source.data["retain"].get(name)) for name in names},
        "before": {name: finite(source.data["before"].get(name)) for name in names},
        **{key: [finite(look[key]) for look in looks] for key in ("share", "kept", "score")},
        "why": [look["why"] for look in looks],
        "verdicts": [str((look.get("verdict") or {}).get("word", "")) for look in looks],
        "seconds": [finite(look["seconds"]) for look in looks],
        "best": source.data["best"],
        "source": source.id,
    }
    return dict(plain(body))

"""Many small cases in one test: every case is run, and the test fails with the list of those that failed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

Test = Callable[..., None]


def one_test(names: str | tuple[str, ...], cases: Iterable[Any]) -> Callable[[Test], Test]:
    """Like pytest.mark.parametrize, but one test: for texts, flags and file names, of which there are many.

    Each case has a directory of its own (tmp_path), its own monkeypatch and nothing printed before it (capsys).
    """
    arguments = (names,) if isinstance(names, str) else tuple(names)
    listed = list(cases)

    def decorate(function: Test) -> Test:
        signature = inspect.signature(function)
        fixtures = [p for p in signature.parameters.values() if p.name not in arguments]

        def test(**given: Any) -> None:
            failed = []
            for number, case in enumerate(listed):
                values = (case,) if isinstance(names, str) else case
                chosen = dict(zip(arguments, values, strict=True))
                try:
                    _run(function, number, {**given, **chosen})
                except (Exception, SystemExit, pytest.fail.Exception) as error:
                    failed.append(f"case {number}, {chosen}: {type(error).__name__}: {error}")
            assert listed, "no case"
            assert not failed, f"{len(failed)} of {len(listed)} cases failed:\n" + "\n".join(failed)

        test.__name__, test.__doc__, test.__module__ = function.__name__, function.__doc__, function.__module__
        test.__signature__ = signature.replace(parameters=fixtures)  # type: ignore[attr-defined]
        return test

    return decorate


def _run(function: Test, number: int, given: Mapping[str, Any]) -> None:
    own = dict(given)
    if "tmp_path" in own:
        own["tmp_path"] = Path(own["tmp_path"]) / str(number)
        own["tmp_path"].mkdir()
    for name in ("capsys", "capfd"):
        if name in own:
            own[name].readouterr()
    if "caplog" in own:
        own["caplog"].clear()
    with pytest.MonkeyPatch.context() as patch:
        if "monkeypatch" in own:
            own["monkeypatch"] = patch
        function(**own)

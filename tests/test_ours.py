"""Whose mistake an exception is: ours, an architecture's, a library's, a plug-in's."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from loops import one_test
from vestige import errors
from vestige.errors import UserError, is_ours, reraise_ours


def ours(body: str, **names: Any) -> Any:
    """A function as if it were written in a module of ours."""
    file = Path(errors.__file__).parent / "planted.py"
    space: dict[str, Any] = {"__name__": "vestige.planted", **names}
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    exec(compile(f"def planted(*args):\n{lines}", str(file), "exec"), space)
    return space["planted"]


def caught(call: Any, *args: Any) -> Exception:
    try:
        call(*args)
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


@one_test(
    "body",
    [
        "missing_name",
        "None + 1",
        "None.x",
        "{}['a']",
        "[][0]",
        "assert False",
        "1 / 0",
        "x = x + 1",
        "Path(3)",
        "json.dumps(object())",
        "np.stack(3)",
        "torch.stack(None)",
        "torch.nn.functional.pad(None, (1, 1))",
    ],
)
def test_a_mistake_in_a_frame_of_ours_is_ours(body: str) -> None:
    error = caught(ours(body, Path=Path, json=json, np=np, torch=torch))
    assert is_ours(error)
    with pytest.raises(type(error)):
        reraise_ours(error)


def test_an_import_of_ours_that_fails_is_ours() -> None:
    assert is_ours(caught(ours("import vestige.no_such_module")))
    assert not is_ours(caught(ours("import no_such_library")))


@one_test("error", [ValueError("x"), RuntimeError("x"), UserError("x"), OSError("x"), StopIteration()])
def test_what_is_not_a_programming_error_is_not_ours(error: Exception) -> None:
    assert not is_ours(caught(ours("raise args[0]"), error))


class Stubborn(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x.no_such_attribute


def test_an_architecture_that_refuses_is_foreign() -> None:
    call = ours("args[0](*args[1:])")
    assert not is_ours(caught(call, Stubborn(), 1))  # inside its forward
    assert not is_ours(caught(call, Stubborn(), 1, 2))  # its signature
    assert not is_ours(caught(ours("args[0](1, mask=2)"), Stubborn()))


def test_an_architecture_behind_our_own_wrapper_is_foreign_too() -> None:
    from vestige.models.foreign import watch_forward

    model = Stubborn()
    watch_forward(model, "x")
    assert not is_ours(caught(ours("args[0](1, mask=2)"), model))
    assert not is_ours(caught(ours("args[0](1)"), model))


def test_a_hook_of_ours_inside_a_foreign_architecture_is_ours() -> None:
    layer = torch.nn.Linear(2, 2)
    layer.register_forward_hook(ours("missing_name"))
    assert is_ours(caught(layer, torch.zeros(1, 2)))


def test_a_function_replaced_in_a_test_and_a_callback_are_ours() -> None:
    def boom() -> None:
        raise NameError("planted")

    assert is_ours(caught(ours("args[0]()"), boom))


def test_installed_libraries_plug_ins_and_named_modules_are_foreign() -> None:
    from transformers import AutoConfig

    assert not is_ours(caught(ours("args[0].for_model(**{'model_type': []})"), AutoConfig))
    plug_in: dict[str, Any] = {"__name__": "vestige_plugin_x"}
    exec("def metric(): missing", plug_in)
    assert not is_ours(caught(ours("args[0]()"), plug_in["metric"]))
    broken = ours("args[0](args[1])")
    error = caught(broken, pickle._loads, b"\x80\x04e.")  # type: ignore[attr-defined]
    assert is_ours(error) != is_ours(error, ["pickle"])


def test_nothing_but_the_error_is_raised_again() -> None:
    reraise_ours(ValueError("not ours"))
    assert not is_ours(caught(lambda: SimpleNamespace().x))  # raised outside of us altogether


def test_a_layer_without_keys_is_a_finding_about_the_architecture() -> None:
    """Recurrent layers of a hybrid model: the fast way ends, the plain way goes on (an assertion would be a bug)."""
    from transformers.cache_utils import DynamicLayer

    from vestige.models.kv_cache import SlotCache, UnsupportedArchitecture, layer_keys

    error = caught(layer_keys, DynamicLayer())
    assert isinstance(error, UnsupportedArchitecture) and not is_ours(error)
    prefilled = SimpleNamespace(layers=[DynamicLayer()])
    assert isinstance(caught(SlotCache(1, 1, 1).admit, prefilled, [np.arange(1)], 1), UnsupportedArchitecture)

"""A run of lm-evaluation-harness that is killed asks only the tasks that were not answered; its files are the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lm_eval")

from conftest import LAB
from diffusion_tools import save_lab_bert
from lm_eval_tools import CHOICE, choice_rows, own_data_cache, write_rows
from vestige.adapters.lm_eval import Keeping, evaluate
from vestige.adapters.lm_eval_kept import LoadOrAsk
from vestige.cli import main
from vestige.models.args import ModelArgs
from vestige.models.load import load_model

FULL, RETAIN = LAB / "models" / "full", LAB / "models" / "retain"
# Texts are drawn: what comes after a task that was answered before must not depend on who answered it.
DRAWN = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["."], max_gen_toks: 24, do_sample: true, temperature: 1.0}}
metric_list:
  - {{metric: exact_match}}
"""
TASKS = ["a_choice", "b_choice", "c_text", "d_text", "e_text"]


@pytest.fixture(scope="module", autouse=True)
def _own_data_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with own_data_cache(tmp_path_factory):
        yield


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("tasks")
    data = write_rows(place / "rows.jsonl", choice_rows(8, options=3))
    for name in TASKS:
        (place / f"{name}.yaml").write_text((CHOICE if "choice" in name else DRAWN).format(name=name, data=data))
    return place


def command(tasks: Path, out: Path, model: Path = FULL, names: list[str] = TASKS, *more: str) -> list[str]:
    words = ["eval", "lm_eval", "--model", str(model), "--tasks", ",".join(names), "--include-path", str(tasks)]
    return [*words, "--out", str(out), "--quiet", *more]


def answers(out: Path) -> dict[str, bytes]:
    """Answers that are kept, by task and kind."""
    return {p.name: p.read_bytes() for p in sorted((out / "evidence").glob("requests-*/*.jsonl"))}


def _watched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which tasks' requests reach the harness's model from now on."""
    from lm_eval.models.huggingface import HFLM

    asked: list[str] = []
    for kind in ("loglikelihood", "generate_until"):
        own = getattr(HFLM, kind)

        def noted(self: Any, requests: Any, *args: Any, own: Any = own, **more: Any) -> Any:
            asked.extend(r.task_name for r in requests if r.task_name not in asked)
            return own(self, requests, *args, **more)

        monkeypatch.setattr(HFLM, kind, noted)
    return asked


def test_what_is_kept_is_for_the_same_question_only(
    tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other weights, limits, few-shot examples and words ask again; damage does; --overwrite does."""
    out, few = tmp_path / "run", ["a_choice", "b_choice"]
    assert main(command(tasks, out, FULL, few)) == 0
    asked = _watched(monkeypatch)

    def again(*more: str, model: Path = FULL) -> list[str]:
        asked.clear()
        (out / "manifest.json").unlink()  # with it, results of another model or of other rows are refused
        assert main(command(tasks, out, model, few, *more)) == 0
        return list(asked)

    assert again() == []
    assert again(model=RETAIN) == few
    assert again("--limit", "2") == few
    assert again("+eval.lm_eval.simple_evaluate_args.num_fewshot=1") == few
    assert again() == []
    files = answers(out)
    file = sorted((out / "evidence").glob("requests-*/*.jsonl"))[0]
    file.write_text(file.read_text().replace('"answers": [[-', '"answers": [[-1'))
    capsys.readouterr()
    assert len(again() + again(model=RETAIN) + again("--limit", "2")) <= 1
    assert again("+eval.lm_eval.simple_evaluate_args.num_fewshot=1") in ([], ["a_choice"], ["b_choice"])
    assert answers(out) == files
    assert again("--overwrite") == few
    rows = (tasks / "rows.jsonl").read_text()
    try:
        (tasks / "rows.jsonl").write_text(rows.replace("?", "!?"))
        assert again() == few
    finally:
        (tasks / "rows.jsonl").write_text(rows)


class Shelf(dict[str, dict[str, Any]]):
    """Answers in memory; `most` of them fit, then the run is interrupted."""

    most = 99

    def answers(self, identity: str) -> LoadOrAsk:
        def load_or_ask(key: str, ask: Callable[[], dict[str, Any]]) -> Mapping[str, Any]:
            name = f"{identity} {key}"
            if name not in self:
                if len(self) == self.most:
                    raise KeyboardInterrupt
                self[name] = json.loads(json.dumps(ask()))
            return self[name]

        return load_or_ask


def test_diffusion_models_tell_the_same_of_their_estimates(tasks: Path, tmp_path: Path) -> None:
    """The standard errors and the samplers in the manifest are those of all tasks, whoever answered them."""
    model = load_model(ModelArgs(path=str(save_lab_bert(tmp_path, positions=128))))
    plain = (tasks / "c_text.yaml").read_text().replace("do_sample: true, temperature: 1.0", "do_sample: false")
    (tasks / "g_text.yaml").write_text(plain.replace("task: c_text", "task: g_text"))
    settings = {"tasks": ["a_choice", "b_choice", "g_text"], "include_path": str(tasks), "draws": 3}

    def run(shelf: Shelf, name: str = "bert", **more: Any) -> Any:
        return evaluate({**settings, **more}, lambda: model, 3, False, Keeping(shelf.answers, lambda: name))

    whole = run(Shelf())
    assert whole.settings["bound"]["answers"] == 9 and whole.settings["samplers"] and not whole.reused
    for most in (1, 2):
        shelf = Shelf()
        shelf.most = most
        with pytest.raises(KeyboardInterrupt):
            run(shelf)
        shelf.most = 99
        again = run(shelf)
        assert again.reused == settings["tasks"][:most]  # type: ignore[index]
        for name in ("details", "summary", "data", "settings", "notes", "missing"):
            assert getattr(again, name) == getattr(whole, name)
    assert run(shelf).reused == settings["tasks"]
    # Another batch size, other draws or another model: nothing of it serves.
    assert run(shelf, simple_evaluate_args={"batch_size": 2}).reused == []
    assert run(shelf, draws=2).reused == [] and run(shelf, "other").reused == []

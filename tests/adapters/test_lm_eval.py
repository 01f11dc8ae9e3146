"""lm-evaluation-harness with our model: its own numbers, every setting in effect, mistakes in one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lm_eval")

from conftest import LAB
from lm_eval_tools import CHOICE, choice_rows, own_data_cache, write_rows
from loops import one_test
from vestige.models.load import LoadedModel, ModelArgs, load_model

FULL = LAB / "models" / "full"
ROWS = 12

GENERATE = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["."], max_gen_toks: 12, do_sample: false}}
num_fewshot: 0
metric_list:
  - {{metric: exact_match, ignore_case: true}}
"""
GROUP = """
group: lab_group
task: [lab_choice, lab_more]
aggregate_metric_list:
  - {metric: acc, weight_by_size: true}
"""


@pytest.fixture(scope="module", autouse=True)
def _own_data_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with own_data_cache(tmp_path_factory):
        yield


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a multiple-choice task, another one under three names, a generation task and a group."""
    place = tmp_path_factory.mktemp("tasks")
    data = write_rows(place / "rows.jsonl", choice_rows(ROWS, options=4))
    for name in ("lab_choice", "lab_more", "wmdp_cyber", "mmlu"):
        (place / f"{name}.yaml").write_text(CHOICE.format(name=name, data=data))
    (place / "lab_text.yaml").write_text(GENERATE.format(name="lab_text", data=data))
    (place / "lab_group.yaml").write_text(GROUP)
    return place


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return load_model(ModelArgs(path=str(FULL)))


def settings(tasks: Path, names: Any, **args: Any) -> dict[str, Any]:
    return {"tasks": names, "include_path": str(tasks), "simple_evaluate_args": args}


def evaluate(model: LoadedModel, tasks: Path, names: Any, max_samples: int | None = None, **args: Any) -> Any:
    from vestige.adapters.lm_eval import evaluate

    return evaluate(settings(tasks, names, **args), lambda: model, max_samples, False)


def test_batch_size_is_in_effect(model: LoadedModel, tasks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    hook = model.model.register_forward_pre_hook(
        lambda _, args, kwargs: sizes.append(len(args[0] if args else kwargs["input_ids"])), with_kwargs=True
    )
    try:
        values, calls = [], []
        for batch_size in (1, 8):
            sizes.clear()
            values.append(evaluate(model, tasks, ["lab_choice"], batch_size=batch_size).summary["lab_choice/acc"])
            calls.append((len(sizes), max(sizes)))
    finally:
        hook.remove()
    assert calls == [(4 * ROWS, 1), (4 * ROWS // 8, 8)]
    assert values[0] == values[1]


@pytest.fixture
def prompts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Every context that the harness hands to the model."""
    from lm_eval.models.huggingface import HFLM

    seen: list[str] = []
    original = HFLM.loglikelihood

    def spy(self: Any, requests: Any, **kwargs: Any) -> Any:
        seen.extend(r.args[0] for r in requests)
        return original(self, requests, **kwargs)

    monkeypatch.setattr(HFLM, "loglikelihood", spy)
    yield seen


def test_prompt_settings_are_in_effect(model: LoadedModel, tasks: Path, prompts: list[str]) -> None:
    def asked(**args: Any) -> list[str]:
        prompts.clear()
        evaluate(model, tasks, ["lab_choice"], max_samples=2, **args)
        return list(prompts)

    plain = asked()
    assert len(plain) == 8  # data.max_samples is the limit
    assert len(asked(limit=3)) == 12  # one said to the harness itself goes first
    assert asked(system_instruction="Be brief.")[0].startswith("Be brief.")
    chat = asked(apply_chat_template=True, system_instruction="Be brief.")
    said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": plain[0]}]
    assert chat[0] == model.tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True)
    assert len(asked(num_fewshot=2)[0]) > 2 * len(plain[0])


def test_three_ways_to_name_a_task(model: LoadedModel, tasks: Path) -> None:
    import yaml

    inline = yaml.safe_load((tasks / "lab_choice.yaml").read_text())
    ways = ["lab_choice", str(tasks / "lab_choice.yaml"), inline]
    found = [evaluate(model, tasks, [way], max_samples=4) for way in ways]
    assert found[0].summary == found[1].summary == found[2].summary
    assert found[0].data["lab_choice"]["fingerprint"] == found[2].data["lab_choice"]["fingerprint"]


@pytest.fixture
def small_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the harness's own 14,000 tasks only WMDP's: reading all of them takes seconds each time."""
    import lm_eval.tasks
    from lm_eval.tasks._index import TaskIndex

    own, original = Path(lm_eval.tasks.__file__).parent, TaskIndex._iter_yaml_files
    few = staticmethod(lambda root: original(root / "wmdp" if Path(root) == own else root))
    monkeypatch.setattr(TaskIndex, "_iter_yaml_files", few)


def test_groups_and_changes_to_a_known_task(model: LoadedModel, tasks: Path) -> None:
    changed = {"task": "wmdp_cyber", "num_fewshot": 1}
    result = evaluate(model, tasks, ["lab_group", changed], max_samples=4)
    parts = [result.details[n]["metrics"]["acc"] for n in ("lab_choice", "lab_more")]
    assert result.summary["lab_group/acc"] == pytest.approx(sum(parts) / 2)
    assert [*dict.fromkeys(k.split("/")[0] for k in result.summary)] == [
        "lab_group", "lab_choice", "lab_more", "wmdp_cyber",
    ]  # fmt: skip
    assert result.details["lab_group"]["subtasks"] == ["lab_choice", "lab_more"]
    assert result.details["wmdp_cyber"]["n_shot"] == 1


@pytest.mark.usefixtures("small_index")
@one_test(
    ("names", "args", "needle"),
    [
        ([], {}, "No tasks given"),
        (["lab_chioce"], {}, "Did you mean 'lab_choice'"),
        (["wmdp_cybr"], {}, "Did you mean 'wmdp_cyber'"),
        ([{"dataset_path": "json"}], {}, "neither a name nor a task config"),
        (["wmdp_bio"], {}, "'wmdp_bio' is on the hub and could not be fetched"),
        (["lab_choice", "lab_group"], {}, "Duplicate task 'lab_choice'"),
        (["lab_choice"], {"batchsize": 3}, "Did you mean 'batch_size'"),
        (["lab_choice"], {"device": "cpu"}, "model.model_args.device"),
        (["lab_choice"], {"batch_size": 0}, "batch_size must be"),
    ],
)
def test_mistakes_are_one_sentence_and_load_no_model(tasks: Path, names: Any, args: Any, needle: str) -> None:
    from vestige.adapters.lm_eval import evaluate
    from vestige.errors import UserError

    def never() -> Any:
        raise AssertionError("the model was asked for")

    with pytest.raises(UserError) as error:
        evaluate(settings(tasks, names, **args), never, None, False)
    assert needle in str(error.value) and "\n" not in str(error.value)

"""The staleness matrix: after each change a command's numbers are those of a fresh directory, and nothing is computed
that need not be. docs/faults.md has the rule."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from conftest import LAB
from staleness_tools import (
    AGAIN,
    CASES,
    KEPT,
    METRICS,
    SCORED,
    SHORT,
    SWAP,
    Case,
    World,
    close,
    forwards,
    make_adapter,
    make_model,
    one_weight,
    tokenizer_json,
)
from vestige.cli import main

Worlds = Callable[[str], World]


def take_results_away(out: Path) -> None:
    """Results of something else are refused in the same place; then its evidence must not be used either."""
    for file in out.glob("*.json"):
        file.unlink()


def run_eval(world: World, out: Path) -> dict[str, Any]:
    status = main(world.eval_words(out))
    if status == 2 and (out / "TOFU_EVAL.json").is_file():
        take_results_away(out)
        status = main(world.eval_words(out))
    assert status == 0
    return dict(json.loads((out / "TOFU_EVAL.json").read_text()))


def run_depth(world: World, out: Path) -> dict[str, Any]:
    words = ["depth", "--unlearned", world.model, "--full", world.place / "full",
             "--retain-model", world.place / "retain",
             "--forget", world.data / "forget.jsonl", "--out", out, "--limit", "3", "--quiet",
             "resamples=20"]  # fmt: skip
    shared = ("--dtype", "--limit")  # flags that this command has too
    pairs = [w for pair in zip(world.flags, world.flags[1:], strict=False) if pair[0] in shared for w in pair]
    assert main([str(w) for w in [*words, *pairs]]) == 0
    return {"results": json.loads((out / "results.json").read_text())}


def plan_of(world: World) -> Any:
    from vestige.sweep.plan import read_plan
    from vestige.sweep.tasks import make_tasks

    flags = {"data": str(world.data), "limit": 3, "metrics": METRICS.split(","), "overrides": SHORT}
    names = iter(world.flags)
    for flag in names:
        if flag.startswith("--"):
            value: Any = next(names)
            key = flag[2:].replace("-", "_")
            flags[key] = {"limit": int, "batch_tokens": int, "metrics": lambda v: v.split(",")}.get(key, str)(value)
        else:
            flags["overrides"] = [*flags["overrides"], flag]
    body = {"out": str(world.place / "sweep"), "models": {"m": str(world.model)}, "suites": {"tofu": flags}, "slots": 0}
    (world.place / "plan.yaml").write_text(yaml.safe_dump(body))
    [task] = make_tasks(read_plan(world.place / "plan.yaml"))
    return task


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Everything once, before any change: a run of each command and its numbers."""
    from vestige.sweep.tasks import is_done, perform

    place = tmp_path_factory.mktemp("world")
    for seed, name in enumerate(("model", "full", "retain")):
        make_model(place / name, seed)
    make_adapter(place / "adapter", place / "model")
    (place / "data").mkdir()
    lines = (LAB / "data" / "forget.jsonl").read_text().splitlines()[:5]
    (place / "data" / "forget.jsonl").write_text("\n".join(lines) + "\n")
    out: dict[str, Any] = {"place": place, "values": {}}
    with pytest.MonkeyPatch.context() as patch:
        for which in ("model", "adapter"):
            world = World(place, patch, which)
            made = out["values"][which] = {"eval": run_eval(world, place / f"run-{which}")}
            made["depth"] = run_depth(world, place / f"depth-{which}")
            task = plan_of(world)
            assert perform(task).status == "done" and is_done(task)
            (place / "sweep").rename(place / f"sweep-{which}")
    return out


@pytest.fixture
def worlds(base: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worlds]:
    def make(which: str) -> World:
        place = tmp_path / "w"
        shutil.copytree(base["place"], place)
        for name in ("run", "depth", "sweep"):
            (place / f"{name}-{which}").rename(place / name)
        # A sweep's directory was made where it was first: its runs name that place.
        return World(place, monkeypatch, which)

    yield make


def cases(verb: str, *expected: str) -> list[Any]:
    return [pytest.param(c, id=c.name) for c in CASES if getattr(c, verb) in (expected or (AGAIN, SCORED, KEPT))]


def judge(case: Case, expected: str, before: Any, after: Any, truth: Any, pushed: int) -> None:
    right = truth()
    if isinstance(after, dict):  # results accumulate
        after = {name: after[name] for name in right}
    assert close(after, right), "stale numbers"
    if case.other and expected != KEPT:
        assert not close(after, before), "the change makes no difference: it tests nothing"
    if expected == AGAIN:
        assert pushed > 0, "no model was run"
    else:
        assert pushed == 0, "computed again without need"


@pytest.mark.parametrize("case", cases("eval"))
def test_eval(case: Case, worlds: Worlds, base: dict[str, Any]) -> None:
    world = worlds(case.which)
    case.change(world)
    with forwards() as pushed:
        after = run_eval(world, world.place / world.run)
    before = base["values"][case.which]["eval"]
    fresh = case.other or case.eval == AGAIN
    judge(case, case.eval, before, after, lambda: run_eval(world, world.place / "new") if fresh else before, pushed[0])


@pytest.mark.parametrize("case", cases("depth"))
def test_depth(case: Case, worlds: Worlds, base: dict[str, Any]) -> None:
    world = worlds(case.which)
    case.change(world)
    with forwards() as pushed:
        after = run_depth(world, world.place / "depth")
    before = base["values"][case.which]["depth"]
    # Generation and its settings are no matter of depth: another name for the model, and the same numbers.
    same = not case.other or "generation" in case.name
    truth = (lambda: before) if same else (lambda: run_depth(world, world.place / "new"))
    judge(Case(case.name, case.change, other=not same), case.depth, before, after, truth, pushed[0])


@pytest.mark.parametrize("case", cases("sweep"))
def test_sweep(case: Case, base: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a sweep says `there already`. (What it runs instead is an evaluation, which the cases above cover.)"""
    from vestige.sweep.tasks import is_done

    place = base["place"]
    kept = place.with_name(f"{place.name}-kept")
    shutil.copytree(place, kept)
    try:
        (place / f"sweep-{case.which}").rename(place / "sweep")
        world = World(place, monkeypatch, case.which)
        assert is_done(plan_of(world))
        case.change(world)
        assert is_done(plan_of(world)) == (case.sweep == KEPT)
    finally:
        shutil.rmtree(place)
        kept.rename(place)


def test_sweep_says_the_day_where_a_template_does(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    import datetime

    from vestige.sweep import tasks as task_keys
    from vestige.sweep.tasks import task_key

    world = worlds("model")
    file = world.model / "chat_template.jinja"
    file.write_text("{{ strftime_now('%d %b %Y') }}" + file.read_text())
    before = task_key(plan_of(world))
    assert task_key(plan_of(world)) == before

    class Tomorrow(datetime.date):
        @classmethod
        def today(cls) -> datetime.date:
            return datetime.date(2100, 1, 1)

    monkeypatch.setattr(task_keys.datetime, "date", Tomorrow)
    assert task_key(plan_of(world)) != before
    world.flags.append("+model.template_args.date_string=1 Jan 2030")
    dated = task_key(plan_of(world))
    monkeypatch.undo()
    assert task_key(plan_of(world)) == dated


def test_sweep_knows_models_that_a_metric_names_and_modules_of_a_plugin(worlds: Worlds) -> None:
    from vestige.adapters.plugins import with_siblings
    from vestige.sweep.tasks import named_content, task_key

    world = worlds("model")
    config = {"metrics": {"x": {"reference_model_path": str(world.place / "full"), "n": [3, None]}}}
    before = named_content(config, [])
    one_weight(world.place / "full" / "model.safetensors")
    assert before and named_content(config, []) != before
    assert named_content(config, [str(world.place)]) == []
    plugin, helper = world.place / "plug.py", world.place / "plug_helper.py"
    plugin.write_text("import os\nfrom plug_helper import number\n")
    helper.write_text("number = 1\n")
    assert with_siblings(plugin) == [plugin, helper]
    task = replace(plan_of(world), plugins=(str(plugin),))
    before_it = task_key(task)
    helper.write_text("number = 2\n")
    assert task_key(task) != before_it


def test_a_revision_of_a_hub_id(worlds: Worlds) -> None:
    """Two snapshots in a cache; the second has one weight changed."""
    world = worlds("model")
    cache = world.place / "cache" / "models--org--tiny"
    names = ["a" * 40, "b" * 40]
    for name in names:
        shutil.copytree(world.model, cache / "snapshots" / name)
    one_weight(cache / "snapshots" / names[1] / "model.safetensors")
    (cache / "refs").mkdir()

    def run(name: str, out: str) -> Any:
        words = world.eval_words(world.place / out)
        words[words.index("--model") + 1] = "org/tiny"
        more = [f"+model.model_args.cache_dir={cache.parent}", f"+model.model_args.revision={name}"]
        take_results_away(world.place / out)
        assert main([*words, *more]) == 0
        return json.loads((world.place / out / "TOFU_EVAL.json").read_text())

    first, second = run(names[0], "hub"), run(names[1], "hub")
    assert not close(first, second) and close(second, run(names[1], "new"))
    with forwards() as pushed:
        assert close(run(names[0], "hub"), first)
    assert pushed[0] == 0  # its evidence is still there


@pytest.mark.parametrize("case", cases("collapse"))
def test_collapse(case: Case, worlds: Worlds) -> None:
    """A second run in the same directory reads its matrices from evidence, or the model, as the case says."""
    world = worlds(case.which)
    rollouts = [
        {"messages": [{"role": "user", "content": f"state {p}"}], "response": f"<think>I see {p}, {s}.</think>",
         "group_id": p}
        for p in range(3) for s in range(2)
    ]  # fmt: skip
    (world.place / "r.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rollouts))

    def run(out: str) -> Any:
        words = ["collapse", world.place / "r.jsonl", "--model", world.model, "--out", world.place / out]
        short = ["--num-samples", "all", "--resamples", "10", "--step", "1", *world.flags]
        assert main([str(w) for w in [*words, *short]]) == 0
        return json.loads((world.place / out / "metrics.json").read_text())["steps"][0]

    def numbers(step: Any) -> Any:  # some of the others are times
        return {k: v for k, v in step["metrics"].items() if k.endswith(("mi_seq_estimate", "entropy_est"))}

    before = run("c")
    case.change(world)
    with forwards() as pushed:
        after = run("c")
    assert (pushed[0] > 0) == (case.collapse == AGAIN), pushed
    assert numbers(after) and close(numbers(after), numbers(run("new")))
    if case.other:
        assert not close(numbers(before), numbers(after))
        assert before["made"]["fingerprint"] != after["made"]["fingerprint"]
    else:
        assert close(numbers(before), numbers(after))
    assert after["made"]["attention"] == "sdpa" and main(["verify", str(world.place / "c")]) == 0


# ---- what is not a row of the matrix ------------------------------------------------------------------------------


def test_weights_replaced_before_they_are_loaded(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A trainer saves over its checkpoint after the fingerprint was taken: nothing is filed under the old name."""
    from vestige.engine import handles

    world, real = worlds("model"), handles.load_model

    def late(args: Any) -> Any:
        one_weight(world.model / "model.safetensors")
        return real(args)

    monkeypatch.setattr(handles, "load_model", late)
    assert main(world.eval_words(world.place / "new")) == 2
    assert "changed while it was being evaluated" in capsys.readouterr().err
    assert not list((world.place / "new").rglob("*EVAL.json"))
    assert not list((world.place / "new" / "evidence").glob("answers-*/*.safetensors"))


def test_weights_replaced_while_they_are_used(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from vestige.collect.answers import AnswerCollector

    world, real = worlds("model"), AnswerCollector.run

    def run(self: Any, *args: Any) -> Any:
        for result in real(self, *args):
            one_weight(world.model / "model.safetensors")
            yield result

    monkeypatch.setattr(AnswerCollector, "run", run)
    assert main(world.eval_words(world.place / "new")) == 2
    assert "changed while it was being evaluated" in capsys.readouterr().err
    assert not list((world.place / "new").rglob("*EVAL.json"))
    assert not list((world.place / "new" / "evidence").glob("answers-*/*.safetensors"))
    monkeypatch.setattr(AnswerCollector, "run", real)
    assert close(run_eval(world, world.place / "new"), run_eval(world, world.place / "newer"))


def test_weights_replaced_after_the_last_batch(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from vestige.engine import evaluate

    world, real = worlds("model"), evaluate.Scoring.score_all

    def late(*args: Any) -> Any:
        one_weight(world.model / "model.safetensors")
        return real(*args)

    monkeypatch.setattr(evaluate.Scoring, "score_all", late)
    assert main(world.eval_words(world.place / "new")) == 2
    assert "changed while it was being evaluated" in capsys.readouterr().err
    assert not list((world.place / "new").rglob("*EVAL.json"))


def test_weights_replaced_in_depth_and_collapse(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from vestige.collapse.detector import CollapseDetector
    from vestige.collect.layered_patching import Patcher

    world, run, compute = worlds("model"), Patcher.run, CollapseDetector.compute

    def patched(self: Any, *args: Any) -> Any:
        for part in run(self, *args):
            one_weight(world.model / "model.safetensors")
            yield part

    def computed(self: Any, *args: Any) -> Any:
        one_weight(world.model / "model.safetensors")
        return compute(self, *args)

    monkeypatch.setattr(Patcher, "run", patched)
    monkeypatch.setattr(CollapseDetector, "compute", computed)
    with pytest.raises(AssertionError):
        run_depth(world, world.place / "new")
    assert "changed while it was being evaluated" in capsys.readouterr().err
    assert not list((world.place / "new").rglob("summary.json"))
    assert not list(
        (world.place / "new" / "evidence").rglob("patched-*/*.safetensors")
    )  # of the other two models there may be
    pairs = [(p, s) for p in range(3) for s in range(2)]
    said = [(p, {"role": "user", "content": f"s {p}"}, f"<think>I see {p} {s}.</think>") for p, s in pairs]
    rows = [{"messages": [asked], "response": words, "group_id": p} for p, asked, words in said]
    (world.place / "r.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    words = ["collapse", world.place / "r.jsonl", "--model", world.model, "--out", world.place / "c"]
    assert main([str(w) for w in [*words, "--num-samples", "all", "--step", "1"]]) == 2
    assert "changed while it was being evaluated" in capsys.readouterr().err
    assert not (world.place / "c" / "metrics.json").exists()


def test_a_second_run_says_how_its_evidence_was_made(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    world = worlds("model")
    world.flags.append("model.model_args.attn_implementation=eager")
    run_eval(world, world.place / "new")
    first = json.loads((world.place / "new" / "manifest.json").read_text())
    monkeypatch.setattr("vestige.engine.handles.versions", lambda: {**first["versions"], "torch": "1", "numpy": "2"})
    run_eval(world, world.place / "new")
    second = json.loads((world.place / "new" / "manifest.json").read_text())
    assert second["model"]["load_seconds"] == 0
    for key in ("attention", "dtype", "device"):
        assert first["model"][key] == second["model"][key]
    assert second["model"]["attention"] == "eager"
    assert second["versions"]["torch"] == first["versions"]["torch"] and second["versions"]["numpy"] == "2"


def test_what_auto_means_on_a_gpu_is_in_the_key(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    """There the checkpoint's own precision counts, which a fingerprint leaves out."""
    from vestige.engine.handles import ModelHandle
    from vestige.models import fingerprint
    from vestige.models.args import ModelArgs

    world = worlds("model")
    monkeypatch.setattr(fingerprint, "choose_device", lambda name: "cuda")
    keys = []
    for dtype in ("float32", "bfloat16", None):
        body = json.loads((world.model / "config.json").read_text())
        body.pop("torch_dtype", None)
        (world.model / "config.json").write_text(json.dumps({**body, "dtype": dtype}))
        keys.append(ModelHandle(ModelArgs(path=str(world.model))).identity)
    assert keys[0] != keys[1] and keys[0] == keys[2]  # without a word of the config: its tensors, which are float32


def test_notes_are_remembered(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    """What must be known of how evidence was made is said by a later run, which makes none."""
    from vestige.collect.answers import AnswerCollector

    world, real = worlds("model"), AnswerCollector.run

    def run(self: Any, *args: Any) -> Any:
        self.cost.say("halved for this test")
        yield from real(self, *args)

    monkeypatch.setattr(AnswerCollector, "run", run)
    run_eval(world, world.place / "new")
    monkeypatch.setattr(AnswerCollector, "run", real)
    run_eval(world, world.place / "new")
    manifest = json.loads((world.place / "new" / "manifest.json").read_text())
    assert manifest["cost"]["score_tokens"] == 0 and "halved for this test" in manifest["notes"]


def test_a_depth_score_in_a_suite_wants_one_tokenizer(worlds: Worlds, capsys: pytest.CaptureFixture[str]) -> None:
    world = worlds("model")
    from staleness_tools import edit_json

    file = world.place / "full" / "tokenizer.json"
    body = json.loads(file.read_text())
    vocabulary = dict(body["model"]["vocab"])
    a, b = sorted(vocabulary)[50:52]
    vocabulary[a], vocabulary[b] = vocabulary[b], vocabulary[a]
    edit_json(file, model={**body["model"], "vocab": vocabulary})
    places = [f"eval.tofu.{k}_model_path={world.place / k}" for k in ("full", "retain")]
    words = ["uds" if w == METRICS else w for w in world.eval_words(world.place / "new") if w not in SHORT]
    assert main([*words, *places]) == 2
    assert "has another tokenizer than" in capsys.readouterr().err


def test_depth_wants_one_tokenizer_not_one_vocabulary(worlds: Worlds, capsys: pytest.CaptureFixture[str]) -> None:
    """The same vocabulary with another pre-tokeniser cuts the rows otherwise."""
    world = worlds("model")
    tokenizer_json(world, **SWAP)
    with pytest.raises(AssertionError):
        run_depth(world, world.place / "new")
    assert "has another tokenizer than" in capsys.readouterr().err

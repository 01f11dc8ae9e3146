"""A live model looked at while it trains: training is untouched, numbers reach its loggers, files are kept."""

from __future__ import annotations

import json
import logging
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vestige
from conftest import LAB
from loops import one_test
from vestige.adapters.preserve_state import preserve_state
from vestige.verdict.best import Gauge, Rank, RunMoment, closest, share_left
from watch_tools import PROB, QUICK, collate, fresh, rows, same, tokenizer, trainer_of, weights

pytestmark = pytest.mark.filterwarnings("ignore")


def plain_score(moment: RunMoment) -> float | None:
    """A rule of the user's own."""
    return moment.values[PROB]


# ---- training is untouched ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["checkpointing", "bf16", "lora", "four bit"])
def test_other_kinds_of_training_are_untouched(kind: str, tmp_path: Path) -> None:
    def made() -> tuple[Any, dict[str, Any]]:
        if kind == "checkpointing":
            return fresh(), {"gradient_checkpointing": True}
        if kind == "bf16":
            return fresh(), {"bf16": True}
        from peft import LoraConfig, get_peft_model

        more: dict[str, Any] = {}
        if kind == "four bit":
            from transformers import BitsAndBytesConfig

            more = {"quantization_config": BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.float32)}
        torch.manual_seed(0)
        return get_peft_model(fresh(**more), LoraConfig(r=2, target_modules="all-linear", lora_dropout=0.1)), {}

    ends = []
    callback = vestige.Callback("tofu", every=2, **QUICK)
    for callbacks in ([], [callback]):
        try:
            model, settings = made()
        except (ImportError, RuntimeError, ValueError) as error:
            pytest.skip(f"{kind}: {error}")
        trainer = trainer_of(tmp_path, callbacks, model, **settings)
        before = bool(model.config.use_cache)
        trainer.train()
        assert kind != "checkpointing" or bool(model.config.use_cache) is before
        ends.append([p.detach().clone() for p in model.parameters() if p.requires_grad])
    assert same(*ends) and len(callback.looks) == 3
    assert callback.looks[0].values[PROB] != callback.looks[-1].values[PROB]


def test_bf16_training_is_looked_at_in_the_weights_own_precision(tmp_path: Path) -> None:
    """A look gives the number that the saved checkpoint gives, not that of autocast."""
    callback = vestige.Callback("tofu", every=2, **QUICK)
    trainer = trainer_of(tmp_path, [callback], bf16=True)
    trainer.train()
    trainer.save_model(str(tmp_path / "end"))
    said = {k: v for k, v in QUICK.items() if k != "on_error"}
    again = vestige.evaluate(tmp_path / "end", tokenizer=LAB / "models" / "full", **said)
    assert callback.looks[-1].values == pytest.approx(again.summary, abs=1e-6)


def test_everything_of_the_model_is_put_back() -> None:
    model = fresh().train()
    model.lm_head.eval()
    first = next(model.parameters())
    model(input_ids=torch.tensor([[1, 2, 3]]), labels=torch.tensor([[1, 2, 3]])).loss.backward()
    gradient, modes = first.grad, [m.training for m in model.modules()]
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    settings = dict(vars(model.config))
    with torch.autocast("cpu", dtype=torch.bfloat16), preserve_state(model):
        assert not torch.is_autocast_enabled("cpu") and first.grad is None
        model.eval().requires_grad_(False)
        model.config.use_cache = not model.config.use_cache
        random.random(), np.random.rand(), torch.rand(3)
    assert first.grad is gradient and first.requires_grad
    assert [m.training for m in model.modules()] == modes
    assert random.getstate() == states[0] and np.random.get_state()[1].tolist() == states[1]
    assert torch.equal(torch.get_rng_state(), states[2]) and dict(vars(model.config)) == settings


# ---- a loop of one's own ------------------------------------------------------------------------------------------


def loop(watch_of: Any, place: Path | None = None) -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = fresh().train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    watch = watch_of(model)
    for step in range(4):
        batch = collate(rows()[2 * step : 2 * step + 2])
        model(**batch).loss.backward()
        if watch is not None and step == 1:
            watch.look()  # between backward and step: gradients are there
        optimiser.step()
        optimiser.zero_grad()
        if watch is not None:
            watch.step(tokens=batch["input_ids"].numel())
    return weights(model), watch


def test_a_plain_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    seen: list[tuple[int, float]] = []

    def watched(model: Any) -> Any:
        log = lambda numbers, step: seen.append((step, numbers[f"vestige/{PROB}"]))  # noqa: E731
        return vestige.Watch(model, tokenizer(), every=2, at_tokens=[60], log=log, best=plain_score, **QUICK)

    ends, watch = loop(watched)
    assert same(ends, loop(lambda model: None)[0])
    assert list(temporary.iterdir()) == []  # without `out` nothing stays
    assert seen[0][0] == 0 and {2, 4} <= {step for step, _ in seen}
    assert [look.step for look in watch.looks] == sorted({step for step, _ in seen})
    assert watch.best.rank.score == max(look.rank.score for look in watch.looks if look.step)
    again = vestige.Watch(watch.model, tokenizer(), at_start=False, best=plain_score, **QUICK)
    again.load_state_dict(json.loads(json.dumps(watch.state_dict())))
    assert again.steps == 4 and again.looks == watch.looks and again.best == watch.best


# ---- loggers ------------------------------------------------------------------------------------------------------


def test_numbers_and_rows_reach_tensorboard_and_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "tb"))
    wandb = pytest.importorskip("wandb")
    wandb.teardown()  # it keeps the environment that it met first, in whichever test that was
    metrics = [PROB, "forget_Q_A_ROUGE"]
    callback = vestige.Callback("tofu", every=2, rows=3, **{**QUICK, "metrics": metrics})
    trainer_of(tmp_path, [callback], max_steps=2, report_to=["tensorboard", "wandb"]).train()
    tables = list(Path(wandb.run.dir).glob("media/table/vestige/rows_*.table.json"))
    summary = dict(wandb.run.summary)
    wandb.finish()
    assert summary[f"train/vestige/{PROB}"] == pytest.approx(callback.looks[-1].values[PROB])
    table = json.loads(max(tables, key=lambda p: p.stat().st_mtime).read_text())
    assert table["columns"][:3] == ["metric", "index", "value"] and len(table["data"]) == 6
    assert any(isinstance(row[-1], str) and row[-1] for row in table["data"])  # what the model said

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tb"))
    events.Reload()
    for end in ("", "_low", "_high"):
        [first, last] = events.Scalars(f"train/vestige/{PROB}{end}")
        assert (first.step, last.step) == (0, 2)
        assert last.value == pytest.approx(callback.looks[-1].flat()[f"vestige/{PROB}{end}"], rel=1e-6)
    assert "train/vestige/seconds" in events.Tags()["scalars"]
    assert "vestige/rows/text_summary" in events.Tags()["tensors"]


def test_numbers_and_rows_reach_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed (pip install mlflow)")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # newer versions prefer a database
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    callback = vestige.Callback("tofu", every=2, rows=3, **QUICK)
    trainer_of(tmp_path, [callback], max_steps=2, report_to=["mlflow"]).train()
    run = mlflow.last_active_run() or mlflow.active_run()
    mlflow.end_run()
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, f"vestige/{PROB}")
    assert [m.value for m in history] == [look.values[PROB] for look in callback.looks]
    files = {p.name for p in (tmp_path / "mlruns").rglob("vestige/rows/*.json")}
    assert files == {"step-0.json", "step-2.json"}


# ---- failures, schedules, files -----------------------------------------------------------------------------------


def test_a_failed_look_leaves_training_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no room on this GPU")

    callback = vestige.Callback("tofu", every=2, **{**QUICK, "on_error": "log"})
    monkeypatch.setattr("vestige.unlearn.live.evaluate_config", broken)
    trainer = trainer_of(tmp_path, [callback])
    with caplog.at_level(logging.WARNING):
        trainer.train()
    assert trainer.state.global_step == 4 and callback.looks == []
    assert caplog.text.count("no room on this GPU") == 3 and trainer.model.training
    with pytest.raises(RuntimeError, match="no room"):
        trainer_of(tmp_path, [vestige.Callback("tofu", **QUICK)]).train()


@one_test(
    ("said", "words"),
    [
        ({"every": "week"}, "a number of steps, 'epoch'"),
        ({"every": 0}, "a number of steps"),
        ({"keep": "some"}, "'all', 'best', 'none'"),
        ({"best": "closes"}, "Did you mean 'closest'"),
        ({"metrics": ["forget_Q_A_Probb"]}, "forget_Q_A_Prob"),
        ({"data": "absent"}, "does not exist"),
        ({"retain_logs": "absent.json"}, "do not exist"),
        ({"patience": 0}, "at least 1"),
        ({"on_error": "panic"}, "'log' or 'raise'"),
    ],
)
def test_mistakes_are_refused_before_training(said: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(vestige.UserError, match=words):
        trainer_of(tmp_path, [vestige.Callback("tofu", **{**QUICK, **said})]).train()
    assert not list(tmp_path.rglob("*.safetensors"))


def test_evidence_is_kept_by_a_rule(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "mine.txt").write_text("precious")
    for keep, kept in ((2, {0, 1, 2, 3}), ("best", {0, 1, 3})):
        place = tmp_path / "w" / str(keep)
        scores = iter([0.0, 9.0, 5.0, 1.0])
        callback = vestige.Callback("tofu", every=1, keep=keep, out=place, best=lambda m, s=scores: next(s), **QUICK)
        trainer_of(tmp_path / "t", [callback], max_steps=3).train()
        assert callback.best is not None and callback.best.step == 1
        assert {int(p.name.split("-")[1]) for p in place.glob("step-*")} == kept
        curve = json.loads((place / "watch.json").read_text())
        assert [look["step"] for look in curve["looks"]] == [0, 1, 2, 3] and curve["best"] == 1
    assert (tmp_path / "w" / "mine.txt").read_text() == "precious"


# ---- the best checkpoint ------------------------------------------------------------------------------------------


def given(scores: dict[int, float | None]) -> Any:
    """A rule that gives what the test says, look by look."""
    order = iter(scores.values())
    return lambda moment: next(order)


@pytest.mark.parametrize("native", [False, True], ids=["load_best", "metric_for_best_model"])
def test_the_best_weights_are_loaded_at_the_end(native: bool, tmp_path: Path) -> None:
    rule = given({0: 9.0, 1: None, 2: 0.7, 3: 0.2, 4: 0.1})
    kept: dict[int, list[torch.Tensor]] = {}

    class Copies(vestige.Callback):
        def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **more: Any) -> None:
            kept[state.global_step] = weights(model)
            super().on_step_end(args, state, control, model, **more)

    more: dict[str, Any] = {}
    if native:
        more = {
            "eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1,
            "load_best_model_at_end": True, "metric_for_best_model": "vestige/score",
        }  # fmt: skip
    callback = Copies("tofu", every="never" if native else 1, best=rule, load_best=not native, **QUICK)
    trainer = trainer_of(tmp_path, [callback], **more)
    trainer.train()
    assert callback.best is not None and callback.best.step == 2 and trainer.state.best_global_step == 2
    assert Path(str(trainer.state.best_model_checkpoint)).name == "checkpoint-2"
    assert same(weights(trainer.model), kept[2]) and not same(kept[2], kept[4])


def test_early_stopping_and_a_run_without_a_best(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rule = given({0: 0.0, 1: 0.5, 2: 0.4, 3: None, 4: 0.9})
    callback = vestige.Callback("tofu", every=1, best=rule, patience=2, **QUICK)
    trainer = trainer_of(tmp_path, [callback])
    trainer.train()
    assert trainer.state.global_step == 3 and callback.best is not None and callback.best.step == 1
    never = vestige.Callback("tofu", every=2, load_best=True, best=lambda m: None, **QUICK)
    with caplog.at_level(logging.WARNING):
        other = trainer_of(tmp_path / "b", [never])
        other.train()
    assert never.best is None and other.state.best_model_checkpoint is None
    assert "no checkpoint is the best one" in caplog.text


def test_a_resumed_run_remembers_its_looks(tmp_path: Path) -> None:
    whole = vestige.Callback("tofu", every=1, best=plain_score, out=tmp_path / "a", **QUICK)
    trainer = trainer_of(tmp_path, [whole], save_strategy="steps", save_steps=2)
    trainer.train()
    again = vestige.Callback("tofu", every=1, best=plain_score, out=tmp_path / "b", **QUICK)
    resumed = trainer_of(tmp_path, [again])
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert same(weights(trainer.model), weights(resumed.model))
    found, wanted = ([(x.step, dict(x.values), x.rank.score) for x in c.looks] for c in (again, whole))
    assert found == wanted and again.best is not None and again.best.step == whole.best.step  # type: ignore[union-attr]
    assert [x.directory for x in again.looks] == ["", "", "", "step-3", "step-4"]  # looked at again: only those after


# ---- the rule -----------------------------------------------------------------------------------------------------


def at(prob: float, utility: float = 0.6, auc: float = 0.5) -> Rank:
    """A model before unlearning at 0.9 and 1.0, the retain model at 0.3 and 0.5, utility 0.6 before."""
    gauges = [Gauge("p", prob, 0.9, 0.3), Gauge("mia", auc, 1.0, 0.5)]
    return closest(RunMoment(gauges, utility, 0.6))


def test_the_rule_prefers_the_retain_model_to_over_forgetting() -> None:
    perfect, worse, over, ruined = at(0.3), at(0.6, auc=0.75), at(0.05), at(0.3, utility=0.1)
    assert perfect.score == 1.0 and worse.score is not None and 0.5 < worse.score < 1
    assert over.score is None and over.why.startswith("over-forgotten: p") and over.share is not None and over.share < 0
    assert at(0.3, auc=0.2).why.startswith("over-forgotten: mia")
    assert ruined.score is None and "17 % of the utility" in ruined.why
    assert at(0.9, auc=1.0).score == 0.0  # nothing was forgotten
    assert at(0.35, utility=0.3).score < at(0.4).score  # type: ignore[operator]


def test_the_rule_says_what_is_missing() -> None:
    assert "no retain logs" in closest(RunMoment([Gauge("p", 0.5, 0.9)])).why
    assert "before unlearning was not" in closest(RunMoment([Gauge("p", 0.5, None, 0.1)])).why
    assert "tells" in closest(RunMoment([Gauge("p", 0.5, 0.32, 0.3)])).why
    assert "no metric" in closest(RunMoment()).why
    alone = closest(RunMoment([Gauge("p", 0.3, 0.9, 0.3)]))
    assert alone.score == 1.0 and "not measured" in alone.why
    assert share_left(Gauge("low", 0.2, before=0.1, retain=0.9, high_knows=False)) == pytest.approx(0.875)
    assert share_left(Gauge("loss", 4.0, before=0.1, retain=2.0, high_knows=False, unit=False)) == pytest.approx(
        -1 / 0.95
    )


def test_a_look_is_judged_between_both_models(tmp_path: Path) -> None:
    """The retain model's run as yardstick: the model itself is at 1, the retain model would be at 0."""
    said = {k: v for k, v in QUICK.items() if k != "on_error"} | {"metrics": [PROB, "retain_Q_A_Prob"], "limit": 8}
    retain = vestige.evaluate(LAB / "models" / "retain", out=tmp_path / "retain", **said)
    watch = vestige.Watch(fresh(), tokenizer(), retain_logs=tmp_path / "retain", out=tmp_path / "w", **said)
    [look] = watch.looks
    assert look.rank.share == pytest.approx(1.0) and look.rank.score == pytest.approx(0.0) and look.rank.kept == 1.0
    from transformers import AutoModelForCausalLM

    watch.model = AutoModelForCausalLM.from_pretrained(LAB / "models" / "retain", dtype=torch.float32)
    watch.step()
    best = watch.look()
    assert best is not None and best.values == pytest.approx(retain.summary, abs=1e-6)
    assert best.rank.share == pytest.approx(0.0, abs=1e-5) and best is watch.best
    assert best.verdict["knowledge"] == "equivalent" and best.verdict["word"] == "looks_forgotten"
    assert best.flat()["vestige/verdict_share"] == pytest.approx(0.0, abs=1e-5)

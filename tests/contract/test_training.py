"""Training, unlearning, watching and attacking: what the commands and the callback do to real weights.

The losses of every step are compared with a slow loop in plain torch that knows the formulas of docs/unlearn.md and
nothing of vestige; checkpoints are opened with plain transformers.
"""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import harness
import pytest
import torch
from harness import DATA, FULL, GOLDEN, RETAIN, SYSTEM, UNLEARNED, python, read_json, read_rows, vestige
from safetensors.torch import load_file, save_file
from test_resume import KILL, Command
from torch.nn.functional import logsigmoid
from transformers import AutoModelForCausalLM, AutoTokenizer

PROB, ROUGE, KEPT = "forget_Q_A_Prob", "forget_Q_A_ROUGE", "retain_Q_A_Prob"
LR, STEPS = 2e-3, 4
LLADA, BERT = GOLDEN / "families" / "llada", GOLDEN / "diffusion" / "tiny-mdlm"


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# ---- the reference: plain torch and transformers ---------------------------------------------------------------------

Pair = tuple[list[int], list[int]]  # tokens of a prompt, tokens of the answer with its end


def causal(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def chat(row: dict, question: str = "question", answer: str = "answer", opening: str = "", shots: tuple = ()) -> Pair:
    """A row as the lab's models are asked, by the chat template of their tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(FULL)
    messages = [{"role": "system", "content": SYSTEM}]
    turns = [(shot["question"], shot["answer"]) for shot in shots]
    for asked, said in (*turns, (row[question], row[answer])):
        messages += [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]
    prompt = tokenizer.apply_chat_template(messages[:-1], tokenize=False, add_generation_prompt=True)
    whole = tokenizer.apply_chat_template(messages, tokenize=False)
    before, full, begun = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in (prompt, whole, opening))
    assert full[: len(before)] == before
    return before + begun, full[len(before) :]


def forward(model: Any, pairs: list[Pair]) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of every place, and the answer tokens at theirs; other places have the label -100."""
    width = max(len(prompt) + len(answer) for prompt, answer in pairs)
    ids = torch.zeros(len(pairs), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    labels = torch.full_like(ids, -100)
    for i, (prompt, answer) in enumerate(pairs):
        end = len(prompt) + len(answer)
        ids[i, :end] = torch.tensor(prompt + answer)
        mask[i, :end] = 1
        labels[i, len(prompt) : end] = torch.tensor(answer)
    return model(input_ids=ids, attention_mask=mask).logits, labels


def token_nll(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The loss of each token, which the place before it predicts; 0 where there is no label."""
    after = labels[:, 1:]
    picked = logits[:, :-1].log_softmax(-1).gather(-1, after.clamp(min=0)[..., None])[..., 0]
    return torch.where(after == -100, 0.0, -picked)


def probability(model: Any, pairs: list[Pair]) -> float:
    """forget_Q_A_Prob by its definition: the mean over rows of exp(-mean loss of an answer token)."""
    each = []
    for pair in pairs:
        with torch.no_grad():
            nll = token_nll(*forward(model, [pair]))
        each.append(float(torch.exp(-nll.sum() / len(pair[1]))))
    return sum(each) / len(each)


def forget_rows(**how: Any) -> list[Pair]:
    """The four forget rows of every test here."""
    return [chat(row, **how) for row in read_rows(DATA / "forget.jsonl")[:4]]


def objective(method: str, model: Any, origin: Any, rows: dict[str, list[Pair]], memory: dict[str, float]) -> Any:
    """What is minimised, as docs/unlearn.md has it, with the defaults that it names."""
    logits, labels = forward(model, rows["forget"])
    nll = token_nll(logits, labels)
    told = labels[:, 1:] != -100
    total, length = nll.sum(-1), told.sum(-1)
    mean = nll.sum() / told.sum()
    if method in ("train", "GradAscent"):
        return mean if method == "train" else -mean
    with torch.no_grad():
        start_logits, _ = forward(origin, rows["forget"])
    start_total = token_nll(start_logits, labels).sum(-1)
    spoken = logits[:, :-1][told]  # one line of logits per answer token
    truth = labels[:, 1:][told][:, None]
    if method == "CEU":
        first = torch.zeros_like(told).scatter(1, told.int().argmax(-1, keepdim=True), True)[told]
        goal = spoken.detach().scatter(1, truth, float("-inf")).softmax(-1)
        return -(goal * spoken.log_softmax(-1)).sum(-1)[~first].mean()
    if method == "UNDIAL":
        lowered = start_logits[:, :-1][told] - 10.0 * torch.zeros_like(spoken).scatter(1, truth, 1.0)
        return -(lowered.softmax(-1) * spoken.log_softmax(-1)).sum(-1).mean()
    retain_logits, retain_labels = forward(model, rows["retain"])
    keep = token_nll(retain_logits, retain_labels).sum() / (retain_labels != -100).sum()
    p = torch.exp(-nll[told]).detach()
    if method == "GradDiff":
        return -mean + keep
    if method == "GradDiff-KL":
        with torch.no_grad():
            goal = forward(origin, rows["retain"])[0].log_softmax(-1)
        apart = goal - retain_logits.log_softmax(-1)
        return -mean + (goal.exp() * apart).sum(-1).mean()  # over every place, as in open-unlearning
    if method == "NPO":
        return -2 / 0.1 * logsigmoid(0.1 * (total - start_total)).mean() + keep
    if method == "SimNPO":
        return -0.125 * 2 / 4.5 * logsigmoid(4.5 * total / length).mean() + keep
    if method == "SatImp":
        return -1.0 * (p**5 * (1 - p) * nll[told]).mean() + keep
    if method == "WGA":
        return -(p * nll[told]).mean() + keep
    if method == "DPO":
        liked = token_nll(*forward(model, rows["alternate"])).sum(-1)
        with torch.no_grad():
            liked_before = token_nll(*forward(origin, rows["alternate"])).sum(-1)
        return -2 / 0.1 * logsigmoid(0.1 * ((liked_before - liked) - (start_total - total))).mean() + keep
    assert method == "PDU"
    price = memory.get("price", 1.0)
    memory["price"] = max(0.0, price + float(keep.detach()))
    opinion = logits[labels != -100]  # at the answer's own places, as in open-unlearning
    return ((opinion.max(-1).values - opinion.mean(-1)) ** 2).mean() + price * keep


def slow_training(method: str, origin: Any, rows: dict[str, list[Pair]]) -> tuple[Any, list[float]]:
    """AdamW with a rate that falls to 0 in a line, gradients cut to length 1; all rows in each step."""
    model = copy.deepcopy(origin)
    optimiser = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.0)
    losses: list[float] = []
    memory: dict[str, float] = {}
    for step in range(STEPS):
        optimiser.param_groups[0]["lr"] = LR * (1 - step / STEPS)
        loss = objective(method, model, origin, rows, memory)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        losses.append(float(loss.detach()))
    return model, losses


def moved(before: Any, after: Any) -> torch.Tensor:
    old = dict(before.named_parameters())
    return torch.cat([(p.detach() - old[name].detach()).flatten() for name, p in after.named_parameters()])


# ---- methods ---------------------------------------------------------------------------------------------------------

# Four rows are few: SatImp weighs the forget rows as much as others do. UNDIAL's mean is over answer tokens.
METHODS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("train", "GradAscent", "GradDiff", "NPO", "SimNPO", "WGA", "CEU", "PDU"), ()),
    "GradDiff-KL": ("--knob", "retain_loss_type=KL"),
    "DPO": ("--alternate", "paraphrased_answer"),
    "UNDIAL": ("--knob", "everywhere=false"),
    "SatImp": ("--knob", "gamma=1"),
}


@pytest.fixture(scope="module")
def lesson(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four rows to forget in one batch, and one retain row, so that which one is drawn does not matter."""
    folder = tmp_path_factory.mktemp("lesson")
    harness.write_rows(folder / "forget.jsonl", read_rows(DATA / "forget.jsonl")[:4])
    harness.write_rows(folder / "retain.jsonl", read_rows(DATA / "retain.jsonl")[:1])
    return folder


def command(method: str, lesson: Path, out: Path, *more: object, model: Path = FULL) -> tuple[object, ...]:
    """A training of STEPS steps, each of all rows."""
    words: tuple[object, ...] = ("unlearn", "--method", method.split("-")[0], "--forget", lesson / "forget.jsonl")
    words = (*words, "--retain", lesson / "retain.jsonl")
    if method == "train":
        words = ("train", "--learn", lesson / "forget.jsonl")
    recipe = ("--epochs", STEPS, "--lr", LR, "--batch-size", 4, "--accumulation", 1, "--system-prompt", SYSTEM)
    plain = ("trainer.args.warmup_epochs=0", "trainer.args.weight_decay=0")
    return (*words, "--model", model, *recipe, *plain, "--quiet", "--out", out, *more)


@pytest.mark.parametrize("method", METHODS)
def test_a_training_is_that_of_its_formula(method: str, lesson: Path, tmp_path: Path) -> None:
    """The loss of every step, the saved weights in plain transformers, and what became of the rows."""
    place = RETAIN if method == "train" else FULL
    vestige(*command(method, lesson, tmp_path / "out", *METHODS[method], model=place))
    rows = {"forget": forget_rows(), "alternate": forget_rows(answer="paraphrased_answer")}
    rows["retain"] = [chat(row) for row in read_rows(lesson / "retain.jsonl")] * 4
    origin = causal(place)
    expected, losses = slow_training(method, origin, rows)
    assert read_json(tmp_path / "out" / "training.json")["losses"] == pytest.approx(losses, rel=2e-3, abs=2e-3)
    saved = causal(tmp_path / "out")
    assert moved(expected, saved).norm() < 0.02 * moved(origin, expected).norm()
    gained = probability(saved, rows["forget"]) - probability(origin, rows["forget"])
    assert gained > 0.1 if method == "train" else gained < -0.1


def test_rmu_updates_only_the_weights_that_it_names(lesson: Path, tmp_path: Path) -> None:
    """Its direction is random, so there is no loss to compare; the rows are forgotten all the same."""
    named = ("--knob", r"trainable_params_regex=model\.layers\.1\.mlp.*", "--knob", "steering_coeff=20")
    for name, knobs in (("all", ("--knob", "steering_coeff=20")), ("some", named)):
        vestige(*command("RMU", lesson, tmp_path / name, *knobs))
        losses = read_json(tmp_path / name / "training.json")["losses"]
        assert len(losses) == STEPS and losses[-1] < losses[0]
    before = load_file(FULL / "model.safetensors")
    after = load_file(tmp_path / "some" / "model.safetensors")
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {f"model.layers.1.mlp.{part}_proj.weight" for part in ("gate", "up", "down")}
    assert probability(causal(tmp_path / "all"), forget_rows()) < probability(causal(FULL), forget_rows()) - 0.02


def test_mdu_trains_a_diffusion_model(lesson: Path, tmp_path: Path) -> None:
    more = ("--epochs", 40, "--knob", "alpha=0")
    vestige(*command("MDU", lesson, tmp_path / "out", *more, model=BERT))
    losses = read_json(tmp_path / "out" / "training.json")["losses"]
    assert len(losses) == 40 and sum(losses[-8:]) < sum(losses[:8]) / 2


# ---- a killed training -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mixture of experts, whose files hold every expert by itself and whose memory holds them in one tensor."""
    from transformers import MixtralConfig, MixtralForCausalLM

    place = tmp_path_factory.mktemp("experts")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(FULL / name, place)
    sizes = {"vocab_size": 600, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_local_experts": 2}
    torch.manual_seed(0)
    MixtralForCausalLM(MixtralConfig(**sizes, **heads, eos_token_id=2)).save_pretrained(place)
    return place


def kill_on_the_way(words: tuple[object, ...], out: Path, operations: int) -> None:
    """SIGKILL after so many changes of files."""
    command = Command(out, words)
    assert command.start(KILL, operations).wait().status == -KILL
    assert not (out / "training.json").exists()


@pytest.fixture(scope="module")
def drops(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The full model with dropout, which draws random numbers in every step."""
    place = harness.copy_tree(FULL, tmp_path_factory.mktemp("drops") / "model")
    config = read_json(place / "config.json")
    (place / "config.json").write_text(json.dumps({**config, "attention_dropout": 0.2}))
    return place


@pytest.mark.parametrize(
    ("method", "model", "kills", "more"),
    [
        ("NPO", FULL, 2, ()),
        ("RMU", FULL, 1, ()),
        ("train", "drops", 1, ("--lora", 4)),
        ("GradDiff", BERT, 1, ()),
        ("NPO", LLADA, 1, ()),
        ("GradDiff", LLADA, 1, ("--lora", 4)),
        ("GradDiff", "experts", 1, ()),
    ],
    ids=["NPO", "RMU", "LoRA and dropout", "masked", "LLaDA", "LLaDA LoRA", "experts"],
)
def test_a_killed_training_ends_in_the_same_weights(
    method: str, model: Path | str, kills: int, more: tuple, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """NPO needs its starting model again, RMU its direction, masked models their draws."""
    if isinstance(model, str):
        model = request.getfixturevalue(model)
    places = [tmp_path / "whole", tmp_path / "cut"]
    recipe = ("--epochs", 10, "--batch-size", 2, "--limit", 6, *more)
    commands = [command(method, DATA, out, *recipe, model=model) for out in places]
    operations = Command(places[0], commands[0]).finish()["operations"]
    for number in range(kills):
        kill_on_the_way(commands[1], places[1], operations * (2 - number) // 4)
    vestige(*commands[1])
    whole, cut = (read_json(out / "training.json") for out in places)
    assert any("checkpoint" in note for note in cut["notes"]), "it did not go on, it began again"
    assert len(whole["losses"]) == 30 and cut["losses"] == whole["losses"]
    weights = [harness.digests(out) for out in places]
    (name,) = [name for name in weights[0] if name.endswith(".safetensors")]
    assert weights[0][name] == weights[1][name]
    assert set(weights[0]) == set(weights[1]), "something is left over"
    vestige("verify", places[1])


def test_a_checkpoint_that_lacks_a_tensor_is_refused(tmp_path: Path) -> None:
    recipe = ("--epochs", 10, "--batch-size", 2, "--limit", 6, "--lora", 4)
    words = command("GradDiff", DATA, tmp_path / "out", *recipe, model=LLADA)
    kill_on_the_way(words, tmp_path / "out", 80)
    for path in tmp_path.rglob("checkpoint-*/adapter_model.safetensors"):
        tensors = load_file(path)
        name = min(tensors)
        save_file({f"{name}.else" if key == name else key: value for key, value in tensors.items()}, path)
    refused = vestige(*words, status=2)
    assert name in refused.err and "start again" in refused.err and str(tmp_path) in refused.err


# ---- looking while it trains -----------------------------------------------------------------------------------------


def test_a_watched_unlearning_keeps_the_best_epoch(lesson: Path, tmp_path: Path) -> None:
    """The numbers of an epoch are those of its checkpoint, and watching changes no weight."""
    watch = ("--eval-data", DATA, "--limit", 4, "--metrics", PROB, "--keep-best", f"{PROB}=1")
    vestige(*command("GradDiff", lesson, tmp_path / "plain"))
    vestige(*command("GradDiff", lesson, tmp_path / "out", *watch))
    plain, watched = (load_file(tmp_path / name / "model.safetensors") for name in ("plain", "out"))
    assert all(torch.equal(plain[name], watched[name]) for name in plain)
    record = read_json(tmp_path / "out" / "training.json")
    seen = {look["epoch"]: look["values"][PROB] for look in record["evals"]}
    after = {epoch: value for epoch, value in seen.items() if epoch}
    assert sorted(after) == [1, 2, 3, 4]
    best = max(after, key=lambda epoch: after[epoch])
    assert record["best"]["epoch"] == best < 4  # what was asked for is the probability itself, and it falls
    assert probability(causal(tmp_path / "out" / "best"), forget_rows()) == pytest.approx(after[best], rel=1e-4)
    assert probability(causal(tmp_path / "out"), forget_rows()) == pytest.approx(after[4], rel=1e-4)
    assert read_json(tmp_path / "out" / "evals" / "epoch-4" / "TOFU_SUMMARY.json")[PROB] == after[4]


SCRIPT = """
import json, sys
import torch, vestige
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments

full, data, out, system = sys.argv[1:]
said = {"data": data, "metrics": ["forget_Q_A_Prob", "forget_Q_A_ROUGE"], "limit": 4, "system_prompt": system}
said["cluster"] = "none"
tokenizer = AutoTokenizer.from_pretrained(full)
texts = [json.loads(line) for line in open(data + "/forget.jsonl")][:8]
rows = [tokenizer(row["question"] + " " + row["answer"])["input_ids"][:16] for row in texts]
rows = [{"input_ids": ids, "labels": ids} for ids in rows]

def fresh():
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_pretrained(full, dtype=torch.float32, attention_dropout=0.2)

def with_trainer(callbacks, name):
    args = TrainingArguments(f"{out}/{name}", max_steps=6, per_device_train_batch_size=1, learning_rate=1e-3,
        save_strategy="steps", save_steps=2, report_to="none", seed=3, use_cpu=True, disable_tqdm=True)
    trainer = Trainer(model=fresh(), args=args, train_dataset=rows, processing_class=tokenizer, callbacks=callbacks)
    trainer.train()
    return trainer.model

def with_loop(watched):
    model = fresh().train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    watch = vestige.Watch(model, tokenizer, "tofu", every=2, on_error="raise", **said) if watched else None
    for row in rows[:4]:
        ids = torch.tensor([row["input_ids"]])
        model(input_ids=ids, labels=ids).loss.backward()
        if watch:
            watch.look()  # gradients are there, and stay
        optimiser.step()
        optimiser.zero_grad()
        if watch:
            watch.step()
    return model, watch

def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))

callback = vestige.Callback("tofu", every=2, on_error="raise", **said)
trainer = same(with_trainer([], "plain"), with_trainer([callback], "watched"))
plain, _ = with_loop(False)
model, watch = with_loop(True)
end = vestige.evaluate(model, tokenizer=tokenizer, **said).summary
looks = {look.step: look.values for look in callback.looks}
checkpoints = {n: vestige.evaluate(f"{out}/watched/checkpoint-{n}", **said).summary for n in (2, 6)}
kept = vestige.load_run(f"{out}/watched/vestige/step-4").summary
print(json.dumps({"trainer": trainer, "loop": same(plain, model), "looks": looks, "checkpoints": checkpoints,
    "kept": kept, "end": end, "last": watch.looks[-1].values, "steps": [look.step for look in watch.looks]}))
"""


def test_looking_changes_no_weight_and_gives_the_numbers_of_the_checkpoint(tmp_path: Path) -> None:
    """A Trainer and a loop, both with dropout: one random number too many would change the weights."""
    printed = python(SCRIPT, FULL, DATA, tmp_path, SYSTEM).out
    found = json.loads(printed.splitlines()[-1])
    assert found["trainer"] is True and found["loop"] is True
    assert list(found["looks"]) == ["0", "2", "4", "6"]
    for step, values in found["checkpoints"].items():
        assert found["looks"][step] == pytest.approx(values, abs=1e-6)
    assert found["looks"]["4"] == pytest.approx(found["kept"], abs=1e-12)
    assert found["looks"]["0"][PROB] != found["looks"]["2"][PROB] != found["looks"]["6"][PROB]
    assert found["last"] == pytest.approx(found["end"], abs=1e-6)
    assert sorted(set(found["steps"])) == [0, 1, 2, 3, 4]
    curve = read_json(tmp_path / "watched" / "vestige" / "watch.json")
    assert f"{found['looks']['6'][PROB]}" in json.dumps(curve)


# ---- attacks ---------------------------------------------------------------------------------------------------------

ATTACKS = ("relearn=1,4", "quantise=4,8", "prune=0.5", "jailbreak", "paraphrase", "few-shot=2", "leak=1,2")
SAID = ("--data", DATA, "--limit", 4, "--system-prompt", SYSTEM, "--quiet")


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every attack on the unlearned model, with the retain model as control; attacked checkpoints are kept."""
    pytest.importorskip("bitsandbytes")
    out = tmp_path_factory.mktemp("stress") / "out"
    recipe = ("--lr", LR / 2, "--batch-size", 4, "--epochs", 4, "--accumulation", 1, "--compute-dtype", "float32")
    models = ("--model", UNLEARNED, "--retain-model", RETAIN, "--metrics", f"{PROB},{ROUGE},{KEPT}")
    before = harness.digests(UNLEARNED)
    vestige("stress", *ATTACKS, *models, *SAID, *recipe, "--keep", "--out", out)
    assert harness.digests(UNLEARNED) == before  # no attack writes into the checkpoint it attacks
    return out


def values(out: Path, who: str = "model") -> dict[tuple[str, float | None], dict[str, float]]:
    return {
        (row["attack"], row["budget"]): row["values"]
        for row in read_json(out / "stress.json")["rows"]
        if row["model"] == who
    }


def measured(model: Path, out: Path, *more: object) -> float:
    vestige("eval", "tofu", "--model", model, *SAID, "--metrics", PROB, "--out", out, *more)
    return float(read_json(out / "TOFU_SUMMARY.json")[PROB])


def test_every_attack_is_measured_beside_its_control(attacked: Path) -> None:
    model, control = values(attacked), values(attacked, "retain")
    assert list(model) == list(control) and len(model) == 11
    for found, place in ((model, UNLEARNED), (control, RETAIN)):
        assert found["none", None][PROB] == pytest.approx(probability(causal(place), forget_rows()), rel=1e-4)


def test_relearning_brings_back_more_than_it_teaches(attacked: Path, tmp_path: Path) -> None:
    model, control = values(attacked), values(attacked, "retain")
    start, one, four = (model[key][PROB] for key in (("none", None), ("relearn", 1), ("relearn", 4)))
    assert start < one < four
    gained, taught = four - start, control["relearn", 4][PROB] - control["none", None][PROB]
    assert gained > 2 * taught > 0
    (r,) = [r for r in read_json(attacked / "stress.json")["relearning"] if (r["metric"], r["budget"]) == (PROB, 4)]
    assert r["one-sided"] == pytest.approx(taught / gained) and r["gained"] == pytest.approx(gained)
    kept = attacked / "checkpoints" / "model" / "relearn-4"
    assert probability(causal(kept), forget_rows()) == pytest.approx(four, rel=1e-4)


def test_pruning_zeroes_the_smallest_half_of_each_layer(attacked: Path) -> None:
    place = attacked / "checkpoints" / "model" / "prune-0.5"
    before, after = load_file(UNLEARNED / "model.safetensors"), load_file(place / "model.safetensors")
    layers = [name for name in before if "_proj" in name]
    assert len(layers) == 28
    for name in before:
        if name not in layers:
            assert torch.equal(before[name], after[name]), name
            continue
        gone = after[name] == 0
        assert int(gone.sum()) == gone.numel() // 2
        assert before[name][gone].abs().max() <= before[name][~gone].abs().min()
        assert torch.equal(before[name][~gone], after[name][~gone])
    assert values(attacked)["prune", 0.5][PROB] == pytest.approx(probability(causal(place), forget_rows()), rel=1e-4)


def test_quantised_numbers_are_those_of_the_quantised_model(attacked: Path, tmp_path: Path) -> None:
    """An evaluation of the model read in 4 bits."""
    found = values(attacked)
    four, eight = found["quantise", 4][PROB], found["quantise", 8][PROB]
    start = found["none", None][PROB]
    assert 0 < abs(eight - start) < 0.02 and 0 < abs(four - start) < 0.1
    more = ("--quantization", "4bit", "--compute-dtype", "float32")
    assert measured(UNLEARNED, tmp_path / "bits", *more) == pytest.approx(four, abs=1e-6)


def test_prompt_attacks_ask_otherwise_and_spare_retain_rows(attacked: Path) -> None:
    """Each against the prompt that docs/stress.md describes, built by hand."""
    asked = {
        "jailbreak": forget_rows(opening="Sure, here is the answer:"),
        "paraphrase": forget_rows(question="paraphrased_question"),
        "few-shot": forget_rows(shots=tuple(read_rows(DATA / "retain.jsonl")[:2])),
    }
    found = {attack: numbers for (attack, _), numbers in values(attacked).items() if attack in (*asked, "none")}
    model = causal(UNLEARNED)
    for attack, pairs in asked.items():
        assert found[attack][PROB] == pytest.approx(probability(model, pairs), rel=1e-4)
        assert abs(found[attack][PROB] - found["none"][PROB]) > 0.05
        assert found[attack][KEPT] == pytest.approx(found["none"][KEPT], abs=1e-6)


def test_a_leak_is_the_best_of_its_samples(attacked: Path) -> None:
    samples = []
    for sample in range(2):
        rows = read_json(attacked / "evals" / "model" / f"leak-{sample}" / "TOFU_EVAL.json")[ROUGE]["value_by_index"]
        samples.append({index: row["rougeL_recall"] for index, row in rows.items()})
    one, two = samples
    assert len(one) == 4 and one != two
    found = values(attacked)
    assert found["leak", 1][ROUGE] == pytest.approx(sum((*one.values(), *two.values())) / 8)
    assert found["leak", 2][ROUGE] == pytest.approx(sum(max(one[i], two[i]) for i in one) / 4)

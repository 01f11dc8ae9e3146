"""Metrics along the denoising path: golden values from saved logits, and the two suites against a slow recomputation.

The golden files have logits R [token, position, pass], the pass F that decided each position, and the value of every
metric in every view, along every trajectory, at every step. `logits_source: external` reads such logits instead of
running a model. The sampler's own golden runs are in test_diffusion.py.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import harness
import numpy as np
import pytest
import torch
from formulas import auc
from harness import DATA, read_json, vestige
from safetensors.torch import save_file

import vestige as package

GOLDEN = read_json(harness.GOLDEN / "trajectory.json")
CASES = {case["name"]: case for case in GOLDEN["cases"]}
SOUND = [name for name in CASES if name != "out_of_range_F"]
GEOMETRY = {name: case for name, case in GOLDEN["batched_geometry"].items() if name != "errors"}
TRAJECTORIES = ("steps", "fixation_start", "fixation_end", "fixation_ratio")
VIEWS = ("full", "eos")
IGNORE = -100


# ---- the four tensors ------------------------------------------------------------------------------------------------


def history_of(case: dict[str, Any]) -> tuple[list[torch.Tensor], torch.Tensor, list[int]]:
    """A golden case as a sampler's output: a canvas per pass, behind a prompt of two tokens."""
    logits = torch.tensor(case["R_vls"])
    before = torch.full((logits.shape[0], 2), -7.0)
    history = [torch.cat([before, logits[:, :, step]], dim=1).T[None] for step in range(logits.shape[2])]
    return history, torch.tensor([[0, 0, *case["F"]]]), [2]


@pytest.mark.parametrize("name", SOUND)
def test_tensors_read_the_published_passes(name: str) -> None:
    case = CASES[name]
    logits = torch.tensor(case["R_vls"])
    found = package.trajectories_from_logits(*history_of(case))
    assert (found["S"], found["L"], found["F"].tolist()) == (case["S"], case["L"], [case["F"]])
    assert torch.equal(found["R"][0], logits)
    for along in TRAJECTORIES:
        for step, passes in enumerate(case["source_steps_sl"][along]):
            assert torch.equal(found[along][0, :, :, step], logits[:, range(case["L"]), passes]), (along, step)


@pytest.mark.parametrize("name", GEOMETRY)
def test_where_the_window_lies_on_the_canvas(name: str) -> None:
    """Published code cuts all rows behind the longest prompt, which is right for prompts padded on the left."""
    case = GEOMETRY[name]
    history, fixed = list(torch.tensor(case["logits_history_sbtv"])), torch.tensor(case["fixation_steps_bt"])
    found = package.trajectories_from_logits(history, fixed, case["prompt_lens"], padding="left")
    assert (found["S"], found["L"], found["F"].tolist()) == (case["S"], case["L"], case["F"])
    assert float(found["R"].sum()) == pytest.approx(case["R_bvls_sum"], abs=1e-4)
    assert found["R"][:, :, 0, 0].tolist() == case["R_first_row_l0_s0"]
    if name.startswith("full_sequence"):
        own = package.trajectories_from_logits(history, fixed, case["prompt_lens"])
        for row, start in enumerate(case["prompt_lens"]):
            assert own["F"][row].tolist() == case["fixation_steps_bt"][row][start : start + case["L"]]
            for step, canvas in enumerate(history):
                assert torch.equal(own["R"][row, :, :, step].T, canvas[row, start : start + case["L"]])


def test_a_wrong_argument_is_named() -> None:
    history, fixed, lengths = history_of(CASES["random_all_valid"])
    wrong = {"logits_history": ([], fixed, lengths), "fixation_steps": (history, fixed[0], lengths)}
    wrong |= {"prompt_lens": (history, fixed, [2, 2]), "0, 7": history_of(CASES["out_of_range_F"])}
    for named, arguments in wrong.items():
        with pytest.raises(package.UserError, match=named):
            package.trajectories_from_logits(*arguments)


# ---- golden metrics from saved logits --------------------------------------------------------------------------------

HANDLERS: dict[str, dict[str, str]] = {
    "probability": {},
    "confidence": {"handler": "probability_confidence_ordered"},
    "em": {"handler": "exact_memorization"},
    "es": {"handler": "extraction_strength"},
    "es_decided": {"handler": "extraction_strength", "order": "decided"},
    "rouge1": {"handler": "rouge", "rouge_type": "rouge1_recall"},
    "rougeL": {"handler": "rouge", "rouge_type": "rougeL_recall"},
    "rougeF": {"handler": "rouge", "rouge_type": "rougeL_f1"},
}
SAME = ("sp_prob", "sp_conf_ordered", "sp_em", "sp_es_suffix", "es_fixation_same_position")
CAUSAL = ("prob_traj", "prob_conf_ordered_shifted", "em", "es_suffix", "es_fixation_causal")
CAUSAL += ("rouge1_recall", "rougeL_recall", "rougeL_f1")
KEYS = {"same_position": dict(zip(HANDLERS, SAME, strict=False)), "causal": dict(zip(HANDLERS, CAUSAL, strict=True))}
GOLDEN_ROWS = [name for name in SOUND if name != "all_ignored"]
ATTACKED = {
    "forget": ["random_first_ignored", "labels_shorter_than_L", "causal_partial"],
    "holdout": ["F_all_last", "perfect_causal", "perfect_same_position", "F_all_zero"],
}
EXTRACTION: dict[tuple[str, int], list[dict[str, Any]]] = {}
for one in read_json(harness.GOLDEN / "trajectory_extraction.json")["cases"]:
    EXTRACTION.setdefault((one["alignment"], len(one["F"])), []).append(one)
Row = tuple[torch.Tensor, list[int], list[int]]  # logits, deciding passes, answer


class Saved:
    """A folder with saved logits, the rows that they answer, and metrics that read both."""

    def __init__(self, place: Path) -> None:
        from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
        from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

        self.place = place
        self.names: list[str] = []
        words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(50)}, unk_token="w3"))  # as in the golden texts
        words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        special = {}
        for number, name in enumerate(("pad", "bos", "eos", "unk", "mask")):
            special[f"{name}_token"] = AddedToken(f"w{number}", single_word=True, special=True)
        PreTrainedTokenizerFast(tokenizer_object=words, **special).save_pretrained(place / "model")
        sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
        config = BertConfig(vocab_size=50, pad_token_id=0, mask_token_id=4, **sizes)
        BertForMaskedLM(config).save_pretrained(place / "model")

    def add(self, name: str, metrics: Any, sets: dict[str, list[Row]], form: str = "safetensors", **more: Any) -> None:
        """A metric over data sets of rows, each row behind a prompt of its own."""
        datasets, tensors = {}, {}
        for access, rows in sets.items():
            lines = []
            for logits, fixed, answer in rows:
                number = len(tensors) // 2
                tensors[f"logits.{number}"] = logits.clone().contiguous()
                tensors[f"fixation_steps.{number}"] = torch.tensor(fixed)
                lines.append({"input_ids": [6, 7 + number, *answer], "labels": [IGNORE, IGNORE, *answer]})
            path = harness.write_rows(self.place / f"{name}_{access}.jsonl", lines)
            args = {"hf_args": {"path": str(path)}}
            datasets[f"{name}_{access}"] = {"handler": "TokenDataset", "access_key": access, "args": args}
        file = self.place / f"{name}.{form}"
        if form == "npz":
            np.savez(file, **{key: tensor.numpy() for key, tensor in tensors.items()})
        else:
            {"safetensors": save_file, "pt": torch.save}[form](tensors, file)
        sampler = {"max_new_tokens": len(fixed), "steps": 8, **more.pop("sampler_kwargs", {})}
        config = {"logits_source": "external", "logits_path": str(file), "eos_token_id": 2, "sampler_kwargs": sampler}
        whole = {"handler": "trajectory_metrics", "metrics": metrics, "datasets": datasets}
        write_metric(self.place, name, {**whole, "trajectory_config": {**config, **more}})
        self.names.append(name)

    def words(self, *metrics: str) -> tuple[object, ...]:
        """The command that computes metrics, all of them unless some are named."""
        words = ("--model", self.place / "model", "--config-dir", self.place, "--out", self.place / "run", "--quiet")
        return ("eval", "tofu", *words, "stats.resamples=0", "--metrics", ",".join(metrics or self.names))


def write_metric(place: Path, name: str, config: dict[str, Any]) -> None:
    file = place / "eval" / "tofu_metrics" / f"{name}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"# @package eval.tofu.metrics.{name}\n{json.dumps(config)}\n")


def as_row(name: str, alignment: str = "same_position") -> Row:
    """A golden case as logits, deciding passes and an answer.

    Half of the cases leave their first label out, which a row cannot. With `causal` hardly a metric scores label 0, so
    a special token stands in; with `same_position` the window begins a position later.
    """
    case = CASES[name]
    logits, fixed, labels = torch.tensor(case["R_vls"]), case["F"], list(case["labels"])
    while labels[-1] == IGNORE:
        labels.pop()
    start = 1 if labels[0] == IGNORE else 0
    if alignment == "causal":
        return logits, fixed, [3, *labels[1:]] if start else labels
    return logits[:, start:], fixed[start:], labels[start:]


@pytest.fixture(scope="session")
def saved_run(shared: Callable[..., Path]) -> Path:
    """Everything that saved logits are asked for, in one command."""

    def build(place: Path) -> None:
        saved = Saved(place)
        for name, (alignment, keys) in itertools.product(GOLDEN_ROWS, KEYS.items()):
            metrics = {key: HANDLERS[key] for key in keys}
            saved.add(f"{name}_{alignment}", metrics, {"own": [as_row(name, alignment)]}, logit_alignment=alignment)
        for (alignment, length), cases in EXTRACTION.items():
            rows = {"own": [(torch.tensor(case["R"]), case["F"], case["labels"]) for case in cases]}
            metrics = {"es_decided": HANDLERS["es_decided"], "probability": {}}
            form = "npz" if alignment == "causal" else "pt"
            saved.add(f"decided_{alignment}_{length}", metrics, rows, form, logit_alignment=alignment)
        attacks = {name: {"handler": name, "k": 0.4} for name in ("mia_min_k", "mia_min_k_plus_plus")}
        saved.add("attacks", attacks, {access: [as_row(name) for name in names] for access, names in ATTACKED.items()})
        one = {"own": [as_row("random_all_valid")]}
        saved.add("prose", ["probability"], one, trajectories=["fixation", "fixation_end", "ratio", "steps"])
        saved.add("flat", ["probability"], one, include_views=["eos"], legacy_flat=True)
        saved.add("one_view", ["probability"], one, include_views="full", store_per_sample=True)
        saved.add("nothing", ["probability"], {"own": [(*as_row("random_all_valid")[:2], [])]})
        (place / "printed").write_text(vestige(*saved.words()).printed)

    return shared("saved-logits", build)


def scored(place: Path, metric: str) -> dict[str, Any]:
    found: dict[str, Any] = read_json(place / "run" / "TOFU_EVAL.json")[metric]
    return found


def golden_values(name: str, view: str, along: str, key: str) -> list[Any]:
    return [step[key] for step in CASES[name]["views"][view][along]]


def close(expected: Any, got: Any, text: object = "") -> None:
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-7, err_msg=str(text))  # as the golden file asks


def distribution(values: np.ndarray) -> dict[str, float]:
    half = 1.96 * values.std() / math.sqrt(len(values))
    found = {"mean": values.mean(), "std": values.std(), "median": np.median(values), "min": values.min()}
    found |= {"p25": np.percentile(values, 25), "p75": np.percentile(values, 75), "max": values.max()}
    return {**found, "ci_low": values.mean() - half, "ci_high": values.mean() + half}


@pytest.mark.parametrize("alignment", KEYS)
@pytest.mark.parametrize("name", GOLDEN_ROWS)
def test_every_golden_value(name: str, alignment: str, saved_run: Path) -> None:
    """In both views, along all trajectories, at every step. Golden values that are undefined are null."""
    case = CASES[name]
    found = scored(saved_run, f"{name}_{alignment}")
    ignored = case["labels"][0] == IGNORE
    compared = 0
    for view, along, (metric, key) in itertools.product(VIEWS, TRAJECTORIES, KEYS[alignment].items()):
        expected, curve = golden_values(name, view, along, key), found["agg_value"][view][along][metric]
        if None in expected or (key == "es_fixation_causal" and ignored):  # this one scores label 0
            continue
        if (name, alignment, view, metric) == ("eos_first", "causal", "eos", "probability"):
            assert set(expected) == {1.0}  # of no token at all
            assert curve == [None] * case["S"]
            continue
        close(expected, curve, (view, along, metric))
        compared += len(curve)
    assert compared >= 2 * 4 * case["S"] * 4
    metadata = found["trajectory_step_metadata"]
    assert metadata["effective_length_by_index"] == {"0": case["L_eff"] - (ignored and alignment == "same_position")}
    assert metadata["prompt_len_by_index"] == {"0": 2}
    assert metadata["num_trajectory_steps"] == case["S"]


@pytest.mark.parametrize(("alignment", "length"), EXTRACTION)
def test_published_extraction_strength(alignment: str, length: int, saved_run: Path) -> None:
    """At the last step every position is read at its own deciding pass: as published, over the rows of a group."""
    cases = EXTRACTION[alignment, length]
    metric = f"decided_{alignment}_{length}"
    found = scored(saved_run, metric)
    steps = {str(number): case["S"] for number, case in enumerate(cases)}
    assert found["trajectory_step_metadata"]["num_steps_by_index"] == steps
    assert f"{metric}.{'npz' if alignment == 'causal' else 'pt'}" in (saved_run / "printed").read_text()  # another S
    expected = distribution(np.array([case["extraction_strength"] for case in cases]))
    for along in TRAJECTORIES:
        spread = {key: values[-1] for key, values in found["step_distribution"]["full"][along]["es_decided"].items()}
        assert spread == pytest.approx(expected, abs=1e-12), along


def test_rows_with_fewer_passes_carry_their_last_value_on(saved_run: Path) -> None:
    cases = EXTRACTION["same_position", 8]
    spread = scored(saved_run, "decided_same_position_8")["step_distribution"]["full"]["steps"]["probability"]
    for step in range(max(case["S"] for case in cases)):
        likely = []
        for case in cases:
            rows = torch.tensor(case["R"])[:, :, min(step, case["S"] - 1)].double().log_softmax(0)
            likely.append(math.exp(rows[case["labels"], range(8)].mean()))
        assert {key: values[step] for key, values in spread.items()} == pytest.approx(distribution(np.array(likely)))


@pytest.mark.parametrize(("handler", "key"), [("mia_min_k", "sp_min_k"), ("mia_min_k_plus_plus", "sp_min_k_pp")])
def test_attacks_at_every_step(handler: str, key: str, saved_run: Path) -> None:
    """The AUC of golden scores of forget and holdout rows."""
    found = scored(saved_run, "attacks")["agg_value"]
    different = set()
    for view, along in itertools.product(VIEWS, TRAJECTORIES):
        forget, holdout = ([golden_values(name, view, along, key) for name in names] for names in ATTACKED.values())
        for step, got in enumerate(found[view][along][handler]):
            expected = auc([row[step] for row in forget], [row[step] for row in holdout])
            assert got == pytest.approx(expected, abs=1e-12), (view, along, step)
            different.add(expected)
    assert len(different) > 3


def test_the_maps_of_the_guides_prose(saved_run: Path) -> None:
    """`fixation` is `fixation_end` read backwards; `ratio` stretches towards the deciding pass without reaching it."""
    case = CASES["random_all_valid"]
    found = scored(saved_run, "prose")["agg_value"]["full"]
    assert found["fixation"]["probability"] == found["fixation_end"]["probability"][::-1]
    for passes, got in zip(case["source_steps_sl_prose"]["ratio"], found["ratio"]["probability"], strict=True):
        rows = torch.tensor(case["R_vls"])[:, range(12), passes].double().log_softmax(0)
        close(math.exp(rows[case["labels"], range(12)].mean()), got)


def test_shapes_of_the_result(saved_run: Path) -> None:
    """Nested by view unless one view is asked for flat; values of rows on request; null with a reason."""
    flat, one, both = (scored(saved_run, name) for name in ("flat", "one_view", "random_all_valid_same_position"))
    for key in ("agg_value", "step_distribution"):
        assert set(both[key]) == set(VIEWS) and set(one[key]) == {"full"} and set(flat[key]) == set(TRAJECTORIES)
    assert "value_by_index" not in both
    for along in TRAJECTORIES:
        close(golden_values("random_all_valid", "eos", along, "sp_prob"), flat["agg_value"][along]["probability"])
        row = one["value_by_index"]["0"]["trajectories"][along]
        assert list(row) == [f"step_{k}" for k in range(8)]
        values = [step["probability"] for step in row.values()]
        close(golden_values("random_all_valid", "full", along, "sp_prob"), values)
    nothing = scored(saved_run, "nothing")
    assert nothing["agg_value"] is None and nothing["reason"]
    assert "nothing" not in read_json(saved_run / "run" / "TOFU_SUMMARY.json")


def test_saved_logits_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    saved = Saved(tmp_path)
    row = as_row("random_all_valid")
    one = {"logits_path": str(tmp_path / "one.safetensors")}
    saved.add("one", ["probability"], {"own": [row]})
    for rows, changes, named in (
        ([row, row], one, "one.safetensors|2 rows|1 window"),
        ([row], {"sampler_kwargs": {"max_new_tokens": 9}}, "mine.safetensors|max_new_tokens|12|9"),
        ([row], {"logits_path": str(tmp_path / "gone.npz")}, "gone.npz"),
        ([as_row("out_of_range_F")], {}, "fixation_steps|99"),
    ):
        saved.add("mine", ["probability"], {"own": rows}, **changes)
        harness.refused(named, *saved.words("mine"))


# ---- the suites, recomputed slowly -----------------------------------------------------------------------------------

LAB = harness.GOLDEN / "lab_diffusion"
STEPS, LENGTH = 5, 24
Place = tuple[str, str, int]  # view, trajectory, step
Pair = tuple[tuple[int, ...], tuple[int, ...]]  # a prompt and the tokens of an answer


class Denoiser:
    """A plain masked-diffusion sampler: one prompt at a time, the whole window at once, surest positions first."""

    def __init__(self, name: str, guided: bool = False) -> None:
        from transformers import AutoModelForMaskedLM, AutoTokenizer

        self.model = AutoModelForMaskedLM.from_pretrained(LAB / "models" / name).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(LAB / "models" / name)
        self.guided = guided
        self.chat = cache(self._chat)
        self.window = cache(self._window)
        self.passes = cache(self._passes)

    def _chat(self, question: str, answer: str) -> Pair:
        turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        prompt = self.tokenizer.apply_chat_template(turns[:1], add_generation_prompt=True, return_dict=False)
        whole = self.tokenizer.apply_chat_template(turns, return_dict=False)
        assert whole[: len(prompt)] == prompt
        return tuple(prompt), tuple(whole[len(prompt) :])

    @torch.no_grad()
    def _window(self, prompt: tuple[int, ...], target: tuple[int, ...]) -> tuple[torch.Tensor, list[int], list[int]]:
        """Log-probabilities [pass, position, token], the pass that decided each position, the finished text."""
        mask = self.model.config.mask_token_id
        canvas, fixed, seen = [mask] * LENGTH, [-1] * LENGTH, []
        for step in range(STEPS):
            logits = self.model(input_ids=torch.tensor([[*prompt, *canvas]])).logits[0, len(prompt) :]
            seen.append(torch.log_softmax(logits.double(), dim=-1))
            sure, choice = (found.tolist() for found in seen[-1].max(dim=-1))
            choice[: len(target)] = target
            hidden = sorted((place for place in range(LENGTH) if canvas[place] == mask), key=lambda place: -sure[place])
            for place in hidden[: round(len(hidden) / (STEPS - step))]:
                canvas[place], fixed[place] = choice[place], step
        return torch.stack(seen), fixed, canvas

    def look(self, pair: Pair) -> tuple[torch.Tensor, list[int], list[int]]:
        return self.window(pair[0], pair[1][:LENGTH] if self.guided else ())

    def _passes(self, pair: Pair, place: Place) -> list[int]:
        """The pass to read at each position of a view."""
        _, fixed, text = self.look(pair)
        view, along, step = place
        end = self.tokenizer.eos_token_id
        effective = text.index(end) + 1 if end in text and view == "eos" else LENGTH
        found = []
        for decided in fixed[:effective]:
            ends = {"fixation_start": min(step, decided), "fixation_end": max(0, decided - (STEPS - 1) + step)}
            found.append({"steps": step, **ends, "fixation_ratio": decided * step // (STEPS - 1)}[along])
        return found

    def answer(self, pair: Pair, place: Place) -> np.ndarray:
        """The log-probability of every token of an answer in the view."""
        passes = self.passes(pair, place)[: len(pair[1])]
        return self.look(pair)[0][passes, range(len(passes)), pair[1][: len(passes)]].numpy()

    def min_k(self, pair: Pair, place: Place) -> float:
        """Published code leaves the last token out; where the text ended at once nothing is left, which scores 0."""
        found = np.sort(self.answer(pair, place)[:-1])
        return -float(found[: max(1, int(0.4 * len(found)))].mean()) if len(found) else 0.0

    def truth_ratio(self, row: dict[str, Any], place: Place) -> float:
        right = self.answer(self.chat(row["question"], row["paraphrased_answer"]), place).mean()
        wrong = [self.answer(self.chat(row["question"], text), place).mean() for text in row["perturbed_answer"]]
        return math.exp(np.mean(wrong)) / (math.exp(right) + 1e-10)


def slow_privleak(models: list[Denoiser], forget: list[Pair], holdout: list[Pair], place: Place) -> float:
    """Of the first model, beside the second, the retain model."""
    mine, ref = (auc(*([m.min_k(pair, place) for pair in pairs] for pairs in (forget, holdout))) for m in models)
    return ((1 - mine) - (1 - ref)) / ((1 - ref) + 1e-10) * 100


def run_suite(suite: str, model: str, data: Path, out: Path, *more: object) -> Any:
    key = f"eval.{suite}.metrics.trajectory_metrics.trajectory_config.sampler_kwargs"
    settings = (f"{key}.max_new_tokens={LENGTH}", f"{key}.steps={STEPS}", f"{key}.trajectory_sample_interval=1")
    words = ("--model", LAB / "models" / model, "--data", data, "--cluster", "none", "--quiet", "stats.resamples=0")
    vestige("eval", suite, *words, *settings, *more, "--out", out)
    (file,) = out.glob("*_EVAL.json")
    return read_json(file)["trajectory_metrics"]


def at_step(found: dict[str, Any], place: Place) -> dict[str, float]:
    view, along, step = place
    return {metric: curve[step] for metric, curve in found["agg_value"][view][along].items()}


@pytest.fixture(scope="session")
def tofu(shared: Callable[..., Path]) -> Path:
    """The retain model's run along the denoising path, and the unlearned model's, which is compared with it."""

    def build(place: Path) -> None:
        rows = {name: harness.read_rows(LAB / "data" / f"{name}.jsonl") for name in ("forget", "holdout", "retain")}
        # Rows whose distributions lie now nearer, now further apart along the path, so that no curve is flat.
        chosen = {"forget": [rows["forget"][number] for number in (0, 3, 4, 8)], "retain": rows["retain"][:2]}
        chosen["holdout"] = [*rows["holdout"][:3], rows["retain"][-8]]
        for name in ("real_authors", "world_facts"):
            chosen[name] = harness.read_rows(LAB / "data" / f"{name}.jsonl")[:2]
        for name, some in chosen.items():
            harness.write_rows(place / "data" / f"{name}.jsonl", some)
        run_suite("tofu_trajectory", "retain", place / "data", place / "retain")
        logs = ("--retain-logs", place / "retain" / "TOFU_EVAL.json")
        run_suite("tofu_trajectory", "npo", place / "data", place / "npo", *logs)

    return shared("tofu-trajectory", build)


def test_the_tofu_suite_at_every_step(tofu: Path) -> None:
    from scipy.stats import ks_2samp

    found = read_json(tofu / "npo" / "TOFU_EVAL.json")["trajectory_metrics"]
    models = [Denoiser("npo"), Denoiser("retain")]
    rows = {name: harness.read_rows(tofu / "data" / f"{name}.jsonl") for name in ("forget", "holdout")}
    pairs = {name: [models[0].chat(row["question"], row["answer"]) for row in group] for name, group in rows.items()}
    seen: dict[str, set[float]] = {}
    for place in itertools.product(VIEWS, TRAJECTORIES, range(STEPS)):
        got = at_step(found, place)
        ratios = [[model.truth_ratio(row, place) for row in rows["forget"]] for model in models]
        expected = {
            "probability": float(np.mean([math.exp(models[0].answer(p, place).mean()) for p in pairs["forget"]])),
            "truth_ratio": float(np.mean([min(ratio, 1 / (ratio + 1e-10)) for ratio in ratios[0]])),
            "forget_quality": float(ks_2samp(*ratios).pvalue),
            "privleak": slow_privleak(models, pairs["forget"], pairs["holdout"], place),
        }
        assert {name: got[name] for name in expected} == pytest.approx(expected, rel=2e-5, abs=1e-6), place
        if place[1] == "steps":
            parts = found["retain_mu_components_by_step"][str(place[2])][place[0]]
            assert len(parts) == 9
            assert got["model_utility"] == pytest.approx(9 / sum(1 / part for part in parts.values()), rel=1e-9)
        for name, value in got.items():
            seen.setdefault(name, set()).add(round(value, 6))
    assert all(len(seen[name]) > 2 for name in (*expected, "model_utility", "rouge", "exact_memorization")), seen
    assert found["agg_value"]["full"] != found["agg_value"]["eos"]


def test_a_run_without_retain_logs_says_what_it_lacks(tofu: Path) -> None:
    alone = read_json(tofu / "retain" / "TOFU_EVAL.json")["trajectory_metrics"]
    curves = alone["agg_value"]["full"]["steps"]
    assert curves["forget_quality"] == [None] * STEPS
    assert "retain" in alone["reasons"]["forget_quality"]
    assert any("privleak" in note and "0.5" in note for note in alone["notes"])


def test_the_muse_suite_at_every_step(tmp_path: Path) -> None:
    """Plain texts have no prompt but their first token."""
    for name in ("knowmem_forget_qa", "knowmem_forget_qa_icl", "privleak_forget", "privleak_holdout"):
        harness.write_rows(tmp_path / "data" / f"{name}.jsonl", harness.read_rows(DATA / "muse" / f"{name}.jsonl")[:4])
    run_suite("muse_trajectory", "retain", tmp_path / "data", tmp_path / "retain")
    logs = ("--retain-logs", tmp_path / "retain" / "MUSE_EVAL.json")
    found = run_suite("muse_trajectory", "npo", tmp_path / "data", tmp_path / "npo", *logs)
    models = [Denoiser("npo"), Denoiser("retain")]
    groups = []
    for name in ("forget", "holdout"):
        texts = [row["text"] for row in harness.read_rows(tmp_path / "data" / f"privleak_{name}.jsonl")]
        ids = [models[0].tokenizer(text)["input_ids"] for text in texts]
        groups.append([(tuple(one[:1]), tuple(one[1:])) for one in ids])
    seen = set()
    for place in itertools.product(VIEWS, TRAJECTORIES, range(STEPS)):
        expected = slow_privleak(models, *groups, place)
        assert at_step(found, place)["privleak"] == pytest.approx(expected, rel=2e-5), place
        seen.add(expected)
    assert len(seen) > 4


# ---- settings and metrics of one's own -------------------------------------------------------------------------------

AGAIN = """
import torch
from evals.metrics.base import unlearning_metric


@unlearning_metric(name="again")
def again(model, **kwargs):
    rows = {}
    for item in kwargs["data"]:
        batch = kwargs["collators"]([item])
        with torch.no_grad():
            logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[0, :-1]
        labels = batch["labels"][0, 1:]
        seen = logits.double().log_softmax(-1)[labels != -100]
        rows[str(int(item["index"]))] = {"score": float(seen[range(len(seen)), labels[labels != -100]].mean().exp())}
    return {"agg_value": sum(row["score"] for row in rows.values()) / len(rows), "value_by_index": rows}
"""
WAYS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "plain": (["probability", "again"], {}),
    "interval": (["probability"], {"sampler_kwargs": {"trajectory_sample_interval": 8}}),
    "guided": (["probability"], {"evaluation_mode": "guided_native"}),
    "blocks": (["probability"], {"sampler_kwargs": {"sampler": "bd3lm", "block_size": 8}}),
    "random": (["probability"], {"sampler_kwargs": {"remasking": "random"}}),
    "warm": (["probability"], {"sampler_kwargs": {"temperature": 1.0, "seed": 1}}),
    "warmer": (["probability"], {"sampler_kwargs": {"temperature": 1.0, "seed": 2}}),
}


@pytest.fixture(scope="session")
def ways(shared: Callable[..., Path], tofu: Path) -> Path:
    """Forget rows denoised in several ways: in batches (`run`), and one sequence at a time (`single`)."""

    def build(place: Path) -> None:
        for name, (metrics, config) in WAYS.items():
            sampler = {"steps": STEPS, "max_new_tokens": LENGTH, **config.get("sampler_kwargs", {})}
            whole = {"handler": "trajectory_metrics", "metrics": metrics}
            write_metric(place / "configs", name, {**whole, "trajectory_config": {**config, "sampler_kwargs": sampler}})
        (place / "again.py").write_text(AGAIN)
        words = ("--model", LAB / "models" / "npo", "--data", tofu / "data", "--quiet", "stats.resamples=0")
        words += ("--config-dir", place / "configs", "--plugin", place / "again.py", "--metrics", ",".join(WAYS))
        vestige("eval", "tofu", *words, "--out", place / "run")
        vestige("eval", "tofu", *words, "--batch-tokens", 1, "--out", place / "single")

    return shared("trajectory-ways", build)


def test_settings_of_the_sampler(ways: Path, tofu: Path) -> None:
    """And a user's metric computes the probability itself from the logits and labels that it is handed at each step."""
    found = read_json(ways / "run" / "TOFU_EVAL.json")
    curves = {name: found[name]["agg_value"]["full"] for name in WAYS}
    counts = {name: found[name]["trajectory_step_metadata"]["step_values"] for name in WAYS}
    for name, one in read_json(ways / "single" / "TOFU_EVAL.json").items():  # random draws belong to a prompt
        harness.assert_same(found[name]["agg_value"], one["agg_value"], least=24)
    for view, along in itertools.product(VIEWS, TRAJECTORIES):
        plain = found["plain"]["agg_value"][view][along]
        assert plain["again"] == pytest.approx(plain["probability"], rel=2e-5)
    suite = read_json(tofu / "npo" / "TOFU_EVAL.json")["trajectory_metrics"]["agg_value"]["full"]
    assert counts["plain"] == [0, 5, 10, 15, 19]
    # Reported are the passes before which 0, then 8, then 16 tokens were decided or more.
    assert counts["interval"] == [0, 10, 19]
    assert curves["interval"]["steps"]["probability"] == curves["plain"]["steps"]["probability"][::2]
    assert counts["blocks"] == [0, 4, 8, 12, 16, 20]  # three blocks of two passes
    for name, other in itertools.combinations(("plain", "guided", "random", "warm", "warmer"), 2):
        assert curves[name]["fixation_end"]["probability"] != curves[other]["fixation_end"]["probability"]
        assert curves[name]["steps"]["probability"][0] == curves[other]["steps"]["probability"][0]
    model = Denoiser("npo", guided=True)
    pairs = [model.chat(row["question"], row["answer"]) for row in harness.read_rows(tofu / "data" / "forget.jsonl")]
    for along, step in itertools.product(TRAJECTORIES, range(STEPS)):
        assert curves["plain"][along]["probability"][step] == pytest.approx(suite[along]["probability"][step])
        likely = [math.exp(model.answer(pair, ("full", along, step)).mean()) for pair in pairs]
        assert curves["guided"][along]["probability"][step] == pytest.approx(np.mean(likely), rel=2e-5), (along, step)


# ---- without a model, and mistakes -----------------------------------------------------------------------------------


def test_scoring_again_gives_the_same_curves(tofu: Path, tmp_path: Path) -> None:
    run = harness.copy_tree(tofu / "npo", tmp_path / "run")
    before = read_json(run / "TOFU_EVAL.json")
    (run / "TOFU_EVAL.json").unlink()
    vestige("score", run)
    harness.assert_same(before, read_json(run / "TOFU_EVAL.json"), least=3000, close=lambda a, b, path: a == b)
    loaded = package.load_run(run)
    assert loaded["trajectory_metrics"].curves == before["trajectory_metrics"]["agg_value"]


def test_steps_that_do_not_match_are_refused(tofu: Path, tmp_path: Path) -> None:
    """A retain run with other steps, and a model that has none."""
    key = "eval.tofu_trajectory.metrics.trajectory_metrics.trajectory_config.sampler_kwargs"
    logs = ("--retain-logs", tofu / "retain" / "TOFU_EVAL.json")
    words = ("--data", tofu / "data", f"{key}.steps={STEPS}", f"{key}.trajectory_sample_interval=1", "--quiet")
    for model, more, named in (
        (LAB / "models" / "npo", (f"{key}.max_new_tokens=12", *logs), "max_new_tokens|24|12"),
        (LAB / "models" / "npo", (f"{key}.max_new_tokens=24", f"{key}.steps=6", *logs), "steps|5|6"),
        (harness.FULL, (), "sampler"),
    ):
        harness.refused(named, "eval", "tofu_trajectory", "--model", model, *words, *more, "--out", tmp_path)

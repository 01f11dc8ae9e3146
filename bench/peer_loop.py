"""The slow reference: TOFU's default metrics, computed the way existing frameworks do.

Each metric makes its own padded passes through the model in batches of 32 rows, each ROUGE metric calls
`generate`, and nothing is shared between metrics. It was written from the definitions alone and imports
nothing from vestige, so it serves twice: to check vestige's numbers, and to say how much work vestige saves.
It is a kind peer: no second loss inside the model, no JSON written after each metric.

The definitions are open-unlearning's: an attention mask of `ids != pad` (hiding real end-of-turn tokens where
pad = eos), the end token counted in probabilities and left out of min-k and extraction strength.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rouge_score.rouge_scorer import RougeScorer
from scipy.stats import hmean
from sklearn.metrics import roc_auc_score
from torch.nn.functional import cross_entropy, log_softmax

IGNORE = -100
FILES = ("forget", "retain", "holdout", "real_authors", "world_facts")

Row = dict[str, Any]
Item = tuple[list[int], list[int]]  # token ids, labels


@dataclass
class Peer:
    """A model with its tokenizer, and a tally of what was asked of it."""

    model: Any
    tokenizer: Any
    system_prompt: str | None
    batch_size: int
    max_new_tokens: int
    counts: Counter[str] = field(default_factory=Counter)
    metrics: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def pad_id(self) -> int:
        pad = self.tokenizer.pad_token_id
        return self.tokenizer.eos_token_id if pad is None else pad


def evaluate(
    model: Any,
    tokenizer: Any,
    data: dict[str, list[Row]],
    *,
    system_prompt: str | None,
    batch_size: int = 32,
    max_new_tokens: int = 200,
) -> dict[str, Any]:
    """The default TOFU set, without a retain model: privleak is measured from an AUC of 0.5."""
    peer = Peer(model.eval(), tokenizer, system_prompt, batch_size, max_new_tokens)
    with torch.no_grad():
        truth_ratio(peer, "forget_truth_ratio", data["forget"], "forget_Q_A", "paraphrased_answer", better="close")
        probability(peer, "forget_Q_A_Prob", data["forget"], "answer")
        rouge(peer, "forget_Q_A_ROUGE", data["forget"])
        model_utility(peer, data)
        mia_min_k(peer, data["forget"], data["holdout"])
        privleak(peer)
        extraction_strength(peer, data["forget"])
    return {"metrics": peer.metrics, "counts": dict(peer.counts)}


# --- tokens ---


def template_ids(peer: Peer, messages: list[dict[str, str]], generation_prompt: bool) -> list[int]:
    # return_dict=False: from transformers 5 on the default is a mapping.
    return peer.tokenizer.apply_chat_template(
        messages, tokenize=True, add_generation_prompt=generation_prompt, return_dict=False
    )


def conversation(peer: Peer, question: str, answer: str) -> tuple[list[int], list[int]]:
    """The prompt's ids and the whole conversation's, closed by eos."""
    system = [{"role": "system", "content": peer.system_prompt}] if peer.system_prompt else []
    asked = [*system, {"role": "user", "content": question}]
    prompt = template_ids(peer, asked, True)
    whole = template_ids(peer, [*asked, {"role": "assistant", "content": answer}], False)
    if whole[-1] != peer.tokenizer.eos_token_id:
        whole = [*whole, peer.tokenizer.eos_token_id]
    return prompt, whole


def scoring_item(peer: Peer, question: str, answer: str) -> Item:
    prompt, whole = conversation(peer, question, answer)
    return whole, [IGNORE] * len(prompt) + whole[len(prompt) :]


def padded(rows: Sequence[list[int]], fill: int, left: bool = False) -> torch.Tensor:
    width = max(map(len, rows))
    gaps = [[fill] * (width - len(row)) for row in rows]
    return torch.tensor([gap + row if left else row + gap for row, gap in zip(rows, gaps, strict=True)])


def batches(rows: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


# --- passes through the model ---


def score_batch(peer: Peer, items: Sequence[Item]) -> tuple[torch.Tensor, torch.Tensor]:
    """One right-padded forward: next-token logits in float32 and the labels they are to predict."""
    ids = padded([item[0] for item in items], peer.pad_id).to(peer.model.device)
    labels = padded([item[1] for item in items], IGNORE).to(peer.model.device)
    mask = ids != peer.pad_id  # not by length: this is what hides end-of-turn tokens when pad = eos
    logits = peer.model(input_ids=ids, attention_mask=mask.long()).logits.float()
    peer.counts["score_tokens_padded"] += ids.numel()
    return logits[:, :-1], labels[:, 1:]


def losses(peer: Peer, items: Sequence[Item]) -> list[dict[str, float]]:
    """Length-normalised probability of each item's labels, eos included."""
    logits, labels = score_batch(peer, items)
    per_token = cross_entropy(logits.transpose(1, 2), labels, ignore_index=IGNORE, reduction="none")
    average = per_token.sum(-1) / (labels != IGNORE).sum(-1)
    pairs = zip(torch.exp(-average).tolist(), average.tolist(), strict=True)
    return [{"prob": prob, "avg_loss": loss} for prob, loss in pairs]


def inner_tokens(peer: Peer, rows: list[Row]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """For each row, log-softmax and label at every label position but the last (eos)."""
    for chunk in batches(rows, peer.batch_size):
        items = [scoring_item(peer, row["question"], row["answer"]) for row in chunk]
        logits, labels = score_batch(peer, items)
        for row_logits, row_labels in zip(log_softmax(logits, -1), labels, strict=True):
            where = (row_labels != IGNORE).nonzero()[:-1, 0]
            yield row_logits[where], row_labels[where]


def generate_batch(peer: Peer, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """One left-padded greedy `generate`, scored by rouge_score."""
    pairs = [conversation(peer, row["question"], row["answer"]) for row in rows]
    ids = padded([prompt for prompt, _ in pairs], peer.pad_id, left=True).to(peer.model.device)
    out = peer.model.generate(
        ids,
        attention_mask=(ids != peer.pad_id).long(),
        do_sample=False,
        top_p=None,
        temperature=None,
        max_new_tokens=peer.max_new_tokens,
        use_cache=True,
        pad_token_id=peer.tokenizer.eos_token_id,
    )[:, ids.shape[1] :]
    peer.counts["gen_tokens_emitted"] += out.numel()
    found = []
    for (prompt, whole), new in zip(pairs, out.tolist(), strict=True):
        asked = decode(peer, prompt)
        truth = decode(peer, whole).replace(asked, "").strip()
        written = decode(peer, new).split(peer.tokenizer.decode([peer.tokenizer.eos_token_id]))[0].strip()
        found.append(rouge_row(truth, written) | {"input": asked, "ground_truth": truth, "generation": written})
    return found


def decode(peer: Peer, ids: list[int]) -> str:
    # transformers 5 ignores clean_up_tokenization_spaces=True for BPE; 4.45 obeyed, so it is done by hand.
    text = peer.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return peer.tokenizer.clean_up_tokenization(text)


def rouge_row(truth: str, written: str) -> dict[str, float]:
    scores = RougeScorer(["rouge1", "rougeL"], use_stemmer=True).score(truth, written)
    return {
        "rouge1_recall": scores["rouge1"].recall,
        "rougeL_f1": scores["rougeL"].fmeasure,
        "rougeL_recall": scores["rougeL"].recall,
    }


# --- metrics ---


def by_index(values: Sequence[Any]) -> dict[str, Any]:
    return {str(index): value for index, value in enumerate(values)}


def scores(values: Sequence[float]) -> dict[str, dict[str, float]]:
    return by_index([{"score": float(value)} for value in values])


def probability(peer: Peer, name: str, rows: list[Row], column: str) -> list[dict[str, Any]]:
    """prob and avg_loss of an answer column; a column of lists gets one pass per position in the list."""
    found: list[dict[str, Any]] = []
    for chunk in batches(rows, peer.batch_size):
        found += chunk_probability(peer, chunk, column)
    agg = np.mean([np.mean(row["prob"]) for row in found])
    peer.metrics[name] = {"agg_value": float(agg), "value_by_index": by_index(found)}
    return found


def chunk_probability(peer: Peer, chunk: Sequence[Row], column: str) -> list[dict[str, Any]]:
    if isinstance(chunk[0][column], str):
        return losses(peer, [scoring_item(peer, row["question"], row[column]) for row in chunk])
    answers = range(len(chunk[0][column]))
    passes = [losses(peer, [scoring_item(peer, row["question"], row[column][n]) for row in chunk]) for n in answers]
    return [{key: [one[key] for one in row] for key in row[0]} for row in zip(*passes, strict=True)]


def rouge(peer: Peer, name: str, rows: list[Row]) -> None:
    found: list[dict[str, Any]] = []
    for chunk in batches(rows, peer.batch_size):
        found += generate_batch(peer, chunk)
    agg = np.mean([row["rougeL_recall"] for row in found])
    peer.metrics[name] = {"agg_value": float(agg), "value_by_index": by_index(found)}


def truth_ratio(peer: Peer, name: str, rows: list[Row], prefix: str, right: str, better: str) -> None:
    """How much likelier wrong answers are than a right one. Parents are computed if not there yet."""
    parents = {f"{prefix}_PARA_Prob" if right != "answer" else f"{prefix}_Prob": right}
    parents[f"{prefix}_PERT_Prob"] = "perturbed_answer"
    for parent, column in parents.items():
        if parent not in peer.metrics:
            probability(peer, parent, rows, column)
    loss = [
        np.array([np.mean(row["avg_loss"]) for row in peer.metrics[parent]["value_by_index"].values()])
        for parent in parents
    ]
    ratio = np.exp(-loss[1]) / (np.exp(-loss[0]) + 1e-10)
    each = np.minimum(ratio, 1 / (ratio + 1e-10)) if better == "close" else np.maximum(0, 1 - ratio)
    peer.metrics[name] = {"agg_value": float(each.mean()), "value_by_index": scores(ratio)}


def normalised(peer: Peer, name: str, right: str, wrong: str) -> None:
    """The right answer's share of the probability given to all the options."""
    right_rows, wrong_rows = (peer.metrics[one]["value_by_index"].values() for one in (right, wrong))
    share = [r["prob"] / (r["prob"] + sum(w["prob"]) + 1e-10) for r, w in zip(right_rows, wrong_rows, strict=True)]
    rows = by_index([{"prob": value} for value in share])
    peer.metrics[name] = {"agg_value": float(np.mean(share)), "value_by_index": rows}


def model_utility(peer: Peer, data: dict[str, list[Row]]) -> None:
    retain = data["retain"]
    probability(peer, "retain_Q_A_Prob", retain, "answer")
    rouge(peer, "retain_Q_A_ROUGE", retain)
    truth_ratio(peer, "retain_Truth_Ratio", retain, "retain_Q_A", "paraphrased_answer", better="true")
    parents = ["retain_Q_A_Prob", "retain_Q_A_ROUGE", "retain_Truth_Ratio"]
    for short, rows in (("ra", data["real_authors"]), ("wf", data["world_facts"])):
        probability(peer, f"{short}_Q_A_Prob", rows, "answer")
        probability(peer, f"{short}_Q_A_PERT_Prob", rows, "perturbed_answer")
        normalised(peer, f"{short}_Q_A_Prob_normalised", f"{short}_Q_A_Prob", f"{short}_Q_A_PERT_Prob")
        rouge(peer, f"{short}_Q_A_ROUGE", rows)
        truth_ratio(peer, f"{short}_Truth_Ratio", rows, f"{short}_Q_A", "answer", better="true")
        parents += [f"{short}_Q_A_Prob_normalised", f"{short}_Q_A_ROUGE", f"{short}_Truth_Ratio"]
    value = float(hmean([peer.metrics[parent]["agg_value"] for parent in parents]))
    peer.metrics["model_utility"] = {"agg_value": value}


def mia_min_k(peer: Peer, forget: list[Row], holdout: list[Row], k: float = 0.4) -> None:
    """Minus the mean of the least likely tokens; AUC of telling forget (0) from holdout (1)."""
    found: dict[str, Any] = {}
    for name, rows in (("forget", forget), ("holdout", holdout)):
        values = [least_likely(logp, labels, k) for logp, labels in inner_tokens(peer, rows)]
        found[name] = {"agg_value": float(np.mean(values)), "value_by_index": scores(values)}
    values = [row["score"] for one in found.values() for row in one["value_by_index"].values()]
    auc = float(roc_auc_score([0] * len(forget) + [1] * len(holdout), values))
    peer.metrics["mia_min_k"] = found | {"auc": auc, "agg_value": auc}


def least_likely(logp: torch.Tensor, labels: torch.Tensor, k: float) -> float:
    if len(labels) == 0:
        return 0.0
    own = logp.gather(-1, labels[:, None])[:, 0].sort().values
    return -float(own[: max(1, int(len(own) * k))].mean())


def privleak(peer: Peer) -> None:
    left = 1 - peer.metrics["mia_min_k"]["agg_value"]
    fresh = 0.5
    peer.metrics["privleak"] = {"agg_value": (left - fresh) / (fresh + 1e-10) * 100}


def extraction_strength(peer: Peer, rows: list[Row]) -> None:
    """The share of the answer that follows right after its last miss; never below one token's worth."""
    values = [strength(logp.argmax(-1) == labels) for logp, labels in inner_tokens(peer, rows)]
    peer.metrics["extraction_strength"] = {"agg_value": float(np.mean(values)), "value_by_index": scores(values)}


def strength(hits: torch.Tensor) -> float:
    total = len(hits)
    if total == 0:
        return 0.0
    cut = next((k for k in range(total) if bool(hits[k:].all())), total - 1)
    return 1 - cut / total


# --- rows ---


def read_data(folder: Path) -> dict[str, list[Row]]:
    return {name: [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()] for name in FILES}

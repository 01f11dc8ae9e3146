"""Collecting along a denoising path: every pass is reduced when it happens, no logits are kept.

    DenoiseWant --sample, pass by pass--> reduce_logits --> Trace

A pass's logits give each position its first choice, the moments of log p, and log p of every label asked about. The
metrics of trajectories only re-index these (passes, positions) planes.

In: DenoiseWants and a diffusion model. Out: Traces. Callers: collect/diffusion.py, adapters/lm_eval_diffusion.py,
and runs/plan.py for the size of a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vestige.collect.backend import Cost
from vestige.collect.reduce import reduce_logits
from vestige.collect.safety import Halving, check_fit, check_tokens
from vestige.collect.together import verify_padding
from vestige.collect.tree import Limits
from vestige.errors import UserError, reraise_ours
from vestige.guard import check_zip
from vestige.models.attention import send, without_copies
from vestige.models.diffusion import CanvasPredictor, MaskPredictor
from vestige.models.samplers import Pass, Sampled, canvas_width, sample
from vestige.models.samplers.base import block_size
from vestige.types import IGNORE, Array, Trace
from vestige.wants import DenoiseWant, Denoising

FLOATS = ("mean", "std")
TOKENS = ("top1", "proposal")
CANVAS_COPIES = 6


@dataclass
class PassRecorder:
    """Reduces each forward pass of a batch; the flat results are put in their places at the end."""

    labels: Array  # (samples, streams, positions)
    parts: list[dict[str, Array]] = field(default_factory=list)  # one entry for each position looked at
    scored: list[dict[str, Array]] = field(default_factory=list)  # one entry for each of its labels

    def record(self, step: Pass) -> None:
        count = len(step.sample)
        place = {name: getattr(step, name).numpy() for name in ("sample", "number", "position")}
        wanted = self.labels[place["sample"], :, place["position"]]  # (n, streams)
        where, stream = np.nonzero(wanted != IGNORE)
        # Every position once for its own statistics (whatever the label), then once for each label it is asked for.
        rows = np.concatenate([np.arange(count), where])
        tokens = np.concatenate([np.zeros(count, np.int64), wanted[where, stream]])
        pairs = send(np.stack([rows, tokens]), step.logits.device)
        reduced = reduce_logits(step.logits, pairs[0], pairs[1])
        part = {**place, "proposal": step.proposal.numpy()}
        for name in ("top1", *FLOATS):
            part[name] = reduced[name][:count]
        if step.accepted is not None:  # else both follow from when each token was decided
            part |= {"canvas": step.canvas.numpy(), "accepted": step.accepted.numpy()}
        scored = {name: values[where] for name, values in place.items()}
        self.parts.append(part)
        self.scored.append({**scored, "stream": stream, "logprob": reduced["logprob"][count:]})

    def traces(self, sampled: Sequence[Sampled], mask_id: int) -> list[Trace]:
        if not self.parts:
            raise UserError("The sampler did not report any pass (No logits_history returned); ask for steps >= 1.")
        flat = {k: np.concatenate([p[k] for p in self.parts]) for k in self.parts[0]}
        scored = {k: np.concatenate([p[k] for p in self.scored]) for k in self.scored[0]}
        out = []
        for i, window in enumerate(sampled):
            shape = (window.passes, len(window.final))
            columns = np.arange(shape[1])
            own = flat["sample"] == i
            place = (flat["number"][own], flat["position"][own])
            seen = np.zeros(shape, bool)
            seen[place] = True
            nearest = nearest_pass(seen)  # where a pass did not look at a position, the nearest that did
            planes = {}
            for name in (*TOKENS, *FLOATS):
                plane = np.full(shape, -1, np.int32) if name in TOKENS else np.full(shape, np.nan, np.float32)
                plane[place] = flat[name][own]
                planes[name] = plane[nearest, columns]
            final = np.array(window.final)
            planes |= canvas_from_decisions(final, np.array(window.fixed), window.passes, mask_id)
            if "accepted" in flat:
                planes |= canvas_from_passes(final, seen, place, flat["canvas"][own], flat["accepted"][own])

            own = scored["sample"] == i
            logprob = np.full((self.labels.shape[1], *shape), np.nan, np.float32)
            logprob[scored["stream"][own], scored["number"][own], scored["position"][own]] = scored["logprob"][own]
            labels = self.labels[i].astype(np.int32)
            out.append(Trace(**planes, labels=labels, logprob=logprob[:, nearest, columns]))
        return out


def nearest_pass(seen: Array) -> Array:
    """For each (pass, position) the nearest pass that looked at the position; itself where none ever did.

    >>> nearest_pass(np.array([[0, 1], [1, 1], [1, 0]], bool)).tolist()
    [[1, 0], [1, 1], [2, 1]]
    """
    passes = np.arange(len(seen))[:, None]
    first = seen.argmax(axis=0)
    last = len(seen) - 1 - seen[::-1].argmax(axis=0)
    return np.where(seen.any(axis=0), np.clip(passes, first, last), passes)


def canvas_from_decisions(final: Array, fixed: Array, passes: int, mask_id: int) -> dict[str, Array]:
    """The canvas before each pass, which follows from when each token was decided: none is ever overwritten."""
    decided = (fixed[None, :] >= 0) & (fixed[None, :] < np.arange(passes)[:, None])
    return {
        "final": final.astype(np.int32),
        "fixed": fixed.astype(np.int32),
        "committed": decided.sum(axis=1).astype(np.int32),
        "canvas": np.where(decided, final[None, :], mask_id).astype(np.int32),
    }


def canvas_from_passes(
    final: Array, seen: Array, place: tuple[Array, Array], tokens: Array, accepted: Array
) -> dict[str, Array]:
    """The same from what each pass noted, where decisions can be taken back.

    Before its block a position holds no token (-1); after it the text does, accepted or not as its last pass said.
    """
    canvas, stood = np.full(seen.shape, -1, np.int32), np.zeros(seen.shape, bool)
    canvas[place], stood[place] = tokens, accepted
    after = ~seen & (np.cumsum(seen, axis=0) > 0)
    canvas = np.where(after, final[None, :].astype(np.int32), canvas)
    last = len(seen) - 1 - seen[::-1].argmax(axis=0)
    stood = np.where(after, stood[last, np.arange(seen.shape[1])], stood)
    committed = np.concatenate([[0], stood[:-1].sum(axis=1)]).astype(np.int32)
    return {"committed": committed, "canvas": canvas, "accepted": stood}


def label_table(streams: Sequence[Sequence[Sequence[int]]], length: int, vocab: int) -> Array:
    """Labels (samples, streams, positions) of some wants, IGNORE where there are none."""
    most = max((len(s) for s in streams), default=0)
    table = np.full((len(streams), most, length), IGNORE, np.int64)
    for i, answers in enumerate(streams):
        for k, answer in enumerate(answers):
            if len(answer) > length:
                raise UserError(
                    f"logits cover {length} positions but labels cover {len(answer)}; both must be the generated "
                    "window, so cut the labels to it."
                )
            table[i, k, : len(answer)] = answer
    bad = (table != IGNORE) & ((table < 0) | (table >= vocab))
    if bad.any():
        raise UserError(f"Label {table[bad][0]} is not among the model's {vocab} tokens; use the model's tokenizer.")
    return table


class DenoiseCollector:
    """Runs the denoising wants of one model. `run` yields each batch's traces as they are made."""

    def __init__(self, predictor: MaskPredictor, limits: Limits, cost: Cost) -> None:
        self.predictor = predictor
        self.limits = limits
        self.cost = cost

    def run(
        self,
        wants: Sequence[DenoiseWant],
        done: frozenset[str] = frozenset(),
        planned: Callable[[int], None] = lambda wants: None,
    ) -> Iterator[dict[str, Trace]]:
        """Yields {want key: trace} batch by batch; wants in `done` are not run. `planned` is told how many are left."""
        left = list({w.key: w for w in wants if w.key not in done}.values())
        for denoising in dict.fromkeys(w.denoising for w in left):
            denoising.check()
            longest = max(len(w.prompt.ids) for w in left if w.denoising == denoising)
            width = longest + denoising.max_new_tokens
            check_fit(self.predictor.model, width, "A prompt with its window", "ask for fewer max_new_tokens")
        check_tokens(self.predictor.model, (w.prompt.ids for w in left))
        verify_padding(self.predictor, [w.prompt.ids for w in left], self.limits.tokens, self.cost)
        canvas = self.predictor.canvas if isinstance(self.predictor, CanvasPredictor) else 0
        most = 1 if self.predictor.alone else None  # `alone` is known by now
        limits, finished = self.limits, set[str]()
        for attempt in Halving():
            if attempt.again:
                left = [w for w in left if w.key not in finished]
                limits = limits.halved()
                self.cost.say(f"out of memory: denoising budget halved to {limits.tokens} tokens")
            with attempt:
                attempt.size = limits.tokens
                planned(len(left))
                for batch in batches(left, limits, self.predictor.vocab, canvas, most):
                    result = self._collect(batch)
                    finished.update(result)
                    yield result

    def _collect(self, batch: Sequence[DenoiseWant]) -> dict[str, Trace]:
        predictor, denoising = self.predictor, batch[0].denoising
        tokens, forwards = predictor.tokens, predictor.forwards
        streams = [w.streams for w in batch]
        recorder = PassRecorder(label_table(streams, denoising.max_new_tokens, predictor.vocab))
        with without_copies(predictor.model):
            sampled = sample(predictor, [w.prompt for w in batch], streams, denoising, recorder.record)
        traces = recorder.traces(sampled, predictor.mask_id)
        self.cost.denoise_tokens += predictor.tokens - tokens
        self.cost.denoise_forwards += predictor.forwards - forwards
        out = {}
        for want, trace in zip(batch, traces, strict=True):
            count = len(want.streams)  # others of the batch may have more
            out[want.key] = replace(trace, labels=trace.labels[:count], logprob=trace.logprob[:count])
        return out


def batches(
    wants: Sequence[DenoiseWant], limits: Limits, vocab: int, canvas: int = 0, most: int | None = None
) -> Iterator[list[DenoiseWant]]:
    """Wants with equal settings together, longest prompts first, as many as the budgets take."""
    groups: dict[Denoising, list[DenoiseWant]] = {}
    for want in wants:
        groups.setdefault(want.denoising, []).append(want)
    for denoising, group in groups.items():
        group.sort(key=lambda w: (-len(w.prompt.ids), w.key))
        looks = 2 if denoising.cfg_scale > 0 else 1  # once more with the prompt hidden
        cells = pass_cells(denoising, vocab, canvas) * looks
        at = 0
        while at < len(group):
            width = canvas_width(len(group[at].prompt.ids), denoising, canvas)
            size = max(1, min(limits.tokens // (width * looks), limits.logit_cells // cells))
            if most is not None:
                size = min(size, most)
            if denoising.noise == "generate":  # its random numbers belong to a batch; alone, they belong to a prompt
                size = 1
            yield group[at : at + size]
            at += size


def pass_cells(denoising: Denoising, vocab: int, canvas: int = 0) -> int:
    """Cells of the logits that one pass of one sample holds: of the window, of a block, or of a canvas."""
    if canvas:  # as computed, over the temperature, as recorded, the last pass's, and what the model makes on the way
        return canvas * vocab * CANVAS_COPIES
    seen = block_size(denoising) if denoising.sampler == "bd3lm" else denoising.max_new_tokens
    return min(seen, denoising.max_new_tokens) * vocab


LAYOUTS = {"VLS": (2, 1, 0), "SLV": (0, 1, 2), "LSV": (1, 0, 2), "SVL": (0, 2, 1)}


def trace_from_logits(
    logits: Any,
    fixed: Sequence[int] | Array,
    labels: Sequence[Sequence[int]] = (),
    layout: str = "VLS",
    final: Sequence[int] | Array | None = None,
    mask_id: int = -1,
) -> Trace:
    """A trace of logits that another program recorded (`logits_source: external`), one window.

    `layout` names the axes of `logits`: vocabulary V, window position L, pass S. `fixed` says for each position the
    pass that decided it (-1: never). Without `final` the tokens are what the deciding pass thought most likely.
    """
    if layout not in LAYOUTS:
        raise UserError(f"layout must be one of {', '.join(LAYOUTS)}, got {layout!r}.")
    tensor = torch.as_tensor(logits)
    if tensor.ndim != 3:
        raise UserError(f"Recorded logits must have three axes ({layout}) for one window, got {tuple(tensor.shape)}.")
    cube = tensor.permute(*LAYOUTS[layout])
    passes, length, vocab = cube.shape
    if not passes:
        raise UserError("logits_history cannot be empty: the recorded logits have no pass.")
    when = np.asarray(fixed, dtype=np.int64)
    if when.shape != (length,):
        raise UserError(f"fixation_steps must have one entry for each of the {length} positions, got {when.shape}.")
    if (when < -1).any() or (when >= passes).any():
        raise UserError(f"fixation_steps must lie in 0..{passes - 1}, or be -1 for never, got {when.tolist()}.")
    recorder = PassRecorder(label_table([labels], length, vocab))
    position = torch.arange(length)
    for s in range(passes):
        first = cube[s].argmax(dim=-1).cpu()
        zero = torch.zeros_like(position)
        recorder.record(Pass(zero, zero + s, position, cube[s], zero, first))
    if final is None:
        tops = np.stack([p["top1"] for p in recorder.parts])
        final = np.where(when >= 0, tops[np.maximum(when, 0), np.arange(length)], mask_id)
    tokens = tuple(int(t) for t in final)
    return recorder.traces([Sampled(tokens, tuple(int(s) for s in when), passes, (0, length))], mask_id)[0]


def read_tensors(path: str | Path) -> dict[str, Any]:
    """Tensors of a .safetensors, .npz, .npy or .pt file, by name (`logits` where the file has no names).

    Nothing in the file is run: NumPy files without pickles, torch files with weights only.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"No file of recorded logits at '{path}'; check logits_path.")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return dict(load_file(str(path)))
        check_zip(path)
        if path.suffix in (".npy", ".npz"):
            content = np.load(path, allow_pickle=False)
            return {"logits": content} if isinstance(content, np.ndarray) else dict(content)
        if path.suffix == ".pt":
            content = torch.load(path, map_location="cpu", weights_only=True)
            return dict(content) if isinstance(content, dict) else {"logits": content}
    except Exception as error:  # of a broken file: every reader (torch, numpy, safetensors, zipfile) has its own
        reraise_ours(error, "torch", "numpy", "zipfile")
        words = str(error).splitlines()
        raise UserError(
            f"'{path}' could not be read: {words[0] if words else repr(error)}; save the tensors again."
        ) from None
    raise UserError(f"'{path}' is not a file of tensors; give .safetensors, .npz, .npy or .pt.")


# ---- Whole logits of single windows, for metrics that are handed a step of a denoising path as a model --------------
# Everything else reads reductions (collect/denoise.py). Here the path is sampled once more, one prompt at a time;
# windows are kept as long as there is room, and the others are made each time they are asked for.

ROOM = 2 << 30  # bytes of logits kept; 30 windows of 64 tokens, 32 passes and 8,000 words


@dataclass(frozen=True)
class Window:
    """The logits of one window in every pass, as in a Trace: where a pass did not look, the nearest that did."""

    logits: torch.Tensor  # (passes, positions, vocabulary)
    nearest: Array  # (passes, positions)
    final: tuple[int, ...]  # the text it ended in; empty: recorded by another program

    def at(self, passes: Array, positions: Array) -> torch.Tensor:
        """The logits (n, vocabulary) of some positions, each in its own pass."""
        return self.logits[torch.from_numpy(self.nearest[passes, positions]), torch.from_numpy(positions)].float()


class Windows:
    """The windows of a run's wants. `predictor` is needed only when a path must be sampled again."""

    def __init__(self, wants: Sequence[DenoiseWant], predictor: Callable[[], MaskPredictor], room: int = ROOM) -> None:
        self.predictor = predictor
        self.room = room
        self.in_memory: dict[str, Window] = {}
        self.walked = 0  # how many times a path was sampled again
        self._files: dict[str, Mapping[str, object]] = {}
        self._number: dict[str, int] = {}  # of a want among those of its file: one window for each row, in this order
        for path in dict.fromkeys(w.logits for w in wants if w.logits):
            keys = dict.fromkeys(w.key for w in wants if w.logits == path)
            self._number |= {key: i for i, key in enumerate(keys)}

    def get(self, want: DenoiseWant) -> Window:
        if want.key not in self.in_memory:
            window = self._recorded(want) if want.logits else self._walk(want)
            size = window.logits.numel() * window.logits.element_size()
            if size > self.room:
                return window
            self.room -= size
            self.in_memory[want.key] = window
        return self.in_memory[want.key]

    def _walk(self, want: DenoiseWant) -> Window:
        self.walked += 1
        parts: list[tuple[Array, Array, torch.Tensor]] = []

        def keep(step: Pass) -> None:  # its logits are gone after the call
            parts.append((step.number.numpy(), step.position.numpy(), step.logits.to("cpu", copy=True)))

        done = sample(self.predictor(), [want.prompt], [want.streams], want.denoising, keep)[0]
        seen = np.zeros((done.passes, len(done.final)), bool)
        logits = torch.zeros((*seen.shape, parts[0][2].shape[-1]), dtype=parts[0][2].dtype)
        for number, position, part in parts:
            seen[number, position] = True
            logits[torch.from_numpy(number), torch.from_numpy(position)] = part
        return Window(logits, nearest_pass(seen), done.final)

    def _recorded(self, want: DenoiseWant) -> Window:
        if want.logits not in self._files:
            self._files[want.logits] = read_tensors(want.logits)
        tensors = self._files[want.logits]
        tensor = tensors.get(f"logits.{self._number[want.key]}", tensors.get("logits"))
        logits = torch.as_tensor(tensor).permute(*LAYOUTS["VLS"])
        passes, length, _ = logits.shape
        return Window(logits, np.broadcast_to(np.arange(passes)[:, None], (passes, length)), ())

"""DiffusionGemma: canvas after canvas, each started from uniformly drawn tokens and refined as a whole.

A pass proposes a token for every position and accepts the proposals of lowest entropy, as many as a bound allows.
Whatever it does not accept is drawn uniformly again, also what an earlier pass had accepted. A canvas is finished when
the first choices stay the same and are sure, or after the last pass; the first choices are its text. Step by step this
is what transformers' `generate` does with the model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from vestige.models.attention import send
from vestige.models.diffusion import CanvasPredictor
from vestige.models.samplers.base import Noise, OwnNoise, Pass, SamplerRow, Sampling, SharedNoise, slices
from vestige.wants import CANVAS_SETTINGS, Denoising


def with_checkpoint_settings(predictor: CanvasPredictor, denoising: Denoising) -> Denoising:
    """The settings, with the checkpoint's own where the user set none."""
    unset: dict[str, Any] = {}
    for name, value in predictor.sampling.items():
        if name in CANVAS_SETTINGS and getattr(denoising, name) is None:
            unset[name] = value
    if denoising.noise is None:
        unset.setdefault("noise", "sample")
    out = replace(denoising, **unset)
    out.check()
    return out


def canvases(denoising: Denoising, length: int) -> tuple[int, int]:
    """How many canvases of `length` tokens a window takes, and how many passes each gets at most.

    >>> canvases(Denoising(sampler="diffusion_gemma", steps=9, max_new_tokens=10), 8)
    (2, 5)
    """
    count = math.ceil(denoising.max_new_tokens / length)
    return count, denoising.steps_per_block or math.ceil(denoising.steps / count)


def run_gemma(predictor: CanvasPredictor, sampling: Sampling, rows: Sequence[SamplerRow]) -> list[list[int]]:
    """Denoises the canvases of each row; returns the tokens of the canvases it came to, pad after an end token.

    With the noise of `generate` all rows go on until the last has ended, as there; else each leaves at its end.
    """
    predictor.refuse_pictures(row.prompt for row in rows)
    denoising = sampling.denoising
    shared = denoising.noise == "generate"
    noise: Noise = SharedNoise(predictor.device) if shared else OwnNoise(predictor.device)
    written: list[list[int]] = [[] for _ in rows]
    ended: set[int] = set()
    active = list(range(len(rows)))
    prefix = Prefix(predictor, [row.prompt for row in rows])
    count, passes = canvases(denoising, predictor.canvas)
    for _ in range(count):
        prefix.read()
        live = [r for r, i in enumerate(active) if i not in ended]
        first = len(written[active[live[0]]])  # rows that go on are all at the same canvas
        text = _denoise_canvas(predictor, sampling, [rows[i] for i in active], live, first, passes, prefix, noise)
        for r, i in enumerate(active):
            tokens = text[r].tolist()  # on the host, as all that `_denoise_canvas` has read back
            ends = [place for place, token in enumerate(tokens) if token in predictor.eos_ids]
            if predictor.after_end is not None:
                if i in ended:
                    tokens = [predictor.after_end] * len(tokens)
                elif ends:
                    tokens[ends[0] + 1 :] = [predictor.after_end] * (len(tokens) - 1 - ends[0])
                text[r] = torch.tensor(tokens)
            if i not in ended:
                written[i] += tokens
                if set(tokens) & set(predictor.eos_ids):
                    ended.add(i)
        if len(ended) == len(rows):
            break
        prefix.extend(text)
        if not shared and any(i in ended for i in active):
            going = [r for r, i in enumerate(active) if i not in ended]
            active = [active[r] for r in going]
            prefix.select(send(torch.tensor(going), predictor.device))
    return written


def _denoise_canvas(
    predictor: CanvasPredictor, sampling: Sampling, rows: Sequence[SamplerRow], live: list[int], first: int,
    passes: int, prefix: Prefix, noise: Noise,
) -> torch.Tensor:  # fmt: skip
    """The passes over one canvas of each row; its text, on the host.

    Rows outside `live` are carried along, and nothing is recorded of them. A pass is read back in one copy, so a GPU is
    waited for once, and once more for what is recorded.
    """
    denoising, vocab = sampling.denoising, predictor.vocab
    canvas = noise.uniform(rows, live, predictor.canvas, vocab)
    finished = torch.zeros(len(rows), dtype=torch.bool, device=canvas.device)
    stop = CanvasStop(denoising)
    before: torch.Tensor | None = None  # the last pass's logits, which the model sees again (self-conditioning)
    text = canvas
    sampling.show(canvas)
    for left in range(passes, 0, -1):
        logits = prefix.forward_canvas(canvas, before)
        tempered = temper(logits, denoising, left, passes)
        proposal = noise.choose(rows, live, tempered)
        entropy = entropies(tempered)
        accepted = accept(entropy, float(denoising.entropy_bound or 0))
        first_choice = tempered.argmax(dim=-1)
        fresh = noise.uniform(rows, live, predictor.canvas, vocab)
        following = torch.where(accepted, proposal, fresh)
        done = finished[:, None]
        text = torch.where(done, text, first_choice)
        if before is not None:
            tempered = torch.where(done[..., None], before.to(tempered.dtype), tempered)
        finished = finished | stop(text, entropy)
        planes = (canvas, proposal, accepted, text, finished[:, None].expand_as(canvas))
        on_host = torch.stack([plane.to(torch.int32) for plane in planes]).cpu().long()
        if live:
            _record(sampling, rows, live, first, logits, on_host[0], on_host[1], on_host[2].bool())
        canvas = torch.where(done, canvas, following)
        before = tempered.to(prefix.dtype)
        over = on_host[4, :, 0].bool().tolist()
        live = [r for r in live if not over[r]]
        sampling.show(canvas)
        if not live and (denoising.noise != "generate" or all(over)):
            break
    return on_host[3].clone()


def _record(
    sampling: Sampling, rows: Sequence[SamplerRow], live: Sequence[int], first: int, logits: torch.Tensor,
    canvas: torch.Tensor, proposal: torch.Tensor, accepted: torch.Tensor,
) -> None:  # fmt: skip
    """Tells the recorder what the pass saw inside the window, and when each position was accepted last.

    All but the logits (rows, positions, vocabulary) are on the host. The logits are as the model gave them: the
    temperature is the sampler's, and another in each pass.
    """
    width = min(canvas.shape[1], rows[live[0]].length - first)
    at = torch.tensor(live)
    if sampling.recorder is not None:
        sample = torch.tensor([rows[r].sample for r in live]).repeat_interleave(width)
        number = torch.tensor([rows[r].passes for r in live]).repeat_interleave(width)
        position = torch.arange(first, first + width).repeat(len(live))
        in_window = logits[send(at, logits.device), :width].flatten(0, 1)
        planes = [plane[at, :width].flatten(0, 1) for plane in (canvas, proposal, accepted)]
        sampling.recorder(Pass(sample, number, position, in_window, *planes))
    for r, row_accepted in zip(live, accepted[at, :width].tolist(), strict=True):
        row = rows[r]
        for place, is_accepted in enumerate(row_accepted, first):
            if not is_accepted:
                row.fixed[place] = -1
            elif row.fixed[place] < 0:
                row.fixed[place] = row.passes
        row.passes += 1


def temper(logits: torch.Tensor, denoising: Denoising, left: int, passes: int) -> torch.Tensor:
    """Logits over the temperature of a pass, which falls from t_max towards t_min. At 0 the first choice is certain."""
    low, high = float(denoising.t_min or 0), float(denoising.t_max or 0)
    # In float32, as transformers has it: another rounding would accept other positions.
    temperature = low + (high - low) * (torch.tensor(left, dtype=torch.int32) / passes)
    if float(temperature) > 0:
        return logits / temperature
    sure = torch.full_like(logits, float("-inf"))
    return sure.scatter_(-1, logits.argmax(dim=-1, keepdim=True), 0.0)


def entropies(logits: torch.Tensor) -> torch.Tensor:
    """Of each position (rows, positions), in parts: what is made on the way is as large as the logits."""
    flat = logits.flatten(0, 1)
    parts = [torch.distributions.Categorical(logits=flat[at], validate_args=False).entropy() for at in slices(flat)]
    return torch.cat(parts).view(logits.shape[:2])


def accept(entropy: torch.Tensor, bound: float) -> torch.Tensor:
    """The positions of lowest entropy, as long as those before them in that order sum up to at most the bound.

    >>> accept(torch.tensor([[0.3, 0.0, 0.1, 0.5]]), 0.1).tolist()
    [[True, True, True, False]]
    """
    ordered, where = entropy.sort(dim=-1)
    chosen = ordered.cumsum(dim=-1) - ordered <= bound
    return torch.zeros_like(chosen).scatter(-1, where, chosen)


class CanvasStop:
    """A canvas is finished when its first choices are as in the passes before, and sure."""

    def __init__(self, denoising: Denoising) -> None:
        self.stable = denoising.stability_threshold or 0
        self.sure = float(denoising.confidence_threshold or 0)
        self.earlier: list[torch.Tensor] = []

    def __call__(self, text: torch.Tensor, entropy: torch.Tensor) -> torch.Tensor:
        out = entropy.mean(dim=-1) < self.sure
        if self.stable:
            same = [(text == one).all(dim=-1) for one in self.earlier]
            enough = len(self.earlier) == self.stable
            out &= torch.stack(same).all(dim=0) if enough else torch.zeros_like(out)
            self.earlier = [*self.earlier, text][-self.stable :]
        return out


class Prefix:
    """What stands before the canvas: read by the encoder once, kept as keys and values. Padded on the left."""

    def __init__(self, predictor: CanvasPredictor, prompts: Sequence[Sequence[int]]) -> None:
        from transformers import DynamicCache

        self.predictor, self.model = predictor, predictor.inner
        self.dtype = self.model.model.decoder.embed_tokens.weight.dtype
        width = max(len(p) for p in prompts)
        ids = torch.full((len(prompts), width), predictor.pad_id, dtype=torch.long)
        keep = torch.zeros((len(prompts), width), dtype=torch.bool)
        for i, prompt in enumerate(prompts):
            ids[i, width - len(prompt) :] = torch.tensor(prompt, dtype=torch.long)
            keep[i, width - len(prompt) :] = True
        self.new, self.keep = send(ids, predictor.device), send(keep, predictor.device)
        self.cache: Any = DynamicCache(config=self.model.config.get_text_config(decoder=True))

    def read(self) -> None:
        """The encoder over what it has not read yet."""
        rows, columns = self.new.shape
        end = self.keep.shape[1]
        positions = torch.arange(end - columns, end, dtype=torch.int32, device=self.new.device)[None]
        encoder = self.model.model.encoder
        masks = encoder.create_masks_for_generate(
            config=self.model.config,
            inputs_embeds=torch.empty((rows, columns, 0), dtype=self.model.dtype, device=self.new.device),
            attention_mask=self.keep,
            past_key_values=self.cache,
            position_ids=positions,
        )
        self._count(self.new)
        encoder(
            input_ids=self.new.contiguous(), attention_mask=masks, past_key_values=self.cache, position_ids=positions
        )
        width = self.predictor.canvas
        self.masks = self.model.model.decoder.create_diffusion_decoder_attention_mask(
            config=self.model.config,
            inputs_embeds=torch.empty((rows, width, 0), dtype=self.model.dtype, device=self.new.device),
            past_key_values=self.cache,
            decoder_attention_mask=torch.nn.functional.pad(self.keep, (0, width), value=True),
        )
        self.positions = torch.arange(end, end + width, dtype=torch.int32, device=self.new.device)[None]

    def forward_canvas(self, canvas: torch.Tensor, before: torch.Tensor | None) -> torch.Tensor:
        """The decoder's logits (rows, positions, vocabulary); what was read stays as it is."""
        self._count(canvas)
        out: torch.Tensor = self.model(
            decoder_input_ids=canvas,
            self_conditioning_logits=before,
            decoder_attention_mask=self.masks,
            past_key_values=self.cache,
            decoder_position_ids=self.positions,
        ).logits
        return out

    def extend(self, text: torch.Tensor) -> None:
        self.new = send(text, self.predictor.device)
        self.keep = torch.nn.functional.pad(self.keep, (0, text.shape[1]), value=True)

    def select(self, rows: torch.Tensor) -> None:
        self.new, self.keep = self.new[rows], self.keep[rows]
        self.cache.batch_select_indices(rows)

    def _count(self, ids: torch.Tensor) -> None:
        self.predictor.forwards += 1
        self.predictor.tokens += ids.numel()

"""`vestige plan`: what an evaluation would push through the model, before it is paid for."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vestige.models.load import load_tokenizer
from vestige.models.locate import locate, weight_names
from vestige.run.collecting import count_nodes
from vestige.run.config import RunConfig
from vestige.run.handles import ModelHandle
from vestige.run.plan_depth import DepthPlan, plan_depth
from vestige.run.prepare import Prepared, make_encoder_context, model_args, prepare
from vestige.run.tables import table
from vestige.store.evidence import Bank
from vestige.suites.handlers.depth import NO_MODELS, into
from vestige.types import Target


@dataclass(frozen=True)
class Plan:
    """Counts of what is asked, what is cached, and what the rest would cost."""

    prepared: Prepared
    answers: int
    distinct: int
    cached: int
    sequence_tokens: int
    nodes: int
    tokens: int  # to be pushed now
    batches: int
    prompts: int
    prompts_cached: int
    new_tokens: int  # upper bound of tokens to generate
    gradients: int
    windows: int  # to be denoised
    windows_cached: int
    denoise_tokens: int  # to be pushed in their passes
    depth: DepthPlan
    parameters: int
    weight_bytes: int
    largest_logits: int
    seconds: float
    memory: int


def make_plan(config: RunConfig) -> Plan:
    from vestige.collect.bound import rows_needed

    args = model_args(config)
    notes: list[str] = []
    tokenizer, _ = load_tokenizer(args)
    prepared = prepare(config, make_encoder_context(config, tokenizer, notes))
    handle = ModelHandle(args)
    directory = config.output_dir / "evidence"
    wants = prepared.wants
    unique = {t.key: t for t in wants.answers}
    have = Bank[Any](directory, "answers", handle.identity).load() if not config.overwrite else {}
    texts = {r.key: r for r in wants.texts}
    have_texts = Bank[Any](directory, "texts", handle.identity).load() if not config.overwrite else {}
    missing = [t for k, t in unique.items() if k not in have]
    new = [r for k, r in texts.items() if k not in have_texts]
    windows = {w.key: w for w in wants.denoised if not w.logits}
    have_windows = Bank[Any](directory, "denoised", handle.identity).load() if not config.overwrite else {}
    undone = [w for k, w in windows.items() if k not in have_windows]
    # Every pass reads the prompt and the whole window.
    pushed = sum((len(w.prompt.ids) + w.denoising.max_new_tokens) * w.denoising.steps for w in undone)
    if handle.is_diffusion:  # the bound hides parts of each answer many times; a text is denoised
        missing_passes = sum(len(t.ids) * rows_needed(t) for t in missing)
        text_passes = sum((len(r.prompt.ids) + r.decoding.max_new_tokens) * r.decoding.max_new_tokens for r in new)
    else:
        missing_passes = text_passes = 0
    depth = plan_depth(wants.patched, handle, args, directory, config.overwrite)
    parameters, size = weight_size(args)
    tokens, batches, cells = _packed(missing, len(tokenizer), config.batch_tokens)
    upper = sum(r.decoding.max_new_tokens for r in new)
    steps = max((r.decoding.max_new_tokens for r in new), default=0) * -(-len(new) // config.max_rows)
    return Plan(
        prepared=prepared,
        answers=len(wants.answers),
        distinct=len(unique),
        cached=len(unique) - len(missing),
        sequence_tokens=sum(len(t.ids) for t in unique.values()),
        nodes=count_nodes(unique.values()) if unique else 0,
        tokens=tokens,
        batches=batches,
        prompts=len(texts),
        prompts_cached=len(texts) - len(new),
        new_tokens=upper,
        gradients=len({w.key for w in wants.gradients}),
        windows=len(windows),
        windows_cached=len(windows) - len(undone),
        denoise_tokens=pushed,
        parameters=parameters,
        weight_bytes=size,
        largest_logits=cells * 4,
        depth=depth,
        seconds=_estimate(parameters, tokens + pushed + missing_passes + text_passes + depth.pushed, steps, upper),
        memory=size + cells * 8 + 512 * 2**20,
    )


def _packed(targets: list[Target], vocab: int, batch_tokens: int | None) -> tuple[int, int, int]:
    from vestige.collect.answers import default_limits
    from vestige.collect.answers import plan as plan_answers

    if not targets:
        return 0, 0, 0
    import torch

    limits = default_limits(vocab, torch.cuda.is_available(), batch_tokens)
    packing = plan_answers(targets, limits, vocab)
    cells = max(sum(len(packing.tree.predictors[t]) for row in b.targets for t in row) for b in packing.batches)
    return packing.tokens, len(packing.batches), min(cells * vocab, limits.logit_cells)


def weight_size(args: Any) -> tuple[int, int]:
    """Parameters and bytes of a checkpoint, from the headers of its files."""
    from safetensors import safe_open

    place = locate(args)
    place = place.base or place
    if place.gguf:
        size = place.gguf.stat().st_size
        return size, size * 4  # near one byte a parameter in the common formats; unpacked to float32
    total = size = 0
    for name in weight_names(place.directory, False, args):
        file = Path(place.directory) / name
        size += file.stat().st_size
        with safe_open(str(file), framework="np") as handle:
            for key in handle.keys():  # noqa: SIM118 - safe_open is no mapping
                n = 1
                for d in handle.get_slice(key).get_shape():
                    n *= d
                total += n
    return total, size


def _estimate(parameters: int, tokens: int, steps: int, new_tokens: int) -> float:
    """Seconds at this machine's measured matrix speed: 2 operations a parameter and token, steps bound by memory."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    size = 1024
    a, b = torch.randn(size, size, device=device), torch.randn(size, size, device=device)
    (a @ b).sum().item()
    start = time.perf_counter()
    rounds = 5
    for _ in range(rounds):
        c = a @ b
    c.sum().item()
    flops = rounds * 2 * size**3 / (time.perf_counter() - start)
    compute = 2.0 * parameters * (tokens + new_tokens) / (0.6 * flops)
    bandwidth = 8e9 if device == "cpu" else 4e11
    return compute + steps * parameters * 4 / bandwidth


def human(n: float, unit: str = "") -> str:
    """A number people can read.

    >>> human(9696), human(1.5e9, "B"), human(12)
    ('9,696', '1.5 GB', '12')
    """
    if unit == "B":
        for power, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
            if n >= power:
                return f"{n / power:.1f} {prefix}B"
        return f"{n:.0f} B"
    return f"{n:,.0f}"


def _depth_words(depth: DepthPlan) -> str:
    also = f", with {' and '.join(depth.models)} loaded in turn" if depth.models else ""
    return (
        f"{human(depth.entities)} from two models, {human(depth.cached)} cached; {human(depth.tokens)} tokens to push, "
        f"and {human(depth.climbed)} above the patched layers{also}"
    )


def _without_models(config: RunConfig) -> dict[str, str]:
    """Depth scores that name no models to compare with, and the reason their score would give."""
    specs = {name: spec for name, spec in config.suite.metrics.items() if spec.handler == "uds"}
    return {name: NO_MODELS for name, spec in specs.items() if into(spec) is None}


def show(plan: Plan, config: RunConfig) -> str:
    """The plan for a terminal."""
    rows = [
        [r.name, human(len(r)), human(sum(len(x) for x in r.examples)), r.source] for r in plan.prepared.rows.values()
    ]
    lines = [table(rows, ["data set", "rows", "answers", "from"], right=(1, 2)), ""]
    saved = plan.sequence_tokens / plan.nodes if plan.nodes else 1.0
    facts = [
        ("model", f"{config.model_args['pretrained_model_name_or_path']}: {human(plan.parameters)} parameters, "
                  f"{human(plan.weight_bytes, 'B')} on disk"),
        ("answers to score", f"{human(plan.answers)} asked, {human(plan.distinct)} distinct, "
                             f"{human(plan.cached)} cached"),
        ("tokens", f"{human(plan.sequence_tokens)} in whole sequences, {human(plan.nodes)} distinct prefixes "
                   f"({saved:.1f}x shared), {human(plan.tokens)} to push in {plan.batches} batches"),
        ("texts to generate", f"{human(plan.prompts)} prompts, {human(plan.prompts_cached)} cached, "
                              f"at most {human(plan.new_tokens)} new tokens"),
        ("gradients", human(plan.gradients)),
        *([("windows to denoise", f"{human(plan.windows)} prompts, {human(plan.windows_cached)} cached, "
            f"{human(plan.denoise_tokens)} tokens to push in their passes")] if plan.windows else []),
        *([("entities to patch", _depth_words(plan.depth))] if plan.depth.entities else []),
        ("memory", f"about {human(plan.memory, 'B')}"),
        ("time", f"about {plan.seconds:.0f} s here, at most (texts usually end early)"),
    ]  # fmt: skip
    width = max(len(k) for k, _ in facts)
    lines += [f"{k.ljust(width)}  {v}" for k, v in facts]
    unavailable = {**plan.prepared.unavailable, **_without_models(config)}
    if unavailable:
        lines.append("\nnot computable from this data:")
        causes: dict[str, list[str]] = {}
        for name, why in unavailable.items():
            causes.setdefault(why, []).append(name)
        lines += [f"  {', '.join(names)}: {why}" for why, names in causes.items()]
    return "\n".join(lines)

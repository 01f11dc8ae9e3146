"""From configuration to wants: read the data, tokenise it, ask every metric what it needs. No model yet.

In: a RunConfig and a tokenizer. Out: `Prepared`: rows as Examples, and for each metric its wants. Callers:
engine/evaluate.py and runs/plan.py; other rooms for `model_args` and the chat template. It runs in every process
of a team and for every plan, so it must be cheap and give the same result each time.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from vestige.collect.backend import text_want
from vestige.data.chat import decode_texts, make_template
from vestige.data.datasets import Context, build_rows, make_context
from vestige.data.rows import MissingData, redirect
from vestige.engine.config import AnyConfig, RunConfig
from vestige.errors import UserError
from vestige.metrics.dialects import Dialect, get_dialect
from vestige.models.args import CANVAS, choose_device
from vestige.models.families import NO_DEPTH, NO_LIKELIHOOD
from vestige.models.load import ModelArgs
from vestige.suites.registry import HANDLERS, TRAJECTORY, Handler, Words
from vestige.suites.spec import DataSpec, MetricSpec, SuiteSpec
from vestige.types import Prompt, Rows, content_key
from vestige.wants import Request, Wants

if TYPE_CHECKING:
    from vestige.models.diffusion import Canvases

log = logging.getLogger("vestige.engine")
Lacking = Callable[[Handler, Wants], str]  # why a metric is out of a model's reach; empty: it is not


@dataclass
class Prepared:
    """Everything scoring needs besides evidence: the rows, which metric reads which, and what is missing."""

    dialect: Dialect
    rows: dict[str, Rows] = field(default_factory=dict)  # by data key
    data_of: dict[str, dict[str, str]] = field(default_factory=dict)  # metric -> access key -> data key
    unavailable: dict[str, str] = field(default_factory=dict)  # metric -> why
    wants: Wants = field(default_factory=Wants)
    notes: list[str] = field(default_factory=list)

    def data(self, metric: str) -> dict[str, Rows]:
        keys = self.data_of.get(metric, {})
        return {name: self.rows[key] for name, key in keys.items()}

    @property
    def hidden_tokens(self) -> int:
        """How many answers have a token hidden from attention: where the mask of the dialect makes a difference."""
        count = 0
        for example in (e for rows in self.rows.values() for per_row in rows.examples for e in per_row):
            target = example.target
            inputs = 0 if target is None else len(target.ids) - 1
            within = target is not None and min(target.hidden, default=inputs) < inputs
            count += bool(example.prompt.hidden or within)
        return count


def model_args(config: AnyConfig) -> ModelArgs:
    """The model block of a config, in open-unlearning's names, as ModelArgs."""
    given = dict(config.model_args)
    path = str(given.pop("pretrained_model_name_or_path"))
    device_map = given.pop("device_map", None)
    device = given.pop("device", None) or "auto"
    # The peer's way of naming a device. Its files say cuda for every machine; one without it is noted when loading.
    if device_map in ("cpu", "cuda", "mps") and not (device_map == "cuda" and choose_device("auto") != "cuda"):
        device, device_map = device_map, None
    tokenizer = dict(config.tokenizer_args)
    known = {
        "dtype": given.pop("dtype", None) or given.pop("torch_dtype", None) or "auto",
        "attention": given.pop("attn_implementation", None) or "auto",
        "revision": given.pop("revision", None),
        "trust_remote_code": bool(given.pop("trust_remote_code", False)),
        "quantization": given.pop("quantization", None),
        "compute_dtype": given.pop("compute_dtype", None),
        "subfolder": given.pop("subfolder", None),
        "adapter_base": given.pop("adapter_base", None),
    }
    given.pop("torch_dtype", None)
    return ModelArgs(
        path=path,
        tokenizer=tokenizer.get("pretrained_model_name_or_path"),
        base=tokenizer.get("base"),
        device=device,
        device_map=device_map,
        extra=given,
        **known,
    )


def make_encoder_context(config: RunConfig, tokenizer: Any, notes: list[str]) -> Context:
    dialect = get_dialect(config.dialect)
    template = make_template(config.template_args, tokenizer, notes)
    context = make_context(tokenizer, template, dialect.mask, dialect.boundary)
    context.cluster = config.cluster
    return context


def make_words(tokenizer: Any) -> Words:
    """What scoring needs of a tokenizer to read texts along a trajectory."""
    eos = getattr(tokenizer, "eos_token_id", None)
    return Words(lambda ids: decode_texts(tokenizer, [ids])[0], () if eos is None else (int(eos),))


def with_own_sampler(config: RunConfig, canvases: Canvases) -> RunConfig:
    """The configuration with all settings of a DiffusionGemma's sampler: evidence and manifest name what was used."""
    metrics = {name: _filled(spec, canvases) for name, spec in config.suite.metrics.items()}
    return replace(config, suite=replace(config.suite, metrics=metrics))


def _filled(spec: MetricSpec, canvases: Canvases) -> MetricSpec:
    given = spec.params.get("trajectory_config") or {}
    if spec.handler != TRAJECTORY or not isinstance(given, dict):
        return spec
    said = {k: v for k, v in dict(given.get("sampler_kwargs") or {}).items() if v is not None}
    own: dict[str, Any] = {"sampler": CANVAS, **canvases.sampling}
    if "steps" in said:  # a number of passes for the whole window is shared by its canvases
        own.pop("steps_per_block")
    body = {**given, "sampler_kwargs": {**own, **said}}
    return replace(spec, params={**spec.params, "trajectory_config": body})


def prepare(
    config: RunConfig,
    context: Context,
    canvases: Canvases | None = None,
    diffusion: bool = False,
    lacking: Lacking | None = None,
) -> Prepared:
    """Reads and tokenises every data set once, and gathers what every metric wants of the model.

    `diffusion`: the model fills in hidden tokens. `canvases`: it is a DiffusionGemma. `lacking`: it is served, and this
    says why a metric cannot be computed. None of them can give everything.
    """
    out = Prepared(get_dialect(config.dialect))
    context.text_only = canvases is not None
    lost: dict[str, str] = {}  # data key -> why it is missing
    for metric, name, access, data in _data_specs(config.suite):
        key = data_key(data, config)
        if key not in out.rows and key not in lost:
            try:
                out.rows[key] = build_rows(data.name, _localised(data, config), context, config.limit)
            except MissingData as error:
                if config.missing != "skip":
                    raise
                lost[key] = str(error)
        if key in lost:
            out.unavailable[name] = lost[key]
        if name == metric or key not in lost:
            out.data_of.setdefault(metric, {})[access] = key
    context.forget()
    out.notes += context.notes
    for metric in config.suite.metrics:
        rows = out.data(metric) if metric not in out.unavailable else {}
        if "forget" in rows and "holdout" in rows:
            out.notes += _rows_in_both(rows["forget"], rows["holdout"])
    out.notes = list(dict.fromkeys(out.notes))  # several attacks read the same rows
    _gather(config.suite, out, lacking or partial(_out_of_reach, canvases, diffusion))
    _check_samplers(out.wants.texts, canvases, diffusion)
    return out


def _check_samplers(requests: Iterable[Request], canvases: Canvases | None, diffusion: bool) -> None:
    """Sampler settings in generation_args: a causal model would ignore them, and a sampler may not know a value."""
    for decoding in {request.decoding.key: request.decoding for request in requests}.values():
        if decoding.sampler and not diffusion:
            names = ", ".join(name for name, _ in decoding.sampler)
            raise UserError(
                f"generation_args: this model generates from left to right, but {names} set the sampler of a "
                "diffusion model; leave them out."
            )
        if decoding.sampler:
            want = text_want(Request(Prompt(()), decoding), canvases.for_texts if canvases else {})
            want.denoising.check("generation_args")


def _rows_in_both(forget: Rows, holdout: Rows) -> list[str]:
    """A note where holdout rows are forget rows too: an attacker cannot tell those, and the AUC moves towards 0.5."""
    known = {(e.input_text, e.answer) for row in forget.examples for e in row}
    shared = [row[0].index for row in holdout.examples if row and (row[0].input_text, row[0].answer) in known]
    if not shared:
        return []
    if len(shared) == len(holdout):
        raise UserError(
            f"All {len(holdout)} holdout rows of {holdout.source} are also forget rows of {forget.source}; membership "
            "attacks need holdout rows that the model was not trained on."
        )
    first = ", ".join(shared[:5]) + (", ..." if len(shared) > 5 else "")
    return [
        f"{len(shared)} of {len(holdout)} holdout rows of {holdout.source} are also forget rows ({first}): they move "
        "the AUC of every membership attack towards 0.5; remove them."
    ]


def _data_specs(suite: SuiteSpec) -> Iterator[tuple[str, str, str, DataSpec]]:
    """(metric, its name or its child's, access key, data set) of all that is read, trajectories' children too."""
    for name, spec in suite.metrics.items():
        for data in spec.datasets:
            yield name, name, data.access_key, data
        for child, inner in spec.children.metrics.items() if spec.children else ():
            for data in inner.datasets:
                yield name, f"{name}/{child}", f"{child}/{data.access_key}", data


def _gather(suite: SuiteSpec, out: Prepared, lacking: Lacking) -> None:
    for name, spec in suite.metrics.items():
        parent = next(filter(out.unavailable.__contains__, spec.parents.values()), None)
        if name in out.unavailable:
            continue
        if parent is not None:
            out.unavailable[name] = out.unavailable[parent]  # the first cause says more than the chain
            continue
        wants = HANDLERS[spec.handler].wants(spec, out.data(name), out.dialect)
        if reason := lacking(HANDLERS[spec.handler], wants):
            out.unavailable[name] = reason
        else:
            out.wants.add(wants)


def _out_of_reach(canvases: Canvases | None, diffusion: bool, _: Handler, wants: Wants) -> str:
    """Why a model of this kind cannot give what a metric wants; empty: it can."""
    if canvases is not None and (wants.answers or wants.visible or wants.gradients or wants.patched):
        return NO_LIKELIHOOD
    return NO_DEPTH if diffusion and wants.patched else ""


def data_key(data: DataSpec, config: RunConfig) -> str:
    """Two metrics that read the same rows in the same way share one tokenised data set.

    What only concerns the peer's own loop (predict_with_generate) does not make a difference here.
    """
    body = json.loads(json.dumps(data.config, default=str))
    (body.get("args") or {}).pop("predict_with_generate", None)
    text = json.dumps([body, config.limit], sort_keys=True)
    return f"{data.name}-{content_key(text.encode())[:8]}"


def _localised(data: DataSpec, config: RunConfig) -> dict[str, Any]:
    """The data set's config with hub ids replaced by the directories the user said to read instead."""
    body: dict[str, Any] = dict(data.config)
    args = dict(body.get("args") or {})
    for key in ("hf_args", "few_shot_dataset_hf_args"):
        if args.get(key):
            args[key] = redirect(dict(args[key]), config.local)
    return {**body, "args": args}

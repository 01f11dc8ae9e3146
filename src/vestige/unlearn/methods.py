"""Unlearning methods by name: which forward passes a step needs, and the loss made of them.

A method is one record (`Method`): its names, its loss of a `Step`, and what must be prepared for it. A plug-in enters
one in the same way (`method`), and no configuration file is needed (one in configs/trainer gives other defaults). A
step runs a forward pass only when a method reads its result, so a method never declares (or pays for) what it does not
read. The step's objective says what a forward pass and a loss are, so a method serves causal and masked models alike.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from vestige.errors import UserError, unknown_name
from vestige.unlearn import losses
from vestige.unlearn.objectives import Causal, MaskedBatch, MaskedDiffusion, Objective, TrainingBatch

RETAIN_LOSSES = ("NLL", "KL")
USUAL_LAYER = 7  # whose output RMU steers, as in its paper


@dataclass
class Step:
    """One training step's batches, and what the models think of them (computed when first read)."""

    model: Any
    forget: TrainingBatch
    retain: TrainingBatch | None = None
    reference: Any = None  # a frozen copy of the starting model
    objective: Objective = field(default_factory=Causal)
    alternate: TrainingBatch | None = None  # the same questions with the answers to prefer
    retain_loss_type: str = "NLL"  # KL: stay near the reference on the retain rows
    epoch: float = 0.0  # passes over the forget rows before this step
    memory: dict[str, Any] = field(default_factory=dict)  # what a method carries from step to step

    @cached_property
    def forget_logits(self) -> Tensor:
        return self.objective.logits(self.model, self.forget)

    @cached_property
    def forget_loss(self) -> Tensor:
        return self.objective.loss(self.forget_logits, self.forget)

    @cached_property
    def forget_nll(self) -> Tensor:
        return self.objective.nll(self.forget_logits, self.forget)

    @cached_property
    def forget_lengths(self) -> Tensor:
        """How many tokens each answer has."""
        if isinstance(self.forget, MaskedBatch):
            return self.forget.sizes
        return (self.forget.labels != losses.IGNORE).sum(dim=-1)

    @cached_property
    def token_nll(self) -> Tensor:
        """The loss of each place of the forget batch, at the places of `token_labels`."""
        logits, labels = align_logits(self.forget_logits, self.forget)
        return losses.placed_nll(logits, labels)

    @property
    def token_labels(self) -> Tensor:
        return align_labels(self.forget.labels, self.forget)

    @cached_property
    def reference_logits(self) -> Tensor:
        with torch.no_grad():
            return self.objective.logits(self.reference, self.forget)

    @cached_property
    def reference_nll(self) -> Tensor:
        return self.objective.nll(self.reference_logits, self.forget)

    @cached_property
    def anchor_logits(self) -> Tensor:
        """What the starting model says of the hidden tokens when it is not told the prompt."""
        assert isinstance(self.objective, MaskedDiffusion) and isinstance(self.forget, MaskedBatch)
        with torch.no_grad():
            return self.objective.logits(self.reference, self.objective.without_prompt(self.forget))

    @cached_property
    def alternate_nll(self) -> Tensor:
        return self.objective.nll(self.objective.logits(self.model, self.alternate), self.alternate)

    @cached_property
    def alternate_reference_nll(self) -> Tensor:
        with torch.no_grad():
            logits = self.objective.logits(self.reference, self.alternate)
        return self.objective.nll(logits, self.alternate)

    @cached_property
    def retain_loss(self) -> Tensor:
        logits = self.objective.logits(self.model, self.retain)
        if self.retain_loss_type == "NLL":
            return self.objective.loss(logits, self.retain)
        with torch.no_grad():
            reference = self.objective.logits(self.reference, self.retain)
        return losses.divergence(logits, reference)


def align_logits(logits: Tensor, batch: TrainingBatch) -> tuple[Tensor, Tensor]:
    """Logits and the labels they predict, place by place: causal models look one token ahead, masked ones do not.

    A masked model's logits are made only where a label is: its places are those, as one row.
    """
    aligned = logits[None] if isinstance(batch, MaskedBatch) else logits[:, :-1]
    return aligned, align_labels(batch.labels, batch)


def align_labels(labels: Tensor, batch: TrainingBatch) -> Tensor:
    """Labels of a batch (or some of them, the others IGNORE) at the places of `align_logits`."""
    if isinstance(batch, MaskedBatch):
        return labels[batch.labels != losses.IGNORE][None]
    return labels[:, 1:]


def _defaults(function: Callable[..., Any] | None) -> dict[str, Any]:
    """A function's arguments that have a default."""
    if function is None:
        return {}
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}


@dataclass(frozen=True)
class Method:
    """A loss of a step (and of the method's own knobs), with what must be prepared before the first step."""

    name: str  # as in METHODS; other spellings of it (GradDiff for grad_diff) are understood
    title: str  # in words
    loss: Callable[..., Tensor]
    formula: Callable[..., Tensor] | None = None  # called by the loss; its arguments with a default are knobs, too
    needs_reference: bool = False  # a frozen copy of the starting model
    needs_retain: bool = True
    needs_alternate: bool = False
    needs_masks: bool = False  # defined for masked diffusion models only; its knob `eps` says how tokens are hidden
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of knobs that are words
    own_retain_loss: str = ""  # a retain_loss_type that stands for the method's own distance
    also: tuple[str, ...] = ()  # other names of it

    @property
    def knobs(self) -> dict[str, Any]:
        """Every knob with its default."""
        return {**_defaults(self.formula), **_defaults(self.loss)}

    def reads_reference(self, retain_loss_type: str) -> bool:
        return self.needs_reference or retain_loss_type == "KL"

    def forget_objective(self, objective: Objective, knobs: Mapping[str, Any]) -> Objective:
        """The objective for the rows to be forgotten; others (retain rows) keep the model's own."""
        if not self.needs_masks:
            return objective
        if not isinstance(objective, MaskedDiffusion):
            raise UserError(
                f"{self.name} is defined for masked diffusion models (LLaDA, Dream, adapted ones); this "
                "model reads left to right, so choose another method."
            )
        eps = {**self.knobs, **knobs}["eps"]
        if not isinstance(eps, int | float) or not 0 <= eps < 1:
            raise UserError(f"The knob eps must be at least 0 and below 1, it is {eps}.")
        return replace(objective, eps=float(eps))


# ---- hidden states, which RMU steers --------------------------------------------------------------------------------


def layer_of(model: Any, module_regex: str | None = None) -> Any:
    """The module whose output is steered: the one the pattern names, else layer 7, or the middle of a shallow model.

    The pattern must match the end of the module's name, so that one written for a plain model also fits a PEFT one.
    """
    modules = dict(model.named_modules())
    blocks = [name for name in modules if re.search(r"(?:^|\.)(?:layers|layer|h|blocks)\.\d+$", name)]
    if module_regex is not None:
        matching = [name for name in modules if re.search(rf"(?:^|\.)(?:{module_regex})$", name)]
        if len(matching) != 1:
            shown = f"{blocks[0]} to {blocks[-1]}" if blocks else "no numbered layers"
            raise UserError(
                f"module_regex '{module_regex}' fits {len(matching)} modules, not one; the model has {shown}."
            )
        return modules[matching[0]]
    if not blocks:
        raise UserError("This model has no numbered layers that RMU would know; name one with module_regex=PATTERN.")
    shallow = len(blocks) <= 2 * USUAL_LAYER
    return modules[blocks[(len(blocks) - 1) // 2 if shallow else USUAL_LAYER]]


@contextmanager
def record_outputs(module: Any) -> Iterator[list[Tensor]]:
    """A list that grows by the module's output at each forward pass inside the block."""
    seen: list[Tensor] = []

    def keep(_module: Any, _inputs: Any, output: Any) -> None:
        seen.append(output[0] if isinstance(output, tuple) else output)

    hook = module.register_forward_hook(keep)
    try:
        yield seen
    finally:
        hook.remove()


# ---- the methods ----------------------------------------------------------------------------------------------------


def _apply(formula: Callable[..., Tensor], reads: Sequence[str], step: Step, **knobs: Any) -> Tensor:
    """A formula of what it reads of a step."""
    values = [getattr(step, name) for name in reads]
    return formula(*values, **knobs)


def _rmu(
    step: Step,
    steering_coeff: float = 2.0,
    module_regex: str | None = None,
    trainable_params_regex: Sequence[str] | str | None = None,  # read where the optimiser is made: `select_weights`
    **knobs: Any,
) -> Tensor:
    assert step.retain is not None
    with record_outputs(layer_of(step.model, module_regex)) as states:
        step.objective.logits(step.model, step.forget)
        forget = states[-1]
        step.objective.logits(step.model, step.retain)
        retain = states[-1]
    with torch.no_grad(), record_outputs(layer_of(step.reference, module_regex)) as held:
        step.objective.logits(step.reference, step.retain)
    if "direction" not in step.memory:  # one direction for the whole training
        random = torch.rand(forget.shape[-1], dtype=torch.float32).to(forget.device)
        step.memory["direction"] = random / random.norm()
    goal = steering_coeff * step.memory["direction"]
    forget_mask = (step.forget.labels != losses.IGNORE).float()
    retain_mask = (step.retain.labels != losses.IGNORE).float()
    forget_distance = losses.activation_distance(forget.float(), goal, forget_mask)
    retain_distance = losses.activation_distance(retain.float(), held[-1].float(), retain_mask)
    return losses.rmu(forget_distance, retain_distance, **knobs)


def _undial(step: Step, gamma: float = 1.0, alpha: float = 0.0, beta: float = 10.0, everywhere: bool = True) -> Tensor:
    logits, labels = align_logits(step.forget_logits, step.forget)
    teacher, _ = align_logits(step.reference_logits, step.forget)
    loss = gamma * losses.undial(logits, teacher, labels, beta, everywhere)
    return loss + alpha * step.retain_loss if alpha else loss


def _ceu(step: Step, ignore_first_n_answer_tokens: int = 1) -> Tensor:
    logits, _ = align_logits(step.forget_logits, step.forget)
    left = losses.without_first(step.forget.labels, int(ignore_first_n_answer_tokens))  # row by row, before packing
    return losses.ceu(logits, align_labels(left, step.forget))


def _pdu(
    step: Step,
    gamma: float = 1.0,
    alpha: float = 1.0,
    retain_loss_eps: float = 0.0,
    primal_dual: bool = True,
    dual_step_size: float = 1.0,
    dual_update_upon: str = "step",
    dual_warmup_epochs: float = 0.0,
    loss_names: Sequence[str] | None = None,  # what open-unlearning calls its losses in its log; ours has one loss
) -> Tensor:
    price = step.memory.setdefault("price", float(alpha))
    if isinstance(step.forget, MaskedBatch):
        margin = losses.logit_margin(*align_logits(step.forget_logits, step.forget))
    else:  # the logits at the labels' own places, not at those that predict them: so does open-unlearning
        margin = losses.logit_margin(step.forget_logits, step.forget.labels)
    loss = losses.pdu(margin, step.retain_loss, price, retain_loss_eps, gamma)
    seen = step.memory.setdefault("retain losses", [])
    seen.append(float(step.retain_loss.detach()))
    whole = int(step.epoch) > step.memory.setdefault("epoch", 0)
    if primal_dual and step.epoch >= dual_warmup_epochs and (dual_update_upon == "step" or whole):
        step.memory["price"] = losses.dual_price(price, sum(seen) / len(seen), retain_loss_eps, dual_step_size)
    if dual_update_upon == "step" or whole:
        seen.clear()
    step.memory["epoch"] = int(step.epoch)
    return loss


def _mdu(step: Step, eps: float = 1e-3, **knobs: Any) -> Tensor:
    return losses.mdu(step.forget_logits, step.anchor_logits, step.retain_loss, **knobs)


def _from_formula(name: str, title: str, formula: Callable[..., Tensor], reads: str, **facts: Any) -> Method:
    """A method whose loss is a formula of what it reads of a step; the formula's defaults are its knobs."""
    return Method(name, title, partial(_apply, formula, reads.split()), formula, **facts)


OURS = (
    _from_formula("grad_ascent", "gradient ascent", losses.grad_ascent, "forget_loss", needs_retain=False),
    _from_formula("grad_diff", "gradient difference", losses.grad_diff, "forget_loss retain_loss"),
    _from_formula("npo", "NPO", losses.npo, "forget_nll reference_nll retain_loss", needs_reference=True),
    _from_formula("simnpo", "SimNPO", losses.simnpo, "forget_nll forget_lengths retain_loss"),
    _from_formula(
        "dpo",
        "DPO",
        losses.dpo,
        "forget_nll reference_nll alternate_nll alternate_reference_nll retain_loss",
        needs_reference=True,
        needs_alternate=True,
        also=("AltPO", "IdkDPO"),
    ),
    Method("rmu", "RMU", _rmu, losses.rmu, needs_reference=True, own_retain_loss="EMBED_DIFF"),
    Method("undial", "UNDIAL", _undial, needs_reference=True, needs_retain=False),
    Method("ceu", "CEU", _ceu, needs_retain=False),
    _from_formula("satimp", "SatImp", losses.satimp, "token_nll token_labels retain_loss"),
    _from_formula("wga", "WGA", losses.wga, "token_nll token_labels retain_loss"),
    Method("pdu", "PDU", _pdu, choices={"dual_update_upon": ("step", "epoch")}),
    Method("mdu", "MDU", _mdu, losses.mdu, needs_reference=True, needs_masks=True),
)
METHODS: dict[str, Method] = {record.name: record for record in OURS}


def method(name: str, title: str = "", **facts: Any) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Enters a loss of a Step as a method; its arguments with a default are the knobs, `facts` fields of the record."""

    def enter(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
        if name in {record.name for record in OURS}:
            raise UserError(f"A plug-in registers a method '{name}', which vestige has itself; give it another name.")
        METHODS[name] = Method(name, title or name, loss, **facts)
        return loss

    return enter


def method_key(name: str) -> str:
    """A method's key in METHODS from either spelling.

    >>> method_key("GradAscent"), method_key("NPO"), method_key("AltPO")
    ('grad_ascent', 'npo', 'dpo')
    """

    def plain(spelled: str) -> str:
        return spelled.replace("_", "").lower()

    for key, record in METHODS.items():
        if plain(name) in map(plain, (key, *record.also)):
            return key
    return name


def method_named(name: str) -> Method:
    """The method, or an error that names the nearest one there is."""
    if method_key(name) not in METHODS:
        raise unknown_name("unlearning method", name, METHODS)
    return METHODS[method_key(name)]


def select_weights(model: Any, knobs: Mapping[str, Any]) -> list[str] | None:
    """The parameters a method updates: those whose whole name matches one of its patterns; None: all of them."""
    patterns = knobs.get("trainable_params_regex")
    if patterns is None:
        return None
    if isinstance(patterns, str):
        patterns = [patterns]
    names = [name for name, _ in model.named_parameters()]
    try:
        chosen = [name for name in names if any(re.fullmatch(pattern, name) for pattern in patterns)]
    except (re.error, TypeError) as error:
        raise UserError(f"trainable_params_regex should be a list of regular expressions: {error}.") from None
    if not chosen:
        like = names[len(names) // 2]
        raise UserError(f"trainable_params_regex {patterns} matches the name of no parameter; one of them is {like}.")
    return chosen


def split_knobs(name: str, knobs: Mapping[str, Any] | None) -> tuple[dict[str, Any], str]:
    """The method's own knobs, checked, and the kind of retain loss."""
    own = dict(knobs or {})
    retain_loss_type = str(own.pop("retain_loss_type", None) or "NLL")
    method = method_named(name)
    defaults = method.knobs
    for knob, value in own.items():
        if knob not in defaults:
            raise unknown_name("knob", knob, [*defaults, "retain_loss_type"], f"(of {name})")
        if _is_number(defaults[knob]) and not _is_number(value):
            raise UserError(f"The knob {knob} (of {name}) must be a number, it is {value!r}.")
    if retain_loss_type == method.own_retain_loss:
        retain_loss_type = "NLL"  # its own distance, which reads no retain loss
    if retain_loss_type not in RETAIN_LOSSES:
        raise unknown_name("retain_loss_type", retain_loss_type, RETAIN_LOSSES, f"(of {name})")
    for knob, allowed in method.choices.items():
        if own.get(knob, allowed[0]) not in allowed:
            raise UserError(f"{knob} must be {' or '.join(allowed)}, it is {own[knob]}.")
    return own, retain_loss_type


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)

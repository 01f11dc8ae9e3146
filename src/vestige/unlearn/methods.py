"""Unlearning methods by name: which forward passes a step needs, and the loss made of them.

A method is one record: its names, its loss, its knobs, and what must be prepared for it. A plug-in enters one in the
same way (`method`), and no configuration file is needed (one in configs/trainer gives other defaults). A step runs a
forward pass only when a method asks for it, so a method never declares (or pays for) what it does not read. The step's
objective says what a forward pass and a loss are, so a method serves causal and masked models alike.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from vestige.errors import UserError, unknown_name
from vestige.unlearn import losses
from vestige.unlearn.activations import Watched, layer_of
from vestige.unlearn.objectives import Causal, MaskedBatch, MaskedDiffusion, Objective, TrainingBatch

RETAIN_LOSSES = ("NLL", "KL")


@dataclass
class Step:
    """One training step's batches, and what the models think of them (computed when first read)."""

    model: Any
    forget: TrainingBatch
    retain: TrainingBatch | None = None
    reference: Any = None
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
        return self.forget.sizes if isinstance(self.forget, MaskedBatch) else (self.forget.labels != -100).sum(dim=-1)

    @cached_property
    def reference_logits(self) -> Tensor:
        with torch.no_grad():
            return self.objective.logits(self.reference, self.forget)

    @cached_property
    def reference_nll(self) -> Tensor:
        with torch.no_grad():
            return self.objective.nll(self.reference_logits, self.forget)

    @cached_property
    def anchor_logits(self) -> Tensor:
        """What the starting model says of the hidden tokens when it is not told the prompt."""
        assert isinstance(self.objective, MaskedDiffusion) and isinstance(self.forget, MaskedBatch)
        with torch.no_grad():
            return self.objective.logits(self.reference, self.objective.without_prompt(self.forget))

    @cached_property
    def alternate_nll(self) -> Tensor:
        return self.objective.nll(self.objective.logits(self.model, self._alternate), self._alternate)

    @cached_property
    def alternate_reference_nll(self) -> Tensor:
        with torch.no_grad():
            return self.objective.nll(self.objective.logits(self.reference, self._alternate), self._alternate)

    @cached_property
    def retain_loss(self) -> Tensor:
        logits = self.objective.logits(self.model, self.kept)
        if self.retain_loss_type == "NLL":
            return self.objective.loss(logits, self.kept)
        with torch.no_grad():
            reference = self.objective.logits(self.reference, self.kept)
        return losses.divergence(logits, reference)

    @property
    def kept(self) -> TrainingBatch:
        if self.retain is None:
            raise ValueError("this method trains on retain rows too, but none were given")
        return self.retain

    @property
    def _alternate(self) -> TrainingBatch:
        if self.alternate is None:
            raise ValueError("this method needs alternate answers, but none were given")
        return self.alternate


def placed(logits: Tensor, batch: TrainingBatch) -> tuple[Tensor, Tensor]:
    """Logits and the labels they predict, place by place: causal models look one token ahead, masked ones do not.

    A masked model's logits are made only where a label is: its places are those, as one row.
    """
    return (logits[None] if isinstance(batch, MaskedBatch) else logits[:, :-1]), predicted(batch.labels, batch)


def predicted(labels: Tensor, batch: TrainingBatch) -> Tensor:
    """Labels of a batch (or some of them, the others IGNORE) at the places of `placed`."""
    if isinstance(batch, MaskedBatch):
        return labels[batch.labels != losses.IGNORE][None]
    return labels[:, 1:]


@dataclass(frozen=True)
class Method:
    """A loss of a step (and of the method's own knobs), with what must be prepared before the first step."""

    name: str  # as in METHODS; other spellings of it (GradDiff for grad_diff) are understood
    title: str  # in words
    loss: Callable[..., Tensor]
    formula: Callable[..., Tensor] | None = None  # whose arguments with a default are the knobs; None: the loss's own
    needs_reference: bool = False  # a frozen copy of the starting model
    needs_retain: bool = True
    needs_alternate: bool = False
    needs_masks: bool = False  # defined for masked diffusion models only; its knob `eps` says how tokens are hidden
    more_knobs: Mapping[str, Any] = field(default_factory=dict)
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of knobs that are words
    own_retain_loss: str = ""  # a retain_loss_type that stands for the method's own distance
    also: tuple[str, ...] = ()  # other names of it

    @property
    def knobs(self) -> dict[str, Any]:
        """Every knob with its default."""
        given = inspect.signature(self.formula or self.loss).parameters.values()
        own = {p.name: p.default for p in given if p.default is not inspect.Parameter.empty}
        return {**own, **self.more_knobs}

    def reads_reference(self, retain_loss_type: str) -> bool:
        return self.needs_reference or retain_loss_type == "KL"

    def forgetting(self, objective: Objective, knobs: Mapping[str, Any]) -> Objective:
        """The objective for the rows to be forgotten; others (retain rows) keep the model's own."""
        if not self.needs_masks:
            return objective
        if not isinstance(objective, MaskedDiffusion):
            raise UserError(
                f"{self.name} is defined for masked diffusion models (LLaDA, Dream, adapted ones); this "
                "model reads left to right, so choose another method."
            )
        eps = knobs.get("eps", self.more_knobs["eps"])
        if not isinstance(eps, int | float) or not 0 <= eps < 1:
            raise UserError(f"The knob eps must be at least 0 and below 1, it is {eps}.")
        return replace(objective, eps=float(eps))


def _grad_ascent(step: Step) -> Tensor:
    return losses.grad_ascent(step.forget_loss)


def _grad_diff(step: Step, **knobs: Any) -> Tensor:
    return losses.grad_diff(step.forget_loss, step.retain_loss, **knobs)


def _npo(step: Step, **knobs: Any) -> Tensor:
    return losses.npo(step.forget_nll, step.reference_nll, step.retain_loss, **knobs)


def _simnpo(step: Step, **knobs: Any) -> Tensor:
    return losses.simnpo(step.forget_nll, step.forget_lengths, step.retain_loss, **knobs)


def _dpo(step: Step, **knobs: Any) -> Tensor:
    return losses.dpo(
        step.forget_nll,
        step.reference_nll,
        step.alternate_nll,
        step.alternate_reference_nll,
        step.retain_loss,
        **knobs,
    )


def _rmu(
    step: Step,
    steering_coeff: float = 2.0,
    module_regex: str | None = None,
    trainable_params_regex: Sequence[str] | str | None = None,  # read where the optimiser is made: `chosen_weights`
    **knobs: Any,
) -> Tensor:
    masks = [(batch.labels != losses.IGNORE).float() for batch in (step.forget, step.kept)]
    with Watched(layer_of(step.model, module_regex)) as seen:
        step.objective.logits(step.model, step.forget)
        forget = seen.states
        step.objective.logits(step.model, step.kept)
        retain = seen.states
    with torch.no_grad(), Watched(layer_of(step.reference, module_regex)) as seen:
        step.objective.logits(step.reference, step.kept)
        held = seen.states
    if "direction" not in step.memory:  # one direction for the whole training
        random = torch.rand(forget.shape[-1], dtype=torch.float32).to(forget.device)
        step.memory["direction"] = random / random.norm()
    goal = steering_coeff * step.memory["direction"]
    forget_distance = losses.activation_distance(forget.float(), goal, masks[0])
    return losses.rmu(forget_distance, losses.activation_distance(retain.float(), held.float(), masks[1]), **knobs)


def _undial(step: Step, gamma: float = 1.0, alpha: float = 0.0, beta: float = 10.0, everywhere: bool = True) -> Tensor:
    logits, labels = placed(step.forget_logits, step.forget)
    teacher, _ = placed(step.reference_logits, step.forget)
    loss = gamma * losses.undial(logits, teacher, labels, beta, everywhere)
    return loss + alpha * step.retain_loss if alpha else loss


def _ceu(step: Step, ignore_first_n_answer_tokens: int = 1) -> Tensor:
    logits, _ = placed(step.forget_logits, step.forget)
    left = losses.without_first(step.forget.labels, int(ignore_first_n_answer_tokens))  # row by row, before packing
    return losses.ceu(logits, predicted(left, step.forget))


def _token_nll(step: Step) -> tuple[Tensor, Tensor]:
    logits, labels = placed(step.forget_logits, step.forget)
    return losses.placed_nll(logits, labels), labels


def _satimp(step: Step, **knobs: Any) -> Tensor:
    return losses.satimp(*_token_nll(step), step.retain_loss, **knobs)


def _wga(step: Step, **knobs: Any) -> Tensor:
    return losses.wga(*_token_nll(step), step.retain_loss, **knobs)


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
        margin = losses.logit_margin(*placed(step.forget_logits, step.forget))
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


RMU_KNOBS = {"steering_coeff": 2.0, "module_regex": None, "trainable_params_regex": None}

PDU_KNOBS = {
    "alpha": 1.0,
    "primal_dual": True,
    "dual_step_size": 1.0,
    "dual_update_upon": "step",
    "dual_warmup_epochs": 0.0,
    "loss_names": None,
}

OURS = (
    Method("grad_ascent", "gradient ascent", _grad_ascent, losses.grad_ascent, needs_retain=False),
    Method("grad_diff", "gradient difference", _grad_diff, losses.grad_diff),
    Method("npo", "NPO", _npo, losses.npo, needs_reference=True),
    Method("simnpo", "SimNPO", _simnpo, losses.simnpo),
    Method("dpo", "DPO", _dpo, losses.dpo, needs_reference=True, needs_alternate=True, also=("AltPO", "IdkDPO")),
    Method("rmu", "RMU", _rmu, losses.rmu, needs_reference=True, more_knobs=RMU_KNOBS, own_retain_loss="EMBED_DIFF"),
    Method(
        "undial",
        "UNDIAL",
        _undial,
        losses.undial,
        needs_reference=True,
        needs_retain=False,
        more_knobs={"gamma": 1.0, "alpha": 0.0},
    ),
    Method("ceu", "CEU", _ceu, losses.ceu, needs_retain=False, more_knobs={"ignore_first_n_answer_tokens": 1}),
    Method("satimp", "SatImp", _satimp, losses.satimp),
    Method("wga", "WGA", _wga, losses.wga),
    Method("pdu", "PDU", _pdu, losses.pdu, more_knobs=PDU_KNOBS, choices={"dual_update_upon": ("step", "epoch")}),
    Method("mdu", "MDU", _mdu, losses.mdu, needs_reference=True, needs_masks=True, more_knobs={"eps": 1e-3}),
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


def chosen_weights(model: Any, knobs: Mapping[str, Any]) -> list[str] | None:
    """The parameters a method updates: those whose whole name matches one of its patterns; None: all of them."""
    said = knobs.get("trainable_params_regex")
    if said is None:
        return None
    patterns = said if isinstance(said, list | tuple) else [said]
    if not all(isinstance(p, str) for p in patterns):
        raise UserError(f"trainable_params_regex should be a list of regular expressions, it is {said!r}.")
    try:
        out = [name for name, _ in model.named_parameters() if any(re.fullmatch(p, name) for p in patterns)]
    except re.error as error:
        raise UserError(f"trainable_params_regex is not a list of regular expressions: {error}.") from None
    if not out:
        names = [name for name, _ in model.named_parameters()]
        like = names[len(names) // 2]
        raise UserError(f"trainable_params_regex {patterns} matches the name of no parameter; one of them is {like}.")
    return out


def split_knobs(name: str, knobs: Mapping[str, Any] | None) -> tuple[dict[str, Any], str]:
    """The method's own knobs, checked, and the kind of retain loss."""
    own = dict(knobs or {})
    retain_loss_type = str(own.pop("retain_loss_type", None) or "NLL")
    method = method_named(name)
    for knob in own:
        if knob not in method.knobs:
            raise unknown_name("knob", knob, [*method.knobs, "retain_loss_type"], f"(of {name})")
        number = isinstance(method.knobs[knob], Real) and not isinstance(method.knobs[knob], bool)
        if number and (isinstance(own[knob], bool) or not isinstance(own[knob], Real)):
            raise UserError(f"The knob {knob} (of {name}) must be a number, it is {own[knob]!r}.")
    if method.own_retain_loss and retain_loss_type == method.own_retain_loss:
        retain_loss_type = "NLL"  # its own distance, which reads no retain loss
    if retain_loss_type not in RETAIN_LOSSES:
        raise unknown_name("retain_loss_type", retain_loss_type, RETAIN_LOSSES, f"(of {name})")
    for knob, allowed in method.choices.items():
        if own.get(knob, allowed[0]) not in allowed:
            raise UserError(f"{knob} must be {' or '.join(allowed)}, it is {own[knob]}.")
    return own, retain_loss_type

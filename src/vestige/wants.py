"""What metrics ask of collect: answers to score, texts to generate, gradients to take, states to patch.

A want is plain content. Equal wants of different metrics are one want; its key names the evidence that answers it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from vestige.errors import UserError, unknown_name
from vestige.types import Prompt, Target, Text, content_key


@dataclass(frozen=True)
class Decoding:
    """How text is generated: the `generation_args` of a metric config."""

    max_new_tokens: int = 200
    do_sample: bool = False
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float | None = None  # None: what the model's generation config says
    stopwords: tuple[str, ...] = ()
    seed: int = 0
    sampler: tuple[tuple[str, Any], ...] = ()  # settings of a diffusion sampler, by name

    @classmethod
    def from_config(cls, args: Mapping[str, Any] | None, **defaults: Any) -> Decoding:
        """Null means the default, as in open-unlearning's `temperature: null`; what we cannot do is refused."""
        given = {k: v for k, v in dict(args or {}).items() if v is not None}
        given.pop("use_cache", None)
        if int(given.pop("num_beams", 1)) != 1:
            raise UserError("generation_args.num_beams: beam search is not supported; use num_beams=1.")
        sampler = {name: given.pop(name) for name in sorted(given) if name in SAMPLER_SETTINGS}
        known = {f.name for f in fields(cls)} - {"sampler"} | SAMPLER_SETTINGS
        unknown = sorted(set(given) - known)
        if unknown:
            raise UserError(f"generation_args: {', '.join(unknown)} not supported. Known: {', '.join(sorted(known))}.")
        if "stopwords" in given:
            words = given["stopwords"]
            given["stopwords"] = tuple(w for w in ([words] if isinstance(words, str) else words) if w)
        if sampler:
            lists = {name: tuple(value) for name, value in sampler.items() if isinstance(value, list)}
            given["sampler"] = tuple({**sampler, **lists}.items())
        made = cls(**{**defaults, **given})
        made._check()
        return made

    def _check(self) -> None:
        rules = {
            "max_new_tokens": (self.max_new_tokens >= 1, "at least 1"),
            "temperature": (self.temperature >= 0, "0 (greedy) or more"),
            "top_p": (0 < self.top_p <= 1, "above 0 and at most 1"),
            "top_k": (self.top_k >= 0, "0 (off) or more"),
            "repetition_penalty": (self.repetition_penalty is None or self.repetition_penalty > 0, "above 0"),
        }
        for name, (kept, rule) in rules.items():
            if not kept:
                raise UserError(f"generation_args.{name} must be {rule}, it is {getattr(self, name)}.")

    @property
    def greedy(self) -> bool:
        return not self.do_sample or self.temperature == 0

    @property
    def key(self) -> str:
        """Greedy decoding ignores the sampling settings, so they do not tell two greedy requests apart."""
        parts: list[Any] = [self.max_new_tokens, self.repetition_penalty, self.stopwords]
        if self.sampler:
            parts.append(self.sampler)
        if not self.greedy:
            parts += [self.temperature, self.top_p, self.top_k, self.seed]
        return content_key(repr(parts).encode())


@dataclass(frozen=True, slots=True)
class Request:
    """One text to generate."""

    prompt: Prompt
    decoding: Decoding

    @property
    def key(self) -> str:
        return content_key(self.prompt.key.encode(), self.decoding.key.encode())


def spoken(request: Request, text: Text) -> Target | None:
    """What a model wrote, as an answer that another model can score; None where it wrote nothing, or broke down."""
    prompt = request.prompt
    if text.broken or not text.ids or not prompt.ids:
        return None
    return Target((*prompt.ids, *text.ids), len(prompt.ids), prompt.hidden, prompt.row)


@dataclass(frozen=True)
class GradientWant:
    """The gradient norm of one answer's loss."""

    target: Target
    p: str  # "1", "2" or "inf"
    drop_last: bool
    train: bool  # in train mode (dropout live), as open-unlearning does

    @property
    def key(self) -> str:
        return content_key(self.target.key.encode(), repr((self.p, self.drop_last, self.train)).encode())


LAST_LAYERS = ("residual", "peer")  # what goes into the last block's place: before or after the source's final norm


@dataclass(frozen=True)
class PatchWant:
    """Another model's states in the place of this one's at positions [first, end), one layer at a time; what becomes
    of the target's labels? The target's ids end with its last label: later tokens cannot matter.
    """

    target: Target
    first: int
    end: int

    def __post_init__(self) -> None:
        # Positions below the first patched one keep their clean keys and values, so scoring may not begin there.
        if not 0 <= self.first < self.end <= self.width or self.first > self.target.start - 1:
            raise ValueError(f"positions {self.first}..{self.end} do not fit a target of {self.width} inputs")

    @property
    def width(self) -> int:
        """How many tokens go through the model: all but the last label."""
        return len(self.target.ids) - 1

    @property
    def key(self) -> str:
        return content_key(self.target.key.encode(), repr((self.first, self.end)).encode())


@dataclass(frozen=True)
class CrossWant:
    """One reasoning under one prompt, its own or another's: how likely is each of its tokens there?"""

    target: Target
    temperature: float = 1.0

    @property
    def key(self) -> str:
        return content_key(self.target.key.encode(), repr(float(self.temperature)).encode())


@dataclass(frozen=True)
class PatchInto:
    """The models of a depth score besides the evaluated one: states go into `full`, the retain model's and its own."""

    full: str
    retain: str
    last_layer: str = "residual"

    def label(self, source: str) -> str:
        """The name of one source's evidence; `source` is "retain" or "model"."""
        return content_key(repr((self.full, self.retain, self.last_layer, source)).encode())[:16]


@dataclass(frozen=True)
class ClassifierWant:
    """The probability a text classifier gives one class of one text."""

    text: str
    model: str
    class_id: int
    max_length: int

    @property
    def key(self) -> str:
        return content_key(self.text.encode(), repr((self.model, self.class_id, self.max_length)).encode())


@dataclass(frozen=True)
class Denoising:
    """How a diffusion model fills a window: the `sampler_kwargs` of a trajectory config."""

    sampler: str = "mdlm"  # mdlm | bd3lm | diffusion_gemma
    steps: int = 32
    max_new_tokens: int = 64
    block_size: int | None = None  # None: the whole window (mdlm), 32 (bd3lm)
    steps_per_block: int | None = None  # None: `steps` shared by the blocks
    temperature: float = 0.0
    remasking: str = "low_confidence"  # | random, or as Dream decides: maskgit_plus | topk_margin | entropy
    stochastic_transfer: bool = False
    scheduler: str = "linear"  # | cosine
    schedule: str = "dllm"  # | llada: how many tokens each pass decides
    cfg_scale: float = 0.0
    cfg_keep_tokens: tuple[int, ...] = ()
    suppress_tokens: tuple[int, ...] = ()
    begin_suppress_tokens: tuple[int, ...] = ()
    right_shift_logits: bool | None = None  # None: as the model family needs
    mode: str = "unguided"  # | guided_native | guided_skew: the first label stream is written instead
    seed: int = 0
    # diffusion_gemma only. None: what the checkpoint's generation_config.json says, else what transformers does.
    entropy_bound: float | None = None  # how much entropy the positions accepted in one pass may have together
    t_max: float | None = None  # the temperature falls from t_max (before the first pass) towards t_min
    t_min: float | None = None
    stability_threshold: int | None = None  # stop when the first choices were the same in so many earlier passes
    confidence_threshold: float | None = None  # and their mean entropy is below this
    noise: str | None = None  # sample (default): a prompt's own random numbers | generate: those of transformers

    @property
    def passes(self) -> int:
        """How many passes fill a window of masks, at most."""
        if self.steps_per_block is None:
            return self.steps
        return self.steps_per_block * -(-self.max_new_tokens // (self.block_size or self.max_new_tokens))

    def check(self, where: str = "sampler_kwargs") -> None:
        """Settings that no sampler could follow are refused by name; `where` holds them in the configuration."""
        for name, known in DENOISING_CHOICES.items():
            value = getattr(self, name)
            if value not in known and not (value is None and name in CANVAS_SETTINGS):
                raise unknown_name(f"{where}.{name}", str(value), known)
        for name in ("steps", "max_new_tokens", "block_size", "steps_per_block"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise UserError(f"{where}.{name} must be a whole number of at least 1, it is {value!r}.")
        for name in ("temperature", "cfg_scale", "entropy_bound", "t_max", "t_min", "confidence_threshold"):
            value = getattr(self, name)
            if value is None and name in CANVAS_SETTINGS:
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
                raise UserError(f"{where}.{name} must be at least 0, it is {value!r}.")
        stable = self.stability_threshold
        if stable is not None and (not isinstance(stable, int) or isinstance(stable, bool) or stable < 0):
            raise UserError(f"{where}.stability_threshold must be a whole number of at least 0, it is {stable!r}.")
        if self.t_max is not None and self.t_min is not None and self.t_max < self.t_min:
            raise UserError(
                f"{where}.t_max ({self.t_max}) must be at least t_min ({self.t_min}): the temperature falls."
            )
        self._check_sampler(where)

    def _check_sampler(self, where: str) -> None:
        """A setting of another sampler would be ignored, so it is refused."""
        foreign = MASK_SETTINGS if self.sampler == "diffusion_gemma" else CANVAS_SETTINGS
        for f in fields(self):
            if f.name in foreign and getattr(self, f.name) != f.default:
                advice = ADVICE.get(f.name, "leave it out")
                raise UserError(f"{where}.{f.name} does not belong to sampler={self.sampler}; {advice}.")

    @property
    def takes_back(self) -> bool:
        """Whether a decision of one pass can be taken back by the next."""
        return self.sampler == "diffusion_gemma"

    def settings(self) -> dict[str, Any]:
        """All settings by name; those of DiffusionGemma's sampler only where they are set."""
        said = {f.name: getattr(self, f.name) for f in fields(self)}
        return {k: v for k, v in said.items() if v is not None or k not in CANVAS_SETTINGS}

    @property
    def key(self) -> str:
        """By the settings that are set."""
        said = ", ".join(f"{k}={v!r}" for k, v in self.settings().items())
        return content_key(f"Denoising({said})".encode())


# What generation_args may say of a sampler; the other settings have names of their own there.
SAMPLER_SETTINGS = {f.name for f in fields(Denoising)} - {"max_new_tokens", "temperature", "seed", "mode"}
# Settings of DiffusionGemma's sampler, and those that only filling masks has.
CANVAS_SETTINGS = ("entropy_bound", "t_max", "t_min", "stability_threshold", "confidence_threshold", "noise")
MASK_SETTINGS = (
    "block_size", "temperature", "remasking", "stochastic_transfer", "scheduler", "schedule", "cfg_scale",
    "cfg_keep_tokens", "suppress_tokens", "begin_suppress_tokens", "right_shift_logits", "mode",
)  # fmt: skip
ADVICE = {
    "temperature": "its temperature falls from t_max to t_min, so set those",
    "mode": "it can only be watched, so use evaluation_mode=unguided",
    "block_size": "its blocks are the checkpoint's canvases",
}
DENOISING_CHOICES = {
    "sampler": ("mdlm", "bd3lm", "diffusion_gemma"),
    "noise": ("sample", "generate"),
    "remasking": ("low_confidence", "random", "maskgit_plus", "topk_margin", "entropy"),
    "scheduler": ("linear", "cosine"),
    "schedule": ("dllm", "llada"),
    "mode": ("unguided", "guided_native", "guided_skew"),
}


@dataclass(frozen=True)
class DenoiseWant:
    """One prompt to continue by denoising, and the answers whose likelihood is watched on the way.

    A stream is an answer's tokens laid on the window's positions, IGNORE where there is none.
    """

    prompt: Prompt
    streams: tuple[tuple[int, ...], ...]
    denoising: Denoising
    logits: str = ""  # a file of saved logits to read instead of running a model

    @property
    def key(self) -> str:
        parts = (self.prompt.key, repr(self.streams), self.denoising.key, self.logits)
        return content_key(*(p.encode() for p in parts))


@dataclass
class Wants:
    """Everything one or many metrics ask for."""

    answers: list[Target] = field(default_factory=list)
    texts: list[Request] = field(default_factory=list)
    gradients: list[GradientWant] = field(default_factory=list)
    denoised: list[DenoiseWant] = field(default_factory=list)
    visible: list[Target] = field(default_factory=list)  # answers to be read with every token in sight (diffusion)
    reference: dict[str, list[Target]] = field(default_factory=dict)  # second model's path -> answers to score
    said: dict[str, list[Request]] = field(default_factory=dict)  # second model's path -> texts of ours for it to score
    patched: dict[PatchInto, list[PatchWant]] = field(default_factory=dict)

    def add(self, other: Wants) -> None:
        self.answers += other.answers
        self.texts += other.texts
        self.gradients += other.gradients
        self.denoised += other.denoised
        self.visible += other.visible
        for path, targets in other.reference.items():
            self.reference.setdefault(path, []).extend(targets)
        for path, requests in other.said.items():
            self.said.setdefault(path, []).extend(requests)
        for models, wants in other.patched.items():
            self.patched.setdefault(models, []).extend(wants)

"""The work of an audit, step by step: evaluations, layers, attacks. What a finished step found is not found twice.

In: what is audited. Out: run directories below OUT, and OUT/audit.json, which says what was done, what was left out and
why. Caller: audit/run.py. A step counts as done when its run is finished and whole and rests on the same weights, rows
and settings; anything else is done again (evaluations and layers then start from their evidence).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from vestige.data.rows import suffixes
from vestige.depth.ask import make_ask
from vestige.depth.run import depth_run
from vestige.engine.config import RunConfig, make_config
from vestige.engine.evaluate import Outcome, evaluate_config
from vestige.engine.served import handle_for
from vestige.errors import UserError
from vestige.io import DamagedError, decode
from vestige.isolation import isolated
from vestige.runs.directory import install, scratch
from vestige.runs.files import write_json
from vestige.runs.manifest import is_whole, sha256, versions
from vestige.stress.attacks import attack_named
from vestige.stress.run import make_stress, stress
from vestige.types import content_key

RECORD = "audit.json"
# What attacked models are asked: the forget rows alone.
ATTACKED = ("forget_Prob", "forget_ROUGE", "forget_extraction_strength", "forget_secrets_said")
# In the order in which they are tried: what costs least and says most comes first.
ATTACKS = {word.partition("=")[0]: word for word in ("jailbreak", "relearn", "prune=0.3", "quantise=4")}
TESTS = ("layers", *ATTACKS)  # what may be left out
# Settings of the evaluations that layers and attacks take as well.
OF_DEPTH = ("dtype", "device", "tokenizer", "trust_remote_code", "quantization", "compute_dtype", "cluster")
OF_STRESS = (
    "system_prompt", "cluster", "dtype", "device", "tokenizer", "trust_remote_code", "server", "server_key_env",
)  # fmt: skip


@dataclass(frozen=True)
class Audit:
    """What is audited, as it was asked."""

    before: str
    after: str
    forget: str
    retain: str | None = None
    holdout: str | None = None
    retain_model: str | None = None
    out: Path = Path("saves/audit")
    minutes: float | None = None  # None: as long as it takes
    skip: Sequence[str] = ()  # tests to leave out
    settings: Mapping[str, Any] = field(default_factory=dict)  # options of an evaluation

    @property
    def files(self) -> dict[str, Path]:
        """The rows that were given, by what they are."""
        named = {"forget": self.forget, "retain": self.retain, "holdout": self.holdout}
        return {name: Path(file).expanduser() for name, file in named.items() if file is not None}

    @property
    def models(self) -> dict[str, str]:
        """The retain model first: it is the others' reference."""
        named = {"retain": self.retain_model, "before": self.before, "after": self.after}
        return {name: model for name, model in named.items() if model is not None}

    @property
    def progress(self) -> bool:
        return self.settings.get("progress") is not False


@dataclass(frozen=True)
class Step:
    """What became of a step; `key` is everything its numbers rest on."""

    state: str
    key: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Record:
    """audit.json."""

    asked: dict[str, Any]
    limit: int | None
    steps: dict[str, Step]
    not_tested: dict[str, str] = field(default_factory=dict)


class AuditWork:
    """One audit's run directories."""

    def __init__(self, audit: Audit) -> None:
        self.audit = audit
        self.limit: int | None = audit.settings.get("limit")
        self.steps: dict[str, Step] = {}
        self.outcomes: dict[str, Outcome] = {}
        self.tested: dict[str, Path] = {}  # test -> its run directory
        self.left_out: dict[str, str] = {}  # test -> why; the plan's, which grows while steps are tried
        before = self._read_record()
        self.known = before.steps if before else {}
        # The same command resumes with the same rows. A test left out changes nothing for the others.
        asked = asdict(audit)
        del asked["skip"]
        self.asked = json.loads(json.dumps(asked, default=str))
        self.planned = before is not None and before.asked == self.asked
        if before is not None and self.planned:
            self.limit = before.limit

    def _read_record(self) -> Record | None:
        file = self.audit.out / RECORD
        if self.audit.settings.get("overwrite") or not file.is_file():
            return None
        try:
            return decode(file, Record)
        except DamagedError:
            return None  # every step is done again

    def note(self, name: str, step: Step) -> None:
        """What became of a step; the file is whole after each."""
        self.steps[name] = step
        self.write()

    def write(self) -> None:
        record = Record(self.asked, self.limit, {**self.known, **self.steps}, self.left_out)
        write_json(self.audit.out / RECORD, asdict(record))

    @property
    def attacked(self) -> list[Path]:
        return [place for name, place in self.tested.items() if name != "layers"]

    # ---- evaluations

    def evaluation(self, name: str, **more: Any) -> RunConfig:
        """The evaluation of one of the models: its configuration."""
        audit = self.audit
        settings: dict[str, Any] = {**audit.settings, "full": audit.before, "limit": self.limit}
        settings |= {"suite": "own", "model": audit.models[name], "out": str(audit.out / name)}
        if name != "retain" and audit.retain_model:
            settings["retain_logs"] = str(audit.out / "retain" / "OWN_EVAL.json")
        settings["server_by_name"] = bool(settings.get("server"))
        run = make_config(**{**settings, **more})
        assert isinstance(run, RunConfig)  # the suite `own` is one of metrics
        files = {split: str(file) for split, file in audit.files.items()}
        return replace(run, missing="skip", local={"own": {"files": files}})

    def evaluate(self, name: str) -> None:
        self.outcomes[name] = evaluate_config(self.evaluation(name))

    # ---- layers and attacks

    def test(self, name: str) -> None:
        """Layers, or an attack. It may take its process down, so it has one of its own."""
        if name == "layers":
            self.tested[name] = isolated(self._layers)
        else:
            attack_named(name).import_modules()
            self.tested[name] = isolated(self._attack, name)

    def _place(self, name: str) -> Path:
        return self.audit.out / ("depth" if name == "layers" else f"attacks/{name}")

    def _layers(self) -> Path:
        """Needs all three models, and question and answer in each row."""
        audit = self.audit
        assert audit.retain_model is not None
        shared = {name: audit.settings.get(name) for name in OF_DEPTH}
        request = make_ask(
            unlearned=[audit.after],
            full=audit.before,
            retain=audit.retain_model,
            data=audit.files["forget"],
            out=self._place("layers"),
            limit=self.limit,
            batch_size=audit.settings.get("batch_size") or 8,
            progress=audit.progress,
            **{name: value for name, value in shared.items() if value not in (None, False)},
        )
        return depth_run(request)[0].directory

    def _attack(self, name: str) -> Path:
        """One attack on the audited model, and on the retain model as its control."""
        audit = self.audit
        place = self._place(name)
        shared: dict[str, Any] = {key: audit.settings.get(key) for key in OF_STRESS}
        request = make_stress(
            audit.after,
            self._folder(),
            [ATTACKS[name]],
            place,
            retain_model=audit.retain_model,
            plugins=audit.settings.get("plugins") or (),
            suite="own",
            limit=self.limit,
            metrics=ATTACKED,
            progress=audit.progress,
            **shared,
        )
        batches = {key: audit.settings.get(key) for key in ("batch_tokens", "batch_size")}
        settings = {**request.settings, **{key: size for key, size in batches.items() if size is not None}}
        # What was collected for the evaluations is not collected again before the attack.
        collected = {"model": audit.out / "after", "retain": audit.out / "retain"}
        stress(replace(request, settings=settings, collected=collected))
        return place

    def _folder(self) -> Path:
        """The rows as a folder, under the names that attacks look for."""
        place = self.audit.out / "data"
        with scratch(self.audit.out) as made:
            for split, file in self.audit.files.items():
                if file.suffix not in suffixes():
                    raise UserError(f"attacks read {', '.join(suffixes())}; {file.name} is none of these.")
                shutil.copyfile(file, made / f"{split}{file.suffix}")
            install(made, place)
        return place

    # ---- what need not be done again

    def key(self, name: str) -> str:
        """Everything that the numbers of layers and attacks rest on."""
        models = [handle_for(self.evaluation(who)).identity for who in self.audit.models]
        rows = {split: sha256(file) for split, file in self.audit.files.items()}
        settings = {k: v for k, v in self.audit.settings.items() if k not in ("progress", "overwrite", "limit")}
        facts = [name, ATTACKS.get(name), models, rows, self.limit, settings, versions()]
        return content_key(json.dumps(facts, sort_keys=True, default=str).encode())

    def is_done(self, name: str) -> bool:
        """Whether a step's run is there, whole, and of the same weights, rows and settings."""
        place, known = self._place(name), self.known.get(name)
        if known is None or known.state != "done" or not place.is_dir() or not is_whole(place):
            return False
        if known.key != self.key(name):
            return False
        self.tested[name] = place
        self.note(name, known)
        return True

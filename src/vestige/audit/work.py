"""The work of an audit, step by step: evaluations, layers, attacks. What a finished step found is not found twice.

In: what is audited. Out: run directories below OUT, and OUT/audit.json, which says what was done, what was left out and
why. Caller: audit/run.py. A step is believed when its run is finished and whole and rests on the same weights, rows and
settings; anything else is done again (evaluations and layers then start from their evidence).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict

from vestige.data.rows import suffixes
from vestige.depth.ask import make_ask
from vestige.depth.run import depth_run
from vestige.engine.config import RunConfig
from vestige.engine.evaluate import Outcome, evaluate_config
from vestige.engine.flags import EvalAsk, to_run
from vestige.engine.served import handle_for
from vestige.errors import UserError
from vestige.guard import read_json
from vestige.isolation import isolated
from vestige.runs.directory import install, scratch
from vestige.runs.manifest import is_whole, sha256, versions
from vestige.schema import misfit
from vestige.store.files import write_json
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
    settings: Mapping[str, Any] = field(default_factory=dict)  # fields of EvalAsk

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


class _Done(TypedDict):
    state: str
    key: str
    seconds: float


class _Kept(TypedDict):
    asked: dict[str, Any]
    limit: int | None
    steps: dict[str, _Done]


class AuditWork:
    """One audit's run directories."""

    def __init__(self, ask: Audit) -> None:
        self.ask = ask
        self.limit: int | None = ask.settings.get("limit")
        self.steps: dict[str, dict[str, Any]] = {}
        self.outcomes: dict[str, Outcome] = {}
        self.depth: Path | None = None
        self.stressed: dict[str, Path] = {}
        self.left_out: Mapping[str, str] = {}  # test -> why; the plan's, which grows while steps are tried
        kept = self._kept()
        self.known = kept["steps"] if kept else {}
        self.planned = bool(kept) and kept is not None and kept["asked"] == self._asked()
        if self.planned and kept is not None:
            self.limit = kept["limit"]  # the same command goes on with the same rows

    def _asked(self) -> dict[str, Any]:
        """What the number of rows was planned for; a test left out changes nothing for the others."""
        asked = asdict(self.ask)
        del asked["skip"]
        return dict(json.loads(json.dumps(asked, default=str)))

    def _kept(self) -> _Kept | None:
        file = self.ask.out / RECORD
        if self.ask.settings.get("overwrite") or not file.is_file():
            return None
        try:
            found: Any = read_json(file)
        except ValueError:
            return None
        return None if misfit(found, _Kept) else found

    def note(self, name: str, **facts: Any) -> None:
        """What became of a step; the file is whole after each."""
        self.steps[name] = facts
        self.write()

    def write(self) -> None:
        steps = {name: {"seconds": 0.0, "key": "", **body} for name, body in {**self.known, **self.steps}.items()}
        body = {"asked": self._asked(), "limit": self.limit, "steps": steps, "not_tested": self.left_out}
        write_json(self.ask.out / RECORD, body)

    # ---- evaluations

    def evaluation(self, name: str, **more: Any) -> RunConfig:
        """The evaluation of one of the models: its configuration."""
        logs = self.ask.out / "retain" / "OWN_EVAL.json" if name != "retain" and self.ask.retain_model else None
        said: dict[str, Any] = {**self.ask.settings, "full": self.ask.before, "limit": self.limit}
        said |= {"out": str(self.ask.out / name), "retain_logs": str(logs) if logs else None, **more}
        said |= {"server_by_name": bool(said.get("server"))}
        run = to_run(EvalAsk(suite="own", model=self.ask.models[name], **said))
        assert isinstance(run, RunConfig)  # the suite `own` is one of metrics
        files = {split: str(file) for split, file in self.ask.files.items()}
        return replace(run, missing="skip", local={"own": {"files": files}})

    def evaluate(self, name: str) -> Outcome:
        self.outcomes[name] = evaluate_config(self.evaluation(name))
        return self.outcomes[name]

    # ---- layers and attacks

    def test(self, name: str) -> None:
        """Layers, or an attack. It may take its process down, so it has one of its own."""
        if name == "layers":
            self._found(name, isolated(self._layers))
        else:
            attack_named(name).import_modules()
            self._found(name, isolated(self._attack, name))

    def _found(self, name: str, place: Path) -> None:
        if name == "layers":
            self.depth = place
        else:
            self.stressed[name] = place

    def _layers(self) -> Path:
        """Needs all three models, and question and answer in each row."""
        assert self.ask.retain_model is not None
        said = {name: self.ask.settings.get(name) for name in OF_DEPTH}
        place = self.ask.out / "depth"
        asked = make_ask(
            unlearned=[self.ask.after],
            full=self.ask.before,
            retain=self.ask.retain_model,
            data=self.ask.files["forget"],
            out=place,
            limit=self.limit,
            batch_size=self.ask.settings.get("batch_size") or 8,
            progress=self.ask.settings.get("progress") is not False,
            **{key: value for key, value in said.items() if value not in (None, False)},
        )
        return depth_run(asked)[0].directory

    def _attack(self, name: str) -> Path:
        """One attack on the audited model, and on the retain model as its control."""
        said: dict[str, Any] = {key: self.ask.settings.get(key) for key in OF_STRESS}
        place = self.ask.out / "attacks" / name
        made = make_stress(
            self.ask.after,
            self._folder(),
            [ATTACKS[name]],
            place,
            retain_model=self.ask.retain_model,
            plugins=self.ask.settings.get("plugins") or (),
            suite="own",
            limit=self.limit,
            metrics=ATTACKED,
            progress=self.ask.settings.get("progress") is not False,
            **said,
        )
        more = {k: v for k in ("batch_tokens", "batch_size") if (v := self.ask.settings.get(k)) is not None}
        who = {"model": self.ask.out / "after", "retain": self.ask.out / "retain"}
        stress(replace(made, settings={**made.settings, **more}, collected=who))
        return place

    def _folder(self) -> Path:
        """The rows as a folder, under the names that attacks look for."""
        place = self.ask.out / "data"
        with scratch(self.ask.out) as made:
            for split, file in self.ask.files.items():
                if file.suffix not in suffixes():
                    raise UserError(f"attacks read {', '.join(suffixes())}; {file.name} is none of these.")
                shutil.copyfile(file, made / f"{split}{file.suffix}")
            install(made, place)
        return place

    # ---- what need not be done again

    def key(self, name: str) -> str:
        """Everything that the numbers of layers and attacks rest on."""
        models = [handle_for(self.evaluation(who)).identity for who in self.ask.models]
        rows = {split: sha256(file) for split, file in self.ask.files.items()}
        said = {k: v for k, v in self.ask.settings.items() if k not in ("progress", "overwrite", "limit")}
        facts = [name, ATTACKS.get(name), models, rows, self.limit, said, versions()]
        return content_key(json.dumps(facts, sort_keys=True, default=str).encode())

    def is_done(self, name: str) -> bool:
        """Whether a step's run is there, whole, and of the same weights, rows and settings."""
        place = self.ask.out / ("depth" if name == "layers" else f"attacks/{name}")
        known = self.known.get(name)
        done = known is not None and known["state"] == "done" and place.is_dir() and is_whole(place)
        if not done or known is None or known["key"] != self.key(name):
            return False
        self._found(name, place)
        self.note(name, **known)
        return True

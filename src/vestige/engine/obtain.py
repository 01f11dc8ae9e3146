"""Wants in, evidence out: what is on disk is read, the rest is collected batch by batch and kept as it comes.

In: wants by metric, from engine/prepare.py, and handles of models that are not loaded yet. Out: evidence by want.
Caller: engine/evaluate.py. A model is loaded only when a bank lacks something, so an evaluation whose evidence is
complete needs no weights at all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from vestige.collect import diffusion as trajectories
from vestige.collect.backend import Backend
from vestige.data.chat import Encoder
from vestige.engine.handles import ModelHandle, unquantised
from vestige.engine.team import Team
from vestige.errors import UserError
from vestige.models.fingerprint import COLLECTED
from vestige.models.load import LoadedModel
from vestige.models.tokenizer import pipeline_key, special_ids
from vestige.show.progress import Bar
from vestige.store.evidence import Bank, remarks, remember
from vestige.store.laid_out import Joined
from vestige.store.trust import Settling
from vestige.suites.registry import Evidence, Found
from vestige.types import BROKEN, Target, Text, TokenStats, Trace
from vestige.wants import ClassifierWant, DenoiseWant, PatchInto, PatchWant, Request, Wants, spoken


@dataclass(frozen=True)
class Work:
    """What one call of a stage has to do: these wants, less those in `done`, with this model."""

    model: ModelHandle
    wants: list[Any]
    done: frozenset[str]
    bar: Bar
    place: Path  # the directory of the bank, for stages that keep more than one

    @property
    def loaded(self) -> LoadedModel:
        return self.model.get()


@dataclass(frozen=True)
class Stage:
    """How one kind of evidence is made, and what is shown meanwhile. `make` yields {key: evidence}, batch by batch."""

    kind: str
    make: Callable[[Work], Iterable[dict[str, Any]]]
    label: str
    unit: str  # what the bar counts: wants, or tokens pushed ("tok")
    how: Callable[[ModelHandle], dict[str, Any]] = lambda model: {}  # an interrupted run resumes only if this is equal
    companions: tuple[str, ...] = ()  # banks that are filled along with it


class Collector:
    """Collects for one run directory."""

    def __init__(
        self, directory: Path, encoder: Encoder, batch_tokens: int | None, max_rows: int | None, progress: bool,
        team: Team,
    ) -> None:  # fmt: skip
        from vestige.collect.backend import Cost

        self.directory = directory
        self.team = team
        self.encoder = encoder
        self.batch_tokens = batch_tokens
        self.max_rows = max_rows
        self.progress = progress
        self.cost = Cost()
        self.seconds: dict[str, float] = {}
        self.errors: Mapping[str, float] = {}  # of answers scored by a Monte-Carlo bound
        self.patched_banks: dict[str, str] = {}  # PatchInto.label -> the bank that holds it
        self.classifiers: dict[str, str] = {}  # a classifier's path -> the bank of its answers
        self.made: dict[str, Any] = {}  # bank -> how the model was held when its evidence was made
        self.said: list[str] = []  # notes on this run, which are not about how evidence came about

    def collect(self, wants: Wants, model: ModelHandle, second: Callable[[str], ModelHandle]) -> Evidence:
        """All evidence the metrics asked for. `second` gives the handle of a reference model by its path."""
        evidence = Evidence()
        with self._timed("answers"):
            if wants.answers:
                evidence.answers = self.obtain(self._answers(model, "scoring answers"), model, wants.answers)
            if wants.visible and model.is_diffusion:
                evidence.visible = self.obtain(self._visible(), model, wants.visible)
        with self._timed("denoising"):
            if wants.denoised:
                evidence.denoised = self.denoised(model, wants.denoised)
        with self._timed("texts"):
            if wants.texts:
                stage = self._texts(model, wants.answers, evidence.answers, wants.texts)
                evidence.texts = self.obtain(stage, model, wants.texts)
        evidence.errors = self.errors
        with self._timed("gradients"):
            if wants.gradients:
                stage = Stage("gradients", self._make_gradients, "taking gradients", "row")
                evidence.gradients = self.obtain(stage, model, wants.gradients)
        references = {}
        if wants.reference or wants.said:
            model.free()  # one model in memory at a time
            for path, targets in self._for_others(wants, evidence).items():
                handle = second(path)
                with self._timed("reference"):
                    stage = self._answers(handle, "scoring with the reference model")
                    references[path] = self.obtain(stage, handle, targets) if targets else Found()
                handle.free()
        evidence.reference = references
        for into, patches in wants.patched.items():
            model.free()
            with self._timed("patched"):
                evidence.patched = {**evidence.patched, **self.patched(into, patches, model, second)}
        return evidence

    def _for_others(self, wants: Wants, evidence: Evidence) -> dict[str, list[Target]]:
        """What each second model is to score: given answers, and what our model said."""
        out = {path: [*wants.reference.get(path, ())] for path in (*wants.reference, *wants.said)}
        for path, requests in wants.said.items():
            said = [(r, text) for r in requests if isinstance(text := evidence.texts[r.key], Text)]
            out[path] += [t for r, text in said if (t := spoken(r, text)) is not None]
        return out

    def obtain(self, stage: Stage, model: ModelHandle, wants: Sequence[Any]) -> Found:
        """What the bank has; what it lacks is dealt out to the team and collected into each one's place."""
        kind = stage.kind
        bank = self.team.fold(self._bank(self.directory, kind, model))
        unique = {w.key: w for w in wants}
        if self.team.leads:
            fill = partial(self._fill, stage, model)
            self.said += Settling(bank, unique, fill, model.is_live, lambda: model.precision, stage.companions).run()
        self.team.meet()
        have = bank.load()
        missing = {k: w for k, w in unique.items() if k not in have}
        self.team.meet()  # before anybody writes: all must have seen the same gaps
        if missing:
            if mine := self.team.share(missing):
                self._fill(stage, model, self.team.place(self.directory), mine)
            bank = self.team.fold(self._bank(self.directory, kind, model))
            have = bank.load()
        self._recall(bank, model)
        for other in stage.companions:
            errors = self.team.fold(self._bank(self.directory, other, model)).load()
            self.errors = {**self.errors, **{k: errors[k] for k in unique if k in errors}}
        return Found(Joined.chosen(have, unique))

    def _fill(self, stage: Stage, model: ModelHandle, place: Path, missing: dict[str, Any]) -> None:
        """Runs the model on what is missing. Every batch is on disk before the next one is made."""
        model.ready(self.cost.notes)
        bank = self._bank(place, stage.kind, model)
        how = stage.how(model)
        for group in _resumable(bank, missing, how):
            done = frozenset(bank.begin([w.key for w in group], how))
            with Bar(stage.label, len(group), stage.unit, self.progress) as bar:
                bar.add(len(done) if stage.unit != "tok" else 0)
                for result in stage.make(Work(model, group, done, bar, place)):
                    self._keep(bank, model, result)
                    if stage.unit == "tok":
                        bar.to(self.cost.score_tokens)
                    else:
                        bar.add(len(result))
            bank.finish()

    # ---- patched states -------------------------------------------------------------------------------------

    def patched(
        self,
        into: PatchInto,
        wants: Sequence[PatchWant],
        model: ModelHandle,
        second: Callable[[str], ModelHandle],
    ) -> dict[str, Mapping[str, TokenStats]]:
        """S1 and S2 of a depth score. What this run's model and the retain model cost is in banks of its directory."""
        from vestige.engine.patches import Patching, PatchSettings, PatchSource, bank_identity
        from vestige.models.load import load_tokenizer
        from vestige.models.tokenizer import tokenizer_facts

        full, retain = (unquantised(second(path)) for path in (into.full, into.retain))
        ours = tokenizer_facts(self.encoder.tokenizer)["vocabulary"]
        for handle in (full, retain):
            assert handle.args is not None
            if tokenizer_facts(load_tokenizer(handle.args)[0])["vocabulary"] != ours:
                raise UserError(f"uds: '{handle.name}' has another tokenizer than '{model.name}'; their states differ.")
        settings = PatchSettings(None, into.last_layer, progress=self.progress)
        sources = [PatchSource(into.label(n), h, self.directory) for n, h in (("retain", retain), ("model", model))]
        patching = Patching(full, settings, self.cost, self.team)
        found = patching.evidence(sources, wants)
        full.free()
        self.made |= patching.made
        self.patched_banks |= {s.name: bank_identity(full, s.handle, settings) for s in sources}
        return {name: Found(stats) for name, stats in found.items()}

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[stage] = round(self.seconds.get(stage, 0.0) + time.perf_counter() - start, 3)

    def _keep(self, bank: Bank[Any], model: ModelHandle, items: Mapping[str, Any]) -> None:
        """One batch, and before it what must be known of how it was made; none of weights that were written over."""
        model.check()
        if self.cost.notes and self.team.leads:  # what the others note is gathered with their costs
            remember(self.directory, bank.stem, self.cost.notes)
        bank.add_part(items)

    def _bank(self, place: Path, kind: str, model: ModelHandle) -> Bank[Any]:
        return Bank(place, kind, model.identity, self._head(kind, model))

    def _head(self, kind: str, model: ModelHandle) -> dict[str, Any]:
        """What a bank says of its evidence besides whose it is; models/fingerprint.py has the table."""
        out: dict[str, Any] = {"version": COLLECTED[kind], **({"how": dict(model.made)} if model.made else {})}
        if kind == "texts" or model.is_diffusion:
            out["tokens"] = special_ids(self.encoder.tokenizer)
        if kind == "texts" and model.is_diffusion:  # decoded without the mask token, which only the model knows
            out["decoder"] = pipeline_key(self.encoder.tokenizer)
        return out

    def _recall(self, bank: Bank[Any], model: ModelHandle) -> None:
        """What was noted when this evidence was made, by an earlier run, too; and how the model was held then."""
        self.cost.notes += [n for n in remarks(self.directory, bank.stem) if n not in self.cost.notes]
        model.made = model.made or bank.head.get("how", {})
        self.made[bank.stem] = bank.head.get("how", {})

    # ---- how each kind is made ------------------------------------------------------------------------------

    def _answers(self, model: ModelHandle, label: str) -> Stage:
        if model.is_diffusion:
            bounds = partial(self._make_bounds, model)
            return Stage("answers", bounds, label, "answer", lambda model: {"bound": True}, ("errors",))
        return Stage("answers", self._make_answers, label, "tok", lambda m: self._answerer(m).settings("answers"))

    def _answerer(self, model: ModelHandle, place: Path | None = None) -> Backend:
        """Who answers: the model in this process, or the servers that run it."""
        from vestige.collect.backend import LocalBackend

        if model.served is None:
            return LocalBackend(model.get(), self.encoder.decode, self.cost, self.batch_tokens, self.max_rows)
        checking = place is not None and self.directory not in (place, *place.parents)  # made again to be compared
        return model.served.answerer(self.encoder, self.cost, checking)

    def _make_answers(self, work: Work) -> Iterable[dict[str, TokenStats]]:
        from vestige.packed_ids import count_nodes

        self.cost.nodes += count_nodes(work.wants)
        # What is ahead is known only once it is packed, and again after memory ran out.
        return self._answerer(work.model, work.place).score(
            work.wants, work.done, lambda left: work.bar.expect(self.cost.score_tokens, left)
        )

    def _limits(self, loaded: LoadedModel) -> Any:
        from vestige.collect.backend import LocalBackend

        return LocalBackend(loaded, None, self.cost, self.batch_tokens, self.max_rows).limits

    def _make_bounds(self, model: ModelHandle, work: Work) -> Iterator[dict[str, TokenStats]]:
        """A diffusion model's answers: the bound and, in a bank of their own, its standard errors."""
        errors: Bank[float] = self._bank(work.place, "errors", model)
        done = work.done & frozenset(errors.begin([w.key for w in work.wants], {"bound": True}))
        limits = self._limits(work.loaded)
        for stats, gaps in trajectories.bounds(work.loaded, work.wants, limits, self.cost, done):
            self._keep(errors, model, gaps)
            yield stats
        errors.finish()

    def _visible(self) -> Stage:
        """One look at each whole answer: only diffusion models see a token they are asked about."""

        def make(work: Work) -> Iterable[dict[str, TokenStats]]:
            return trajectories.visible(work.loaded, work.wants, self._limits(work.loaded), self.cost, work.done)

        return Stage("visible", make, "reading answers", "answer")

    def denoised(self, model: ModelHandle, wants: Sequence[DenoiseWant]) -> Mapping[str, Trace]:
        def make(work: Work) -> Iterable[dict[str, Trace]]:
            return trajectories.traces(work.loaded, work.wants, self._limits(work.loaded), self.cost, work.done)

        saved: dict[str, list[DenoiseWant]] = {}
        for want in wants:
            saved.setdefault(want.logits, []).append(want)
        out: dict[str, Trace] = {}
        for path, group in saved.items():
            if path:  # recorded by somebody else: no model is run
                out |= self._recorded(model, list({w.key: w for w in group}.values()))
                continue
            out |= dict(self.obtain(Stage("denoised", make, "denoising", "text"), model, group))
        return Found(out)

    def _recorded(self, model: ModelHandle, wants: Sequence[DenoiseWant]) -> dict[str, Trace]:
        traces = trajectories.external_traces(wants, self.said.append)
        if self.team.leads:
            self._bank(self.directory, "denoised", model).merge(traces)
        return traces

    def _texts(
        self, model: ModelHandle, known: Sequence[Target], seen: Mapping[str, TokenStats], requests: Sequence[Request]
    ) -> Stage:
        """Texts. `known` answers, and what was `seen` of them, can prove what greedy decoding says without a run."""
        if model.is_diffusion:
            return Stage("texts", self._make_sampled_texts, "generating texts", "text")
        if self.team.leads:
            self.said += read_again(self._bank(self.directory, "texts", model), self.encoder, requests)
        make = partial(self._make_texts, known, seen)
        return Stage("texts", make, "generating texts", "text", lambda m: self._answerer(m).settings("texts"))

    def _make_texts(
        self, known: Sequence[Target], seen: Mapping[str, TokenStats], work: Work
    ) -> Iterable[dict[str, Text]]:
        from vestige.collect.known_prefix import draft_prefixes, known_prefixes

        who = self._answerer(work.model, work.place)
        plain = [r for r in work.wants if who.penalty_of(r.decoding) == 1.0]
        unique = {t.key: t for t in known}.values()
        proven, drafts = (show(plain, unique, seen, who.eos) for show in (known_prefixes, draft_prefixes))
        return who.write(work.wants, proven, work.done, drafts)

    def _make_sampled_texts(self, work: Work) -> Iterable[dict[str, Text]]:
        limits = self._limits(work.loaded)
        return trajectories.texts(work.loaded, work.wants, self.encoder.decode, limits, self.cost, work.done)

    def _make_gradients(self, work: Work) -> Iterator[dict[str, float]]:
        from vestige.collect.gradients import gradient_norms, norm_order

        if work.loaded.quantization:
            raise UserError(
                f"mia_gradnorm needs gradients, which {work.loaded.quantization} weights do not have; leave it out."
            )
        for want in work.wants:
            if want.key not in work.done:
                args = (work.loaded.model, [want.target], norm_order(want.p), want.drop_last, want.train, self.cost)
                for _, norm in gradient_norms(*args):
                    yield {want.key: norm}

    def classified(self, wants: Sequence[ClassifierWant]) -> Mapping[str, float]:
        if not wants:
            return Found()
        out: dict[str, float] = {}
        for path in dict.fromkeys(w.model for w in wants):
            from vestige.collect.classifier import Classifier, classifier_identity

            mine = {w.key: w for w in wants if w.model == path}
            self.classifiers[path] = identity = classifier_identity(path)
            bank: Bank[float] = Bank(self.directory, "classified", identity, {"version": COLLECTED["classified"]})
            have = dict(bank.load())
            missing = [w for k, w in mine.items() if k not in have]
            if missing:
                classifier = Classifier(path)
                with Bar("classifying texts", len(missing), "text", self.progress) as bar:
                    for result in classifier.run(missing):
                        have |= result
                        if self.team.leads:  # in a team each classifies for itself: texts are few
                            bank.merge(result)
                        bar.add(len(result))
            out |= {k: have[k] for k in mine}
        return Found(out)


def _resumable(bank: Bank[Any], missing: dict[str, Any], settings: Mapping[str, Any]) -> list[list[Any]]:
    """What to collect, in groups packed separately: first what an interrupted run was after, then the rest.

    Packing is decided by the group, so that the first group repeats the interrupted run's batches exactly.
    """
    before = bank.interrupted()
    if before is None or before[1] != dict(settings) or not set(before[0]) <= set(missing):
        return [list(missing.values())]
    first = set(before[0])
    groups = [[w for k, w in missing.items() if k in first], [w for k, w in missing.items() if k not in first]]
    return [g for g in groups if g]


def read_again(bank: Bank[Text], encoder: Encoder, requests: Sequence[Request]) -> list[str]:
    """Texts are kept as ids; the words beside them are those of today's decoder. Returns the notes.

    Where a stop word ended a text, another decoder may have ended it elsewhere: such are generated again.
    """
    from vestige.collect.backend import cut_text

    asked = {r.key: r for r in requests}
    kept = {k: text for k, text in bank.load().items() if k in asked}
    eos = encoder.tokenizer.eos_token_id
    end = "" if eos is None else encoder.tokenizer.decode([eos])
    words = encoder.decode([[i for i in text.ids if i != BROKEN] for text in kept.values()])
    now = {k: cut_text(w, (end, *asked[k].decoding.stopwords)) for k, w in zip(kept, words, strict=True)}
    other = [k for k in kept if now[k] != kept[k].text]
    if not other:
        return []
    cut = {k for k in other if asked[k].decoding.stopwords}
    bank.merge({k: replace(kept[k], text=now[k]) for k in other if k not in cut}, without=cut)
    return [f"the tokenizer decodes otherwise than before: {len(other)} of {len(kept)} texts were read again"]

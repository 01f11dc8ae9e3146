"""Wants in, evidence out: what is on disk is read, the rest is collected batch by batch and kept as it comes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from vestige.data.chat import Encoder
from vestige.engine import trajectories as denoising
from vestige.engine.handles import ModelHandle, device_kind, unquantised
from vestige.engine.team import Team
from vestige.engine.trust import Settling, read_again
from vestige.errors import UserError
from vestige.models.identity import COLLECTED, pipeline_key, special_ids
from vestige.models.load import LoadedModel
from vestige.show.progress import Bar
from vestige.store.evidence import Bank, remarks, remember
from vestige.suites.registry import Evidence
from vestige.types import Target, Text, TokenStats, Trace
from vestige.wants import ClassifierWant, DenoiseWant, GradientWant, PatchInto, PatchWant, Request, Wants


class MissingEvidence(KeyError):  # noqa: N818 - named for what it means
    """A score needs evidence this run has not collected."""


class Found(dict[str, Any]):
    """A mapping that names what is lacking."""

    def __missing__(self, key: str) -> Any:
        raise MissingEvidence(key)


Run = Callable[[LoadedModel, list[Any], frozenset[str]], Iterable[dict[str, Any]]]


class Collector:
    """Collects for one run directory."""

    def __init__(
        self, directory: Path, encoder: Encoder, batch_tokens: int | None, max_rows: int, progress: bool, team: Team
    ) -> None:
        from vestige.collect.cost import Cost

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
        answers = self._timed("answers", lambda: self.answers(model, wants.answers, "scoring answers"))
        evidence.answers = answers
        evidence.visible = self._timed("answers", lambda: self.visible(model, wants.visible))
        evidence.denoised = self._timed("denoising", lambda: self.denoised(model, wants.denoised))
        evidence.texts = self._timed("texts", lambda: self.texts(model, wants.texts, wants.answers, answers))
        evidence.errors = self.errors
        evidence.gradients = self._timed("gradients", lambda: self.gradients(model, wants.gradients))
        references = {}
        if wants.reference:
            model.free()  # one model in memory at a time
        for path, targets in wants.reference.items():
            handle = second(path)
            score = partial(self.answers, handle, targets, "scoring with the reference model")
            references[path] = self._timed("reference", score)
            handle.free()
        evidence.reference = references
        for into, patches in wants.patched.items():
            model.free()
            work = partial(self.patched, into, patches, model, second)
            evidence.patched = {**evidence.patched, **self._timed("patched", work)}
        return evidence

    # ---- patched states -------------------------------------------------------------------------------------

    def patched(
        self,
        into: PatchInto,
        wants: Sequence[PatchWant],
        model: ModelHandle,
        second: Callable[[str], ModelHandle],
    ) -> dict[str, Mapping[str, TokenStats]]:
        """S1 and S2 of a depth score. What this run's model and the retain model cost is in banks of its directory."""
        from vestige.engine.patches import Patching, Settings, Source, bank_identity
        from vestige.models.load import load_tokenizer
        from vestige.models.tokenizer import tokenizer_facts

        full, retain = (unquantised(second(path)) for path in (into.full, into.retain))
        ours = tokenizer_facts(self.encoder.tokenizer)["vocabulary"]
        for handle in (full, retain):
            assert handle.args is not None
            if tokenizer_facts(load_tokenizer(handle.args)[0])["vocabulary"] != ours:
                raise UserError(f"uds: '{handle.name}' has another tokenizer than '{model.name}'; their states differ.")
        settings = Settings(None, into.last_layer, progress=self.progress)
        sources = [Source(into.label(n), h, self.directory) for n, h in (("retain", retain), ("model", model))]
        patching = Patching(full, settings, self.cost, self.team)
        found = patching.evidence(sources, wants)
        full.free()
        self.made |= patching.made
        self.patched_banks |= {s.name: bank_identity(full, s.handle, settings) for s in sources}
        return {name: Found(stats) for name, stats in found.items()}

    def _timed(self, stage: str, work: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        result = work()
        self.seconds[stage] = round(self.seconds.get(stage, 0.0) + time.perf_counter() - start, 3)
        return result

    def _keep(self, bank: Bank[Any], model: ModelHandle, items: Mapping[str, Any]) -> None:
        """One batch, and before it what must be known of how it was made; none of weights that were written over."""
        model.check()
        if self.team.leads:  # what the others note is gathered with their costs
            remember(self.directory, bank.stem, self.cost.notes)
        bank.add_part(items)

    def _bank(self, place: Path, kind: str, model: ModelHandle) -> Bank[Any]:
        return Bank(place, kind, model.identity, self._head(kind, model))

    def _head(self, kind: str, model: ModelHandle) -> dict[str, Any]:
        """What a bank says of its evidence besides whose it is; models/identity.py has the table."""
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

    # ---- answers --------------------------------------------------------------------------------------------

    def answers(self, model: ModelHandle, targets: Sequence[Target], label: str) -> Mapping[str, TokenStats]:
        if not targets:
            return Found()
        collect = self._run_bounds if model.is_diffusion else self._run_answers
        found = self._gathered("answers", model, targets, lambda place, mine: collect(place, model, mine, label))
        if model.is_diffusion:
            errors = self.team.fold(self._bank(self.directory, "errors", model)).load()
            self.errors = {**self.errors, **{k: errors[k] for k in found if k in errors}}
        return found

    def _gathered(
        self, kind: str, model: ModelHandle, wants: Sequence[Any], collect: Callable[[Path, dict[str, Any]], None]
    ) -> Found:
        """What the bank has; what it lacks is dealt out to the team and collected into each one's place."""
        bank = self.team.fold(self._bank(self.directory, kind, model))
        unique = {w.key: w for w in wants}
        if self.team.leads:
            along = ("errors",) if kind == "answers" and model.is_diffusion else ()
            before, dtype = (lambda: model.identity_before), (lambda: model.precision)
            self.said += Settling(bank, unique, collect, before, model.is_live, dtype, along).run()
        self.team.meet()
        have = bank.load()
        missing = {k: w for k, w in unique.items() if k not in have}
        self.team.meet()  # before anybody writes: all must have seen the same gaps
        if missing:
            if mine := self.team.share(missing):
                collect(self.team.place(self.directory), mine)
            bank = self.team.fold(self._bank(self.directory, kind, model))
            have = bank.load()
        self._recall(bank, model)
        return Found({k: have[k] for k in unique})

    def _run_answers(self, place: Path, model: ModelHandle, missing: dict[str, Target], label: str) -> None:
        from vestige.collect.answers import AnswerCollector

        loaded = model.get(self.cost.notes)
        limits = self._limits(loaded)
        settings = {"tokens": limits.tokens, "cells": limits.logit_cells, "row": limits.row_tokens}
        bank: Bank[TokenStats] = self._bank(place, "answers", model)
        collector = AnswerCollector(loaded.model, vocabulary(loaded.model), limits, self.cost)
        for group in _resumable(bank, missing, settings):
            self._score(bank, model, collector, group, settings, label)

    def _score(
        self, bank: Bank[TokenStats], model: ModelHandle, collector: Any, targets: list[Target], how: Any, label: str
    ) -> None:
        done = bank.begin([t.key for t in targets], how)
        self.cost.nodes += count_nodes(targets)
        with Bar(label, 0, "tok", self.progress) as bar:
            # What is ahead is known only once it is packed, and again after memory ran out.
            for result in collector.run(
                targets, frozenset(done), lambda left: bar.expect(self.cost.score_tokens, left)
            ):
                self._keep(bank, model, result)
                bar.to(self.cost.score_tokens)
        bank.finish()

    def _limits(self, loaded: LoadedModel) -> Any:
        from vestige.collect.answers import default_limits

        return default_limits(vocabulary(loaded.model), device_kind(loaded.device) == "cuda", self.batch_tokens)

    # ---- diffusion models -----------------------------------------------------------------------------------

    def _run_bounds(self, place: Path, model: ModelHandle, missing: dict[str, Target], label: str) -> None:
        """A diffusion model's answers: the bound and, in a bank of their own, its standard errors."""
        loaded = model.get(self.cost.notes)
        bank: Bank[TokenStats] = self._bank(place, "answers", model)
        errors: Bank[float] = self._bank(place, "errors", model)
        keys = list(missing)
        done = frozenset(bank.begin(keys, {"bound": True})) & frozenset(errors.begin(keys, {"bound": True}))
        with Bar(label, len(missing), "answer", self.progress) as bar:
            bar.add(len(done))
            targets = list(missing.values())
            for stats, gaps in denoising.bounds(loaded, targets, self._limits(loaded), self.cost, done):
                self._keep(errors, model, gaps)
                self._keep(bank, model, stats)
                bar.add(len(stats))
        errors.finish()
        bank.finish()

    def visible(self, model: ModelHandle, targets: Sequence[Target]) -> Mapping[str, TokenStats]:
        """One look at each whole answer: only diffusion models see a token they are asked about."""
        if not targets or not model.is_diffusion:
            return Found()
        return self._stage(
            "visible", model, targets, "reading answers", "answer",
            lambda loaded, left, done: denoising.visible(loaded, left, self._limits(loaded), self.cost, done),
        )  # fmt: skip

    def denoised(self, model: ModelHandle, wants: Sequence[DenoiseWant]) -> Mapping[str, Trace]:
        saved: dict[str, list[DenoiseWant]] = {}
        for want in wants:
            saved.setdefault(want.logits, []).append(want)
        out: dict[str, Trace] = {}
        for path, group in saved.items():
            if path:  # recorded by somebody else: no model is run
                out |= self._recorded(model, list({w.key: w for w in group}.values()))
                continue
            out |= self._stage(
                "denoised", model, group, "denoising", "text",
                lambda loaded, left, done: denoising.traces(loaded, left, self._limits(loaded), self.cost, done),
            )  # fmt: skip
        return Found(out)

    def _recorded(self, model: ModelHandle, wants: Sequence[DenoiseWant]) -> dict[str, Trace]:
        traces = denoising.external_traces(wants, self.said.append)
        if self.team.leads:
            self._bank(self.directory, "denoised", model).merge(traces)
        return traces

    def _stage(
        self, kind: str, model: ModelHandle, wants: Sequence[Any], label: str, unit: str, run: Run
    ) -> Mapping[str, Any]:
        """Whatever is asked for under a key: what the bank lacks is run, and kept batch by batch."""

        def collect(place: Path, missing: dict[str, Any]) -> None:
            loaded = model.get(self.cost.notes)
            bank = self._bank(place, kind, model)
            done = frozenset(bank.begin(list(missing), {}))
            with Bar(label, len(missing), unit, self.progress) as bar:
                bar.add(len(done))
                for result in run(loaded, list(missing.values()), done):
                    self._keep(bank, model, result)
                    bar.add(len(result))
            bank.finish()

        return self._gathered(kind, model, wants, collect)

    # ---- texts ----------------------------------------------------------------------------------------------

    def texts(
        self,
        model: ModelHandle,
        requests: Sequence[Request],
        scored: Sequence[Target],
        answers: Mapping[str, TokenStats],
    ) -> Mapping[str, Text]:
        if not requests:
            return Found()
        if model.is_diffusion:
            return self._stage(
                "texts", model, requests, "generating texts", "text",
                lambda loaded, left, done: denoising.texts(
                    loaded, left, self.encoder.decode, self._limits(loaded), self.cost, done
                ),
            )  # fmt: skip
        known = {t.key: (t, answers[t.key]) for t in scored}
        if self.team.leads:
            self.said += read_again(self._bank(self.directory, "texts", model), self.encoder, requests)
        return self._gathered(
            "texts", model, requests, lambda place, missing: self._run_texts(place, model, missing, known)
        )

    def _run_texts(
        self,
        place: Path,
        model: ModelHandle,
        missing: dict[str, Request],
        known: Mapping[str, tuple[Target, TokenStats]],
    ) -> None:
        from vestige.collect.texts import TextCollector, end_tokens, penalty_of, prove

        loaded = model.get(self.cost.notes)
        bank: Bank[Text] = self._bank(place, "texts", model)
        eos = end_tokens(loaded.model, loaded.tokenizer)
        end = loaded.tokenizer.eos_token_id  # a model may have an end token where its tokenizer names none
        end_text = loaded.tokenizer.decode([end]) if eos and end is not None else ""
        collector = TextCollector(loaded.model, self.encoder.decode, eos, end_text, self.cost, self.max_rows)
        settings = {"max_rows": self.max_rows}
        for group in _resumable(bank, missing, settings):
            plain = [r for r in group if penalty_of(loaded.model, r.decoding) == 1.0]
            proven = prove(plain, known.values(), eos)
            done = bank.begin([r.key for r in group], settings)
            with Bar("generating texts", len(group), "text", self.progress) as bar:
                for result in collector.run(group, proven, frozenset(done)):
                    self._keep(bank, model, result)
                    bar.add(len(result))
            bank.finish()

    # ---- gradients and classifiers --------------------------------------------------------------------------

    def gradients(self, model: ModelHandle, wants: Sequence[GradientWant]) -> Mapping[str, float]:
        if not wants:
            return Found()
        return self._stage("gradients", model, wants, "taking gradients", "row", self._norms)

    def _norms(
        self, loaded: LoadedModel, wants: list[GradientWant], done: frozenset[str]
    ) -> Iterable[dict[str, float]]:
        from vestige.collect.gradients import gradient_norms, norm_order

        if loaded.quantization:
            raise UserError(
                f"mia_gradnorm needs gradients, which {loaded.quantization} weights do not have; leave it out."
            )
        for want in wants:
            if want.key not in done:
                args = (loaded.model, [want.target], norm_order(want.p), want.drop_last, want.train, self.cost)
                for _, norm in gradient_norms(*args):
                    yield {want.key: norm}

    def classified(self, wants: Sequence[ClassifierWant]) -> Mapping[str, float]:
        if not wants:
            return Found()
        out: dict[str, float] = {}
        for path in dict.fromkeys(w.model for w in wants):
            from vestige.collect.external import Classifier, classifier_identity

            mine = {w.key: w for w in wants if w.model == path}
            self.classifiers[path] = identity = classifier_identity(path)
            bank: Bank[float] = Bank(self.directory, "classified", identity, {"version": COLLECTED["classified"]})
            have = bank.load()
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


def vocabulary(model: Any) -> int:
    head = model.get_output_embeddings()
    size = getattr(head, "out_features", None) or getattr(model.config, "vocab_size", None)
    return int(size or 50_000)


def count_nodes(targets: Iterable[Target]) -> int:
    """Distinct prefixes among the whole sequences asked for: what sharing alone could not go below.

    (The last token of a sequence is never pushed, so that we may even do better.)
    """
    from vestige.collect.tree import build_tree

    return len(build_tree([Target((*t.ids, 0), t.start, t.hidden) for t in targets]))


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

"""Wants in, evidence out: what is on disk is read, the rest is collected batch by batch and kept as it comes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from vestige.data.chat import Encoder
from vestige.errors import UserError
from vestige.models.fingerprint import fingerprint
from vestige.models.load import LoadedModel, ModelArgs, is_diffusion, load_model
from vestige.run import denoising
from vestige.run.progress import Bar
from vestige.store.evidence import Bank
from vestige.suites.registry import Evidence
from vestige.types import Target, Text, TokenStats, Trace, content_key
from vestige.wants import ClassifierWant, DenoiseWant, GradientWant, PatchInto, PatchWant, Request, Wants

log = logging.getLogger("vestige.run")


class MissingEvidence(KeyError):  # noqa: N818 - named for what it means
    """A score needs evidence this run has not collected."""


class Found(dict[str, Any]):
    """A mapping that names what is lacking."""

    def __missing__(self, key: str) -> Any:
        raise MissingEvidence(key)


class ModelHandle:
    """A model that is loaded when first needed: a run whose evidence is complete never loads it."""

    def __init__(self, args: ModelArgs | None, loaded: LoadedModel | None = None) -> None:
        self.args = args
        self._loaded = loaded
        self.load_seconds = 0.0
        self._identity = ""

    @property
    def name(self) -> str:
        return self.args.path if self.args else (self._loaded.name if self._loaded else "")

    @property
    def identity(self) -> str:
        """Weights and everything else about the model that changes its numbers beyond rounding."""
        if not self._identity:
            if self._loaded is not None and self.args is None:
                m = self._loaded
                generation = repr(getattr(m.model, "generation_config", None))
                parts = [m.fingerprint, m.dtype, m.attention, _device_kind(m.device), generation]
            else:
                held = self.held()
                parts = [self.fingerprint, held["dtype"], held["attention"], held["device"]]
            self._identity = content_key(*(p.encode() for p in parts))[:16]
        return self._identity

    def held(self) -> dict[str, str]:
        """How the weights are held when they are loaded as asked: known without loading them."""
        assert self.args is not None
        from vestige.models.choose import choose_device

        kind = _device_kind(choose_device(self.args.device))
        dtype = "float32" if self.args.dtype == "auto" and kind == "cpu" else self.args.dtype
        return {
            "dtype": dtype,
            "attention": "sdpa" if self.args.attention == "auto" else self.args.attention,
            "device": kind,
        }

    @property
    def fingerprint(self) -> str:
        if self._loaded is not None:
            return self._loaded.fingerprint
        assert self.args is not None
        return fingerprint(self.args)

    @property
    def is_diffusion(self) -> bool:
        """Does the model fill in hidden tokens? Known from its configuration, without loading weights."""
        if self._loaded is not None:
            return self._loaded.diffusion is not None
        assert self.args is not None
        return is_diffusion(self.args)

    @property
    def is_loaded(self) -> bool:
        return self._loaded is not None

    def get(self) -> LoadedModel:
        if self._loaded is None:
            assert self.args is not None
            start = time.perf_counter()
            self._loaded = load_model(self.args)
            self.load_seconds = time.perf_counter() - start
            for note in self._loaded.notes:
                log.info("%s: %s", self.name, note)
        return self._loaded

    def facts(self) -> dict[str, Any]:
        """What a manifest says of the model."""
        out: dict[str, Any] = {
            "name": self.name,
            "fingerprint": self.fingerprint,
            "evidence": self.identity,
            "load_seconds": round(self.load_seconds, 3),
        }
        if self._loaded is not None:
            m = self._loaded
            out |= {"dtype": m.dtype, "device": m.device, "attention": m.attention, "quantization": m.quantization}
        elif self.args:  # all evidence was there already: what the model would have been loaded as
            out |= {**self.held(), "quantization": self.args.quantization}
        if self.args:
            out["asked"] = {"dtype": self.args.dtype, "attention": self.args.attention, "device": self.args.device}
        return out

    def free(self) -> None:
        """Gives the memory back; a model the caller owns is left alone."""
        if self.args is not None and self._loaded is not None:
            from vestige.collect.memory import free_memory

            self._loaded = None
            free_memory()


def _device_kind(device: str) -> str:
    return str(device).split(":")[0]


def _unquantised(handle: ModelHandle) -> ModelHandle:
    """The models that a quantised one is measured against are not quantised themselves."""
    if handle.args is None or handle.args.quantization is None:
        return handle
    return ModelHandle(replace(handle.args, quantization=None))


class Collector:
    """Collects for one run directory."""

    def __init__(
        self, directory: Path, encoder: Encoder, batch_tokens: int | None, max_rows: int, progress: bool
    ) -> None:
        from vestige.collect.cost import Cost

        self.directory = directory
        self.encoder = encoder
        self.batch_tokens = batch_tokens
        self.max_rows = max_rows
        self.progress = progress
        self.cost = Cost()
        self.seconds: dict[str, float] = {}
        self.errors: Mapping[str, float] = {}  # of answers scored by a Monte-Carlo bound
        self.patched_banks: dict[str, str] = {}  # PatchInto.label -> the bank that holds it

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
        from vestige.models.load import load_tokenizer
        from vestige.models.tokenizer import tokenizer_facts
        from vestige.run.patching import Patching, Settings, Source, bank_identity

        full, retain = (_unquantised(second(path)) for path in (into.full, into.retain))
        ours = tokenizer_facts(self.encoder.tokenizer)["vocabulary"]
        for handle in (full, retain):
            assert handle.args is not None
            if tokenizer_facts(load_tokenizer(handle.args)[0])["vocabulary"] != ours:
                raise UserError(f"uds: '{handle.name}' has another tokenizer than '{model.name}'; their states differ.")
        settings = Settings(None, into.last_layer, progress=self.progress)
        sources = [Source(into.label(n), h, self.directory) for n, h in (("retain", retain), ("model", model))]
        found = Patching(full, settings, self.cost).evidence(sources, wants)
        full.free()
        self.patched_banks |= {s.name: bank_identity(full, s.handle, settings) for s in sources}
        return {name: Found(stats) for name, stats in found.items()}

    def _timed(self, stage: str, work: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        result = work()
        self.seconds[stage] = round(self.seconds.get(stage, 0.0) + time.perf_counter() - start, 3)
        return result

    # ---- answers --------------------------------------------------------------------------------------------

    def answers(self, model: ModelHandle, targets: Sequence[Target], label: str) -> Mapping[str, TokenStats]:
        if not targets:
            return Found()
        bank: Bank[TokenStats] = Bank(self.directory, "answers", model.identity)
        have = bank.load()
        unique = {t.key: t for t in targets}
        missing = {k: t for k, t in unique.items() if k not in have}
        if missing:
            from vestige.collect.answers import AnswerCollector

            loaded = model.get()
            limits = self._limits(loaded)
            settings = {"tokens": limits.tokens, "cells": limits.logit_cells, "row": limits.row_tokens}
            if loaded.diffusion is not None:
                self._run_bounds(model, list(missing.values()), limits, label)
            else:
                collector = AnswerCollector(loaded.model, vocabulary(loaded.model), limits, self.cost)
                for group in _resumable(bank, missing, settings):
                    self._run_answers(bank, collector, group, settings, label)
            have = bank.load()
        errors = Bank[float](self.directory, "errors", model.identity).load()
        self.errors = {**self.errors, **{k: errors[k] for k in unique if k in errors}}
        return Found({k: have[k] for k in unique})

    def _limits(self, loaded: LoadedModel) -> Any:
        from vestige.collect.answers import default_limits

        return default_limits(vocabulary(loaded.model), _device_kind(loaded.device) == "cuda", self.batch_tokens)

    # ---- diffusion models -----------------------------------------------------------------------------------

    def _run_bounds(self, model: ModelHandle, targets: list[Target], limits: Any, label: str) -> None:
        """A diffusion model's answers: the bound and, in a bank of their own, its standard errors."""
        bank: Bank[TokenStats] = Bank(self.directory, "answers", model.identity)
        errors: Bank[float] = Bank(self.directory, "errors", model.identity)
        keys = [t.key for t in targets]
        done = frozenset(bank.begin(keys, {"bound": True})) & frozenset(errors.begin(keys, {"bound": True}))
        with Bar(label, len(targets), "answer", self.progress) as bar:
            bar.add(len(done))
            for stats, gaps in denoising.bounds(model.get(), targets, limits, self.cost, done):
                errors.add_part(gaps)
                bank.add_part(stats)
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
                unique = list({w.key: w for w in group}.values())
                out |= Bank[Trace](self.directory, "denoised", model.identity).merge(denoising.external_traces(unique))
                continue
            out |= self._stage(
                "denoised", model, group, "denoising", "text",
                lambda loaded, left, done: denoising.traces(loaded, left, self._limits(loaded), self.cost, done),
            )  # fmt: skip
        return Found(out)

    def _stage(
        self, kind: str, model: ModelHandle, wants: Sequence[Any], label: str, unit: str,
        run: Callable[[LoadedModel, list[Any], frozenset[str]], Iterable[dict[str, Any]]],
    ) -> Mapping[str, Any]:  # fmt: skip
        """Whatever is asked for under a key: what the bank lacks is run, and kept batch by batch."""
        bank: Bank[Any] = Bank(self.directory, kind, model.identity)
        have = bank.load()
        unique = {w.key: w for w in wants}
        missing = {k: w for k, w in unique.items() if k not in have}
        if missing:
            loaded = model.get()
            done = frozenset(bank.begin(list(missing), {}))
            with Bar(label, len(missing), unit, self.progress) as bar:
                bar.add(len(done))
                for result in run(loaded, list(missing.values()), done):
                    bank.add_part(result)
                    bar.add(len(result))
            have = bank.finish()
        return Found({k: have[k] for k in unique})

    def _run_answers(
        self, bank: Bank[TokenStats], collector: Any, targets: list[Target], settings: Mapping[str, Any], label: str
    ) -> None:
        done = bank.begin([t.key for t in targets], settings)
        self.cost.nodes += count_nodes(targets)
        with Bar(label, 0, "tok", self.progress) as bar:
            # What is ahead is known only once it is packed, and again after memory ran out.
            for result in collector.run(
                targets, frozenset(done), lambda left: bar.expect(self.cost.score_tokens, left)
            ):
                bank.add_part(result)
                bar.to(self.cost.score_tokens)
        bank.finish()

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
        bank: Bank[Text] = Bank(self.directory, "texts", model.identity)
        have = bank.load()
        unique = {r.key: r for r in requests}
        missing = {k: r for k, r in unique.items() if k not in have}
        if missing:
            from vestige.collect.texts import TextCollector, end_tokens, penalty_of, prove

            loaded = model.get()
            eos = end_tokens(loaded.model, loaded.tokenizer)
            end = loaded.tokenizer.eos_token_id  # a model may have an end token where its tokenizer names none
            end_text = loaded.tokenizer.decode([end]) if eos and end is not None else ""
            collector = TextCollector(loaded.model, self.encoder.decode, eos, end_text, self.cost, self.max_rows)
            settings = {"max_rows": self.max_rows}
            for group in _resumable(bank, missing, settings):
                plain = [r for r in group if penalty_of(loaded.model, r.decoding) == 1.0]
                known = {t.key: (t, answers[t.key]) for t in scored}
                proven = prove(plain, known.values(), eos)
                done = bank.begin([r.key for r in group], settings)
                with Bar("generating texts", len(group), "text", self.progress) as bar:
                    for result in collector.run(group, proven, frozenset(done)):
                        bank.add_part(result)
                        bar.add(len(result))
                bank.finish()
            have = bank.load()
        return Found({k: have[k] for k in unique})

    # ---- gradients and classifiers --------------------------------------------------------------------------

    def gradients(self, model: ModelHandle, wants: Sequence[GradientWant]) -> Mapping[str, float]:
        if not wants:
            return Found()
        bank: Bank[float] = Bank(self.directory, "gradients", model.identity)
        have = bank.load()
        unique = {w.key: w for w in wants}
        missing = [w for k, w in unique.items() if k not in have]
        if missing:
            from vestige.collect.gradients import gradient_norms, norm_order

            loaded = model.get()
            if loaded.quantization:
                raise UserError(
                    f"mia_gradnorm needs gradients, which {loaded.quantization} weights do not have; leave it out."
                )
            done = bank.begin([w.key for w in missing], {})
            with Bar("taking gradients", len(missing), "row", self.progress) as bar:
                for want in missing:
                    if want.key not in done:
                        args = (loaded.model, [want.target], norm_order(want.p), want.drop_last, want.train, self.cost)
                        for _, norm in gradient_norms(*args):
                            bank.add_part({want.key: norm})
                    bar.add(1)
            have = bank.finish()
        return Found({k: have[k] for k in unique})

    def classified(self, wants: Sequence[ClassifierWant]) -> Mapping[str, float]:
        if not wants:
            return Found()
        out: dict[str, float] = {}
        for path in dict.fromkeys(w.model for w in wants):
            from vestige.collect.external import Classifier, classifier_identity

            mine = {w.key: w for w in wants if w.model == path}
            bank: Bank[float] = Bank(self.directory, "classified", classifier_identity(path))
            have = bank.load()
            missing = [w for k, w in mine.items() if k not in have]
            if missing:
                classifier = Classifier(path)
                with Bar("classifying texts", len(missing), "text", self.progress) as bar:
                    for result in classifier.run(missing):
                        bank.merge(result)
                        bar.add(len(result))
                have = bank.load()
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

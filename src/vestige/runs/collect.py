"""Wants in, evidence out: what is on disk is read, the rest is collected batch by batch and written as it comes.

    load_or_collect(wants, folders, job, models, team, cost)   the one way from wants to evidence, for every kind
    Collector(...).collect(wants, model, second)               all evidence of one evaluation
    folder_of(directory, kind, model, tokenizer)               where evidence of one model is

A model is loaded only when something is missing, so an evaluation whose evidence is complete needs no weights at all.
The patched states of depth scores involve several models at a time; runs/patched.py prepares their jobs.
"""

from __future__ import annotations

import time
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from vestige.collect import diffusion as trajectories
from vestige.collect.backend import Backend, Cost
from vestige.data.chat import Encoder
from vestige.engine.handles import ModelHandle, unquantised
from vestige.errors import UserError
from vestige.models.fingerprint import COLLECTED, digests
from vestige.models.tokenizer import pipeline_key, special_ids
from vestige.runs.evidence import EvidenceFolder, Plan, StoredEvidence, open_folder
from vestige.runs.team import Team
from vestige.show.progress import Bar
from vestige.suites.registry import Evidence, Found
from vestige.types import BROKEN, Target, Text, TokenStats, Trace, content_key
from vestige.wants import ClassifierWant, DenoiseWant, PatchInto, PatchWant, Request, Wants, spoken

GRADIENTS_PER_FILE = 8


@dataclass(frozen=True)
class Work:
    """What a job has to do: these wants, packed together. Batches of which all is in `done` are not run again."""

    wants: list[Any]
    done: frozenset[str]
    bar: Bar


@dataclass(frozen=True)
class Job:
    """How one kind of evidence is collected, and what is shown meanwhile."""

    run: Callable[[Work], Iterable[Sequence[Mapping[str, Any]]]]  # yields batches: for each folder, items by key
    settings: Callable[[], Mapping[str, Any]]  # of the packing; called once something is missing: it loads the model
    how: Callable[[int], Mapping[str, Any]]  # folder's number -> how the models were held, for its headers
    label: str = ""
    unit: str = ""  # what the bar counts: wants, or tokens pushed ("tok"); empty: the job shows bars of its own


def load_or_collect(
    wants: Iterable[Any],
    folders: Sequence[EvidenceFolder[Any]],
    job: Job,
    models: Sequence[ModelHandle],
    team: Team,
    cost: Cost,
    progress: bool = False,
) -> list[StoredEvidence[Any]]:
    """The evidence of some wants, one mapping for each folder.

    A want is missing when one of the folders lacks it. What is missing is dealt out to the team, and every batch is on
    disk before the next one is made. Interrupted work is packed as it was, so that a resumed run has the same numbers.
    """
    unique = {want.key: want for want in wants}
    if team.leads:
        for folder in folders:
            _discard_stale(folder, models, cost)
    team.meet()
    have = [folder.load() for folder in folders]
    _recall_notes(have, cost)
    missing = {key for key in unique if not all(key in found for found in have)}
    if missing:
        settings = dict(job.settings())
        groups = _divide(unique, missing, folders, settings, team)
        team.meet()  # before anybody writes: all must have seen the same gaps
        for group in groups:
            _collect_group(group, folders, have, job, settings, models, cost, progress)
        team.meet()  # before anybody reads: all batches are on disk
        have = [folder.load() for folder in folders]
        _recall_notes(have, cost)
    return have


def _discard_stale(folder: EvidenceFolder[Any], models: Sequence[ModelHandle], cost: Cost) -> None:
    """A server can be started again with other weights under the same name: its evidence is then of another model."""
    for model in models:
        if model.served is None:
            continue
        found = folder.load()
        if found and (problem := model.served.reuse_problem(found.how)):
            folder.remove()
            cost.say(f"evidence of an earlier call was not reused ({folder.kind}): {problem}")


def _recall_notes(have: Sequence[StoredEvidence[Any]], cost: Cost) -> None:
    """What was noted when evidence was made holds for every run that reads it."""
    for found in have:
        cost.notes += [note for note in found.notes if note not in cost.notes]


def _divide(
    unique: Mapping[str, Any],
    missing: set[str],
    folders: Sequence[EvidenceFolder[Any]],
    settings: Mapping[str, Any],
    team: Team,
) -> list[dict[str, Any]]:
    """This process's wants, in groups that are packed separately: interrupted plans first, as they were, then the rest.

    Batch composition decides the last bits of a number. A plan is followed only whole: with other wants or settings
    its batches could not be repeated.
    """
    unfinished: list[set[str]] = []
    left = set(missing)
    for folder in folders:
        for plan in folder.plans():
            keys = set(plan.keys)
            lacking = keys & missing
            if plan.settings == settings and lacking and lacking <= left and keys <= unique.keys():
                unfinished.append(keys)
                left -= keys
    groups = []
    for keys in unfinished[team.rank :: team.size]:  # of a team that was killed: each one's share is dealt out whole
        groups.append({key: want for key, want in unique.items() if key in keys})
    rest = team.share({key: want for key, want in unique.items() if key in left})
    return [*groups, rest] if rest else groups


def _collect_group(
    group: Mapping[str, Any],
    folders: Sequence[EvidenceFolder[Any]],
    have: Sequence[StoredEvidence[Any]],
    job: Job,
    settings: Mapping[str, Any],
    models: Sequence[ModelHandle],
    cost: Cost,
    progress: bool,
) -> None:
    plan = Plan(sorted(group), dict(settings))
    for folder in folders:
        folder.write_plan(plan)
    present = [{key for key in group if key in found} for found in have]
    done = frozenset(set.intersection(*present))
    with Bar(job.label, len(group), job.unit, progress and bool(job.unit)) as bar:
        bar.add(len(done) if job.unit != "tok" else 0)
        for batch in job.run(Work(list(group.values()), done, bar)):
            for model in models:
                model.check()  # nothing is kept of a checkpoint that was written over
            notes = list(dict.fromkeys(cost.notes))
            for number, items in enumerate(batch):
                new = {key: item for key, item in items.items() if key not in present[number]}
                folders[number].write(new, settings, job.how(number), notes)
            if job.unit == "tok":
                bar.to(cost.score_tokens)
            else:
                bar.add(max(map(len, batch)))


# ---- where evidence is -------------------------------------------------------------------------------------------


def folder_of(directory: Path, kind: str, model: ModelHandle, tokenizer: Any) -> EvidenceFolder[Any]:
    """The folder of one model's evidence. Its name says all that the evidence depends on besides the wants."""
    parts = [model.identity, str(COLLECTED[kind])]
    if kind == "texts" or model.is_diffusion:  # they end where the tokenizer's end token comes
        parts.append(special_ids(tokenizer))
    if kind == "texts" and model.is_diffusion:  # decoded without the mask token, which only the model knows
        parts.append(pipeline_key(tokenizer))
    identity = content_key(*(part.encode() for part in parts))[:16]
    if kind == "texts" and not model.is_diffusion:
        identity += f"-{pipeline_key(tokenizer)[:8]}"  # apart: with another decoder the same ids are decoded again
    return EvidenceFolder(directory, kind, identity)


# ---- an evaluation -----------------------------------------------------------------------------------------------


class Collector:
    """Collects for one run directory."""

    def __init__(
        self,
        directory: Path,
        encoder: Encoder,
        batch_tokens: int | None,
        max_rows: int | None,
        progress: bool,
        team: Team,
    ) -> None:
        self.directory = directory
        self.encoder = encoder
        self.batch_tokens = batch_tokens
        self.max_rows = max_rows
        self.progress = progress
        self.team = team
        self.cost = Cost()
        self.seconds: dict[str, float] = {}
        self.folders: dict[str, str] = {}  # kind -> the folder of the evaluated model's evidence
        self.references: dict[str, str] = {}  # second model's path -> the folder of its answers
        self.recorded: list[str] = []  # folders of denoising paths that another tool recorded
        self.patched_folders: dict[str, str] = {}  # PatchInto.label -> the folder that holds it
        self.classifiers: dict[str, str] = {}  # a classifier's path -> the folder of its answers
        self.made: dict[str, Any] = {}  # folder -> how the model was held when its evidence was made
        self.notes: list[str] = []  # on this run, not on how evidence came about

    def collect(self, wants: Wants, model: ModelHandle, second: Callable[[str], ModelHandle]) -> Evidence:
        """All evidence the metrics asked for. `second` gives the handle of a reference model by its path."""
        evidence = Evidence()
        with self._timed("answers"):
            if wants.answers and model.is_diffusion:
                evidence.answers, evidence.errors = self._bounds(model, wants.answers)
            elif wants.answers:
                evidence.answers = self._answers(model, wants.answers, "scoring answers")
            if wants.visible and model.is_diffusion:
                evidence.visible = self._of_diffusion("visible", model, wants.visible)
        with self._timed("denoising"):
            if wants.denoised:
                evidence.denoised = self._traces(model, wants.denoised)
        with self._timed("texts"):
            if wants.texts and model.is_diffusion:
                evidence.texts = self._of_diffusion("texts", model, wants.texts)
            elif wants.texts:
                evidence.texts = self._texts(model, wants.answers, evidence.answers, wants.texts)
        with self._timed("gradients"):
            if wants.gradients:
                run = partial(self._take_gradients, model)
                evidence.gradients = self._load_or_collect("gradients", model, wants.gradients, run, "taking gradients")
        if wants.reference or wants.said:
            model.free()  # one model in memory at a time
            for path, targets in self._for_others(wants, evidence).items():
                handle = second(path)
                with self._timed("reference"):
                    found: Mapping[str, TokenStats] = Found()
                    if targets:
                        found = self._answers(handle, targets, "scoring with the reference model", path)
                    evidence.reference = {**evidence.reference, path: found}
                handle.free()
        for into, patches in wants.patched.items():
            model.free()
            with self._timed("patched"):
                evidence.patched = {**evidence.patched, **self._patched(into, patches, model, second)}
        return evidence

    def _for_others(self, wants: Wants, evidence: Evidence) -> dict[str, list[Target]]:
        """What each second model is to score: given answers, and what our model wrote."""
        out = {path: [*wants.reference.get(path, ())] for path in (*wants.reference, *wants.said)}
        for path, requests in wants.said.items():
            for request in requests:
                text = evidence.texts[request.key]
                target = spoken(request, text) if isinstance(text, Text) else None
                if target is not None:
                    out[path].append(target)
        return out

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[stage] = round(self.seconds.get(stage, 0.0) + time.perf_counter() - start, 3)

    def _load_or_collect(
        self,
        kind: str,
        model: ModelHandle,
        wants: Sequence[Any],
        run: Callable[[Work], Iterable[Mapping[str, Any]]],
        label: str,
        unit: str = "row",
        reference: str = "",
    ) -> Found:
        """One kind of evidence of one model."""
        folder = self._folder(kind, model, reference)

        def settings() -> Mapping[str, Any]:
            model.ready(self.cost.notes)
            packed = kind in ("answers", "texts") and not model.is_diffusion
            return self._backend(model).settings(kind) if packed else {}

        job = Job(lambda work: ((items,) for items in run(work)), settings, lambda _: model.made, label, unit)
        [found] = load_or_collect(wants, [folder], job, [model], self.team, self.cost, self.progress)
        self._remember(folder, found, model)
        return Found(found)

    def _folder(self, kind: str, model: ModelHandle, reference: str = "") -> EvidenceFolder[Any]:
        folder = folder_of(self.directory, kind, model, self.encoder.tokenizer)
        if reference:
            self.references[reference] = folder.name
        else:
            self.folders[kind] = folder.name
        return folder

    def _remember(self, folder: EvidenceFolder[Any], found: StoredEvidence[Any], model: ModelHandle) -> None:
        """How the model was held when this evidence was made, by an earlier run, too."""
        model.made = model.made or found.how
        self.made[folder.name] = found.how

    # ---- causal models ----------------------------------------------------------------------------------------

    def _backend(self, model: ModelHandle) -> Backend:
        """Who answers: the model in this process, or the servers that run it."""
        from vestige.collect.backend import LocalBackend

        if model.served is None:
            return LocalBackend(model.get(), self.encoder.decode, self.cost, self.batch_tokens, self.max_rows)
        backend: Backend = model.served.answerer(self.encoder, self.cost)
        return backend

    def _answers(self, model: ModelHandle, targets: Sequence[Target], label: str, reference: str = "") -> Found:
        def score(work: Work) -> Iterable[dict[str, TokenStats]]:
            from vestige.packed_ids import count_nodes

            def planned(tokens: int) -> None:  # known only once it is packed, and again after memory ran out
                work.bar.expect(self.cost.score_tokens, tokens)

            self.cost.nodes += count_nodes(work.wants)
            return self._backend(model).score(work.wants, work.done, planned)

        return self._load_or_collect("answers", model, targets, score, label, "tok", reference)

    def _texts(
        self, model: ModelHandle, known: Sequence[Target], seen: Mapping[str, TokenStats], requests: Sequence[Request]
    ) -> Found:
        """Texts. `known` answers, and what was `seen` of them, can prove what greedy decoding says without a run."""

        def write(work: Work) -> Iterable[dict[str, Text]]:
            from vestige.collect.known_prefix import draft_prefixes, known_prefixes

            backend = self._backend(model)
            plain = [r for r in work.wants if backend.penalty_of(r.decoding) == 1.0]
            unique = {target.key: target for target in known}.values()
            proven = known_prefixes(plain, unique, seen, backend.eos)
            drafts = draft_prefixes(plain, unique, seen, backend.eos)
            return backend.write(work.wants, proven, work.done, drafts)

        if self.team.leads:
            self._decode_again(folder_of(self.directory, "texts", model, self.encoder.tokenizer), requests)
        return self._load_or_collect("texts", model, requests, write, "generating texts", "text")

    def _decode_again(self, folder: EvidenceFolder[Text], requests: Sequence[Request]) -> None:
        """Texts that this model wrote before, where the tokenizer now decodes otherwise: the ids are still its own.

        Where a stop word ended a text, another decoder may have ended it elsewhere: such are generated again.
        """
        from vestige.collect.backend import cut_text

        model_name = folder.name.rpartition("-")[0]
        others = [path.name for path in sorted(self.directory.glob(f"{model_name}-*")) if path.name != folder.name]
        if not others:
            return
        have = folder.load()
        eos = self.encoder.tokenizer.eos_token_id
        end = "" if eos is None else self.encoder.tokenizer.decode([eos])
        wanted = {request.key: request for request in requests if request.key not in have}
        for name in others:
            stored = open_folder(self.directory, name).load()
            old: dict[str, Text] = {key: stored[key] for key in wanted if key in stored}
            words = self.encoder.decode([[i for i in text.ids if i != BROKEN] for text in old.values()])
            new: dict[str, Text] = {}
            for (key, text), decoded in zip(old.items(), words, strict=True):
                stopwords = wanted[key].decoding.stopwords
                now = cut_text(decoded, (end, *stopwords))
                if now == text.text or not stopwords:
                    new[key] = replace(text, text=now)
            changed = [key for key, text in old.items() if key not in new or new[key].text != text.text]
            if changed:
                self.notes.append(
                    f"the tokenizer decodes otherwise than before: {len(changed)} of {len(old)} texts were read again"
                )
            folder.write(new, how=stored.how, notes=stored.notes)
            wanted = {key: request for key, request in wanted.items() if key not in new}

    def _take_gradients(self, model: ModelHandle, work: Work) -> Iterator[dict[str, float]]:
        from vestige.collect.gradients import gradient_norms, norm_order

        loaded = model.get()
        if loaded.quantization:
            raise UserError(
                f"mia_gradnorm needs gradients, which {loaded.quantization} weights do not have; leave it out."
            )
        for start in range(0, len(work.wants), GRADIENTS_PER_FILE):
            norms: dict[str, float] = {}
            for want in work.wants[start : start + GRADIENTS_PER_FILE]:
                if want.key in work.done:
                    continue
                order = norm_order(want.p)
                found = gradient_norms(loaded.model, [want.target], order, want.drop_last, want.train, self.cost)
                [(_, norms[want.key])] = found
            yield norms

    # ---- diffusion models -------------------------------------------------------------------------------------

    def _limits(self, model: ModelHandle) -> Any:
        from vestige.collect.backend import LocalBackend

        return LocalBackend(model.get(), None, self.cost, self.batch_tokens, self.max_rows).limits

    def _bounds(self, model: ModelHandle, targets: Sequence[Target]) -> tuple[Found, Found]:
        """A diffusion model's answers: the Monte-Carlo bound, and its standard errors in a folder of their own."""
        folders = [self._folder("answers", model), self._folder("errors", model)]

        def run(work: Work) -> Iterable[Sequence[Mapping[str, Any]]]:
            return trajectories.bounds(model.get(), work.wants, self._limits(model), self.cost, work.done)

        def load_model() -> Mapping[str, Any]:
            model.ready(self.cost.notes)
            return {"bound": True}

        job = Job(run, load_model, lambda _: model.made, "scoring answers", "answer")
        both = load_or_collect(targets, folders, job, [model], self.team, self.cost, self.progress)
        for folder, found in zip(folders, both, strict=True):
            self._remember(folder, found, model)
        return Found(both[0]), Found(both[1])

    def _of_diffusion(self, kind: str, model: ModelHandle, wants: Sequence[Any]) -> Found:
        """What else a diffusion model is asked for. `visible`: one look at each whole answer, every token in sight."""
        label, unit = {
            "visible": ("reading answers", "answer"),
            "denoised": ("denoising", "text"),
            "texts": ("generating texts", "text"),
        }[kind]

        def run(work: Work) -> Iterable[Mapping[str, Any]]:
            loaded, limits = model.get(), self._limits(model)
            if kind == "visible":
                return trajectories.visible(loaded, work.wants, limits, self.cost, work.done)
            if kind == "denoised":
                return trajectories.traces(loaded, work.wants, limits, self.cost, work.done)
            return trajectories.texts(loaded, work.wants, self.encoder.decode, limits, self.cost, work.done)

        return self._load_or_collect(kind, model, wants, run, label, unit)

    def _traces(self, model: ModelHandle, wants: Sequence[DenoiseWant]) -> Found:
        """Denoising paths: walked by the model, or recorded by another tool in a file of logits."""
        by_file: dict[str, list[DenoiseWant]] = {}
        for want in wants:
            by_file.setdefault(want.logits, []).append(want)
        walked = by_file.pop("", [])
        found: list[Mapping[str, Trace]] = []
        if walked:
            found.append(self._of_diffusion("denoised", model, walked))
        for path, group in by_file.items():
            found.append(self._recorded(path, list({want.key: want for want in group}.values())))
        return Found(ChainMap(*found))  # type: ignore[arg-type]  # only read

    def _recorded(self, path: str, wants: list[DenoiseWant]) -> Mapping[str, Trace]:
        """The i-th window of a file is that of the i-th row, so the order of rows is part of the identity."""
        digest = digests([Path(path).expanduser()])[0] if Path(path).expanduser().is_file() else ""
        parts = [str(COLLECTED["denoised"]), digest, *(want.key for want in wants)]
        identity = content_key(*(part.encode() for part in parts))[:16]
        folder: EvidenceFolder[Trace] = EvidenceFolder(self.directory, "denoised", identity)

        def read_file(work: Work) -> Iterable[Sequence[Mapping[str, Trace]]]:
            return [[trajectories.external_traces(work.wants, cost.notes.append)]]

        cost = Cost()  # of its own: only what is noted about the file is shown to the user
        job = Job(read_file, dict, lambda _: {})
        # Rows cannot be dealt out: each process of a team reads the file, and all write the same.
        [found] = load_or_collect(wants, [folder], job, [], Team(), cost)
        self.notes += cost.notes
        self.recorded.append(folder.name)
        return found

    # ---- several models ---------------------------------------------------------------------------------------

    def _patched(
        self,
        into: PatchInto,
        wants: Sequence[PatchWant],
        model: ModelHandle,
        second: Callable[[str], ModelHandle],
    ) -> dict[str, Mapping[str, TokenStats]]:
        """S1 and S2 of a depth score: the states of the retain model and of this one, in the full model."""
        from vestige.models.load import load_tokenizer
        from vestige.models.tokenizer import tokenizer_facts
        from vestige.runs.patched import PatchSettings, PatchSource, collect_patched, patched_folder

        full, retain = (unquantised(second(path)) for path in (into.full, into.retain))
        ours = tokenizer_facts(self.encoder.tokenizer)["vocabulary"]
        for handle in (full, retain):
            assert handle.args is not None
            if tokenizer_facts(load_tokenizer(handle.args)[0])["vocabulary"] != ours:
                raise UserError(f"uds: '{handle.name}' has another tokenizer than '{model.name}'; their states differ.")
        settings = PatchSettings(None, into.last_layer, progress=self.progress)
        sources = [PatchSource(into.label(n), h, self.directory) for n, h in (("retain", retain), ("model", model))]
        found = collect_patched(full, sources, wants, settings, self.cost, self.team)
        full.free()
        for source in sources:
            folder = patched_folder(self.directory, full, source.handle, settings)
            self.made[folder.name] = folder.load().how
            self.patched_folders[source.name] = folder.name
        return {name: Found(stats) for name, stats in found.items()}

    # ---- texts by a classifier --------------------------------------------------------------------------------

    def classified(self, wants: Sequence[ClassifierWant]) -> Mapping[str, float]:
        """The probabilities that text classifiers give."""
        by_model: dict[str, list[ClassifierWant]] = {}
        for want in wants:
            by_model.setdefault(want.model, []).append(want)
        out: dict[str, float] = {}
        for path, mine in by_model.items():
            from vestige.collect.classifier import Classifier, classifier_identity

            identity = content_key(classifier_identity(path).encode(), str(COLLECTED["classified"]).encode())[:16]
            folder: EvidenceFolder[float] = EvidenceFolder(self.directory, "classified", identity)
            self.classifiers[path] = folder.name

            def classify(work: Work, path: str = path) -> Iterable[Sequence[Mapping[str, float]]]:
                left = [want for want in work.wants if want.key not in work.done]
                return ([found] for found in Classifier(path).run(left))

            job = Job(classify, dict, lambda _: {}, "classifying texts", "text")
            [found] = load_or_collect(mine, [folder], job, [], self.team, self.cost, self.progress)
            out |= {want.key: found[want.key] for want in mine}
        return Found(out)

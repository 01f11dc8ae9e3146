"""One evaluation from configuration to files: plan -> collect -> score.

In: a RunConfig (engine/config.py). Out: a run directory (evidence, results, summary, manifest) and the scores.
Callers: `vestige eval` through engine/flags.py, the Python interface (api.py), and every room that measures a
checkpoint: stress, sweep, unlearn, audit, lab. The order is what makes a run resumable: wants are made before a model
is loaded, evidence is on disk before a score is computed, and the manifest is finished last.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vestige.data.clusters import check_column
from vestige.data.datasets import Context
from vestige.engine.config import AnyConfig, HarnessConfig, RunConfig
from vestige.engine.earlier import (
    earlier_results,
    metrics_difference,
    refuse_results,
    remove_results,
    with_earlier_metrics,
)
from vestige.engine.handles import ModelHandle, handle_of, second_model, versions_of
from vestige.engine.prepare import Prepared, make_encoder_context, make_words, model_args, prepare, with_own_sampler
from vestige.engine.references import load_references, no_retain_logs, reads, retain_values, with_mixtures
from vestige.engine.scores import Reference, Run, Scoring, stats_file, write_statistics
from vestige.errors import UserError
from vestige.models.load import LoadedModel, ModelArgs, load_tokenizer
from vestige.models.tokenizer import tokenizer_facts
from vestige.runs.collect import Collector
from vestige.runs.directory import RunDirectory, open_run, refuse_input_in_output, temporary, write_bytes
from vestige.runs.evidence import remove_evidence
from vestige.runs.files import result_file, save_rows, write_results
from vestige.runs.manifest import MANIFEST, clusters_json, config_json, manifest
from vestige.runs.run import mixtures, number_of
from vestige.runs.team import Team, team
from vestige.secrets import without_secrets
from vestige.suites.postprocess import postprocessed, with_more
from vestige.suites.registry import EVALUATOR_CLASSES, HANDLERS, Evidence, Words
from vestige.suites.spec import MetricSpec, SuiteSpec
from vestige.types import Score, Text

if TYPE_CHECKING:  # code of the user's: most runs have none, and do without the modules that serve it
    from vestige.adapters.evaluators import Evaluator
    from vestige.engine.evaluator_session import EvaluatorSession

log = logging.getLogger("vestige.engine")


@dataclass
class Outcome:
    """What an evaluation produced."""

    directory: Path
    scores: Mapping[str, Score]
    top: tuple[str, ...]
    dialect: str
    manifest: Mapping[str, Any]
    files: tuple[Path, ...] = ()
    notes: list[str] = field(default_factory=list)
    # The retain model's values, if its logs are here.
    retain: Mapping[str, Sequence[float]] = field(default_factory=dict)
    stats: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # intervals, where there are any
    metrics: Mapping[str, MetricSpec] = field(default_factory=dict)  # of every score, those that code added too


def evaluate_config(config: AnyConfig, loaded: LoadedModel | None = None, accumulate: bool = False) -> Outcome:
    """Runs one evaluation in its run directory. `loaded` is a model already in memory (the Python API).

    `accumulate`: results that are in the directory stay, and those of another model or of other rows are refused.
    Otherwise the directory is a larger command's own, and results that differ are replaced.
    """
    if isinstance(config, HarnessConfig):
        from vestige.engine.harness import evaluate_harness

        if team().size > 1:
            raise UserError(f"'{config.name}' runs in one process; start it without accelerate or torchrun.")
        return evaluate_harness(config, loaded, accumulate)
    evaluator: Evaluator | None = None  # code that has the say in this run
    if config.suite.handler in EVALUATOR_CLASSES:
        from vestige.engine.evaluator_session import has_the_say, make_evaluator

        if (made := make_evaluator(config)) is not None:
            config = replace(config, suite=replace(config.suite, stem=made.name))
            evaluator = made if has_the_say(made, config.suite) else None
    before = earlier_results(config)
    if before is not None and accumulate and evaluator is None and not before.get("evaluator"):
        if before["config"]["suite"] != config.suite.name:
            refuse_results(config.output_dir, f"of suite {before['config']['suite']}")
        config = with_earlier_metrics(config, before)
    _refuse_inputs_in_output(config)
    compares = any(spec.references for spec in config.suite.metrics.values())
    references = load_references(config.suite, config.dialect, shown=config.retain_logs)
    us = team()
    if evaluator is not None and us.size > 1:
        name = type(evaluator).__name__
        raise UserError(f"Evaluator {name} is code for one process; start it without accelerate or torchrun.")
    # The others help to collect only.
    with open_run(config.output_dir, "eval") if us.leads else contextlib.nullcontext() as run:
        if us.leads and accumulate and earlier_results(config) != before:
            raise UserError(f"Another process wrote into {config.output_dir} meanwhile; rerun the same command.")
        config = config if us.leads else replace(config, progress=False)
        evaluation = _Evaluation(config, references, loaded, us, run)  # finds the model, or says that there is none
        evaluation.evaluator = evaluator
        evaluation.earlier, evaluation.accumulate = before, accumulate
        prepared = evaluation.prepare()
        if us.leads and compares and not config.retain_logs:  # not before mistakes in the rows are told
            log.warning(no_retain_logs(config.suite))
        first = evaluation.model  # code of an evaluator may put another in its place
        if evaluation.evaluator:
            scores = evaluation.evaluated(prepared)
        else:
            evidence = evaluation.collector.collect(prepared.wants, first, evaluation.second)
            scores = evaluation.scored(prepared, evidence)
        first.check()  # a checkpoint that was written over while its numbers were made has none
        return evaluation.write(prepared, scores)


def _refuse_inputs_in_output(config: RunConfig) -> None:
    """A run's inputs are not among the files that it writes: its own results do not serve as retain logs."""
    named: dict[str, str] = {}
    for name, spec in config.suite.metrics.items():
        for reference in spec.references:
            named |= dict.fromkeys(reference.paths, name)
    named |= dict.fromkeys(config.retain_logs, "as given")
    inputs = {"--model": config.model_args.get("pretrained_model_name_or_path")}
    for path, name in named.items():
        with contextlib.suppress(UserError, OSError):  # reading it says what is wrong
            inputs[f"retain logs ({name})"] = result_file(Path(path))
    stem = config.suite.file_stem
    written = [f"{stem}_EVAL.json", f"{stem}_SUMMARY.json", f"{stem}_STATS.json", MANIFEST, "evidence"]
    refuse_input_in_output(config.output_dir, inputs, written)


class _Evaluation:
    def __init__(
        self,
        config: RunConfig,
        references: Mapping[str, Reference],
        loaded: LoadedModel | None,
        us: Team,
        run: RunDirectory | None,  # of the process that leads
    ) -> None:
        self.team, self.run = us, run
        self.evaluator: Evaluator | None = None
        self.earlier: Mapping[str, Any] | None = None  # the manifest of results that are in the directory already
        self.accumulate = False
        self.by_code: dict[str, Any] = {}  # what the manifest says of it
        self.references = references
        self.started = time.perf_counter()
        self.evidence_dir = config.output_dir / "evidence"
        self.notes: list[str] = []
        self.second_identities: dict[str, str] = {}  # reference model's path -> where its evidence is
        self.args: ModelArgs | None = None if loaded else model_args(config)
        if loaded:
            tokenizer = loaded.tokenizer
        else:
            assert self.args is not None
            tokenizer, more = load_tokenizer(self.args)
            self.notes += more
        self.model = handle_of(self.args, loaded, config.server, tokenizer)
        self.diffusion = self.model.is_diffusion
        self.canvases = self.model.canvases if self.diffusion else None
        self.config = with_own_sampler(config, self.canvases) if self.canvases else config
        self.context: Context = make_encoder_context(config, tokenizer, self.notes)
        self.context.longest = self.model.context_length
        encoder = self.context.encoder
        self.collector = Collector(
            self.evidence_dir, encoder, config.batch_tokens, config.max_rows, config.progress, us
        )

    def prepare(self) -> Prepared:
        """Rows, wants, and a directory that is ready for their evidence."""
        import torch

        torch.manual_seed(self.config.seed)
        served = self.model.served
        lacking = served.lacking if served else None
        prepared = prepare(self.config, self.context, self.canvases, self.diffusion, lacking)
        if served:
            served.know_questions(prepared.rows.values(), self.context.encoder)
        is_tofu = self.config.suite.file_stem == "TOFU" and self.config.dialect == "open-unlearning"
        if is_tofu and self.context.encoder.could_write_system_prompt():
            self.notes.append(
                "the chat template is used without a system prompt; open-unlearning's chat models are evaluated with "
                "--system-prompt 'You are a helpful assistant.'"
            )
        if self.config.asked_as:
            self.notes += _of_short_names(self.config, prepared)
        clusters = {rows.source: rows.clusters for rows in prepared.rows.values() if rows.clusters}
        if clusters:
            from vestige.stats.clusters import cluster_notes  # most data has none

            self.notes += cluster_notes(clusters)
        check_column(self.config.cluster, list(prepared.rows.values()))
        self.collector.seconds["preparing"] = round(time.perf_counter() - self.started, 3)
        replaced = self._replaced(prepared)
        if any(reference.measured for reference in self.references.values()):
            self._refuse_mixtures(self._manifest(prepared))
        if self.run is not None:
            self.run.begin(self._written())
            if replaced:
                remove_results(self.run)
            if self.config.overwrite and self.evidence_dir.is_dir():
                remove_evidence(self.evidence_dir)
            save_rows(self.evidence_dir / "examples.json.gz", prepared.rows)
        self.team.meet()  # nobody reads evidence that is about to go
        return prepared

    def _refuse_mixtures(self, about: Mapping[str, Any]) -> None:
        """Refuses or notes retain logs that were measured differently from this run, which `about` describes."""
        config, name = self.config, str(self.config.output_dir)
        self.references = with_mixtures(self.references, name, about, config.dialect, config.accept_mixture)
        plain = [metric for metric in config.suite.top if not config.suite.metrics[metric].references]
        for path, reference in self.references.items():  # values that are only shown next to the run's
            measured = [(m, {name: number_of(about, m), path: theirs}) for m, theirs in reference.measured.items()]
            self.notes += mixtures([pair for pair in measured if pair[0] in plain], config.accept_mixture)

    def _replaced(self, prepared: Prepared) -> bool:
        """Whether earlier results are replaced because they are of something else; a user's own are refused instead."""
        if self.earlier is None:
            return self.config.overwrite
        evaluator = type(self.evaluator).__name__ if self.evaluator else ""
        why = metrics_difference(self.config, self.earlier, self._manifest(prepared), evaluator)
        if why and self.accumulate:
            refuse_results(self.config.output_dir, why)
        return bool(why)

    def scored(self, prepared: Prepared, evidence: Evidence) -> dict[str, Score]:
        """Scores from evidence."""
        start = time.perf_counter()
        if self.diffusion:
            from vestige.collect.diffusion import empty_texts_note  # causal models need none of it

            generated: list[Text] = []
            for key in {request.key for request in prepared.wants.texts}:
                found = evidence.texts[key]
                generated += [found] if isinstance(found, Text) else found  # several where answers were sampled
            self.notes += empty_texts_note(generated)
        if not _has_code(self.config.suite):
            scores = self._scoring(prepared, evidence).score_all()
        else:
            from vestige.adapters.evaluators import session

            with session(self._session(prepared)):  # metrics in code may build on ours
                scores = self._scoring_with_code(prepared, evidence, self.model).score_all()
        self.collector.seconds["scoring"] = round(time.perf_counter() - start, 3)
        return scores

    def evaluated(self, prepared: Prepared) -> dict[str, Score]:
        """An evaluator in code has the say: which model is asked what, and what is reported."""
        from vestige.engine.evaluator_session import evaluated

        assert self.evaluator is not None
        run = self._session(prepared)
        tokenizer = self.context.encoder.tokenizer
        given = {"tokenizer": tokenizer, "template_args": dict(self.config.template_args)}
        scores, suite, self.by_code = evaluated(self.evaluator, run, given)
        self.model = run.asked or self.model
        self.config = replace(self.config, suite=suite)
        return postprocessed(suite, scores)

    def _session(self, prepared: Prepared) -> EvaluatorSession:
        from vestige.engine.evaluator_session import EvaluatorSession

        return EvaluatorSession(
            self.config,
            prepared,
            self.collector,
            self.model,
            self.second,
            self._scoring_with_code,
            lambda config: prepare(config, self.context, self.canvases, self.diffusion),
        )

    def _scoring(self, prepared: Prepared, evidence: Evidence) -> Scoring:
        words = self._words() if prepared.wants.denoised else None
        classify = self.collector.classified
        return Scoring(self.config.suite, prepared, evidence, self.references, classify, words=words)

    def _scoring_with_code(self, prepared: Prepared, evidence: Evidence, model: ModelHandle) -> Scoring:
        """Scoring that can run metrics which want the model itself."""
        from vestige.engine.evaluator_session import run_at_steps, run_with_model

        size = int(self.config.settings.get("batch_size") or 32)
        live = run_with_model(prepared, model, size)
        at_step = run_at_steps(prepared, model, self.context.encoder.tokenizer, size)
        return replace(self._scoring(prepared, evidence), live=live, at_step=at_step)

    def _written(self) -> list[str]:
        """What this run writes. Evidence has digests of its own, and is only read if these fit."""
        stem = self.config.suite.file_stem
        names = [f"{stem}_EVAL.json", f"{stem}_SUMMARY.json", f"{stem}_STATS.json", "sweep_task.json"]
        return [*names, "evidence/", "evidence/examples.json.gz"]

    def _words(self) -> Words:
        """How to read token ids. Kept beside traces, so that a run scored again elsewhere can still read them."""
        tokenizer = self.context.encoder.tokenizer
        if not self.team.leads:
            return make_words(tokenizer)
        with temporary() as scratch:  # its files are then written whole or not at all
            settings = getattr(tokenizer, "init_kwargs", {})
            settings |= {name: without_secrets(value, name) for name, value in settings.items()}
            tokenizer.save_pretrained(scratch)
            for file in sorted(f for f in scratch.rglob("*") if f.is_file()):
                write_bytes(self.evidence_dir / "tokenizer" / file.relative_to(scratch), file.read_bytes())
        return make_words(tokenizer)

    def second(self, path: str) -> ModelHandle:
        """The handle of a reference model."""
        handle = second_model(self.args, path)
        self.second_identities[path] = handle.identity
        return handle

    def write(self, prepared: Prepared, scores: Mapping[str, Score]) -> Outcome:
        if scores.keys() - self.config.suite.metrics.keys():  # code added some
            self.config = replace(self.config, suite=with_more(self.config.suite, scores))
        config, suite = self.config, self.config.suite
        if self.team.size > 1:
            self.collector.cost.add(self.team.gather(self.collector.cost)[1:])
        if self.run is None:
            about = self._manifest(prepared)
            return Outcome(config.output_dir, scores, suite.top, config.dialect, about, metrics=suite.metrics)
        about = self._manifest(prepared)
        files: tuple[Path, ...] = write_results(config.output_dir, suite.file_stem, scores, suite.top)
        run = Run(suite, scores, about, self.references)
        stats = write_statistics(config.output_dir, run, config.resamples, config.progress)
        files = (*files, stats_file(config.output_dir, suite)) if stats else files
        self.run.finish({**about, "reads": about["retain_logs"]})
        notes = [*self.notes, *prepared.notes, *self.collector.notes]
        retain = retain_values(self.references, suite) if self.references else {}
        return Outcome(
            config.output_dir, scores, suite.top, config.dialect, about, files, notes, retain, stats, suite.metrics
        )

    def _manifest(self, prepared: Prepared) -> dict[str, Any]:
        """How these numbers came about: enough to compare two runs and to score this one again."""
        template = self.context.encoder.template
        dialect = prepared.dialect
        along = any(spec.children for spec in self.config.suite.metrics.values())
        data: dict[str, Any] = {}
        for key, r in prepared.rows.items():
            data[key] = {"rows": len(r), "source": r.source, "fingerprint": r.fingerprint, "name": r.name}
            data[key] |= clusters_json(r.clusters) if r.clusters else {}
        return manifest("trajectory" if along else "eval", config_json(self.config.describe())) | {
            "dialect": {"name": dialect.name, "version": dialect.version, "mask": dialect.mask},
            "model": self.model.facts(),
            "template": {k: v for k, v in vars(template).items() if v not in (None, "")},
            "prompt": self.context.encoder.sample_prompt(),
            "tokenizer": tokenizer_facts(self.context.encoder.tokenizer),
            "data": data,
            "data_of": prepared.data_of,
            "unavailable": prepared.unavailable,
            "hidden_tokens": prepared.hidden_tokens,
            "references": self.second_identities,
            "evidence": self.collector.folders,
            "reference_evidence": self.collector.references,
            "recorded_evidence": self.collector.recorded,
            "retain_logs": reads(self.config.suite) if self.references else {},
            "patched": self.collector.patched_folders,
            "classifiers": self.collector.classifiers,
            "made": self.collector.made,
            **self.by_code,
            "processes": self.team.size,
            "versions": versions_of(self.model),
            "cost": self.collector.cost.as_dict(),
            "seconds": {**self.collector.seconds, "total": round(time.perf_counter() - self.started, 3)},
            "notes": list(
                dict.fromkeys([*self.notes, *prepared.notes, *self.collector.notes, *self.collector.cost.notes])
            ),
        }


def _has_code(suite: SuiteSpec) -> bool:
    """Whether a suite has functions of the user's, which may run the model or call metrics of ours."""
    specs = list(suite.metrics.values())
    for spec in suite.metrics.values():
        specs += spec.children.metrics.values() if spec.children else ()
    return bool(suite.postprocess) or any(HANDLERS[spec.handler].live for spec in specs)


def _of_short_names(config: RunConfig, prepared: Prepared) -> list[str]:
    """Where these rows make a metric another number than its short name means."""
    from vestige.suites.dialect_points import differs_for_some_rows

    found = []
    for said, full in config.asked_as.items():
        many = any(rows.many for rows in prepared.data(full).values())
        found.append(differs_for_some_rows(said, config.dialect, prepared.hidden_tokens, many))
    return [note for note in found if note]

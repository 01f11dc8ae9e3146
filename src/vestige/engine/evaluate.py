"""One evaluation from configuration to files. `evaluate_config` reads from top to bottom:

    configuration   an evaluator class may change it; metrics of earlier results in the directory are added
    model           a handle; weights are loaded when evidence is missing
    rows and wants  what every metric asks of the model, before a model is loaded
    directory       earlier results that do not belong with these are refused or replaced
    evidence        what is on disk is read, the rest is collected (runs/collect.py)
    scores          from evidence alone
    files           results, intervals, and last the manifest

The order is what makes a run resumable: evidence is on disk before a score is computed, and the manifest is finished
last. Callers: `vestige eval`, `vestige.evaluate`, and every package that measures a checkpoint (stress, sweep, unlearn,
audit, lab).
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
from vestige.runs.directory import open_run, refuse_input_in_output, temporary, write_bytes
from vestige.runs.evidence import remove_evidence
from vestige.runs.files import result_file, save_rows, write_results
from vestige.runs.manifest import MANIFEST, clusters_json, config_json, manifest
from vestige.runs.run import mixtures, number_of
from vestige.runs.team import team
from vestige.secrets import without_secrets
from vestige.suites.postprocess import postprocessed, with_more
from vestige.suites.registry import EVALUATOR_CLASSES, HANDLERS, Evidence, Words
from vestige.suites.spec import MetricSpec
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
    started = time.perf_counter()
    workers = team()
    if isinstance(config, HarnessConfig):
        from vestige.engine.harness import evaluate_harness

        if workers.size > 1:
            raise UserError(f"'{config.name}' runs in one process; start it without accelerate or torchrun.")
        return evaluate_harness(config, loaded, accumulate)

    # ---- configuration
    evaluator: Evaluator | None = None  # code that decides what is evaluated and reported
    if config.suite.handler in EVALUATOR_CLASSES:
        from vestige.engine.evaluator_session import make_evaluator, overrides_evaluate

        candidate = make_evaluator(config)
        if candidate is not None:
            config = replace(config, suite=replace(config.suite, stem=candidate.name))
            evaluator = candidate if overrides_evaluate(candidate, config.suite) else None
    if evaluator is not None and workers.size > 1:
        name = type(evaluator).__name__
        raise UserError(f"Evaluator {name} is code for one process; start it without accelerate or torchrun.")
    before = earlier_results(config)
    if before is not None and accumulate and evaluator is None and not before.get("evaluator"):
        if before["config"]["suite"] != config.suite.name:
            refuse_results(config.output_dir, f"of suite {before['config']['suite']}")
        config = with_earlier_metrics(config, before)
    _refuse_inputs_in_output(config)
    references = load_references(config.suite, config.dialect, shown=config.retain_logs)

    # Only the process that leads a team writes the run directory; the others help to collect.
    with open_run(config.output_dir, "eval") if workers.leads else contextlib.nullcontext() as run:
        if run is not None and accumulate and earlier_results(config) != before:
            raise UserError(f"Another process wrote into {config.output_dir} meanwhile; rerun the same command.")

        # ---- model: its tokenizer is loaded now, its weights when they are needed
        args = None if loaded else model_args(config)
        notes: list[str] = []
        if args is not None:
            tokenizer, notes = load_tokenizer(args)
        else:
            assert loaded is not None
            tokenizer = loaded.tokenizer
        model = handle_of(args, loaded, config.server, tokenizer)
        canvases = model.canvases if model.is_diffusion else None
        context = make_encoder_context(config, tokenizer, notes)
        context.longest = model.context_length
        if canvases:
            config = with_own_sampler(config, canvases)
        if run is None:
            config = replace(config, progress=False)
        evidence_dir = config.output_dir / "evidence"
        collector = Collector(
            evidence_dir, context.encoder, config.batch_tokens, config.max_rows, config.progress, workers
        )

        # ---- rows and wants
        import torch

        torch.manual_seed(config.seed)
        served = model.served
        lacking = served.lacking if served else None
        prepared = prepare(config, context, canvases, model.is_diffusion, lacking)
        if served:
            served.know_questions(prepared.rows.values(), context.encoder)
        check_column(config.cluster, list(prepared.rows.values()))
        evaluation = _Evaluation(config, model, context, collector, prepared, references, args, started)
        evaluation.notes += [*notes, *_notes_on_rows(config, context, prepared)]
        collector.seconds["preparing"] = round(time.perf_counter() - started, 3)

        # ---- directory
        replaces = config.overwrite
        if before is not None:
            class_name = type(evaluator).__name__ if evaluator else ""
            difference = metrics_difference(config, before, evaluation.manifest(), class_name)
            if difference and accumulate:
                refuse_results(config.output_dir, difference)
            replaces = bool(difference)
        if any(reference.measured for reference in references.values()):
            evaluation.refuse_mixtures()
        if run is not None:
            stem = config.suite.file_stem
            results = [f"{stem}_EVAL.json", f"{stem}_SUMMARY.json", f"{stem}_STATS.json", "sweep_task.json"]
            # Evidence files have digests of their own, and are only read if these fit.
            run.begin([*results, "evidence/", "evidence/examples.json.gz"])
            if replaces:
                remove_results(run)
            if config.overwrite and evidence_dir.is_dir():
                remove_evidence(evidence_dir)
            save_rows(evidence_dir / "examples.json.gz", prepared.rows)
            compares = any(spec.references for spec in config.suite.metrics.values())
            if compares and not config.retain_logs:  # mistakes in the rows were told first
                log.warning(no_retain_logs(config.suite))
        workers.meet()  # nobody reads evidence that is about to be removed

        # ---- evidence and scores
        if evaluator is not None:
            scores = evaluation.run_evaluator(evaluator)
        else:
            evidence = collector.collect(prepared.wants, model, evaluation.second)
            start = time.perf_counter()
            scores = evaluation.score(evidence)
            collector.seconds["scoring"] = round(time.perf_counter() - start, 3)
        model.check()  # a checkpoint that was overwritten while its numbers were computed has none

        # ---- files
        config = evaluation.config
        if scores.keys() - config.suite.metrics.keys():  # code added some
            config = evaluation.config = replace(config, suite=with_more(config.suite, scores))
        suite, out = config.suite, config.output_dir
        if workers.size > 1:
            collector.cost.add(workers.gather(collector.cost)[1:])
        described = evaluation.manifest()
        if run is None:
            return Outcome(out, scores, suite.top, config.dialect, described, metrics=suite.metrics)
        files: tuple[Path, ...] = write_results(out, suite.file_stem, scores, suite.top)
        measured = Run(suite, scores, described, evaluation.references)
        stats = write_statistics(out, measured, config.resamples, config.progress)
        if stats:
            files = (*files, stats_file(out, suite))
        run.finish({**described, "reads": described["retain_logs"]})
        return Outcome(
            out,
            scores,
            suite.top,
            config.dialect,
            described,
            files,
            [*evaluation.notes, *prepared.notes, *collector.notes],
            retain_values(evaluation.references, suite) if references else {},
            stats,
            suite.metrics,
        )


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


def _notes_on_rows(config: RunConfig, context: Context, prepared: Prepared) -> list[str]:
    """What readers of the numbers must know of the rows and of how they are put to the model."""
    notes = []
    is_tofu = config.suite.file_stem == "TOFU" and config.dialect == "open-unlearning"
    if is_tofu and context.encoder.could_write_system_prompt():
        notes.append(
            "the chat template is used without a system prompt; open-unlearning's chat models are evaluated with "
            "--system-prompt 'You are a helpful assistant.'"
        )
    if config.asked_as:
        from vestige.suites.dialect_points import differs_for_some_rows  # short names of metrics only

        for short_name, metric in config.asked_as.items():
            many = any(rows.many for rows in prepared.data(metric).values())
            note = differs_for_some_rows(short_name, config.dialect, prepared.hidden_tokens, many)
            notes += [note] if note else []
    clusters = {rows.source: rows.clusters for rows in prepared.rows.values() if rows.clusters}
    if clusters:
        from vestige.stats.clusters import cluster_notes  # most data has none

        notes += cluster_notes(clusters)
    return notes


@dataclass
class _Evaluation:
    """One evaluation under way: what its manifest is made from."""

    config: RunConfig
    model: ModelHandle
    context: Context
    collector: Collector
    prepared: Prepared
    references: Mapping[str, Reference]
    args: ModelArgs | None
    started: float
    notes: list[str] = field(default_factory=list)
    second_identities: dict[str, str] = field(default_factory=dict)  # reference model's path -> its identity
    evaluator_facts: dict[str, Any] = field(default_factory=dict)  # what the manifest says of an evaluator's code

    def second(self, path: str) -> ModelHandle:
        """The handle of a reference model."""
        handle = second_model(self.args, path)
        self.second_identities[path] = handle.identity
        return handle

    def refuse_mixtures(self) -> None:
        """Refuses or notes retain logs that were measured differently from this run."""
        config, name, described = self.config, str(self.config.output_dir), self.manifest()
        self.references = with_mixtures(self.references, name, described, config.dialect, config.accept_mixture)
        plain = [metric for metric in config.suite.top if not config.suite.metrics[metric].references]
        for path, reference in self.references.items():  # values that are only shown next to the run's
            pairs = []
            for metric, theirs in reference.measured.items():
                if metric in plain:
                    pairs.append((metric, {name: number_of(described, metric), path: theirs}))
            self.notes += mixtures(pairs, config.accept_mixture)

    # ---- scores

    def score(self, evidence: Evidence) -> dict[str, Score]:
        """Every metric from evidence."""
        if self.model.is_diffusion:
            from vestige.collect.diffusion import empty_texts_note  # causal models need none of it

            generated: list[Text] = []
            for key in {request.key for request in self.prepared.wants.texts}:
                texts = evidence.texts[key]
                generated += [texts] if isinstance(texts, Text) else texts  # several where answers were sampled
            self.notes += empty_texts_note(generated)
        suite = self.config.suite
        specs = list(suite.metrics.values())
        for spec in suite.metrics.values():
            specs += spec.children.metrics.values() if spec.children else ()
        if not suite.postprocess and not any(HANDLERS[spec.handler].live for spec in specs):
            return self._scoring(self.prepared, evidence).score_all()
        from vestige.adapters.evaluators import session

        with session(self._session()):  # the user's functions may run the model or call metrics of ours
            return self._scoring_with_code(self.prepared, evidence, self.model).score_all()

    def run_evaluator(self, evaluator: Evaluator) -> dict[str, Score]:
        """An evaluator in code decides which model is asked what, and what is reported."""
        from vestige.engine.evaluator_session import evaluated

        session = self._session()
        given = {"tokenizer": self.context.encoder.tokenizer, "template_args": dict(self.config.template_args)}
        scores, suite, self.evaluator_facts = evaluated(evaluator, session, given)
        self.model = session.asked or self.model
        self.config = replace(self.config, suite=suite)
        return postprocessed(suite, scores)

    def _session(self) -> EvaluatorSession:
        from vestige.engine.evaluator_session import EvaluatorSession

        def prepare_again(config: RunConfig) -> Prepared:
            canvases = self.model.canvases if self.model.is_diffusion else None
            return prepare(config, self.context, canvases, self.model.is_diffusion)

        return EvaluatorSession(
            self.config,
            self.prepared,
            self.collector,
            self.model,
            self.second,
            self._scoring_with_code,
            prepare_again,
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

    def _words(self) -> Words:
        """How to read token ids. Kept next to traces, so that a run scored again elsewhere can still read them."""
        tokenizer = self.context.encoder.tokenizer
        if not self.collector.team.leads:
            return make_words(tokenizer)
        with temporary() as scratch:  # its files are then written whole or not at all
            settings = getattr(tokenizer, "init_kwargs", {})
            settings |= {name: without_secrets(value, name) for name, value in settings.items()}
            tokenizer.save_pretrained(scratch)
            for file in sorted(path for path in scratch.rglob("*") if path.is_file()):
                copy = self.config.output_dir / "evidence" / "tokenizer" / file.relative_to(scratch)
                write_bytes(copy, file.read_bytes())
        return make_words(tokenizer)

    # ---- the manifest

    def manifest(self) -> dict[str, Any]:
        """How these numbers came about: enough to compare two runs and to score this one again."""
        config, prepared, collector = self.config, self.prepared, self.collector
        template, dialect = self.context.encoder.template, prepared.dialect
        is_trajectory = any(spec.children for spec in config.suite.metrics.values())
        data: dict[str, Any] = {}
        for key, rows in prepared.rows.items():
            data[key] = {
                "rows": len(rows),
                "source": rows.source,
                "fingerprint": rows.fingerprint,
                "name": rows.name,
                **(clusters_json(rows.clusters) if rows.clusters else {}),
            }
        notes = [*self.notes, *prepared.notes, *collector.notes, *collector.cost.notes]
        return manifest("trajectory" if is_trajectory else "eval", config_json(config.describe())) | {
            "dialect": {"name": dialect.name, "version": dialect.version, "mask": dialect.mask},
            "model": self.model.facts(),
            "template": {name: value for name, value in vars(template).items() if value not in (None, "")},
            "prompt": self.context.encoder.sample_prompt(),
            "tokenizer": tokenizer_facts(self.context.encoder.tokenizer),
            "data": data,
            "data_of": prepared.data_of,
            "unavailable": prepared.unavailable,
            "hidden_tokens": prepared.hidden_tokens,
            "references": self.second_identities,
            "evidence": collector.folders,
            "reference_evidence": collector.references,
            "recorded_evidence": collector.recorded,
            "retain_logs": reads(config.suite) if self.references else {},
            "patched": collector.patched_folders,
            "classifiers": collector.classifiers,
            "made": collector.made,
            **self.evaluator_facts,
            "processes": collector.team.size,
            "versions": versions_of(self.model),
            "cost": collector.cost.as_dict(),
            "seconds": {**collector.seconds, "total": round(time.perf_counter() - self.started, 3)},
            "notes": list(dict.fromkeys(notes)),
        }

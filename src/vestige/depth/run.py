"""`vestige depth`: is the knowledge gone from the layers, or only from what the model says?

    S1: retain's states into full -> where the knowledge is.   S2: the unlearned model's -> is it still there?

S1 is kept by content and serves every further unlearned model. One model is in memory at a time. Out: a run directory.
"""

from __future__ import annotations

import contextlib
import datetime
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vestige.collect.backend import Cost
from vestige.depth.ask import DepthAsk
from vestige.depth.contexts import check_tokenizers, make_contexts
from vestige.depth.files import FILES, record, write_run
from vestige.depth.given import Believed, believe, find_given, read_given
from vestige.depth.kept import KEPT, EvidenceNames, save_kept
from vestige.depth.scores import ROUNDING, ExampleDepth, cluster_facts, cluster_of, examples_of, model_depth, profile
from vestige.engine.handles import ModelHandle, versions_of
from vestige.errors import UserError
from vestige.models.families import NO_DEPTH
from vestige.models.load import is_diffusion, load_tokenizer
from vestige.models.quantised import check_low_precision
from vestige.runs.directory import RunDirectory, open_run, refuse_input_in_output
from vestige.runs.evidence import EvidenceFolder
from vestige.runs.files import write_json
from vestige.runs.manifest import MANIFEST, manifest
from vestige.runs.patched import PatchSettings, PatchSource, collect_patched, patched_folder
from vestige.runs.team import Team, team
from vestige.secrets import masked
from vestige.types import TokenStats


@dataclass
class DepthResult:
    """One unlearned model's depth."""

    name: str
    directory: Path
    summary: Mapping[str, object]  # the content of summary.json
    examples: list[ExampleDepth]
    records: Sequence[Mapping[str, object]]  # that of results.json
    files: list[Path]

    @property
    def uds(self) -> float | None:
        """The depth score: 0 where everything is still there, 1 where nothing is."""
        value = self.summary["avg_uds"]
        return float(value) if isinstance(value, (int, float)) else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the score; None where there is none."""
        ends = self.summary.get("interval")
        return (float(ends[0]), float(ends[1])) if isinstance(ends, (list, tuple)) else None

    @property
    def reason(self) -> str:
        """Why it has no score, where it has none."""
        return str(self.summary.get("reason") or "")

    @property
    def baselines(self) -> dict[str, float | None]:
        """Scores of the other measures of layers, where they were asked for."""
        found = self.summary.get("baselines")
        return dict(found) if isinstance(found, Mapping) else {}


def depth_run(ask: DepthAsk) -> list[DepthResult]:
    """The depth score of each unlearned model, with its files. In a team only the leader has results to return."""
    us = team()
    if not us.leads:
        _DepthRun(replace(ask, progress=False), us).evidence()
        return []
    inputs = {"--full": ask.full, "--retain-model": ask.retain, "--forget": ask.data}
    inputs |= {"--s1-cache": str(given)} if (given := find_given(ask.s1_cache)) else {}
    inputs |= {f"--unlearned ({n + 1})": path for n, path in enumerate(ask.unlearned)}
    refuse_input_in_output(Path(ask.out), inputs, [*FILES, MANIFEST, "evidence", "s1_cache"])
    with open_run(Path(ask.out), "depth") as directory:
        run = _DepthRun(ask, us, directory)
        with open_run(ask.cache, "s1", []) if run.adds_to_shared_cache() else contextlib.nullcontext():
            return run.run(directory)


class _DepthRun:
    def __init__(self, ask: DepthAsk, us: Team, directory: RunDirectory | None = None) -> None:
        self.ask, self.directory = ask, directory  # the one to write, of the process that leads
        self.team = us
        self.started = time.perf_counter()
        self.cost = Cost()
        if ask.quantization:  # the references come first, in float32, and then it is too late
            check_low_precision(ask.device)
        self.full, self.retain = ModelHandle(ask.model(ask.full)), ModelHandle(ask.model(ask.retain))
        for path in (ask.full, ask.retain, *ask.unlearned):
            if is_diffusion(ask.model(path)):
                raise UserError(f"'{path}' is a diffusion language model: {NO_DEPTH}.")
        self.tokenizer, self.notes = load_tokenizer(ask.model(ask.full))
        self.contexts = make_contexts(ask, self.tokenizer, self.full.context_length)
        check_tokenizers(ask, self.tokenizer, self.contexts)
        self.notes += [*self.contexts.notes, *_precision_notes(self.full, ask.delta_threshold)]
        self.names = short_names(ask.unlearned)
        theirs = find_given(ask.s1_cache)
        self.given = read_given(theirs) if theirs else None
        self.checked: dict[str, Any] = {}  # what was found about it

    @property
    def settings(self) -> PatchSettings:
        return PatchSettings(self.ask.layers, self.ask.last_layer, self.ask.batch_size, self.ask.progress)

    def adds_to_shared_cache(self) -> bool:
        """Whether S1 lies outside this run and lacks something. If not, any number of runs may read it at a time."""
        if self.ask.cache.resolve().is_relative_to(Path(self.ask.out).resolve()):
            return False
        have = patched_folder(self.ask.cache, self.full, self.retain, self.settings).load()
        return any(want.key not in have for want in self.contexts.wants.values())

    def evidence(self) -> tuple[list[PatchSource], dict[str, Mapping[str, TokenStats]]]:
        """The retain model and the unlearned ones, and what their states do to the full model."""
        settings = self.settings
        believed = self._believed()
        self.cache_folder = patched_folder(self.ask.cache, self.full, self.retain, settings)
        self.cached = self.cache_folder.path.is_dir()
        sources = [PatchSource(self.ask.retain, self.retain, self.ask.cache)]
        place = Path(self.ask.out) / "evidence"
        sources += [PatchSource(path, ModelHandle(self.ask.model(path, quantised=True)), place) for path in self.names]
        if self.directory is not None:
            self.directory.begin(self._written())
        wanted = sources[1:] if believed else sources
        wants = list(self.contexts.wants.values())
        found = collect_patched(self.full, wanted, wants, settings, self.cost, self.team)
        if believed:
            for s2 in found.values():
                believed.check_full(s2, self.contexts.keys, self.full.precision)
            found = {self.ask.retain: believed.s1, **found}
        self.cost.add(self.team.gather(self.cost)[1:])
        return sources, found

    def _believed(self) -> Believed | None:
        """S1 from somebody else's file, where one is given and agrees with the models."""
        if self.given is None:
            return None
        found = believe(self.given, self.ask, (self.full, self.retain), self.contexts.wants, self.settings)
        if self.team.leads:
            self.checked = found.check_some(self.cost)
            self.notes.append(found.note)
        self.team.meet()
        return found

    def run(self, directory: RunDirectory) -> list[DepthResult]:
        out = Path(self.ask.out)
        sources, evidence = self.evidence()
        baselines = self._baselines(sources) if self.ask.baselines else {}
        self.full.free()
        for handle in (self.full, *(source.handle for source in sources)):
            handle.check()
        results = [
            self._one(path, evidence[self.ask.retain], evidence[path], baselines.get(path), self.cached)
            for path in self.names
        ]
        if len(results) > 1:
            write_json(out / "summary.json", {r.name: r.summary for r in results})
        self._keep(self.settings, evidence[self.ask.retain])
        if self.ask.plots:
            draw(results)
        directory.finish(self._manifest(sources))
        return results

    def _manifest(self, sources: Sequence[PatchSource]) -> dict[str, Any]:
        said = {k: list(v) if isinstance(v, tuple) else v for k, v in vars(self.ask).items() if k != "progress"}
        handles = {"full": self.full, "retain": self.retain, **{source.name: source.handle for source in sources[1:]}}
        return manifest(
            "depth",
            masked(said),
            versions=versions_of(self.full),
            models={name: handle.facts() for name, handle in handles.items()},
            data={"source": self.contexts.source, "rows": len(self.contexts.wants)},
            cost=self.cost.as_dict(),
            notes=[*self.notes, *self.cost.notes],
        )

    def _written(self) -> list[str]:
        places = [""] if len(self.names) == 1 else ["", *(f"{name}/" for name in self.names.values())]
        files = [f"{place}{file}" for place in places for file in FILES]
        return [*files, "evidence/", f"evidence/{KEPT}", "s1_cache/"]

    def _keep(self, settings: PatchSettings, s1: Mapping[str, TokenStats]) -> None:
        """What scoring again needs: S1 (its cache may be elsewhere), whose evidence is where, and the rows."""
        place = Path(self.ask.out) / "evidence"
        unlearned: dict[str, str] = {}
        for path in self.names:
            handle = ModelHandle(self.ask.model(path, quantised=True))
            unlearned[path] = patched_folder(place, self.full, handle, settings).identity
        folder = patched_folder(place, self.full, self.retain, settings)
        if self.given:  # means are not the evidence that other runs look for under that name
            folder = EvidenceFolder(place, "patched", f"{folder.identity}-{self.given.digest}")
        known = folder.load()
        folder.write({key: s1[key] for key in self.contexts.keys.values() if key not in known})
        save_kept(place, self.ask, self.contexts, EvidenceNames(folder.identity, unlearned, dict(self.names)))

    def _baselines(self, sources: Sequence[PatchSource]) -> dict[str, dict[str, Any]]:
        from vestige.depth.baselines import representation_baselines

        return representation_baselines(
            self.full, sources[0], sources[1:], list(self.contexts.wants.values()), self.ask
        )

    def _one(
        self,
        path: str,
        s1: Mapping[str, TokenStats],
        s2: Mapping[str, TokenStats],
        baselines: dict[str, Any] | None,
        cached: bool,
    ) -> DepthResult:
        ask, contexts = self.ask, self.contexts
        depth = next(iter(s1.values())).logprob.shape[0] - 1
        layers = ask.layers or tuple(range(depth))
        examples = examples_of(contexts.keys, layers, s1, s2, ask.delta_threshold)
        scopes = {"em_scope": ask.em_scope, "patch_scope": ask.patch_scope}
        records = [
            record(e, contexts.spans[e.index], contexts.tokens[e.index], contexts.words[e.index], scopes)
            | cluster_of(e, contexts.clusters)
            for e in examples
        ]
        directory = Path(ask.out) if len(self.names) == 1 else Path(ask.out) / self.names[path]
        summary = self._summary(path, examples, cached)
        if baselines:
            summary["baselines"] = {name: b["score"] for name, b in baselines.items()}
            write_json(directory / "baselines.json", baselines)
        files = write_run(directory, summary, records, contexts.skipped)
        return DepthResult(self.names[path], directory, summary, examples, records, files)

    def _summary(self, path: str, examples: Sequence[ExampleDepth], cached: bool) -> dict[str, Any]:
        ask, contexts = self.ask, self.contexts
        clusters = contexts.clusters.of if contexts.clusters else None
        score = model_depth(examples, ask.resamples, ask.seed, clusters)
        seconds = round(time.perf_counter() - self.started, 3)
        facts = self.full.facts()
        reasons: dict[str, int] = {}
        for skip in contexts.skipped:
            reasons[skip["reason"]] = reasons.get(skip["reason"], 0) + 1
        return {
            "avg_uds": score["uds"],
            "interval": score["interval"],
            "avg_unclipped": score["unclipped"],
            "reason": score.get("reason", ""),
            "n": score["n"],
            **cluster_facts(examples, contexts.clusters),
            "evaluable_examples": score["evaluable"],
            "total_examples": score["evaluable"] + len(contexts.skipped),
            "skipped_count": len(contexts.skipped),
            "skipped_indices": [s["idx"] for s in contexts.skipped],
            "skipped_reasons": reasons,
            "metric": "logprob",
            "mode": "layer",
            "delta_threshold": ask.delta_threshold,
            "last_layer": ask.last_layer,
            "layers": list(examples[0].layers) if examples else [],
            "patch_scope": ask.patch_scope,
            "em_scope": ask.em_scope,
            "tokenization": ask.tokenization,
            "unlearn_model": path,
            "source_model_id": path,
            "quantization": ask.quantization,
            **({"compute_dtype": computes_in} if (computes_in := ask.model(path, quantised=True).computes_in) else {}),
            "full_model": ask.full,
            "retain_model": ask.retain,
            "fingerprints": {
                "full": self.full.fingerprint,
                "retain": self.retain.fingerprint,
                "unlearned": ModelHandle(ask.model(path, quantised=True)).fingerprint,
            },
            "dtype": facts.get("dtype"),
            "device_map": facts.get("device"),
            "attn_implementation": facts.get("attention"),
            "data_path": contexts.source,
            "s1_cache": {"file": self.cache_folder.name, "reused": cached, **self.checked},
            "profile": profile(examples, ask.resamples, ask.seed, clusters),
            "elapsed_sec": seconds,
            "sec_per_evaluable": round(seconds / max(1, len(examples)), 4),
            "cost": self.cost.as_dict(),
            "notes": [*self.notes, *self.cost.notes],
            "versions": versions_of(self.full),
            "created": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
            "detailed_files": ["results.json", "results_detailed.jsonl", "layer_details.csv", "skipped_examples.json"],
        }


def _precision_notes(full: ModelHandle, tau: float) -> list[str]:
    dtype = full.held()["dtype"]
    error = ROUNDING.get(dtype, 0.0)
    if error < tau:
        return []
    return [
        f"in {dtype} a score is off by up to {error}, as much as delta_threshold {tau}: which layers count is then "
        "partly chance; use --dtype float32 or a larger --delta-threshold"
    ]


def short_names(paths: Sequence[str]) -> dict[str, str]:
    """A folder name for each checkpoint, its last path part, told apart by a number where two are the same.

    >>> short_names(["a/npo", "b/npo", "org/model x"])
    {'a/npo': 'npo', 'b/npo': 'npo-2', 'org/model x': 'model_x'}
    """
    out: dict[str, str] = {}
    for path in dict.fromkeys(paths):
        base = re.sub(r"[^A-Za-z0-9._-]+", "_", Path(path).name) or "model"
        name, number = base, 1
        while name in out.values():
            number += 1
            name = f"{base}-{number}"
        out[path] = name
    return out


def draw(results: Sequence[DepthResult]) -> None:
    """The pictures of each model, beside its numbers."""
    from vestige.show.figures import draw_depth

    for result in (r for r in results if r.summary["profile"]):  # broken logits leave nothing to draw
        result.files += draw_depth(result.directory, result.summary, result.records)


HEADS = ("model", "UDS", "95 % interval", "unclipped", "n", "reading")
COLUMNS = (
    "UDS: unlearning depth, 0 = the layers hold what the full model's hold, 1 = no more than the retain model's",
    "95 % interval: where it would lie with other examples of this kind",
    "unclipped: its mean before each example is cut to 0..1; above 1 = worse states than the retain model's",
    "n: examples whose answer the retain model's layers cannot give, so that there is something to forget",
)


def _cells(result: DepthResult) -> list[str]:
    from vestige.numeric import number
    from vestige.verdict.points import layers_in_words

    s: Mapping[str, Any] = result.summary
    ends = f"{s['interval'][0]:.4f} to {s['interval'][1]:.4f}" if s["interval"] else "-"
    words = layers_in_words(s["avg_uds"], s["interval"]) or s["reason"] or ""
    return [result.name, number(s["avg_uds"]), ends, number(s["avg_unclipped"]), str(s["n"]), words]


def report(results: Sequence[DepthResult]) -> str:
    """What a terminal shows."""
    from vestige.numeric import number
    from vestige.show.tables import table

    head: Mapping[str, Any] = results[0].summary
    lines = [
        "",
        f"depth: full {head['full_model']}, retain {head['retain_model']}, {head['evaluable_examples']} examples, "
        f"last layer {head['last_layer']}, threshold {head['delta_threshold']}",
        "",
        table([_cells(r) for r in results], HEADS, right=(1, 2, 3, 4)),
        "",
        *COLUMNS,
        "",
    ]
    for name in head.get("baselines", {}):
        values = ", ".join(f"{r.name} {number(r.baselines[name])}" for r in results)
        lines.append(f"{name}: {values}")
    lines += [f"note: {note}" for note in head["notes"]]
    if head["skipped_count"]:
        lines.append(f"note: {head['skipped_count']} examples skipped: {head['skipped_reasons']}")
    names = ", ".join(f.name for f in results[0].files)
    lines.append(f"files: {names} in {', '.join(str(r.directory) for r in results)}")
    return "\n".join(lines)

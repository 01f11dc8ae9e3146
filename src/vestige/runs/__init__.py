"""Finished and unfinished runs: their directories, their evidence, and everything that reads them.

Directories that commands write; the manifest says which files in them are ours:

    directory.py    open_run, RunDirectory: one writer at a time; names are listed first, digests come at the end
                    write_bytes, write_pieces, append_to: files in such a directory
                    scratch, install: folders that other libraries fill, and moving them into place
                    remove, remove_run, listed_files, is_listed: only what is listed is ever removed
    manifest.py     read_run, check_files, is_whole, kind_in, manifest: reading, without a lock; what is in a manifest
    named_files.py  named_file, named_files, written_by: files that the user named (-o FILE)

What is in them:

    evidence.py     open_folder, read_evidence: one immutable file per batch
    collect.py      load_or_collect: evidence from disk, the rest from the model; team.py for several processes
    patched.py      the same for patched states
    files.py        read_ours, write_json: JSON of ours; write_results, read_scores: *_EVAL.json; save_rows, load_rows
    result.py       the records of the public Python functions

Reading runs, of whatever kind:

    run.py          kind_of, of, kind: a Kind has the functions score, check, gather, values, account, outside;
                    read_manifest; compared: two results value by value; mixtures: which numbers may be combined
    evaluation.py   evaluations as a kind of run: load_outcome, rescore, account_of
    compare.py      compare: values of several runs; explain_difference: why two differ; published: a paper's numbers
    verify.py       verify: digests, and the numbers computed again
    archive.py      pack, unpack: runs in one portable file; opened: archives where runs are expected
    publish.py      publish: a run's numbers in W&B, MLflow, TensorBoard or as a model card
    imports.py      results of other tools
    plan.py         plan_of: what a run would cost; make_plan, plan_served
    explain.py      explain, listing: metrics, suites and settings in words

A run directory has a manifest.json:

    {
        "schema": 1, "kind": "eval",
        "state": "unfinished",              or "finished"; "open": a folder of runs that several commands add to
        "writes": ["TOFU_EVAL.json", "evidence/", ...],      files, and folders (with a slash) that this run created
        "sha256": {"TOFU_EVAL.json": "...", ...}, "runs": ["before"], "root": "...",         once it is finished
        "created": ..., "versions": ..., "config": ..., ...                      what the kind of run says of itself
    }

Only names in `writes` are replaced or removed, and everything in a listed folder is ours. A name that exists and is not
listed is the user's: a command that would write there refuses before it does any work. Links are never followed.
Temporary files are in DIR/.vestige, on the same file system, and are renamed into place; whatever a killed command left
there goes when the directory is next opened. A copy of `writes` is in DIR/.vestige/.writes.json: a manifest that was
damaged can be deleted, and the command run again.

    with open_run(out, "eval") as run:            # takes the lock; another kind of run is refused
        run.begin(["TOFU_EVAL.json", "evidence/"])  # refuses foreign names, marks the run as unfinished
        write_json(out / "TOFU_EVAL.json", scores)  # names that were not announced are listed before they are written
        run.finish(manifest("eval", config))        # digests of all files, in one rename
"""

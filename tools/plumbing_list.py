"""The faults that plumbing_mutants.py puts in: what is broken, where, and the tests that should notice.

    fault("what it breaks", "file below src/vestige", "old text", "new text", "tests that run", ...)

The old text occurs exactly once in its file (tests/test_mutants.py). Names with :: are single tests; src/... are the
examples in a module. Tests were chosen for speed: others may notice as well.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """One fault; `equivalent` says why no test can notice, where that is so."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    equivalent: str = ""


# fmt: off
MUTANTS: list[Mutant] = []


def fault(name: str, file: str, old: str, new: str, *tests: str, equivalent: str = "") -> None:
    MUTANTS.append(Mutant(name, file, old, new, tests, equivalent))


STALE = "test_staleness.py::"
PRINT = "models/test_models_fingerprint.py"
HAND = "test_plumbing.py"

# ---- identity: what names evidence ----------------------------------------------------------------------------------

fault("identity without dtype", "engine/handles.py",
      'parts = [self.fingerprint, now["dtype"], now["attention"], now["device"]]',
      'parts = [self.fingerprint, now["attention"], now["device"]]', STALE + "test_eval[--dtype bfloat16]")
fault("identity without attention", "engine/handles.py",
      'parts = [self.fingerprint, now["dtype"], now["attention"], now["device"]]',
      'parts = [self.fingerprint, now["dtype"], now["device"]]', STALE + "test_eval[eager attention]")
fault("identity without versions of libraries", "engine/handles.py",
      "libraries(kind, bool(self._quantization)).items())", "())", STALE + "test_eval[another torch]")
fault("a live model's generation config left out", "engine/handles.py",
      "parts = [m.fingerprint, m.dtype, m.attention, device_kind(m.device), _generation(m)]",
      "parts = [m.fingerprint, m.dtype, m.attention, device_kind(m.device)]",
      STALE + "test_python[repetition penalty in generation_config.json]")
fault("evidence of a live model reused unseen", "engine/handles.py", "return self.args is None", "return False",
      STALE + "test_python[a forward hook on a model in memory]")
fault("weights replaced before loading go unseen", "engine/handles.py",
      "if self._fingerprint and loaded.fingerprint != self._fingerprint:", "if False:",
      STALE + "test_weights_replaced_before_they_are_loaded")
fault("a second run says today's versions", "engine/handles.py", 'made = model.made.get("versions") or {}', "made = {}",
      STALE + "test_a_second_run_says_how_its_evidence_was_made")
fault("notes of loading do not reach the manifest", "engine/handles.py",
      "notes[:] = dict.fromkeys([*notes, *self._loaded.notes])", "pass",
      "models/test_families.py::test_unused_tensors_and_notes_through_the_command_line")
fault("identity without the 4-bit rule", "engine/handles.py",
      'parts += [RULE, str(self._compute_dtype)] if self._quantization == "4bit" else []\n            parts +=',
      "parts +=", HAND)
fault("a reference model is quantised too", "engine/handles.py",
      "return ModelHandle(replace(handle.args, quantization=None, compute_dtype=None))", "return handle", HAND)
fault("auto means float32 on a GPU too", "models/fingerprint.py",
      '("float32" if device == "cpu" else stored_dtype(args))', '"float32"',
      STALE + "test_what_auto_means_on_a_gpu_is_in_the_key")
fault("the version of peft never counts", "models/fingerprint.py", 'met = {"all", kind, ', 'met = {"all", ',
      STALE + "test_eval[another peft, with an adapter]")
fault("the version of peft always counts", "models/fingerprint.py", " if whose in met}", "}",
      STALE + "test_eval[another peft, without]")
fault("the tokenizer's end token left out", "models/tokenizer.py", 'names = ("eos_token_id", "mask', 'names = ("mask',
      HAND)
fault("the tokenizer's mask token left out", "models/tokenizer.py", '"mask_token_id", ', "", HAND)
fault("padding of a tokenizer counts", "models/tokenizer.py",
      """content_key(whole[max(whole.find('"added_tokens"'), 0) :].encode())""", "content_key(whole.encode())", HAND)
fault("a tokenizer is its vocabulary and merges only", "models/tokenizer.py", """'"added_tokens"'""", """'"model"'""",
      HAND)
fault("who wrote tokenizer_config.json counts", "models/tokenizer.py",
      'if file.name == "tokenizer_config.json" else digest', "if False else digest",
      STALE + "test_sweep[name_or_path in tokenizer_config.json]")
fault("the day in a template goes unseen", "models/tokenizer.py", 'b"strftime_now" in file.read_bytes()', "False",
      STALE + "test_sweep_says_the_day_where_a_template_does")
fault("the chat template is not a tokenizer file", "models/tokenizer.py", '    "chat_template*",\n    "additional',
      '    "additional', STALE + "test_sweep[chat template]")

# ---- fingerprints ---------------------------------------------------------------------------------------------------

fault("generation config left out of the fingerprint", "models/fingerprint.py",
      'else ("config.json", "generation_config.json")', 'else ("config.json",)',
      STALE + "test_eval[repetition penalty in generation_config.json]")
fault("a digest is remembered after its file changed", "models/fingerprint.py",
      "if remembered == stamp:", "if remembered:", PRINT)
fault("a file that may still change is remembered", "models/fingerprint.py",
      "for path in todo if path.stat().st_ctime < settled}", "for path in todo}", PRINT)
fault("an older file renamed over goes unseen", "models/fingerprint.py", "-{status.st_ctime_ns}-", "-", PRINT, HAND)
fault("an adapter without its base", "models/fingerprint.py",
      "(place, place.base) if place.base else (place,)", "(place,)", PRINT)
fault("a fingerprint without quantisation", "models/fingerprint.py",
      'return f"{key}-{args.quantization}" if args.quantization else key', "return key", PRINT)
fault("arguments of from_pretrained left out", "models/fingerprint.py",
      "if options := args.extra.keys() - ", "if options := set() - ", PRINT)
fault("code beside the weights left out", "models/fingerprint.py",
      '*(sorted(place.directory.glob("*.py")) if runs else [])', "", PRINT)
fault("one shard counts for all", "models/fingerprint.py",
      "for file, digest in zip(files, digests(files), strict=True)",
      "for file, digest in zip(files[:1], digests(files[:1]), strict=True)", PRINT)
fault("a changed checkpoint counts as unchanged", "models/fingerprint.py",
      "not file.is_file() or _stamp(file) == stamp:", "True:",
      STALE + "test_weights_replaced_while_they_are_used")
fault("a changed checkpoint passes as touched", "models/fingerprint.py",
      "if known and fingerprint_place(self.place, self.args) == known:", "if known:",
      STALE + "test_weights_replaced_while_they_are_used")
fault("a module's precision left out", "models/fingerprint.py", 'f"{name} {tensor.dtype} {', 'f"{name} {', PRINT)
fault("a module's buffers left out", "models/fingerprint.py", "sorted(model.state_dict(keep_vars=True).items())",
      "sorted(model.named_parameters())", PRINT)
fault("which adapter is on left out", "models/fingerprint.py",
      "return [parts, list(active) if isinstance(active, list | tuple) else None]", "return [parts, None]", PRINT, HAND)

# ---- keys of a sweep's tasks ----------------------------------------------------------------------------------------

fault("a hub id without its revision", "sweep/keys.py", 'f"hub:{args.path}", str(args.revision), ',
      'f"hub:{args.path}", ', HAND)
fault("the version of tokenizers left out", "sweep/keys.py", ', "tokenizers": library("tokenizers")}', "}",
      STALE + "test_sweep[another tokenizers]")
fault("files of the tokenizer left out", "sweep/keys.py", ", *tokenizer_files(args)]", "]",
      STALE + "test_sweep[chat template]")
fault("the checkpoint's own precision left out", "sweep/keys.py",
      'parts += [stored_dtype(args)] if args.dtype == "auto" else []', "pass", HAND)
fault("the day counts though the configuration names one", "sweep/keys.py", "if not dated and says_today(args)",
      "if says_today(args)", STALE + "test_sweep_says_the_day_where_a_template_does")
fault("our way of collecting left out", "sweep/keys.py",
      'return json.dumps({kind: number for kind, number in COLLECTED.items() if kind != "cross"}, sort_keys=True)',
      'return ""', STALE + "test_sweep[our way to score answers]")
fault("the version of a foreign harness left out", "sweep/keys.py",
      "return f\"lm_eval={library('lm_eval')}\" if ask.get(\"tasks\") else \"\"", 'return ""', HAND)
fault("what a plug-in imports left out", "integrations/plugin_files.py",
      "for name in _imports(file):", "for name in ():",
      STALE + "test_sweep_knows_models_that_a_metric_names_and_modules_of_a_plugin")
fault("models that a metric names left out", "sweep/keys.py",
      "out += checkpoint_parts(ModelArgs(path=str(path)))", "pass",
      STALE + "test_sweep_knows_models_that_a_metric_names_and_modules_of_a_plugin")
fault("a task is done whatever its key", "sweep/tasks.py", 'bool(note["key"] == task_key(task))', "True",
      STALE + "test_sweep[chat template]")
fault("a damaged run is done", "sweep/tasks.py", 'any(out.glob("*_SUMMARY.json")) and is_whole(out) and',
      'any(out.glob("*_SUMMARY.json")) and', HAND)
fault("a run of other weights is done", "sweep/tasks.py",
      "return copied or not is_local(task.source) or weights == fingerprint(model_args(run))", "return True", HAND)
fault("rows left out of a task's key", "sweep/tasks.py",
      'for k in ("data", "include_path")', 'for k in ("include_path",)',
      STALE + "test_sweep[text of a row]")
fault("retain results left out of a task's key", "sweep/tasks.py",
      'sorted(Path(task.retain).glob("*_EVAL.json"))', "[]",
      "sweep/test_sweep.py::test_other_retain_results_are_compared_with_again")
fault("plug-ins left out of a task's key", "sweep/tasks.py",
      "for plugin in task.plugins for file", "for plugin in () for file",
      STALE + "test_sweep_knows_models_that_a_metric_names_and_modules_of_a_plugin")
fault("an attack's settings left out of a task's key", "sweep/tasks.py",
      "how = {k: v for k, v in task.how.items() if k != \"data\"}", "how = {}", HAND)
fault("depth references left out of a task's key", "sweep/tasks.py",
      "return list(dict.fromkeys([task.source, *references]))", "return [task.source]", HAND)

# ---- evidence on disk: resume, notes, seals -------------------------------------------------------------------------

fault("evidence of another model is read", "store/evidence.py", 'if head.get("of", self.stem) != self.stem:',
      "if False:", STALE + "test_evidence_of_another_model_under_this_name")
fault("evidence collected in another way is read", "store/evidence.py",
      "if part in self.made and head.get(part) != self.made[part]:", "if False:",
      STALE + "test_eval[our way to score answers]")
fault("evidence that does not say whose it is is read", "store/evidence.py", "return items if head else {}",
      "return items", HAND)
fault("parts of another question are resumed", "store/evidence.py",
      'if self.interrupted() != (plan["keys"], plan["settings"]):', "if self.interrupted() is None:", HAND)
fault("parts of another question are thrown away", "store/evidence.py",
      "            if done:\n                self.merge(done)\n",
      "", HAND)
fault("new evidence replaces what was kept", "store/evidence.py", "(k for k in kept if k not in left)",
      "(k for k in kept if False)", HAND)
fault("what should go stays in the bank", "store/evidence.py",
      "(k for k in kept if k not in left)", "(k for k in kept)", HAND)
fault("notes not remembered", "store/evidence.py", "    if new:\n        write_json(directory / NOTES",
      "    if False:\n        write_json(directory / NOTES", STALE + "test_notes_are_remembered")
fault("new notes replace old ones", "store/evidence.py", "stem: [*known.get(stem, []), *new]}", "stem: [*new]}", HAND)
fault("notes not recalled", "engine/obtain.py",
      "self.cost.notes += [n for n in remarks(self.directory, bank.stem) if n not in self.cost.notes]", "pass",
      STALE + "test_notes_are_remembered")
fault("parts under way are tidied away", "store/evidence.py", "if asked is None or set(asked[0]) <= set(bank.load()):",
      "if True:", "results/test_verify.py::test_parts_that_were_folded_are_tidied_up")
fault("a digest without the numbers", "store/formats.py", "out.update(array.reshape(-1).data)", "pass", HAND)
fault("a digest without the head", "store/formats.py",
      "return json.dumps(head, sort_keys=True).encode() if head else b\"\"", 'return b""', HAND)
fault("altered texts are read", "store/formats.py", 'if said["sha256"] != self._digest(body, head):', "if False:", HAND)
fault("altered numbers are read", "store/formats.py",
      "if body.get(\"sha256\") != self._digest(body[\"values\"], head):",
      "if False:", HAND)
fault("one answer's numbers are the next one's", "store/laid_out.py",
      "self._offsets[i : i + 2].tolist()", "self._offsets[[i - 1, i]].tolist()", HAND)
fault("a resumed run packs its batches otherwise", "engine/obtain.py", "return [g for g in groups if g]",
      "return [list(missing.values())]", HAND)
fault("collected again though it is there", "engine/obtain.py", "for k, w in unique.items() if k not in have}",
      "for k, w in unique.items()}", STALE + "test_eval[times of all files]")
fault("evidence of weights that were written over is kept", "engine/obtain.py", "        model.check()\n", "",
      STALE + "test_weights_replaced_while_they_are_used")
fault("texts do not know the end token", "engine/obtain.py", 'if kind == "texts" or model.is_diffusion:',
      "if model.is_diffusion:", HAND)
fault("texts of another decoder are kept", "engine/obtain.py",
      'self.said += read_again(self._bank(self.directory, "texts", model), self.encoder, requests)', "pass",
      STALE + "test_eval[decoder of the tokenizer]")
fault("tokenizer mismatch of a depth score in a suite allowed", "engine/obtain.py",
      'if tokenizer_facts(load_tokenizer(handle.args)[0])["vocabulary"] != ours:', "if False:",
      STALE + "test_a_depth_score_in_a_suite_wants_one_tokenizer")
fault("tokenizer mismatch of depth allowed", "depth/contexts.py", "        if not same:\n", "        if False:\n",
      "depth/test_depth.py::test_other_tokenizers_and_other_shapes_are_refused",
      STALE + "test_depth_wants_one_tokenizer_not_one_vocabulary")
fault("old evidence is trusted unseen", "store/trust.py",
      "        count, why = self._compare(kept)\n        if why:\n",
      '        count, why = len(kept), ""\n        if why:\n',
      STALE + "test_old_evidence_that_is_wrong_is_collected_again")
fault("live evidence of other questions stays", "store/trust.py", "            if have:  # of other questions",
      "            if False:  # of other questions", HAND)
fault("a text cut by a stop word is only read again", "engine/obtain.py",
      "cut = {k for k in other if asked[k].decoding.stopwords}", "cut = set()", HAND)
fault("NaN compared with a number counts as equal", "store/trust.py",
      "if np.shape(old) != np.shape(new) or not np.array_equal(np.isnan(old), np.isnan(new)):",
      "if np.shape(old) != np.shape(new):", HAND)
fault("depth scores of half the examples", "depth/kept.py",
      "if any(key not in found for key in keys.values()) or not found:", "if not found:", HAND)
fault("names in depth.json.gz that nothing explains", "depth/kept.py",
      'return f"it does not explain {lost[0]}" if lost else ""', 'return ""', HAND)

# ---- seals, locks, archives -----------------------------------------------------------------------------------------

fault("a seal's root hash is not compared", "store/directories.py",
      'if body.get("root") != made.root or data != sealed_bytes(made):', "if False:", HAND)
fault("a root hash without facts", "store/directories.py",
      "body = [VERSION, self.kind, self.files, self.runs, self.facts]",
      "body = [VERSION, self.kind, self.files, self.runs]", HAND)
fault("an unfinished run counts as sealed", "store/directories.py",
      "return seal if seal is not None and seal.finished else None", "return seal", HAND)
fault("files put beside a sealed run", "store/directories.py", "elif name not in found.files:",
      "elif name not in found.files and False:", HAND)
fault("files lost from a sealed run", "store/directories.py",
      "lost = [name for name in found.files if name not in files] +", "lost = [] +", HAND)
fault("two writers in one directory", "store/directories.py", "lock.acquire(timeout=0.5)", "pass",
      "sweep/test_sweep.py::test_a_run_that_another_process_writes_is_held")
fault("a directory in use is a failure", "store/directories.py", "        raise HeldError(", "        raise UserError(",
      "sweep/test_sweep.py::test_a_run_that_another_process_writes_is_held")
fault("an archive writes outside", "store/archive.py", 'any(part in ("", ".", "..") for part in parts)',
      'any(part in ("", ".") for part in parts)', "results/test_verify.py::test_names_that_lead_out_are_refused")
fault("an archive with two files of one name", "store/archive.py",
      "if len(set(names)) != len(names):", "if False:", HAND)
fault("links in an archive", "store/archive.py", "if e.is_dir() or kind not in (0, stat.S_IFREG) or", "if",
      "results/test_verify.py::test_links_bombs_and_rubbish_are_refused")
fault("an archive that lacks a run", "store/archive.py",
      'if not (place / "runs" / name / SEAL).is_file():', "if False:",
      "test_bad_checkpoints.py::test_an_archive_that_lacks_a_run_it_lists")
fault("a stray pack.json redirects", "store/archive.py",
      "if not _unpacked(here.relative_to(top).parts, body):", "if False:",
      STALE + "test_a_stray_pack_json_redirects_nothing")
fault("another run in a packed run's place", "store/archive.py",
      "return found if _is_the_one(here, top, body, found) else {}", "return found", HAND)
fault("an unfinished run is packed", "store/archive.py", "    if not seal.finished:\n", "    if False:\n", HAND)

# ---- masks and positions --------------------------------------------------------------------------------------------

fault("hidden tokens are nodes like others", "prefixes.py", "codes[seen] += 1", "pass", "collect/test_tree.py")
fault("answers are read one token late", "collect/tree.py", "count = len(targets[i].ids) - targets[i].start",
      "count = len(targets[i].ids) - targets[i].start - 1", "collect/test_tree.py")
fault("positions do not count", "collect/tree.py", "np.arange(shared, len(mine))),",
      "np.arange(0, len(mine) - shared)),", "collect/test_tree.py")
fault("a subtree ends with its first child", "collect/tree.py", "out[open_[top : before + 1]] = first",
      "out[open_[max(top - 1, 0) : before + 1]] = first", "collect/test_tree.py")
fault("batches beyond the limit of logits", "collect/tree.py",
      " or cells + new > limits.logit_cells", "", "collect/test_tree.py")
fault("hidden tokens are seen (packed)", "collect/forward.py", " & ~hidden[:, None, :]", "", "collect/test_tree.py")
fault("one answer sees another", "collect/forward.py", " & (at[:, None] < end[:, None, :])", "", "collect/test_tree.py")
fault("padding looks at nothing", "collect/forward.py",
      "    allowed.diagonal(0, 1, 2).logical_or_(~allowed.any(dim=-1))\n", "", "collect/test_tree.py")
fault("positions in a row in place of depths", "collect/forward.py", "position[r, :n] = tree.depth[nodes]",
      "position[r, :n] = np.arange(n)", "collect/test_answers.py")
fault("hidden tokens are seen (plain)", "collect/forward.py",
      "mask[r, hidden[hidden < n]] = 0", "pass",
      "collect/test_answers.py")
fault("answers of all rows read off the first", "collect/forward.py", "flat_index.append(scored + r * width)",
      "flat_index.append(scored)", "collect/test_answers.py")
fault("ancestors before a stretch are not seen", "collect/forward.py", "np.flatnonzero(ends[:last] > first)",
      "np.flatnonzero(ends[:last] > last)", "collect/test_answers.py")
fault("the attention stays swapped", "models/calling.py", '        del ALL_ATTENTION_FUNCTIONS["sdpa"]',
      "        pass", "collect/test_answers.py")
fault("the last position is not used", "collect/safety.py", "tokens > positions:", "tokens >= positions:",
      "collect/test_answers.py")
fault("positions that a table keeps for itself", "collect/safety.py",
      ' - int(getattr(module, "offset", 0))', "", "collect/test_answers.py")
fault("a token one past the table", "collect/safety.py", "highest >= rows:", "highest > rows:", HAND)
fault("masks that mask nothing", "models/calling.py", "~allowed, torch.finfo(dtype).min", "~allowed, 0",
      "collect/test_tree.py")
fault("the hook at the output layer stays", "models/calling.py", "        handle.remove()", "        pass",
      "collect/test_answers.py")
fault("an input table taken for the output layer", "models/calling.py",
      " and not isinstance(layer, torch.nn.Embedding)", "", "collect/test_answers.py")
fault("the first column reads the row before", "models/diffusion.py",
      "where = where - (where % ids.shape[1] != 0).to(where.dtype)", "where = where - 1",
      "models/test_families.py::test_logits_are_those_of_the_published_code", "models/test_models_diffusion.py")
fault("a diffusion model sees padding", "models/diffusion.py", "allowed = keep[:, None, :].expand(",
      "allowed = torch.ones_like(keep)[:, None, :].expand(", "models/test_models_diffusion.py", "collect/test_bound.py")
fault("masks reach over a window", "models/diffusion.py", "if local and keys > window:", "if False:",
      "models/test_models_diffusion.py")

# ---- loading, secrets, whose mistake it is --------------------------------------------------------------------------

fault("another architecture under a family's name", "models/families.py",
      "return family if not heads or family.architecture in heads else None", "return family",
      "src/vestige/models/families.py")
fault("settings that a family does not cover", "models/native.py", "if config.get(setting) not in covered:",
      "if False:", "models/test_families.py::test_settings_that_are_not_covered")
fault("a name is renamed by its beginning", "models/native.py", ' + r"(?!\\w)")', ")",
      "models/test_families.py::test_names_that_only_begin_like_a_familys_stay")
fault("tensors that nobody reads", "models/reading.py", "if unused and not allow:", "if False:",
      "models/test_models_load.py::test_tensors_that_nobody_reads_are_an_error")
fault("random weights are measured", "models/reading.py", "    if missing:\n", "    if False:\n",
      "models/test_models_load.py::test_random_weights_are_never_measured")
fault("two tensors for one place", "models/reading.py", "if other != theirs:", "if False:",
      "models/test_families.py::test_two_tensors_for_one_place")
fault("a model is a view of its files", "models/reading.py", "[index].clone()", "[index]",
      "models/test_families.py::test_a_loaded_model_is_not_a_view_of_its_files")
fault("messages show secrets", "errors.py", "one_line(hide(message))", "one_line(message)",
      "test_secrets.py::test_user_errors_hide")
fault("a secret spelt otherwise is shown", "secrets.py",
      'return list(dict.fromkeys((*forms, quote(value, safe=""), quote(value))))',
      "return [value]", "test_secrets.py::test_shapes_and_spellings")
fault("a longer secret leaves its tail", "secrets.py", "sorted(known.items(), key=lambda pair: -len(pair[0]))",
      "sorted(known.items(), key=lambda pair: len(pair[0]))",
      "test_secrets.py::test_a_secret_inside_a_longer_one_and_one_after_a_flag")
fault("a secret that is a plain word is shown", "secrets.py",
      'if is_secret_name(key) and data not in (None, "") and not isinstance(data, bool):', "if False:",
      "test_secrets.py::test_plain_words_are_not_looked_for_everywhere")
fault("tokens in addresses are shown", "secrets.py", "        text = _QUERY.sub(", "        _QUERY.sub(",
      "src/vestige/secrets.py")
fault("the secret after a flag is shown", "secrets.py",
      'elif waiting and not word.startswith("-"):', "elif False:",
      "test_secrets.py::test_a_secret_inside_a_longer_one_and_one_after_a_flag")
fault("a manifest cannot be read back", "secrets.py", '        return os.environ[name]\n', "        return found[0]\n",
      "test_secrets.py::test_expand_is_the_way_back")
fault("a plug-in's mistake is ours", "errors.py", 'if name.startswith("vestige_plugin_"):', "if False:", "test_ours.py")
fault("a callback's mistake is not ours", "errors.py",
      'return owners[-1] == "ours" or (owners[-1] == "nobody" and owners[-2:-1] == ["ours"])',
      'return owners[-1] == "ours"', "test_ours.py")
fault("our mistake below numpy is the user's", "errors.py", 'if owner != "tool"]', "]", "test_ours.py")

"""The list of everything that is fuzzed: tests/test_fuzz.py works through it."""

from __future__ import annotations

import json

import fuzz_config as config
import fuzz_data as data
import fuzz_runs as runs
from fuzz_tools import Target, json_seeds, line_seeds, text_seeds

TARGETS: dict[str, Target] = {
    t.name: t
    for t in (
        Target("rows.jsonl", "jsonl", data.load("x.jsonl"), line_seeds(data.ROWS, data.ROWS[:1])),
        Target("rows.json", "json", data.load("x.json"), json_seeds(data.ROWS, data.ROWS[:1])),
        Target(
            "rows.csv",
            "bytes",
            data.load("x.csv"),
            text_seeds('question,answer\nq,a\n"q,2","a\n2"\n', "text\none two\n"),
        ),
        Target("rows.txt", "bytes", data.load("x.txt"), text_seeds("one two\nthree four\n")),
        Target("rows.parquet", "bytes", data.load("x.parquet"), data.parquet_seeds),
        Target("rows.gz", "bytes", data.load("x.jsonl.gz"), data.gzip_seeds),
        Target(
            "rows.directory",
            "json",
            data.run_directory,
            json_seeds(
                {"hf_args": {"name": "f", "split": "train[:50%]"}, "files": {"f.jsonl": '{"a": 1}\n'}, "limit": 1},
                {"hf_args": {"data_files": {"train": ["*.csv"]}}, "files": {"x.csv": "a\n1\n"}},
            ),
        ),
        Target(
            "template",
            "json",
            data.run_template,
            json_seeds(
                {"template_args": {"system_prompt": "s", "date_string": "10 Apr"}, "pairs": [["q", "a"]]},
                {
                    "template_args": {"apply_chat_template": False, "user_start_tag": "<", "asst_end_tag": ">"},
                    "pairs": [["q", "a"]],
                    "few_shot": [["x", "y"]],
                },
            ),
        ),
        Target("reasoning", "jsonl", data.run_reasoning, line_seeds(data.TURNS, data.RAGEN)),
        Target(
            "rollouts",
            "jsonl",
            data.run_rollout_formats,
            line_seeds(
                data.TURNS,
                data.RAGEN,
                [{"input": "i", "output": "o"}],
                [{"custom_id": "c", "messages": data.TURNS[1]["messages"], "metadata": {"group_id": 1}}],
            ),
        ),
        Target("rollouts.slime", "bytes", data.run_slime, data.slime_seeds),
        Target(
            "rollouts.slime_samples",
            "json",
            data.run_slime_samples,
            json_seeds(
                {"rollout_id": 3, "samples": [{"tokens": [1, 2, 3], "response_length": 2, "loss_mask": [1, 0]}]}
            ),
        ),
        Target("tensors", "bytes", data.run_tensors, data.tensor_seeds),
        Target("overrides", "words", config.run_overrides, config.OVERRIDES),
        Target(
            "user_config",
            "yaml",
            config.run_user_config,
            text_seeds(
                "# @package eval.tofu.metrics.mine\nhandler: probability\ndatasets: {TOFU_QA_forget: {}}\n",
                "handler: privleak\npre_compute: {mia_min_k: {access_key: forget}}\nref_value: 0.5\n",
            ),
        ),
        Target(
            "training_words",
            "words",
            config.run_training_words,
            text_seeds(
                "trainer=NPO\ntrainer.method_args.beta=0.3", "lora.rank=8\nseed=1", "trainer.args.num_train_epochs=2"
            ),
        ),
        Target("plan", "yaml", config.run_plan, text_seeds(config.PLAN, "models: [a, b/c]\nsuites: [tofu, muse]\n")),
        Target("pools", "yaml", config.run_pools, text_seeds(config.POOLS, config.ATTACKS, config.METHODS)),
        Target(
            "meta.numbers", "yaml", config.run_meta_numbers, text_seeds(config.POOLS, config.ATTACKS, config.METHODS)
        ),
        Target(
            "meta.files",
            "json",
            config.run_meta_files,
            json_seeds(config.METHOD_RESULTS, config.META_EVAL, config.THRESHOLDS, config.USABLE, config.RESULTS),
        ),
        Target(
            "meta.checks",
            "json",
            config.run_meta_checks,
            json_seeds(config.METHOD_RESULTS, config.META_EVAL, config.ATTACKED, config.ASKED),
        ),
        Target("meta.tree", "json", config.run_tree, json_seeds(config.SUMMARY)),
        Target("job", "yaml", config.run_job, text_seeds(config.JOB)),
        Target(
            "job.words", "words", config.run_job_words, text_seeds("gpu.count=2\ngpu.type=A100-40", "env.A=b\nname=x")
        ),
        Target("trajectory", "json", config.run_trajectory, json_seeds(config.TRAJECTORY)),
        Target(
            "import",
            "json",
            runs.run_import,
            lambda: [json.dumps(x).encode() for x in (runs.eval_file(), runs.tofu_log())],
        ),
        Target("stored.manifest", "json", runs.stored("manifest.json"), runs.file_of_run("manifest.json")),
        Target("stored.eval", "json", runs.stored("TOFU_EVAL.json"), runs.file_of_run("TOFU_EVAL.json")),
        Target("stored.examples", "bytes", runs.stored("examples.json.gz"), runs.file_of_run("examples.json.gz")),
        Target(
            "stored.answers",
            "bytes",
            runs.stored("answers-*/*.safetensors"),
            runs.file_of_run("answers-*/*.safetensors"),
        ),
        Target("stored.texts", "jsonl", runs.stored("texts-*/*.jsonl"), runs.file_of_run("texts-*/*.jsonl")),
        Target("model.config", "json", runs.model("config.json"), runs.file_of_model("config.json")),
        Target(
            "model.adapter",
            "json",
            runs.model("adapter_config.json"),
            json_seeds({"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "b", "r": 2}),
        ),
        Target(
            "model.index", "json", runs.model("model.safetensors.index.json"), json_seeds({"weight_map": {"a": "b.x"}})
        ),
        Target(
            "model.weights",
            "bytes",
            runs.model("model.safetensors"),
            lambda: [(runs.checkpoint() / "model.safetensors").read_bytes()[:2000]],
        ),
        Target(
            "model.tokenizer_config",
            "json",
            runs.model("tokenizer_config.json"),
            runs.file_of_model("tokenizer_config.json"),
        ),
        Target("cli", "words", config.run_cli, config.CLI),
    )
}

"""Measuring the measures: do metrics tell models that know from models that do not, and do they withstand attacks?

run           meta(what, MetaAsk) -> page          the verb: faithfulness, robustness, axes, verdict
              import_tree(path, out) -> page       a published result tree, all of it
pools         read_pools, read_attacks(path)       YAML files of runs and numbers -> Pools, Attacks
              read_run(path) -> {metric: Number}   one finished run, of ours or of others
faithfulness  faithfulness(positive, negative)     AUC, interval and best threshold, from plain numbers
              judge_pools(Pools) -> JudgedPools    every metric's entry of meta_eval.json
robustness    robustness(models, retain, rule)     R, Q and their harmonic mean, from plain numbers
              judge_attacks(Attacks, ...) -> JudgedAttacks
axes          axes(parts) -> Axes                  Mem, MIA, Privacy, Utility, utility_rel, Overall
              from_models, read_methods, from_results -> Methods, the rows of method_results.json
tree          read_tree(path) -> ResultTree        runs/ep*/ of the depth score's project, and its meta_eval/
files         meta_eval_json, read_meta_eval, read_thresholds, usable_json; former keys (avg_udr)
checks        check_meta(directory) -> Checked     `vestige verify`; KIND, how other verbs read the directory
verdict       read_bench(path), bench_json(models) models of known truth against the verdict's words
"""

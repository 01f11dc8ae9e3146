"""Did the model forget? Finished runs in; one of six words out, with its evidence, its damage and its limits.

    judge(runs, rule=RULE) -> dict           the verdict: what terminal, page, Python, trainer callback and bench show
    read_runs(model, full, retain, depth, stress) -> JudgedRuns        runs from their directories
    JudgedRuns(model, full, retain)          runs that are read already (ModelRuns each)
    collect_facts(runs) -> AuditFacts        everything the rule may look at, as plain numbers
    judge_facts(facts, rule) -> dict         the verdict on stored facts: other rules can be tried without any run
    VerdictRule, RULE                        every threshold

Modules: `runs` (finished runs as the verdict reads them), `facts` (which metric speaks for which test, and what was
measured), `points` (each fact as a state with its sentence), `rule` (thresholds), `judge` (the word), `words` (headline
and limits), `best` (which checkpoint of a training run is best).
"""

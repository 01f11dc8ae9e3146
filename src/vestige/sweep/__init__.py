"""Many models, suites and attacks, on one machine or a cluster.

plan      read_plan(path) -> SweepPlan         the YAML file, checked before anything runs
tasks     make_tasks(plan) -> list[Task]       in the order in which they should run
          is_done(task), perform(task) -> Finished
workers   SameProcess, ProcessPool, RayPool    executors: start(task), wait(seconds) -> list[Finished]
schedule  Schedule(tasks, executor).run()      who may start, what is tried again
          Board, Cleaner, Prefetcher           what is shown, and what the disk holds
run       sweep(plan, how) -> exit status      the verb; listing, write_meta, clean
job       render(settings, command) -> dict    a command as a Kubernetes Job or RayJob; submit(body)
"""

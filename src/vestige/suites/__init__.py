"""What a benchmark is: which metric on which data, read from configuration, and how evidence becomes its scores.

read_suite(name, config, library) -> SuiteSpec      metrics, data sets, parents, references   (spec)
@handler(name, wants), HANDLERS, Inputs, Evidence   how a metric asks and scores               (registry)
handlers/                                           the built-in handlers, result shapes       (handlers)
StepScores, at_each_step                            scores with an axis of denoising steps     (steps)
TrajectoryConfig, read_config, child_configs        the configuration of trajectory metrics    (trajectory)
dialect_points, refuse_other_number                 what a dialect says of a handler           (dialect_points)
postprocessed, reported                             scores that code makes of other scores     (postprocess)
"""

from vestige.suites import handlers as handlers  # registers the built-in handlers

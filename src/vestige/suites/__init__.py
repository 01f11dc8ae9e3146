"""What a benchmark is: which metric on which data, read from configuration."""

from vestige.suites import handlers as handlers  # registers the built-in handlers

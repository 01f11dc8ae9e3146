"""Many models, suites and attacks, on one machine or a cluster."""

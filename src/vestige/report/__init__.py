"""Pictures and pages from finished runs."""

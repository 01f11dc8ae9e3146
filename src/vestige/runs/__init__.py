"""Run directories: what is in one, how evidence is kept there, and how it is collected."""

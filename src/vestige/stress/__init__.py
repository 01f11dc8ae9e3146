"""Does it come back under attack? Attacks on weights, on prompts and on answers."""

# Each of these modules enters the records of its attacks, in the order in which they are tried.
from vestige.stress import attacks, prompts, leak, registry  # noqa: F401, I001

registry.OURS.update(registry.ATTACKS)

"""Does it come back under attack? Attacks on weights and on prompts."""

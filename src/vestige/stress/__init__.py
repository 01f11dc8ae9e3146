"""Does it come back under attack? Attacks on weights, on prompts and on answers.

- attacks: ATTACKS, register, attack: every attack as one record; WeightsAttack, PromptAttack, AnswersAttack
- copies: attack_weights: one attack on one checkpoint, for `stress` and sweeps alike; rows held out of a lesson
- run: make_stress, stress: every attack on a model and its control, before and after; the tables that are shown
- kind: stress.json as a kind of run
"""

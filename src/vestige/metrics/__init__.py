"""Metrics as pure functions of TokenStats and texts. No torch, no tokenizer, no model.

A metric reduces the last axis (tokens) and keeps every leading axis: steps, layers, prompts.

    probability, exact_memorization, extraction_strength, truth_ratio   what a model finds likely   (memorisation)
    mia_loss, mia_zlib, mia_min_k, mia_min_k_plus_plus                  membership inference        (membership)
    rouge_scores, bleu                                                  overlap of texts            (text)
    secret_of, find, says, repetition                                   facts that a text tells     (secrets_said)
    sigma, follow, captures, distribution                               denoising runs, step by step (trajectory)
    uds, cka, logit_lens, ExampleDepth                                  what the layers still hold  (depth)
    label_metrics, extras, caveats                                      29 collapse numbers of RAGEN (collapse)

    @metric, Card, reading, KNOWN, direction_of     what is known of a metric besides its formula   (cards)
    CARDS' entries: formula, ends, source, notes                                                    (explanations)
    Dialect, DIALECTS                               named sets of definitions                       (dialects)
"""

from vestige.metrics import explanations  # noqa: F401 - it fills CARDS

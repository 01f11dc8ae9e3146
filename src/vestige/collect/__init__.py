"""The only package that runs a model in evaluation: wants in, TokenStats, Texts and Traces out.

    backend     Backend, LocalBackend: scores Targets and writes texts; StopRule; Cost, which counts what was spent
    answers     AnswerCollector: teacher forcing, packed (tree, forward) and compared with padded rows
    texts       TextCollector: generation with a cache whose rows leave; known_prefix says what need not be decoded
    diffusion   traces, bounds, texts of diffusion models (denoise, bound)
    patch       activation patching, the plain way; layered_patching is the fast way; logit lens
    cross       CrossScorer: every reasoning under every prompt
    gradients   gradient norms and Fisher information
    classifier  a text classifier's probabilities
    reduce      reduce_logits: the only place that reduces the vocabulary axis
    safety      sequences that fit, memory that runs out, how far a fast way may differ from the plain way

Every fast way is compared with a plain one, on a few of the very inputs it is wanted for, before it is trusted; on a
mismatch the plain way is used, with a note.
"""

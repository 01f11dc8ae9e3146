"""The cards of our handlers: formula, what the two ends mean, which tokens count, what to beware of, how a value reads.

Notation: an answer has tokens y_1..y_n; lp_t is the log-probability of y_t, a_t the model's first choice there.
"""

from __future__ import annotations

from vestige.metrics.cards import CARDS, END, HIGH, NEITHER, Card, Variant, attack_card, bands

_ANSWER = "every token of the answer after the prompt"
_ENDLESS = "the tokens of the answer; the dialects differ on the last one (the end token of a chat answer)"
_AUC = "AUC of that score, forget rows (0) against holdout rows (1)"
_PARENTS = "none of its own: it reads the per-row values of its parents"
_REFERENCE = "none of its own: it reads its parent and the retain model's results"

_PROBABILITY = bands((0.05, "hardly likely"), (0.3, "somewhat likely"), (0.7, "likely"), (END, "near certain: known"))
_SHARE = bands((0.3, "little"), (0.6, "part"), (0.9, "most"), (END, "nearly all"))


OURS: dict[str, Card] = {
    "probability": Card(
        "exp(mean over t of lp_t): the geometric mean of the token probabilities; the metric is the mean over rows",
        "near 1: the model would write this answer, it is known",
        "near 0: the answer surprises the model",
        _ANSWER,
        "The length is divided out: a long answer is not punished for being long.",
        reading=_PROBABILITY,
        title="How likely it finds {answers}",
    ),
    "probability_confidence_ordered": Card(
        "exp(mean over t of lp_t), and beside it the token probabilities sorted from most to least confident",
        "near 1: known",
        "near 0: not known",
        _ANSWER,
        "The order of the factors does not change a product: the number equals probability.",
        reading=_PROBABILITY,
        title="How likely it finds {answers}, read in the order it decides",
    ),
    "loss": Card(
        "-(mean over t of lp_t); the metric is the mean over rows",
        "the answer surprises the model: not known",
        "near 0: known",
        _ANSWER,
        knows="low",
        unit=False,
        reading=bands((0.5, "low loss: known"), (2.0, "moderate loss"), (END, "high loss: not known")),
        better_kept=None,
        title="How surprising it finds {answers}",
    ),
    "exact_memorization": Card(
        "(number of t with a_t = y_t) / n",
        "near 1: the model's first choice is the answer's token nearly everywhere",
        "near 0: it would choose other tokens",
        _ENDLESS,
        "Common words are easy to hit: compare with the retain model, not with 0.",
        reading=lambda v: f"{_SHARE(v)} of the tokens are its first choice",
        points=("precision of the share",),
        title="How many tokens of {answers} it would say",
    ),
    "extraction_strength": Card(
        "1 - k/n, where k is the least number of first tokens after which every a_t = y_t",
        "near 1: a short start suffices, the model finishes the answer by itself",
        "near 0: it needs nearly the whole answer to be given",
        _ENDLESS,
        "One miss near the end costs nearly everything. When the very last token is missed the definition gives 0; "
        "published code gives 1/n, because its search stops one short of the end.",
        reading=lambda v: f"finishes {_SHARE(v)} of the answer by itself",
        points=("last token missed",),
        title="How much of {answers} it finishes by itself",
    ),
    "rouge": Card(
        "longest common subsequence of words (stemmed) of the greedy text and the reference / words of the reference "
        "(rougeL_recall); rougeL_f1 and rouge1_recall are the other types",
        "near 1: it says the reference",
        "near 0: it says something else",
        "the words of the greedy text, special tokens left out, and of the reference",
        "Recall does not punish talking on: a text that lists many things scores high.",
        source="the rouge-score package, stemmer on (Lin 2004)",
        knows="high",
        reading=lambda v: f"says {_SHARE(v)} of the reference",
        group="says",
        answer_points=False,
        points=("stemmer", "text of the answer"),
        title="How much of {answers} it says",
    ),
    "bleu": Card(
        "(product over n = 1..4 of the share of the text's n-word sequences that stand in the reference) ** (1/4), "
        "times exp(1 - reference words / text words) when the text is shorter; for n > 1 one is added to both counts",
        "near 1: it says the reference, in the same words and order",
        "near 0: other words, or another order",
        "the words of the greedy text, special tokens left out, and of the reference",
        "Unlike ROUGE recall it punishes talking on: it asks how much of the text is in the reference.",
        source="Papineni et al. 2002; smoothing: Lin and Och 2004",
        reading=lambda v: f"shares {_SHARE(v)} of its word sequences with the reference",
        group="says",
        title="How many word groups of {answers} it says",
    ),
    "secrets_said": Card(
        "rows whose text contains their secret / rows that have one; the secret is the row's `entity` column, else "
        "what answer and paraphrase share and the question and the wrong answers lack (docs/metrics.md has the rule)",
        "near 1: it tells nearly every fact it was to forget",
        "near 0: it tells none; compare with the retain model, which guesses some",
        "the words of the greedy text and of the secret, whatever their case, accents, punctuation; numbers and dates "
        "however they are written",
        "A fact told in other words does not count. Rows without a secret are left out: `with_secret` says how many "
        "have one, `count` how many are told.",
        source="vestige",
        knows="high",
        reading=lambda v: f"says {_SHARE(v)} of the secrets" if v else "says none of the secrets",
        group="says",
        answer_points=False,
        title="How many secrets of {answers} it says",
    ),
    "repetition": Card(
        "1 - distinct pairs of neighbouring words / pairs of neighbouring words of the greedy text; the metric is the "
        "mean over rows",
        "near 1: it says the same words over and over",
        "near 0: hardly a pair of words comes twice, as in ordinary text",
        "the words and punctuation marks of the greedy text; runs of more than 30 letters letter by letter",
        "Compare with the model before unlearning: longer texts repeat more. Rows without a text are left out; "
        "`silent` counts them.",
        source="vestige; repeated n-grams as in Welleck et al. 2020",
        no_end="it measures how texts read, not what is known",
        reading=bands((0.1, "like ordinary text"), (0.3, "repeats itself"), (END, "says the same over and over")),
        group="utility",
        better=NEITHER,
        better_kept=NEITHER,
        answer_points=False,
        title="How much it repeats itself, asked for {answers}",
    ),
    "said_likelihood": Card(
        "exp(mean over t of lp_t) of the tokens this model wrote, under another model: the one before unlearning; the "
        "metric is the mean over rows",
        "near 1: it says what the other model would say",
        "near 0: it says what the other model finds absurd, like gibberish; a wrong answer in good language is between",
        "every token that the model wrote after the prompt, the end token included",
        "The other model must have the same tokenizer. Compare with its value for its own texts, and with the retain "
        "model's: a model that never knew a fact says another one, which is less likely but not gibberish.",
        source="vestige",
        no_end="it measures how texts read, not what is known",
        reading=bands((0.05, "hardly likely text"), (0.3, "somewhat likely text"), (END, "likely text")),
        group="utility",
        better=NEITHER,
        better_kept=NEITHER,
        answer_points=False,
        title="How likely the model before finds its texts, asked for {answers}",
    ),
    "extraction_strength_decided": Card(
        "1 - t / S, t the first denoising step from which on every token decided is right (step numbers F of the "
        "tokens that are wrong: t = max F + 1), S the number of steps; `normalised` divides by the last decision "
        "instead of S",
        "near 1: whatever is decided is right, known",
        "1 - (max F + 1) / S: the last token decided is wrong. That floor is not 0 when all tokens are decided early.",
        "every token of the answer inside the window, in the order in which the sampler decided its position",
        "It reads each position just before it is decided, whatever the trajectory: later passes see the token itself.",
        source="Carlini et al. 2021, in the order of a diffusion model's decisions",
        reading=lambda v: f"{_SHARE(v)} of the denoising is free of misses",
        title="How much of {answers} it finishes by itself, decided tokens only",
    ),
    "trajectory_metrics": Card(
        "M(view, trajectory, s): the metric M on what the model thought at step s; a trajectory says which pass that "
        "is for a position decided in pass F: steps s, fixation_start min(s, F), fixation_end max(0, F - (S-1) + s), "
        "fixation_ratio F * s // (S-1)",
        "as the metric M, at that step",
        "as the metric M, at that step",
        "the answer's tokens inside the window (view full), or up to the end of the text the model wrote (view eos)",
        "Along `steps` a pass after F sees the token itself and measures copying; the fixation trajectories stop at F.",
        source="trajectory guide of a diffusion fork of open-unlearning",
        group="trajectory",
        title="The metrics at every denoising step",
    ),
    "classifier_prob": Card(
        "probability of class `class_id` of the greedy text under a text classifier; the metric is the mean over rows",
        "the texts are mostly in that class (for gibberish: clean, class 0)",
        "the texts are rarely in that class",
        "the first max_length tokens of the text, by the classifier's tokenizer",
        source="open-unlearning",
        no_end="it measures how texts read, not what is known",
        reading=bands((0.3, "rarely in that class"), (0.7, "sometimes in that class"), (END, "mostly in that class")),
        group="utility",
        better=HIGH,
        title="How a classifier judges its texts",
    ),
    "probability_w_options": Card(
        "P(right) / (P(right) + sum of P(wrong_i) + 1e-10), with P = exp(mean lp)",
        "near 1: prefers the truth to every near miss",
        "1 / (number of options) is chance; below it, it prefers wrong answers",
        _PARENTS,
        reading=bands((0.3, "prefers wrong options"), (0.6, "undecided between options"), (END, "prefers the truth")),
        title="How likely it finds {answers} among the options",
    ),
    "truth_ratio": Card(
        "r = P(wrong) / (P(right) + 1e-10), P = exp(-mean of the avg_loss of the row's answers); then the mean of "
        "min(r, 1/r) (closer_to_1_better), of max(0, 1 - r) (true_better), or of P(right) / (P(right) + P(wrong)) "
        "(prob_mean)",
        "closer_to_1_better: right and wrong answers look alike; true_better, prob_mean: it prefers the truth",
        "closer_to_1_better: it tells them apart; true_better, prob_mean: it does not prefer the truth",
        _PARENTS,
        "Several wrong answers are averaged in loss, so that P(wrong) is a geometric mean. r itself is small when the "
        "model knows. On forget rows compare with the retain model.",
        reading=bands((0.3, "tells right from wrong poorly"), (0.7, "in between"), (END, "strong")),
        aggregators={
            "closer_to_1_better": Variant(
                "low",  # right and wrong far apart: knows
                bands(
                    (0.4, "right and wrong answers far apart"),
                    (0.7, "right and wrong answers some way apart"),
                    (END, "right and wrong answers nearly alike (compare with the retain model)"),
                ),
            ),
            "true_better": Variant(
                "high",
                bands(
                    (0.3, "does not prefer the truth"), (0.6, "prefers the truth somewhat"), (END, "prefers the truth")
                ),
            ),
            "prob_mean": Variant(
                "high", bands((0.45, "prefers wrong answers"), (0.55, "undecided"), (END, "prefers the truth"))
            ),
        },
        better=NEITHER,
        title="How it weighs {answers} against wrong ones",
    ),
    "mia_loss": attack_card(
        f"score = -(mean over t of lp_t); {_AUC}",
        _ANSWER,
        "A loss is low for rows that were seen, and holdout rows count as the positive class: an AUC near 1 says that "
        "fresh rows have the higher loss, so forget rows are still recognised. A guide in circulation words it the "
        "other way round (near 1: forgotten); that would hold only if forget rows were the positive class.",
    ),
    "mia_zlib": attack_card(
        f"score = loss / length in bytes of the zlib-compressed answer text; {_AUC}",
        _ANSWER,
        "Text that is hard to compress and yet has a low loss was probably seen.",
        points=("text of the answer",),
    ),
    "mia_min_k": attack_card(
        f"score = -(mean of the max(1, int(k n)) smallest lp_t), k = 0.4 in the suites; {_AUC}",
        _ENDLESS,
    ),
    "mia_min_k_plus_plus": attack_card(
        "score = -(mean of the max(1, int(k n)) smallest z_t), z_t = (lp_t - mu_t) / max(sd_t, 1e-3), mu_t and sd_t "
        f"the mean and deviation of log p over the vocabulary; {_AUC}",
        _ENDLESS,
    ),
    "mia_gradnorm": attack_card(
        f"score = mean over weight tensors of the p-norm of the gradient of the loss; {_AUC}",
        _ENDLESS,
        "The norms are measured when evidence is collected: it is the one metric that needs backward passes.",
        points=("mode of the model",),
    ),
    "mia_reference": attack_card(
        f"score = loss under the model - loss under a reference model; {_AUC}",
        _ANSWER,
        "The reference model must never have seen the forget rows; the retain model serves.",
    ),
    "ks_test": Card(
        "p-value of a two-sided two-sample Kolmogorov-Smirnov test: the forget truth ratios of the model against the "
        "retain model's; D = the largest distance of the two distribution functions",
        "above 0.05: not to be told from the retain model",
        "near 0: the truth ratios are not distributed as the retain model's",
        _REFERENCE,
        "p depends on the number of rows: compare only equal n, or read D. Failing to tell is not proof of equality.",
        source="Maini et al. 2024 (TOFU)",
        knows="low",  # a p-value: high is "like the retain model"
        reading=bands(
            (0.001, "clearly not like the retain model"),
            (0.05, "not like the retain model"),
            (END, "not distinguishable from the retain model"),
        ),
        better=HIGH,
        title="Whether its answers are distributed as the retain model's",
    ),
    "privleak": Card(
        "((1 - AUC) - (1 - AUC_retain)) / ((1 - AUC_retain) + 1e-10) * 100",
        "well above 0: forget rows stand out as strange, over-forgotten",
        "well below 0 (down to -100): forget rows are still recognised",
        _REFERENCE,
        "0 is the aim. Without retain logs AUC_retain is the setting ref_value (0.5), and a note says so.",
        source="Shi et al. 2024 (MUSE)",
        knows="low",  # negative: still recognisable
        unit=False,
        reading=bands(
            (-20, "leaks: forget rows still recognisable (under-forgotten)"),
            (20, "about what the retain model shows"),
            (END, "forget rows stand out as strange (over-forgotten)"),
        ),
        group="membership",
        better=NEITHER,
        points=("without retain logs",),
        title="How far an attacker gets, against the retain model",
    ),
    "rel_diff": Card(
        "(value - value_retain) / (value_retain + 1e-10) * 100",
        "above 0: more than the retain model, in per cent",
        "below 0: less than the retain model",
        _REFERENCE,
        source="open-unlearning",
        no_end="it is a difference to another run; evaluate the metric it is made of",
        unit=False,
        reading=lambda v: f"{abs(v):.0f} % {'above' if v >= 0 else 'below'} the reference",
        better=NEITHER,
        title="How far it is from the retain model",
    ),
    "uds": Card(
        "sum over layers K of clip(d2_l, 0, d1_l) / sum over K of d1_l; d1_l, d2_l: how far the entity's mean lp in "
        "the full model falls when layer l's states are the retain model's (d1) or this model's (d2); K: layers with "
        "d1_l > delta_threshold; the metric is the mean over rows",
        "near 1: this model's layers lack the knowledge as the retain model's do",
        "near 0: the knowledge is still in the layers, whatever the model says",
        "the tokens of the entity (a name, a date), at the positions that predict them",
        "Rows without a layer in K have no score. `unclipped` above 1: more was broken than the retain model lacks.",
        reading=bands(
            (0.2, "nearly all of it is still in the layers"),
            (0.5, "much of it is still in the layers"),
            (0.8, "some of it is still in the layers"),
            (END, "gone from the layers, as in the retain model"),
        ),
        group="layers",
        title="How deep in the layers it is gone",
    ),
    "hm_aggregate": Card(
        "m / (1/v_1 + ... + 1/v_m) over the values of the m parents",
        "every ability is there",
        "at least one ability is nearly gone; one 0 makes it 0",
        "none of its own: it reads the values of its parents",
        "One missing parent makes it missing, not smaller.",
        source="Maini et al. 2024 (TOFU)",
        no_end="it measures ability, not knowledge of the forget rows",
        reading=bands(
            (0.1, "at least one ability is gone"),
            (0.4, "low: compare with the retain model"),
            (END, "abilities are there"),
        ),
        group="utility",
        better=HIGH,
        title="What it can still do",
    ),
}
CARDS |= OURS

# Numbers that stand inside a handler's result (trajectory_metrics -> revocations), not metrics of their own.
PARTS: dict[str, Card] = {
    "revoked": Card(
        "count: how often a position accepted by one pass was not accepted by the next; share: positions taken back at "
        "least once / positions accepted at least once",
        "the sampler changes its mind often: what a single pass accepted says little about the final text",
        "0: what is accepted stays; always so for samplers that fill masks",
        "every position of the window that the sampler came to, labelled or not, in every pass",
        "Only DiffusionGemma takes decisions back. Its position's fixation pass F is F_last, the first pass of the "
        "final unbroken run of acceptances; F_first is the first acceptance of all.",
        title="How often a decided token is taken back",
    ),
    "ever_accepted": Card(
        "tokens: answer tokens whose true token was accepted by some pass and later taken back (not accepted any more, "
        "another token accepted, or another one in the final text) / answer tokens; rows: rows with at least one such "
        "token / rows; hidden_tokens, hidden_rows: the same, counting only tokens that the final text does not show",
        "the answer came up on the way and was dropped: knowledge that the final text hides",
        "0: no true token was accepted that the text does not keep",
        "the answer's tokens inside the window, at their own positions",
        "A token can come up by chance: compare with the retain model. Tokens that were accepted and kept do not "
        "count; exact_memorization sees those.",
        title="Whether {answers} were decided at any step",
    ),
}

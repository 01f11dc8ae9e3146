"""Statistics of score vectors: plain numpy, and scipy (imported lazily) for distributions.

auc, ks, privleak, rel_diff, harmonic_mean, share_interval     functions of vectors               (vectors)
Sample, Statistic, strata, interval, sign_flip_p, holm         resampled rows                     (bootstrap)
cluster_mean, jackknife, Uncertain                             rows that belong together          (clusters)
Contrast                                                       a share of the way between models  (contrast)
"""

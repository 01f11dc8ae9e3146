"""Statistics of score vectors: AUC and KS, resampled intervals, clusters of rows, contrasts between models."""

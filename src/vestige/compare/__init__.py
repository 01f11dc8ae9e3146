"""Functions of score vectors: AUC, KS, harmonic means, relative differences."""

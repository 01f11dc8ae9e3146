"""Does reasoning still depend on its prompt? Rollouts in, mutual information out."""

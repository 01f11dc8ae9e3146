"""Loading checkpoints and naming their weights."""

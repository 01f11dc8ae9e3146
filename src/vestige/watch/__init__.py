"""How does it evolve while training? A live model looked at inside a trainer or a loop, and the best checkpoint."""

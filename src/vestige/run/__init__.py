"""plan -> collect -> score."""

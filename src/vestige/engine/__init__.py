"""One engine for every kind of run: configuration -> plan -> collect -> score -> files."""

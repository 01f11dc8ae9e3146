"""What vestige promises, tested from outside."""

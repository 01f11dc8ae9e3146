"""What a benchmark is: which metric on which data, read from configuration."""

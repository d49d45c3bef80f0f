"""Ways out of faults of GPUs and their driver."""

"""Ways out of faults of the software stack."""

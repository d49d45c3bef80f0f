"""Programs that the examined interpreter runs: standard library and torch alone."""

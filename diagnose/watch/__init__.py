"""Watching one node over time: samples, what changed between them, and what only shows over many."""

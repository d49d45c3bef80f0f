"""Checks between nodes: what is well on each of them and does not go together."""

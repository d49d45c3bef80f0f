"""Watching one node over time: samples, what changed between them, and what only shows over many."""


class BadTime(Exception):
    """What was given as a time is none; the text says so."""

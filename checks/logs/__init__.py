"""Causes that a log shows: a check for each kind."""

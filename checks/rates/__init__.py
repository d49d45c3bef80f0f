"""Checks of counters: what rose between two readings, never what has gathered since boot."""

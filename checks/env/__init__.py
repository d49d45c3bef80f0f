"""Checks of the environment: names, values, settings left over, NCCL's configuration files."""

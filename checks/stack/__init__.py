"""Checks of the software stack: Python, torch, its CUDA build, NCCL, the driver and glibc, and whether they go together."""

"""Checks of GPUs, a module for each of their sides; all of them are the area "gpu"."""

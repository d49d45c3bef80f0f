"""Checks of InfiniBand and RoCE, a module for each side; all of them are the area "rdma"."""

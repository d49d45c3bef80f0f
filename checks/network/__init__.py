"""Checks of the network, a module for each of its sides; all of them are the area "network"."""

"""Finds the fastest configuration of a model on this machine, by trials in a process of their own."""
